"""Writes to descriptors that write all of their data: one write may take only a part.

Law: a failed write does not hold on to its data, so that the caller may change a bytearray.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TextIO


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write all of `data`, also if another process has made the open file non-blocking. Raises OSError."""
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            try:
                done += os.write(fd, view[done:])
            except BlockingIOError:
                import select

                poll = select.poll()
                poll.register(fd, select.POLLOUT)
                poll.poll()


def write_at(fd: int, data: bytes | bytearray | memoryview, at: int) -> None:
    """Write all of `data` at a position. Raises OSError."""
    done = 0
    with memoryview(data) as view:
        while done < len(view):
            done += os.pwrite(fd, view[done:], at + done)


def closed() -> TextIO:
    """Return a stdout that fails on write. With descriptor 1 closed, Python has none, and `print` is silent."""
    import errno
    import io

    class Closed(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), "stdout")

    return io.TextIOWrapper(io.BufferedWriter(Closed()), encoding="utf-8")
