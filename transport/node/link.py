"""A link: one session driven over one connection or, for a line to another node, over one after another.

Laws
1. A link dies once, with one reason, and tells every channel that was open on it. A line whose connection ends is only
   down: it keeps its channels, and tells them of that, until the next connection is made.
2. A peer's bytes can at worst end its own link: a ProtocolError closes it, a defect of this program closes it and is
   logged with its traceback; the node goes on.
3. Not more than one scheduling round waits outside the session, so control never queues behind bulk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from transport.carrier.duplex import ClientDuplex, Duplex
from transport.carrier.handshake import Greeter
from transport.errors import LinkLost, ProtocolError
from transport.node.connection import LinkConnection
from transport.wire.frames import VIEWED, Frame, Kind, described
from transport.wire.resume import GOODBYE, Line
from transport.wire.session import Session
from transport.wire.states import Asker

log = logging.getLogger("quine.link")

HEARTBEAT = 3.0  # seconds between pings; keeps idle timeouts of sshd and of middle boxes away, too
SILENCE = 12.0  # seconds without a byte after which a connection is dead
LINGER = 2.0  # seconds for the other end to hear a goodbye and hang up: sshd drops what it holds when we do
SLICE = 0.002  # seconds of one turn of the loop for the frames of one link: a flood of small ones would take it all
COMPLAINTS = 20  # log lines about the other end of one link
ROUND = 128 * 1024  # bytes handed to the duplex at a time: two frames, four packets of ssh

if TYPE_CHECKING:
    from transport.spawn import Template


class Handler(Protocol):
    """The object behind a channel, which handles its frames."""

    def on_frame(self, frame: Frame) -> None: ...

    def on_down(self, why: str) -> None:
        """The link has lost its connection. Frames that are sent now wait for the next one."""

    def on_up(self) -> None:
        """The link has a connection again, and nothing was lost."""

    def on_lost(self, why: str) -> None:
        """The link is gone. Nothing more can be sent on this channel."""


class Counters:
    """Statistics of a link over all its connections, for display: bytes in and out, frames in, reconnects."""

    __slots__ = ("bytes_in", "bytes_out", "frames_in", "reconnects", "rtt")

    def __init__(self) -> None:
        self.bytes_in = self.bytes_out = self.frames_in = self.reconnects = 0
        self.rtt = 0.0  # seconds of the latest ping

    def to_json(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}


class Link:
    """One end of a live link. `start` gives it its only connection, `connect` a line's next one."""

    def __init__(
        self,
        session: Session,
        name: str,
        on_open: Callable[[Link, Frame], Handler],
        on_lost: Callable[[Link, str], None],
        on_down: Callable[[Link, str], None] | None = None,
    ) -> None:
        self.session = session
        session.share(VIEWED)
        self.line = session if isinstance(session, Line) else None
        self.name = name
        self.handlers: dict[int, Handler] = {}
        self.dead = ""
        self.down = ""  # the reason why a line has no connection at the moment, or ""
        self.counters = Counters()
        self.connection: LinkConnection | None = None
        self._on_open = on_open
        self._on_lost = on_lost
        self._on_down = on_down
        self._owes = 0.0
        self.parted: asyncio.Future[None] | None = None  # after `close`: done once the connection is closed
        self._complaints = 0
        self._held = False  # its frames wait for room on the link that they go to
        self._roomy: dict[
            Callable[[], None], Asker | None
        ] = {}  # called once this link has room for that asker
        self._flush_due = False
        self._frames: Iterator[Frame] | None = None  # received frames that are not handled yet
        self._backlog = bytearray()  # bytes received meanwhile
        self._quiet = 0  # heartbeats since the last byte, not seconds: a stopped process does not listen
        self._loop = asyncio.get_running_loop()
        self.idle_since = self.down_since = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def remote(self) -> bool:
        """True for a link to another machine: it has heartbeats, and outlives its connection."""
        return self.line is not None

    def status(self) -> dict[str, Any]:
        """State of the link and the amount queued on it, for display."""
        facts: dict[str, Any] = {"name": self.name, "up": not self.down, **self.counters.to_json()}
        if self.line:
            facts |= {"link": self.line.name, "kept": self.line.kept}
        if self.down:
            facts |= {"why": self.down, "down": round(self._loop.time() - self.down_since, 3)}
        windows = [flow.window for channel in self.session.channels.values() for flow in channel.flows]
        largest = max(windows, default=0)
        return {
            **facts,
            "channels": len(self.session.channels),
            "window": largest,
            "queued": self.session.pending,
        }

    def complain(self, of: str) -> None:
        """Log a line about the other end, at most COMPLAINTS of them: a peer must not fill our disk."""
        self._complaints += 1
        if self._complaints <= COMPLAINTS:
            log.warning("%s: %s", self.name, of)

    @property
    def dialled(self) -> bool:
        """True if this node dialled: the other end serves, and sends requests only for jobs that it runs for us."""
        return self.line is not None and self.line.opener

    # -- connections -------------------------------------------------------------------------------

    def start(self, duplex: Duplex) -> None:
        """Begin with a client of this machine. Bytes that came before are delivered now."""
        self._carry(duplex)
        self.wake()

    def connect(self, greeter: Greeter) -> None:
        """Go on over a new connection on which the greetings have been exchanged."""
        assert self.line and not self.dead
        try:
            again = self.line.join(greeter.handshake)
        except ProtocolError as error:
            greeter.duplex.close()
            self.fail(f"protocol error: {error}")
            return
        was_down, self.down = self.down, ""
        if greeter.lost is None:
            self._carry(greeter.duplex)
        if self.connection and again:
            self._write(self.connection, again)
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        if was_down:
            self.counters.reconnects += 1
            seconds = self._loop.time() - self.down_since
            log.info(
                "%s: link is back after %.1f s, %d bytes again", self.name, seconds, sum(map(len, again))
            )
            self._tell_handlers(lambda handler: handler.on_up())
        self.received(b"")  # handle the frames that came with the greeting
        self.wake()
        if greeter.lost is not None:
            self.cut(greeter.lost)

    def _carry(self, duplex: Duplex) -> None:
        self.connection = LinkConnection(self, duplex)
        duplex.attach(self.connection)

    def cut(self, why: str) -> None:
        """The connection has ended, or is treated as ended: a line is down then, any other link is dead."""
        if self.dead or self.down:
            return
        if self.line is None or self._on_down is None or self.line.over:
            self.fail(why or "the connection was closed")
            return
        self.down = why or "the connection was closed"
        self.down_since = self._loop.time()
        log.info("%s: link is down: %s", self.name, self.down)
        self._let_go()
        self._tell_handlers(lambda handler: handler.on_down(self.down))
        self._on_down(self, self.down)

    def _let_go(self) -> None:
        if self._timer:
            self._timer.cancel()
        connection, self.connection = self.connection, None
        self._frames = None
        self._backlog.clear()
        if connection:
            connection.duplex.close()

    def _tell_handlers(self, tell: Callable[[Handler], None]) -> None:
        for handler in list(self.handlers.values()):
            try:
                tell(handler)
            except Exception:
                log.exception("%s: defect while a link changed", self.name)

    # -- bytes -------------------------------------------------------------------------------------

    def received(self, data: bytes) -> None:
        if self.dead:
            return
        self._quiet = 0
        self.counters.bytes_in += len(data)
        if self._frames is None:
            self._frames = self.session.receive(data)
            self._work(self.connection)
        else:
            self._backlog += data

    def _work(self, connection: LinkConnection | None) -> None:
        """Handle the frames of this connection for a slice of time; the rest follows in the next turns of the loop."""
        if self._held:
            return
        until = self._loop.time() + SLICE
        try:
            while self._frames is not None and self.connection is connection:
                for frame in self._frames:
                    self.counters.frames_in += 1
                    self._dispatch(frame)
                    if self.dead:
                        return
                    if connection and self._held:
                        connection.fall_behind()
                        self.flush()
                        return
                    if connection and self._loop.time() > until:
                        self._work_later(connection)
                        return
                self._frames = self.session.receive(bytes(self._backlog)) if self._backlog else None
                self._backlog.clear()
            if self.line and self.line.over:
                self.fail("the other end has ended the link")
            elif self.line and self.line.pong >= 0:
                self.counters.rtt = max(0.0, self._loop.time() - self.line.pong / 1e6)
                self.line.pong = -1
        except ProtocolError as error:
            self.fail(f"protocol error: {error}")
        except Exception:
            log.exception("%s: defect while handling a frame", self.name)
            self.fail("a defect in quine; see the node's log")
        else:
            self.flush()
            if connection:
                connection.caught_up()

    def _work_later(self, connection: LinkConnection) -> None:
        """Read no more until the backlog is handled: a flooding peer waits for the others, not they for it."""
        connection.fall_behind()
        self.flush()
        self._loop.call_soon(self._work, connection)

    def hold(self) -> None:
        """Handle no more frames until `release`: the link that their bodies go to has no room."""
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._loop.call_soon(self._work, self.connection)

    def when_roomy(self, tell: Callable[[], None], asker: Asker | None) -> None:
        """Have `tell` called once, when this link has room for bodies of `asker`, or has ended."""
        if self.dead:  # nothing will ever change its room
            tell()
        else:
            self._roomy[tell] = asker

    def _tell_roomy(self) -> None:
        for tell, asker in list(self._roomy.items()):
            if self.dead or not self.session.crowded(asker):
                del self._roomy[tell]
                tell()

    def _dispatch(self, frame: Frame) -> None:
        if log.isEnabledFor(logging.DEBUG):
            log.debug("< %s %r", self.name, frame)
        if frame.kind in (Kind.SPAWN, Kind.REQUEST):
            self.handlers[frame.channel] = self._on_open(self, frame)
            return
        handler = self.handlers.get(frame.channel)
        if frame.channel not in self.session.channels:
            self.forget(frame.channel)
        if handler:
            handler.on_frame(frame)

    def flush(self) -> None:
        self._flush_due = False
        if self._roomy:
            self._tell_roomy()
        connection = self.connection
        if connection is None:
            return
        words = self.line.beside() if self.line else []
        while (
            not connection.paused and self.connection is connection and (chunks := self.session.pull(ROUND))
        ):
            self._write(connection, words + chunks)  # in one packet: a packet costs more than its bytes
            words = []
        if words:
            self._write(connection, words)

    def _write(self, connection: LinkConnection, chunks: list[bytes]) -> None:
        if log.isEnabledFor(logging.DEBUG):
            for frame in described(chunks):
                log.debug("> %s %s", self.name, frame)
        self.counters.bytes_out += sum(map(len, chunks))
        connection.duplex.writelines(chunks)

    # -- for the node ------------------------------------------------------------------------------

    def open(
        self,
        kind: int,
        body: dict[str, Any],
        handler: Handler,
        asker: Asker | None = None,
        template: Template | None = None,
    ) -> int:
        """Open a channel; see `Session.open`.

        ValueError: the body is too large. LinkLost: the link has ended. Refused: too many channels are open on it.
        """
        if self.dead:
            raise LinkLost(self.dead)
        number = self.session.open(kind, body, asker, template)
        self.handlers[number] = handler
        if self.down:
            handler.on_down(self.down)
        self.wake()
        return number

    def descriptor(self, count: int) -> int:
        """Descriptor number `count` that the client behind this link has sent; the caller owns it from now on."""
        duplex = self.connection.duplex if self.connection else None
        if not isinstance(duplex, ClientDuplex) or count not in duplex.lent:
            raise ProtocolError("lent a descriptor that did not come")
        return duplex.lent.pop(count)

    def forget(self, number: int) -> None:
        """Drop the handler of a channel that the session has forgotten."""
        self.handlers.pop(number, None)
        if not self.handlers:
            self.idle_since = self._loop.time()

    def owe(self, seconds: float) -> None:
        """For `seconds` a line is worth redialling: the other end would go on with a job that was just given up."""
        self._owes = max(self._owes, self._loop.time() + seconds)

    @property
    def needed(self) -> bool:
        """True if the link is worth another connection."""
        untold = self.line is not None and bool(self.line.kept or self.session.has_output)
        return bool(self.handlers) or (untold and self._loop.time() < self._owes)

    def wake(self) -> None:
        """Frames were queued: write them soon, together with others queued in this turn of the loop."""
        if not self._flush_due and not self.dead:
            self._flush_due = True
            self._loop.call_soon(self.flush)

    def close(self, why: str) -> None:
        """End the link by intent, and tell the other end, which then does not wait for the next connection."""
        connection = self.connection
        if self.line and connection and not self.dead:
            connection.duplex.write(GOODBYE)
            self.connection, self.parted = None, self._loop.create_future()
            self._loop.call_later(LINGER, connection.hang_up, self.parted)
        self.fail(why)

    def fail(self, why: str) -> None:
        """End the link and tell every handler."""
        if self.dead:
            return
        self.dead = why
        log.log(logging.INFO if self.remote else logging.DEBUG, "%s: link ended: %s", self.name, why)
        self._let_go()
        self._tell_handlers(lambda handler: handler.on_lost(why))
        self.handlers.clear()
        self._tell_roomy()
        self._on_lost(self, why)

    def _beat(self) -> None:
        if self._quiet * HEARTBEAT >= SILENCE:
            self.cut(f"nothing heard for {SILENCE:.0f} seconds")
            return
        self._quiet += 1
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        if self.line and self.connection:
            words = [self.line.tell_seen(), self.line.ping(int(self._loop.time() * 1e6))]
            self._write(self.connection, words)
        self.flush()
