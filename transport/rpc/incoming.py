"""One streaming request at the origin, as its handler sees it: a body and an answer of any size.

Laws
1. The handler runs in a thread, and takes and leaves bytes; `Streams`, in the main thread, carries them.
2. Memory is bounded: bytes that a handler has not read are not acknowledged. A handler that writes waits while
   OUTBOX bytes of its answer have no credit.
3. A complete body is read to its end, whatever becomes of its sender: its end is the commit. An incomplete one ends
   with `Abandoned`, never with an end of file.
"""

from __future__ import annotations

from transport.errors import Abandoned
from transport.lean import deque
from transport.rpc.lendable import Lends
from transport.rpc.outgoing import gather
from transport.wire.session import STDIN, STDOUT
from transport.writes import write_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.rpc.outgoing import Buffer

OUTBOX = 256 * 1024  # bytes of an answer that wait for credit


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
        import threading  # here: see streams.py

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
