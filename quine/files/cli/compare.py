"""Comparison of a local file with a file of the tier, by attributes or by content.

Laws
1. Sizes and times decide. If one side keeps only whole seconds or milliseconds, times are compared at that precision.
2. Contents are compared while they are read, up to the first difference.
"""

from __future__ import annotations

import os

from quine.files.api import BLOCK
from quine.files.cli import destination, localfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.api import Entry, Reader
    from quine.files.cli.pool import Crew

CLOSE = 2e-6  # seconds: the error of a time that is kept in a float
UNITS = (1, 1000)  # units per second at which coarse stores keep times


class Item:
    """The attributes of a path on either side."""

    __slots__ = ("kind", "mode", "mtime", "path", "size")

    def __init__(self, path: str, kind: str, size: int, mtime: float, mode: int) -> None:
        self.path, self.kind, self.size, self.mtime, self.mode = path, kind, size, mtime, mode


def of_disk(found: localfs.Found) -> Item:
    status = found.stat
    return Item(found.path, found.kind, status.st_size, status.st_mtime, status.st_mode & localfs.PERMISSIONS)


def of_tier(entry: Entry, top: str, bits: int = localfs.PERMISSIONS) -> Item:
    """Return its attributes; `bits` are those of its mode that it would have here."""
    return Item(destination.below(entry, top), entry.kind, entry.size, entry.mtime, entry.mode & bits)


def same_time(one: float, other: float) -> bool:
    """Return whether two times are the same, at the precision of the coarser side."""
    if abs(one - other) < CLOSE:
        return True
    for unit in UNITS:
        for exact, rough in ((one * unit, other * unit), (other * unit, one * unit)):
            if abs(rough - round(rough)) < CLOSE * unit and abs(exact - round(rough)) < 1:
                return True
    return False


def same_bytes(fd: int, reader: Reader, crew: Crew) -> bool:
    """Return whether the local file `fd` has the content of an open file of the tier."""
    while block := reader.read(BLOCK):
        crew.tick(0)
        while block:
            own = os.read(fd, len(block))
            if not own or own != block[: len(own)]:
                return False
            block = block[len(own) :]
    return not os.read(fd, 1)


def listed_alike(one: Item, other: Item) -> bool:
    """Return whether size, mode and time are the same, the time at full precision.

    A time in whole seconds may be that of the upload, and hide a change within that second.
    """
    return one.size == other.size and one.mode == other.mode and abs(one.mtime - other.mtime) < CLOSE


def alike(one: Item, other: Item) -> bool:
    """Return whether size, mode and time are the same, the time at the precision of the coarser side."""
    return one.size == other.size and one.mode == other.mode and same_time(one.mtime, other.mtime)
