"""Tests whether a descriptor may be lent to the node of this machine, which then moves the bytes of a stream itself.

Laws
1. Only regular files on local file systems are lent. A file system that may hang (another machine, a program behind a
   mount, this very node) would hang the node, and with it everybody's jobs.
2. A target is lent only while this process has no limit of file size (`RLIMIT_FSIZE`): the node has its own limits.
3. Where anything is not as expected, nothing is lent: the requester moves the bytes itself.
"""

from __future__ import annotations

import fcntl
import os
import stat

from transport.file_systems import is_local_device
from transport.writes import write_all

LEAST = 256 * 1024  # bytes from which lending is worth its frames
NULL = os.makedev(1, 3)
ROUND = 256 * 1024  # bytes moved at once where the node does not

# Is it local, by device number. Only block devices (major > 0): other numbers are reused after an unmount.
_known: dict[int, bool] = {}


def source(fd: int) -> tuple[int, int]:
    """Position of a descriptor and bytes from there to the end; (0, 0) if it must not be lent."""
    try:
        facts = os.fstat(fd)
        if stat.S_ISREG(facts.st_mode) and _local(facts.st_dev):
            at = os.lseek(fd, 0, os.SEEK_CUR)
            return at, max(0, facts.st_size - at)
    except OSError:
        pass
    return 0, 0


def target(fd: int) -> int:
    """Position of the next write to a descriptor; -1 if it must not be lent."""
    if _bounded():
        return -1
    try:
        facts = os.fstat(fd)
        if (
            stat.S_ISREG(facts.st_mode)
            and _local(facts.st_dev)
            and not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND
        ):
            return os.lseek(fd, 0, os.SEEK_CUR)
    except OSError:
        pass
    return -1


def output(fd: int) -> bool:
    """Return whether the output of a job may be written by the node: to a pipe, a local file, or /dev/null."""
    try:
        facts = os.fstat(fd)
    except OSError:
        return False
    if stat.S_ISREG(facts.st_mode):
        return _local(facts.st_dev) and not _bounded()
    return stat.S_ISFIFO(facts.st_mode) or (stat.S_ISCHR(facts.st_mode) and facts.st_rdev == NULL)


def _bounded() -> bool:
    import resource  # here: each proxy loads this module, and few lend a descriptor

    return resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def _local(device: int) -> bool:
    local = _known.get(device)
    if local is None:
        local = is_local_device(device)
        if os.major(device):
            _known[device] = local
    return local


class Lends:
    """An end of a request that sends a file or receives one: the node moves the bytes if it may, else this process."""

    def read(self, size: int) -> bytes:
        raise NotImplementedError

    def write(self, data: bytes | bytearray | memoryview) -> None:
        raise NotImplementedError

    def _lend_source(self, fd: int, at: int, length: int) -> tuple[int, int]:
        """Have the node read the file. Returns the bytes that it sent, and the errno that stopped it, or 0."""
        raise NotImplementedError

    def _lend_sink(self, fd: int, at: int, length: int) -> tuple[int, int]:
        """Have the node write the file. Returns the bytes that the file got, and the errno that ended it, or 0.

        Bytes that arrived before are written by this process, and count.
        """
        raise NotImplementedError

    def send_file(self, fd: int, length: int) -> int:
        """Send `length` bytes of a descriptor from its position on, fewer if it ends before; returns how many."""
        at, there = source(fd)
        may = min(length, there)
        sent = _moved(fd, at, *self._lend_source(fd, at, may)) if may >= LEAST else 0
        while sent < length and (data := os.read(fd, min(ROUND, length - sent))):
            self.write(data)
            sent += len(data)
        return sent

    def receive_file(self, fd: int, length: int) -> int:
        """Write `length` bytes of the other side's stream to a descriptor, fewer if it ends; returns how many."""
        at = target(fd) if length >= LEAST else -1
        got = _moved(fd, at, *self._lend_sink(fd, at, length)) if at >= 0 else 0
        while got < length and (data := self.read(min(ROUND, length - got))):
            write_all(fd, data)
            got += len(data)
        return got


def _moved(fd: int, at: int, count: int, errno: int) -> int:
    """Set the position behind the `count` bytes that were moved and return `count`. OSError where `errno` is set."""
    os.lseek(fd, at + count, os.SEEK_SET)
    if errno:
        raise OSError(errno, os.strerror(errno))
    return count
