"""The append-only record of one session: JSON lines, each on disk before the next step is taken; and reading it.

Laws
1. One entry per line: {"type", "data", "seq", "ts", "prev"}. `prev` is the SHA-256 of the line before (without its
   newline), "" in the first: a changed, lost or torn line shows. No line may follow an outcome to vouch for it, so it
   carries its own hash: `data.seal` is the SHA-256 of that very line without the seal.
2. `add` only collects; `sync` makes the collected lines durable, in one write. It is called before anything that the
   entries describe can have an effect. A write that fails leaves a whole tape behind.
3. Known secrets are masked before they are written, in the values of `data` and nowhere else. The machine that knows
   them does it: an agent elsewhere has no secrets to mask with, so its lines are masked and chained anew on their way.
4. A tape has one writer. After fork() the child drops its parent's tape and opens its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from quine.base import dirs
from quine.base.errors import DEFECT, LOST, Failure
from quine.base.messages import Message, ToolResult
from transport.errors import RequestError
from transport.wire import quickjson

try:  # 4 ms of a 40 ms start: hashlib loads OpenSSL
    from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from hashlib import sha256

MASK = "<secret>"
SHORTEST_SECRET = 8  # a shorter one would mask ordinary words
# The marks of quine/agent/capture.py around the part that it left out; a secret may be cut there.
CUT = ("\n...[Output Truncated", "]...\n")
# Words of the format, never masked: they give away no equal password, and without them a line is not an entry.
NAMES = frozenset(("id", "name", "arguments", "raw", "chat", "role", "content", "tool_calls", "tool_id"))
PLAIN = frozenset(
    ("role", "session_id", "parent_session_id", "root_session_id", "boot_id", "born", "termination_mode")
)  # fields of `data` whose values only quine writes
_SEAL, _AFTER = ',"seal":"', '},"seq":'
_MOST = 512  # buffers of one write; Linux takes 1024


def digest(line: bytes) -> str:
    """Return the hash that the next line holds of this one."""
    return str(sha256(line).hexdigest())


class Sink(Protocol):
    def put(self, lines: Sequence[bytes]) -> None:
        """Make whole lines (without newlines) durable, in order."""

    def close(self) -> None: ...


class FileSink:
    """A file that this process creates and is the only one to append to."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._size = -1  # bytes known to be whole lines; -1 = there is no file yet

    def put(self, lines: Sequence[bytes]) -> None:
        try:
            if self._fd < 0:
                dirs.make(os.path.dirname(self.path))
                flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
                # Created once: an existing file belongs to another session, or to an attempt to be this one.
                flags |= os.O_CREAT | os.O_EXCL if self._size < 0 else 0
                self._fd = os.open(self.path, flags, 0o600)
                self._size = max(0, self._size)
            self._write([memoryview(part) for line in lines for part in (line, b"\n")])
            os.fsync(self._fd)
            self._size += sum(len(line) + 1 for line in lines)
        except OSError as error:
            if self._fd >= 0:
                # The next line would begin with this half line. A tape ends at a line unless its writer died.
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
            raise Failure(LOST, f"the tape {self.path} cannot be written: {error.strerror}") from None

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
    def __init__(self, sink: Sink, secrets: Sequence[str] = ()) -> None:
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


