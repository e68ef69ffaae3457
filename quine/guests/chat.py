"""The dialect of chat completions, as OpenAI wrote it and llama.cpp, Ollama, vLLM and others speak it.

Laws
1. Pure: no socket, no clock. What comes in is held against pydantic models that demand little, because servers
   differ in everything they need not send.
2. Sent is the least that all of them take: role system, text contents, no tool_choice. Fields that only some
   know are sent only where they came from the server itself (reasoning, signatures).
3. A tool call keeps the argument string that was received; another spelling of it would cost the prefix cache.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from quine.exits import USAGE
from quine.guests.base import (
    GuestError,
    Message,
    Overflow,
    Refused,
    Reply,
    Request,
    Tool,
    ToolCall,
    Unavailable,
    Usage,
)

# What goes back to the server as it came; the rest of its message is for the client alone.
RETURNED = ("content", "tool_calls", "reasoning_content", "reasoning", "reasoning_details", "refusal")
FULL = re.compile(
    r"prompt is too long|exceed context limit|input token count .* exceeds|maximum context length|"
    r"context length is only|context (window|size|length)|number of tokens to keep from the initial prompt",
    re.IGNORECASE,
)
NO_QUOTA = ("insufficient_quota", "credit_balance_exhausted", "billing_not_active")
TRY_AGAIN = (408, 409, 425, 429)


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Function(_Model):
    name: str
    arguments: str = ""

    @field_validator("arguments", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """Some servers send an object, or nothing."""
        if isinstance(value, dict):
            import json

            return json.dumps(value)
        return "" if value is None else value


class _Call(_Model):
    id: str | int | None = None
    function: _Function


class _Answer(_Model):
    content: str | None = None
    tool_calls: list[_Call] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class _Choice(_Model):
    message: _Answer
    finish_reason: str | None = None


class _Response(_Model):
    choices: list[_Choice]
    usage: dict[str, Any] | None = None


class ChatDialect:
    def __init__(self, model: str) -> None:
        self._model = model

    def url(self, base: str) -> str:
        return f"{base}/chat/completions"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, request: Request) -> dict[str, Any]:
        return {
            "model": self._model,
            "tools": [_tool(tool) for tool in request.tools],
            "messages": [_message(message) for message in request.messages],
        }

    def reply(self, data: Any) -> Reply:
        if isinstance(data, dict) and data.get("error"):
            raise self.fault(200, data)
        try:
            response = _Response.model_validate(data)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise Unavailable(f"the server's answer is no reply: {where}: {first['msg'].lower()}") from None
        if not response.choices:
            raise Unavailable("the server's answer holds no choice")
        choice = response.choices[0]
        if choice.finish_reason == "error":
            raise Unavailable("the server's answer ends in an error")
        raw = {
            k: v for k, v in data["choices"][0]["message"].items() if k in RETURNED and v not in (None, [])
        }
        calls = _calls(choice.message, raw)
        message = Message(
            "assistant",
            choice.message.content or choice.message.refusal or "",
            calls,
            reasoning=choice.message.reasoning_content or choice.message.reasoning or "",
            raw={"chat": raw},
        )
        return Reply(message, _usage(response.usage), _stop(choice))

    def fault(self, status: int, data: Any) -> GuestError:
        error = data.get("error", data) if isinstance(data, dict) else data
        if isinstance(error, dict):
            text = str(error.get("message") or error.get("detail") or error)
            kinds = {str(error.get("code")), str(error.get("type"))}
        else:
            text, kinds = str(error), set()
        status = next((int(k) for k in kinds if k.isdigit() and status == 200), status)
        detail = f"{text.strip()[:500]} (HTTP {status})"
        if kinds & {"context_length_exceeded", "exceed_context_size_error"} or status == 413:
            return Overflow(detail)
        if status in (200, 400) and FULL.search(text):
            return Overflow(detail)
        if kinds & set(NO_QUOTA) or status == 402:
            return Refused(detail, "the account has no quota left", USAGE)
        if status in (401, 403):
            return Refused(detail, "see QUINE_API_KEY, or the vendor's own variable", USAGE)
        if status == 404:
            return Refused(detail, "see --model and QUINE_API_BASE", USAGE)
        if status in TRY_AGAIN or status >= 500 or status == 200:
            return Unavailable(detail)
        return Refused(detail)


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _message(message: Message) -> dict[str, Any]:
    if message.result is not None:
        return {"role": "tool", "tool_call_id": message.result.call_id, "content": message.result.text}
    if message.role != "assistant":
        return {"role": message.role, "content": message.text}
    if message.raw is not None and "chat" in message.raw:
        raw = message.raw["chat"]
        return {"role": "assistant", "content": None if raw.get("tool_calls") else "", **raw}
    sent: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        sent["content"] = message.text or None
        sent["tool_calls"] = [_sent_call(call) for call in message.tool_calls]
    return sent


def _sent_call(call: ToolCall) -> dict[str, Any]:
    import json

    arguments = call.raw or json.dumps(call.args, ensure_ascii=False)
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _calls(answer: _Answer, raw: dict[str, Any]) -> tuple[ToolCall, ...]:
    """The calls, each with an id of its own: some servers send none, or the same one twice."""
    calls: list[ToolCall] = []
    seen: set[str] = set()
    for index, call in enumerate(answer.tool_calls or ()):
        call_id = str(call.id) if call.id not in (None, "") else ""
        if not call_id or call_id in seen:
            call_id = next(name for n in range(len(seen) + 1) if (name := f"call_{index}_{n}") not in seen)
        seen.add(call_id)
        calls.append(ToolCall.parse(call_id, call.function.name, call.function.arguments))
    if calls:
        raw["tool_calls"] = [
            {**given, "id": call.id, "function": {**given["function"], "arguments": call.raw or "{}"}}
            for call, given in zip(calls, raw["tool_calls"], strict=True)
        ]
    return tuple(calls)


def _usage(usage: dict[str, Any] | None) -> Usage:
    """Missing, partial or null: what is not told is 0."""

    def number(*path: str) -> int:
        value: Any = usage
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, int) else 0

    return Usage(
        number("prompt_tokens"),
        number("completion_tokens"),
        number("prompt_tokens_details", "cached_tokens"),
        number("prompt_tokens_details", "cache_write_tokens"),
        number("completion_tokens_details", "reasoning_tokens"),
    )


def _stop(choice: _Choice) -> str:
    if choice.message.tool_calls:
        return "tool"
    if choice.message.refusal or choice.finish_reason == "content_filter":
        return "refusal"
    return "length" if choice.finish_reason == "length" else "end"
