"""The tier of a job whose origin is elsewhere: each operation is one stream to the origin, and one round trip.

Laws
1. Nothing waits for a first answer: a request, the content and its end leave together, as the window allows. Many
   small operations share a stream (`pipeline.py`).
2. A Writer that was not committed has sent no COMMIT and no end of file, so the origin drops its file, however the
   writer ended. `commit` returns when the store at the origin has kept the file.
3. An operation waits for a link that is down, as every stream does. A lost origin is ENOTCONN, with the reason as its
   text. An answer that breaks the protocol is EIO.
4. Answers of the origin are bounded and checked, too. A list is read batch by batch and never held whole.
"""

from __future__ import annotations

import contextlib
import errno
import os

from quine.files.api import BLOCK, Entry, Reader, Tier, Writer, check_range
from quine.files.room import NO_ROOM, Room
from quine.files.wire import protocol
from quine.files.wire.pipeline import RequestPipeline
from quine.files.wire.protocol import COMMIT, LONGEST_TOLD, Garbled
from quine.files.wire.stream import UNKNOWN, ended, garbled, receive, say, translated

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from quine.files.room import Held
    from transport.rpc.call import Relay
    from transport.rpc.outgoing import Asked

SERVICE = "fs"
FULL = 256 * 1024  # bytes gathered before they are sent
LARGE = 256 * 1024  # from this size in bytes on, content goes from descriptor to descriptor
LOOKS = ("url", "stat")


