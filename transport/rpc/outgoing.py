"""One streaming request of a job: a body that is written, an answer that is read, both of any size.

Laws
1. Memory is bounded by the two windows: a write waits for credit, and unread bytes are not acknowledged.
2. Only `end` ends the body: a process that dies or closes before leaves no end of file.
3. Used by one thread, or by two of which one writes and the other one reads; while both wait, one of them receives.
4. A connection carries one request at a time and belongs to the process that opened it: a forked child uses none of
   its parent's. A connection that was interrupted, or whose request was given up, is closed, which tells the node.
   The others are kept for the next request.
"""

from __future__ import annotations

import _thread
import errno
import os
import select
import time

from transport import node_socket, this_build
from transport.carrier.unix import rights
from transport.errors import ProtocolError, RequestError, RequestLost
from transport.lean import deque, socket
from transport.rpc.lendable import ROUND, Lends
from transport.wire.frames import CHUNK, Kind
from transport.wire.session import STDIN, STDOUT, Session
from transport.writes import write_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from transport.wire.frames import Frame

    Buffer = bytes | bytearray | memoryview

DEADLINE = 3600.0  # seconds without a byte; a dead link is noticed by the node long before
RECEIVE = 256 * 1024  # bytes taken from the socket at once
IDLE_MOST = 16  # connections kept for the next request


class Connection:
    """A socket to the node of this machine, and the session on it."""

    def __init__(self, path: str, deadline: float = DEADLINE) -> None:
        """Connect to the node at `path`. Raises OSError; `deadline` is in seconds."""
        self.pid = os.getpid()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(deadline)
            self.socket.connect(path)
            # Root may have begun the job's request for its user.
            if os.getuid() not in (0, node_socket.peer_uid(self.socket)):
                raise PermissionError(errno.EPERM, "the socket belongs to another user", path)
            self.socket.sendall(node_socket.CLIENT)
        except BaseException:
            self.socket.close()
            raise
        self.lent = 0  # descriptors that were sent
        self.session = Session(opener=True, hello={"build": this_build.build_hash(), "pid": self.pid})

    def flush(self, fd: int = -1) -> None:
        """Send the queued frames, and a descriptor. The node always reads, so this waits for no other process."""
        while chunks := self.session.pull(ROUND):
            data = b"".join(chunks)
            sent = 0
            if fd >= 0:
                sent = self.socket.sendmsg([data], rights([fd]))
                fd = -1
            self.socket.sendall(memoryview(data)[sent:])

    @property
    def usable(self) -> bool:
        """True if the node has not ended the connection since its last use."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        try:
            return not poll.poll(0) or self.socket.recv(1, socket.MSG_PEEK) != b""
        except OSError:
            return False

    def hang_up(self) -> None:
        """Shut the connection down at once, so that the node learns of it.

        This also works while a forked child has inherited the socket, or a thread waits for it.
        """
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the node was first

    def close(self) -> None:
        if self.pid == os.getpid():
            self.hang_up()
        self.socket.close()


class Pool:
    """Idle connections of this process to one node. Usable from any thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._lock = _thread.allocate_lock()
        self._idle: list[Connection] = []

    def take(self) -> Connection:
        """An idle connection, or a new one. Raises OSError."""
        if (
            self._pid != os.getpid()
        ):  # a fork: idle connections are the parent's, and the lock may be held there
            self._pid, self._lock, theirs, self._idle = os.getpid(), _thread.allocate_lock(), self._idle, []
            for connection in theirs:
                connection.close()
        while True:
            with self._lock:
                if not self._idle:
                    return Connection(self._path)
                connection = self._idle.pop()
            if connection.usable:
                return connection
            connection.close()

    def give_back(self, connection: Connection) -> None:
        with self._lock:
            if len(self._idle) < IDLE_MOST:
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


class Asked(Lends):
    """A request that is under way. Every method raises RequestError: refused, failed at the origin, or lost."""

    def __init__(
        self, connection: Connection, asked: dict[str, object], done: Callable[[Connection], None]
    ) -> None:
        self._connection = connection
        self._session = connection.session
        self._done = done
        import threading  # here: each proxy loads this module, and few ask

        self._change = threading.Condition()
        self._receiving = False
        self._number = self._session.open(Kind.REQUEST, asked)
        self._channel = self._session.channels[self._number]
        self._answer: deque[bytes] = deque()
        self._taken = 0
        # By stream: bytes moved, errno or 0, offset of the first of them.
        self._returns: dict[int, tuple[int, int, int]] = {}
        self._error: str | None = None
        self._wrong = RequestError  # the exception to raise for `_error`
        self._finished = False  # the whole answer has come, or the error
        self._over = ""  # the reason why the request is unusable, or ""
        self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- the body ----------------------------------------------------------------------------------

    def write(self, data: Buffer) -> None:
        """Send `data`; waits for the origin to take it. BrokenPipeError: nobody reads the body; `read` tells why."""
        flow = self._channel.flows[STDIN]
        with memoryview(data) as view, view.cast("B") as left:
            at = 0
            while at < len(left):
                with self._change:
                    self._wait(lambda: flow.credit > 0 or flow.stopped or self._finished)
                    self._check_read()
                    until = min(at + ROUND, len(left))
                    while size := min(CHUNK, flow.credit, until - at):
                        self._session.data(self._number, STDIN, bytes(left[at : at + size]))
                        at += size
                    flow.measure_sent(time.monotonic())
                    self._flush()

    def _lend_source(self, fd: int, at: int, length: int) -> tuple[int, int]:
        flow = self._channel.flows[STDIN]
        with self._change:
            self._wait(lambda: True)
            self._check_read()
            self._lend(STDIN, flow.offset, fd, at, length)
            self._wait(lambda: STDIN in self._returns or flow.stopped or self._finished)
            moved, errno, _ = self._returns.pop(STDIN, (0, 0, 0))
            return moved, errno

    def _lend(self, stream: int, offset: int, fd: int, at: int, length: int) -> None:
        """Lend a descriptor to the node; `_returns` gets the result."""
        body = {"fd": self._connection.lent, "at": at, "length": length}
        self._flush()
        self._session.lend(self._number, stream, offset, body)
        self._connection.lent += 1
        self._flush(fd)

    def _check_read(self) -> None:
        """Raise if nobody reads the body any more: the answer's error if it has come, else BrokenPipeError."""
        if self._error is not None:
            raise self._wrong(self._error)
        if self._channel.flows[STDIN].stopped or self._finished:
            raise BrokenPipeError("the origin reads no more of the request")

    def end(self, last: Buffer = b"") -> None:
        """End the body, with `last` as its last bytes: from here on the request counts, even if this process dies."""
        if len(last):
            self.write(last)
        with self._change:
            if self._finished and self._error is None:
                return  # it was answered before
            self._check()
            if not self._channel.flows[STDIN].ended and not self._channel.flows[STDIN].stopped:
                self._session.eof(self._number, STDIN)
                self._flush()

    # -- the answer --------------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """At most `size` bytes of the answer, at least one; b"" at its end: the origin has done what was asked."""
        with self._change:
            if not self._answer:
                self._wait(lambda: bool(self._answer) or self._finished)
            if not self._answer:
                return self._ended()
            data = gather(self._answer, size)
            self._taken += len(data)
            if self._number in self._session.channels and self._session.took(
                self._number, STDOUT, self._taken
            ):
                self._flush()
            return data

    def _lend_sink(self, fd: int, at: int, length: int) -> tuple[int, int]:
        flow = self._channel.flows[STDOUT]
        with self._change:
            self._wait(lambda: bool(self._answer) or self._finished)
            if self._finished or flow.ended or flow.offset - self._taken >= length:
                return 0, 0  # all of it is here
            start = self._taken
            self._lend(STDOUT, start, fd, at, length)
            end = border = start + length  # bytes behind that belong to the stream, not to the file
            while True:
                self._wait(
                    lambda: bool(self._answer and self._taken < end) or not flow.lent or self._finished
                )
                if not flow.lent:  # it is back, or crossed the end of the stream on its way
                    border = min(end, self._returns[STDOUT][2] if STDOUT in self._returns else flow.offset)
                if not self._answer or self._taken >= border:
                    break  # it is back, or it failed and nothing is given back
                data = gather(self._answer, border - self._taken)
                try:
                    write_at(fd, data, at + self._taken - start)
                except BaseException:
                    self.close()
                    raise
                self._taken += len(data)
            moved, errno, _ = self._returns.pop(STDOUT, (0, 0, 0))
            self._taken += moved
            return self._taken - start, errno

    def _ended(self) -> bytes:
        """The answer was read to its end: send the last frame, once, and return the connection to its pool."""
        if not self._over:
            self._over = "the request has ended"
            self._session.last_word(self._number)
            try:
                self._connection.flush()
            except OSError:
                self._connection.close()
            else:
                self._done(self._connection)
        if self._error is not None:
            raise self._wrong(self._error)
        return b""

    # -- both --------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up a request that has not ended: the origin is told that nobody waits. From any thread."""
        if self._over:
            return
        if self._connection.pid != os.getpid():
            self._connection.close()  # closes our copy of the socket: the request is the parent's
            return
        self._over = self._error = "the request was given up"
        self._connection.hang_up()
        with self._change:
            self._answer.clear()
            self._let_go()

    def _let_go(self) -> None:
        """Close the connection, unless a thread receives from it: that thread closes it."""
        if not self._receiving:
            self._connection.close()
        self._change.notify_all()

    def _check(self) -> None:
        if self._connection.pid != os.getpid():
            raise RequestError("the request belongs to the process that made it")
        if self._over:
            raise self._wrong(self._error or self._over)

    def _flush(self, fd: int = -1) -> None:
        try:
            self._connection.flush(fd)
        except OSError as error:
            raise self._lost(error) from None
        except BaseException:
            self.close()  # a signal's exception came in the middle of a frame
            raise

    def _wait(self, ready: Callable[[], bool]) -> None:
        """Receive until `ready()`; the lock is held on entry and on return."""
        if self._finished and ready():
            return
        self._check()
        while not ready():
            if self._receiving:
                self._change.wait()
            else:
                self._receive()
            if not self._finished:
                self._check()

    def _receive(self) -> None:
        """Receive and handle the next bytes; the lock is released while this waits."""
        self._receiving = True
        self._change.release()
        try:
            data = self._connection.socket.recv(RECEIVE)
        except OSError as error:
            data, failure = b"", str(error)
        except BaseException:
            self.close()
            raise
        else:
            failure = "the node ended"
        finally:
            self._change.acquire()
            self._receiving = False
            self._change.notify_all()
            if self._over:
                self._connection.close()
        if not data:
            raise self._lost(failure)
        try:
            for frame in self._session.receive(data):
                if frame.channel == self._number:
                    self._take(frame)
            self._finished = self._finished or self._channel.finished
        except ProtocolError as error:
            raise self._lost(error) from None

    def _take(self, frame: Frame) -> None:
        if frame.kind == Kind.DATA:
            self._answer.append(frame.payload)
        elif frame.kind == Kind.ACK:
            flow = self._channel.flows[STDIN]
            self._session.spare -= flow.measure_acked(time.monotonic(), self._session.spare)
        elif frame.kind == Kind.RETURN:
            moved = frame.offset
            self._returns[frame.stream] = (
                moved,
                frame.number("errno"),
                self._channel.flows[frame.stream].offset - moved,
            )
        elif frame.kind == Kind.REPLY:
            body = frame.body()
            text = body.get("error")
            self._error = None if text is None else str(text)
            self._wrong = RequestLost if body.get("lost") is True else RequestError

    def _lost(self, why: object) -> RequestError:
        if not self._over:
            self._wrong = RequestLost
            self._over = self._error = f"the origin cannot be reached: {why}"
            self._let_go()
        return self._wrong(self._over)


def gather(chunks: deque[bytes], size: int) -> bytes:
    """Take at most `size` bytes, at least one, from the front of `chunks`, which must not be empty."""
    first = chunks.popleft()
    if len(first) > size:
        chunks.appendleft(first[size:])
        return first[:size]
    if not chunks or len(first) + len(chunks[0]) > size:
        return first
    parts, left = [first], size - len(first)
    while chunks and len(chunks[0]) <= left:
        parts.append(chunks.popleft())
        left -= len(parts[-1])
    return b"".join(parts)
