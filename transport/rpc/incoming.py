"""The origin's side of streaming requests: bodies and answers of any size, each with a thread of its own.

Laws
1. The main thread alone touches the session. A thread gets bytes and leaves bytes, and wakes the main thread.
2. Memory is bounded: bytes that a handler has not read are not acknowledged. A handler that writes waits while
   OUTBOX bytes of its answer have no credit.
3. At most THREADS handlers run at one time, the others wait their turn, in order. Plain requests have other threads:
   a handler may wait for its requester for hours, and must not delay them.
4. A complete body is read to its end, whatever becomes of its sender: its end is the commit. An incomplete one ends
   with `Abandoned`, never with an end of file.
5. No thread keeps this process from ending: all of them are daemons, and `close` ends every wait.
"""

from __future__ import annotations

import threading
import time

from transport.errors import Abandoned
from transport.lean import deque
from transport.rpc.lendable import Lends, write_at
from transport.rpc.outgoing import gather
from transport.wire.flow import INITIAL_WINDOW
from transport.wire.frames import CHUNK, LIFE, Frame, Kind
from transport.wire.session import STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.rpc.outgoing import Buffer
    from transport.wire.session import Session

THREADS = 256  # handlers at one time; one of them may wait for its requester for hours
OUTBOX = 256 * 1024  # bytes of an answer that wait for credit
HELD = 256 * 1024 * 1024  # unread bytes of all bodies; windows of a conforming peer stay below it together


class Streaming:
    """A service whose handler gets an `Incoming`, in a thread; its exception is the answer's error."""

    __slots__ = ("handler",)

    def __init__(self, handler: Callable[[Incoming], None]) -> None:
        self.handler = handler