class Remote(Tier):
    """The store at the origin, asked through `relay`. Any number of threads may use it."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._url = ""

    @property
    def url(self) -> str:  # type: ignore[override]
        """The URL that the origin gives the tier; requested once."""
        if not self._url:
            self._url = self.url_of("")
        return self._url

    def url_of(self, path: str) -> str:
        url = self._request("url", path).get("url")
        if not isinstance(url, str):
            raise garbled(Garbled("a URL that is none"), path)
        return url

    def stat(self, path: str) -> Entry:
        return self._entry("stat", path, path)

    def list(self, path: str) -> Iterator[Entry]:
        return self._list("list", path)

    def walk(self, path: str) -> Iterator[Entry]:
        return self._list("walk", path)

    def hidden(self, path: str) -> Iterator[str]:
        return (entry.path for entry in self._list("hidden", path))

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        check_range(path, offset, length)
        asked = self.stream(path)
        try:
            say(asked, protocol.ask("get", path=path, offset=offset, length=length), path)
            answer = receive(asked, path)
            with translated(path):
                return _Reader(asked, path, *protocol.opened(answer, path))
        except BaseException:
            asked.close()
            raise

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        head = protocol.ask("put", path=path, if_absent=if_absent, mode=mode, mtime=mtime, size=size)
        return _Writer(self, path, head)

    def reserve(self) -> Room:
        return _Room(self)

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        self._request("mkdir", path, exist_ok=exist_ok)

    def remove(self, path: str, recursive: bool = False) -> None:
        self._request("remove", path, recursive=recursive)

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        self._request("rename", source, target=target, if_absent=if_absent)

    def move(self, source: str, target: str, if_absent: bool = False) -> str:
        moved = self._request("move", source, target=target, if_absent=if_absent).get("path")
        if not isinstance(moved, str):
            raise garbled(Garbled("a path that is none"), source)
        return protocol.path(moved)

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        return self._entry("setattr", path, path, mode=mode, mtime=mtime)

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        return self._entry("copy", source, target, target=target, if_absent=if_absent)

    def pipeline(self) -> RequestPipeline:
        return RequestPipeline(self)

    def close(self) -> None:
        self._relay.close()

    # -- asking ----------------------------------------------------------------------------------------

    def stream(self, path: str) -> Asked:
        """Begin a request. An OSError names `path`."""
        with translated(path):
            return self._relay.stream(SERVICE)

    def _request(self, op: str, path: str, **fields: object) -> dict[str, Any]:
        with contextlib.closing(self.stream(path)) as asked:
            unknown = "" if op in LOOKS else UNKNOWN
            say(asked, protocol.ask(op, path=path, **fields), path, unknown)
            answer = receive(asked, path, unknown)
            ended(asked, path, unknown)
            return answer

    def _entry(self, op: str, path: str, at: str, **fields: object) -> Entry:
        answer = self._request(op, path, **fields)
        with translated(path):
            return protocol.entry(answer.get("entry"), at)

    def _list(self, op: str, path: str) -> Iterator[Entry]:
        """Read the first message at once, so that an error of the directory is raised by the call, not by the loop."""
        asked = self.stream(path)
        try:
            say(asked, protocol.ask(op, path=path), path)
            answer = receive(asked, path)
        except BaseException:
            asked.close()
            raise
        return _entries(asked, answer, path)


def _entries(asked: Asked, answer: dict[str, Any], path: str) -> Iterator[Entry]:
    with contextlib.closing(asked):
        while True:
            with translated(path):
                entries, more = protocol.batch(answer, path)
            if not more:
                ended(asked, path)
                yield from entries
                return
            yield from entries
            answer = receive(asked, path)


class _Reader(Reader):
    def __init__(
        self,
        asked: Asked,
        path: str,
        entry: Entry,
        offset: int,
        length: int,
        holes: tuple[tuple[int, int], ...],
    ) -> None:
        super().__init__(entry, offset, length)
        self.length, self.holes = length, holes
        self._asked = asked
        self._path = path
        self._left = length - sum(size for _, size in holes)
        if not self._left:
            ended(asked, path)

    def data(self, size: int) -> bytes:
        if not self._left:
            return b""
        with translated(self._path):
            block = self._asked.read(min(size, self._left))
        self._came(len(block))
        return block

    def give(self, fd: int, size: int) -> int:
        if min(size, self._left) < LARGE:
            return super().give(fd, size)
        with translated(self._path):
            came = self._asked.receive_file(fd, min(size, self._left))
        self._came(came)
        return came

    def _came(self, size: int) -> None:
        if not size:
            raise OSError(errno.EIO, "the origin sent less than it said", self._path)
        self._left -= size
        if not self._left:
            ended(self._asked, self._path)  # raises an error that the origin met at the very end

    def close(self) -> None:
        self._asked.close()


class _Room(Room):
    """Room at the origin: one stream, which holds it there while it is open."""

    def __init__(self, tier: Remote) -> None:
        self._tier = tier
        self._asked: Asked | None = None

    def need(self, space: int, growth: int, ahead: int, path: str) -> Held:
        try:
            head = b""
            if self._asked is None:
                self._asked = self._tier.stream(path)
                head = protocol.ask("reserve")
            with translated(path):
                with contextlib.suppress(BrokenPipeError):  # the answer has the reason
                    self._asked.write(head + protocol.need(space, growth, ahead))
                answer = protocol.heard(self._asked.read, LONGEST_TOLD)
                return protocol.held(protocol.check(answer, path))
        except OSError as refused:
            if refused.errno not in NO_ROOM:  # the stream may be over
                self.close()
            raise

    def close(self) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            asked.close()


class _Writer(Writer):
    """Gathers content into blocks; the request itself is sent with the first of them."""

    def __init__(self, tier: Remote, path: str, head: bytes) -> None:
        self._tier = tier
        self._path = path
        self._head = head  # bytes to send before the content: the request, marks of holes
        self._content = bytearray()
        self._asked: Asked | None = None
        self._over = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._check()
        if len(data) < FULL:
            self._content += data
            if len(self._content) >= FULL:
                self._flush()
            return
        self._flush()
        view = memoryview(data).cast("B")
        self._send(self._taken() + protocol.mark(len(view)))
        for at in range(0, len(view), BLOCK):
            self._send(view[at : at + BLOCK])

    def take(self, fd: int, length: int) -> int:
        if length < LARGE:
            return super().take(fd, length)
        self._check()
        self._flush()
        there = (
            max(0, min(length, os.fstat(fd).st_size - os.lseek(fd, 0, os.SEEK_CUR))) if _regular(fd) else 0
        )
        if there < LARGE:
            return super().take(fd, length)
        self._send(self._taken() + protocol.mark(there))
        asked = self._stream()
        with self._refused():
            sent = asked.send_file(fd, there)
        if (
            sent < there
        ):  # the file has shrunk, and the origin would wait for the bytes that the mark announced
            self.abort()
            raise OSError(errno.EIO, "a file became shorter while it was sent", self._path)
        return there

    def hole(self, length: int) -> None:
        self._check()
        if length:
            self._flush()
            self._head += protocol.mark(length, hole=True)
            if len(self._head) >= FULL:
                self._send(self._taken())

    def commit(self) -> Entry:
        self._check()
        try:
            self._gathered()
            self._send(self._taken() + protocol.mark(COMMIT))
            asked = self._stream()
            with self._refused(UNKNOWN):
                asked.end()
            answer = receive(asked, self._path, UNKNOWN)
            ended(asked, self._path, UNKNOWN)
            with translated(self._path):
                return protocol.entry(answer.get("entry"), self._path)
        finally:
            self.abort()

    def abort(self) -> None:
        self._over = True
        self._content.clear()
        if self._asked:
            self._asked.close()

    # -- sending ---------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._over:
            raise OSError(errno.EBADF, "the file is written to no more", self._path)

    def _stream(self) -> Asked:
        if self._asked is None:
            self._asked = self._tier.stream(self._path)
        return self._asked

    def _gathered(self) -> None:
        """Append the gathered content, with its mark, to the bytes that are sent next."""
        if self._content:
            self._head += protocol.mark(len(self._content)) + self._content
            self._content.clear()

    def _flush(self) -> None:
        self._gathered()
        if len(self._head) >= FULL:
            self._send(self._taken())

    def _taken(self) -> bytes:
        head, self._head = self._head, b""
        return head

    def _send(self, data: bytes | memoryview) -> None:
        asked = self._stream()
        with self._refused():
            asked.write(data)

    @contextlib.contextmanager
    def _refused(self, unknown: str = "") -> Iterator[None]:
        """If the origin has stopped reading, raise the error of its answer. Any OSError aborts the writer."""
        try:
            with translated(self._path, unknown):
                yield
        except BrokenPipeError:
            asked = self._stream()
            try:
                receive(asked, self._path)
                raise OSError(errno.EIO, "the origin answered before it had the whole file", self._path)
            finally:
                self.abort()
        except OSError:
            self.abort()
            raise


def _regular(fd: int) -> bool:
    import stat

    return stat.S_ISREG(os.fstat(fd).st_mode)
