"""Names that some file system takes for one another. Git checks `.git` likewise.

Some file systems ignore case, trailing dots and spaces, the text after a colon, or invisible characters. Some have a
short name for each long one. None takes a name of more than LONGEST letters.
"""

from __future__ import annotations

LONGEST = 255

# Default_Ignorable_Code_Point of Unicode: HFS+ and case-folding directories of ext4 ignore such in names. And the other
# characters of format, its category Cf.
_IGNORED = (
    *((0xAD, 0xAD), (0x34F, 0x34F), (0x61C, 0x61C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F)),
    *((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F)),
    *((0xFEFF, 0xFEFF), (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A)),
    *((0xE0000, 0xE0FFF), (0x600, 0x605), (0x6DD, 0x6DD), (0x70F, 0x70F), (0x890, 0x891), (0x8E2, 0x8E2)),
    *((0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F)),
)
_table: dict[int, None] = {}  # of them, made once it is needed


def is_alias(name: str, reserved: str) -> bool:
    """Return whether some file system takes `name` for `reserved`, which is as `plain` returns it."""
    return stands_for(plain(name), reserved)


def stands_for(found: str, reserved: str) -> bool:
    """Return the same for a name as `plain` returns it."""
    return found == reserved or ("~" in found and short(found) == shortened(reserved))


def short(found: str) -> tuple[str, str] | None:
    """Return the beginning and the extension of a short name, like `person~1`; None for another one."""
    beginning, _, number = found.partition("~")
    number, _, extension = number.partition(".")
    return (beginning, extension) if number.isdigit() else None


def shortened(reserved: str) -> tuple[str, str]:
    """Return what `short` returns for the short names of a name."""
    stem, _, extension = reserved.lstrip(".").partition(".")
    return stem[:6], extension[:3]


def plain(name: str) -> str:
    """Return a name in small letters, without what is ignored by some file system."""
    if len(name) > LONGEST:
        return name
    if not name.isascii():
        import unicodedata

        if not _table:
            _table.update((code, None) for first, last in _IGNORED for code in range(first, last + 1))
        name = unicodedata.normalize("NFKD", name.casefold()).translate(_table)
    return name.lower().partition(":")[0].rstrip(". ")
