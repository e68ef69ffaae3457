"""The service `fs`: a job's proxy answers the job's requests to the files tier, from whatever store lies behind it.

Laws
1. The requester is not trusted: `protocol` checks each request before a store sees it, and no more than a block of its
   content is held at a time.
2. A put file becomes visible when its COMMIT has come and the store has kept it; then the answer is sent. A put that
   stops earlier leaves nothing.
3. The first request opens the store, once for all, with the environment of this process. If that fails, the answer has
   the error and its cure, and the next request tries again. A pipeline tries once, and all its answers have the error.
4. Handlers run in threads. A large file goes from descriptor to descriptor if both sides have one.
"""

from __future__ import annotations

import contextlib
import io
import threading

from quine.files.api import BLOCK, SMALL, Entry, Request, stale
from quine.files.wire import protocol
from quine.files.wire.protocol import COMMIT, Garbled
from transport import quickjson
from transport.errors import Abandoned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.files.api import Reader, Tier, Writer
    from transport.rpc.incoming import Incoming

LARGE = 256 * 1024  # from this size in bytes on, content goes from descriptor to descriptor


class Service:
    """A handler of streaming requests. The first one calls `opening`, in its own thread."""

    def __init__(self, opening: Callable[[], Tier]) -> None:
        self._opening = opening
        self._tier: Tier | None = None
        self._lock = threading.Lock()

    def __call__(self, incoming: Incoming) -> None:
        try:
            asked = protocol.asked(incoming.read)
            if asked.op == "pipeline":
                _pipeline(self._performing(), incoming)
            else:
                _HANDLERS[asked.op](self._opened(), asked, incoming)
        except (Abandoned, Garbled, _Broken):
            raise
        except Exception as error:  # also a driver's own: the job gets an answer, not a lost origin
            incoming.write(protocol.word(protocol.wrong(error)))

    def _opened(self) -> Tier:
        with self._lock:
            if self._tier is None:
                self._tier = self._opening()
            return self._tier

    def _performing(self) -> Callable[[Request], bytes]:
        """Return the function that answers the requests of one pipeline."""
        try:
            tier = self._opened()
        except Exception as error:
            whole = protocol.word(protocol.wrong(error))
            refusal = whole if len(whole) <= protocol.ANSWER else protocol.short(error)
            return lambda _: refusal
        return lambda asked: _answer(tier, asked)


class _Broken(Exception):
    """An error after the answer has begun; str() is the JSON body that reports it."""

    def __init__(self, error: Exception) -> None:
        body = protocol.wrong(error)
        body.pop("path", None)  # the requester knows it, and the text of an error is short
        super().__init__(quickjson.dumps(body))


def _url(tier: Tier, asked: Request, incoming: Incoming) -> None:
    incoming.write(protocol.word({"url": tier.url_of(asked.path)}))


def _perform(tier: Tier, asked: Request, incoming: Incoming) -> None:
    entry = tier.perform(asked)
    incoming.write(
        protocol.word({"entry": protocol.row(entry, asked.path)} if isinstance(entry, Entry) else {})
    )


def _list(tier: Tier, asked: Request, incoming: Incoming) -> None:
    entries = tier.walk(asked.path) if asked.op == "walk" else tier.list(asked.path)
    for word in protocol.batches(entries, asked.path):
        incoming.write(word)


def _hidden(tier: Tier, asked: Request, incoming: Incoming) -> None:
    """Answer with a list in which only the paths have a meaning."""
    found = (Entry(path, "file") for path in tier.hidden(asked.path))
    for word in protocol.batches(found, asked.path):
        incoming.write(word)


def _get(tier: Tier, asked: Request, incoming: Incoming) -> None:
    with tier.open(asked.path, asked.offset, asked.length) as reader:
        answer: dict[str, object] = {
            "entry": protocol.row(reader.entry, asked.path),
            "offset": reader.offset,
            "length": reader.length,
        }
        holes = reader.holes if len(reader.holes) <= protocol.MOST_HOLES else ()
        if holes:
            answer["holes"] = holes
        head = protocol.word(answer)
        left = reader.length - sum(length for _, length in holes)
        try:
            _send(reader, incoming, head, left, filled=len(holes) < len(reader.holes))
        except Abandoned:
            raise
        except Exception as error:
            raise _Broken(error) from None


def _send(reader: Reader, incoming: Incoming, head: bytes, left: int, filled: bool) -> None:
    """Send the message `head`, then `left` bytes of content; `filled`: with zeros in place of holes."""
    fd = reader.fileno() if left >= LARGE and not reader.holes else -1
    if fd >= 0:
        incoming.write(head)
        if incoming.send_file(fd, left) < left:
            raise stale(reader.entry.path)
        return
    read = reader.read if filled else reader.data
    while left:
        block = read(min(left, BLOCK))
        if not block:
            raise stale(reader.entry.path)
        incoming.write(head + block if head else block)
        head = b""
        left -= len(block)
    if head:
        incoming.write(head)


