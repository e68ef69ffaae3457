"""One stream's account: how far it was sent, how far it was taken, and how much may be under way.

Laws
1. Sans-IO and role-blind: sender, receiver and every relay between them keep the same account of the same
   stream, so a rule cannot hold for one of them and be forgotten for another.
2. Acknowledged means taken by the thing behind the stream (the child's pipe, the client's stdout), so
   what is not acknowledged is bounded, wherever it lies: in a pipe, in sshd, in a kernel buffer.
   The pipe below buffers megabytes; it is never trusted for flow control.
3. The window grows only while the line, not the reader, is what limits: when a window's worth comes back within
   twice the shortest round trip ever seen, or at once. A slow reader never makes it grow, who does not read
   holds a small one, and on a short line bulk never builds a queue for small streams to wait behind.
"""

from __future__ import annotations

from transport.errors import ProtocolError

INITIAL_WINDOW = 64 * 1024  # what who does not read makes its node hold; there may be a thousand of them
QUICK_WINDOW = 1024 * 1024  # keeps a loopback busy through five processes, is drained in a few ms
QUICK = 0.01  # seconds in which a window must come back to grow so far, whatever the shortest round trip was
ACK_QUANTUM = 256 * 1024  # taken bytes worth a word: one for each frame costs a tenth of the speed
MAX_WINDOW = 8 * 1024 * 1024  # 80 MB/s at 100 ms; what one stream may make any node hold


class Flow:
    """One direction of bytes, addressed by offset from its first byte."""

    __slots__ = (
        "_base",
        "_limited",
        "_mark",
        "_peak",
        "_since",
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
        self.lent = (
            ""  # who moves its bytes at the moment by a descriptor that the other end has: "ours", "theirs"
        )
        self._peak = INITIAL_WINDOW  # the most that was ever under way
        self._mark = -1  # the round under measurement ends when this offset is acknowledged; -1: none
        self._since = 0.0
        self._base = float("inf")  # shortest round ever seen, seconds
        self._limited = False

    @property
    def credit(self) -> int:
        """Bytes that the sender may send now."""
        if self.ended or self.stopped:
            return 0
        return max(0, self.window - (self.offset - self.acked))

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
        """For the receiver: are so many bytes taken worth an acknowledgement?

        Half of what the sender's window must be at least, to go by what came: he shall not wait for a word that waits
        for more of his bytes.
        """
        return taken - self.acked >= min(ACK_QUANTUM, self._peak // 2)

    def eof(self, offset: int) -> None:
        if self.ended:
            raise ProtocolError("second end of a stream")
        if offset != self.offset:
            raise ProtocolError(f"end of stream at offset {offset}, expected {self.offset}")
        self.ended = True
        self.lent = ""  # what was lent met the end on its way

    def ack(self, offset: int) -> None:
        """Account for an acknowledgement. Backwards or beyond what was sent: ProtocolError."""
        if not self.acked <= offset <= self.offset:
            raise ProtocolError(f"acknowledgement of {offset}, outside {self.acked}..{self.offset}")
        self.acked = offset

    def stop(self) -> None:
        self.stopped = True

    def lend(self, whose: str) -> None:
        """A descriptor of ours, or of theirs, moves what comes next; of a stream that has ended, nothing does."""
        if self.lent:
            raise ProtocolError("lent twice")
        self.lent = "" if self.ended else whose

    def take_over(self) -> int:
        """Another one sends from here on: with a window that is no smaller than what was ever under way, for that is
        what the receiver goes by when he waits with his words. Returns by how many bytes it grew.
        """
        growth = max(0, self._peak - self.window)
        self.window += growth
        return growth

    def returned(self, whose: str, length: int, acked: int, window: int) -> None:
        """So many bytes went that way, within that window; all below `acked` was taken."""
        if self.lent != whose or self.ended:
            raise ProtocolError("return of what was not lent")
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
