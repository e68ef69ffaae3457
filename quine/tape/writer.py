"""The append-only record of one session: JSON lines, each on disk before the next step is taken.

Laws
1. One entry per line: {"type", "data", "seq", "ts", "prev"}. `prev` is the SHA-256 of the line before (without its
   newline), "" in the first: a changed, lost or torn line shows. No line may follow an outcome to vouch for it, so it
   carries its own hash: `data.seal` is the SHA-256 of that very line without the seal.
2. `add` only collects; `sync` makes the collected lines durable, in one write. It is called before anything that the
   entries describe can have an effect; the lines before an inference of the origin may go with it instead, see `ahead`.
   A write that fails leaves a whole tape behind.
3. Known secrets are masked before they are written, in the values of `data` and nowhere else. The machine that knows
   them does it: an agent elsewhere has no secrets to mask with, so its lines are masked and chained anew on their way.
4. A tape has one writer. After fork() the child drops its parent's tape and opens its own.
"""

from __future__ import annotations

import os
import time

from quine.base import data_directory, dirs
from quine.base.errors import DEFECT, LOST, NOT_STARTED, Failure
from quine.base.messages import Message
from quine.tape.lines import LONGEST, digest, parse, seal_holds
from quine.tape.redact import Mask
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any, Protocol, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quine.tape.redact import Secret

_MOST = 512  # buffers of one write; Linux takes 1024
OWN = "own"  # in the meta: the seal of the user whose quine has begun the session here
AHEAD = 64 * 1024  # bytes of lines that go with another request


class Sink(Protocol):
    def put(self, lines: Sequence[bytes]) -> None:
        """Make whole lines (without newlines) durable, in order."""

    def close(self) -> None: ...


