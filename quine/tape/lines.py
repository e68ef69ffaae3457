"""The lines of a tape: one JSON entry each, its digest, its seal; and reading them back."""

from __future__ import annotations

from quine.base.messages import Message, ToolResult
from transport import quickjson
from transport.lean import Any, sha256

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


# Fields of `data` that the origin adds to a tape of another machine, see quine/remote/replies.py.
TOLD = "told"  # true in a reply that it could not compare with the one that it gave
TOLD_BY = "told_by"  # in the meta: the host that the tape came from
_SEAL, _AFTER = ',"seal":"', '},"seq":'


def digest(line: bytes) -> str:
    """Return the hash that the next line holds of this one."""
    return sha256(line)


LONGEST = 1 << 26  # bytes of a first line: a meta with a long mission and its wisdom


def entries(path: str, longest: int = -1) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, entry) of every whole line.

    A torn last line is left out: its writer died, or is writing now. Reads tapes of quine and of the reference
    implementation, whose entries have only a type and data. Raise OSError, or ValueError for a file that is not a tape.
    A line of more than `longest` bytes counts as torn.
    """
    from quine.base.procs import read_at_once  # here: a writer of tapes reads none

    with read_at_once(path) as file:
        for number, line in enumerate(file if longest < 0 else iter(lambda: file.readline(longest), b""), 1):
            if not line.endswith(b"\n"):
                return
            if not line.strip():
                continue
            try:
                entry = parse(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
            yield number, entry


def first(path: str) -> dict[str, Any] | None:
    """Return the first entry, which is a meta; None if no whole line was written yet. Raise as `entries` does."""
    for _, entry in entries(path, LONGEST):
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
    except RecursionError:
        raise ValueError("it nests too deep") from None
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
