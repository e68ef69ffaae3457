"""Reads and writes of descriptors that other processes share; whether two are of one file, whether one is no input.

Laws
1. Another process may make the open file non-blocking, at any time: then this one waits, as if it were not.
2. A failed write does not hold on to its data, so that the caller may change a bytearray.
"""

from __future__ import annotations

import errno
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data`, where one write may take a part. Raises OSError."""
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            try:
                done += os.write(fd, view[done:])
            except BlockingIOError:
                _wait(fd, writing=True)


def read_some(fd: int, most: int) -> bytes:
    """Return the next bytes, at least one but at the end of the file. Raises OSError."""
    while True:
        try:
            return os.read(fd, most)
        except BlockingIOError:
            _wait(fd, writing=False)


def _wait(fd: int, writing: bool) -> None:
    import select  # here: few have to wait

    poll = select.poll()
    poll.register(fd, select.POLLOUT if writing else select.POLLIN)
    poll.poll()


def write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of `data` at a position. Raises OSError."""
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


def is_one_file(first: int, second: int) -> bool:
    """Return whether writes to both descriptors land in one place, in the order in which they are made.

    So it is after `2>&1`, and on a terminal. Of a file both have the same position, or append.
    """
    try:
        one, other = os.fstat(first), os.fstat(second)
        if (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino):
            return False
        import fcntl  # here: of most clients they are two files

        flags = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (first, second)]
        if any(each & os.O_ACCMODE == os.O_RDONLY for each in flags):
            return False  # writes fail, for each of them by itself
        if not (stat.S_ISREG(one.st_mode) or stat.S_ISBLK(one.st_mode)):
            return True
        append = [bool(each & os.O_APPEND) for each in flags]
        return all(append) or (not any(append) and _position(first) == _position(second))
    except OSError:
        return False  # closed


def is_no_input(fd: int, error: OSError) -> bool:
    """Return whether a read failed because there is nothing to read, not because more could not be read.

    nohup(1) and many daemons give a stdin that is open for writing alone. A terminal that hung up is at its end. A
    socket that was never connected says ENOTCONN, or EINVAL in the Unix domain; one that was says neither.
    """
    if error.errno == errno.EIO:
        return stat.S_ISCHR(os.fstat(fd).st_mode)
    if error.errno in (errno.ENOTCONN, errno.EINVAL):
        return stat.S_ISSOCK(os.fstat(fd).st_mode)
    return error.errno == errno.EBADF


def _position(fd: int) -> int:
    return os.lseek(fd, 0, os.SEEK_CUR)


def closed() -> TextIO:
    """Return a stdout that fails on write. With descriptor 1 closed, Python has none, and `print` is silent."""
    import io

    class Closed(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), "stdout")

    return io.TextIOWrapper(io.BufferedWriter(Closed()), encoding="utf-8")
