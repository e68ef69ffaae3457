"""The dialect of OpenAI's Responses API, used without its memory: nothing is stored, all is sent each time.

Laws
1. The items of a reply are kept and sent back in their order as they came: ids, phases, encrypted reasoning, the
   spelling of arguments that are JSON. Left out is only reasoning that nothing follows, or that has no content: the API
   refuses both.
2. `prompt_cache_key` comes from the system prompt alone, so that a parent and its clones share one cache.
3. A failed reply comes after a 200 and is an error all the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection
from operator import index as integer
from typing import Any, ClassVar, NamedTuple

from quine.base.messages import GuestError, Message, Reply, Request, Tool, ToolCall, Unavailable, Usage
from quine.providers.dialects import faults
from quine.providers.dialects.dialect import Dialect, Foreign, Stream, number, spelled, unused
from quine.providers.dialects.turns import User, argument_text, output, own, split

NAME = "responses"
LEAST = 16  # tokens; the API refuses less
UNDER_WAY = 100  # items of a reply that are begun and not done
STATUS = {  # of an error inside a reply or a stream, after a 200
    "server_error": 500,
    "rate_limit_exceeded": 429,
    "slow_down": 429,
    "server_is_overloaded": 503,
    "vector_store_timeout": 504,
    "context_length_exceeded": 400,
}
DELTAS = {"response.function_call_arguments.delta", "response.output_text.delta"}
ARGUMENTS = "response.function_call_arguments.done"  # whole; some servers send no deltas
END = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}


class _Part(Foreign):
    type: str = ""
    text: str | None = None
    refusal: str | None = None


class _Item(Foreign):
    type: str
    content: list[_Part] | str | None = None
    summary: list[_Part] | None = None
    call_id: str | int | None = None
    name: str = ""
    arguments: str | dict[str, Any] | None = None


class _Answer(Foreign):
    status: str | None = None
    incomplete_details: dict[str, Any] | None = None
    output: list[_Item]
    usage: dict[str, Any] | None = None


class ResponsesDialect(Dialect):
    KIND = NAME
    SPARE: ClassVar = {  # the message is "param: message"
        "output": re.compile(r"max_(output_)?tokens"),
        "include": re.compile(r"^include\b|['\"`]include['\"`]|encrypted content is not", re.IGNORECASE),
        "thoughts": re.compile(  # items that were sent back
            r"encrypted content.*could not be|required .reasoning. item|required following item",
            re.IGNORECASE,
        ),
        "prompt_cache_key": re.compile(r"prompt_cache_key"),
    }

    def _url(self, base: str) -> str:
        return f"{base}/responses"

    def body(self, request: Request, without: Collection[str] = ()) -> dict[str, Any]:
        told = split(request.messages, NAME)
        items = _user(told.first)
        for reply, said in told.rest:
            items += [*_assistant(reply, "thoughts" not in without), *_user(said)]
        body: dict[str, Any] = {
            "model": self._model,
            "stream": True,
            "store": False,
            "max_output_tokens": max(LEAST, output(request, "output" in without)),
        }
        if "include" not in without:
            body["include"] = ["reasoning.encrypted_content"]
        if "prompt_cache_key" not in without:
            digest = hashlib.sha256(told.system.encode("utf-8", "surrogatepass")).hexdigest()
            body["prompt_cache_key"] = f"quine-{digest[:32]}"
        if told.system:
            body["instructions"] = told.system
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        body["input"] = items
        return body

    def stream(self) -> _Stream:
        return _Stream(self.fault)

    def reply(self, data: Any) -> Reply:
        answer = self._answer(_Answer, data)
        if answer.status not in (None, "completed", "incomplete"):
            raise Unavailable(f"the server's answer is {faults.printable(answer.status)}")
        raw = list(data["output"])
        calls = _calls(answer.output, raw)
        parts = [part for item in answer.output if item.type == "message" for part in _parts(item.content)]
        unwilling = any(part.refusal for part in parts)
        message = Message(
            "assistant",
            "\n".join(text for part in parts if (text := part.text or part.refusal)),
            calls,
            reasoning=_reasoning(answer.output),
            raw={NAME: raw},
        )
        return Reply(message, _usage(answer.usage), _stop(answer, unwilling, bool(calls)))

    def usage(self, data: dict[str, Any]) -> Usage:
        return _usage(data.get("usage"))

    def fault(self, status: int, data: Any) -> GuestError:
        said = faults.told(data)
        if status == 200:
            status = STATUS.get(said.code, STATUS.get(said.kind, status))
            if said.code.startswith(("invalid_", "bio_", "data_residency", "misalignment")):
                status = 400  # another try would not help
        return self._adapted(self._judged(status, said), status, f"{_param(data)}: {said.message}")


class _Begun(NamedTuple):
    """An item that was begun, with its pieces. A server may give two of them one index."""

    at: int
    item: dict[str, Any]
    pieces: list[str]


class _Stream(Stream):
    """Collects the items as they are done, then the whole reply.

    The deltas count for an item that is never done: some servers send nothing else. Others give two items one index.
    """

    def __init__(self, fault: Callable[[int, Any], GuestError]) -> None:
        super().__init__(fault)
        self._items: list[tuple[int, dict[str, Any]]] = []
        self._begun: list[_Begun] = []
        self._reply: dict[str, Any] = {}

    def _take(self, event: str, data: Any) -> bool:
        kind = data.get("type") or event
        if kind == "response.output_item.done":
            index, item = self._index(data), dict(data["item"])
            self._items.append((index, item))
            self._remove(self._of(item.get("id"), index))
        elif kind == "response.output_item.added":
            index, item = self._index(data), dict(data["item"])
            self._remove(self._of(item.get("id")))
            if len(self._begun) >= UNDER_WAY:
                raise ValueError(f"more than {UNDER_WAY} items at one time")
            self._begun.append(_Begun(index, item, []))
        elif kind in DELTAS and (begun := self._of(data.get("item_id"), self._index(data))):
            begun.pieces.append(str(data["delta"]))
        elif kind == ARGUMENTS and (begun := self._of(data.get("item_id"), self._index(data))):
            begun.pieces[:] = [str(data.get("arguments") or "".join(begun.pieces))]
        elif kind in END:
            self._reply = dict(data["response"])
            return True
        return False

    def _index(self, data: Any) -> int:
        return integer(data.get("output_index", len(self._items)))

    def _of(self, own: Any, index: int | None = None) -> _Begun | None:
        """Return the item that was begun with this id, else the latest one with this index."""
        latest = [*reversed(self._begun)]
        named = (begun for begun in latest if own and begun.item.get("id") == own)
        return next(named, None) or next((begun for begun in latest if begun.at == index), None)

    def _remove(self, begun: _Begun | None) -> None:
        self._begun = [one for one in self._begun if one is not begun]

    def _body(self) -> dict[str, Any]:
        begun = [(index, _joined(item, "".join(pieces))) for index, item, pieces in self._begun]
        items = sorted([*self._items, *begun], key=lambda pair: pair[0])
        done = [item for _, item in items if item]
        told = self._reply.get("output")
        # Some servers leave the list at the end empty, others send no event for each item.
        return {**self._reply, "output": told if isinstance(told, list) and len(told) > len(done) else done}


def _joined(item: dict[str, Any], text: str) -> dict[str, Any]:
    """Return the item that a server began and brought in pieces; {} if it brought nothing."""
    if item.get("type") == "function_call":
        return {**item, "arguments": text or item.get("arguments")}
    return {**item, "content": [{"type": "output_text", "text": text}]} if text else {}


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.schema,
        "strict": False,
    }


def _user(said: User) -> list[dict[str, Any]]:
    results = [
        {"type": "function_call_output", "call_id": result.call_id, "output": result.text}
        for result in said.results
    ]
    return [*results, *({"role": "user", "content": text} for text in said.texts)]


def _assistant(reply: Message, thoughts: bool) -> list[dict[str, Any]]:
    # In neutral form no item has an id, so the API misses no item that belongs to another.
    items = own(reply, NAME) if thoughts else None
    if items is not None:
        items = [item for item in items if item.get("type") != "reasoning" or _readable(item)]
        while items and items[-1].get("type") == "reasoning":
            items.pop()
        return items
    items = [{"role": "assistant", "content": reply.text}] if reply.text.strip() else []
    return items + [
        {
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": argument_text(call),
        }
        for call in reply.tool_calls
    ]


def _readable(item: dict[str, Any]) -> bool:
    """Return True if reasoning has its content, open or encrypted; otherwise its id refers to nothing stored."""
    return bool(item.get("encrypted_content") or item.get("content"))


def _calls(items: list[_Item], raw: list[Any]) -> tuple[ToolCall, ...]:
    """Return the calls. Their items in `raw` get the same ids, and text as arguments."""
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for index, item in enumerate(items):
        if item.type != "function_call":
            continue
        call = ToolCall.parse(unused(item.call_id, taken), item.name, spelled(item.arguments))
        calls.append(call)
        sent = {"call_id": call.id, "arguments": argument_text(call)}
        if {name: getattr(item, name) for name in sent} != sent:
            raw[index] = {**raw[index], **sent}
    return tuple(calls)


def _parts(content: list[_Part] | str | None) -> list[_Part]:
    return [_Part(text=content)] if isinstance(content, str) else content or []


def _reasoning(items: list[_Item]) -> str:
    parts = [p for i in items if i.type == "reasoning" for p in [*(i.summary or []), *_parts(i.content)]]
    return "\n".join(part.text for part in parts if part.text)


def _stop(answer: _Answer, refused: bool, called: bool) -> str:
    if answer.status == "incomplete":
        reason = (answer.incomplete_details or {}).get("reason")
        end = faults.end_of(reason if isinstance(reason, str) else None)
        return end if end in ("refusal", "context") else "length"
    return "tool" if called else "refusal" if refused else "end"


def _param(data: Any) -> str:
    """Return the request field that an error names."""
    error = data.get("error") if isinstance(data, dict) else None
    return str(error.get("param") or "") if isinstance(error, dict) else ""


def _usage(usage: dict[str, Any] | None) -> Usage:
    return Usage(
        number(usage, "input_tokens"),
        number(usage, "output_tokens"),
        number(usage, "input_tokens_details", "cached_tokens"),
        number(usage, "input_tokens_details", "cache_write_tokens"),
        number(usage, "output_tokens_details", "reasoning_tokens"),
    )
