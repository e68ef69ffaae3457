"""The table of mounts of this user on this machine: a locked file for each, and the directories of those for jobs.

Laws
1. A mount's lock is held by its keeper and its server together, so it is free only when both have ended.
2. Whoever mounts next unmounts what a free lock names: what both could not do, because they were killed at one time.
3. A mount bears the name of its lock, so that its keeper, who may be late, never takes another one in its place for it.
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
    """Raises Refused where the runtime directory cannot be trusted, OSError."""
    path = os.path.join(address.runtime_directory(), "mounts")
    dirs.make(path)
    return path


class Place:
    """One mount's lock, and its directory where that is ours."""

    def __init__(self, path: str = "") -> None:
        """At `path`; without one, in a new directory. Raises OSError, Refused."""
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
        """Unmounted, and nothing of it left."""
        _clear(self._lock, self.path)


def sweep() -> list[str]:
    """Unmount what nobody keeps any more; where."""
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
                if path:  # else it is being made at this moment
                    _clear(lock, path)
                    swept.append(path)
            finally:
                os.close(fd)
    return swept


def _source(lock: str) -> str:
    """What is mounted under this lock is mounted as that."""
    return "quine-" + os.path.basename(lock).removesuffix(_SUFFIX)


def _clear(lock: str, path: str) -> None:
    while _source(lock) in (there := mounts.sources(path)):
        if there[-1] != _source(lock):
            return  # another one lies over it; the lock stays, and says that it is there
        try:
            mounts.unmount(path)
        except OSError:
            return
    if path == lock.removesuffix(_SUFFIX):
        with contextlib.suppress(OSError):
            os.rmdir(path)
    with contextlib.suppress(OSError):
        os.unlink(lock)