class FileSink:
    """A file that this process creates and is the only one to append to.

    `begins`: nothing of the agent was before this tape, so if its first lines cannot be written nothing was started.
    """

    def __init__(self, path: str, begins: bool = True) -> None:
        self.path = path
        self._begins = begins
        self._fd = -1
        self._size = -1  # bytes known to be whole lines; -1 = there is no file yet

    def put(self, lines: Sequence[bytes]) -> None:
        try:
            if self._fd < 0:
                dirs.make(os.path.dirname(self.path))
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                # Created once: an existing file belongs to another session, or to an attempt to be this one.
                flags |= os.O_CREAT | os.O_EXCL if self._size < 0 else 0
                self._fd = os.open(self.path, flags, 0o600)
                self._size = max(0, self._size)
            self._write([memoryview(part) for line in lines for part in (line, b"\n")])
            os.fsync(self._fd)
            self._size += sum(len(line) + 1 for line in lines)
        except OSError as error:
            unborn = self._begins and self._size <= 0 and not isinstance(error, FileExistsError)
            self._undo()
            why = f"the tape {self.path} cannot be written: {error.strerror}"
            raise Failure(NOT_STARTED if unborn else LOST, why) from None

    def _undo(self) -> None:
        """Take back half a line: a tape ends at a line unless its writer died. One without a line is removed."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._size)
            if not self._size:
                os.unlink(self.path)
                self.close()
                self._size = -1

    def _write(self, parts: list[memoryview]) -> None:
        """Write all parts, without a copy."""
        at = 0
        while at < len(parts):
            written = os.writev(self._fd, parts[at : at + _MOST])
            while at < len(parts) and written >= len(parts[at]):
                written -= len(parts[at])
                at += 1
            if written:
                parts[at] = parts[at][written:]

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RelaySink:
    """Sends entries to the origin, which keeps them in its data directory; nothing is kept here."""

    def __init__(self, ask: Callable[[str, bytes], bytes], session: str) -> None:
        self._ask = ask
        self._session = session

    def put(self, lines: Sequence[bytes]) -> None:
        body = {"session": self._session, "lines": [line.decode() for line in lines]}
        try:
            self._ask("tape", quickjson.dumps(body).encode())
        except RequestError as error:
            raise Failure(LOST, f"the tape cannot be sent to the origin: {error}") from None

    def close(self) -> None:
        pass


class MaskedSink:
    """Masks the lines of a tape that another machine wrote, and chains each to the line before as it is here.

    An invalid seal is not replaced by a valid one. A line is never written longer than it came: its sender is bounded.
    """

    def __init__(self, sink: Sink, mask: Mask) -> None:
        self._sink = sink
        self._mask = mask
        self._prev = ""

    def put(self, lines: Sequence[bytes]) -> None:
        written, prev = [], self._prev
        for line in lines:
            masked = self._masked(line, prev)
            written.append(masked)
            prev = digest(masked)
        self._sink.put(written)
        self._prev = prev  # not before: lines that could not be written come again

    def _masked(self, line: bytes, prev: str) -> bytes:
        try:
            entry = {**parse(line), "prev": prev}
            sealed = entry["type"] == "outcome" and seal_holds(line) is True
            if sealed:
                entry["data"].pop("seal", None)
            masked = self._mask.line(entry, sealed)
        except RecursionError:
            raise Failure(LOST, "a line nests too deep") from None
        except ValueError as error:
            raise Failure(LOST, f"a line cannot be read: {error}") from None
        if len(masked) > len(line):
            raise Failure(LOST, "a line would be longer here than it came")
        return masked

    def close(self) -> None:
        self._sink.close()


class Tape:
    def __init__(self, sink: Sink, secrets: Sequence[Secret] = ()) -> None:
        self._sink = sink
        self._mask = Mask(secrets)
        self._waiting: list[bytes] = []
        self._prev = ""
        self.length = 0  # lines, written or waiting

    def add(self, kind: str, data: dict[str, Any]) -> None:
        entry = {
            "type": kind,
            "data": data,
            "seq": self.length,
            "ts": round(time.time(), 6),
            "prev": self._prev,
        }
        line = self._mask.line(entry, kind == "outcome")
        if len(line) > LONGEST:
            raise Failure(
                LOST, f"a tape takes lines of up to {LONGEST} bytes, and this {kind} has {len(line)}"
            )
        self._prev = digest(line)
        self._waiting.append(line)
        self.length += 1

    def message(self, message: Message, **more: Any) -> None:
        """Add a message, or the result of a call, in the fields of the reference."""
        if message.result is not None:
            result = message.result
            data = {"tool_id": result.call_id, "name": result.name, "content": result.text}
            self.add("tool_result", {**data, "is_error": result.is_error, **more})
        else:
            self.add("message", {**message.to_json(), "timestamp": round(time.time(), 6), **more})

    def sync(self) -> None:
        if self._waiting:
            self._sink.put(self._waiting)
            self._waiting = []

    def ahead(self) -> list[str]:
        """Make the lines durable, or return those that go to the origin with the next inference, which does it first.

        These are kept until they have `arrived`, so the origin may see a line twice.
        """
        if isinstance(self._sink, RelaySink) and sum(map(len, self._waiting)) <= AHEAD:
            return [line.decode() for line in self._waiting]
        self.sync()
        return []

    def arrived(self, count: int) -> None:
        """The origin has made so many lines durable."""
        del self._waiting[:count]

    def close(self) -> None:
        self._sink.close()

    def disown(self) -> None:
        """Drop the tape in a forked child: it is the parent's, and nothing is ever added to it from here."""
        self._sink.close()
        self._sink = _Nowhere()
        self._waiting = []


class _Nowhere:
    def put(self, lines: Sequence[bytes]) -> None:
        raise Failure(DEFECT, "a forked child wrote to its parent's tape")

    def close(self) -> None:
        pass


def sealed(meta: dict[str, Any]) -> dict[str, Any]:
    """Return the meta of a session that begins on this machine, with the seal of its user.

    It holds in a copy of the tape, with other times of the file, and says nothing of the lines behind it.
    """
    return {**meta, OWN: data_directory.seal(_of_session(meta))}


def is_own(meta: dict[str, Any]) -> bool:
    """Whether this user has begun a session. False proves nothing: tapes of earlier builds have no seal."""
    return data_directory.is_sealed(_of_session(meta), str(meta.get(OWN)))


def _of_session(meta: dict[str, Any]) -> bytes:
    return f"tape {meta.get('session_id')} {meta.get('root_session_id')}".encode("utf-8", "backslashreplace")
