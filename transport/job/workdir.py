"""A folder made for jobs: kept by a lock while somebody's job is in it, removed by the last one who leaves it empty.

Laws
1. The lock is the kernel's, on the folder itself: two nodes of one user, or a node and the launcher of a dead one, may
   share a folder, and an empty one may be where a job of the other stands.
2. Who comes while it is being removed makes it anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

GONE, KEPT, HELD = range(3)  # what became of a folder that was left: see `leave`
PATIENCE = 10.0  # seconds to come in while others leave; that takes microseconds, unless the machine is busy


def enter(path: str) -> int:
    """Make it where it is missing, and hold it by the descriptor returned. OSError where it cannot be made."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            os.makedirs(path, exist_ok=True)
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _lock(fd, fcntl.LOCK_SH)
                if os.path.samestat(os.stat(path), os.fstat(fd)):
                    return fd
            except OSError:
                os.close(fd)
                raise
            os.close(fd)
        except (FileNotFoundError, FileExistsError, BlockingIOError):
            # It is removed just now, between two steps of ours. What is no folder stays none.
            if _is_something_else(path) or time.monotonic() > deadline:
                raise
        time.sleep(0.0005)


def _is_something_else(path: str) -> bool:
    """One look: between two of them it may be made and removed."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def is_empty(fd: int) -> bool:
    """Whether nothing is in the folder behind a descriptor. OSError where it cannot be read."""
    with os.scandir(fd) as entries:
        return next(entries, None) is None


def leave(path: str, fd: int = -1) -> int:
    """Let go; remove the folder if it is empty and nobody else holds it.

    Returns KEPT where it stays for what is in it, HELD where it stays for others, the last of whom removes it, and GONE
    where it is removed, or was not ours to remove.
    """
    if fd < 0:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return GONE
    try:
        _lock(fd, fcntl.LOCK_EX)
        # what was removed and made anew since we opened it is another one's, whatever its name
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            os.rmdir(path)
    except BlockingIOError:
        return HELD
    except OSError as error:
        return KEPT if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else GONE
    finally:
        os.close(fd)
    return GONE


def _lock(fd: int, how: int) -> None:
    """BlockingIOError where another one holds it; nothing where the file system has no locks."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass
