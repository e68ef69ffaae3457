"""The contents by which an item is the same one in the next run: those of its --files and of its --stdin.

Laws
1. A link below a directory is what it says, as for the staging: through two links to their own directory there are
   2^40 ways. A file that cannot be read is its name: the start tells of it, and not the name of the item.
2. Contents that all items have are read once, and again when their inodes say that they have changed.
"""

from __future__ import annotations

import os
import time

from quine.fanout.journal import hash_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Found = Iterable[tuple[str, bytes]]  # paths, and the names that they get
    Inode = tuple[str, int, int, int, int]  # path, number, size, times of the last write and change in ns

SETTLED = 2_000_000_000  # nanoseconds: two changes of a file may have one time


class Shared:
    """The contents that all items have. `find` gives their paths and names."""

    def __init__(self, find: Callable[[], Found]) -> None:
        self._find = find
        self._seen: list[Inode] | None = None
        self._hash = b""

    def parts(self) -> Iterator[bytes]:
        """Yield their hash. Raises as `find` does."""
        found = list(self._find())
        seen = [line for path, _ in found for line in _inodes(path)]
        if seen != self._seen:
            before = time.time_ns() - SETTLED
            self._hash = hash_of(parts(found)).encode()
            self._seen = seen if all(changed < before for *_, changed in seen) else None
        yield self._hash


def parts(found: Found) -> Iterator[bytes]:
    """Names and contents."""
    for path, name in found:
        yield name
        yield from content(path)


def content(path: str, below: bool = False) -> Iterator[bytes]:
    """The content of a file, and of all that is in a directory; of anything else the name stands for it."""
    try:
        if below and os.path.islink(path):
            yield os.fsencode(os.readlink(path))
        elif os.path.isdir(path):
            for name in sorted(os.listdir(path)):
                yield os.fsencode(name)
                yield from content(os.path.join(path, name), below=True)
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                while data := file.read(1 << 20):
                    yield data
        else:
            yield os.fsencode(path)
    except OSError:
        yield os.fsencode(path)


def _inodes(path: str, below: bool = False) -> Iterator[Inode]:
    """The facts that change with a content."""
    try:
        found = os.stat(path, follow_symlinks=not below)
        yield path, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        if os.path.isdir(path) and not (below and os.path.islink(path)):
            for name in sorted(os.listdir(path)):
                yield from _inodes(os.path.join(path, name), below=True)
    except OSError:
        yield path, 0, 0, 0, 0
