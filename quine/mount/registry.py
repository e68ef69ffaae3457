"""The mounts of this user on this machine: a locked file for each, and the directories of those made for jobs.

Laws
1. A mount's lock is held by its supervisor and its server together, so it is free only when both have ended.
2. The next mount unmounts everything that a free lock names: both processes were killed at once, and could not.
3. A mount bears the name of its lock, so a late supervisor never mistakes another mount at that path for its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os

from quine.base import dirs
from quine.mount import mounts
from transport import address

_SUFFIX = ".lock"


def folder() -> str:
    """Return the directory of the locks. Raises Refused if the runtime directory cannot be trusted, OSError."""
    path = os.path.join(address.runtime_directory(), "mounts")
    dirs.make(path)
    return path


class Place:
    """One mount's lock, and its directory if that is ours."""

    def __init__(self, path: str = "") -> None:
        """Lock a mount at `path`, or in a new directory if that is empty. Raises OSError, Refused."""
        base = os.path.join(folder(), f"{os.getpid()}-{os.urandom(4).hex()}")
        self._lock = base + _SUFFIX
        self.path = path or base
        self.fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        os.write(self.fd, os.fsencode(self.path))
        self.source = _source(self._lock)
        if not path:
            os.mkdir(base, 0o700)

    def leave(self) -> None:
        """Unmount, and remove the lock and the directory."""
        _clear(self._lock, self.path)


def sweep() -> list[str]:
    """Unmount everything that no process keeps any more; return the paths."""
    swept = []
    home = folder()
    for name in os.listdir(home):
        if not name.endswith(_SUFFIX):
            continue
        lock = os.path.join(home, name)
        with contextlib.suppress(OSError):
            fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path = os.fsdecode(os.read(fd, 8192))
                if path:  # else it is being created at this moment
                    _clear(lock, path)
                    swept.append(path)
            finally:
                os.close(fd)
    return swept


def _source(lock: str) -> str:
    """Return the source name of the mount that has this lock."""
    return "quine-" + os.path.basename(lock).removesuffix(_SUFFIX)


def _clear(lock: str, path: str) -> None:
    while _source(lock) in (there := mounts.sources(path)):
        if there[-1] != _source(lock):
            return  # another mount lies over it; the lock stays, as its record
        try:
            mounts.unmount(path)
        except OSError:
            return
    if path == lock.removesuffix(_SUFFIX):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    with contextlib.suppress(OSError):
        os.unlink(lock)
