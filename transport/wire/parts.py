"""A spawn or request that is longer than a frame: cut into parts by its sender, put together by its receiver.

Laws
1. Stream 1 of a part says that more follow, stream 0 that it is the last one.
2. The parts of an opening follow each other, with one kind and one channel. Otherwise the arguments of one job could
   become those of another one.
3. The receiver keeps MAX_OPENING bytes at most.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.wire.frames import MAX_PAYLOAD, NAMES, Frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_OPENING = 4 * 1024 * 1024  # argv and environment of one job; the kernel takes less than that


def cut(payload: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (stream, payload) of each part."""
    while len(payload) > MAX_PAYLOAD:
        yield 1, payload[:MAX_PAYLOAD]
        payload = payload[MAX_PAYLOAD:]
    yield 0, payload


class Parts:
    """The parts of the opening that is arriving."""

    def __init__(self) -> None:
        self._of: tuple[int, int] | None = None  # kind and channel
        self._payload = bytearray()

    def take(self, frame: Frame) -> bool:
        """Take a part. True if it is the last one: the frame then has the whole payload. Raises ProtocolError."""
        name = NAMES[frame.kind].lower()
        if self._of not in (None, (frame.kind, frame.channel)):
            raise ProtocolError(f"{name} of channel {frame.channel} among the parts of channel {self._of[1]}")
        self._payload += frame.payload
        if len(self._payload) > MAX_OPENING:
            raise ProtocolError(f"{name} of more than {MAX_OPENING} bytes")
        if frame.stream == 1:
            self._of = (frame.kind, frame.channel)
            return False
        frame.payload = bytes(self._payload)
        self._payload.clear()
        self._of = None
        return True
