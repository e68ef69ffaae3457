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

from transport.provenance import safe_path

# O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal would become the controlling one.
_AT_ONCE = os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 1 << 20


def opened(path: str, names: int = 0) -> int:
    """Return a descriptor for reading. Raises OSError, also for anything but a regular file.

    Links are followed, but the last `names` names of the path are quine's own (safe_path.inside).
    """
    return safe_path.inside(path, names) if names else _regular(os.open(path, os.O_RDONLY | _AT_ONCE), path)


def written(path: str, flags: int) -> int:
    """Return a descriptor for writing a file that only quine writes; a missing one is made, with mode 0600.

    `flags`: O_TRUNC, O_APPEND or 0. Raises OSError, also for a link, for anything but a regular file, and for the file
    of another user.
    """
    try:
        way = flags & ~os.O_TRUNC | os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | _AT_ONCE
        fd = os.open(path, way, 0o600)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a pipe that nobody reads, or a socket
            raise _no_regular_file(path) from None
        raise
    fd = _regular(fd, path)
    owner = os.fstat(fd).st_uid
    if owner not in (0, os.geteuid()) and owner != os.stat(os.path.dirname(path) or ".").st_uid:
        os.close(fd)
        raise OSError(errno.EPERM, f"the file of user {owner}", path)
    if flags & os.O_TRUNC:  # not before its owner is known
        os.ftruncate(fd, 0)
    return fd


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


def content(path: str, most: int, names: int = 0) -> bytes:
    """Return the bytes of a file, `opened` so. Raises OSError, also for a file of more than `most` bytes."""
    fd = opened(path, names)
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