def _put(tier: Tier, asked: Request, incoming: Incoming) -> None:
    with tier.create(
        asked.path, if_absent=asked.if_absent, mode=asked.mode, mtime=asked.mtime, size=asked.size
    ) as writer:
        promised = asked.size or 0  # bytes beyond it go through `write`, so that a quota counts them
        while True:
            length, hole = protocol.marked(incoming.read)
            promised -= length
            if hole:
                writer.hole(length)
            elif length == COMMIT:
                break
            else:
                _receive(writer, incoming, length, lent=promised >= 0)
        if incoming.read(1):
            raise Garbled("more bytes after the end of a put")
        entry = writer.commit()
    incoming.write(protocol.word({"entry": protocol.row(entry, asked.path)}))


def _receive(writer: Writer, incoming: Incoming, left: int, lent: bool) -> None:
    fd = writer.fileno() if lent and left >= LARGE else -1
    if fd >= 0:
        if incoming.receive_file(fd, left) < left:
            raise Garbled("it ends in the middle of a file")
        return
    while left:
        block = incoming.read(min(left, BLOCK))
        if not block:
            raise Garbled("it ends in the middle of a file")
        writer.write(block)
        left -= len(block)


def _reserve(tier: Tier, asked: Request, incoming: Incoming) -> None:
    """Answer each need, until the job gives its room up."""
    with contextlib.closing(tier.reserve()) as room:
        while True:
            needed = protocol.needed(incoming.read)
            try:
                space, growth = room.need(*needed, "")
                answer = protocol.word({"space": space, "growth": growth})
            except OSError as error:
                answer = protocol.short(error)
            incoming.write(answer)


def _rename(tier: Tier, asked: Request, incoming: Incoming) -> None:
    tier.rename(asked.path, asked.target, asked.if_absent)
    incoming.write(protocol.word({}))


def _move(tier: Tier, asked: Request, incoming: Incoming) -> None:
    incoming.write(protocol.word({"path": tier.move(asked.path, asked.target, asked.if_absent)}))


def _setattr(tier: Tier, asked: Request, incoming: Incoming) -> None:
    entry = tier.setattr(asked.path, mode=asked.mode, mtime=asked.mtime)
    incoming.write(protocol.word({"entry": protocol.row(entry, asked.path)}))


def _copy(tier: Tier, asked: Request, incoming: Incoming) -> None:
    entry = tier.copy(asked.path, asked.target, asked.if_absent)
    incoming.write(protocol.word({"entry": protocol.row(entry, asked.target)}))


def _pipeline(perform: Callable[[Request], bytes], incoming: Incoming) -> None:
    """Do one request after the other. The error of one is its answer, and the next ones go on."""
    body = io.BufferedReader(_Body(incoming), SMALL)
    while body.peek(1):
        asked, content = protocol.pieces(body.read)
        try:
            request = protocol.checked(asked)._replace(content=content)
            answer = perform(request)
        except Garbled:
            raise
        except Exception as error:
            answer = protocol.short(error)
        incoming.write(answer)


def _answer(tier: Tier, asked: Request) -> bytes:
    done = tier.perform(asked)
    if isinstance(done, Entry):
        return protocol.word({"entry": protocol.row(done, asked.path)} if asked.op == "stat" else {})
    if done is None:
        return protocol.word({})
    with done as reader:
        if reader.length > protocol.small(asked) or reader.holes:
            return protocol.word({"alone": True})
        answer = {
            "entry": protocol.row(reader.entry, asked.path),
            "offset": reader.offset,
            "length": reader.length,
        }
        content = bytearray()
        while len(content) < reader.length:
            block = reader.data(reader.length - len(content))
            if not block:
                raise stale(reader.entry.path)
            content += block
        return protocol.word(answer) + content


class _Body(io.RawIOBase):
    """The body of a request for a buffered reader."""

    def __init__(self, incoming: Incoming) -> None:
        self._incoming = incoming

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._incoming.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


_HANDLERS: dict[str, Callable[[Tier, Request, Incoming], None]] = {
    "url": _url,
    "stat": _perform,
    "list": _list,
    "walk": _list,
    "hidden": _hidden,
    "get": _get,
    "put": _put,
    "reserve": _reserve,
    "mkdir": _perform,
    "remove": _perform,
    "rename": _rename,
    "move": _move,
    "setattr": _setattr,
    "copy": _copy,
}
