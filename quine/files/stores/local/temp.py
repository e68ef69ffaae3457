"""Files that are being made, in a hidden directory of the root, until they are moved to their names.

Laws
1. A part is held by a lock (flock) of who makes it: it dies with him, so what nobody holds is left over and is swept.
2. A part of another machine is swept only when it is old: not every mount carries locks from one to the other.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time

from quine.files.stores.local import dirfd

NAME = ".quine-parts"
AGAIN = 600.0  # seconds from one sweep to the next
OLD = 86400.0  # seconds after it was last used, of a part whose lock may not be seen


class Parts:
    """Of one root, which exists."""

    def __init__(self) -> None:
        self._swept = -AGAIN

    def make(self, root: int, shared: bool) -> tuple[int, int, str]:
        """(directory, file, name) of a new part; the descriptors are the caller's. `shared`: with the usual mode."""
        directory = self.directory(root)
        try:
            if time.monotonic() - self._swept >= AGAIN:
                self._swept = time.monotonic()
                sweep(directory)
            while True:
                name = f"{_machine()}-{os.urandom(8).hex()}"
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = os.open(name, flags, 0o666 if shared else 0o600, dir_fd=directory)
                # Who sweeps may have met it before it was locked, and then has removed it.
                if _lock(file) and os.fstat(file).st_nlink:
                    return directory, file, name
                os.close(file)
        except BaseException:
            os.close(directory)
            raise

    @staticmethod
    def directory(root: int) -> int:
        """Who may write to the root may have parts of his own here, as in /tmp."""
        try:
            return dirfd.directory(root, NAME)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(NAME, 0o700, dir_fd=root)
            directory = dirfd.directory(root, NAME)
            with contextlib.suppress(OSError):  # not ours: another one has made it at the same time
                # with the set-group-ID of the root, by which what is made here has the group of the root
                mode = 0o1700 | stat.S_IMODE(os.fstat(root).st_mode) & 0o2777
                os.chmod(f"/proc/self/fd/{directory}", mode)
            return directory


def sweep(directory: int) -> None:
    """Remove what dead writers have left."""
    listed = dirfd.readable(directory)
    try:
        names = os.listdir(listed)
    finally:
        os.close(listed)
    for name in names:
        with contextlib.suppress(OSError):  # moved or removed meanwhile, or another user's
            file = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            try:
                ours = name.startswith(_machine() + "-")
                facts = os.fstat(file)
                # One that is about to arrive has the time of modification that it was given.
                used = max(facts.st_atime, facts.st_mtime)
                if name.startswith(dirfd.MOVED):  # a file that had its times before it came here
                    used = facts.st_ctime
                if (ours or time.time() - used > OLD) and _lock(file, unsure=not ours):
                    os.unlink(name, dir_fd=directory)
            finally:
                os.close(file)


def _lock(file: int, unsure: bool = True) -> bool:
    """False: somebody else holds it; `unsure` where the filesystem has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return unsure
    return True


def _machine() -> str:
    """Short, and another one after each boot."""
    global _boot
    if not _boot:
        with open("/proc/sys/kernel/random/boot_id") as file:
            _boot = file.read().replace("-", "")[:12]
    return _boot


_boot = ""
