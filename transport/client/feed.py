"""The jobs of one WHERE that wait in their caller: when the next one is sent, and bound to a host.

Laws
1. A job that waits here is bound to no host. So it goes to the host that has a free slot first, and a host that is slow
   or ends holds up only what it was given.
2. At most UNSTARTED jobs are sent that have not started: a node that is slow to start them is not flooded.
3. Jobs that differ in nothing but their own fields are sent by a template, from the second one on.
4. A node that answers "full" gives the job back. It is sent again when a job of this WHERE has ended, when the node
   tells of room, or after PAUSE, since the slots may be taken by others.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.lean import deque
from transport.spawn import Template

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.client.batch_job import BatchJob
    from transport.spawn import Spawn

UNSTARTED = 64  # jobs that are sent and have not started
PAUSE = 0.5  # seconds until a full WHERE is tried again, if nothing else tells of room


class Feed:
    """The queue of one WHERE. `under_way` is how many of its jobs were sent and have not ended."""

    __slots__ = ("_credit", "_template", "_unstarted", "_until", "full", "under_way", "waiting", "where")

    def __init__(self, where: str) -> None:
        self.where = where
        self.waiting: deque[BatchJob] = deque()
        self.under_way = 0
        self._unstarted = 0
        self.full = False  # a job of it was given back
        self._credit = 0  # jobs that a full WHERE may be tried with
        self._template: Template | None = None  # of the latest job
        self._until = 0.0  # when a full WHERE is tried again

    def may_send(self, now: float) -> bool:
        if not self.waiting or self._unstarted >= UNSTARTED:
            return False
        if self.due is not None and now >= self._until:
            self._credit, self._until = 1, now + PAUSE
        return not self.full or self._credit > 0

    @property
    def due(self) -> float | None:
        """Time of the next try of a full WHERE; None if only events count."""
        tried = self.waiting and self.full and not self._credit and self._unstarted < UNSTARTED
        return self._until if tried else None

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
        if self._credit:
            self._credit -= 1
        if not self.waiting:
            self.full = False

    def started(self) -> None:
        self._unstarted -= 1

    def ended(self, started: bool) -> None:
        self.under_way -= 1
        self._unstarted -= not started
        if self.full:
            self._credit += 1

    def given_back(self, job: BatchJob, now: float) -> None:
        """The node has no slot for `job`, which waits again, before those that were added later."""
        self.ended(started=False)
        earlier = []
        while self.waiting and self.waiting[0].place < job.place:
            earlier.append(self.waiting.popleft())
        self.waiting.appendleft(job)
        self.waiting.extendleft(reversed(earlier))
        self.full, self._credit, self._until = True, 0, now + PAUSE

    def room(self, count: int) -> None:
        """The node tells of `count` free places."""
        self._credit = max(self._credit, count)

    def lost(self) -> None:
        """The node has ended; the next one knows nothing of this."""
        self.under_way = self._unstarted = self._credit = 0
        self.full = False
