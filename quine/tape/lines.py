"""The lines of a tape: one JSON entry each, its digest, its seal; and reading them back.

Laws
1. Every reader of a tape takes its lines from `lines_of`, or bounds them by READ as that does.
2. A tape may be a file of any size without a newline, of which a host or an archive needs no byte on a disk. Reading
   stops where a line is longer than any that quine writes, and says that the file is no tape.
"""

from __future__ import annotations

import itertools

from quine.base.messages import DEEPEST, Message, ToolResult, too_deep
from transport import quickjson
from transport.lean import Any, sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

# Fields of `data` that the origin adds to a tape of another machine, see quine/remote/replies.py.
TOLD = "told"  # true in a reply that it could not compare with the one that it gave
TOLD_BY = "told_by"  # in the meta: the host that the tape came from
_SEAL, _AFTER = ',"seal":"', '},"seq":'


def digest(line: bytes) -> str:
    """Return the hash that the next line holds of this one."""
    return sha256(line)


LEVELS = 2 * DEEPEST  # of an entry; the arguments of a call have DEEPEST at most
LONGEST = 8 << 20  # bytes of a line: no window of a model holds a longer message
READ = LONGEST + (
    64 << 10
)  # of one that is read: the origin adds TOLD and TOLD_BY to lines of other machines


class TooLong(ValueError):
    """A line that is longer than any of a tape."""

    def __init__(self) -> None:
        super().__init__(f"a line of more than {READ} bytes")


def opened(path: str, names: int = 1) -> IO[bytes]:
    """Open a tape for reading; `names` as for regular_file.opened: 0 for a path of the user's, with his links.

    Raises OSError, also for anything but a regular file.
    """
    from transport.provenance import regular_file  # here: a writer of tapes reads none

    return open(regular_file.opened(path, names), "rb")


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield each line with its newline; the last one may have none. Raises TooLong."""
    while line := file.readline(READ + 1):
        if len(line) > READ:
            raise TooLong
        yield line


def entries(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, entry) of every whole line.

    A torn last line is left out: its writer died, or is writing now. Reads tapes of quine and of the reference
    implementation, whose entries have only a type and data. Raise OSError, or ValueError for a file that is not a tape.
    """
    with opened(path) as file:
        lines = lines_of(file)
        for number in itertools.count(1):
            try:
                line = next(lines, b"")
                entry = parse(line) if line.strip() and line.endswith(b"\n") else None
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            if not line.endswith(b"\n"):
                return
            if entry is not None:
                yield number, entry


def first(path: str) -> dict[str, Any] | None:
    """Return the first entry, which is a meta; None if no whole line was written yet. Raise as `entries` does."""
    for _, entry in entries(path):
        if entry["type"] != "meta":
            raise ValueError(f"{path}: it has no meta")
        return entry
    return None


def parse(line: bytes) -> dict[str, Any]:
    """Return the entry of one line. Raise ValueError if it is not an entry."""
    try:
        entry = quickjson.loads(line)
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if line.count(b"[") + line.count(b"{") > LEVELS and too_deep(entry, LEVELS):
        raise ValueError("it nests too deep")  # here and not where a reader makes text of a value
    if not (
        isinstance(entry, dict) and isinstance(entry.get("data"), dict) and isinstance(entry.get("type"), str)
    ):
        raise ValueError("it has no type or no data")
    return entry


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


def seal(line: bytes) -> bytes:
    head, _, tail = line.decode("ascii").rpartition(_AFTER)
    return f'{head}{_SEAL}{digest(line)}"{_AFTER}{tail}'.encode("ascii")


def seal_holds(line: bytes) -> bool | None:
    """Return whether a line matches its seal; None if it has none."""
    head, _, tail = line.decode("ascii", "replace").rpartition(_AFTER)
    bare, mark, seal = head.rpartition(_SEAL)
    if not mark or len(seal) != 65:
        return None
    return digest(f"{bare}{_AFTER}{tail}".encode()) + '"' == seal
