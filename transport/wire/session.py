"""Both ends of a link as one state machine: which frame may follow, for which job or request, in which order.

Laws
1. Sans-IO: bytes in, frames out, bytes to be written on request. No socket, no clock, no process.
2. Role-blind: both ends keep the same table and move it by the frames they send and by those they
   receive; an illegal move is a missing row, for either end.
3. Control goes first and streams take turns: see `outbox.py`.
4. Each sender chooses its own window, and a node relays for many senders that know nothing of each other. So all
   bodies that the accepting end sends (requests, jobs from afar) have one bound: above ASKED its node holds the
   senders back, and MOST_ASKED ends the link, so their frames are small. `pending` is bounded by that and by the
   windows of the jobs. Each job is held back once it has as much as is left, and goes on by single frames where
   nothing is left. So a job whose client takes nothing does not silence the others.
5. Templates of spawns go from the end that opened the link to the other one: see `templates.py`.
6. A channel is forgotten by its opener when it sends the last frame (exit taken, or nobody waits), and by
   the other end when that frame arrives. Frames on their way to a forgotten channel are dropped; a
   number that was never opened is a violation.

The states of a channel are printed from TABLE by `python -m transport.wire.session`:
opener = the end that sent spawn or request, server = the other end.
"""

from __future__ import annotations

from transport.errors import ProtocolError, Refused
from transport.wire.flow import INITIAL_WINDOW, Flow
from transport.wire.frames import (
    BESIDE,
    GREETING,
    LIFE,
    MAX_PAYLOAD,
    NAMES,
    VERSION,
    Decoder,
    Frame,
    Kind,
    first_frame,
    header,
    pack,
)
from transport.wire.outbox import Outbox
from transport.wire.parts import MAX_OPENING, Parts, cut
from transport.wire.states import (
    ENDED,
    GONE,
    LENT,
    OPENING,
    RUNNING,
    STDERR,
    STDIN,
    STDOUT,
    TABLE,
    Asker,
    Channel,
    diagram,
)
from transport.wire.templates import Templates

