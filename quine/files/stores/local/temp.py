"""Unfinished files ("parts"), in a hidden directory of the root until they are moved to their names.

Laws
1. The writer of a part holds a lock (flock) on it, which ends with its process. A part without a lock is swept.
2. A part of another machine is swept only when it is old: not every mount carries locks between machines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time

from quine.files.stores.local import dirfd
from transport import address

NAME = ".quine-parts"
AGAIN = 600.0  # seconds from one sweep to the next
OLD = 86400.0  # seconds since its last use, for a part of which a lock may be invisible


class Parts:
    """The parts of one root, which exists."""

    def __init__(self) -> None:
        self._swept = -AGAIN

    def make(self, root: int, shared: bool) -> tuple[int, int, str]:
        """Return (directory, file, name) of a new part; the caller owns the descriptors. `shared`: mode 0666."""
        directory = self.directory(root)
        try:
            if time.monotonic() - self._swept >= AGAIN:
                self._swept = time.monotonic()
                sweep(directory)
            while True:
                name = f"{_machine()}-{os.urandom(8).hex()}"
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(name, flags, 0o666 if shared else 0o600, dir_fd=directory)
                # A sweep may have removed it before it was locked.
                if _lock(file) and os.fstat(file).st_nlink:
                    return directory, file, name
                os.close(file)
        except BaseException:
            os.close(directory)
            raise

    @staticmethod
    def directory(root: int) -> int:
        """Open the directory of parts, or create it: sticky as /tmp is, for all users that may write to the root."""
        try:
            return dirfd.directory(root, NAME)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(NAME, 0o700, dir_fd=root)
            directory = dirfd.directory(root, NAME)
            with contextlib.suppress(OSError):  # not ours: another user made it at the same time
                # with the set-group-ID bit of the root, so that parts get the group of the root
                mode = 0o1700 | stat.S_IMODE(os.fstat(root).st_mode) & 0o2777
                os.chmod(f"/proc/self/fd/{directory}", mode)
            return directory


def sweep(directory: int) -> None:
    """Remove the parts of dead writers."""
    for name in [each.name for each in dirfd.scan(directory)]:
        with contextlib.suppress(OSError):  # moved or removed meanwhile, or another user's
            file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            try:
                ours = name.startswith(_machine() + "-")
                facts = os.fstat(file)
                # A part that is about to arrive has its final mtime already.
                used = max(facts.st_atime, facts.st_mtime)
                if name.startswith(dirfd.MOVED):  # a file that kept its times when it was moved here
                    used = facts.st_ctime
                if (ours or time.time() - used > OLD) and _lock(file, unsure=not ours):
                    os.unlink(name, dir_fd=directory)
            finally:
                os.close(file)


def _lock(file: int, unsure: bool = True) -> bool:
    """Take the lock. Return False if another process holds it, and `unsure` if the filesystem has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return unsure
    return True


def _machine() -> str:
    """Return a short id of this machine, which changes with each boot."""
    return address.boot_id().replace("-", "")[:12]
