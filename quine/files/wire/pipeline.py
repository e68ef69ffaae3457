"""Many small requests to the service `fs` over one stream: no request waits for the answer to another.

Laws
1. The answers under way, and the contents of puts, are at most ROOM bytes. The origin can hold that many answers that
   nobody reads, so it goes on reading, and a sender that reads no answer meanwhile waits for no credit for ever.
2. A file that the origin does not want to send in between, because it is large or has holes, is opened by itself.
3. If the stream is lost, the outcome of each change without an answer is unknown: it was done whole or not at all.
"""

from __future__ import annotations

import contextlib
import errno
from itertools import islice

from quine.files.api import SMALL, Entry, OutcomeUnknown, Pipeline, Reader, Request
from quine.files.wire import protocol
from quine.files.wire.protocol import ANSWER, LONGEST_TOLD, Garbled
from quine.files.wire.stream import UNKNOWN, ended, translated
from transport.lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    from transport.rpc.outgoing import Asked

    class Origin(Protocol):
        def stream(self, path: str) -> Asked: ...

        def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader: ...


ROOM = 256 * 1024  # bytes of answers that the origin holds for a stream, and no more than `incoming.OUTBOX`
FULL = 16 * 1024  # bytes of requests gathered before they are sent
MOST_GATHERED = 16  # requests gathered before they are sent
LOOKS = ("stat", "get")


class RequestPipeline(Pipeline):
    """The stream begins with the first request that is sent."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._asked: Asked | None = None
        self._unsent = b""
        self._gathered = 0  # the requests in it
        self._waiting: deque[Request] = deque()  # without their contents
        self._cost = 0  # bytes that these may hold

    def full(self, request: Request) -> bool:
        return bool(self._waiting) and self._cost + _cost(request) > ROOM

    def send(self, request: Request) -> None:
        if not _alone(request):
            self._unsent += protocol.piece(request)
        self._waiting.append(request._replace(size=len(request.content) or request.size, content=b""))
        self._cost += _cost(request)
        self._gathered += 1
        if len(self._unsent) >= FULL or self._gathered >= MOST_GATHERED:
            self._flush()

    def answer(self) -> Entry | Reader | None:
        if self._gathered == len(self._waiting):  # also the oldest one
            self._flush()
        unknown = self._unknown()
        request = self._waiting.popleft()
        self._cost -= _cost(request)
        path = request.path
        if _alone(request):
            return self._open(path, unknown)
        assert self._asked
        with translated(path, unknown):
            answer = protocol.check(protocol.heard(self._asked.read, LONGEST_TOLD), path)
            if request.op == "stat":
                return protocol.entry(answer.get("entry"), path)
            if request.op != "get":
                return None
            if answer.get("alone") is not True:
                entry, offset, length, holes = protocol.opened(answer, path)
                if offset or holes or length > protocol.small(request):
                    raise Garbled("more than it should be")
                return _Held(entry, protocol.exactly(self._asked.read, length))
        return self._open(path, unknown)

    def _open(self, path: str, unknown: str) -> Reader:
        try:
            return self._origin.open(path)
        except OSError as error:
            if unknown and error.errno == errno.ENOTCONN and not isinstance(error, OutcomeUnknown):
                raise OutcomeUnknown(errno.ENOTCONN, f"{error.strerror}; {unknown}", path) from None
            raise

    def _flush(self) -> None:
        """Send what was gathered. If the origin reads no more, go on: the next answer has the reason."""
        data, self._unsent, self._gathered = self._unsent, b"", 0
        if not data:
            return
        path = self._waiting[0].path
        if self._asked is None:
            self._asked = self._origin.stream(path)
            data = protocol.ask("pipeline") + data
        with contextlib.suppress(BrokenPipeError), translated(path, self._unknown()):
            self._asked.write(data)

    def _unknown(self) -> str:
        """Return UNKNOWN if a change was sent and has no answer yet: it is under way if the stream is lost now."""
        sent = islice(self._waiting, len(self._waiting) - self._gathered)
        return UNKNOWN if any(each.op not in LOOKS for each in sent) else ""

    def end(self) -> None:
        if self._asked:
            with contextlib.suppress(BrokenPipeError), translated(""):
                self._asked.end()
            ended(self._asked, "")

    def close(self) -> None:
        if self._asked:
            self._asked.close()


def _cost(request: Request) -> int:
    """Bytes of the content of a request or its answer, and of the rest of the answer."""
    if _alone(request) or request.op not in ("get", "put"):
        return ANSWER
    return ANSWER + protocol.small(request)


def _alone(request: Request) -> bool:
    return request.op == "get" and (request.size or 0) > SMALL


class _Held(Reader):
    """A small file, held whole."""

    def __init__(self, entry: Entry, content: bytes) -> None:
        super().__init__(entry, 0, None)
        self.length = len(content)
        self._left = memoryview(content)

    def data(self, size: int) -> bytes:
        block, self._left = self._left[:size], self._left[size:]
        return bytes(block)

    def close(self) -> None:
        return
