"""A streamed chat completion, assembled into the body that it would be without streaming.

Laws
1. Fragments of a call are keyed by their index and id. Servers may leave out either, send whole calls, give every
   call the index 0, send the name in pieces or again, the arguments longer each time, or a new id with each fragment.
2. Unknown fields (signatures, extra content) are kept on the call that they came with.
3. A stream ends with `[DONE]` or a finish_reason. A stream without either was cut, and its content is void.
4. A fragment that could belong to either of two calls makes the answer malformed: no call is guessed, merged or lost.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from quine.base.messages import GuestError, Malformed
from quine.providers.dialects.dialect import Stream
from transport.lean import Any

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_JOINED = ("text", "summary", "data")  # of one piece of reasoning_details


class ChatStream(Stream):
    def __init__(self, fault: Callable[[int, Any], GuestError], tools: Collection[str] = ()) -> None:
        super().__init__(fault)
        self._tools = tools  # names of calls that were offered
        self._id = ""
        self._texts: dict[str, list[str]] = {}
        self._details: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []  # the fragments of each call: joined once, at the end
        self._at: dict[Any, int] = {}  # index -> place in _calls
        self._ids: dict[Any, int] = {}  # id -> place in _calls
        # Indices, or None, where another call began before the arguments of one were complete.
        self._open: set[int | None] = set()
        # Places of calls begun by the name of the call before, and nothing else: perhaps that name once more.
        self._echoes: set[int] = set()
        self._mixed = False
        self._begun = False
        self._finish: str | None = None
        self._usage: Any = None

    def _take(self, event: str, data: Any) -> bool:
        if data == "[DONE]":
            return True
        self._id = self._id or str(data.get("id") or "")
        usage = data.get("usage") or (data.get("x_groq") or {}).get("usage")
        if isinstance(usage, dict):
            self._usage = usage
        choices = data.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            self._choice(choices[0])
        return False

    @property
    def settled(self) -> bool:
        return self.complete and self._usage is not None

    def whole(self) -> Any:
        body = super().whole()
        if self._mixed:
            raise Malformed("the server's stream mixes the pieces of several calls")
        return body

    def _body(self) -> dict[str, Any]:
        if not self._begun:
            return {"choices": [], "usage": self._usage}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: "".join(parts) for name, parts in self._texts.items()}
        if self._details:
            message["reasoning_details"] = self._details
        calls = []
        for place, call in enumerate(self._calls):
            call["function"]["arguments"] = text = self._text(place)
            if text.strip() or call.get("id") or place not in self._echoes:
                calls.append(call)
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": self._finish}
        return {"id": self._id, "choices": [choice], "usage": self._usage}

    def _choice(self, choice: dict[str, Any]) -> None:
        self._begun = True
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"]
            self.complete = True
        delta = choice.get("delta") or choice.get("message")
        if not isinstance(delta, dict):
            return
        for name in _TEXTS:
            text = plain(delta.get(name))
            # An empty reasoning is demanded back as it came.
            if text or (name == "reasoning_content" and delta.get(name) == ""):
                self._texts.setdefault(name, []).append(text)
        for piece in _dicts(delta.get("reasoning_details")):
            self._detail(piece)
        for fragment in _dicts(delta.get("tool_calls")):
            self._fragment(fragment)

    def _detail(self, piece: dict[str, Any]) -> None:
        """Merge pieces of one index and type, as in the body without streaming."""
        last = self._details[-1] if self._details else {}
        if piece.get("index") is None or any(piece.get(k) != last.get(k) for k in ("index", "type")):
            self._details.append(dict(piece))
            return
        for name, value in piece.items():
            if name in _JOINED and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None:
                last[name] = value

    def _fragment(self, fragment: dict[str, Any]) -> None:
        function = fragment.get("function")
        function = function if isinstance(function, dict) else {}
        name, given = function.get("name") or "", function.get("arguments")
        text = "" if given is None else given if isinstance(given, str) else json.dumps(given)
        place = self._place(fragment, name, text)
        call = self._calls[place]
        call |= {k: v for k, v in fragment.items() if k not in ("index", "id", "function") and v is not None}
        if own := call.get("id") or fragment.get("id"):
            call["id"] = own
            self._ids.setdefault(own, place)
        again = bool(name) and name == call["function"].get("name") and text == self._text(place)
        if name:
            self._name(place, name)
        if text and not (again and self._is_whole(place)):
            self._arguments[place].append(text)

    def _name(self, place: int, name: str) -> None:
        """Take the name of a call, or a piece of it; some servers send it whole each time, or longer each time."""
        function = self._calls[place]["function"]
        known = function.get("name", "")
        if known and name != known and self._arguments[place]:
            self._mixed = True  # the name of another call, in the midst of the arguments
        elif name != known:
            function["name"] = name if name.startswith(known) else known + name

    def _place(self, fragment: dict[str, Any], name: str, text: str) -> int:
        """Return the place of the fragment's call; append a call if the fragment begins one."""
        index, own = fragment.get("index"), fragment.get("id")
        indexed = isinstance(index, int)
        last = len(self._calls) - 1 if self._calls else None
        at = self._at.get(index) if indexed else last
        by_id = self._ids.get(own) if own else None
        key = index if indexed else None
        if indexed and at is None:
            place = None if name else by_id
        elif by_id is not None and not (indexed and at is not None and self._calls[at].get("id") == own):
            place = by_id
        else:
            place = at
            self._mixed = self._mixed or (not name and by_id is None and key in self._open)
        if place is None or (name and self._is_another(place, own, name, text)):
            if at is not None and not self._is_whole(at):
                self._open.add(key)
            elif (
                place is not None and name == self._calls[place]["function"].get("name") and not text.strip()
            ):
                self._echoes.add(len(self._calls))
            place = len(self._calls)
            self._calls.append({"function": {}})
            self._arguments.append([])
        if indexed:
            self._at[index] = place
        return place

    def _is_another(self, place: int, own: object, name: str, text: str) -> bool:
        """Return True if a fragment with a name begins a new call, not goes on with the call at `place`."""
        call = self._calls[place]
        known = call["function"].get("name")
        if not known:
            return False
        if own and call.get("id") and own != call["id"]:
            return True
        if not self._is_whole(place):
            both = name in self._tools and known in self._tools and not self._arguments[place]
            return both and not name.startswith(known) and known + name not in self._tools
        if name == known and text == self._text(place) and len(self._arguments[place]) > 1 and not own:
            return text != self._arguments[place][-1]  # else longer each time, and now once more
        if own and own == call.get("id"):  # the call once more, or a server that gives one id to all
            return bool(name != known or (text.strip() and text != self._text(place)))
        return True

    def _text(self, place: int) -> str:
        parts = self._arguments[place]
        text = "".join(parts)
        if len(parts) > 1 and all(map(str.startswith, parts[1:], parts)) and not _is_json(text):
            return parts[-1]  # each fragment is all that there is so far
        return text

    def _is_whole(self, place: int) -> bool:
        """Return True if the arguments of a call are complete."""
        return _is_json(self._text(place))


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def plain(value: Any) -> str:
    """Return text that came as text, or as a list of parts, of which those of type text count."""
    if isinstance(value, list):
        return "".join(
            part["text"]
            for part in _dicts(value)
            if part.get("type") == "text" and isinstance(part.get("text"), str)
        )
    return value if isinstance(value, str) else ""


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
