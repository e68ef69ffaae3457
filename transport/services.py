"""The origin's side of requests: bodies gathered, handlers called in threads, replies sent as credit allows.

Laws
1. The main thread alone touches the session; a thread gets bytes and leaves bytes, and wakes the main thread.
2. What a peer can make us hold is bounded: bodies by MAX_BODY and MAX_HELD, handlers by THREADS, requests by MAX_OPEN;
   one that was taken back counts until its handler has ended.
3. A handler that fails answers with its error; it never ends the connection.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor

from transport.frames import CHUNK, LIFE, Frame, Kind
from transport.session import STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transport.session import Session

MAX_BODY = 64 * 1024 * 1024  # a conversation of ten million tokens; more is not one
MAX_HELD = 2 * MAX_BODY  # of all bodies that are here, arriving or asked about
MAX_OPEN = 64  # requests of one job at a time; its agents infer one after the other
THREADS = 32


class Services:
    """Answers the requests of one job. `wake` is written to when a reply is ready."""

    def __init__(self, session: Session, handlers: Mapping[str, Callable[[bytes], bytes]], wake: int) -> None:
        self._session = session
        self._handlers = handlers
        self._wake = wake
        self._bodies: dict[int, bytearray] = {}
        self._names: dict[int, str] = {}
        self._working: dict[int, int] = {}  # requests with a handler under way -> bytes of their bodies
        self._held = 0  # bytes of bodies that are here
        self._done: deque[tuple[int, bytes, str | None]] = deque()
        self._replies: dict[int, memoryview] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def on_frame(self, frame: Frame) -> None:
        number = frame.channel
        if frame.kind == Kind.REQUEST:
            self._open(number, str(frame.body().get("name")))
        elif frame.stream == LIFE:
            self._drop(number)
            for table in (self._names, self._replies):
                table.pop(number, None)  # answered, or nobody waits for it any more
        elif frame.kind == Kind.DATA and number in self._bodies:
            self._gather(number, frame.payload)
        elif frame.kind == Kind.EOF and number in self._bodies:
            self._call(number)
        elif frame.kind in (Kind.ACK, Kind.STOP):
            self._send_reply(number)

    def _open(self, number: int, name: str) -> None:
        self._session.tell(number, Kind.ATTACH, {})
        if name not in self._handlers:
            self._done.append((number, b"", f"no service named {name[:40]!r} at the origin"))
        elif len(self._names.keys() | self._working.keys()) >= MAX_OPEN:
            self._done.append((number, b"", "too many requests at one time"))
        else:
            self._bodies[number] = bytearray()
            self._names[number] = name
        self.send()

    def _gather(self, number: int, payload: bytes) -> None:
        body = self._bodies[number]
        body += payload
        self._held += len(payload)
        if len(body) > MAX_BODY:
            self._refuse(number, f"a request of more than {MAX_BODY} bytes")
        elif self._held > MAX_HELD:
            self._refuse(number, f"requests of more than {MAX_HELD} bytes at one time")
        else:
            self._session.took(number, STDIN, len(body))

    def _refuse(self, number: int, why: str) -> None:
        self._drop(number)
        self._session.stop(number, STDIN)
        self._done.append((number, b"", why))
        self.send()

    def _drop(self, number: int) -> None:
        self._held -= len(self._bodies.pop(number, b""))

    def _call(self, number: int) -> None:
        body = bytes(self._bodies.pop(number))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "request")
        self._working[number] = len(body)
        self._pool.submit(self._work, number, self._handlers[self._names[number]], body)

    def _work(self, number: int, handler: Callable[[bytes], bytes], body: bytes) -> None:
        """In a thread."""
        try:
            result: tuple[int, bytes, str | None] = (number, handler(body), None)
        except Exception as error:
            result = (number, b"", str(error) or type(error).__name__)
        self._done.append(result)
        with self._lock:
            if self._wake < 0:
                return  # the face has ended meanwhile, and its descriptor may be somebody else's
            try:
                os.write(self._wake, b"\0")
            except BlockingIOError:
                pass  # it will wake anyway

    def send(self) -> None:
        """Send what the threads have finished."""
        while self._done:
            number, reply, error = self._done.popleft()
            self._held -= self._working.pop(number, 0)
            if number not in self._session.channels:
                continue
            if error is not None:
                self._session.eof(number, STDOUT)
                self._session.tell(number, Kind.REPLY, {"error": error[:4000]})
            else:
                self._replies[number] = memoryview(reply)
                self._send_reply(number)

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
        self._session.eof(number, STDOUT)
        self._session.tell(number, Kind.REPLY, {"error": None})

    def close(self) -> None:
        """Forget the handlers that still run: their replies have no way to go."""
        with self._lock:
            self._wake = -1
        if self._pool:
            self._pool.shutdown(wait=False, cancel_futures=True)
