"""The log of the brokers of a user, beside their sockets: only what went wrong is in it.

Laws
1. It is bounded. A client may cause the same line for ever, so a full log takes the place of the one before.
2. A worker writes from its event loop. A command can put a named pipe or a file of FUSE at the name of the log, where
   an open, or a write, never returns. So the keeper opens both files before it serves anybody, and no name is looked up
   later. A file that is mounted there is not opened at all.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from transport.lean import contextlib
from transport.provenance.memory_file import mount_of

LONGEST = 1 << 20  # bytes after which a log is begun anew
FORMER = ".1"  # behind the name of the one before


class Log:
    """The log beside the socket at `path`. It is shared by all brokers there."""

    def __init__(self, path: str) -> None:
        name = os.path.join(os.path.dirname(path), "broker.log")
        self._fd, self._former = _opened(name), _opened(name + FORMER)

    def write(self, what: str | BaseException) -> None:
        """Append a line, or the traceback of an error. Where there is no log that is all."""
        import traceback

        text = (
            what
            if isinstance(what, str)
            else "".join(traceback.format_exception(type(what), what, what.__traceback__))
        )
        line = f"{time.strftime('%F %T')} broker[{os.getpid()}] {text.rstrip()[:LONGEST]}\n"
        with contextlib.suppress(OSError):
            if os.fstat(self._fd).st_size >= LONGEST:
                self._begin_anew()
            os.write(self._fd, line.encode("utf-8", "replace"))

    def _begin_anew(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._former, 0)
            os.write(self._former, os.pread(self._fd, 2 * LONGEST, 0))
        os.ftruncate(self._fd, 0)

    def close(self) -> None:
        for fd in (self._fd, self._former):
            if fd >= 0:
                os.close(fd)


def _opened(name: str) -> int:
    """Return a descriptor of a regular file of this user; -1 where it cannot be had."""
    flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        fd = _at(name, flags)
    except OSError:
        return -1
    facts = os.fstat(fd)
    if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid():
        return fd
    os.close(fd)
    return -1


def _at(name: str, flags: int) -> int:
    """Open a file of the mount of its directory, which is made if it is missing. Raises OSError."""
    folder, base = os.path.split(name)
    above, seen = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), -1
    try:
        with contextlib.suppress(FileNotFoundError):
            seen = os.open(base, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        if seen < 0:
            return os.open(base, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=above)
        if mount_of(seen) != mount_of(above):
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
        return os.open(f"/proc/self/fd/{seen}", flags)
    finally:
        for each in (above, seen):
            if each >= 0:
                os.close(each)
