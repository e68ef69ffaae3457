"""What processes of a tree share on one machine: live agents and concurrent inferences, counted by the kernel.

Laws
1. A slot is a file with an flock on it. The lock dies with the last descriptor of the process that took it, however it
   ends, so a slot is never lost and nothing has to be swept up.
2. All slots that a step needs are taken before the step begins, or none.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from quine import private

SHORTEST, LONGEST = 0.002, 0.2  # seconds between two looks for a free slot


def take(directory: str, kind: str, limit: int, count: int = 1) -> list[int] | None:
    """`count` of `limit` slots as locked descriptors, or None where fewer are free. limit 0: no limit, [] is given."""
    if limit == 0:
        return []
    held: list[int] = []
    try:
        private.make(directory)
        for index in range(limit):
            fd = _lock(directory, kind, index)
            if fd >= 0:
                held.append(fd)
            if len(held) == count:
                return held
    except BaseException:
        _release(held)
        raise
    _release(held)
    return None


def wait(directory: str, kind: str, limit: int) -> list[int]:
    """One slot, whichever is free first. A handler that raises ends the waiting."""
    pause = SHORTEST
    while (held := take(directory, kind, limit)) is None:
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)
    return held


def sweep(directory: str) -> None:
    """Remove the files that nobody holds: what the root of a tree does when it ends."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
            except OSError:
                pass
            finally:
                os.close(fd)
        os.rmdir(directory)
        os.rmdir(os.path.dirname(directory))  # the last tree takes the place with it


def _lock(directory: str, kind: str, index: int) -> int:
    """The slot, or -1 where somebody else has it."""
    path = os.path.join(directory, f"{kind}-{index}")
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return fd
        except BlockingIOError:
            os.close(fd)
            return -1
        os.close(fd)  # swept away between the two calls: a lock on it would be known to nobody


def _release(held: list[int]) -> None:
    for fd in held:
        os.close(fd)
