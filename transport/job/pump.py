"""Pumps between a stream and a descriptor of a child: a source reads the descriptor, a sink writes it.

Laws
1. A source reads only what the window allows: a slow reader at the far end stops the child, by its pipe.
2. A sink acknowledges bytes only after the child's pipe took them.
3. When the child closes its end, the peer is told at once (stop, or eof), so that a producer gets its SIGPIPE.
4. A descriptor has one owner, and the owner forgets the number when it closes.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
from collections import deque
from collections.abc import Callable

from transport import terminal
from transport.carrier.duplex import enlarge, keep_memory
from transport.errors import ProtocolError
from transport.spawn import is_size
from transport.wire.frames import CHUNK, Frame, Kind
from transport.wire.session import STDIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.job.interface import Link
    from transport.wire.flow import Flow

TERMINAL_BUFFER = 128 * 1024  # no less than the kernel keeps between the ends of a terminal


def _waiting(fd: int) -> int:
    """Bytes in the pipe; for a terminal, which counts only some of them, the most that it can hold."""
    if os.isatty(fd):
        return TERMINAL_BUFFER
    (waiting,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(waiting)


class Source:
    """Reads a child's stdout or stderr into a stream."""

    def __init__(self, link: Link, number: int, stream: int, fd: int, on_end: Callable[[], None]) -> None:
        self._link, self._number, self._stream = link, number, stream
        self._fd = fd
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._reading = False
        self._left = -1  # once the child is dead: bytes in the pipe that may be its own
        self._large = False
        os.set_blocking(fd, False)

    def begin(self, tries: int = 0) -> None:
        """Read from now on; the first `tries` times at once."""
        for _ in range(tries):
            if self._fd < 0 or not self._flow.credit or not self._read():
                break
        self._watch()

    @property
    def closed(self) -> bool:
        return self._fd < 0

    @property
    def _flow(self) -> Flow:
        return self._link.session.flow(self._number, self._stream)

    def _watch(self) -> None:
        """Start or stop reading: only while there is credit."""
        want = self._fd >= 0 and self._flow.credit > 0
        if want and not self._reading:
            self._loop.add_reader(self._fd, self._readable)
        elif self._reading and not want and self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self._reading = want

    def _readable(self) -> None:
        if self._read():
            self._watch()

    def _read(self) -> bool:
        """Read once. False if there was nothing, or it has ended."""
        flow = self._flow
        most = flow.piece
        try:
            data = os.read(self._fd, most if self._left < 0 else min(most, self._left))
        except BlockingIOError:
            if self._left >= 0:
                self.close()
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        if len(data) >= CHUNK and not self._large:
            self._large = True
            enlarge(self._fd)
            keep_memory()
        self._link.session.data(self._number, self._stream, data)
        flow.measure_sent(self._loop.time())
        self._link.wake()
        if self._left >= 0:
            self._left -= len(data)
            if not self._left:
                self.close()
        return True

    def acked(self) -> None:
        """Credit came back."""
        session = self._link.session
        session.spare -= session.flow(self._number, self._stream).measure_acked(
            self._loop.time(), session.spare
        )
        if not self._reading:
            self._watch()
            if self._left >= 0:
                self._drain()

    def drain(self) -> None:
        """The child is dead and its grace is over: end the stream behind the bytes that are in the pipe now.

        All output of the child itself is in the pipe by now, so nothing of it is lost. Later output of other holders
        of the pipe is not read, for it might never end.
        """
        if self._fd >= 0 and self._left < 0:
            self._left = _waiting(self._fd)
            self._drain()

    def _drain(self) -> None:
        """Read the remaining bytes, as far as there is credit."""
        if not self._left:
            self.close()
        while self._fd >= 0 and self._reading:
            self._readable()

    def close(self) -> None:
        """Close our end (a producer gets SIGPIPE) and end the stream."""
        if self._fd < 0:
            return
        self.detach()
        os.close(self._fd)
        self._fd = -1
        if not self._link.dead and self._number in self._link.session.channels:
            self._link.session.eof(self._number, self._stream)
            self._link.wake()
        self._on_end()

    def detach(self) -> None:
        """Read no more; the pipe stays."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
        self._reading = False

    def drop(self) -> None:
        """Discard all output from now on: nobody wants it, and the child is being ended.

        A closed pipe would kill the child at its next write, before its TERM; a full one would block it until its KILL.
        """
        self.detach()
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._dropped)

    def _dropped(self) -> None:
        try:
            data = os.read(self._fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.discard()

    def discard(self) -> None:
        """Close our end without ending the stream."""
        self.detach()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Sink:
    """Writes a stream into a child's stdin."""

    def __init__(self, link: Link, number: int, fd: int) -> None:
        self._link, self._number = link, number
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._queue: deque[bytes | memoryview] = deque()
        self._taken = 0
        self._ended = False
        self._waiting = False
        self._fresh = True  # the last byte written ended a line
        self._terminal = os.isatty(fd)
        os.set_blocking(fd, False)
        if self._terminal:
            return  # its output makes it readable; its source sees its end
        # The write end of a pipe is never readable, but it reports an error when the reader is gone: at once,
        # not at the next write, so that the origin stops reading a stdin that nobody wants.
        self._loop.add_reader(fd, self._broken)

    def on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.EOF:
            if self._terminal and self._fd >= 0:
                self._queue.append(terminal.end_of_input(self._fd, self._fresh))
            self._ended = not self._terminal  # a terminal stays open: its size may change
        elif self._fd >= 0:
            self._queue.append(frame.payload)
            self._fresh = frame.payload[-1:] == b"\n"
        if not self._waiting:
            self._write()

    def _write(self) -> None:
        while self._queue and self._fd >= 0:
            chunk = self._queue.popleft()
            try:
                sent = os.write(self._fd, chunk)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._broken()
                return
            self._taken += sent
            if sent < len(chunk):
                self._queue.appendleft(memoryview(chunk)[sent:])
                if not self._waiting:
                    self._waiting = True
                    enlarge(self._fd)
                    self._loop.add_writer(self._fd, self._write)
                self._ack()
                return
        if self._waiting and self._fd >= 0:
            self._waiting = False
            self._loop.remove_writer(self._fd)
        self._ack()
        if self._ended:
            self.close()

    def _ack(self) -> None:
        session = self._link.session
        if self._link.dead or self._number not in session.channels:
            return
        taken = min(self._taken, session.flow(self._number, STDIN).offset)  # without our end-of-input key
        if session.took(self._number, STDIN, taken):
            self._link.wake()

    def resize(self, frame: Frame) -> None:
        """Give the child's terminal the size of the one at the other end. ProtocolError: the frame has no size."""
        body = frame.body()
        rows, columns = body.get("rows", -1), body.get("columns", -1)
        if not is_size(rows, columns):
            raise ProtocolError("winch frame without a size")
        if self._terminal and self._fd >= 0:
            terminal.resize(self._fd, rows, columns)

    def _broken(self) -> None:
        """The child closed its stdin."""
        if self._fd < 0:
            return
        self.close()
        if not self._link.dead and self._number in self._link.session.channels:
            self._link.session.stop(self._number, STDIN)
            self._link.wake()

    def detach(self) -> None:
        """The link is gone: stop writing, but keep the pipe open. An end of file would look like complete input."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            if self._waiting:
                self._loop.remove_writer(self._fd)
                self._waiting = False

    def close(self) -> None:
        if self._fd < 0:
            return
        self.detach()
        self._queue.clear()
        os.close(self._fd)
        self._fd = -1
