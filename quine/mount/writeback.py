"""A file that is being written: a local copy (draft), which becomes the store's file in one step.

Laws
1. Only processes that opened a draft see it. `commit` makes all of it the file, or raises and leaves the file as is.
2. Data that could not be committed stays pending: another `fsync` or close tries again, and does not report success for
   it. If the last close cannot commit it either, it is given a name on this machine's disk.
3. A draft whose name was removed or replaced is never committed: like a local file, it ends with its last descriptor.
4. A write takes room in the store, or fails: a shell writes to a file that it has opened, and looks at no close. A file
   that is there is not replaced by a draft that lacks a refused write.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

from quine.files.api import BLOCK, FILE_MODE, Entry, Tier, error, pour
from quine.files.room import AHEAD, cost
from quine.files.stores.local.io import LocalReader, known
from quine.files.stores.spool import expect_room, keep, spool
from quine.mount import protocol
from quine.mount.protocol import inode_of
from transport.writes import write_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.room import Held

REST = (
    2.0  # seconds for which room is held that no draft needs: the next file takes it without asking the store
)


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
        self.reserved: Held = (0, 0)  # of `Reserved`
        self.refused: OSError | None = None  # the error of a write that it lacks
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

    def needs(self, end: int, more: int) -> Held:
        """Return the (space, growth) of the file with `more` bytes written up to `end`."""
        if self.orphan:
            return 0, 0
        facts = os.fstat(self._fd) if self._fd >= 0 else None
        size = max(end, facts.st_size if facts else 0)
        space = cost(min(size, (facts.st_blocks * 512 if facts else 0) + more))
        return space, max(0, cost(size) - (cost(self.base.size) if self.base else 0))

    def resize(self, size: int) -> None:
        if size < 0:
            raise error(errno.EINVAL, self.path)
        os.ftruncate(self._fd, size)
        self.refused = None
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
        if self.refused is not None and self.base is not None:
            raise self.refused
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
        if self._fd < 0 or not self.dirty or self.orphan or self.refused:
            return ""
        return keep(self._fd, os.path.basename(self.path))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Reserved:
    """Room in the store for all drafts of a mount. It is asked for in pieces, so that few writes wait for the store."""

    def __init__(self, tier: Tier) -> None:
        self._room = tier.reserve()
        self._counts = threading.Lock()  # over the numbers, during no call of the store
        self._asking = threading.Lock()  # over the calls
        self._needed: Held = (0, 0)
        self._held: Held = (0, 0)
        self._used = 0.0

    def covers(self, draft: Draft, end: int, more: int) -> bool:
        """Return whether `take` would not wait."""
        with self._counts:
            return self._fits(self._with(draft, draft.needs(end, more)))

    def take(self, draft: Draft, end: int, more: int = 0) -> None:
        """Hold room for a draft with `more` bytes written up to `end`. Raises OSError: ENOSPC, EDQUOT."""
        need = draft.needs(end, more)
        if self._taken(draft, need):
            return
        with self._asking:
            while not self._taken(draft, need):
                with self._counts:
                    wanted = self._with(draft, need)
                ahead = min(AHEAD, max(AHEAD // 8, wanted[0] // 4))
                held = self._room.need(*wanted, ahead, draft.path)
                with self._counts:
                    self._held = held

    def _taken(self, draft: Draft, need: Held) -> bool:
        with self._counts:
            wanted = self._with(draft, need)
            if self._fits(wanted):
                self._needed, draft.reserved, self._used = wanted, need, time.monotonic()
                return True
            return False

    def _with(self, draft: Draft, need: Held) -> Held:
        (space, growth), (had, grown) = self._needed, draft.reserved
        return space - had + need[0], growth - grown + need[1]

    def _fits(self, wanted: Held) -> bool:
        return wanted[0] <= self._held[0] and wanted[1] <= self._held[1]

    def give(self, draft: Draft) -> None:
        """Hold nothing for a draft any more: it was committed, or will not be."""
        with self._counts:
            if draft.reserved != (0, 0):
                self._needed, draft.reserved, self._used = self._with(draft, (0, 0)), (0, 0), time.monotonic()

    def make_way(self, draft: Draft) -> bool:
        """Give the store what is held for a draft, and ahead. Return False if that is nothing. Raises OSError."""
        with self._asking:
            self.give(draft)
            with self._counts:
                needed, had = self._needed, self._held
            if had == needed:
                return False
            held = self._room.need(*needed, 0, draft.path)
            with self._counts:
                self._held = held
            return True

    def rest(self) -> float | None:
        """Give up room that no draft has needed for REST; return when to call again, in seconds. For one thread."""
        with self._counts:
            if self._held == (0, 0):
                return None
            left = self._used + REST - time.monotonic()
            if self._needed != (0, 0) or left > 0:
                return max(left, REST / 2)
        threading.Thread(target=self.close, daemon=True).start()  # it may wait for the store
        return REST

    def close(self) -> None:
        """Give everything up, if no draft needs it."""
        with self._asking:
            with self._counts:
                if self._needed != (0, 0):
                    return
                self._held = (0, 0)
            self._room.close()
