"""The append-only record of one session: JSON lines, each on the disk before the next step is taken.

Laws
1. One entry a line: {"type", "data", "seq", "ts", "prev"}. `prev` is the SHA-256 of the line before (without
   its newline), "" in the first: a changed, lost or torn line shows.
2. `add` only collects; `sync` makes what was collected durable, in one write, and is called before
   anything that the entries speak of can have an effect.
3. Known secrets are masked before they are written.
4. A tape has one writer. After fork() the child drops its parent's tape and opens its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from quine import private
from quine.exits import DEFECT, LOST, Failure
from quine.guests.base import Message
from transport import quickjson
from transport.errors import RequestError

try:  # 4 ms of a 40 ms start: hashlib loads OpenSSL
    from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from hashlib import sha256

MASK = "<secret>"
SHORTEST_SECRET = 8  # a shorter one would mask ordinary words


class Sink(Protocol):
    def put(self, lines: Sequence[bytes]) -> None:
        """Make whole lines (without newlines) durable, in order."""

    def close(self) -> None: ...


class FileSink:
    """A file that this process makes and alone appends to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._made = False

    def put(self, lines: Sequence[bytes]) -> None:
        try:
            if self._fd < 0:
                private.make(os.path.dirname(self.path))
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                # Made once: a file that is there already is another session's, or an attempt to be it.
                flags |= 0 if self._made else os.O_CREAT | os.O_EXCL
                self._fd = os.open(self.path, flags, 0o600)
                self._made = True
            data = b"".join(line + b"\n" for line in lines)
            while data:
                data = data[os.write(self._fd, data) :]
            os.fsync(self._fd)
        except OSError as error:
            raise Failure(LOST, f"the tape {self.path} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


class RelaySink:
    """Entries go to the origin, which keeps them in its data directory; nothing is kept here."""

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


class Tape:
    def __init__(self, sink: Sink, secrets: Sequence[str] = ()) -> None:
        self._sink = sink
        # JSON first, as it stands in the line: a secret with a quote in it is escaped there.
        self._secrets = [quickjson.dumps(s)[1:-1] for s in secrets if len(s) >= SHORTEST_SECRET]
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
        text = quickjson.dumps(entry)
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        line = text.encode("ascii")
        self._prev = sha256(line).hexdigest()
        self._waiting.append(line)
        self.length += 1

    def message(self, message: Message, **more: Any) -> None:
        """A message, or the result of a call, in the fields of the reference."""
        if message.result is not None:
            result = message.result
            data = {"tool_id": result.call_id, "name": result.name, "content": result.text}
            self.add("tool_result", {**data, "is_error": result.is_error})
        else:
            self.add("message", {**message.to_json(), "timestamp": round(time.time(), 6), **more})

    def sync(self) -> None:
        if self._waiting:
            lines, self._waiting = self._waiting, []
            self._sink.put(lines)

    def close(self) -> None:
        self._sink.close()

    def disown(self) -> None:
        """In a forked child: this is the parent's tape, and nothing is ever added to it from here."""
        self._sink.close()
        self._sink = _Nowhere()
        self._waiting = []


class _Nowhere:
    def put(self, lines: Sequence[bytes]) -> None:
        raise Failure(DEFECT, "a forked child wrote to its parent's tape")

    def close(self) -> None:
        pass


def message_of(entry: dict[str, Any]) -> Message | None:
    """The message that an entry recorded, or None where it is another kind of entry."""
    data = entry["data"]
    if entry["type"] == "tool_result":
        from quine.guests.base import ToolResult

        result = ToolResult(
            data["tool_id"], data.get("name", ""), data["content"], bool(data.get("is_error"))
        )
        return Message("tool", result=result)
    if entry["type"] == "message":
        return Message.from_json(data)
    return None


def read(path: str) -> list[dict[str, Any]]:
    """The whole entries of a tape; a torn last line (the writer died, or is writing now) is left out.

    Raises OSError, or ValueError for a file that is no tape.
    """
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    torn = lines.pop()  # what follows the last newline: nothing, in a whole tape
    del torn
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entry = quickjson.loads(line)
            if not isinstance(entry["data"], dict) or not isinstance(entry["type"], str):
                raise ValueError("no type or no data")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}, line {number}: {str(error) or type(error).__name__}") from None
        entries.append(entry)
    return entries
