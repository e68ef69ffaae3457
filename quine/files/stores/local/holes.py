"""Holes of a sparse file, as its filesystem tells them."""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def runs(fd: int, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (hole, data, end) from `at` to `end`: a hole begins, data follows it, the data ends. Each may be empty.

    Without holes, or if the filesystem cannot tell, there is one run. Each step moves the position of `fd`.
    """
    while at < end:
        try:
            data = min(os.lseek(fd, at, os.SEEK_DATA), end)
            stop = min(os.lseek(fd, data, os.SEEK_HOLE), end)
        except OSError as refused:
            # ENXIO: nothing but a hole is left, unless the file is shorter now. Then a reader has to come to its end.
            hole = refused.errno == errno.ENXIO and os.fstat(fd).st_size >= end
            data, stop = end if hole else at, end
        yield at, data, stop
        at = stop
