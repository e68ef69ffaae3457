"""Flow control of one stream: bytes sent, bytes acknowledged, and the window between them.

Laws
1. Sans-IO and role-blind: sender, receiver and every relay between them keep the same account of the same
   stream. So a rule cannot hold for one of them and be forgotten for another.
2. Acknowledged means taken by the thing behind the stream (the child's pipe, the client's stdout). So the
   unacknowledged bytes are bounded, wherever they lie: in a pipe, in sshd, in a kernel buffer.
   The pipe below buffers megabytes; it is never trusted for flow control.
3. The window grows only while the line is the limit, not the reader: a window's worth is acknowledged within twice
   the shortest round trip ever seen, or within QUICK. A slow reader never makes the window grow, and a reader that
   stops keeps a small one. On a short line bulk never builds a queue for small streams to wait behind.
"""

from __future__ import annotations

from transport.errors import ProtocolError
from transport.wire.frames import BULK, CHUNK

INITIAL_WINDOW = 64 * 1024  # held by a node for a client that does not read; there may be a thousand of them
QUICK_WINDOW = 1024 * 1024  # keeps a loopback busy through five processes, is drained in a few ms
QUICK = 0.01  # seconds: a round trip this short lets a window grow to QUICK_WINDOW, whatever the shortest was
ACK_QUANTUM = 512 * 1024  # bytes for one acknowledgement: one for each frame costs a tenth of the speed
MAX_VAIN = (
    1000  # acknowledgements in a row of nothing new: an honest end repeats one when a stream changes hands
)
MAX_WINDOW = 8 * 1024 * 1024  # 80 MB/s at 100 ms; the most that one stream may make any node hold


class Flow:
    """One direction of bytes, addressed by offset from its first byte."""

    __slots__ = (
        "_base",
        "_limited",
        "_mark",
        "_peak",
        "_since",
        "_vain",
        "acked",
        "ended",
        "lent",
        "offset",
        "stopped",
        "window",
    )

    def __init__(self) -> None:
        self.offset = 0  # next byte to be sent or to arrive
        self.acked = 0  # everything below was taken
        self.window = INITIAL_WINDOW
        self.ended = False  # eof was sent or has arrived
        self.stopped = False  # nobody reads any more
        self.lent = ""  # while a lent descriptor moves the bytes: the side that lent it, "ours" or "theirs"
        self._peak = INITIAL_WINDOW  # the most that was ever under way
        self._mark = -1  # the round under measurement ends when this offset is acknowledged; -1: none
        self._since = 0.0
        self._base = float("inf")  # shortest round ever seen, seconds
        self._limited = False
        self._vain = 0  # acknowledgements of nothing new since the last one of something

    @property
    def credit(self) -> int:
        """Bytes that the sender may send now."""
        if self.ended or self.stopped:
            return 0
        return max(0, self.window - (self.offset - self.acked))

    @property
    def piece(self) -> int:
        """Bytes of the next frame: a quarter of a large window. So frames on a slow line stay small."""
        return min(self.credit, max(CHUNK, min(self.window // 4, BULK)))

    def data(self, offset: int, length: int) -> None:
        """Account for bytes sent or arrived. A hole, a repetition, bytes after eof, a flood: ProtocolError."""
        if self.ended:
            raise ProtocolError("data after the end of its stream")
        if offset != self.offset:
            raise ProtocolError(f"data at offset {offset}, expected {self.offset}")
        if offset + length - self.acked > MAX_WINDOW:
            raise ProtocolError("more data than the window allows")
        self.offset += length
        if self.offset - self.acked > self._peak:
            self._peak = self.offset - self.acked

    def worth(self, taken: int) -> bool:
        """For the receiver: True if `taken` bytes in all are worth an acknowledgement.

        The threshold is at most half of the peak under way, and the sender's window is no smaller than that peak.
        Otherwise a sender with a small window could wait for an acknowledgement that waits for more bytes.
        """
        return taken - self.acked >= min(ACK_QUANTUM, self._peak // 2)

    def eof(self, offset: int) -> None:
        if self.ended:
            raise ProtocolError("second end of a stream")
        if offset != self.offset:
            raise ProtocolError(f"end of stream at offset {offset}, expected {self.offset}")
        self.ended = True
        self.lent = ""  # the end of the stream and the lent descriptor crossed on their way

    def ack(self, offset: int) -> None:
        """Account for an acknowledgement. Backwards, beyond what was sent, a flood: ProtocolError."""
        if not self.acked <= offset <= self.offset:
            raise ProtocolError(f"acknowledgement of {offset}, outside {self.acked}..{self.offset}")
        self._vain = self._vain + 1 if offset == self.acked else 0
        if self._vain > MAX_VAIN:
            raise ProtocolError("a flood of acknowledgements of nothing new")
        self.acked = offset

    def stop(self) -> None:
        self.stopped = True

    def lend(self, whose: str) -> None:
        """A lent descriptor moves the next bytes; `whose` is "ours" or "theirs". No effect on an ended stream."""
        if self.lent:
            raise ProtocolError("lent twice")
        self.lent = "" if self.ended else whose

    def take_over(self) -> int:
        """Another sender continues the stream: make the window no smaller than the most that was ever under way.

        The receiver delays its acknowledgements by that measure. Returns by how many bytes the window grew.
        """
        growth = max(0, self._peak - self.window)
        self.window += growth
        return growth

    def returned(self, whose: str, length: int, acked: int, window: int) -> None:
        """Lending ends: `length` bytes were moved by it, within `window`; all below offset `acked` was taken."""
        if self.lent != whose or self.ended:
            raise ProtocolError("return for a stream that was not lent")
        if not 0 <= acked <= self.offset + length:
            raise ProtocolError(f"return with {acked} bytes taken of {self.offset + length}")
        if window > MAX_WINDOW:
            raise ProtocolError(f"return with a window of {window} bytes")
        self.lent = ""
        self.window = max(self.window, window)
        self.offset += length
        self.acked = acked
        self._mark = -1

    def measure_sent(self, now: float) -> None:
        """The sender sent something at `now` (seconds on any steady clock)."""
        if self._mark < 0:
            self._mark, self._since, self._limited = self.offset, now, False
        if self.credit == 0:
            self._limited = True

    def measure_acked(self, now: float, spare: int = MAX_WINDOW) -> int:
        """An acknowledgement came at `now`; returns by how many bytes the window grew, at most `spare`."""
        if self._mark < 0 or self.acked < self._mark:
            return 0
        round_trip = now - self._since
        self._mark = -1
        self._base = min(self._base, round_trip)
        top = MAX_WINDOW if round_trip <= 2 * self._base else QUICK_WINDOW if round_trip <= QUICK else 0
        if not self._limited or self.window >= top:
            return 0
        growth = min(self.window, top - self.window, max(0, spare))
        self.window += growth
        return growth