__all__ = ["ENDED", "GONE", "OPENING", "RUNNING", "STDERR", "STDIN", "STDOUT", "TABLE"]
__all__ += [
    "ASKED",
    "GOES_ON",
    "MAX_CHANNELS",
    "MAX_CONTROL",
    "MOST_ASKED",
    "Channel",
    "Session",
    "diagram",
    "greeted",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from transport.spawn import Template

MAX_CONTROL = 20_000  # frames queued for a peer that sends but does not read
MAX_CHANNELS = 20_000  # opened by each end of one link: neither makes the other keep more accounts
GROWTH_BUDGET = 32 * 1024 * 1024  # bytes by which all windows of a link may grow together
ASKED = 16 * 1024 * 1024  # bytes under way in all bodies of the accepting end: beyond that its senders wait
GOES_ON = 1  # offset of the frame by which nobody waits for a job: it outlives its client (`Spawn.keep`)
MOST_ASKED = 2 * ASKED  # the receiver ends the link beyond: one frame of each of 256 senders was on its way


class Session:
    """One end of a link. `opener` ends number their channels oddly, the others evenly."""

    def __init__(self, opener: bool, hello: dict[str, Any] | None) -> None:
        """`hello` holds the facts about this end; None where the caller does the greeting (`line`)."""
        self.channels: dict[int, Channel] = {}
        self.peer: dict[str, Any] = {}  # the other end's hello, {} until it came
        self.spare = GROWTH_BUDGET
        self.borrows = False  # the other end may lend us descriptors: it is a client, and we are its node
        self.asked = 0  # bytes of bodies from the accepting end that were not acknowledged
        self._decoder = Decoder()
        if not opener:
            self._decoder.large = (STDIN, STDOUT, STDERR)
        self.opener = opener
        self._next = 1 if opener else 2
        self.highest = 0  # highest channel number the peer opened
        self._theirs = 0  # channels that the peer has opened
        self._templates = Templates()
        self._parts = Parts()
        self._outbox = Outbox()
        if hello is not None:
            self._outbox.control.append(GREETING)
            self._outbox.control.append(first_frame(hello))

    # -- receiving ---------------------------------------------------------------------------------

    def share(self, least: int) -> None:
        """Have payloads of data of `least` bytes be views, see `Decoder`: the caller passes them on."""
        self._decoder.views = least

    def receive(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that concern a job or a request, already accounted for.

        The channel of a frame that ends it is forgotten before the frame is yielded. Raises ProtocolError; the
        link is dead then.
        """
        for frame in self._decoder.feed(data):
            if self._accept(frame):
                yield frame

    def _accept(self, frame: Frame) -> bool:
        kind = frame.kind
        if not self.peer:
            self._greet(frame)
            return False
        if kind in BESIDE:
            raise ProtocolError(f"{NAMES[kind].lower()} where none is due")
        if kind in (Kind.SPAWN, Kind.REQUEST):
            if self.clogged:
                raise ProtocolError("peer asks but does not read")
            return self._opened(frame)
        if kind == Kind.TEMPLATE:
            if self.opener:
                raise ProtocolError("template for the end that has opened the link")
            self._templates.take(frame)
            return False
        channel = self.channels.get(frame.channel)
        if channel is None:
            self._check_known(frame)
            return False
        sender = "server" if channel.mine else "opener"
        state = channel.move(sender, kind, frame.stream)
        if frame.stream != LIFE:
            flow = channel.flows[frame.stream]
            before = flow.offset - flow.acked
            if kind in LENT:
                self._lent(flow, frame)
            else:
                self._account(flow, kind, frame.offset, len(frame.payload))
            self._count(channel, frame.stream, before)
            if self.asked > MOST_ASKED:
                raise ProtocolError(f"more than {MOST_ASKED} bytes of requests at one time")
        if state == GONE:
            self._forget(channel)
        return True

    def _count(self, channel: Channel, stream: int, before: int) -> None:
        """Update the counts after a change of a stream that had `before` bytes under way."""
        if stream == STDIN and channel.mine != self.opener:
            flow = channel.flows[STDIN]
            self._change(channel, flow.offset - flow.acked - before)

    def _change(self, channel: Channel, count: int) -> None:
        self.asked += count
        if channel.asker:
            channel.asker.asked += count

    def crowded(self, asker: Asker | None) -> bool:
        """True if so many bytes of bodies from this end are under way that this asker has to wait (law 4)."""
        left = ASKED - self.asked
        return left <= 0 if asker is None else asker.asked >= max(left, 1)

    @property
    def clogged(self) -> bool:
        """True if more control frames are queued than for any peer that reads: the other end does not read."""
        return len(self._outbox.control) > MAX_CONTROL

    def _greet(self, frame: Frame) -> None:
        self.peer = greeted(frame)

    def _opened(self, frame: Frame) -> bool:
        """Take a spawn or request, or a part of it; True when it is whole."""
        if not self._parts.take(frame):
            return False
        number = frame.channel
        if number <= self.highest or number % 2 == self._next % 2:
            raise ProtocolError(f"channel {number} is not a new one")
        if self._theirs >= MAX_CHANNELS:
            raise ProtocolError("too many channels")
        frame.template = self._templates.named(frame)
        self.highest = number
        self._theirs += 1
        self.channels[number] = Channel(number, mine=False, request=frame.kind == Kind.REQUEST)
        return True

    def _check_known(self, frame: Frame) -> None:
        number = frame.channel
        mine = number % 2 == self._next % 2
        if number == 0 or (mine and number >= self._next) or (not mine and number > self.highest):
            raise ProtocolError(f"{NAMES[frame.kind].lower()} for channel {number}, which was never opened")

    @staticmethod
    def _account(flow: Flow, kind: int, offset: int, length: int) -> None:
        if kind == Kind.DATA:
            if not length:
                raise ProtocolError("data without bytes")  # no window bounds how many of them come
            flow.data(offset, length)
        elif kind == Kind.ACK:
            flow.ack(offset)
        elif kind == Kind.EOF:
            flow.eof(offset)
        elif flow.stopped:
            raise ProtocolError("second stop of a stream")
        else:
            flow.stop()

    def _lent(self, flow: Flow, frame: Frame) -> None:
        if frame.kind == Kind.RETURN:
            before = flow.window
            flow.returned("ours", frame.offset, frame.number("acked"), frame.number("window"))
            self.spare -= flow.window - before
            self._outbox.withdraw_ack(frame.channel, frame.stream)
        elif self.borrows:
            flow.lend("theirs")
        else:
            raise ProtocolError("lend frame to an end that takes no descriptors")

    def _forget(self, channel: Channel, streams: tuple[int, ...] = (STDIN, STDOUT, STDERR)) -> None:
        del self.channels[channel.number]
        self._theirs -= not channel.mine
        if channel.mine != self.opener:
            self._change(channel, channel.flows[STDIN].acked - channel.flows[STDIN].offset)
        self.spare += sum(flow.window - INITIAL_WINDOW for flow in channel.flows)
        self._outbox.forget(channel.number, streams)

    # -- sending -----------------------------------------------------------------------------------

    def open(
        self, kind: int, body: dict[str, Any], asker: Asker | None = None, template: Template | None = None
    ) -> int:
        """Open a channel with SPAWN or REQUEST; returns its number. Its body counts for `asker`, see `crowded`.

        With a `template`, which the first spawn by it brings along, `body` has the other fields alone.
        Too large a body: ValueError. Too many channels: Refused, since the other end would end the link for it.
        """
        if len(self.channels) - self._theirs + len(self._outbox.leaving) >= MAX_CHANNELS:
            detail = f"{MAX_CHANNELS} jobs and requests are open on one connection, which is the limit"
            raise Refused(detail, "start fewer at one time, or set slots in the inventory")
        payload = pack(body, MAX_OPENING)
        by, defined = self._templates.name(template) if template else (0, b"")
        if defined:
            self._outbox.put(Kind.TEMPLATE, 0, 0, by, defined)
        number = self._next
        self._next += 2
        self.channels[number] = Channel(number, mine=True, request=kind == Kind.REQUEST)
        self.channels[number].asker = asker
        for stream, part in cut(payload):
            self._outbox.put(kind, number, stream, 0 if stream else by, part)
        return number

    def tell(self, number: int, kind: int, body: dict[str, Any] | bytes, offset: int = 0) -> None:
        """Send a control frame about a channel: attach, signal, winch, exit, reply."""
        channel = self.channels[number]
        channel.move("opener" if channel.mine else "server", kind, LIFE)
        payload = body if isinstance(body, bytes) else pack(body)
        self._outbox.put(kind, number, LIFE, offset, payload)

    def data(self, number: int, stream: int, payload: bytes) -> None:
        """Queue stream bytes, at most BULK_PAYLOAD. The caller has to respect `credit`."""
        if stream == STDIN and not self.opener and len(payload) > MAX_PAYLOAD:  # law 4
            for at in range(0, len(payload), MAX_PAYLOAD):
                self.data(number, stream, payload[at : at + MAX_PAYLOAD])
            return
        flow = self._move(number, stream, Kind.DATA)
        offset = flow.offset
        flow.data(offset, len(payload))
        self._count(self.channels[number], stream, offset - flow.acked)
        self._outbox.data(number, stream, offset, payload)

    def eof(self, number: int, stream: int) -> None:
        flow = self._move(number, stream, Kind.EOF)
        flow.eof(flow.offset)
        self._outbox.behind_data(number, stream, header(Kind.EOF, number, stream, flow.offset, 0))

    def ack(self, number: int, stream: int, offset: int) -> None:
        flow = self._move(number, stream, Kind.ACK)
        before = flow.offset - flow.acked
        flow.ack(offset)
        self._count(self.channels[number], stream, before)
        self._outbox.ack(number, stream, offset)

    def took(self, number: int, stream: int, offset: int) -> bool:
        """Everything below `offset` was taken; acknowledge it if that is worth a frame. True if it was."""
        flow = self.channels[number].flows[stream]
        if flow.lent or not flow.worth(offset):
            return False
        self.ack(number, stream, offset)
        return True

    def stop(self, number: int, stream: int) -> None:
        flow = self._move(number, stream, Kind.STOP)
        if not flow.stopped:
            flow.stop()
            self._outbox.put(Kind.STOP, number, stream, flow.offset)

    def lend(self, number: int, stream: int, offset: int, body: dict[str, Any]) -> None:
        """The receiver of our descriptor moves the bytes of a stream from `offset` on, until it sends RETURN."""
        self._move(number, stream, Kind.LEND).lend("ours")
        if (acked := self._outbox.withdraw_ack(number, stream)) is not None:
            self._outbox.put(Kind.ACK, number, stream, acked)  # sent after the RETURN it would be out of date
        self._beside_data(number, stream, Kind.LEND, offset, pack(body))

    def give_back(self, number: int, stream: int, moved: int, body: dict[str, Any]) -> None:
        """This end has moved `moved` bytes of a stream; `body` says how far they are acknowledged, and the window."""
        flow = self._move(number, stream, Kind.RETURN)
        before = flow.offset - flow.acked
        flow.returned("theirs", moved, body["acked"], 0)
        self._count(self.channels[number], stream, before)
        self._outbox.withdraw_ack(number, stream)  # RETURN carries it
        self._beside_data(number, stream, Kind.RETURN, moved, pack(body))

    def _beside_data(self, number: int, stream: int, kind: int, offset: int, payload: bytes) -> None:
        """Queue a control frame, behind the data of its stream where this end sends that data."""
        words = header(kind, number, stream, offset, len(payload)) + payload
        if self.channels[number].mine == (stream == STDIN):
            self._outbox.behind_data(number, stream, words)
        else:
            self._outbox.control.append(words)

    def last_word(self, number: int) -> None:
        """Opener: the exit record was taken; forget the channel."""
        channel = self.channels[number]
        channel.move("opener", Kind.ACK, LIFE)
        self._outbox.put(Kind.ACK, number, LIFE, 0)
        self._forget(channel)

    def abandon(self, number: int, offset: int = 0) -> None:
        """Opener: nobody waits for this channel any more; the other end is to end it, or to keep it: see `offset`.

        A request whose body is whole counts all the same, so the part of it that is still queued goes first.
        """
        channel = self.channels[number]
        channel.move("opener", Kind.STOP, LIFE)
        whole = channel.request and channel.flows[STDIN].ended
        if whole and self._outbox.has_data(number, STDIN) and self.pending <= GROWTH_BUDGET:
            self._outbox.stop_behind_data(number)
            self._forget(channel, (STDOUT, STDERR))
        else:
            self._outbox.put(Kind.STOP, number, LIFE, offset)
            self._forget(channel)

    def flow(self, number: int, stream: int) -> Flow:
        return self.channels[number].flows[stream]

    def _move(self, number: int, stream: int, kind: int) -> Flow:
        channel = self.channels[number]
        channel.move("opener" if channel.mine else "server", kind, stream)
        return channel.flows[stream]

    def pull(self, limit: int) -> list[bytes]:
        """Next bytes to write, control first, then streams in turn, until `limit` bytes are reached.

        [] means there is nothing to write. The result exceeds `limit` by one frame at most.
        """
        return self._outbox.pull(limit)

    @property
    def has_output(self) -> bool:
        return bool(self._outbox)

    @property
    def pending(self) -> int:
        """Bytes of stream data waiting in `pull`."""
        return self._outbox.pending


def greeted(frame: Frame) -> dict[str, Any]:
    """The other end's hello, which has to be its first frame."""
    if frame.kind != Kind.HELLO:
        raise ProtocolError("first frame is not a hello")
    hello = frame.body()
    if hello.get("version") != VERSION:
        raise ProtocolError(f"protocol version {str(hello.get('version'))[:40]}, this is {VERSION}")
    return hello


if __name__ == "__main__":
    print(diagram())
