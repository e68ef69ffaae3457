"""When a host is not waited for any longer: it was to end its job, and goes on.

Laws
1. No clock: the time is given. The caller sends the signals, and gives the job up.
2. A host ends its job by itself: at its deadline, or at the signal of its user. It has GRACE seconds more for that than
   it needs. Then the job gets the signals, GRACE apart, and GRACE after the last one it is given up.
3. A reader here that takes nothing is no fault of the host: it is waited for. A link that is down, and output that
   still comes in bulk, make the last wait longer, together by the lease of the job at most.
"""

from __future__ import annotations

from transport.lean import signal
from transport.wire.frames import CHUNK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GRACE = 5.0  # seconds; that of a batch (quine/fanout/tasks.py)
ENDING = 15.0  # seconds that an agent needs at most to end its commands and children, after a signal
NEVER = float("inf")
GIVE_UP = -1


class Overtime:
    """`due` is the time of the next step, on the clock of `now`."""

    __slots__ = ("_came", "_last", "_lease", "_left", "_signals", "begun", "due")

    def __init__(self, lease: float, left: Callable[[], float | None] | None = None) -> None:
        """`left` returns the seconds until an agent has ended by itself, None for no limit. It is asked again at 0."""
        self.due = NEVER
        self.begun = False  # the time is over
        self._left = left
        self._lease = lease
        self._signals: list[int] = []
        self._last = NEVER  # of the waits
        self._came = 0  # bytes of output in this wait

    @property
    def of_agent(self) -> bool:
        return self._left is not None

    def ask(self, now: float) -> None:
        """Ask how long the agent has; it may be more than it was."""
        seconds = self._left() if self._left else None
        self._signals = [signal.SIGTERM, signal.SIGKILL]
        self.due = NEVER if seconds is None else now + seconds + GRACE

    def limit(self, seconds: float, now: float) -> None:
        """The host sends TERM to its command after so many seconds, KILL a GRACE later."""
        self._signals = [signal.SIGKILL]
        self.due = now + seconds + GRACE

    def told(self, now: float) -> None:
        """An agent was told to end."""
        if not self.begun and now + ENDING + GRACE < self.due:
            self._signals, self._left = [signal.SIGKILL], None
            self.due = now + ENDING + GRACE

    def came(self, count: int) -> None:
        self._came += count

    def resumed(self, now: float) -> None:
        """This process was stopped: the end of the job may have come meanwhile, and is read first."""
        if self.begun:
            self.due = max(self.due, now + GRACE)

    def tick(self, now: float, slow: bool, down: bool) -> int:
        """Return the signal to send now, GIVE_UP, or 0. `slow` is the reader here, `down` the link."""
        if now < self.due:
            return 0
        if not self.begun:
            if self._left:
                self.ask(now)
                if now < self.due:
                    return 0
            self.begun = True
            self._last = now + self._lease
        elif not self._signals and (slow or ((down or self._came >= CHUNK) and now < self._last)):
            self.due, self._came = now + GRACE, 0
            return 0
        self.due, self._came = now + GRACE, 0
        return self._signals.pop(0) if self._signals else GIVE_UP
