"""A streamed chat completion, assembled into the body that it would be without streaming.

Laws
1. Fragments of a call are keyed by their index. Servers may also send whole calls, give
   every call the index 0, repeat the name, or make up a new id for each fragment.
2. Unknown fields (signatures, extra content) are kept on the call that they came with.
3. A stream ends with `[DONE]` or a finish_reason. A stream without either was cut, and its content is void.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from quine.base.messages import GuestError
from quine.providers.dialects.dialect import Stream
from transport.lean import Any

_TEXTS = ("content", "reasoning_content", "reasoning", "refusal")
_JOINED = ("text", "summary", "data")  # of one piece of reasoning_details


class ChatStream(Stream):
    def __init__(self, fault: Callable[[int, Any], GuestError]) -> None:
        super().__init__(fault)
        self._id = ""
        self._texts: dict[str, list[str]] = {}
        self._details: list[dict[str, Any]] = []
        self._calls: list[dict[str, Any]] = []
        self._arguments: list[list[str]] = []  # the fragments of each call: joined once, at the end
        self._at: dict[Any, int] = {}  # index -> place in _calls
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

    def _body(self) -> dict[str, Any]:
        if not self._begun:
            return {"choices": [], "usage": self._usage}
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: "".join(parts) for name, parts in self._texts.items()}
        if self._details:
            message["reasoning_details"] = self._details
        for call, parts in zip(self._calls, self._arguments):
            call["function"]["arguments"] = "".join(parts)
        if self._calls:
            message["tool_calls"] = self._calls
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
        place = self._place(fragment, function)
        call = self._calls[place]
        call |= {k: v for k, v in fragment.items() if k not in ("index", "id", "function") and v is not None}
        call["id"] = call.get("id") or fragment.get("id")
        if function.get("name") and "name" not in call["function"]:
            call["function"]["name"] = function["name"]
        given = function.get("arguments")
        if given is not None:
            self._arguments[place].append(given if isinstance(given, str) else json.dumps(given))

    def _place(self, fragment: dict[str, Any], function: dict[str, Any]) -> int:
        """Return the place of the fragment's call; append a call if the fragment begins one."""
        index = fragment.get("index")
        place = self._at.get(index) if isinstance(index, int) else len(self._calls) - 1
        if place is None or place < 0 or (function.get("name") and self._is_another(place, fragment)):
            place = len(self._calls)
            self._calls.append({"function": {}})
            self._arguments.append([])
        if isinstance(index, int):
            self._at[index] = place
        return place

    def _is_another(self, place: int, fragment: dict[str, Any]) -> bool:
        """Return True if a fragment with a name begins a new call, not repeats the name of the call at `place`."""
        call = self._calls[place]
        if "name" not in call["function"]:
            return False
        if fragment.get("id") and call.get("id"):
            return bool(fragment["id"] != call["id"])
        try:
            json.loads("".join(self._arguments[place]))
        except ValueError:
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
