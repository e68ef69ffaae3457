"""Regular files that somebody else may have put there: opened at once, and read only up to a bound; our own to write.

Laws
1. A name may be a pipe, whose open never returns, or a device without an end. Neither is opened here, for reading or
   writing: the descriptor is a regular file's, or there is none.
2. A regular file may have any size at no cost to the person who made it: of `content` the bound is part of the call.
"""

from __future__ import annotations

import errno
import os
import stat

# O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal would become the controlling one.
_AT_ONCE = os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 1 << 20


def opened(path: str) -> int:
    """Return a descriptor for reading. Links are followed. Raises OSError, also for anything but a regular file."""
    return _regular(os.open(path, os.O_RDONLY | _AT_ONCE), path)


def written(path: str, flags: int) -> int:
    """Return a descriptor for writing a file that only quine writes; a missing one is made, with mode 0600.

    `flags`: O_TRUNC, O_APPEND or 0. Raises OSError, also for a link and for anything but a regular file.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | flags | _AT_ONCE, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise _no_regular_file(path) from None
        raise
    return _regular(fd, path)


def _no_regular_file(path: str) -> OSError:
    return OSError(errno.EINVAL, "no regular file", path)


def _regular(fd: int, path: str) -> int:
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise _no_regular_file(path)


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
