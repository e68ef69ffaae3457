"""A line: a session between two nodes that outlives its connections. A new connection resends the lost bytes.

Laws
1. Sans-IO, as the session it is: bytes in, frames out. The caller brings one connection after another.
2. All frames but those about one connection (hello, ping, seen, bye) are one stream of bytes for each direction,
   counted from the link's beginning. Bytes that the other end has not seen are kept, at most KEEP, and sent again
   after a break. So nothing is lost and nothing comes twice, whatever kind of frame it is.
3. Seen is not taken: flow control belongs to the windows, end to end. Bytes that are seen survive a break.
4. Frames about the connection are never held back: even when both ends are full, each can say how much it has seen.

A connection begins with GREETING, both ways at once. The dialling end sends HELLO with the link's name, how much of
the other end's stream it has seen, and the number of this attempt. The served end then sends its own HELLO: it has to
know first which link is meant. A HELLO can be under way for longer than that of a later attempt. The served end takes
no attempt after a later one, because that would end the good connection and bring an old count. The dialling end's
HELLO may also name the lock that makes its node the only one (origin), and since when the node has it (began).
"""

from __future__ import annotations

from collections import deque

from transport.errors import ProtocolError
from transport.wire.frames import BESIDE, HEADER_SIZE, VERSION, Decoder, Frame, Kind, encode, header, pack
from transport.wire.session import Session, greeted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEEP = 8 * 1024 * 1024  # bytes of one direction under way: 80 MB/s at 100 ms; a break sends no more again
QUANTUM = 512 * 1024  # bytes received for each SEEN frame
MAX_WORDS = 10_000  # frames about the connection between two heartbeats of ours: 800 MB/s need so many
ASKS, ANSWERS = 0, 1  # streams of a ping
NO_PAYLOAD = b"\0\0\0\0"
GOODBYE = header(Kind.BYE, 0, 0, 0, 0)


class Handshake:
    """The first frames of one connection. `peer` is the other end's hello, {} until it came."""

    def __init__(self) -> None:
        self.decoder = Decoder()
        self.peer: dict[str, Any] = {}

    def feed(self, data: bytes) -> bool:
        """True when the hello is there; the bytes behind it stay in `decoder`. Raises ProtocolError."""
        for frame in self.decoder.feed(data):
            self.peer = greeted(frame)
            name, seen, attempt = (self.peer.get(key) for key in ("link", "seen", "attempt"))
            if not (isinstance(name, str) and len(name) == 32 and name.isalnum()):
                raise ProtocolError("hello without a link")
            if type(seen) is not int or seen < 0:
                raise ProtocolError("hello with a bad count of seen bytes")
            if type(attempt) is not int or attempt < 0:
                raise ProtocolError("hello without the number of its attempt")
            if "origin" in self.peer:
                origin, began = self.peer["origin"], self.peer.get("began")
                if not isinstance(origin, str) or type(began) is not int:
                    raise ProtocolError("hello with a bad origin")
            break
        return bool(self.peer)


def hello(facts: dict[str, Any], name: str, seen: int, resume: bool, attempt: int = 0) -> bytes:
    """The HELLO frame of a connection: `facts` of this node, and where the link `name` stands.

    `attempt` numbers the dials of one link, from 0; the served end repeats it.
    """
    body = {"version": VERSION, **facts, "link": name, "seen": seen, "resume": resume, "attempt": attempt}
    return encode(Frame(Kind.HELLO, payload=pack(body)))


class Line(Session):
    """One end of a link between nodes, joined over one connection after another."""

    def __init__(self, opener: bool, name: str) -> None:
        super().__init__(opener, None)
        self.name = name
        self.received = 0  # counted bytes of the other end that have arrived in whole frames
        self.sent = 0  # counted bytes given to a connection for the first time
        self.seen = 0  # the part of these that the other end has said it received
        self.pong = -1  # nonce of the latest answer to a ping of ours
        self.over = False  # the other end has said bye
        self.attempt = 0  # number of the latest dial, here or taken from the other end
        self._kept: deque[bytes] = deque()
        self._acknowledged = 0
        self._answer = -1  # nonce of a ping to be answered, -1: none; many at once are answered once
        self._words = 0  # frames about the connection since our latest ping

    @property
    def kept(self) -> int:
        """Bytes that would be sent again."""
        return self.sent - self.seen

    def join(self, handshake: Handshake) -> list[bytes]:
        """Go on over a new connection whose hello has come; returns the chunks to be sent again."""
        before, self._decoder = self._decoder, handshake.decoder
        self._decoder.views, self._decoder.large = before.views, before.large
        self.peer = handshake.peer
        self._answer, self._acknowledged, self._words = -1, self.received, 0
        self._saw(handshake.peer["seen"])
        return list(self._kept)

    def _accept(self, frame: Frame) -> bool:
        if frame.kind not in BESIDE:
            self.received += HEADER_SIZE + len(frame.payload)
            return super()._accept(frame)
        self._words += 1
        if self._words > MAX_WORDS:
            raise ProtocolError("a flood of words about the connection")
        if frame.kind == Kind.SEEN:
            self._saw(frame.offset)
        elif frame.kind == Kind.BYE:
            self.over = True
        elif frame.kind == Kind.HELLO:
            raise ProtocolError("second hello")
        elif frame.stream == ASKS:
            self._answer = frame.offset
        else:
            self.pong = frame.offset
        return False

    def _saw(self, offset: int) -> None:
        """The other end has everything below `offset`: forget it."""
        if not self.seen <= offset <= self.sent:
            raise ProtocolError(f"{offset} bytes seen, outside {self.seen}..{self.sent}")
        kept = self._kept
        while self.seen < offset:
            chunk = kept.popleft()
            self.seen += len(chunk)
            if len(chunk) == HEADER_SIZE and chunk[:4] != NO_PAYLOAD:
                self.seen += len(kept.popleft())  # a header and its payload are one frame, and two chunks
        if self.seen != offset:
            raise ProtocolError(f"{offset} bytes seen, which is in the middle of a frame")

    def beside(self) -> list[bytes]:
        """Frames about the connection that are due now."""
        out = []
        if self._answer >= 0:
            out.append(header(Kind.PING, 0, ANSWERS, self._answer, 0))
            self._answer = -1
        # Beside other output a SEEN costs next to nothing: an acknowledgement of bulk is as frequent.
        if self.received - self._acknowledged >= (QUANTUM // 2 if self.has_output else QUANTUM):
            out.append(self.tell_seen())
        return out

    def tell_seen(self) -> bytes:
        self._acknowledged = self.received
        return header(Kind.SEEN, 0, 0, self.received, 0)

    def ping(self, nonce: int) -> bytes:
        self._words = 0
        return header(Kind.PING, 0, ASKS, nonce, 0)

    def pull(self, limit: int) -> list[bytes]:
        """As `Session.pull`, and keep the result for a resend; [] while KEEP bytes were not seen."""
        if self.kept >= KEEP:
            return []
        out = super().pull(limit)
        self._kept += out
        self.sent += sum(map(len, out))
        return out
