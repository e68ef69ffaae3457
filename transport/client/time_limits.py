"""The time that hosts have to end jobs that this process waits for: questions, and jobs that send or remove files.

Laws
1. No clock: the time is given. The time of a job does not pass while this process is stopped.
2. A host has START seconds to start such a job: it may have to be dialled, and to get this build first. Then the job
   has its own seconds. They begin anew whenever `heard` returns another value.
3. A job whose time is over is abandoned. It is lost then, since its host may still run it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Limited(Protocol):
        """`transport.client.batch_job.BatchJob`."""

        number: int
        pid: int
        over: bool

        def expire(self, seconds: float) -> None:
            """Abandon the job: its host did not end it in these seconds."""


START = 120.0
ANSWER = 30.0  # seconds for a question that its host answers from memory
LOOK = 1.0  # seconds between two looks


class Patience:
    """The time that one job still has; it begins anew with another value of `heard`."""

    __slots__ = ("_heard", "_last", "_looked", "_passed", "seconds")

    def __init__(self, seconds: float, heard: Callable[[], object] | None, now: float) -> None:
        self.seconds, self._heard = seconds, heard
        self._last = heard() if heard else None
        self._passed, self._looked = 0.0, now

    def left(self, now: float, most: float = 2 * LOOK) -> float:
        """Return the seconds that are left. Of those since the last call at most `most` count: the rest was a stop."""
        value = self._heard() if self._heard else None
        if value != self._last:
            self._last, self._passed = value, 0.0
        else:
            self._passed += min(now - self._looked, most)
        self._looked = now
        return self.seconds - self._passed


class TimeLimits:
    """The jobs under way that have a limit. `due` is the time of the next look at them, None if there are none."""

    def __init__(self) -> None:
        self.due: float | None = None
        self._jobs: dict[Limited, Patience] = {}
        self._own: dict[
            Limited, tuple[float, Callable[[], object] | None]
        ] = {}  # of those that have not started

    def add(self, job: Limited, seconds: float, heard: Callable[[], object] | None, now: float) -> None:
        self._jobs[job] = Patience(START, None, now)
        self._own[job] = seconds, heard
        if self.due is None:
            self.due = now + LOOK

    def tick(self, now: float) -> None:
        """Abandon the jobs whose time is over."""
        if self.due is None or now < self.due:
            return
        for job, patience in list(self._jobs.items()):
            if job.over:
                del self._jobs[job]
                self._own.pop(job, None)
            elif job.pid and job in self._own:
                self._jobs[job] = Patience(*self._own.pop(job), now)
            elif job.number and patience.left(now) <= 0:  # without a number it was not sent
                job.expire(patience.seconds)
        self.due = now + LOOK if self._jobs else None
