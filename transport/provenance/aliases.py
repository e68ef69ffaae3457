"""Names that some file system takes for one another. Git checks `.git` likewise.

Some file systems ignore case, trailing dots and spaces, the text after a colon, or invisible characters. Some have a
short name for each long one.
"""

from __future__ import annotations

_SHOWS_NOTHING = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0" + "".join(map(chr, range(0xFE00, 0xFE10)))


def is_alias(name: str, reserved: str) -> bool:
    """Return whether some file system takes `name` for `reserved`, which is as `plain` returns it."""
    found = plain(name)
    if found == reserved or "~" not in found:
        return found == reserved
    short, _, number = found.partition("~")
    number, _, ending = number.partition(".")
    stem, _, extension = reserved.lstrip(".").partition(".")
    return number.isdigit() and (short, ending) == (stem[:6], extension[:3])


def plain(name: str) -> str:
    """Return a name in small letters, without what is ignored by some file system."""
    if not name.isascii():
        import unicodedata

        folded = unicodedata.normalize("NFKD", name.casefold())
        name = "".join(
            each for each in folded if unicodedata.category(each) != "Cf" and each not in _SHOWS_NOTHING
        )
    return name.lower().partition(":")[0].rstrip(". ")
