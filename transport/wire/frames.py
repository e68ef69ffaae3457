"""Frames: the unit of the wire, and nothing else.

Laws
1. Sans-IO: bytes in, frames out; no socket, no clock, no knowledge of what a frame is for.
2. The announced length is checked before memory is used for it: a peer can make us hold one frame, no more.
3. Bytes that cannot be parsed are a ProtocolError, and the decoder that raised it never yields again.

A frame is a header of 18 bytes, big-endian, and its payload:

    u32 length of the payload, at most MAX_PAYLOAD; of output and of a job's input, BULK_PAYLOAD
    u8  kind
    u8  stream     0 stdin, 1 stdout, 2 stderr of the channel, or LIFE for the channel itself
    u32 channel    number of a job or request on this link; 0 is the link
    u64 offset     byte position in the stream, or a sequence number

Before the first frame each side writes GREETING. Output of a login shell before it is skipped.
"""

from __future__ import annotations

import struct

from transport import quickjson
from transport.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from transport.spawn import Template

VERSION = 2
GREETING = b"\0quine\x01\n"  # a NUL first: no login banner holds one
MAX_NOISE = 64 * 1024  # bytes before the greeting; no login banner is longer
MAX_PAYLOAD = 64 * 1024  # one pipe's worth: a read of a full pipe is one frame
BULK_PAYLOAD = 256 * 1024  # of data on a line that keeps up: a frame costs each process on its way the same
HEADER = struct.Struct(">IBBIQ")
HEADER_SIZE = HEADER.size
CHUNK = MAX_PAYLOAD - HEADER_SIZE  # stream bytes in one frame: with its header two whole packets of ssh
BULK = BULK_PAYLOAD - HEADER_SIZE  # and in one of bulk
VIEWED = 32 * 1024  # bytes of data that a node passes on as a view of what it read
PINNED = 5  # times the size of a view that it may keep in memory
NEVER = BULK_PAYLOAD + 1  # bytes of no payload
LIFE = 255  # the stream number that means the channel itself: exit record taken, or nobody waits


class Kind:
    """Frame kinds. Plain integers: enum lookups cost the frame loop a tenth of its speed."""

    HELLO = 1  # identity of this end: JSON
    SPAWN = 2  # start a job: JSON; offset is the number of its template, or 0
    ATTACH = 3  # it runs: JSON
    DATA = 4  # bytes at offset
    ACK = 5  # everything below offset was taken by the thing behind the stream
    EOF = 6  # no more from me; offset is the stream's length
    STOP = 7  # read no more: nobody listens to this stream
    SIGNAL = 8  # JSON {"signal": name}; offset is its sequence number
    WINCH = 9  # JSON {"rows", "columns"}
    EXIT = 10  # the exit record: JSON
    REQUEST = 11  # ask the origin: JSON {"name", ...}
    REPLY = 12  # how the request ended: JSON {"error": text or null, "lost": true where nobody knows}
    PING = 13  # stream 0 asks, stream 1 answers with the same offset
    SEEN = 14  # so many bytes of the other end's frames have arrived, over all connections of the link
    NOTE = 15  # the link behind a channel: JSON {"up", "seconds": since when, "left": of its lease, "why"}
    LEND = 17  # move the bytes of this stream by the descriptor that came: JSON {"fd", "at", "length"}
    RETURN = 18  # `offset` bytes were moved: JSON {"acked": stream offset, "errno": 0 or reason, "window"}
    TEMPLATE = 19  # `offset` is the number by which spawns will name it: the fields that they share, JSON
    BYE = 16  # this end ends the link by intent: it will not come back


NAMES = {value: name for name, value in vars(Kind).items() if name.isupper()}
# About one connection, not about the link: neither counted nor sent again.
BESIDE = frozenset((Kind.HELLO, Kind.PING, Kind.SEEN, Kind.BYE))


class Frame:
    """One frame. `payload` is bytes; `body()` is its JSON object."""

    __slots__ = ("channel", "kind", "offset", "payload", "stream", "template")

    def __init__(
        self, kind: int, channel: int = 0, stream: int = 0, offset: int = 0, payload: bytes = b""
    ) -> None:
        self.kind = kind
        self.channel = channel
        self.stream = stream
        self.offset = offset
        self.payload = payload
        self.template: Template | None = None  # of a spawn that names one

    def body(self) -> dict[str, Any]:
        """The payload as a JSON object; raises ProtocolError for anything else."""
        try:
            body = quickjson.loads(self.payload)
        except (ValueError, RecursionError):
            raise ProtocolError(f"{NAMES[self.kind].lower()} frame without a JSON object") from None
        if not isinstance(body, dict):
            raise ProtocolError(f"{NAMES[self.kind].lower()} frame without a JSON object")
        return body

    def number(self, name: str) -> int:
        """A whole number of the body, 0 where it is missing; ProtocolError for anything else."""
        value = self.body().get(name, 0)
        if type(value) is not int or value < 0:
            raise ProtocolError(f"{NAMES[self.kind].lower()} frame with a bad {name}")
        return value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frame) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, int, int, int, bytes]:
        return (self.kind, self.channel, self.stream, self.offset, self.payload)

    def __repr__(self) -> str:
        name = NAMES.get(self.kind, str(self.kind))
        return f"{name} channel={self.channel} stream={self.stream} offset={self.offset} length={len(self.payload)}"


def header(kind: int, channel: int, stream: int, offset: int, length: int) -> bytes:
    return HEADER.pack(length, kind, stream, channel, offset)


def encode(frame: Frame) -> bytes:
    """The bytes of one frame. A payload above MAX_PAYLOAD is a defect of this program: ValueError."""
    if len(frame.payload) > MAX_PAYLOAD:
        raise ValueError(f"payload of {len(frame.payload)} bytes")
    return (
        HEADER.pack(len(frame.payload), frame.kind, frame.stream, frame.channel, frame.offset) + frame.payload
    )


def described(chunks: list[bytes]) -> Iterator[str]:
    """Encoded frames as readable text, a line each; a header and its payload may be two chunks."""
    skip = False
    for chunk in chunks:
        if not skip:
            length, kind, stream, channel, offset = HEADER.unpack_from(chunk)
            yield f"{NAMES[kind]} channel={channel} stream={stream} offset={offset} length={length}"
            skip = length > 0 and len(chunk) == HEADER_SIZE
        else:
            skip = False


def pack(body: dict[str, Any], limit: int = MAX_PAYLOAD) -> bytes:
    """A JSON payload. Above `limit` bytes: ValueError, because only the caller can say what to shorten.

    Arguments that are not UTF-8 travel as the lone surrogates that os.fsdecode made of them.
    """
    payload = quickjson.dumps(body).encode()
    if len(payload) > limit:
        raise ValueError(f"{len(payload)} bytes of arguments and environment, {limit} is the limit")
    return payload


def first_frame(facts: dict[str, Any]) -> bytes:
    """The hello of an end with these facts, which follows its greeting."""
    payload = pack({"version": VERSION, **facts})
    return header(Kind.HELLO, 0, 0, 0, len(payload)) + payload


def _parsed(source: bytes | bytearray, at: int, large: tuple[int, ...]) -> tuple[int, int, int, int, int]:
    """The header at `at`: kind, channel, stream, offset, length of the payload. Raises ProtocolError."""
    length, kind, stream, channel, offset = HEADER.unpack_from(source, at)
    if length > MAX_PAYLOAD and (kind != Kind.DATA or stream not in large or length > BULK_PAYLOAD):
        raise ProtocolError(f"frame of {length} bytes")
    if kind not in NAMES:
        raise ProtocolError(f"frame of unknown kind {kind}")
    return kind, channel, stream, offset, length


def _wanting(buffer: bytearray, large: tuple[int, ...]) -> int:
    """Bytes missing from the header of the first frame or, with a whole header, from the frame; negative: surplus."""
    if len(buffer) < HEADER_SIZE:
        return HEADER_SIZE - len(buffer)
    return HEADER_SIZE + _parsed(buffer, 0, large)[4] - len(buffer)


class Begun:
    """A frame of bulk that comes in pieces, which are copied to their places."""

    __slots__ = ("_at", "_frame", "_whole")

    def __init__(self, frame: Frame, length: int) -> None:
        self._frame = frame
        self._whole = memoryview(bytearray(length))
        self._at = 0

    def take(self, data: bytes | memoryview) -> int:
        """Take what is missing from the beginning of `data`; return the number of these bytes."""
        part = memoryview(data)[: len(self._whole) - self._at]
        self._whole[self._at : self._at + len(part)] = part
        self._at += len(part)
        return len(part)

    @property
    def frame(self) -> Frame | None:
        """The frame, once it is whole."""
        if self._at < len(self._whole):
            return None
        self._frame.payload = self._whole  # type: ignore[assignment]
        return self._frame


class Decoder:
    """Turns bytes, in pieces of any size, into frames.

    `large` are the streams whose data may come in frames of BULK_PAYLOAD. The payload of data of at least `views` bytes
    is a view of the bytes that came, or of a buffer of its own if it came in pieces. For consumers that pass it on: it
    is copied once less, and keeps all the bytes that came with it, at most PINNED times its own.
    """

    def __init__(self) -> None:
        self.views = NEVER
        self.large: tuple[int, ...] = (1, 2)  # many senders of bodies (stream 0) share one bound
        self._buffer = bytearray()
        self._begun: Begun | None = None  # the frame of bulk that has begun; `_buffer` is empty then
        self._greeted = False
        self._dead = False
        self.noise = b""  # bytes before the greeting: shown when the greeting never comes

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes. Raises ProtocolError at the first byte that cannot be one."""
        if self._dead:
            raise ProtocolError("bytes after a protocol error")
        try:
            yield from self._feed(data)
        except ProtocolError:
            self._dead = True
            self._buffer.clear()
            raise

    def hold(self, data: bytes) -> None:
        """Keep bytes for the next `feed`."""
        self._buffer += data

    def _feed(self, data: Any) -> Iterator[Frame]:
        buffer = self._buffer
        if not self._greeted:
            buffer += data
            if not self._skip_noise():
                return
            data = b""
        # whole frames: with the greeting, held, or left by a consumer that stopped early
        if (buffer and self._begun) or _wanting(buffer, self.large) <= 0:
            data = bytes(buffer) + data
            buffer.clear()
        start, size = 0, len(data)
        if self._begun:
            start = self._begun.take(data)
        try:
            if self._begun:
                if (frame := self._begun.frame) is None:
                    return
                self._begun = None
                yield frame
            # A frame that has begun takes only its missing bytes: the bytes behind it are not copied.
            while buffer:
                part = data[start : start + _wanting(buffer, self.large)]
                buffer += part
                start += len(part)
                if not part:
                    return
                if len(buffer) >= HEADER_SIZE and not _wanting(buffer, self.large):
                    kind, channel, stream, offset, _ = _parsed(buffer, 0, self.large)
                    with memoryview(buffer) as view:
                        payload = bytes(view[HEADER_SIZE:])
                    buffer.clear()
                    yield Frame(kind, channel, stream, offset, payload)
            while size - start >= HEADER_SIZE:
                kind, channel, stream, offset, length = _parsed(data, start, self.large)
                end = start + HEADER_SIZE + length
                bulk = length >= self.views and kind == Kind.DATA and PINNED * length >= size
                if end > size:
                    if bulk:
                        self._begun = Begun(Frame(kind, channel, stream, offset), length)
                        start += HEADER_SIZE
                        start += self._begun.take(data[start:])
                    break
                whole: Any = (memoryview(data) if bulk else data)[start + HEADER_SIZE : end]
                start = end
                yield Frame(kind, channel, stream, offset, whole if bulk else bytes(whole))
        finally:
            buffer += data[start:]

    def _skip_noise(self) -> bool:
        at = self._buffer.find(GREETING)
        if at < 0:
            if len(self._buffer) > MAX_NOISE:
                raise ProtocolError("no greeting: this is not a quine node")
            self.noise = bytes(self._buffer[-512:])
            return False
        self.noise = bytes(self._buffer[max(0, at - 512) : at])
        del self._buffer[: at + len(GREETING)]
        self._greeted = True
        return True
