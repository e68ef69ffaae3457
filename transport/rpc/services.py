"""The origin's side of requests: bodies gathered, handlers called in threads, replies sent as credit allows.

Bodies and replies here are those of plain services; of streaming ones nothing is gathered (`incoming.py`).

Laws
1. The main thread alone touches the session; a thread gets bytes and leaves bytes, and wakes the main thread.
2. A request must carry the capability of the very job that asks, which dies with it; any other is refused unread.
3. The memory that a peer can make us hold is bounded in sum, whatever it opens at once. Above HELD only the oldest
   request gets credit, and none where those with a handler alone are above HELD: it would join them. A request that
   stays incomplete holds its first window, and nothing once others need the room. A withdrawn request counts until its
   handler has ended.
4. A handler that fails answers with its error; it never ends the connection. Every refusal is one line in the log,
   and a defect is logged with its traceback.
5. Each service has threads of its own: handlers that block for minutes do not delay another service.
"""

from __future__ import annotations

import _thread
import os
import time

from transport.errors import TransportError
from transport.lean import deque
from transport.rpc.incoming import Streaming
from transport.rpc.pool import Threads
from transport.rpc.streams import Streams
from transport.wire.flow import INITIAL_WINDOW
from transport.wire.frames import CHUNK, LIFE, Frame, Kind
from transport.wire.session import STDIN, STDOUT

try:
    from _operator import _compare_digest as compare_digest  # hmac loads OpenSSL for it: 5 ms of every proxy
except ImportError:
    from hmac import compare_digest  # type: ignore[no-redef]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Protocol

    from transport.wire.session import Session

    Service = Callable[[bytes], bytes] | Streaming

    class Pool(Protocol):
        """The part of concurrent.futures.Executor that is needed here."""

        def submit(self, work: Callable[..., None], /, *args: Any) -> object: ...

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None: ...


MAX_BODY = 16 * 1024 * 1024  # bytes of one body: a conversation of two million tokens
MAX_OPEN = 256  # requests of one job at a time; each of its agents has one
HELD = 16 * 1024 * 1024  # bytes of all bodies and replies of one job; a handler makes several times as many
STALLED = 10.0  # seconds without a byte after which a request gives way to others
LOOK = 1000  # milliseconds between two searches for a stalled request
MOST_NOTES = 100  # refusals of one job that are logged: a flood must not fill the disk
THREADS = 32  # handlers of one service at one time


