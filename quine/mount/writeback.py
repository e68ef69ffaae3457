"""A file that is being written: a local copy (draft), which becomes the store's file in one step.

Laws
1. Only processes that opened a draft see it. `commit` makes all of it the file, or raises and leaves the file as is.
2. Data that could not be committed stays pending: another `fsync` or close tries again, and does not report success for
   it. If the last close cannot commit it either, it is given a name on this machine's disk.
3. A draft whose name was removed or replaced is never committed: like a local file, it ends with its last descriptor.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

from quine.files.api import BLOCK, FILE_MODE, Entry, Tier, error, pour
from quine.files.stores.local.io import LocalReader, known
from quine.files.stores.spool import expect_room, keep, spool
from quine.mount import protocol
from quine.mount.protocol import inode_of
from transport.writes import write_at


class Draft:
    """One draft. The methods in the section below the lock are called with `lock` held."""

    def __init__(self, path: str, base: Entry | None, mode: int = FILE_MODE) -> None:
        self.lock = threading.RLock()
        self.path = path
        self.inode = inode_of(path)  # kept across a rename: its holders are recognised by it
        self.base = base  # the file that it replaces; None if there is none
        self.mode = base.mode if base else mode
        self.mtime: float | None = None  # if it was set explicitly
        self.dirty = False
        self.altered = False  # its mode or time was set
        self.orphan = False
        self.users = 0  # handles
        self.writers = 0  # handles that may write
        self.owners: set[int] = set()  # processes that opened it
        self.committed: Entry | None = None
        self._fd = -1
        self._written = time.time()

    @property
    def loaded(self) -> bool:
        return self._fd >= 0

    def attributes(self) -> protocol.Attributes:
        size = os.fstat(self._fd).st_size if self._fd >= 0 else self.base.size if self.base else 0
        mtime = self.mtime
        if mtime is None:
            known = self.committed or self.base
            mtime = self._written if self.dirty or known is None else known.mtime
        return protocol.Attributes(self.inode, stat.S_IFREG | self.mode & 0o777, size, mtime)

    # -- below the lock

    def begin(self) -> None:
        """Start with an empty file."""
        if self._fd < 0:
            self._fd = spool()

    def load(self, tier: Tier) -> None:
        """Fetch the file's content. Raises OSError; ENOENT if the file has gone."""
        if self._fd >= 0:
            return
        fd = spool()
        try:
            with tier.open(self.path) as reader:
                self.base, self.mode = reader.entry, reader.entry.mode
                at = 0
                while block := reader.read(BLOCK):
                    if block.count(0) != len(block):
                        expect_room(fd, at, len(block), self.path)
                        write_at(fd, block, at)
                    at += len(block)
            os.ftruncate(fd, at)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset)

    def write(self, data: bytes | memoryview, offset: int, most: int = 0) -> int:
        """Raises OSError: EDQUOT beyond `most` bytes, the largest file of the store; ENOSPC."""
        if most and offset + len(data) > most:
            raise error(errno.EDQUOT, self.path)
        expect_room(self._fd, offset, len(data), self.path)
        write_at(self._fd, data, offset)
        self._changed()
        return len(data)

    def resize(self, size: int) -> None:
        if size < 0:
            raise error(errno.EINVAL, self.path)
        os.ftruncate(self._fd, size)
        self._changed()

    def alter(self, mode: int | None, mtime: float | None) -> None:
        self.mode = self.mode if mode is None else mode
        self.mtime = self.mtime if mtime is None else mtime
        self.altered = True

    @property
    def pending(self) -> bool:
        """Whether there is a change that the store does not have."""
        return self.dirty or self.altered

    def _changed(self) -> None:
        self.dirty, self.mtime, self._written = True, None, time.time()

    def commit(self, tier: Tier) -> Entry | None:
        """Make the draft the file; return None if there was nothing to do. Raises OSError."""
        if not self.pending or self.orphan or self._fd < 0:
            return None
        pending = self.dirty, self.altered
        self.dirty, self.altered = False, False
        try:
            return self._committed(tier, pending[0])
        except BaseException:
            self.dirty, self.altered = pending
            raise

    def _committed(self, tier: Tier, content: bool) -> Entry:
        if not content:
            self.committed = tier.setattr(self.path, mode=self.mode & 0o777, mtime=self.mtime)
            # The file may have been replaced: these pages need not be those of that version.
            self.base = None
            return self.committed
        facts = os.fstat(self._fd)
        with (
            LocalReader(os.dup(self._fd), known(self.path, facts), facts, 0, None) as reader,
            tier.create(self.path, mode=self.mode & 0o777, mtime=self.mtime, size=facts.st_size) as writer,
        ):
            pour(reader, writer)
            entry = writer.commit()
        self.base = self.committed = entry
        return entry

    def save(self) -> str:
        """Give uncommitted data a name on this machine's disk; return the path, "" if there is none."""
        if self._fd < 0 or not self.dirty or self.orphan:
            return ""
        return keep(self._fd, os.path.basename(self.path))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
