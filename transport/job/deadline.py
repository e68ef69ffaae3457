"""The time that a command may run: TERM when it is over, KILL after a pause, and the exit status of timeout(1).

Law: no clock and no descriptor: the time is given, and the caller sends the signals.
"""

from __future__ import annotations

from transport.launcher.termination import PAUSE
from transport.lean import signal
from transport.status import TIMED_OUT, Status

NEVER = float("inf")


class Deadline:
    """`due` is the time of the next signal, on the clock of `now`. 0 seconds: none."""

    __slots__ = ("_seconds", "_sent", "due")

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds = seconds
        self._sent = 0
        self.due = now + seconds if seconds else NEVER

    def tick(self, now: float) -> int:
        """Return the signal to send now, 0 for none."""
        if now < self.due:
            return 0
        self.due = NEVER if self._sent else now + PAUSE
        self._sent = signal.SIGKILL if self._sent else signal.SIGTERM
        return int(self._sent)

    def of(self, status: Status) -> Status:
        """Return how the command ended, given its own status: the time was over, or as it says."""
        if not self._sent or status.state not in ("exited", "signaled"):
            return status
        detail = f"it was ended after {self._seconds:g} s (--deadline)"
        return Status("exited", TIMED_OUT, pid=status.pid, detail=detail, rusage=status.rusage)
