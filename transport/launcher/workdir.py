"""A folder made for jobs: kept by a lock while a job is in it, removed by the last holder that leaves it empty.

Laws
1. The lock is the kernel's, on the folder itself. Two nodes of one user, or a node and the launcher of a dead one, may
   share a folder. A folder that is empty may still have a job of the other in it.
2. A job that enters a folder while it is being removed makes it anew.
3. It is the user's or root's, and no link: in a directory that others can write, such as /scratch, one of them could
   make it first, with files for the job to find. It is made with mode 0700, as are the missing directories above it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from transport.provenance import safe_path

GONE, KEPT, HELD = range(3)  # the fate of a folder that was left: see `leave`
PATIENCE = 10.0  # seconds to enter while others leave; that takes microseconds, unless the machine is busy


def enter(path: str) -> int:
    """Make the folder if it is missing, lock it, and return the descriptor that holds it. OSError if that fails."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return enter_once(path)
        except (FileNotFoundError, FileExistsError, BlockingIOError):
            # The folder is removed just now, between two steps of ours. Another kind of file is a lasting error.
            if _is_something_else(path) or time.monotonic() > deadline:
                raise
        time.sleep(0.0005)


def enter_once(path: str) -> int:
    """As `enter`, without waiting: FileNotFoundError, FileExistsError or BlockingIOError while others remove it."""
    _make(path)
    fd = os.open(path, safe_path.FOLDER)
    try:
        _judge(fd, path)
        _lock(fd, fcntl.LOCK_SH)
        if not os.path.samestat(os.stat(path), os.fstat(fd)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    except OSError:
        os.close(fd)
        raise
    return fd


def _judge(fd: int, path: str) -> None:
    try:
        safe_path.judge_owner(os.fstat(fd), path)
    except safe_path.Unsafe as unsafe:
        raise PermissionError(errno.EPERM, str(unsafe), path) from None


def _make(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    except FileNotFoundError:
        above = os.path.dirname(path.rstrip("/"))
        if not above:
            raise
        _make(above)
        os.mkdir(path, 0o700)


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


def state(fd: int) -> bytes:
    """Return b"1" for an empty folder."""
    try:
        return b"1" if is_empty(fd) else b"0"
    except OSError:
        return b"0"  # unreadable: files that jobs leave in it cannot be told from earlier ones


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
        return remove(path, fd)
    finally:
        os.close(fd)


def remove(path: str, fd: int) -> int:
    """As `leave`; `fd` stays open, and a folder that is not GONE is locked for this process alone, or not at all."""
    try:
        _lock(fd, fcntl.LOCK_EX)
        # a folder that was removed and made anew since it was opened here is another one of the same name
        if os.path.samestat(os.stat(path), os.fstat(fd)):
            os.rmdir(path)
    except BlockingIOError:
        return HELD
    except OSError as error:
        return KEPT if error.errno in (errno.ENOTEMPTY, errno.EEXIST) else GONE
    return GONE


def share(fd: int) -> None:
    """Hold the folder again as jobs in it do, after `remove`."""
    try:
        _lock(fd, fcntl.LOCK_SH)
    except BlockingIOError:
        pass  # another process removes it


def _lock(fd: int, how: int) -> None:
    """Lock without waiting. BlockingIOError: another process holds it. A file system without locks is ignored."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass
