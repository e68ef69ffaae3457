"""The output of one end of a link: frames that wait, and their order on the way out.

Laws
1. Sans-IO: frames in, bytes to be written on request. No socket, no clock, no process.
2. Control goes first and streams take turns, one frame each, so a bulk stream cannot starve a hundred small ones.
   Acknowledgements are merged: only the latest of a stream is ever waiting to be sent.
"""

from __future__ import annotations

from transport.lean import deque
from transport.wire.frames import LIFE, Kind, header
from transport.wire.states import STDIN

SMALL = 4096  # bytes up to which a waiting frame is merged with the next: a frame costs more than its bytes


class Outbox:
    """Frames of all channels that wait to be written."""

    def __init__(self) -> None:
        self.control: deque[bytes] = deque()
        self.pending = 0  # bytes of stream data
        self.leaving: set[int] = set()  # forgotten channels whose last frame still waits behind their data
        self._acks: dict[tuple[int, int], int] = {}
        self._lanes: dict[tuple[int, int], deque[tuple[bytes, bytes]]] = {}
        self._turns: deque[tuple[int, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self.control or self._acks or self._turns)

    def put(self, kind: int, channel: int, stream: int, offset: int, payload: bytes = b"") -> None:
        """Queue a control frame."""
        self.control.append(header(kind, channel, stream, offset, len(payload)) + payload)

    def ack(self, number: int, stream: int, offset: int) -> None:
        self._acks[number, stream] = offset

    def withdraw_ack(self, number: int, stream: int) -> int | None:
        """Remove the acknowledgement of a stream that waits, and return its offset; None if there is none."""
        return self._acks.pop((number, stream), None)

    def data(self, number: int, stream: int, offset: int, payload: bytes) -> None:
        """Queue stream bytes, merged with a small frame that waits."""
        lane = self._lanes.get((number, stream))
        last = lane[-1][1] if lane else b""
        if lane and last and len(last) + len(payload) <= SMALL:
            whole = bytes(last) + payload  # either may be the rest of a view
            lane[-1] = (header(Kind.DATA, number, stream, offset - len(last), len(whole)), whole)
            self.pending += len(payload)
        elif payload:
            self.behind_data(number, stream, header(Kind.DATA, number, stream, offset, len(payload)), payload)

    def behind_data(self, number: int, stream: int, head: bytes, payload: bytes = b"") -> None:
        """Queue a frame behind the data of its stream."""
        key = (number, stream)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = deque()
            self._turns.append(key)
        lane.append((head, payload))
        self.pending += len(payload)

    def has_data(self, number: int, stream: int) -> bool:
        return (number, stream) in self._lanes

    def stop_behind_data(self, number: int) -> None:
        """Queue the last frame of a channel that nobody waits for, behind the data of its body."""
        self.behind_data(number, STDIN, header(Kind.STOP, number, LIFE, 0, 0))
        self.leaving.add(number)

    def forget(self, number: int, streams: tuple[int, ...]) -> None:
        """Drop the data and acknowledgements of these streams; control frames still go."""
        for stream in streams:
            key = (number, stream)
            self._acks.pop(key, None)
            if lane := self._lanes.pop(key, None):
                self.pending -= sum(len(payload) for _, payload in lane)

    def pull(self, limit: int) -> list[bytes]:
        """See `Session.pull`."""
        out: list[bytes] = []
        size = 0
        control = self.control
        while control and size < limit:
            out.append(control.popleft())
            size += len(out[-1])
        if self._acks and size < limit:
            for (number, stream), offset in self._acks.items():
                out.append(header(Kind.ACK, number, stream, offset, 0))
            size += 18 * len(self._acks)
            self._acks.clear()
        turns = self._turns
        while turns and size < limit:
            key = turns.popleft()
            lane = self._lanes.get(key)
            if lane is None:
                continue  # its channel was forgotten
            head, payload = lane.popleft()
            out.append(head)
            if payload:
                out.append(payload)
                self.pending -= len(payload)
            size += len(head) + len(payload)
            if lane:
                turns.append(key)
            else:
                del self._lanes[key]
                self.leaving.discard(key[0])
        return out
