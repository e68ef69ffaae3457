"""A store in the memory of this process, `memory://NAME`: for tests, and for data that no other process may see.

Laws
1. A process has one store for each name, shared by all its users; a forked child has its own copy.
2. The content of a file is never changed, only replaced, so a reader keeps the version that it opened.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import itertools
import os
import threading
import time
from collections.abc import Iterator

from quine.files import paths
from quine.files.api import DIRECTORY_MODE, FILE_MODE, Entry, Range, Reader, Tier, Writer, check_range, error
from quine.files.stores.rename_rules import moves, replaces

Content = tuple[list[int], list[bytes], int]  # offsets of the pieces, the pieces, size of the whole


class _File:
    """Pieces of data and their offsets, in order; the gaps between them are zeros."""

    def __init__(
        self, starts: list[int], pieces: list[bytes], size: int, mode: int, mtime: float, version: str
    ) -> None:
        self.starts = starts
        self.pieces = pieces
        self.size = size
        self.mode = mode
        self.mtime = mtime
        self.version = version


class _Directory:
    def __init__(self) -> None:
        self.names: dict[str, _File | _Directory] = {}
        self.mtime = time.time()


class _Store:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.root = _Directory()
        self.versions = itertools.count(1)


_stores: dict[str, _Store] = {}
_opening = threading.Lock()


def forget(name: str) -> None:
    """Drop the store: the next `Memory` of this name is empty."""
    with _opening:
        _stores.pop(name, None)


class Memory(Tier):
    def __init__(self, name: str = "") -> None:
        self.url = f"memory://{name}"
        with _opening:
            self._store = _stores.setdefault(name, _Store())

    # -- looking -----------------------------------------------------------------------------------

    def stat(self, path: str) -> Entry:
        with self._store.lock:
            return _entry(path, self._find(path, path))

    def list(self, path: str) -> Iterator[Entry]:
        with self._store.lock:
            directory = self._find(path, path)
            if isinstance(directory, _File):
                raise error(errno.ENOTDIR, path)
            found = [_entry(paths.join(path, name), node) for name, node in directory.names.items()]
        return iter(sorted(found, key=lambda entry: os.fsencode(entry.path)))

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        check_range(path, offset, length)
        with self._store.lock:
            node = self._find(path, path)
            if isinstance(node, _Directory):
                raise error(errno.EISDIR, path)
            return _Reader(node, _entry(path, node), offset, length)

    # -- changing ----------------------------------------------------------------------------------

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        with self._store.lock:
            self._may_replace(path, if_absent)
        return _Writer(self, path, if_absent, mode, mtime)

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        with self._store.lock:
            above = self._make(paths.parent(path), path)
            node = above.names.get(paths.name(path)) if path else above
            if node is None:
                self._put(above, path, _Directory())
            elif isinstance(node, _File) or not exist_ok:
                raise error(errno.EEXIST, path)

    def remove(self, path: str, recursive: bool = False) -> None:
        if not path:
            raise error(errno.EPERM, path)
        with self._store.lock:
            node = self._find(path, path)
            if isinstance(node, _Directory) and node.names and not recursive:
                raise error(errno.ENOTEMPTY, path)
            above = self._make(paths.parent(path), path)
            del above.names[paths.name(path)]
            above.mtime = time.time()

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        with self._store.lock:
            node = self._find(source, source)
            folder = isinstance(node, _Directory)
            if not moves(source, folder, target, if_absent):
                return
            with contextlib.suppress(FileNotFoundError):
                there = self._find(target, target)
                replaces(folder, isinstance(there, _Directory), target, if_absent)
                if isinstance(there, _Directory) and there.names:
                    raise error(errno.ENOTEMPTY, target)
            above = self._make(paths.parent(target), target)
            self.remove(source, recursive=True)
            self._put(above, target, node)

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        with self._store.lock:
            node = self._find(path, path)
            if isinstance(node, _Directory):
                raise error(errno.EISDIR, path)
            node.mode = node.mode if mode is None else mode & 0o777
            node.mtime = node.mtime if mtime is None else mtime
            return _entry(path, node)

    def _may_replace(self, path: str, if_absent: bool) -> None:
        try:
            there = self._find(path, path)
        except FileNotFoundError:
            return
        if isinstance(there, _Directory):
            raise error(errno.EISDIR, path)
        if if_absent:
            raise error(errno.EEXIST, path)

    # -- nodes, under the lock ---------------------------------------------------------------------

    def _find(self, path: str, asked: str) -> _File | _Directory:
        node: _File | _Directory | None = self._store.root
        for name in path.split("/") if path else ():
            if isinstance(node, _File):
                raise error(errno.ENOTDIR, asked)
            node = node.names.get(name) if node else None
            if node is None:
                raise error(errno.ENOENT, asked)
        assert node is not None
        return node

    def _make(self, path: str, asked: str) -> _Directory:
        at: _File | _Directory = self._store.root
        for name in path.split("/") if path else ():
            if isinstance(at, _Directory):
                at = at.names.setdefault(name, _Directory())
        # Nothing was created below a file on the way.
        if isinstance(at, _File):
            raise error(errno.ENOTDIR, asked)
        return at

    @staticmethod
    def _put(above: _Directory, path: str, node: _File | _Directory) -> None:
        above.names[paths.name(path)] = node
        above.mtime = time.time()

    def keep(self, path: str, if_absent: bool, content: Content, mode: int, mtime: float) -> Entry:
        """Put a complete file at `path`; a commit calls this."""
        with self._store.lock:
            self._may_replace(path, if_absent)
            above = self._make(paths.parent(path), path)
            file = _File(*content, mode, mtime, str(next(self._store.versions)))
            self._put(above, path, file)
            return _entry(path, file)


class _Reader(Reader):
    def __init__(self, file: _File, entry: Entry, offset: int, length: int | None) -> None:
        super().__init__(entry, offset, length)
        self._file = file
        self._end = offset + self.length
        self._next = offset
        self.holes = tuple(_between(file, offset, self._end))

    def data(self, size: int) -> bytes:
        for start, length in self.holes:
            if start <= self._next < start + length:
                self._next = start + length
        if self._next >= self._end or size <= 0:
            return b""
        which = bisect.bisect_right(self._file.starts, self._next) - 1
        within = self._next - self._file.starts[which]
        block = self._file.pieces[which][within : within + min(size, self._end - self._next)]
        self._next += len(block)
        return block

    def close(self) -> None:
        self._next = self._end


class _Writer(Writer):
    def __init__(
        self, tier: Memory, path: str, if_absent: bool, mode: int | None, mtime: float | None
    ) -> None:
        self._tier = tier
        self._path = path
        self._if_absent = if_absent
        self._mode = FILE_MODE if mode is None else mode & 0o777
        self._mtime = mtime
        self._starts: list[int] = []
        self._pieces: list[bytes] = []
        self._size = 0
        self._open = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._still()
        if piece := bytes(data):
            self._starts.append(self._size)
            self._pieces.append(piece)
            self._size += len(piece)

    def hole(self, length: int) -> None:
        self._still()
        self._size += length

    def commit(self) -> Entry:
        self._still()
        self._open = False
        content = self._starts, self._pieces, self._size
        mtime = time.time() if self._mtime is None else self._mtime
        return self._tier.keep(self._path, self._if_absent, content, self._mode, mtime)

    def _still(self) -> None:
        if not self._open:
            raise error(errno.EBADF, self._path)

    def abort(self) -> None:
        self._open = False
        self._pieces = []


def _entry(path: str, node: _File | _Directory) -> Entry:
    if isinstance(node, _Directory):
        return Entry(path, "directory", 0, node.mtime, DIRECTORY_MODE)
    return Entry(path, "file", node.size, node.mtime, node.mode, node.version)


def _between(file: _File, offset: int, end: int) -> Iterator[Range]:
    at = 0
    for start, piece in [*zip(file.starts, file.pieces, strict=True), (file.size, b"")]:
        first, last = max(at, offset), min(start, end)
        if first < last:
            yield first, last - first
        at = start + len(piece)
