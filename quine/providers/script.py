"""A guest that follows a file of replies as JSON lines, for tests, the demo and benchmarks.

A line is {"match"?: regex on the mission, "wisdom"?: regex on the wisdom as compact JSON, "reply": {"text"?,
"tool_calls"?: [{"name", "arguments"}]}, "usage"?: {"input", "output", …}, "repeat"?: bool}.

Laws
1. The n-th inference of a session gets the n-th line among those whose guards fit that session. So one file scripts a
   whole tree, whatever order its processes run in, and the processes share no counter.
2. A line with "repeat" answers every further inference of the sessions that reach it.
3. Text in `arguments` stands for the raw argument string, so that broken ones can be scripted.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured
from quine.base.messages import Message, Refused, Reply, Request, ToolCall, Usage, unheard
from transport import quickjson
from transport.lean import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Callable

KEYS = {"match", "wisdom", "reply", "usage", "repeat"}
REPLY = {"text", "tool_calls"}
CALL = {"name", "arguments"}
USAGE = set(Usage._fields)
NAMES = {
    str: "text",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    int: "an integer",
    float: "a number",
}


class ScriptGuest:
    def __init__(self, path: str) -> None:
        self._path = path
        self.note: Callable[[str], None] = unheard
        try:
            with open(path, encoding="utf-8") as file:
                self._lines = [_line(path, n, text) for n, text in enumerate(file, 1) if text.strip()]
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise Misconfigured(f"the script {path} cannot be read: {why}") from None

    def infer(self, request: Request) -> Reply:
        wisdom = quickjson.dumps(dict(sorted(request.wisdom.items())))
        fit = [line for line in self._lines if _fits(line, request.mission, wisdom)]
        line = next((line for line in fit[: request.ordinal] if line.get("repeat")), None)
        if line is None:
            if request.ordinal >= len(fit):
                raise Refused(
                    f"the script {self._path} has no reply left for this mission",
                    'add a line, or give the last one "repeat": true',
                )
            line = fit[request.ordinal]
        return _reply(line, request)


def _line(path: str, number: int, text: str) -> dict[str, Any]:
    try:
        line = quickjson.loads(text)
        if not isinstance(line, dict) or not isinstance(line.get("reply"), dict):
            raise ValueError('it has no "reply"')
        if unknown := line.keys() - KEYS:
            raise ValueError(f"unknown key {min(unknown)!r}")
        for key in ("match", "wisdom"):
            if key in line:
                line[key] = _pattern(_typed(line, key, str))
        _typed(line, "repeat", bool)
        usage = _typed(line, "usage", dict) or {}
        if unknown := usage.keys() - USAGE:
            raise ValueError(f'unknown key {min(unknown)!r} in "usage"')
        for key in usage:
            if key == "cost" and type(usage[key]) is int:
                usage[key] = float(usage[key])
            if _typed(usage, key, float if key == "cost" else int) < 0:
                raise ValueError(f'"{key}" is negative')
        _check_reply(line["reply"])
    except (ValueError, RecursionError) as error:
        raise Misconfigured(f"the script {path}, line {number}: {error}") from None
    return line


def _pattern(text: str) -> re.Pattern[str]:
    import re  # here: it takes as long to load as a tenth of an agent

    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(str(error)) from None


def _check_reply(reply: dict[str, Any]) -> None:
    if unknown := reply.keys() - REPLY:
        raise ValueError(f'unknown key {min(unknown)!r} in "reply"; known are {", ".join(sorted(REPLY))}')
    _typed(reply, "text", str)
    for call in _typed(reply, "tool_calls", list) or ():
        if not isinstance(call, dict):
            raise ValueError('a tool call is {"name", "arguments"}')
        if missing := CALL - call.keys():
            raise ValueError(f'a tool call without "{max(missing)}"')
        if unknown := call.keys() - CALL:
            raise ValueError(f"unknown key {min(unknown)!r} in a tool call")
        _typed(call, "name", str)
        if not isinstance(call["arguments"], (dict, str)):
            raise ValueError('"arguments" must be an object, or text that stands for the raw arguments')


def _typed(owner: dict[str, Any], key: str, kind: type) -> Any:
    """Return the value; raise ValueError if it is present and of another type."""
    value = owner.get(key)
    if key in owner and (not isinstance(value, kind) or isinstance(value, bool) != (kind is bool)):
        raise ValueError(
            f'"{key}" must be {NAMES[kind]}, not {"null" if value is None else type(value).__name__}'
        )
    return value


def _fits(line: dict[str, Any], mission: str, wisdom: str) -> bool:
    return all(
        guard not in line or line[guard].search(value)
        for guard, value in (("match", mission), ("wisdom", wisdom))
    )


def _reply(line: dict[str, Any], request: Request) -> Reply:
    reply = line["reply"]
    calls = []
    for index, call in enumerate(reply.get("tool_calls", ())):
        call_id = f"call_{len(request.messages)}_{index}"
        if isinstance(call["arguments"], str):
            calls.append(ToolCall.parse(call_id, call["name"], call["arguments"]))
        else:
            calls.append(ToolCall(call_id, call["name"], call["arguments"]))
    usage = line.get("usage", {})
    message = Message("assistant", str(reply.get("text", "")), tuple(calls))
    return Reply(message, Usage(**usage), "tool" if calls else "end")
