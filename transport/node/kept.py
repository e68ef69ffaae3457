"""Jobs that outlive their client: one whose opener dies goes on for its lease, and the next one attaches to it.

A `Keeper` stands between a job and the channel that it is served on. To the job it is a link that never ends; to the
channel it is the handler. It keeps the output that was not acknowledged, and the exit record.

Laws
1. A byte of output is kept until it is acknowledged, and the record until the opener has said that it has it. So the
   next opener gets all that the one before has not acknowledged, from the first such byte on.
2. The bytes that are kept of a stream are bounded by its window: behind it the job waits in its write(2).
3. A job that had not begun when its opener died is dropped, and never runs. So is one that could not be started: its
   next opener is told that it is not here, and may start it again.
4. An id that is not here was never begun here, as long as this node `remembers`: it does from its start on, and from
   when it last dropped a job that had begun without its opener's word that the record was taken.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from transport.node.relay import Relay
from transport.status import LOST, NOT_STARTED, Status
from transport.wire.flow import Flow
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import GOES_ON, STDERR, STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from transport.job.job import Job
    from transport.node.link import Handler, Link
    from transport.spawn import Spawn

log = logging.getLogger("quine.job")

BEYOND = 60.0  # seconds that an exit record is kept beyond the lease, so that it tells of the lease's end


class Attic:
    """The kept jobs of a node by their ids, and since when it knows of all of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()
        self._forgot = False  # a job that may have begun
        self.jobs: dict[str, Keeper] = {}
        self._batches: dict[str, Link] = {}  # by their ids, the link of the client that has them

    def keeper(self, link: Link, number: int, spawn: Spawn) -> Any:
        """Return the keeper of a new job, which has of a link and of its session all that a job uses."""
        return Keeper(link, number, spawn, self)

    def adopt(self, link: Link, number: int, spawn: Spawn) -> Handler:
        """Serve the job with the id of `spawn` on another channel."""
        keeper = self.jobs.get(spawn.id)
        status = Status("lost", LOST, detail="no job with this id is kept here")
        if keeper and keeper.waits:  # in the turns of a link that has died, unnoticed so far
            keeper.on_lost("its client has died")
            status, keeper = Status("unreachable", NOT_STARTED, detail="it had not begun"), None
        if keeper:
            keeper.adopt(link, number)
            return keeper
        relay = Relay(link, number, "", lambda _: None)
        relay.refuse(status)
        return relay.near

    def take_over(self, batch: str, link: Link) -> None:
        """A client goes on with a batch: frames of the one before, which has died, may still wait to be handled."""
        before, self._batches[batch] = self._batches.get(batch), link
        if before and before is not link:
            before.fail("another client goes on with its batch")

    def forget(self, link: Link) -> None:
        """A link has ended."""
        for batch in [batch for batch, holder in self._batches.items() if holder is link]:
            del self._batches[batch]

    def drop(self, keeper: Keeper, known: bool) -> None:
        """Forget a job; `known`: its opener has its record, or it never ran."""
        if self.jobs.get(keeper.id) is keeper:
            del self.jobs[keeper.id]
        if not known:
            self._since, self._forgot = self._loop.time(), True

    def status(self) -> dict[str, object]:
        ids = [id for id, keeper in self.jobs.items() if not keeper.refused]
        remembers = round(self._loop.time() - self._since, 3)
        return {"ids": ids, "remembers": remembers, "forgot": self._forgot}


