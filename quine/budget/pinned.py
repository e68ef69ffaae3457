"""A process as the kernel has it: a pid with the start of its process, and a pidfd by which its end is seen.

Laws
1. A right belongs to a pinned process. A pid is a number: that of a process which has ended has nothing above it, and
   may be another process's a moment later.
2. A list of the processes above is used only if two walks found the same one. Where a process above ends between two
   steps of a walk, the walk goes on from nowhere, or from another process that has got the number.
"""

from __future__ import annotations

import os
import select
from itertools import islice

from quine.base import procs
from transport.address import start_time
from transport.errors import Unseen
from transport.inherit import ancestors

HIGHEST = 256  # processes above one that are looked at
WALKS = 20  # until two of them, one after the other, are equal
MOST = 4 * HIGHEST  # processes that all walks may look at: an event loop waits, some 50 us for each


class PinnedProcess:
    def __init__(self, pid: int, start: int, pidfd: int) -> None:
        self.pid = pid
        self.start = start
        self.pidfd = pidfd

    @property
    def lives(self) -> bool:
        """Whether the process has not ended; one that is not reaped yet has."""
        if self.pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return not poll.poll(0)

    def chain(self) -> list[tuple[int, int]]:
        """Return (pid, start) of this process and of all above it, as they are at one time.

        Return [] if it has ended, or if the processes above it are not known up to the top, or are too many.
        """
        last: list[tuple[int, int]] = []
        left = MOST
        for _ in range(WALKS):
            try:
                now = list(islice(ancestors(self.pid), HIGHEST + 1))
            except Unseen:
                return []
            # Below so many it is refused after one walk: a command makes them, and an event loop waits for this.
            if not self.lives or len(now) > HIGHEST:
                return []
            if now and now == last and _is_top(now[-1][0]):
                return now
            last = now
            left -= len(now)
            if left < len(now):  # a command may end one of many after each walk
                break
        return []

    def copy(self) -> PinnedProcess:
        """Return the same process with a pidfd of its own. Raises OSError."""
        return PinnedProcess(self.pid, self.start, os.dup(self.pidfd))

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


def pinned(pid: int) -> PinnedProcess | None:
    """Pin the process that has this number now; None if no process has it."""
    try:
        fd = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return None
    process = PinnedProcess(pid, start_time(pid), fd)
    if process.start and process.lives:  # so the start that was read between the two is its own
        return process
    process.close()
    return None


def _is_top(pid: int) -> bool:
    """Return whether the kernel shows no process above one, as at the top, or where hidepid of proc(5) hides it.

    A process that still is the parent afterwards was there when it was not seen.
    """
    before = procs.look(pid)
    if before is None or (before.ppid and start_time(before.ppid)):
        return False
    after = procs.look(pid)
    return after is not None and (after.ppid, after.started) == (before.ppid, before.started)
