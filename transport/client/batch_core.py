"""Many jobs of one process on one connection to its node, as a state machine.

Laws
1. Sans-IO: no socket, descriptor, clock or thread. `now` is seconds of any steady clock, set by the driver.
2. Nothing on the way of a job grows with the number of jobs: no list of all of them is looked through, but where all
   of them are lost, and those that were sent where a host is set aside; and now and then those
   with a limit of time, which are no items (`time_limits.py`).
3. A job is sent only to a node that has greeted, and is sent once. If the connection ends, the jobs that were sent are
   lost, and those that wait here are sent to the next node.
4. At most QUEUED bytes of stdin wait for the connection, whatever the jobs have room for; they take turns.
"""

from __future__ import annotations

from transport.client.batch_job import BatchJob
from transport.client.feed import Feed
from transport.client.time_limits import TimeLimits
from transport.lean import deque
from transport.status import NOT_STARTED, Status
from transport.wire.frames import Kind
from transport.wire.session import GOES_ON, MAX_CHANNELS, STDIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transport.client.batch_job import Functions, Input
    from transport.errors import Refused
    from transport.rpc.services import Service
    from transport.spawn import Spawn
    from transport.wire.frames import Frame
    from transport.wire.session import Session

MOST_SENT = MAX_CHANNELS // 2  # jobs that are sent and have not ended; requests of them need channels, too
QUEUED = 512 * 1024


