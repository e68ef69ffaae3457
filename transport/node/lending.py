"""Descriptors that clients have lent to their node: it reads or writes the file in place of the client.

This saves two processes on the way of each byte, and with them two copies and four wakeups for each frame. The wire
between nodes carries the same: the same bytes of the stream, at the same offsets, within the same windows.

Laws
1. One turn of the loop moves at most TURN bytes of a descriptor, in pieces of one frame.
2. Taken means that the file has the bytes. Bytes acknowledged for a client that lent its target were written there, or
   were with that client already: one window at most, which it writes there itself.
3. Meanwhile the client sends nothing about that stream and receives nothing of it. RETURN brings both ends to agree
   again: the bytes moved this way, and how far they are acknowledged. It takes their place in the stream.
4. A descriptor is closed when it is returned, or when its relay ends, whichever comes first.
5. A pipe is lent only to be read: bytes that its client has still to write would come behind those that we write.
"""

from __future__ import annotations

import asyncio
import os
import stat

from transport.errors import ProtocolError
from transport.wire.frames import CHUNK, LIFE, Frame, Kind
from transport.wire.session import STDIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.node.side import Passage, Side

TURN = 256 * 1024
MOST = 1 << 62  # no file is longer


class Lending:
    """The descriptors lent by the clients at both ends of one relay, by stream: a sender's source, a reader's sink."""

    def __init__(self, relay: Passage) -> None:
        self.relay = relay
        self.sources: dict[int, Source] = {}
        self.sinks: dict[int, Sink] = {}

    def other(self, side: Side) -> Side:
        relay = self.relay
        assert relay.far
        return relay.far if side is relay.near else relay.near

    def lend(self, side: Side, frame: Frame) -> None:
        """Take a client's descriptor. ProtocolError: none came, or the frame breaks the rules."""
        fd = side.link.descriptor(frame.number("fd"))
        try:
            at, length = frame.number("at"), frame.number("length")
            flow = side.link.session.flow(side.number, frame.stream)
            sends = (side is self.relay.near) == (frame.stream == STDIN)
            kind = os.fstat(fd).st_mode
            pipe = sends and stat.S_ISFIFO(kind)
            if at > MOST or length > MOST or not (pipe or stat.S_ISREG(kind)):
                raise ProtocolError("lent a descriptor that is neither a regular file nor a pipe to read")
            if frame.offset > flow.offset or (sends and frame.offset != flow.offset):
                raise ProtocolError(f"lent at offset {frame.offset}, expected {flow.offset}")
        except BaseException:
            os.close(fd)
            raise
        if not flow.lent:
            os.close(fd)  # the stream had ended
        elif sends:
            source = PipeSource if pipe else Source
            self.sources[frame.stream] = source(self, side, frame.stream, fd, at, length)
            other = self.other(side)
            if other.number in other.link.session.channels:
                session = other.link.session
                session.spare -= session.flow(other.number, frame.stream).take_over()
            self.sources[frame.stream].pump()
        else:
            at += flow.offset - frame.offset
            length -= flow.offset - frame.offset
            sink = self.sinks[frame.stream] = Sink(self, side, frame.stream, fd, at, length)
            sink.credit()  # the reader has the bytes before these, and acknowledges them no more
            if length <= 0:
                sink.finish()

    def handles(self, side: Side, frame: Frame) -> bool:
        """True if the frame is consumed by a lent descriptor, and not to be passed on."""
        stream = frame.stream
        if stream == LIFE:
            return False
        source, sink = self.sources.get(stream), self.sinks.get(stream)
        if frame.kind == Kind.DATA and sink:
            return sink.take(frame)
        if frame.kind == Kind.EOF and sink:
            sink.finish()
        elif frame.kind == Kind.STOP and source:
            source.finish()
        elif frame.kind == Kind.ACK:
            if source:
                source.acked()
            return source is not None or sink is not None
        return False

    def close(self) -> None:
        for lent in (*self.sources.values(), *self.sinks.values()):
            lent.close()
        self.sources.clear()
        self.sinks.clear()


class Lent:
    """One descriptor, from the client behind `side`."""

    def __init__(self, lending: Lending, side: Side, stream: int, fd: int, at: int, left: int) -> None:
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


class PipeSource(Source):
    """Reads a pipe into the stream until its end, as fast as the other end gives credit. The client sees the end, too.

    The descriptor is of an open file that the client made for us: nobody else sees that it does not block.
    """

    _watched = False

    def __init__(self, lending: Lending, side: Side, stream: int, fd: int, at: int, left: int) -> None:
        os.set_blocking(fd, False)
        super().__init__(lending, side, stream, fd, at, left)

    def pump(self) -> None:
        self._due = False
        self._watch(self._room() > 0)

    def _room(self) -> int:
        """Return how many bytes to read now. The pipe goes back if nobody takes any more of them."""
        other = self.lending.other(self.side)
        session = other.link.session
        if self.fd < 0 or other.link.dead or other.number not in session.channels:
            return 0  # the relay ends
        flow = session.flow(other.number, self.stream)
        if flow.stopped or flow.ended:
            self.finish()
            return 0
        asker = self.lending.relay.asker
        if session.crowded(asker):
            other.link.when_roomy(self.later, asker)
            return 0
        return flow.piece

    def _watch(self, want: bool) -> None:
        if self.fd < 0 or want == self._watched:
            return
        self._watched = want
        loop = asyncio.get_running_loop()
        if want:
            loop.add_reader(self.fd, self._readable)
        else:
            loop.remove_reader(self.fd)

    def _readable(self) -> None:
        if room := self._room():
            try:
                data = os.read(self.fd, room)
            except BlockingIOError:
                return  # another process has read them
            except OSError as error:
                self.finish(error.errno or 0)
                return
            if not data:
                self.finish()
                return
            other = self.lending.other(self.side)
            frame = Frame(Kind.DATA, other.number, self.stream, self.offset, data)
            self.moved += len(data)
            self.lending.relay.from_side(self.side, frame)
            other.link.session.flow(other.number, self.stream).measure_sent(asyncio.get_running_loop().time())
        self.pump()

    def close(self) -> None:
        self._watch(False)
        super().close()


class Sink(Lent):
    """Writes the stream into a file."""

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
