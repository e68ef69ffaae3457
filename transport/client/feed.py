"""The jobs of one WHERE that wait in their caller: when the next one is sent, and bound to a host.

Laws
1. A job that waits here is bound to no host. So it goes to the host that has a free slot first, and a host that is slow
   or ends holds up only what it was given. Of the jobs that wait for the link to a silent host all but one come back
   (`slots.py`, law 6): else all that law 2 allows could wait there.
2. At most UNSTARTED jobs are sent that have not started: a node that is slow to start them is not flooded.
3. Jobs that differ in nothing but their own fields are sent by a template, from the second one on.
4. A node that answers "full" gives the job back. It is sent again when a job of this WHERE has ended, when the node
   tells of room, or after PAUSE, since the slots may be taken by others.
5. A job that avoids hosts may find the others full while those have room. It then holds up no other job: it waits
   apart, and at each of these events one of its kind is tried first.
6. A job that takes no slot is never given back, and waits for none: it has a queue of its own (`BatchJob.queue`).
   Behind jobs that wait, one that was to be adopted came after its lease, and was lost; files were brought late.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.lean import deque
from transport.spawn import Template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from transport.client.batch_job import BatchJob
    from transport.spawn import Spawn

UNSTARTED = 64  # jobs that are sent and have not started
PAUSE = 0.5  # seconds until a full WHERE is tried again, if nothing else tells of room


class Feed:
    """The queue of one WHERE. `under_way` is how many of its jobs were sent and have not ended."""

    __slots__ = (
        *("_apart", "_credit", "_probes", "_template", "_tries", "_unstarted", "_until"),
        *("full", "name", "under_way", "waiting"),
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.waiting: deque[BatchJob] = deque()
        self._apart: deque[BatchJob] = deque()  # that avoid hosts, and were given back
        self.under_way = 0
        self._unstarted = 0
        self.full = False  # a job of it was given back, and more wait
        self._credit = 0  # jobs that a full WHERE may be tried with,
        self._tries = 0  # and of those apart
        self._template: Template | None = None  # of the latest job
        self._until = 0.0  # when it is tried again
        self._probes = False  # it was, and there was room: the next one follows

    def __iter__(self) -> Iterator[BatchJob]:
        yield from self._apart
        yield from self.waiting

    @property
    def waits(self) -> bool:
        return bool(self.waiting or self._apart)

    @property
    def is_blocked(self) -> bool:
        """Whether a job waits that was given back, or behind such a one."""
        return bool(self.full or self._apart)

    def next(self, now: float) -> BatchJob | None:
        """Take the next job that may be sent; None if none may be now."""
        if self.due is not None and now >= self._until:
            self._probes, self._until = True, now + PAUSE
            self._allow()
        while self._unstarted < UNSTARTED:
            if self._apart and self._tries:
                job = self._apart.popleft()
                job.by_credit = False
                self._tries -= not job.over
            elif self.waiting and (not self.full or self._credit):
                job = self.waiting.popleft()
                job.by_credit = bool(self._credit)
                self._credit -= job.by_credit and not job.over
                self.full = self.full and bool(self.waiting)
            else:
                return None
            if not job.over:  # else it was withdrawn meanwhile
                return job
        return None

    @property
    def due(self) -> float | None:
        """Time of the next try after jobs were given back; None if only events count."""
        stuck = (self.full and not self._credit) or (self._apart and not self._tries)
        return self._until if stuck and self._unstarted < UNSTARTED else None

    def template(self, spawn: Spawn) -> Template | None:
        """Return the template by which a job is to be sent; None: no job before it was like it, or it is too large."""
        if self._template and self._template.fits(spawn):
            return self._template if self._is_good(self._template) else None
        self._template = Template.of(spawn)
        return None

    @staticmethod
    def _is_good(template: Template) -> bool:
        """Check a template once, and that it goes into a frame."""
        good = template.derived.get("good")
        if good is None:
            try:
                Template.from_json(template.fields)
                good = template.is_small
            except ProtocolError:
                good = False  # the job is sent whole, and the reason told
            template.derive("good", good)
        return bool(good)

    def sent(self) -> None:
        self.under_way += 1
        self._unstarted += 1

    def started(self) -> None:
        self._unstarted -= 1
        if self._probes:
            self._allow()

    def ended(self, started: bool) -> None:
        self._gone(started)
        self._credit += self.full
        self._tries += bool(self._apart)

    def _gone(self, started: bool) -> None:
        self.under_way -= 1
        self._unstarted -= not started

    def _allow(self) -> None:
        """One of each kind may be tried."""
        self._credit, self._tries = max(1, self._credit), max(1, self._tries)

    def given_back(self, job: BatchJob, now: float) -> None:
        """The node has no slot for `job`, which waits again, before those that were added later."""
        self._gone(started=False)
        self._probes = False
        if job.spawn.context.get("avoid"):
            self._apart.append(job)
            self._tries, self._until = 0, now + PAUSE
            self._credit += job.by_credit  # for the next one
            return
        earlier = []
        while self.waiting and self.waiting[0].place < job.place:
            earlier.append(self.waiting.popleft())
        self.waiting.appendleft(job)
        self.waiting.extendleft(reversed(earlier))
        self.full, self._credit, self._until = True, 0, now + PAUSE

    def room(self, count: int) -> None:
        """The node tells of `count` free places."""
        self._credit = max(self._credit, count)
        self._tries = max(self._tries, count) if self._apart else 0

    def lost(self) -> None:
        """The node has ended; the next one knows nothing of this."""
        self.under_way = self._unstarted = self._credit = self._tries = 0
        self.waiting.extendleft(reversed(self._apart))
        self._apart.clear()
        self.full = False
