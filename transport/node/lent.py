"""A descriptor of a file that a client has lent to its node, and how its bytes are moved; see `lending`."""

from __future__ import annotations

import asyncio
import os

from transport.lean import Protocol
from transport.wire.frames import CHUNK, Frame, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.node.side import Passage, Side

TURN = 256 * 1024


class Lender(Protocol):
    """`transport.node.lending.Lending`."""

    relay: Passage
    sources: dict[int, Source]
    sinks: dict[int, Sink]

    def other(self, side: Side) -> Side: ...


class Lent:
    """One descriptor, from the client behind `side`."""

    def __init__(self, lending: Lender, side: Side, stream: int, fd: int, at: int, left: int) -> None:
        self.lending = lending
        self.side = side
        self.stream = stream
        self.fd = fd
        self.at = at  # position in the file
        self.left = left  # bytes that may still be moved
        self.moved = 0
        # offset of the first byte that goes this way; earlier bytes of the stream have arrived or are on their way
        self.start = side.link.session.flow(side.number, stream).offset

    @property
    def offset(self) -> int:
        """Offset of the next byte in the stream."""
        return self.start + self.moved

    def finish(self, errno: int = 0) -> None:
        """Return the descriptor, and say how far it has come."""
        raise NotImplementedError

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _return(self, acked: int, errno: int, window: int = 0) -> None:
        self.close()
        link, number = self.side.link, self.side.number
        if not link.dead and number in link.session.channels and link.session.flow(number, self.stream).lent:
            link.session.give_back(
                number, self.stream, self.moved, {"acked": acked, "errno": errno, "window": window}
            )
            link.wake()


class Source(Lent):
    """Reads a file into the stream, as fast as the other end gives credit."""

    _due = False

    def acked(self) -> None:
        """Credit came back."""
        other = self.lending.other(self.side)
        session = other.link.session
        flow = session.flow(other.number, self.stream)
        session.spare -= flow.measure_acked(asyncio.get_running_loop().time(), session.spare)
        self.later()

    def later(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.pump)

    def pump(self) -> None:
        self._due = False
        other = self.lending.other(self.side)
        session = other.link.session
        until = self.moved + TURN
        while self.fd >= 0 and self.left and self.moved < until:
            if other.link.dead or other.number not in session.channels:
                return  # the relay ends, or the answer came before the body was whole and its end is on the way
            flow = session.flow(other.number, self.stream)
            free = CHUNK if self.stream in self.lending.sinks else flow.credit
            asker = self.lending.relay.asker
            if session.crowded(asker):
                other.link.when_roomy(self.later, asker)
                return
            if not free:
                return
            try:
                data = os.pread(self.fd, min(CHUNK, free, self.left), self.at)
            except OSError as error:
                self.finish(error.errno or 0)
                return
            if not data:
                self.finish()
                return
            frame = Frame(Kind.DATA, other.number, self.stream, self.offset, data)
            self.at += len(data)
            self.left -= len(data)
            self.moved += len(data)
            self.lending.relay.from_side(self.side, frame)
            flow.measure_sent(asyncio.get_running_loop().time())
        if self.fd >= 0:
            self.later() if self.left else self.finish()

    def finish(self, errno: int = 0) -> None:
        if self.fd < 0:
            return
        self.lending.sources.pop(self.stream, None)
        other = self.lending.other(self.side)
        acked, window = self.offset, 0
        if other.number in other.link.session.channels:
            flow = other.link.session.flow(other.number, self.stream)
            acked, window = flow.acked, flow.window  # the receiver delays its acknowledgements by the window
        if sink := self.lending.sinks.get(self.stream):
            acked = sink.offset
        self._return(acked, errno, window)


class Sink(Lent):
    """Writes the stream into a file."""

    def acked(self) -> None:
        """The client has taken bytes that came to it before."""

    def take(self, frame: Frame) -> bool:
        """Write the frame's bytes to the file. False: some belong elsewhere; `frame` is then reduced to those."""
        data = frame.payload[: self.left] if len(frame.payload) > self.left else frame.payload
        done, errno = 0, 0
        try:
            while done < len(data):
                done += os.pwrite(self.fd, memoryview(data)[done:] if done else data, self.at + done)
        except OSError as error:
            errno = error.errno or 0
        self.at += done
        self.left -= done
        self.moved += done
        self.credit()
        if errno or not self.left:
            self.finish(errno)
        if done == len(frame.payload):
            return True
        frame.offset += done
        frame.payload = frame.payload[done:]
        return False

    def credit(self) -> None:
        """Acknowledge the bytes if that is worth a frame; a source on the same stream is only told to go on."""
        if source := self.lending.sources.get(self.stream):
            source.later()
            return
        other = self.lending.other(self.side)
        session = other.link.session
        if other.number in session.channels and session.took(other.number, self.stream, self.offset):
            other.link.wake()

    def finish(self, errno: int = 0) -> None:
        if self.fd < 0:
            return
        self.lending.sinks.pop(self.stream, None)
        other = self.lending.other(self.side)
        acked = self.offset
        if self.stream not in self.lending.sources and other.number in other.link.session.channels:
            acked = other.link.session.flow(other.number, self.stream).acked
        self._return(acked, errno)
