"""The dialect of Anthropic's Messages API.

Laws
1. The blocks of a reply are kept and sent back in their order as they came, signatures included. Left out are only
   blocks that the API itself sends and then refuses: blank text, thinking that nothing follows, and all thinking once
   it has refused some.
2. All results of a reply are in the one message after it, before any text. Adjacent messages of one role are merged.
3. Cache breakpoints are set where a request ended: at the end of the user's last turns. The request before this one, of
   this agent or of the parent it was forked from, wrote its cache exactly there. So the cache is found however many
   blocks have come since (a lookup goes back 20 blocks). A breakpoint is a mark beside a block; moving it does not
   change the cached prefix.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from operator import index as integer
from typing import Any, ClassVar

from quine.base.messages import (
    GuestError,
    Message,
    Reply,
    Request,
    Tool,
    ToolCall,
    ToolResult,
    Usage,
)
from quine.providers.dialects import faults
from quine.providers.dialects.dialect import Dialect, Foreign, Stream, number, unused
from quine.providers.dialects.turns import User, arguments, output, own, split

NAME = "anthropic"
VERSION = "2026-10-21"
BREAKPOINTS = 3  # and one after the system prompt: the API takes four
THOUGHTS = ("thinking", "redacted_thinking")
CACHE = {"cache_control": {"type": "ephemeral"}}
STATUS = {  # of an error that comes in the stream, after a 200
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "conflict_error": 409,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class _Block(Foreign):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | int | None = None
    name: str = ""
    input: Any = None


class _Answer(Foreign):
    content: list[_Block]
    stop_reason: str | None = None
    stop_details: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None


class AnthropicDialect(Dialect):
    KIND = NAME
    SPARE: ClassVar = {
        "output": re.compile(
            r"max_tokens: \d+ >|exceed context limit|max_(completion_)?tokens\W.{0,40}too large"
        ),
        "thinking": re.compile(
            r"^\W?thinking\b|adaptive thinking|when \W?thinking\W? is enabled|thinking.*not support",
            re.IGNORECASE,
        ),
        # Thinking blocks that were sent back.
        "thoughts": re.compile(r"signature\W? in \W?thinking|\bthinking\b.{0,80}cannot be modified"),
        "cache": re.compile(r"cache_control"),
    }

    def _url(self, base: str) -> str:
        return f"{base}/messages" if base.endswith("/v1") else f"{base}/v1/messages"

    def headers(self, key: str) -> dict[str, str]:
        headers = {"anthropic-version": VERSION}
        if key.startswith("sk-ant-oat"):  # a login token, not a key of the console
            headers["Authorization"] = f"Bearer {key}"
        elif key:
            headers["x-api-key"] = key
        return headers

    def body(self, request: Request, without: Collection[str] = ()) -> dict[str, Any]:
        told = split(request.messages, NAME)
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": output(request, "output" in without),
            "stream": True,
        }
        if "thinking" not in without and _adaptive(self._model):
            body["thinking"] = {"type": "adaptive"}
        if request.tools:
            body["tools"] = [_tool(tool) for tool in request.tools]
        if told.system:
            body["system"] = [{"type": "text", "text": told.system}]
        messages: list[dict[str, Any]] = []
        _add(messages, "user", _user(told.first))
        for reply, said in told.rest:
            _add(messages, "assistant", _assistant(reply, "thoughts" not in without))
            _add(messages, "user", _user(said))
        body["messages"] = messages
        if "cache" not in without:
            _mark(body)
        return body

    def stream(self) -> _Stream:
        return _Stream(self.fault)

    def reply(self, data: Any) -> Reply:
        answer = self._answer(_Answer, data)
        raw = list(data["content"])
        calls = _calls(answer.content, raw)
        text = "\n".join(block.text for block in answer.content if block.type == "text" and block.text)
        if answer.stop_reason == "refusal" and not text:
            text = _refusal(answer.stop_details or {})
        thinking = "\n".join(block.thinking for block in answer.content if block.thinking)
        message = Message("assistant", text, calls, reasoning=thinking, raw={NAME: raw})
        end = faults.end_of(answer.stop_reason)
        stop = "pause" if answer.stop_reason == "pause_turn" else end or ("tool" if calls else "end")
        return Reply(message, _usage(answer.usage), stop)

    def usage(self, data: dict[str, Any]) -> Usage:
        return _usage(data.get("usage"))

    def fault(self, status: int, data: Any) -> GuestError:
        said = faults.told(data)
        if status == 200:
            status = STATUS.get(said.kind, status)
        return self._adapted(self._judged(status, said), status, said.message)


class _Stream(Stream):
    """message_start, then blocks with their deltas, then message_delta and message_stop."""

    def __init__(self, fault: Callable[[int, Any], GuestError]) -> None:
        super().__init__(fault)
        self._message: dict[str, Any] = {}
        self._blocks: list[dict[str, Any]] = []
        self._pieces: list[dict[str, list[str]]] = []  # joined once: a long text comes in thousands
        self._at: dict[int, int] = {}  # index -> place in both; some servers give every block the same index

    def _take(self, event: str, data: Any) -> bool:
        kind = data["type"]
        if kind == "message_start":
            self._message = dict(data["message"])
        elif kind == "content_block_start":
            self._blocks.append(dict(data["content_block"]))
            self._pieces.append({})
            self._at[integer(data["index"])] = len(self._blocks) - 1
        elif kind == "content_block_delta":
            self._delta(self._at[data["index"]], data["delta"])
        elif kind == "message_delta":
            usage = {k: v for k, v in (data.get("usage") or {}).items() if v is not None}
            usage = {**(self._message.get("usage") or {}), **usage}  # cumulative: the later one counts
            self._message = {**self._message, **data["delta"], "usage": usage}
            self.complete = bool(self._message.get("stop_reason"))  # some servers send no message_stop
        elif kind == "message_stop":
            if not self._message:
                raise ValueError("a stream without a beginning")
            return True
        return False

    def _body(self) -> dict[str, Any]:
        return {**self._message, "content": [self._block(place) for place in range(len(self._blocks))]}

    def _delta(self, place: int, delta: dict[str, Any]) -> None:
        block = self._blocks[place]
        kind = delta["type"]
        if kind == "text_delta":
            self._piece(place, "text", delta["text"])
        elif kind == "thinking_delta":
            self._piece(place, "thinking", delta["thinking"])
        elif kind == "input_json_delta":
            self._piece(place, "input", delta["partial_json"])
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or []), delta["citation"]]

    def _piece(self, place: int, field: str, piece: object) -> None:
        if not isinstance(piece, str):
            raise TypeError("a piece that is no text")
        self._pieces[place].setdefault(field, []).append(piece)

    def _block(self, place: int) -> dict[str, Any]:
        block = self._blocks[place]
        for field, pieces in self._pieces[place].items():
            text = "".join(pieces)
            if field == "input":
                # Arguments that are not JSON, as in a reply that was cut, stay text: `_calls` reports the fault.
                call = ToolCall.parse("", "", text)
                block = {**block, field: text if call.fault else call.args}
            else:
                block = {**block, field: str(block.get(field) or "") + text}
        return block


def _adaptive(model: str) -> bool:
    """Return True for models with adaptive thinking: every family since 4.6.

    Older models need a thinking budget; other vendors have no such field.
    """
    name = re.search(r"claude-[a-z]+-(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)", model)
    return name is not None and (int(name[1]), int(name[2] or 0)) >= (4, 6)


def _tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.schema}


def _add(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    elif blocks:
        messages.append({"role": role, "content": blocks})


def _user(said: User) -> list[dict[str, Any]]:
    return [*map(_result, said.results), *({"type": "text", "text": text} for text in said.texts)]


def _result(result: ToolResult) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": result.call_id, "content": result.text}
    return {**block, "is_error": True} if result.is_error else block


def _assistant(reply: Message, thoughts: bool) -> list[dict[str, Any]]:
    blocks = own(reply, NAME)
    if blocks is None:
        blocks = [{"type": "text", "text": reply.text}] + [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments(call)}
            for call in reply.tool_calls
        ]
    # No reply has breakpoints: with others than ours the API finds too many, or bills an hour of cache.
    blocks = [{key: b[key] for key in b if key not in CACHE} for b in blocks]
    if not thoughts:
        blocks = [b for b in blocks if b.get("type") not in THOUGHTS]
    blocks = [b for b in blocks if b.get("type") != "text" or str(b.get("text") or "").strip()]
    while blocks and blocks[-1].get("type") in THOUGHTS:
        blocks.pop()
    return blocks


def _mark(body: dict[str, Any]) -> None:
    """Set the breakpoints: after the system prompt (or the tools), and at the ends of the user's last turns."""
    for prefix in ("system", "tools"):
        if body.get(prefix):
            body[prefix][-1] |= CACHE
            break
    for message in [m for m in body["messages"] if m["role"] == "user"][-BREAKPOINTS:]:
        message["content"][-1] |= CACHE


def _calls(blocks: list[_Block], raw: list[Any]) -> tuple[ToolCall, ...]:
    """Return the calls. Their blocks in `raw` get the same ids, and an object as input."""
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for index, block in enumerate(blocks):
        if block.type != "tool_use":
            continue
        call_id = unused(block.id, taken)
        if isinstance(block.input, dict):
            call = ToolCall(call_id, block.name, block.input)
        else:
            call = ToolCall.parse(call_id, block.name, block.input if isinstance(block.input, str) else "")
        calls.append(call)
        sent = {"id": call_id, "input": arguments(call)}
        if {name: raw[index].get(name) for name in sent} != sent:
            raw[index] = {**raw[index], **sent}
    return tuple(calls)


def _refusal(details: dict[str, Any]) -> str:
    category = details.get("category")
    return str(details.get("explanation") or (f"refused: {category}" if category else "refused"))


def _usage(usage: dict[str, Any] | None) -> Usage:
    read, write = number(usage, "cache_read_input_tokens"), number(usage, "cache_creation_input_tokens")
    return Usage(
        number(usage, "input_tokens") + read + write,
        number(usage, "output_tokens"),
        read,
        write,
        number(usage, "output_tokens_details", "thinking_tokens"),
    )
