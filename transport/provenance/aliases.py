"""Names that some file system takes for one another. Git checks `.git` likewise.

Some file systems ignore case, trailing dots and spaces, the text after a colon, or invisible characters. Some have a
short name for each long one.
"""

from __future__ import annotations

# Default_Ignorable_Code_Point of Unicode: HFS+ and case-folding directories of ext4 ignore such in names.
_IGNORED = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F)),
    *((0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A)),
    (0xE0000, 0xE0FFF),
)


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
            each for each in folded if unicodedata.category(each) != "Cf" and not _is_ignored(each)
        )
    return name.lower().partition(":")[0].rstrip(". ")


def _is_ignored(character: str) -> bool:
    code = ord(character)
    return any(first <= code <= last for first, last in _IGNORED)
