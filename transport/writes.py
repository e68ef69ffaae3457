"""Writes to descriptors that write all of their data: one write may take only a part.

Law: a failed write does not hold on to its data, so that the caller may change a bytearray.
"""

from __future__ import annotations

import os


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
