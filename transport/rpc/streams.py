"""The streaming requests of one job at its origin: its threads, and the frames to and from its session.

Laws
1. The main thread alone touches the session. A thread gets bytes and leaves bytes, and wakes the main thread.
2. At most THREADS handlers run at one time, the others wait their turn, in order. Plain requests have other threads:
   a handler may wait for its requester for hours, and must not delay them.
3. No thread keeps this process from ending: all of them are daemons, and `close` ends every wait.
"""

from __future__ import annotations

import _thread
import time

from transport.lean import deque
from transport.rpc.incoming import Incoming
from transport.wire.flow import INITIAL_WINDOW
from transport.wire.frames import CHUNK, LIFE, Frame, Kind
from transport.wire.session import STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from transport.rpc.incoming import Streaming
    from transport.wire.session import Session

THREADS = 256  # handlers at one time; one of them may wait for its requester for hours
HELD = 256 * 1024 * 1024  # unread bytes of all bodies; windows of a conforming peer stay below it together


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
        self._lock = _thread.allocate_lock()
        self._news: dict[Incoming, None] = {}
        self._queue: deque[Incoming] = deque()
        self._work: threading.Condition | None = None  # made for the first request
        self._threads = self._idle = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def open(self, number: int, service: Streaming) -> None:
        import threading  # here: 0.7 MB of each proxy, and most have no streams

        incoming = self._open[number] = Incoming(number, service.handler, self._tell)
        with self._lock:
            if self._work is None:
                self._work = threading.Condition(self._lock)
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
        assert self._work
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
            if self._work:
                self._work.notify_all()
        for incoming in self._open.values():
            incoming.abandon("the proxy of the job has ended")
