"""Reader and writer of a file on a filesystem, by descriptor, with its holes.

Laws
1. Reading and writing continue at the position of the descriptor, so another process can take over with it.
2. A reader skips holes and a writer leaves them. Short holes, and those beyond `MOST_HOLES`, count as data.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
import time
from collections.abc import Callable

from quine.files.api import BLOCK, Entry, Range, Reader, Writer, error, stale
from quine.files.room import MUCH, Room
from quine.files.stores.local.dirfd import about
from quine.files.stores.local.holes import runs
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.room import Held

LEAST_HOLE = 64 * 1024  # bytes; reading a shorter one is faster than reporting it
MOST_HOLES = 1024  # in one file; the rest are read as zeros
NANO = 10**9


def known(path: str, facts: os.stat_result) -> Entry:
    mode = facts.st_mode & 0o777
    if stat.S_ISDIR(facts.st_mode):
        return Entry(path, "directory", 0, facts.st_mtime, mode)
    # ctime too: mtime can be set by a caller, and inode numbers are reused.
    version = f"{facts.st_ctime_ns:x}-{facts.st_mtime_ns:x}-{facts.st_size:x}-{facts.st_ino:x}"
    return Entry(path, "file", facts.st_size, facts.st_mtime, mode, version)


def nanos(moment: float) -> int:
    """Convert seconds to nanoseconds."""
    return int(moment // 1) * NANO + round(moment % 1 * NANO)


def regular(facts: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(facts.st_mode):
        raise error(errno.EISDIR, path)
    if not stat.S_ISREG(facts.st_mode):
        raise error(errno.EPERM, path)


def _holes(fd: int, at: int, end: int) -> list[Range]:
    long = ((hole, data - hole) for hole, data, _ in runs(fd, at, end) if data - hole >= LEAST_HOLE)
    return list(itertools.islice(long, MOST_HOLES))


class LocalReader(Reader):
    def __init__(self, fd: int, entry: Entry, facts: os.stat_result, offset: int, length: int | None) -> None:
        super().__init__(entry, offset, length)
        self._fd = fd
        start = min(offset, entry.size)  # filesystems limit the offset of a seek
        self._end = start + self.length
        if facts.st_blocks * 512 < facts.st_size:
            self.holes = tuple(_holes(fd, start, self._end))
        os.lseek(fd, start, os.SEEK_SET)

    def data(self, size: int) -> bytes:
        with about(self.entry.path):
            size = self._next(size)
            block = os.read(self._fd, size)
            if size and not block:
                raise stale(self.entry.path)
            return block

    def give(self, fd: int, size: int) -> int:
        with about(self.entry.path):
            size = self._next(size)
            try:
                given = os.sendfile(fd, self._fd, None, size) if size else 0
            except OSError as problem:
                if problem.errno not in (errno.EINVAL, errno.ENOSYS):  # sendfile has limits on its target
                    raise
                return super().give(fd, size)
            if size and not given:
                raise stale(self.entry.path)
            return given

    def _next(self, size: int) -> int:
        """Seek past a hole; return how many bytes of data follow at once, at most `size`."""
        at = os.lseek(self._fd, 0, os.SEEK_CUR)
        end = self._end
        for start, length in self.holes:
            if start <= at < start + length:
                at = os.lseek(self._fd, start + length, os.SEEK_SET)
            elif start > at:
                end = start
                break
        return max(0, min(size, end - at))

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Preallocated(Room):
    """Blocks of the disk in a file without a name, which `make` opens."""

    def __init__(self, make: Callable[[str], int]) -> None:
        self._make = make
        self._fd = -1
        self._held = 0

    def need(self, space: int, growth: int, ahead: int, path: str) -> Held:
        with about(path):
            if self._fd < 0:
                self._fd = self._make(path)
            facts = os.fstatvfs(self._fd)
            free = (facts.f_bavail if os.getuid() else facts.f_bfree) * facts.f_frsize
            left = free - (space - self._held)
            if left < 0:
                raise error(errno.ENOSPC, path)
            wanted = space + min(ahead, left // 8)
            if wanted > self._held:
                self._grow(wanted)
            else:
                os.ftruncate(self._fd, wanted)
            self._held = wanted
            return wanted, MUCH

    def _grow(self, size: int) -> None:
        """Allocate blocks. Where the filesystem cannot, its free space is all that is known."""
        from transport.backports.libc import (  # here: ctypes, for few processes
            INT,
            LONG,
            call,
            function,
            in_libc,
        )

        if not in_libc("fallocate"):  # posix_fallocate writes to each block where the filesystem cannot
            return
        try:
            call(function("fallocate", INT, INT, INT, LONG, LONG), self._fd, 0, self._held, size - self._held)
        except OSError as problem:
            if problem.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
                return
            os.ftruncate(self._fd, self._held)  # it may have taken all that there was
            raise

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._held = -1, 0


class Part(Writer):
    def __init__(
        self,
        path: str,
        part: tuple[int, int, str],
        mode: int | None,
        mtime: float | None,
        arrive: Callable[[int, str], None],
    ) -> None:
        self._path = path
        self._directory, self._fd, self._name = part
        self._mode = mode
        self._mtime = mtime
        self._arrive = arrive

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with about(self._path):
            write_all(self._fd, data)

    def take(self, fd: int, length: int) -> int:
        """Append by copy_file_range, which shares the blocks on some filesystems, and the rest by reads and writes."""
        left = length
        with about(self._path):
            while left:
                try:
                    taken = os.copy_file_range(fd, self._fd, min(left, 64 * BLOCK))
                except OSError as problem:
                    if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG):
                        raise
                    taken = 0  # not supported from a pipe, nor between some filesystems
                if not taken:  # or the end, which `super().take` meets too; /proc files report it early
                    break
                left -= taken
            return length - left + super().take(fd, left)

    def hole(self, length: int) -> None:
        with about(self._path):
            os.lseek(self._fd, length, os.SEEK_CUR)

    def fileno(self) -> int:
        return self._fd

    def commit(self) -> Entry:
        try:
            with about(self._path):
                os.ftruncate(self._fd, os.lseek(self._fd, 0, os.SEEK_CUR))  # a hole at the end
                if self._mode is not None:
                    os.fchmod(self._fd, self._mode & 0o777)
                if self._mtime is not None:
                    # the sweep goes by the later of atime and mtime
                    os.utime(self._fd, ns=(time.time_ns(), nanos(self._mtime)))
                os.fsync(self._fd)
                self._arrive(self._directory, self._name)
                self._name = ""
                return known(self._path, os.fstat(self._fd))
        finally:
            self.abort()

    def abort(self) -> None:
        if self._fd < 0:
            return
        try:
            if self._name:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._name, dir_fd=self._directory)
        finally:
            os.close(self._fd)
            os.close(self._directory)
            self._fd = self._directory = -1