class Incoming(Lends):
    """One request, as its handler sees it. It ends when the handler returns or raises."""

    def __init__(
        self, number: int, handler: Callable[[Incoming], None], tell: Callable[[Incoming], None]
    ) -> None:
        self.number = number
        self.handler = handler
        self.done = False  # the handler has ended
        self.error: str | None = None  # the text of its exception
        self.taken = 0  # bytes of the body that it has read
        self.held = 0  # bytes of it that came and were not read
        self._tell = tell
        self._change = threading.Condition()
        self._body: deque[bytes] = deque()
        self._ended = False  # the body is whole
        self._gone = ""  # the reason why nobody waits, or ""
        self._answer: deque[bytes] = deque()
        self._unsent = 0
        # By stream: descriptor, position, length, offset.
        self.lends: dict[int, tuple[int, int, int, int]] = {}
        self._returned: dict[int, tuple[int, int, int]] = {}

    # -- the handler's side ------------------------------------------------------------------------

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes of the body, at least one; b"" is its end. Raises Abandoned."""
        with self._change:
            while not self._body:
                if self._ended:
                    return b""
                if self._gone:
                    raise Abandoned(self._gone)
                self._change.wait()
            if self._gone and not self._ended:
                raise Abandoned(self._gone)
            data = gather(self._body, size)
            self.taken += len(data)
            self.held -= len(data)
        self._tell(self)
        return data

    def write(self, data: Buffer) -> None:
        """Send `data` as the next bytes of the answer; waits for the other end to take them. Raises Abandoned."""
        if not len(data):
            return
        with memoryview(data) as whole, whole.cast("B") as view:
            for at in range(0, len(view), OUTBOX):
                self._put(
                    data if isinstance(data, bytes) and len(data) <= OUTBOX else bytes(view[at : at + OUTBOX])
                )

    def _put(self, data: bytes) -> None:
        with self._change:
            while self._unsent >= OUTBOX and not self._gone:
                self._change.wait()
            if self._gone:
                raise Abandoned(self._gone)
            self._answer.append(data)
            self._unsent += len(data)
        self._tell(self)

    def _lend_source(self, fd: int, at: int, length: int) -> tuple[int, int]:
        with self._change:
            moved, errno, _ = self._lend(STDOUT, (fd, at, length, 0), lambda: None)
            return moved, errno

    def _lend_sink(self, fd: int, at: int, length: int) -> tuple[int, int]:
        with self._change:
            while not self._body and not self._ended and not self._gone:
                self._change.wait()
            if self._ended or self.held >= length:
                return 0, 0  # all of it is here
            start = self.taken
            end = start + length  # bytes behind that belong to the stream, not to the file

            def write() -> None:
                border = min(end, self._returned[STDIN][2]) if STDIN in self._returned else end
                while self._body and self.taken < border:
                    data = gather(self._body, border - self.taken)
                    write_at(fd, data, at + self.taken - start)
                    self.taken += len(data)
                    self.held -= len(data)

            moved, errno, _ = self._lend(STDIN, (fd, at, length, start), write)
            self.taken += moved
            return self.taken - start, errno

    def _lend(
        self, stream: int, lent: tuple[int, int, int, int], work: Callable[[], None]
    ) -> tuple[int, int, int]:
        """Have the main thread lend a descriptor. Returns bytes moved, errno or 0, and their offset in the stream."""
        self._returned.pop(stream, None)
        self.lends[stream] = lent
        self._tell(self)
        try:
            while stream not in self._returned and not self._gone:
                self._change.wait()
                work()
            if stream not in self._returned:
                raise Abandoned(self._gone)
            work()
            return self._returned.pop(stream)
        finally:
            self.lends.pop(stream, None)  # the descriptor is the handler's again, which may close it
            self._tell(self)

    def run(self) -> None:
        """Call the handler, in a thread."""
        try:
            self.handler(self)
        except BaseException as error:
            self.error = str(error) or type(error).__name__
        with self._change:
            self.done = True
            self._gone = self._gone or "it was answered"
            self._change.notify_all()
        self._tell(self)

    # -- the main thread's side --------------------------------------------------------------------

    def put(self, payload: bytes) -> None:
        with self._change:
            if not self._gone:
                self._body.append(payload)
                self.held += len(payload)
                self._change.notify_all()

    def end(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify_all()

    def returned(self, stream: int, moved: int, errno: int, at: int) -> None:
        """Record that lending on a stream has ended; only the first call counts."""
        with self._change:
            self._returned.setdefault(stream, (moved, errno, at))
            self._change.notify_all()

    def lend(self, stream: int, attach: Callable[[int], int]) -> tuple[int, int, int, int] | None:
        """Pass the handler's descriptor to `attach`. Returns the number it got there, position, length and offset.

        None if the handler waits no more: the descriptor may be another file's by now.
        """
        with self._change:
            lent = self.lends.pop(stream, None)
            return (attach(lent[0]), *lent[1:]) if lent else None

    def abandon(self, why: str) -> None:
        with self._change:
            self._gone = self._gone or why
            self._answer.clear()
            self._unsent = 0
            if not self._ended:
                self._body.clear()
                self.held = 0
            self._change.notify_all()

    @property
    def whole(self) -> bool:
        return self._ended

    def take(self, size: int) -> bytes:
        """Remove and return at most `size` bytes of the answer, b"" if none wait."""
        with self._change:
            if not self._answer:
                return b""
            first = self._answer.popleft()
            if len(first) > size:
                self._answer.appendleft(first[size:])
                first = first[:size]
            self._unsent -= len(first)
            if self._unsent < OUTBOX:
                self._change.notify_all()
            return first

    @property
    def empty(self) -> bool:
        return not self._answer


class Streams:
    """The streaming requests of one job. `wake` makes the main thread call `send`, `say` is called with each failure.

    `attach` sends a descriptor to the node; None if nothing can be lent.
    """

    def __init__(
        self,
        session: Session,
        wake: Callable[[], None],
        say: Callable[[str], None],
        attach: Callable[[int], int] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._clock = clock
        self._attach = attach
        self._wake = wake
        self._say = say
        self._open: dict[int, Incoming] = {}
        self._lock = threading.Lock()
        self._news: dict[Incoming, None] = {}
        self._queue: deque[Incoming] = deque()
        self._work = threading.Condition(self._lock)
        self._threads = self._idle = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def open(self, number: int, service: Streaming) -> None:
        incoming = self._open[number] = Incoming(number, service.handler, self._tell)
        with self._lock:
            self._queue.append(incoming)
            if len(self._queue) <= self._idle:
                self._work.notify()
                return
            if self._threads >= THREADS:
                return  # it waits for one of them
            self._threads += 1
        try:
            threading.Thread(target=self._handle, name="stream", daemon=True).start()
        except RuntimeError:  # this machine has no thread left: the request waits for one that exists
            with self._lock:
                self._threads -= 1
                waits = self._threads > 0 or incoming not in self._queue
                if not waits:
                    self._queue.remove(incoming)
            if not waits:
                incoming.error, incoming.done = "no thread can be started at the origin", True
                self._serve(incoming)

    def _handle(self) -> None:
        """Body of a thread: run one request after the other."""
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._idle += 1
                    self._work.wait()
                    self._idle -= 1
                if self._closed:
                    return
                incoming = self._queue.popleft()
            incoming.run()

    def _tell(self, incoming: Incoming) -> None:
        """Have the main thread serve `incoming`; called from a thread."""
        with self._lock:
            first = not self._news
            self._news[incoming] = None
        if first:
            self._wake()

    def on_frame(self, frame: Frame) -> None:
        incoming = self._open[frame.channel]
        kind = frame.kind
        if kind == Kind.RETURN:
            flow = self._session.flow(incoming.number, frame.stream)
            incoming.returned(frame.stream, frame.offset, frame.number("errno"), flow.offset - frame.offset)
            return
        if kind == Kind.ACK and frame.stream == STDOUT:
            flow = self._session.flow(incoming.number, STDOUT)
            self._session.spare -= flow.measure_acked(self._clock(), self._session.spare)
            self._serve(incoming)
        elif kind == Kind.DATA:
            incoming.put(frame.payload)
            if incoming.held > INITIAL_WINDOW and sum(each.held for each in self._open.values()) > HELD:
                self._refuse(incoming, "more bytes than there is room for")
        elif kind == Kind.EOF:
            incoming.end()
            incoming.returned(STDIN, 0, 0, frame.offset)  # a descriptor lent meanwhile moves nothing
        else:  # stop, the last frame, or nobody waits
            incoming.abandon("the requester has gone")
            if frame.stream != LIFE:
                self._serve(incoming)
            elif incoming.done or self._withdrawn(incoming):
                del self._open[frame.channel]

    def _withdrawn(self, incoming: Incoming) -> bool:
        """Remove an incomplete request from the queue; False if it is complete, or no longer queued."""
        with self._lock:
            if incoming.whole or incoming not in self._queue:
                return False
            self._queue.remove(incoming)
            return True

    def send(self) -> None:
        """Serve the requests that threads have reported with `_tell`."""
        with self._lock:
            news, self._news = self._news, {}
        for incoming in news:
            if self._open.get(incoming.number) is incoming:
                self._serve(incoming)

    def _serve(self, incoming: Incoming) -> None:
        session, number = self._session, incoming.number
        done = incoming.done  # read first: then everything that the handler wrote is queued
        if number not in session.channels:
            if done:
                del self._open[number]
            return
        flow = session.flow(number, STDOUT)
        if flow.ended:
            return  # it was answered, and the last frame is on its way
        session.took(number, STDIN, incoming.taken)
        while (credit := flow.credit) and (data := incoming.take(min(CHUNK, credit))):
            session.data(number, STDOUT, data)
            flow.measure_sent(self._clock())
        for stream in list(incoming.lends):
            if not done and (stream == STDIN or incoming.empty):
                self._lend(incoming, stream)
        if done and (incoming.empty or incoming.error is not None):
            self._finish(incoming)

    def _lend(self, incoming: Incoming, stream: int) -> None:
        """Lend a handler's descriptor to the node, at its place in the stream."""
        flow = self._session.flow(incoming.number, stream)
        if self._attach is None or flow.ended:
            incoming.returned(stream, 0, 0, flow.offset)
            return
        try:
            lent = incoming.lend(stream, self._attach)
        except OSError:  # no room for one more descriptor: the handler still has its own
            incoming.returned(stream, 0, 0, flow.offset)
            return
        if lent is None:
            return
        fd, at, length, offset = lent
        body = {"fd": fd, "at": at, "length": length}
        self._session.lend(incoming.number, stream, offset if stream == STDIN else flow.offset, body)

    def _refuse(self, incoming: Incoming, why: str) -> None:
        """Answer in place of the handler, which runs on until its next call fails."""
        if self._session.flow(incoming.number, STDOUT).ended:
            return
        incoming.error = why
        incoming.abandon(why)
        self._finish(incoming)

    def _finish(self, incoming: Incoming) -> None:
        session, number = self._session, incoming.number
        stdin = session.flow(number, STDIN)
        if not stdin.ended:
            session.stop(number, STDIN)
        if incoming.error is not None:
            self._say(incoming.error)
        session.eof(number, STDOUT)
        error = None if incoming.error is None else incoming.error[:4000]
        session.tell(number, Kind.REPLY, {"error": error})

    def close(self) -> None:
        """The proxy ends: end every wait of a handler, and wait for no thread."""
        with self._lock:
            self._closed = True
            self._queue.clear()
            self._work.notify_all()
        for incoming in self._open.values():
            incoming.abandon("the proxy of the job has ended")
