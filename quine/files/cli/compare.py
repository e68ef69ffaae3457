"""Are a file here and one in the tier alike? What both sides say of them, and their bytes.

Laws
1. Sizes and times tell. A side that keeps only whole seconds or milliseconds is compared as far as it can say.
2. Bytes are compared as they come, and no further than the first that differs.
"""

from __future__ import annotations

import os

from quine.files.api import BLOCK
from quine.files.cli import destination, localfs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.api import Entry, Tier
    from quine.files.cli.pool import Crew

CLOSE = 2e-6  # seconds: what is lost of a time on its way through a float
UNITS = (1, 1000)  # parts of a second that stores keep, where they do not keep all


class Item:
    """What there is under a name, on either side."""

    __slots__ = ("kind", "mode", "mtime", "path", "size")

    def __init__(self, path: str, kind: str, size: int, mtime: float, mode: int) -> None:
        self.path, self.kind, self.size, self.mtime, self.mode = path, kind, size, mtime, mode


def of_disk(found: localfs.Found) -> Item:
    status = found.stat
    return Item(found.path, found.kind, status.st_size, status.st_mtime, status.st_mode & localfs.PERMISSIONS)


def of_tier(entry: Entry, top: str) -> Item:
    return Item(
        destination.below(entry, top), entry.kind, entry.size, entry.mtime, entry.mode & localfs.PERMISSIONS
    )


def same_time(one: float, other: float) -> bool:
    """Is it the same moment, as far as both can say?"""
    if abs(one - other) < CLOSE:
        return True
    for unit in UNITS:
        for exact, rough in ((one * unit, other * unit), (other * unit, one * unit)):
            if abs(rough - round(rough)) < CLOSE * unit and abs(exact - round(rough)) < 1:
                return True
    return False


def same_bytes(fd: int, tier: Tier, path: str, crew: Crew) -> bool:
    """Has a file here the content of one in the tier?"""
    with tier.open(path) as reader:
        while block := reader.read(BLOCK):
            crew.tick(0)
            while block:
                own = os.read(fd, len(block))
                if not own or own != block[: len(own)]:
                    return False
                block = block[len(own) :]
    return not os.read(fd, 1)


def listed_alike(one: Item, other: Item) -> bool:
    """Size, mode and the whole of the time are the same.

    A time in whole seconds may be that of the upload, which a change within that second would hide behind.
    """
    return one.size == other.size and one.mode == other.mode and abs(one.mtime - other.mtime) < CLOSE


def alike(one: Item, other: Item) -> bool:
    """Size, mode and time are the same, as far as both sides can say."""
    return one.size == other.size and one.mode == other.mode and same_time(one.mtime, other.mtime)
