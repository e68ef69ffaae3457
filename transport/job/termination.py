"""Ending what a job has started: its process group by its own rules, then everything of its session.

Laws
1. A job leads a session of its own, so all that it started is found again, whatever process groups they made.
   Who has made another session has asked to be left.
2. Nothing is imported here that a launcher would have to hold in memory for it.
"""

from __future__ import annotations

import os
import select
import time

from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

PAUSE = 5.0  # seconds between TERM and KILL
WOKEN_BY = (signal.SIGTERM, signal.SIGHUP)  # a stopped process takes them when it goes on, so it is let go on
AT_ONCE = 256  # processes that are waited for at one time: each takes a descriptor, and a login has 1024


def members(*sessions: int) -> list[int]:
    """Pids of the live processes of these sessions, zombies not counted. One look at /proc for all of them."""
    return [pid for found in by_session(set(sessions)).values() for pid in found]


def by_session(wanted: set[int]) -> dict[int, set[int]]:
    """Session to the pids of its live processes, zombies not counted. One look at /proc for all of them."""
    found: dict[int, set[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b") ")[2].split()
        except OSError:
            continue
        if (session := int(fields[3])) in wanted and fields[0] != b"Z":
            found.setdefault(session, set()).add(int(name))
    return found


def signal_group(pid: int, number: int) -> None:
    """To the job's process group; a job that is gone is no error."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        pass  # a set-uid member: the others got it


def kill_session(*sessions: int) -> None:
    """SIGKILL to every process of a job's session, also those in groups of their own.

    Stopped first, then killed, so that none of them forks away while we look.
    """
    seen: set[int] = set()
    while fresh := set(members(*sessions)) - seen:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        seen |= fresh
    for pid in seen:
        send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """To one process; one that is gone is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def end(sessions: Callable[[], Collection[int]], pause: float = PAUSE) -> None:
    """TERM, a pause, KILL, to all of these at the same time; blocks until they are gone.

    `sessions` is asked again before the KILL: a leader that ended meanwhile was reaped, and its number may be
    somebody else's.
    """
    for session in sessions():
        signal_group(session, signal.SIGTERM)
        signal_group(session, signal.SIGCONT)
    if _wait(sessions, pause):
        return
    kill_session(*sessions())
    _wait(sessions, 1.0)


def _wait(sessions: Callable[[], Collection[int]], seconds: float) -> bool:
    """Until these sessions are empty."""
    deadline = time.monotonic() + seconds
    while left := members(*sessions()):
        if time.monotonic() >= deadline:
            return False
        wait_ended(left[:AT_ONCE], deadline)
    return True


def wait_ended(pids: list[int], deadline: float) -> None:
    """Until all of them have ended, or the deadline of the monotonic clock."""
    poll = select.poll()
    waiting: set[int] = set()
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        waiting.add(fd)
        poll.register(fd, select.POLLIN)
    left = len(waiting)
    while left and (rest := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(int(rest * 1000) + 1):
            poll.unregister(fd)
            left -= 1
    for fd in waiting:
        os.close(fd)
