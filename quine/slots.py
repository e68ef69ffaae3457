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


def take(directory: str, kind: str, limit: int, count: int = 1) -> list[int] | None:
    """`count` of `limit` slots as locked descriptors, or None where fewer are free. limit 0: no limit, [] is given."""
    if limit == 0:
        return []
    os.makedirs(directory, 0o700, exist_ok=True)
    held: list[int] = []
    for index in range(limit):
        fd = _open(directory, kind, index)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        held.append(fd)
        if len(held) == count:
            return held
    for fd in held:
        os.close(fd)
    return None


def wait(directory: str, kind: str, limit: int) -> list[int]:
    """One slot, whenever it is free. Blocks in flock(2), which a signal interrupts."""
    held = take(directory, kind, limit)
    if held is not None:
        return held
    fd = _open(directory, kind, os.getpid() % limit)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except BaseException:
        os.close(fd)
        raise
    return [fd]


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


def _open(directory: str, kind: str, index: int) -> int:
    return os.open(os.path.join(directory, f"{kind}-{index}"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