class BatchCore:
    """The jobs. `session` is that of the present connection, None without one."""

    def __init__(self, log: str = "", bounded: bool = False) -> None:
        """`log` is the path of this machine's node log; `bounded` as in `Batch`."""
        self.log = log
        # A node without a free slot gives a late job back.
        self._context = {"late": True, **({"bounded": True} if bounded else {})}
        self.now = 0.0
        self.session: Session | None = None
        self.on_request: Callable[[Frame], None] = lambda _: None  # a frame of a request of a job
        self.answered = False  # a job of this connection has started or ended
        self.limits = TimeLimits()
        self._waiting = 0
        self._added = 0  # jobs, ever
        self._last = 0  # the latest channel of a job
        self._sent: dict[int, BatchJob] = {}  # by their channel
        self._feeds: dict[str, Feed] = {}
        self._ready: dict[Feed, None] = {}  # that may have a job to send
        self._full: dict[Feed, None] = {}  # that are tried again at a time
        self._hungry: deque[BatchJob] = deque()
        self._over: deque[BatchJob] = deque()  # whose callers have still to be told

    def __len__(self) -> int:
        """Jobs whose end was not told to their callers."""
        return self.under_way + self.waiting + len(self._over)

    @property
    def under_way(self) -> int:
        return len(self._sent)

    @property
    def waiting(self) -> int:
        """Jobs that were not sent yet."""
        return self._waiting

    @property
    def is_full(self) -> bool:
        """Whether a job waits because no host has a free slot."""
        return bool(self._full)

    def add(
        self, spawn: Spawn, stdin: bytes | Input, on: Functions, services: Mapping[str, Service]
    ) -> BatchJob:
        spawn.context = {**spawn.context, **self._context}
        job = BatchJob(self, spawn, stdin, on, services)
        feed = self._feeds.get(job.queue)
        if feed is None:
            feed = self._feeds[job.queue] = Feed(job.queue)
        self._added += 1
        job.place = self._added
        feed.waiting.append(job)
        self._waiting += 1
        self._ready[feed] = None
        return job

    def job(self, number: object) -> BatchJob | None:
        """The job on a channel of this connection."""
        return self._sent.get(number) if isinstance(number, int) else None

    # -- the connection ----------------------------------------------------------------------------

    def connected(self, session: Session) -> None:
        self.session, self.answered, self._last = session, False, 0

    def receive(self, data: bytes) -> None:
        """Take bytes of the node. Raises ProtocolError; the connection is to be given up then."""
        assert self.session
        for frame in self.session.receive(data):
            job = self._sent.get(frame.channel)
            if job is None:
                self.on_request(frame)
                continue
            job.on_frame(frame, self.now)
            if frame.kind == Kind.ACK and frame.stream == STDIN:
                self.feed_later(job)
            elif frame.kind in (Kind.ATTACH, Kind.EXIT):
                self.answered = True
            self.look_at(job)

    def lost(self, why: str) -> None:
        """The connection has ended: by the end of the node, or else for the reason `why`."""
        self.session = None
        sent, self._sent = self._sent, {}
        for feed in list(self._feeds.values()):
            feed.lost()
            self._look_at_feed(feed)
        for job in sent.values():
            if not job.over:
                job.fail(why) if why else job.node_ended()
                job.severed = job.spawn.keep
                self._finish(job)

    def refuse(self, refused: Refused) -> None:
        """No node can be had: nothing that waits is started."""
        for feed in self._feeds.values():
            for job in feed:
                if not job.over:
                    job.end(Status(refused.state, refused.status, detail=refused.detail, hint=refused.hint))
                    self._finish(job)
        self._waiting = 0
        self._feeds.clear()
        self._ready.clear()
        self._full.clear()

    # -- the jobs ----------------------------------------------------------------------------------

    def look_at(self, job: BatchJob) -> None:
        """Something about a job has changed: it may be over."""
        job.settle()
        if not job.over or job.told:
            return
        feed = self._feeds[job.queue]
        if self._sent.get(job.number) is job:
            del self._sent[job.number]
            given_back = job.full and job.status and job.status.state == "unreachable"
            if given_back and job.withdrawn:
                job.status = Status(
                    "unreachable", NOT_STARTED
                )  # as its caller wants, and no fault of the host
            elif given_back:
                job.forget()
                job.again()
                self._waiting += 1
                feed.given_back(job, self.now)
                if job.on.send:
                    job.on.send(False)
                self._full[feed] = self._ready[feed] = None
                return
            feed.ended(bool(job.pid))
        elif not job.number:
            self._waiting -= 1
        self._look_at_feed(feed)
        self._finish(job)

    def started(self, job: BatchJob) -> None:
        feed = self._feeds[job.queue]
        feed.started()
        self._look_at_feed(feed)
        self.feed_later(job)

    def room(self, job: BatchJob, count: int, seen: int) -> None:
        """The node tells of `count` free places where this job was sent to, one of them its own, which it leaves.

        The node had seen the channels up to number `seen`: jobs sent since may have taken places of these.
        """
        feed = self._feeds[job.queue]
        feed.room(count - 1 - max(0, self._last - seen) // 2)
        self._look_at_feed(feed)

    def _look_at_feed(self, feed: Feed) -> None:
        """A job of a WHERE was started, or has ended."""
        if feed.waits:
            self._ready[feed] = None
        elif not feed.under_way and self._feeds.get(feed.name) is feed:
            del self._feeds[feed.name]
            self._ready.pop(feed, None)
            self._full.pop(feed, None)

    def _finish(self, job: BatchJob) -> None:
        job.told = True
        job.release()
        self._over.append(job)

    def recall(self, host: str) -> None:
        """Have the jobs back that were sent to a host and have not begun there; they are sent elsewhere."""
        for job in self._sent.values():
            if not (job.pid or job.over or job.slotless):
                avoid = job.spawn.context.get("avoid") or []
                job.spawn.context = {**job.spawn.context, "avoid": [*avoid, host]}
                job.session.tell(job.number, Kind.NOTE, {"withdraw": host})

    def abandon(self, goes_on: bool = False) -> None:
        """Nobody waits any more for the jobs that are kept: they end, or with `goes_on` outlive this process.

        Records of those that have ended stay for their lease.
        """
        session = self.session
        if session is None or not session.peer:
            return
        for number, channel in list(session.channels.items()):
            job = self._sent.get(number)
            if channel.mine and not channel.request and (job is None or job.spawn.keep):
                session.abandon(number, GOES_ON if goes_on or not job else 0)

    def feed_later(self, job: BatchJob) -> None:
        """A job may have stdin to send, and room for it."""
        if not job.hungry and not job.over and job.stdin_open and job.number:
            job.hungry = True
            self._hungry.append(job)

    def pump(self) -> None:
        """Send the jobs that may be sent, and stdin as far as there is room for it."""
        self.limits.tick(self.now)
        session = self.session
        if session is None or not session.peer:
            return
        for feed in list(self._full):
            if not feed.is_blocked:
                del self._full[feed]
            elif feed.due is not None and self.now >= feed.due:
                self._ready[feed] = None
        while self._ready and len(self._sent) < MOST_SENT:
            feed = next(iter(self._ready))
            if job := feed.next(self.now):
                self._send(feed, job, session)
            else:
                del self._ready[feed]
                if not feed.waits:  # all of them were withdrawn
                    self._look_at_feed(feed)
        while self._hungry and session.pending < QUEUED:
            job = self._hungry.popleft()
            job.hungry = False
            if not job.over and job.send_stdin(self.now):
                self.feed_later(job)

    def _send(self, feed: Feed, job: BatchJob, session: Session) -> None:
        if job.on.send and not job.on.send(True):
            job.end(Status("unreachable", NOT_STARTED))
        else:
            job.session = session
            job.begin(feed.template(job.spawn))
        if job.over:
            self.look_at(job)
            return
        self._waiting -= 1
        self._sent[job.number] = job
        self._last = job.number
        feed.sent()
        self.feed_later(job)

    @property
    def busy(self) -> bool:
        """True if `pump` or `tell` has something to do at once."""
        session = self.session
        if self._over:
            return True
        return bool(session and self._hungry and session.pending < QUEUED)

    @property
    def due(self) -> float | None:
        """Time when `pump` has something to do, None if only events count."""
        times = [feed.due for feed in self._full]
        return min((due for due in (*times, self.limits.due) if due is not None), default=None)

    def tell(self) -> None:
        """Call the functions for the jobs that are over."""
        while self._over:
            job = self._over.popleft()
            if job.on.exit and job.status:
                job.on.exit(job.status)
