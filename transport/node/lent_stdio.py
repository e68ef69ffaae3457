"""The stdin and stdout of a job, lent by its client to the node of this machine; see `lending`."""

from __future__ import annotations

import asyncio
import os
import stat

from transport.carrier.duplex import ClientDuplex
from transport.lean import deque
from transport.node.lent import TURN, Lender, Sink, Source
from transport.wire.frames import Frame, Kind

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.node.side import Side


class PipeSource(Source):
    """Reads a pipe into the stream until its end, as fast as the other end gives credit. The client sees the end, too.

    The descriptor is of an open file that the client made for us: nobody else sees that it does not block.
    """

    _watched = False

    def __init__(self, lending: Lender, side: Side, stream: int, fd: int, at: int, left: int) -> None:
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


class OutputSink(Sink):
    """Writes the output of a job, behind the bytes that its client has still to write, and as fast as it is taken.

    A pipe is an open file that the client made: nobody else sees that it does not block. Of a file the position is that
    of the client's own descriptor, and of all who share it.
    """

    _watched = _due = False

    def __init__(self, lending: Lender, side: Side, stream: int, fd: int, at: int, left: int) -> None:
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode):
            os.set_blocking(fd, False)
        super().__init__(lending, side, stream, fd, at, left)
        self._file = stat.S_ISREG(mode)
        self._queue: deque[memoryview] = deque()

    def take(self, frame: Frame) -> bool:
        self._queue.append(memoryview(frame.payload))
        if not self._watched and not self._due:
            self._write()
        return True

    def acked(self) -> None:
        self.credit()
        if self._queue and not self._watched and not self._due:
            self._write()

    @property
    def _waits(self) -> bool:
        """True while the client has bytes to write that come before ours."""
        return self._taken_there < self.start

    @property
    def _taken_there(self) -> int:
        return self.side.link.session.flow(self.side.number, self.stream).acked

    def _write(self) -> None:
        self._due = blocked = False
        if self.fd < 0:
            return  # returned, or its relay has ended, before its turn
        until = self.moved + TURN
        while self._queue and self.fd >= 0 and self.moved < until and not self._waits:
            if self._file and _gone(self.side):
                return  # its next writer must not find our bytes behind its own; the relay ends
            data = self._queue[0]
            try:
                done = os.write(self.fd, data)
            except BlockingIOError:
                blocked = True
                break
            except OSError as error:
                # The client writes by itself from now on, and says what it meets
                self.finish(error.errno or 0)
                return
            self.moved += done
            if done == len(data):
                self._queue.popleft()
            else:
                self._queue[0] = data[done:]
        self.credit()
        self._watch(blocked)
        if self._queue and not blocked and not self._waits:
            self._due = True
            asyncio.get_running_loop().call_soon(self._write)

    def credit(self) -> None:
        """Acknowledge what the client and we have written, if that is worth a frame."""
        other = self.lending.other(self.side)
        session = other.link.session
        taken = self._taken_there if self._waits else self.offset
        if other.number in session.channels and session.took(other.number, self.stream, taken):
            other.link.wake()

    def _watch(self, want: bool) -> None:
        if want == self._watched:
            return
        self._watched = want
        loop = asyncio.get_running_loop()
        if want:
            loop.add_writer(self.fd, self._write)
        else:
            loop.remove_writer(self.fd)

    def finish(self, errno: int = 0) -> None:
        rest, self._queue = self._queue, deque()
        super().finish(errno)
        for data in rest:
            self.side.pass_on(Frame(Kind.DATA, self.side.number, self.stream, 0, bytes(data)))

    def close(self) -> None:
        self._watch(False)
        super().close()


def _gone(side: Side) -> bool:
    """Return whether the client has ended, though we have not heard of it yet."""
    connection = side.link.connection
    duplex = connection.duplex if connection else None
    return isinstance(duplex, ClientDuplex) and duplex.gone