class Keeper:
    """See the module. Implements `transport.node.link.Handler`, and `Link` of `transport.job.interface`."""

    def __init__(self, link: Link, number: int, spawn: Spawn, attic: Attic) -> None:
        self.link: Link | None = link  # that it is served on, None while nobody is attached
        self.place = number  # its channel there
        self.number = number  # by which the job calls itself
        self.id = spawn.id
        self.lease = spawn.lease
        self.remote = link.remote
        self.name = link.name
        self.dead = self.down = ""
        self.down_since = 0.0
        self.channels = {number: None}
        self.behind: Handler | None = None  # the job, or its place among those that wait
        self._attic = attic
        self._loop = asyncio.get_running_loop()
        self._flows = (Flow(), Flow(), Flow())  # of the whole streams, whatever channels they went over
        self._base = [0, 0, 0]  # byte of each stream at which the present channel begins
        self._unacked: tuple[deque[bytes], ...] = (deque(), deque(), deque())
        self._grown = 0  # bytes of windows, of the budget of the present link
        self._signals = self._signals_before = 0
        self._started: dict[str, Any] | None = None
        self._since = 0.0  # of its start
        self._exit: dict[str, Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._adopted = False
        attic.jobs[self.id] = self

    # -- for the job: a link and its session -------------------------------------------------------

    @property
    def session(self) -> Keeper:
        return self

    def wake(self) -> None:
        if self.link:
            self.link.wake()

    def flow(self, number: int, stream: int) -> Flow:
        return self._flows[stream]

    @property
    def spare(self) -> int:
        return self.link.session.spare if self.link else 0

    @spare.setter
    def spare(self, count: int) -> None:
        if self.link:
            self._grown += self.link.session.spare - count
            self.link.session.spare = count

    def tell(self, number: int, kind: int, body: dict[str, Any], offset: int = 0) -> None:
        if kind == Kind.ATTACH:
            self._started, self._since = body, self._loop.time()
            body = self._start()
        elif kind == Kind.EXIT:
            self._exit = body
        if channel := self._channel():
            channel.tell(self.place, kind, body, offset)

    def data(self, number: int, stream: int, payload: bytes) -> None:
        flow = self._flows[stream]
        flow.data(flow.offset, len(payload))
        self._unacked[stream].append(payload)
        if channel := self._channel():
            channel.data(self.place, stream, payload)

    def eof(self, number: int, stream: int) -> None:
        self._flows[stream].ended = True
        if channel := self._channel():
            channel.eof(self.place, stream)

    def stop(self, number: int, stream: int) -> None:
        self._flows[stream].stopped = True
        if channel := self._channel():
            channel.stop(self.place, stream)

    def took(self, number: int, stream: int, taken: int) -> bool:
        """The job has taken so many bytes of its stdin."""
        self._flows[stream].acked = max(self._flows[stream].acked, taken)
        channel, here = self._channel(), taken - self._base[stream]
        return bool(channel and here > 0 and channel.took(self.place, stream, here))

    def _channel(self) -> Any:
        """The session that it is served on, unless the channel has been forgotten there."""
        link = self.link
        return link.session if link and not link.dead and self.place in link.session.channels else None

    # -- for the link: a handler -------------------------------------------------------------------

    def on_frame(self, frame: Frame) -> None:
        stream, kind = frame.stream, frame.kind
        if stream == LIFE and kind == Kind.ACK:
            self._drop(known=True)
            return
        if stream == LIFE and kind == Kind.STOP:
            if frame.offset == GOES_ON:
                self._leave("its client has ended")
                return
            self._drop(known=not self._begun)
        elif stream == LIFE and kind == Kind.SIGNAL:
            frame.offset += self._signals_before
            self._signals = max(self._signals, frame.offset)
        elif kind == Kind.DATA:
            flow = self._flows[STDIN]
            flow.data(flow.offset, len(frame.payload))
        elif kind == Kind.EOF:
            self._flows[STDIN].ended = True
        elif kind == Kind.ACK:
            self._acked(stream, self._base[stream] + frame.offset)
        elif kind == Kind.STOP:
            self._flows[stream].stopped = True
            self._unacked[stream].clear()
        assert self.behind
        self.behind.on_frame(frame)

    def _acked(self, stream: int, offset: int) -> None:
        flow, kept = self._flows[stream], self._unacked[stream]
        more = offset - flow.acked
        flow.ack(offset)
        while more > 0 and kept:  # of a stream that nobody reads nothing is kept
            first = kept.popleft()
            if len(first) > more:
                kept.appendleft(first[more:])
            more -= len(first)

    def on_down(self, why: str) -> None:
        """The lease runs from a break on, and from the death of the opener."""
        if self.behind and not self._exit:
            self.behind.on_down(why)

    def on_up(self) -> None:
        if self.behind:
            self.behind.on_up()

    def on_lost(self, why: str) -> None:
        self._leave(why)

    # -- openers -----------------------------------------------------------------------------------

    def _leave(self, why: str) -> None:
        """The opener has died: the job goes on, if it has begun."""
        self._unplug()
        if self._begun:
            log.info("job %s: goes on for %g s: %s", self.id, self.lease, why)
            self.on_down(why)
            self._timer = self._loop.call_later(self.lease + BEYOND, self._give_up)
            return
        self._drop(known=True)
        if self.behind:
            self.behind.on_lost(why)

    @property
    def refused(self) -> bool:
        """Whether its record says that nothing was started."""
        return self._exit is not None and self._exit.get("state") in ("unreachable", "denied")

    @property
    def waits(self) -> bool:
        """Whether it waits for its turn."""
        return not getattr(self.behind, "begun", True)

    @property
    def _begun(self) -> bool:
        return not self.waits and not self.refused

    def adopt(self, link: Link, number: int) -> None:
        """Serve the job on another channel. The bytes that were not acknowledged come again there."""
        log.info("job %s: is adopted", self.id)
        self._unplug()
        if self._timer:
            self._timer.cancel()
        self.link, self.place = link, number
        self._base = [flow.acked for flow in self._flows]
        taken = self._flows[STDIN]
        self._base[STDIN] = taken.offset
        self._signals_before = self._signals
        self._adopted = True
        self.on_up()
        if self._started is not None:
            link.session.tell(number, Kind.ATTACH, self._start())
        for stream in (STDOUT, STDERR):
            for payload in self._unacked[stream]:
                link.session.data(number, stream, payload)
            if self._flows[stream].ended:
                link.session.eof(number, stream)
        if self._exit:
            link.session.tell(number, Kind.EXIT, self._exit)
        link.wake()

    def _start(self) -> dict[str, Any]:
        """The body of the frame that tells of its start: see `kept_facts`."""
        assert self._started is not None
        if not self._adopted:
            return self._started
        over = self._flows[STDIN].ended or self._flows[STDIN].stopped or self._exit is not None
        facts = {"base": self._base, "input": not over, "seconds": round(self._loop.time() - self._since, 3)}
        return {**self._started, "kept": facts}

    def _unplug(self) -> None:
        link, self.link = self.link, None
        if link and not link.dead:
            link.session.spare += self._grown
            link.forget(self.place)
        self._grown = 0

    def _give_up(self) -> None:
        self._drop(known=False)

    def _drop(self, known: bool) -> None:
        self._unplug()
        if self._timer:
            self._timer.cancel()
        self._attic.drop(self, known)


def way(job: Job) -> tuple[object, int]:
    """Return the link to the opener of a job, None if there is none now, and its channel there."""
    link: object = job.link
    return (link.link, link.place) if isinstance(link, Keeper) else (link, job.number)
