"""One of the two channels of a relay, and the relay as its sides and what is lent to it see it."""

from __future__ import annotations

from transport.lean import Protocol
from transport.status import Status
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import ENDED, GOES_ON, STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.node.link import Link
    from transport.wire.states import Asker


class Passage(Protocol):
    """`transport.node.relay.Relay`."""

    near: Side
    far: Side | None
    lease: float
    keep: bool
    request: bool
    asker: Asker | None

    def from_side(self, side: Side, frame: Frame) -> None: ...
    def down(self, side: Side, why: str) -> None: ...
    def up(self, side: Side) -> None: ...
    def lost(self, side: Side, why: str) -> None: ...


class Side:
    """Handler of the relay's channel on one of its two links."""

    def __init__(self, relay: Passage, link: Link, number: int) -> None:
        self.relay = relay
        self.link = link
        self.number = number

    def on_frame(self, frame: Frame) -> None:
        self.relay.from_side(self, frame)

    def on_down(self, why: str) -> None:
        self.relay.down(self, why)

    def on_up(self) -> None:
        self.relay.up(self)

    def on_lost(self, why: str) -> None:
        self.relay.lost(self, why)

    def pass_on(self, frame: Frame) -> None:
        """Send a frame of the other side on this one."""
        session, number = self.link.session, self.number
        if self.link.dead or number not in session.channels:
            return  # its end is on the way to the other side, or the last frame was sent
        kind, stream = frame.kind, frame.stream
        if kind == Kind.DATA:
            session.data(number, stream, frame.payload)
        elif kind == Kind.EOF:
            session.eof(number, stream)
        elif stream == LIFE and kind == Kind.ACK:
            session.last_word(number)
            self.link.forget(number)
        elif stream == LIFE and kind == Kind.STOP:
            self.abandon(frame.offset == GOES_ON)
        elif kind == Kind.ACK:
            session.ack(number, stream, frame.offset)
        elif kind == Kind.STOP:
            session.stop(number, stream)
        else:
            session.tell(number, kind, frame.payload, frame.offset)
        self.link.wake()

    def abandon(self, goes_on: bool = False) -> None:
        if not self.link.dead and self.number in self.link.session.channels:
            self.link.session.abandon(self.number, GOES_ON if goes_on else 0)
            self.link.owe(self.relay.lease)
            self.link.forget(self.number)
            self.link.wake()

    def note(self, facts: dict[str, object]) -> None:
        """Send this side a note about its job (state of the link behind it, or a text), unless it is over."""
        channel = self.link.session.channels.get(self.number)
        if not self.link.dead and channel and not channel.request:
            self.link.session.tell(self.number, Kind.NOTE, facts)
            self.link.wake()

    def finish(self, status: Status) -> None:
        """End this side's channel with `status`, which this node made."""
        session = self.link.session
        channel = session.channels.get(self.number)
        if self.link.dead or channel is None or channel.state == ENDED:
            return
        if channel.request:
            session.tell(self.number, Kind.REPLY, {"error": status.detail, "lost": status.state == "lost"})
        else:
            session.tell(self.number, Kind.EXIT, status.to_json())
        for stream in (STDOUT, STDERR):
            if not channel.flows[stream].ended:
                session.eof(self.number, stream)
        self.link.wake()