class Mask:
    """Removes known secrets from JSON values: verbatim, and as they stand in JSON that is itself a text."""

    def __init__(self, secrets: Sequence[str]) -> None:
        forms = set()
        for secret in secrets:
            if len(secret) >= SHORTEST_SECRET:
                forms |= {secret, quickjson.dumps(secret)[1:-1], _escaped(secret)}
        self._forms = sorted(forms, key=len, reverse=True)  # one may be the beginning of another
        # One look at the whole line rules out nearly all lines.
        self._signs = [CUT[0][4:], *(quickjson.dumps(form)[1:-1] for form in forms)] if forms else []

    def line(self, entry: dict[str, Any], sealed: bool) -> bytes:
        """Return an entry as it is written, with or without a seal."""
        text = quickjson.dumps(entry)
        if self.may_be_in(text):
            text = quickjson.dumps({**entry, "data": self.of_data(entry["data"])})
        line = text.encode("ascii")
        return _seal(line) if sealed else line

    def may_be_in(self, line: str) -> bool:
        return any(sign in line for sign in self._signs)

    def of_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the data of an entry without secrets; its own fields keep their names."""
        return {key: value if key in PLAIN else self.of(value) for key, value in data.items()}

    def of(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {key if key in NAMES else self._text(key): self.of(item) for key, item in value.items()}
        return [self.of(item) for item in value] if isinstance(value, list | tuple) else value

    def _text(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, MASK)
        if CUT[0] in text:
            for form in self._forms:
                for size in range(len(form) - 1, SHORTEST_SECRET - 1, -1):
                    text = text.replace(form[:size] + CUT[0], MASK + CUT[0])
                    text = text.replace(CUT[1] + form[-size:], CUT[1] + MASK)
        return text


def _escaped(text: str) -> str:
    """Return `text` as in JSON that leaves non-ASCII characters unescaped."""
    return "".join(c if ord(c) > 127 else quickjson.dumps(c)[1:-1] for c in text)


# -- reading -----------------------------------------------------------------------------------------


def entries(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, entry) of every whole line.

    A torn last line is left out: its writer died, or is writing now. Reads tapes of quine and of the reference
    implementation, whose entries have only a type and data. Raise OSError, or ValueError for a file that is not a tape.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            if not line.strip():
                continue
            try:
                entry = parse(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            yield number, entry


def parse(line: bytes) -> dict[str, Any]:
    """Return the entry of one line. Raise ValueError if it is not an entry."""
    try:
        entry = quickjson.loads(line)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except RecursionError:
        raise ValueError("it nests too deep") from None
    if not (
        isinstance(entry, dict) and isinstance(entry.get("data"), dict) and isinstance(entry.get("type"), str)
    ):
        raise ValueError("it has no type or no data")
    return entry


def read(path: str) -> list[dict[str, Any]]:
    """Return the entries of a tape."""
    return [entry for _, entry in entries(path)]


def message_of(entry: dict[str, Any]) -> Message | None:
    """Return the message that an entry recorded; None for another kind of entry. Raise ValueError for a broken one."""
    kind, data = entry["type"], entry["data"]
    if kind not in ("message", "tool_result"):
        return None
    # The reference records refused calls as messages of a role `tool_result`.
    if kind == "tool_result" or data.get("role") == "tool_result":
        result = ToolResult(
            str(data.get("tool_id", "")),
            str(data.get("name", "")),
            _content(data),
            bool(data.get("is_error", kind != "tool_result")),
        )
        return Message("tool", result=result)
    calls = data.get("tool_calls") or ()
    try:
        return Message.from_json({**data, "content": _content(data), "tool_calls": [_call(c) for c in calls]})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message: {error}") from None


def _content(data: dict[str, Any]) -> str:
    content = data.get("content")
    return "" if content is None else str(content)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call in the form of `Message`, from quine's form or that of chat completions.

    Its arguments are an object, a text, or left out.
    """
    call = {**call, **(call.get("function") or {})}
    arguments = call.get("arguments") or {}
    if isinstance(arguments, str):
        return {**call, "arguments": {}, "raw": arguments}
    return {**call, "arguments": arguments}


# -- the seal of an outcome --------------------------------------------------------------------------


def _seal(line: bytes) -> bytes:
    head, _, tail = line.decode("ascii").rpartition(_AFTER)
    return f'{head}{_SEAL}{digest(line)}"{_AFTER}{tail}'.encode("ascii")


def seal_holds(line: bytes) -> bool | None:
    """Return whether a line matches its seal; None if it has none."""
    head, _, tail = line.decode("ascii", "replace").rpartition(_AFTER)
    bare, mark, seal = head.rpartition(_SEAL)
    if not mark or len(seal) != 65:
        return None
    return digest(f"{bare}{_AFTER}{tail}".encode()) + '"' == seal
