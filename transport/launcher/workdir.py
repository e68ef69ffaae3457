"""A folder made for jobs: kept by a lock while a job is in it, removed by the last holder that leaves it empty.

Laws
1. The lock is the kernel's, on the folder itself. Two nodes of one user, or a node and the launcher of a dead one, may
   share a folder. A folder that is empty may still have a job of the other in it.
2. A job that enters a folder while it is being removed makes it anew.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

GONE, KEPT, HELD = range(3)  # the fate of a folder that was left: see `leave`
PATIENCE = 10.0  # seconds to enter while others leave; that takes microseconds, unless the machine is busy


def enter(path: str, mode: int = 0o777) -> int:
    """Make the folder if it is missing, lock it, and return the descriptor that holds it. OSError if that fails."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return enter_once(path, mode)
        except (FileNotFoundError, FileExistsError, BlockingIOError):
            # The folder is removed just now, between two steps of ours. Another kind of file is a lasting error.
            if _is_something_else(path) or time.monotonic() > deadline:
                raise
        time.sleep(0.0005)


def enter_once(path: str, mode: int = 0o777) -> int:
    """As `enter`, without waiting: FileNotFoundError, FileExistsError or BlockingIOError while others remove it."""
    os.makedirs(path, mode, exist_ok=True)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(fd, fcntl.LOCK_SH)
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _is_something_else(path: str) -> bool:
    """True if `path` exists and is no folder. One stat alone: between two of them it may be made and removed."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def is_empty(fd: int) -> bool:
    """True if nothing is in the folder behind a descriptor. OSError if it cannot be read."""
    with os.scandir(fd) as entries:
        return next(entries, None) is None


def is_last(fd: int) -> bool:
    """True if no other process holds the folder; then none can enter it until `fd` is closed."""
    try:
        _lock(fd, fcntl.LOCK_EX)
    except BlockingIOError:
        return False
    return True


def leave(path: str, fd: int = -1) -> int:
    """Release the folder; remove it if it is empty and has no other holder.

    Returns KEPT: it stays because something is in it; HELD: it stays for other holders, the last of which removes it;
    GONE: it is removed, or was not ours to remove. `fd` is closed.
    """
    if fd < 0:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return GONE
    try:
        _lock(fd, fcntl.LOCK_EX)
        # a folder that was removed and made anew since it was opened here is another one of the same name
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
    """Lock without waiting. BlockingIOError: another process holds it. A file system without locks is ignored."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass
