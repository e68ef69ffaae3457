"""The content of one version of a file: fetched on demand, and kept while the file is open.

Laws
1. A small file is fetched whole when it is opened. Of a large one a reader is held from the start, so that a replaced
   version can still be read to its end.
2. A read far ahead gets a reader of its own, if the version is still there; else everything up to there is read.
3. Bytes lie in a file without a name, which ends with the process. Zeros take no space in it.
"""

from __future__ import annotations

import os
import threading

from quine.files.api import BLOCK, Entry, Reader, Tier, stale
from quine.files.stores.spool import spool
from transport.writes import write_at

WHOLE = 1 << 20  # bytes; a file up to this size is fetched when it is opened
NEAR = 4 << 20  # bytes; a shorter gap is read, not jumped over
AHEAD = 8 << 20  # bytes that a jump requests


class Content:
    """One version. `users` counts the handles that have it open, and is kept by `State`."""

    def __init__(self, tier: Tier, path: str, wanted: Entry | None = None) -> None:
        """Open the version there now. Raises OSError: ESTALE if it is not the one that is wanted."""
        self._tier = tier
        self._path = path
        self._lock = threading.Lock()
        self._side: Reader | None = None
        self._at = self._until = 0  # position and end of `_side`
        self._reader: Reader | None = tier.open(path)
        self.entry = self._reader.entry
        self.size = self.entry.size
        self.users = 0
        self._filled = 0  # bytes present from the start, without a gap
        self._jumped: set[int] = set()  # further blocks that are present
        self._fd = -1
        try:
            if wanted and (self.entry.version != wanted.version or self.size != wanted.size):
                raise stale(path)
            self._fd = spool()
            os.ftruncate(self._fd, self.size)
            if self.size <= WHOLE:
                self._fill(self.size)
        except BaseException:
            self.close()
            raise

    @property
    def whole(self) -> bool:
        """Whether the file is small, and present as a whole."""
        return self.size <= WHOLE and self._filled >= self.size

    def ready(self, offset: int, length: int) -> bool:
        """Return whether that range is present, without regard to jumps."""
        return min(offset + length, self.size) <= self._filled

    def read(self, offset: int, length: int) -> bytes:
        """Read a range, shorter only at the end. Raises OSError: ESTALE if the store no longer has the version."""
        end = min(offset + length, self.size)
        if end > self._filled:
            with self._lock:
                self._fetch(offset, end)
        return os.pread(self._fd, max(0, end - offset), offset)

    def close(self) -> None:
        with self._lock:
            for reader in (self._reader, self._side):
                if reader is not None:
                    reader.close()
            self._reader = self._side = None
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def _fetch(self, offset: int, end: int) -> None:
        first, last = offset // BLOCK, (end + BLOCK - 1) // BLOCK
        missing = [n for n in range(first, last) if n not in self._jumped and (n + 1) * BLOCK > self._filled]
        if not missing:
            return
        end = min(last * BLOCK, self.size)
        if missing[0] * BLOCK - self._filled <= NEAR or not self._jump(missing[0], last):
            self._fill(end)

    def _fill(self, end: int) -> None:
        """Read on sequentially, up to `end`."""
        while self._filled < end:
            if self._reader is None:
                raise stale(self._path)
            block = self._reader.read(BLOCK)
            if not block:
                raise stale(self._path)
            self._keep(block, self._filled)
            self._filled += len(block)
        if self._filled >= self.size and self._reader is not None:
            self._reader.close()
            self._reader = None

    def _jump(self, first: int, last: int) -> bool:
        """Fetch blocks far ahead; return False if that version cannot be opened any more."""
        if self._side is not None and self._at == first * BLOCK:
            reader = self._side
        else:
            if self._side is not None:
                self._side.close()
                self._side = None
            try:
                reader = self._tier.open(self._path, first * BLOCK, max(AHEAD, (last - first) * BLOCK))
            except OSError:
                return False
            if reader.entry.version != self.entry.version:
                reader.close()
                return False
            self._side, self._at, self._until = reader, first * BLOCK, reader.offset + reader.length
        end = min(last * BLOCK, self.size)
        at = self._at
        while at < end:
            block = reader.read(min(BLOCK, (at // BLOCK + 1) * BLOCK - at))
            if not block:
                reader.close()
                self._side = None
                return False
            self._keep(block, at)
            at += len(block)
            if at % BLOCK == 0 or at >= self.size:
                self._jumped.add((at - 1) // BLOCK)
        self._at = at
        if at >= self._until:
            reader.close()
            self._side = None
        return True

    def _keep(self, block: bytes, offset: int) -> None:
        if block.count(0) != len(block):
            write_at(self._fd, block, offset)
