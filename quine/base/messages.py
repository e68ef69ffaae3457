"""The neutral model of a conversation, and the interface of a guest: a function from a request to a reply.

Laws
1. A guest has no state that matters: all its knowledge is in the request.
2. `raw` is the provider's own form of a reply. It is kept and sent back untouched (signatures, item ids, the order of
   keys), and only the dialect that made it reads it.
3. Arguments that are almost JSON are repaired, in the ways of `_repaired` and no other, and the call says so. Any other
   ones stay as they came, with the reason; they are never guessed.

Errors
    GuestError               the guest gave no reply
    ├── Unavailable          a later try may succeed (exit 75 when the tries are used up)
    ├── Malformed            the server cannot read the call that its model wrote: the model is to be told
    ├── Overflow             the conversation does not fit the model's window
    └── Refused              another try would not help: key, quota, model, request
"""

from __future__ import annotations

from quine.base.errors import FAILED
from quine.base.strict import MAX_VALUES, too_many
from transport import quickjson
from transport.lean import Any, Mapping, NamedTuple, Protocol, TypeVar

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Number = TypeVar("Number", int, float)

CLOSING = 3  # brackets too many at the end that are passed over
DEEPEST = 200  # levels of a value from a guest; Python's own JSON goes down to about 900


def too_deep(value: Any, levels: int) -> bool:
    """Return True if JSON nests deeper than `levels`.

    At the parser's limit a value can be read but not written again.
    """
    layer = [value]
    for _ in range(levels):
        layer = [item for one in layer if isinstance(one, (dict, list)) for item in _items(one)]
        if not layer:
            return False
    return True


def _items(one: dict[str, Any] | list[Any]) -> Any:
    return one.values() if isinstance(one, dict) else one


class ToolCall(NamedTuple):
    id: str
    name: str
    args: dict[str, Any] = {}  # noqa: RUF012 - never changed in place
    raw: str = ""  # the argument string as received; "" if the provider sends an object
    fault: str = ""  # reason why `raw` could not be parsed
    repair: str = ""  # a fault of `raw` that was repaired

    @classmethod
    def parse(cls, id: str, name: str, raw: str) -> ToolCall:
        """Return the call for an argument string, which may hold anything."""
        if too_many(raw):
            return cls(id, name, {}, raw, f"the arguments have more than {MAX_VALUES} values")
        try:
            value, repair = _read(raw)
        except _Unreadable as error:
            return cls(id, name, {}, raw, str(error))
        if not isinstance(value, dict):
            return cls(id, name, {}, raw, "the arguments are not a JSON object")
        try:
            quickjson.dumps(value)
        except (ValueError, RecursionError):
            return cls(id, name, {}, raw, "the arguments hold a number that is too large")
        if raw.count("[") + raw.count("{") > DEEPEST and too_deep(value, DEEPEST):
            return cls(id, name, {}, raw, f"the arguments nest more than {DEEPEST} levels deep")
        return cls(id, name, value, raw, "", repair)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"id": self.id, "name": self.name, "arguments": self.args}
        if self.raw:
            data["raw"] = self.raw
        if self.repair:
            data["repair"] = self.repair
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToolCall:
        """Return the call. Raise KeyError, TypeError or ValueError if `data` is not a call."""
        if not isinstance(data, Mapping):
            raise TypeError("a tool call is no object")
        if raw := data.get("raw"):
            return cls.parse(str(data["id"]), str(data["name"]), str(raw))
        return cls(str(data["id"]), str(data["name"]), dict(data["arguments"]))


class _Unreadable(ValueError):
    """str() is the reason, for the guest."""


def _read(raw: str) -> tuple[Any, str]:
    """Return the value of an argument string, and the repair, or "". Raises _Unreadable."""
    if not raw.strip():
        return {}, ""
    try:
        value, repair = quickjson.loads(raw), ""
    except (ValueError, RecursionError):
        value, repair = _repaired(raw)
    if value is None:
        return {}, "null for no arguments"
    if isinstance(value, str) and value.lstrip().startswith("{"):
        if too_many(value):
            raise _Unreadable(f"the arguments have more than {MAX_VALUES} values")
        try:
            return quickjson.loads(value), "encoded twice"
        except (ValueError, RecursionError):
            inner, also = _repaired(value)
            return inner, f"encoded twice, {also}"
    return value, repair


def _repaired(raw: str) -> tuple[Any, str]:
    """Return the value of a text that is JSON but for raw control characters in its strings, or brackets too many."""
    import json

    def unknown(name: str) -> None:
        raise ValueError(name)

    text = raw.strip()
    try:
        value, end = json.JSONDecoder(strict=False, parse_constant=unknown).raw_decode(text)
    except (ValueError, RecursionError):
        raise _Unreadable(f"the arguments are not JSON: {_why(raw)}") from None
    rest = "".join(text[end:].split())
    if len(rest) > CLOSING or rest.strip("}]"):
        raise _Unreadable(f"the arguments are not JSON: {_why(raw)}")
    if rest:
        return value, f"{rest} too many at the end"
    return value, "control characters in a string"


def _why(raw: str) -> str:
    """Return the position of the fault, which the quick parser does not report."""
    import json

    try:
        json.loads(raw)
    except (ValueError, RecursionError) as error:
        return str(error)
    return "NaN, infinities and numbers as large are not JSON"


class ToolResult(NamedTuple):
    call_id: str
    name: str
    text: str
    is_error: bool = False