class Services:
    """Answers the requests of one job; with `rights`, those of all jobs of a connection.

    `rights` returns the capability and the handlers of the job on a channel, None if there is no such job; `handlers`
    and `capability` are not used then. `most` are the requests that are open at one time, `threads` the handlers of one
    service.

    `wake` is a descriptor that is written to when a reply is ready; `note` is called with each refusal. `attach` sends
    a descriptor to the node (`Wire.attach`); without it nothing is lent. `clock` gives seconds. `pool` runs plain
    handlers in place of own threads. With both, and a negative `wake`, the caller determines the order.
    """

    def __init__(
        self,
        session: Session,
        handlers: Mapping[str, Service],
        wake: int,
        capability: str,
        note: Callable[[str], None] | None = None,
        attach: Callable[[int], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
        pool: Pool | None = None,
        rights: Callable[[object], tuple[str, Mapping[str, Service]] | None] | None = None,
        most: int = 0,
        threads: int = 0,
    ) -> None:
        self._clock = clock
        self._session = session
        self._rights = rights or (lambda _: (capability, handlers))
        self._most = most
        self._most_threads = threads or THREADS
        self._wake = wake
        self._note = note
        self._notes = 0
        self._bodies: dict[int, bytearray] = {}  # incomplete ones, the oldest first
        self._heard: dict[int, float] = {}
        self._names: dict[int, str] = {}
        self._handlers: dict[int, Callable[[bytes], bytes]] = {}  # of the incomplete ones
        self._working: set[int] = set()  # requests with a handler under way,
        self._queued: set[int] = set()  # and those of them that no thread has taken yet
        self._sizes: dict[int, int] = {}  # bytes held for each request
        self._held = 0
        self._done: deque[tuple[int, bytes, str | None]] = deque()
        self._defects: deque[str] = deque()  # tracebacks, for the log
        self._replies: dict[int, memoryview] = {}
        self._pool = pool
        self._pools: dict[str, Pool] = {}  # by service, where no pool was given
        self._lock = _thread.allocate_lock()
        self._streams = Streams(session, self._wake_up, self._say, attach, clock)

    def on_frame(self, frame: Frame) -> None:
        number = frame.channel
        if frame.kind == Kind.REQUEST:
            self._open(number, frame)
        elif number in self._streams:
            self._streams.on_frame(frame)
        elif frame.stream == LIFE:
            self._forget(number)  # answered, or nobody waits for it any more
        elif frame.kind == Kind.DATA and number in self._bodies:
            self._gather(number, frame.payload)
        elif frame.kind == Kind.EOF and number in self._bodies:
            self._call(number)
        elif frame.kind in (Kind.ACK, Kind.STOP):
            self._send_reply(number)

    # -- bodies ------------------------------------------------------------------------------------

    def _open(self, number: int, frame: Frame) -> None:
        body = frame.body()
        name, shown = body.get("name"), str(body.get("capability")).encode("utf-8", "backslashreplace")
        self._session.tell(number, Kind.ATTACH, {})
        rights, most = self._rights(body.get("job")), self._most or MAX_OPEN
        if rights is None or not compare_digest(shown, rights[0].encode()):
            self._refuse(number, "the capability is not that of this job")
        elif not isinstance(name, str) or name not in rights[1]:
            self._refuse(number, f"no service named {str(name)[:40]!r} at the origin")
        elif isinstance(service := rights[1][name], Streaming):
            if len(self._streams) < most:
                self._streams.open(number, service)
            else:
                self._refuse(number, "too many requests at one time")
        elif len(self._names) >= most and not self._make_room():
            self._refuse(number, "too many requests at one time")
        else:
            self._names[number] = name
            self._handlers[number] = service
            self._bodies[number] = bytearray()
            self._heard[number] = self._clock()
        self.send()

    def _gather(self, number: int, payload: bytes) -> None:
        body = self._bodies[number]
        body += payload
        self._hold(number, len(body))
        self._heard[number] = self._clock()
        flow = self._session.flow(number, STDIN)
        if len(body) > MAX_BODY:
            self._drop(number, f"a request of more than {MAX_BODY} bytes")
        elif flow.offset - flow.acked > INITIAL_WINDOW:
            self._drop(number, "more bytes than there was credit for")
        else:
            self._credit()

    def _credit(self) -> None:
        """Acknowledge received bytes: of all requests while there is room, else of the oldest, so that one goes on.

        Where the handlers have all of the room, the next credit comes with the end of one.
        """
        if self._full:
            return
        for number, body in list(self._bodies.items()):
            self._session.took(number, STDIN, len(body))
            if self._held > HELD:
                return

    def _hold(self, number: int, size: int) -> None:
        """Record that a request holds `size` bytes from now on; 0: nothing any more."""
        self._held += size - self._sizes.pop(number, 0)
        if size:
            self._sizes[number] = size

    @property
    def crowded(self) -> bool:
        """True if a request waits for room that other incomplete ones have."""
        return self._held > HELD and len(self._bodies) > 0 and not self._full

    @property
    def _full(self) -> bool:
        """Whether complete requests and their replies have all of the room."""
        return self._held > HELD and self._held - sum(map(len, self._bodies.values())) > HELD

    def relieve(self, pause: int | None) -> int | None:
        """If crowded, refuse the oldest stalled request. Returns milliseconds until the next call is due."""
        if self._bodies and self._full:  # they wait for us
            self._heard.update(dict.fromkeys(self._bodies, self._clock()))
            return min(pause or LOOK, LOOK)
        if not self.crowded:
            return pause
        if self._make_room():
            self._credit()
            self.send()
        return min(pause or LOOK, LOOK)

    def _make_room(self) -> bool:
        """Refuse one request of which nothing has come for STALLED seconds; False if there is none."""
        if self._full:
            return False
        late = self._clock() - STALLED
        number = next((number for number in self._bodies if self._heard[number] < late), None)
        if number is None:
            return False
        self._drop(number, "its body did not come, and others needed the room")
        return True

    def _drop(self, number: int, why: str) -> None:
        del self._bodies[number], self._heard[number], self._handlers[number]
        self._session.stop(number, STDIN)
        self._refuse(number, why)
        self.send()

    def _refuse(self, number: int, why: str) -> None:
        self._done.append((number, b"", why))

    def _forget(self, number: int) -> None:
        if number not in self._working:  # otherwise its body is queued, or used by a handler
            for table in (self._bodies, self._heard, self._names, self._handlers, self._replies):
                table.pop(number, None)
            self._hold(number, 0)
            self._credit()

    # -- answers -----------------------------------------------------------------------------------

    def _call(self, number: int) -> None:
        body = bytes(self._bodies.pop(number))
        del self._heard[number]
        self._working.add(number)
        name = self._names[number]
        handler = self._handlers.pop(number)
        self._queued.add(number)
        try:
            (self._pool or self._threads(name)).submit(self._work, number, handler, body)
        except RuntimeError:  # this machine has no thread left
            if self._unqueue(number):
                self._refuse(number, "no thread can be started at the origin")
                self.send()
        self._credit()  # another one is the oldest

    def _unqueue(self, number: int) -> bool:
        """Claim a queued request, from any thread. Only the first caller gets True: it handles or refuses it."""
        try:
            self._queued.remove(number)
        except KeyError:
            return False
        return True

    def _threads(self, name: str) -> Pool:
        """The threads of one service, made for its first request."""
        if name not in self._pools:
            self._pools[name] = Threads(self._most_threads)
        return self._pools[name]

    def _work(self, number: int, handler: Callable[[bytes], bytes], body: bytes) -> None:
        """Call the handler, in a thread, and queue the result."""
        if not self._unqueue(number):
            return
        try:
            result: tuple[int, bytes, str | None] = (number, handler(body), None)
        except (TransportError, OSError) as error:
            result = (number, b"", str(error) or type(error).__name__)
        except (
            BaseException
        ) as error:  # also a SystemExit: nobody else would answer, and this thread would end
            import traceback  # loaded only for a defect

            self._defects.append(traceback.format_exc())
            result = (number, b"", str(error) or type(error).__name__)
        self._done.append(result)
        self._wake_up()

    def _wake_up(self) -> None:
        """Wake the main thread, from any thread."""
        with self._lock:
            if self._wake < 0:
                return  # `close` was called, and the number of the descriptor may be in use again
            try:
                os.write(self._wake, b"\0")
            except BlockingIOError:
                pass  # it will wake anyway

    def send(self) -> None:
        """Send the results that the threads have left."""
        self._streams.send()
        while self._defects:
            self._say(f"defect in the handler of a request: {self._defects.popleft()}")
        while self._done:
            number, reply, error = self._done.popleft()
            self._working.discard(number)
            self._hold(number, 0)
            if number not in self._session.channels:
                self._forget(number)
                continue
            if error is None and self._held + len(reply) > 2 * HELD:
                error = "too many replies that nobody reads"
            if error is not None:
                self._say(f"request {self._names.get(number, '')!r} refused: {error}")
                self._names.pop(
                    number, None
                )  # its place is free, whether or not the requester reads the refusal
                self._session.eof(number, STDOUT)
                self._session.tell(number, Kind.REPLY, {"error": error[:4000]})
            else:
                self._hold(number, len(reply))
                self._replies[number] = memoryview(reply)
                self._send_reply(number)
            self._credit()

    def _say(self, text: str) -> None:
        self._notes += 1
        if self._note and self._notes <= MOST_NOTES:
            self._note(text if self._notes < MOST_NOTES else f"{text}; no more of these are noted")

    def _send_reply(self, number: int) -> None:
        left = self._replies.get(number)
        if left is None:
            return
        flow = self._session.flow(number, STDOUT)
        while left and (size := min(CHUNK, flow.credit, len(left))):
            self._session.data(number, STDOUT, bytes(left[:size]))
            left = left[size:]
        if left and not flow.stopped:
            self._replies[number] = left
            return
        del self._replies[number]
        self._hold(number, 0)
        self._credit()
        self._session.eof(number, STDOUT)
        self._session.tell(number, Kind.REPLY, {"error": None})

    def close(self) -> None:
        """Forget the handlers that still run: their replies cannot be delivered."""
        with self._lock:
            self._wake = -1
        self._streams.close()
        for pool in (*self._pools.values(), *([self._pool] if self._pool else [])):
            pool.shutdown(wait=False, cancel_futures=True)
