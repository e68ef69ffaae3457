"""A relay continues a channel of one link on another, bytes and control unchanged.

Laws
1. A relay keeps nothing but the frames that wait for a link being dialled: windows are end to end, so the waiting
   bytes are bounded by the window of each stream.
2. A relay adds one thing: the name under which this node knows the host, as a job starts and in its exit record.
3. Jobs that a job over there has asked for end with it: its right to ask was its own.
4. When one side's link ends, the other side is told the truth: a job whose opener is gone is abandoned; a
   job whose node is gone is lost, and is reported as lost.
5. A link that is down has not ended: its opener is told, and waits. A job is given up here when its lease is over,
   and the node over there ends it at that time, too.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from transport import quickjson
from transport.errors import ProtocolError
from transport.lean import Protocol
from transport.node.lending import Lending
from transport.node.side import Side
from transport.spawn import LEASE
from transport.status import LOST, NO_ANSWER, NOT_STARTED, Status
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import ASKED, OPENING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from transport.node.link import Link
    from transport.spawn import Template
    from transport.wire.states import Asker


MAX_ASKED = 1024  # requests of one job that are open; each of its agents asks one after the other
LONG = 10.0  # seconds until a client is told again that its link is down, or that it waits for a slot


class Watcher(Protocol):
    """`transport.node.slots.Slots`."""

    def started(self, relay: Relay) -> None:
        """The job was started over there."""

    def exiting(self, relay: Relay) -> None:
        """The exit record of the job is about to be passed on."""

    @property
    def begun(self) -> int:
        """Jobs of the host that have started and not ended."""


class Relay:
    """One channel from the link that opened it (near) to the link that serves it (far).

    Of more than 30 attributes CPython keeps a dict of its own for each relay, and a flood of requests takes twice as
    much memory.
    """

    def __init__(self, link: Link, number: int, host: str, on_end: Callable[[Relay], None]) -> None:
        self.near = Side(self, link, number)
        self.far: Side | None = None
        self.host = host
        self.pid = 0
        self.started = False
        self.request = False
        self.ended = False
        self.on_end = on_end
        self.watcher: Watcher | None = None  # the slots of its host
        self.lease = LEASE  # seconds that its job outlives a link that is down
        self.asker: Asker | None = None  # the account of the job here that asks: its share of the room
        self.facts: dict[str, object] = {}  # of the job, for display; {} for internal ones
        self.since = 0.0
        self.queued = False  # it waits for a slot
        self.keep = False  # its job outlives its client
        self.late = False  # its caller keeps jobs until there is room
        self._withdrawn = False
        self._asked = 0  # requests of its job that are open
        self._down_since = 0.0
        self._timers: list[asyncio.TimerHandle] = []
        # Of a job on another host: its placement (group, tree, context), and the jobs that it has asked for.
        self.group = ""
        self.tree = ""
        self.context: dict[str, Any] = {}
        self.size = 0  # bytes of its spawn, if another job asked for it
        self.parent: Relay | None = None
        self.children: dict[Relay, None] = {}  # in their order
        self._early: list[Frame] = []
        self._lending: Lending | None = None
        self._exit: Frame | None = None  # held until the output before it was passed on

    def connect(
        self, link: Link, kind: int, body: dict[str, object], template: Template | None = None
    ) -> None:
        """Open the far side and pass on the frames so far. Raises the errors of `Link.open`."""
        self.request = kind == Kind.REQUEST
        far = Side(self, link, 0)
        far.number = link.open(kind, body, far, self.asker, template)
        self.far = far
        for frame in self._early:
            far.pass_on(frame)
        self._early.clear()

    def asked(self, request: Relay) -> None:
        """Count an open request of the relay's job. ProtocolError for a flood, which the client would have to hold."""
        self._asked += 1
        if self._asked > MAX_ASKED:
            raise ProtocolError(f"more than {MAX_ASKED} requests of one job at one time")
        request.on_end = self._answered

    def may_have(self, size: int) -> bool:
        """True if the job may ask for one more job with a spawn of `size` bytes: spawns are kept until started."""
        waiting = sum(child.size for child in self.children if not child.started)
        return len(self.children) < MAX_ASKED and waiting + size <= ASKED

    def _answered(self, _: Relay) -> None:
        self._asked -= 1

    def from_side(self, side: Side, frame: Frame) -> None:
        """A frame came in on `side`: send it on the other one."""
        if frame.kind == Kind.LEND:
            self._lend(side, frame)
            return
        if self._lending and self._lending.handles(side, frame):
            return
        if frame.stream == LIFE and frame.payload:
            frame.body()  # a malformed body must end the link that it came on, not the one that it goes to
        if side is self.far:
            if frame.kind == Kind.ATTACH:
                self.started = True
                self.pid = frame.number("pid")
                if self.watcher:
                    self.watcher.started(self)
                if self.host:
                    kept = {name: value for name, value in frame.body().items() if name == "kept"}
                    frame.payload = quickjson.dumps({"pid": self.pid, "host": self.host, **kept}).encode()
            elif frame.kind == Kind.EXIT:
                if self._withdrawn and not self.started:
                    self.near.note({"full": True, "host": self.host})
                frame.payload = self._named(frame)
            elif frame.kind == Kind.NOTE and side.link.dialled:
                raise ProtocolError("note from another node")  # this node alone notes the state of its links
            if frame.kind in (Kind.EXIT, Kind.REPLY):
                self._exit = frame
            else:
                self.near.pass_on(frame)
        elif frame.kind == Kind.NOTE:
            self._withdraw(frame)
        elif self.far:
            self.far.pass_on(frame)
            far, here = self.far.link, not side.link.remote
            if frame.kind == Kind.DATA and here and far.session.crowded(self.asker):
                side.link.hold()
                far.when_roomy(side.link.release, self.asker)
        else:
            self._early.append(frame)
        self._pass_exit()
        if frame.stream == LIFE and frame.kind in (Kind.ACK, Kind.STOP):
            self.end()

    def _withdraw(self, frame: Frame) -> None:
        """The caller wants the job back, if it has not begun at the host that it names; `true` is any host."""
        if self.ended or self.started or frame.body().get("withdraw") not in (True, self.host):
            return
        if self.far:
            self._withdrawn = True  # its node says in its exit record that it did not begin
            self.far.pass_on(frame)
            return
        self.near.note({"full": True, "host": self.host})
        self.refuse(Status("unreachable", NOT_STARTED, host=self.host, detail="withdrawn before it was sent"))
        self.end()

    def _lend(self, side: Side, frame: Frame) -> None:
        if self.ended or self.far is None:
            os.close(side.link.descriptor(frame.number("fd")))
            return
        if self._lending is None:
            self._lending = Lending(self)
        self._lending.lend(side, frame)

    def _pass_exit(self) -> None:
        """Pass on a held exit record once the output has ended; earlier it could hide a loss of the rest."""
        if self._exit and self.far:
            channel = self.far.link.session.channels.get(self.far.number)
            if channel is None or channel.finished:
                if self.watcher:
                    self.watcher.exiting(self)
                self.near.pass_on(self._exit)
                self._exit = None
                if self.keep:
                    self._leave_slot()

    def _leave_slot(self) -> None:
        """The job is over; its record waits over there for the client, which may take long."""
        self.facts = {}
        on_end, self.on_end = self.on_end, lambda _: None
        on_end(self)

    def _named(self, frame: Frame) -> bytes:
        """The exit record, checked and with our name for the host in it."""
        try:
            status = Status.of_exit(frame.body(), self.started)
        except ValueError as error:
            raise ProtocolError(f"exit frame without a status: {error}") from None
        status.host = self.host or status.host
        return quickjson.dumps(status.to_json()).encode()

    def status(self) -> dict[str, object]:
        """The job, its state and the state of its link, for display."""
        now = asyncio.get_running_loop().time()
        link = self.far.link if self.far else None
        state = "running" if self.started else "queued" if self.queued else "connecting"
        return {
            **self.facts,
            "host": self.host or self.facts.get("host"),
            "state": state,
            "far": self.pid,
            "client": self.near.link.session.peer.get("pid"),
            "seconds": round(now - self.since, 3),
            "down": round(now - link.down_since, 3) if link and link.down else 0,
        }

    def down(self, side: Side, why: str) -> None:
        """A link has lost its connection; the end that dialled it dials again."""
        if side is self.near or self.request or self.ended:
            return  # the opener waits; the serving node has a lease of its own
        loop = asyncio.get_running_loop()
        self._down_since = loop.time()
        self._note(False, why)
        self._timers = [
            loop.call_later(LONG, self._note, False, why),
            loop.call_later(self.lease, self._give_up, why),
        ]

    def up(self, side: Side) -> None:
        if self._timers and side is self.far:
            self._stop_timers()
            self._note(True, "")

    def _note(self, up: bool, why: str) -> None:
        seconds = asyncio.get_running_loop().time() - self._down_since
        left = round(max(0.0, self.lease - seconds), 3)
        note = {"up": up, "seconds": round(seconds, 3), "left": left, "why": why[:200], "host": self.host}
        self.near.note(note)

    def tell(self, text: str) -> None:
        """Send the user of the near side a text about the host."""
        self.near.note({"text": text, "host": self.host})

    def _give_up(self, why: str) -> None:
        """The lease is over: give the job up. The node over there is told to end it when the link comes back."""
        if self.far and not self.ended:
            self.far.abandon()
            self.lost(self.far, f"{why}, for longer than the lease of {self.lease:g} s")

    @property
    def unanswered(self) -> bool:
        """Whether the job was sent to its host, which has told neither of its start nor of its end."""
        channel = self.far.link.session.channels.get(self.far.number) if self.far and not self.ended else None
        return channel is not None and channel.state == OPENING

    def give_up_start(self, seconds: float) -> None:
        """The host has not answered in so many seconds."""
        if self.far:
            self.far.abandon()
        detail = f"{NO_ANSWER} for {seconds:g} s; the command was sent, whether it was started is not known"
        self.refuse(Status("lost", LOST, host=self.host, detail=detail))
        self.end()

    def _stop_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers = []

    def lost(self, side: Side, why: str) -> None:
        if side is self.near:
            if self.far:
                self.far.abandon(goes_on=self.keep)
        else:
            if self.request:
                known = "the request may have been answered"
            elif self._exit:
                known = "the command has ended, its output is incomplete"
            elif self.started:
                known = f"the command was started (pid {self.pid}), its outcome is not known"
            else:
                known = "the command was sent, whether it was started is not known"
            detail = f"connection lost: {why}; {known}"
            self.refuse(Status("lost", LOST, host=self.host, pid=self.pid, detail=detail))
        self.end()

    def refuse(self, status: Status) -> None:
        """Tell the near side how the job or request ended, in place of the far side."""
        if self._lending:
            self._lending.return_outputs()
        self.near.finish(status)

    def end(self) -> None:
        """End the relay; later calls change nothing."""
        self._stop_timers()
        self._exit = None  # drop a held record: the near side was told another end
        if not self.ended:
            self.ended = True
            if self._lending:
                self._lending.close()
            for child in list(self.children):
                child.revoke("the job that asked for it has ended")
            if self.parent:
                self.parent.children.pop(self, None)
            self.on_end(self)

    def revoke(self, why: str) -> None:
        """Withdraw the job or request: abandon it on the far side, and tell the near side that it is lost."""
        if self.far:
            self.far.abandon()
        self.refuse(Status("lost", LOST, host=self.host, pid=self.pid, detail=f"{why}; it is being ended"))
        self.end()
