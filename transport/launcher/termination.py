"""Ending the processes of a job: first its process group, by TERM, then everything of its session.

Laws
1. A job leads a session of its own, so all its descendants are found again, whatever process groups they made.
   A process that has made another session has asked to be left.
2. Imports are few: a launcher would hold them in memory.
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
WOKEN_BY = (
    signal.SIGTERM,
    signal.SIGHUP,
)  # followed by CONT: a stopped process takes them only when it goes on
AT_ONCE = 256  # processes that are waited for at one time: each takes a descriptor, and a login has 1024


def members(*sessions: int) -> list[int]:
    """Pids of the live processes of these sessions, zombies not counted. One scan of /proc for all of them."""
    return [pid for found in by_session(set(sessions)).values() for pid in found]


def by_session(wanted: set[int]) -> dict[int, set[int]]:
    """Session to the pids of its live processes, zombies not counted. One scan of /proc for all of them."""
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
    """Send a signal to the job's process group; a job that is gone is no error."""
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        pass
    except PermissionError:
        pass  # every member runs as another user (set-uid)


def kill_session(*sessions: int) -> None:
    """SIGKILL to every process of a job's session, also those in groups of their own.

    Stopped first, then killed, so that none of them forks away during the scan.
    """
    seen: set[int] = set()
    while fresh := set(members(*sessions)) - seen:
        for pid in fresh:
            send(pid, signal.SIGSTOP)
        seen |= fresh
    for pid in seen:
        send(pid, signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal to one process; one that is gone, or another user's, is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def end(sessions: Callable[[], Collection[int]], pause: float = PAUSE) -> None:
    """TERM, a pause in seconds, KILL, to all of these at the same time; blocks until they are gone.

    `sessions` is called again before the KILL: a leader that ended meanwhile was reaped, and its number may be in use
    again.
    """
    for session in sessions():
        signal_group(session, signal.SIGTERM)
        signal_group(session, signal.SIGCONT)
    if _wait(sessions, pause):
        return
    kill_session(*sessions())
    _wait(sessions, 1.0)


def _wait(sessions: Callable[[], Collection[int]], seconds: float) -> bool:
    """Wait until these sessions are empty; False if they are not after `seconds`."""
    deadline = time.monotonic() + seconds
    while left := members(*sessions()):
        if time.monotonic() >= deadline:
            return False
        wait_ended(left[:AT_ONCE], deadline)
    return True


def wait_ended(pids: list[int], deadline: float) -> None:
    """Wait until all of them have ended, or for the deadline on the monotonic clock."""
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


def lives(group: int) -> bool:
    """Whether a process group has a process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it has become another user
    return True