class Message(NamedTuple):
    """One message: `role` is system, user, assistant or tool; a tool message carries exactly one result."""

    role: str
    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    result: ToolResult | None = None
    reasoning: str = ""
    raw: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {"role": self.role, "content": self.text}
        if self.tool_calls:
            data["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.result is not None:
            data["result"] = list(self.result)
        if self.reasoning:
            data["reasoning_content"] = self.reasoning
        if self.raw is not None:
            data["raw"] = self.raw
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Message:
        """Return the message. Raise KeyError, TypeError or ValueError if `data` is not a message."""
        if not isinstance(data, Mapping):
            raise TypeError("a message is no object")
        role = data["role"]
        if role not in ("system", "user", "assistant", "tool"):
            raise ValueError(f"not a role: {role!r}")
        result = data.get("result")
        if result is not None:
            call_id, name, text, is_error = result
            result = ToolResult(str(call_id), str(name), str(text), bool(is_error))
        raw = data.get("raw")
        if raw is not None and not isinstance(raw, dict):
            raise TypeError("raw is not an object")
        calls = tuple(map(ToolCall.from_json, data.get("tool_calls", ())))
        return cls(role, str(data["content"]), calls, result, str(data.get("reasoning_content", "")), raw)


class Usage(NamedTuple):
    """Tokens: `input` counts all of the prompt, cached or not; `output` includes reasoning.

    `cost` is in US dollars, as the provider reports it; 0 = not reported.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    cost: float = 0.0

    def __add__(self, other: object) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(*(a + b for a, b in zip(self, other)))  # type: ignore[arg-type]


class Tool(NamedTuple):
    """A tool as the guest sees it; the same schema checks the guest's arguments."""

    name: str
    description: str
    schema: dict[str, Any]


class Request(NamedTuple):
    """One inference. `ordinal` counts the inferences of this session from 0.

    `output` is the most tokens that the reply may have; 0 = the dialect's default. `cost` is the most US dollars that
    the whole inference may cost; 0 = no limit. The process that pays enforces it. `model` is for a guest that is asked
    over a link; "" is the model that its origin was started with. `tape`, for such a guest alone: lines for the tape
    there, which are written before it infers.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool]
    session: str = ""
    mission: str = ""
    ordinal: int = 0
    wisdom: Mapping[str, str] = {}  # noqa: RUF012 - a field of a named tuple
    output: int = 0
    cost: float = 0.0
    model: str = ""
    tape: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Return all but the tools, the cost, the model and the tape: not every guest is told these."""
        return {
            "session": self.session,
            "mission": self.mission,
            "ordinal": self.ordinal,
            "wisdom": dict(self.wisdom),
            "output": self.output,
            "messages": [message.to_json() for message in self.messages],
        }


class Reply(NamedTuple):
    """A reply; `stop` is end, tool, length (the reply was cut), context (the window filled up), refusal or pause."""

    message: Message
    usage: Usage = Usage()
    stop: str = "end"
    window: int = 0  # tokens of context that the server gives to the model; 0 = it has not told

    def to_json(self) -> dict[str, Any]:
        data = {"message": self.message.to_json(), "usage": list(self.usage), "stop": self.stop}
        return {**data, "window": self.window} if self.window else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Reply:
        *tokens, cost = data["usage"]
        usage = Usage(*map(int, tokens))._replace(cost=float(cost))
        window = max(0, int(data.get("window", 0)))
        return cls(Message.from_json(data["message"]), usage, str(data["stop"]), window)


class Remaining(NamedTuple):
    """Remaining tokens and dollars; None = no limit."""

    tokens: int | None = None
    cost: float | None = None

    def least(self, other: Remaining) -> Remaining:
        return Remaining(_smaller(self.tokens, other.tokens), _smaller(self.cost, other.cost))


def _smaller(one: Number | None, other: Number | None) -> Number | None:
    """The smaller remainder, where None is no limit."""
    return min((value for value in (one, other) if value is not None), default=None)


class Spent(Exception):
    """The tree has reached a limit. str() is the message, `option` the option that sets the limit."""

    def __init__(self, detail: str, option: str) -> None:
        super().__init__(detail)
        self.option = option


class Guest(Protocol):
    note: Callable[[str], None]  # called with the text of each deviation, such as a retry

    def infer(self, request: Request) -> Reply:
        """Block until there is a reply. Raise a GuestError."""


def unheard(text: str) -> None:
    """The default `note` of a guest; does nothing."""


class GuestError(Exception):
    """str() is a message for people: lower case, no full stop.

    `usage` is what the provider counts of an answer that broke off, all 0 if it has not told; None: there was none.
    """

    usage: Usage | None = None
    reached: bool = True  # False: there was no connection to the server


class Unavailable(GuestError):
    """A later try may succeed. `after` is the pause that the server asks for, in seconds, or None."""

    def __init__(self, detail: str, after: float | None = None) -> None:
        super().__init__(detail)
        self.after = after


class Malformed(GuestError):
    """The server could not read what its model wrote. Another try may succeed; the same again for ever does not."""


class Overflow(GuestError):
    """The conversation does not fit the model's window."""


class Refused(GuestError):
    """Another try would not help. `hint` is the cure; `status` is the exit status of the agent."""

    def __init__(self, detail: str, hint: str = "", status: int = FAILED) -> None:
        super().__init__(detail)
        self.hint = hint
        self.status = status
