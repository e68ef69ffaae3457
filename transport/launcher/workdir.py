"""A folder made for jobs: kept by a lock while a job is in it, removed by the last holder that leaves it empty.

Laws
1. The lock is the kernel's, on a file beside the folder, so that `flock .` in a job is the job's own. Two nodes of one
   user, or a node and the launcher of a dead one, may share a folder. A folder that is empty may still have a job of
   the other in it.
2. A job that enters a folder while it is being removed makes it anew.
3. Earlier builds lock the folder itself. One that they hold is held so here, too, and is not removed under their jobs.
   An earlier build that comes later may remove a folder under jobs of this one, if it is empty then. A folder beside
   which no file can be made is locked itself, too.
4. The file goes with the last holder. A killed one may leave it, which harms nothing: the next holder removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time

GONE, KEPT, HELD = range(3)  # the fate of a folder that was left: see `leave`
PATIENCE = 10.0  # seconds to enter while others leave; that takes microseconds, unless the machine is busy
FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def enter(path: str, mode: int = 0o777, itself: bool = False) -> int:
    """Make the folder if it is missing, lock it, and return the descriptor that holds it. OSError if that fails.

    `itself`: by a lock on the folder, with no file beside it.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _hold_itself(path, mode) if itself else enter_once(path, mode)
        except (FileNotFoundError, FileExistsError, BlockingIOError):
            # The folder is removed just now, between two steps of ours. Another kind of file is a lasting error.
            if _is_something_else(path) or time.monotonic() > deadline:
                raise
        time.sleep(0.0005)


def enter_once(path: str, mode: int = 0o777) -> int:
    """As `enter`, without waiting: FileNotFoundError, FileExistsError or BlockingIOError while others remove it."""
    lock, made = _lock_beside(path, fcntl.LOCK_SH)
    if lock < 0:
        return _hold_itself(path, mode)
    held = -1
    try:
        existed = os.path.isdir(path)
        os.makedirs(path, mode, exist_ok=True)
        if made and existed and _is_held_itself(path):
            with contextlib.suppress(BlockingIOError):  # by a job's own flock, not by an earlier build
                held = _hold_itself(path, mode)
    except BaseException:
        _unlock(path, lock)
        raise
    if held < 0:
        return lock
    os.close(lock)
    return held


def _hold_itself(path: str, mode: int) -> int:
    """As `enter_once`, by a lock on the folder."""
    os.makedirs(path, mode, exist_ok=True)
    fd = os.open(path, FLAGS)
    try:
        _lock(fd, fcntl.LOCK_SH)
        _check_same(path, fd)
    except OSError:
        os.close(fd)
        raise
    return fd


def _beside(path: str) -> str:
    """Path of the lock of a folder."""
    above, name = os.path.split(os.path.normpath(path))
    return os.path.join(above, f".{name}.lock")


def _lock_beside(path: str, how: int) -> tuple[int, bool]:
    """Return the locked file beside a folder, and whether it is new; -1 if there can be none. BlockingIOError."""
    beside = _beside(path)
    made = not os.path.lexists(beside)
    if made and how == fcntl.LOCK_SH:
        os.makedirs(os.path.dirname(beside) or ".", exist_ok=True)
    while True:
        try:
            fd = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return -1, False
        try:
            _lock(fd, how)
            _check_same(beside, fd)
            return fd, made
        except FileNotFoundError:
            os.close(fd)  # it was removed in between
        except OSError:
            os.close(fd)
            raise


def _unlock(path: str, fd: int) -> None:
    """Close the lock beside a folder that was not entered, and remove it if nobody else holds it."""
    with contextlib.suppress(OSError):
        _lock(fd, fcntl.LOCK_EX)
        _remove(path, fd)
    os.close(fd)


def _remove(path: str, fd: int) -> None:
    """Remove the lock beside a folder, which nobody else holds."""
    with contextlib.suppress(OSError):
        _check_same(_beside(path), fd)
        os.unlink(_beside(path))


def _check_same(path: str, fd: int) -> None:
    """Raise FileNotFoundError unless the file behind a descriptor still has its name."""
    if not os.path.samestat(os.stat(path, follow_symlinks=True), os.fstat(fd)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _is_held_itself(path: str) -> bool:
    """Whether any process holds a lock on the folder itself: of an earlier build, or its own job's."""
    inode = b":%d " % os.stat(path).st_ino
    try:
        with open("/proc/locks", "rb") as file:
            return any(b"FLOCK" in line and inode in line for line in file)
    except OSError:
        return True


def _is_something_else(path: str) -> bool:
    """True if `path` exists and is no folder. One stat alone: between two of them it may be made and removed."""
    try:
        return not stat.S_ISDIR(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def is_empty(path: str) -> bool:
    """True if nothing is in the folder. OSError if it cannot be read."""
    with os.scandir(path) as entries:
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
    held = [fd] if fd >= 0 else []
    try:
        if not held:
            try:
                fd = os.open(path, FLAGS)
            except OSError:
                if not os.path.lexists(_beside(path)):
                    return GONE
                fd = _lock_beside(path, fcntl.LOCK_EX)[0]
                if fd < 0:
                    return GONE
            held.append(fd)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            lock, folder = _lock_beside(path, fcntl.LOCK_EX)[0], fd
            held += [lock] if lock >= 0 else []
        else:
            _lock(fd, fcntl.LOCK_EX)
            lock = fd
            folder = -1
        try:
            if folder < 0:
                folder = os.open(path, FLAGS)
                held.append(folder)
            return _removed(path, folder)
        finally:
            if lock >= 0:
                _remove(path, lock)
    except BlockingIOError:
        return HELD
    except OSError:
        return GONE
    finally:
        for each in held:
            os.close(each)


def _removed(path: str, folder: int) -> int:
    """Remove the folder behind a descriptor if it is empty and no earlier build holds it. BlockingIOError: one does."""
    _lock(folder, fcntl.LOCK_EX)
    # a folder that was removed and made anew since it was opened here is another one of the same name
    if os.path.samestat(os.stat(path), os.fstat(folder)):
        try:
            os.rmdir(path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return KEPT
            raise
    return GONE


def _lock(fd: int, how: int) -> None:
    """Lock without waiting. BlockingIOError: another process holds it. A file system without locks is ignored."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        pass
