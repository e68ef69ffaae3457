"""Files of records, as the log of a batch: locked, written anew as a whole, and then appended to by whole lines."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

from quine.base import errors
from quine.base.errors import Failure
from quine.base.procs import opened_at_once
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NEW = ".quine-new"  # behind the name of a file that is being written in place of it
PATIENCE = 2.0  # seconds until the lock is said to be another batch's


def replaced(path: str, texts: Iterable[str], mode: int) -> int:
    """Replace a file as a whole, or not at all, also where the machine loses its power. Return it, to append to."""
    new = path + NEW
    try:
        os.unlink(new)  # of a run that was killed; a link or file of somebody else is not written to, either
    except FileNotFoundError:
        pass
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
    fd = os.open(new, flags, 0o600)
    try:
        os.fchmod(fd, mode)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before it has the name that others lock
        with open(fd, "wb", closefd=False) as file:
            file.writelines(map(os.fsencode, texts))
        os.fsync(fd)
        os.replace(new, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def written(fd: int, text: str, path: str, lasting: bool = False) -> None:
    """Append, all of it or nothing, and sync if `lasting`. Raises Failure: a batch without a record does not go on."""
    size = os.fstat(fd).st_size
    try:
        write_all(fd, os.fsencode(text))
        if lasting:
            os.fsync(fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.ftruncate(fd, size)  # half a line would damage the next one
        raise unrecorded(path, error) from None


def unrecorded(path: str, error: OSError) -> Failure:
    return Failure(errors.LOST, f"{path}: {(error.strerror or '').lower()}")


def whole_lines(path: str) -> Iterator[str]:
    """Yield the complete lines of a file. A missing file has no lines. Raises OSError if it is not a regular file."""
    try:
        with open(
            path, encoding="utf-8", errors="surrogateescape", newline="\n", opener=opened_at_once
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            yield from (line for line in file if line.endswith("\n"))
    except FileNotFoundError:
        pass


def hold(fd: int) -> None:
    """Lock an open file as `locked` does, if its file system has locks. Raises BlockingIOError."""
    try:
        _lock(fd, time.monotonic() + PATIENCE)
    except BlockingIOError:
        raise
    except OSError:
        pass


def _lock(fd: int, until: float) -> None:
    """Raises BlockingIOError if another batch has the lock at this time, and OSError."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
        time.sleep(0.02)


def locked(path: str) -> int:
    """Open a log and lock it. Raises BlockingIOError if another batch has it.

    A batch that was killed may have left a process that has the lock, too: it puts returns in place, which ends soon.
    """
    until = time.monotonic() + PATIENCE
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            _lock(fd, until)
            with contextlib.suppress(FileNotFoundError):  # a batch that was refused has removed it
                if os.path.samestat(os.fstat(fd), os.stat(path)):
                    return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # it was replaced in between
