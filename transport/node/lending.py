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
5. The stdout of a job has no positions: we write behind the bytes that its client has still to write. It alone is
   acknowledged meanwhile, until the client has written those. Bytes that we do not write go to the client, behind the
   RETURN: at the end of the stream, at an error, and before a signal, since the client must know what is unread.
"""

from __future__ import annotations

import os
import stat

from transport.errors import ProtocolError
from transport.node.lent import Sink, Source
from transport.node.lent_stdio import OutputSink, PipeSource
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import STDIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.node.side import Passage, Side

NULL = os.makedev(1, 3)
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
            facts = os.fstat(fd)
            pipe = stat.S_ISFIFO(facts.st_mode)
            output = not sends and not self.relay.request
            if at > MOST or length > MOST or not (_fits(facts, output) or (pipe and sends)):
                raise ProtocolError("lent a descriptor that is neither a regular file nor a pipe of a job")
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
        elif output:
            self.sinks[frame.stream] = OutputSink(self, side, frame.stream, fd, at, length)
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
            if frame.kind == Kind.SIGNAL:
                self.return_outputs()
            return False
        source, sink = self.sources.get(stream), self.sinks.get(stream)
        if frame.kind == Kind.DATA and sink:
            return sink.take(frame)
        if frame.kind == Kind.EOF and sink:
            sink.finish()
        elif frame.kind == Kind.STOP:
            for lent in filter(None, (source, sink)):
                lent.finish()
        elif frame.kind == Kind.ACK:
            if source:
                source.acked()
            elif sink:
                sink.acked()
            return source is not None or sink is not None
        return False

    def return_outputs(self) -> None:
        """Return what is lent to be written: its client hears what has been written, and gets the rest."""
        for sink in list(self.sinks.values()):
            sink.finish()

    def close(self) -> None:
        for lent in (*self.sources.values(), *self.sinks.values()):
            lent.close()
        self.sources.clear()
        self.sinks.clear()


def _fits(facts: os.stat_result, output: bool) -> bool:
    """Return whether we may read or write this file: a regular one, and for output a pipe and /dev/null, too."""
    mode = facts.st_mode
    null = stat.S_ISCHR(mode) and facts.st_rdev == NULL
    return stat.S_ISREG(mode) or (output and (stat.S_ISFIFO(mode) or null))
