"""Ending sessions, many at a time, for `Running.end`: one scan of /proc serves all of them.

Laws
1. A turn scans /proc at most once, however many sessions there are to end; turns are a tenth of a second apart.
2. A session is stopped in one turn and killed in the next that finds no new process in it, so that none forks away.
3. A reaped leader leaves its number to its session. If a process has that number now, it is another one, and so may be
   the session: it is left alone.
"""

from __future__ import annotations

from transport import address
from transport.launcher import termination
from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TICK = 0.1  # seconds between two turns
LAST = 1.0  # seconds to wait after SIGKILL for processes that do not die at once


class Session:
    """A session to end. `kill_at` is on the monotonic clock; `reaped`: its leader has ended and been waited for."""

    __slots__ = ("gone", "kill_at", "killed", "pause", "pid", "reaped", "stopped")

    def __init__(self, pid: int, now: float, pause: float, gone: Callable[[], None]) -> None:
        self.pid = pid
        self.pause = pause
        self.kill_at = now + pause
        self.gone = gone  # called once, when the leader was reaped and no other process of it is left
        self.reaped = False
        self.killed = False
        self.stopped: set[int] = set()


class Sessions:
    """The sessions that are being ended. The caller calls `turn` at the time that `due` returns."""

    def __init__(self) -> None:
        self._all: dict[int, Session] = {}
        self._next = 0.0  # no turn before

    def end(self, session: Session) -> None:
        """Kill the rest of the session at its `kill_at`."""
        self._all[session.pid] = session

    def reaped(self, session: Session, now: float) -> None:
        """The leader has ended: the rest of the session gets a pause of its own."""
        session.reaped = True
        if not session.killed:
            session.kill_at = now + session.pause

    def due(self) -> float | None:
        """Time of the next turn on the monotonic clock; None if there is nothing to do."""
        times = [0.0 if each.reaped else each.kill_at for each in self._all.values()]
        return max(self._next, min(times)) if times else None

    def turn(self, now: float) -> None:
        """Stop, kill or forget the sessions that are due."""
        self._next = now + TICK
        due = [each for each in self._all.values() if each.reaped or now >= each.kill_at]
        if due:
            left = termination.by_session({each.pid for each in due})
            for each in due:
                self._step(each, left.get(each.pid, set()), now)

    def _step(self, session: Session, left: set[int], now: float) -> None:
        if session.reaped and (not left or address.start_time(session.pid)):
            self._over(session)
        elif now < session.kill_at:
            pass
        elif session.killed:
            if now >= session.kill_at + LAST and session.reaped:
                self._over(session)  # the rest hangs in the kernel, or is another user's
        elif fresh := left - session.stopped:
            for pid in fresh:
                termination.send(pid, signal.SIGSTOP)
            session.stopped |= fresh
        else:
            for pid in session.stopped & left:  # the number of one that has ended may be in use again
                termination.send(pid, signal.SIGKILL)
            session.killed, session.kill_at = True, now

    def _over(self, session: Session) -> None:
        del self._all[session.pid]
        session.gone()
