"""Regular files that somebody else may have put there: opened at once, and read only up to a bound.

Laws
1. A name may be a pipe, whose open never returns, or a device without an end. Neither is opened for reading here: the
   descriptor is a regular file's, or there is none.
2. A regular file may have any size at no cost to the person who made it: of `content` the bound is part of the call.
"""

from __future__ import annotations

import errno
import os
import stat

# O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal would become the controlling one.
_AT_ONCE = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 1 << 20


def opened(path: str) -> int:
    """Return a descriptor for reading. Links are followed. Raises OSError, also for anything but a regular file."""
    fd = os.open(path, _AT_ONCE)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "no regular file", path)


def content(path: str, most: int) -> bytes:
    """Return the bytes of a file. Raises OSError, also for a file of more than `most` bytes."""
    fd = opened(path)
    try:
        parts, left = [], most + 1
        if os.fstat(fd).st_size > most:
            left = 0
        while left and (part := os.read(fd, min(left, _BLOCK))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(fd)
    if not left:
        raise OSError(errno.EFBIG, f"more than {most} bytes", path)
    return b"".join(parts)
