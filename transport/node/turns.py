"""Jobs of another node that wait here for their turn: the next one begins when one ends, not a round trip later.

Laws
1. As many jobs of one link run at one time as its node has said (`Spawn.slots`); the others begin in their order.
2. A job that waits can be withdrawn by its caller, and then never begins.
3. A job that waits has not started: its node hears of it when it does. None begins while the link is down, since its
   lease runs from a break on.
"""

from __future__ import annotations

import asyncio

from transport.status import NOT_STARTED, Status
from transport.wire.frames import LIFE, Frame, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.job.job import Job
    from transport.node.link import Handler, Link


class Turns:
    """The jobs of one link that take turns."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._limit = 0
        self._running: set[Job] = set()
        self._waiting: dict[Job, Waiting] = {}  # in their order

    def submit(self, job: Job, limit: int) -> Handler:
        """Start a job now or later; returns the handler of its channel until then."""
        if self._waiting and limit > self._limit:
            asyncio.get_running_loop().call_soon(self.begin)
        self._limit = limit
        if len(self._running) < limit and not self._waiting:
            self._running.add(job)
            job.start()
            return job
        waiting = self._waiting[job] = Waiting(self, job)
        return waiting

    def ended(self, job: Job) -> None:
        """A job has ended, whether it was started or not."""
        self._waiting.pop(job, None)
        self._running.discard(job)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self.begin)

    def begin(self) -> None:
        while self._waiting and len(self._running) < self._limit and not self._link.down:
            job = next(iter(self._waiting))
            waiting = self._waiting.pop(job)
            waiting.begun = True
            self._running.add(job)
            if self._link.handlers.get(job.number) is waiting:
                self._link.handlers[job.number] = job
            job.start()
            for frame in waiting.early:
                job.on_frame(frame)
            waiting.early.clear()


class Waiting:
    """Handler of the channel of a job that waits for its turn."""

    def __init__(self, turns: Turns, job: Job) -> None:
        self.early: list[Frame] = []  # bounded by the windows of the job
        self.begun = False
        self._turns = turns
        self._job = job

    def on_frame(self, frame: Frame) -> None:
        if self.begun or (frame.stream == LIFE and frame.kind == Kind.STOP):
            self._job.on_frame(frame)  # nobody waits for it: it ends
        elif frame.kind == Kind.NOTE:
            self._job.on_not_started(Status("unreachable", NOT_STARTED, detail="withdrawn before it began"))
        else:
            self.early.append(frame)

    def on_down(self, why: str) -> None:
        if self.begun:
            self._job.on_down(why)

    def on_up(self) -> None:
        if self.begun:
            self._job.on_up()
        else:
            self._turns.begin()

    def on_lost(self, why: str) -> None:
        self._job.on_lost(why)
