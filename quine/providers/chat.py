"""The dialect of chat completions, as OpenAI defined it and llama.cpp, Ollama, vLLM and others speak it.

Laws
1. No socket, no clock. Input is checked by pydantic models that demand little, because servers differ in every optional
   field.
2. Requests use the least that all servers take: role system, text contents, no tool_choice. Fields of a message that
   only some know (reasoning, signatures) are sent only if they came from the server itself.
3. An optional field that a server refuses is left out from then on. This is the only thing that a dialect learns.
4. A tool call keeps the argument string that was received; another spelling of it would cost the prefix cache.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from quine.base.messages import (
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
from quine.providers import turns
from quine.providers.chatstream import ChatStream, plain
from quine.providers.faults import Adapted, judge, told

# Fields sent back to the server as they came; the rest of its message is for the client alone.
REASONING = ("reasoning_content", "reasoning", "reasoning_details")
RETURNED = ("content", "tool_calls", *REASONING, "refusal")

HUGE = 1e15  # no count of tokens and no price is larger
CUT = ("length", "model_length")  # finish reasons: the limit of the output
BROKEN = ("error", "abort", "insufficient_system_resource")  # the server failed on the way

# The changes that a dialect can learn, and the pattern of the error that teaches each.
LESSONS = {
    "no usage": re.compile(r"\bstream_options\b"),
    "no stream": re.compile(
        r"tools with stream|\bstream(ing)?\b.{0,40}(not |un)(supported|permitted|allowed)"
    ),
    "max_completion_tokens": re.compile(r"\bmax_completion_tokens\b"),
    "no reasoning": re.compile(r"\breasoning(_content|_details)?\b"),
    "no effort": re.compile(r"tools with reasoning_effort"),
}
OPENAI = "max_completion_tokens", "developer", "cache key"  # ways that api.openai.com need not teach


class _Model(BaseModel):
    model_config = ConfigDict(extra="allow")


class _Function(_Model):
    name: str
    arguments: str = ""

    @field_validator("arguments", mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        """Accept an object, or nothing, as some servers send it."""
        if isinstance(value, dict):
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

    @field_validator("content", "reasoning_content", "reasoning", mode="before")
    @classmethod
    def _parts(cls, value: Any) -> Any:
        """Join the parts in which some reasoning models answer."""
        return plain(value) if isinstance(value, list) else value


class _Choice(_Model):
    message: _Answer
    finish_reason: str | None = None


class _Response(_Model):
    id: str | int | None = None
    choices: list[_Choice]
    usage: dict[str, Any] | None = None


class ChatDialect:
    def __init__(self, model: str) -> None:
        self._model = model
        self._ways: frozenset[str] = frozenset()  # replaced, never changed: threads share a dialect
        self._base = ""

    def url(self, base: str) -> str:
        self._base = base
        host = re.sub(r"^https?://|[:/].*$", "", base.lower())
        if host == "api.openai.com":
            self._ways |= {*OPENAI}
            base = base if "/" in base.partition("://")[2] else f"{base}/v1"
        elif host == "openrouter.ai":
            self._ways |= {"cost"}
        return base if base.endswith("/chat/completions") else f"{base}/chat/completions"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}

    def body(self, request: Request) -> dict[str, Any]:
        ways = self._ways
        body: dict[str, Any] = {"model": self._model}
        if request.tools:  # some servers refuse an empty list
            body["tools"] = [_tool(tool) for tool in request.tools]
        body["messages"] = [_message(message, ways) for message in request.messages]
        if request.output > 0:
            limit = "max_completion_tokens" if "max_completion_tokens" in ways else "max_tokens"
            body[limit] = request.output
        if "no effort" in ways and request.tools:
            body["reasoning_effort"] = "none"
        if "cache key" in ways:
            # Conversations with the same beginning, such as clones of one agent, must meet the same cache.
            first = request.messages[0].text if request.messages else ""
            body["prompt_cache_key"] = hashlib.sha256(first.encode("utf-8", "replace")).hexdigest()[:32]
        if "cost" in ways:
            body["usage"] = {"include": True}
        if "no stream" not in ways:
            body["stream"] = True
            if "no usage" not in ways:
                body["stream_options"] = {"include_usage": True}
        return body

    def stream(self) -> ChatStream:
        return ChatStream(self.fault)

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
        if choice.finish_reason in BROKEN:
            raise Unavailable(f"the server's answer ends in an error: {choice.finish_reason}")
        given = data["choices"][0]["message"]
        raw = {k: v for k, v in given.items() if k in RETURNED and v not in (None, [])}
        calls = _calls(choice.message, raw, str(response.id or ""))
        message = Message(
            "assistant",
            choice.message.content or choice.message.refusal or "",
            calls,
            reasoning=choice.message.reasoning_content or choice.message.reasoning or "",
            raw={"chat": raw},
        )
        return Reply(message, _usage(response.usage), _stop(choice))

    def fault(self, status: int, data: Any) -> GuestError:
        said = told(data)
        fault = _hinted(judge(status, said), status, said.message, self._base)
        if status in (400, 422, 500) and not isinstance(fault, Overflow):
            lessons = {lesson for lesson, pattern in LESSONS.items() if pattern.search(said.message)}
            if lessons:
                self._ways |= lessons
                return Adapted(fault)
        return fault


def _hinted(fault: GuestError, status: int, message: str, base: str) -> GuestError:
    if isinstance(fault, Refused) and status == 404 and not base.endswith("/v1"):
        fault.hint = "see --model and QUINE_API_BASE, which ends in /v1 with most servers"
    if isinstance(fault, Refused) and "reasoning_effort" in message:
        fault.hint = "with QUINE_API_TYPE=responses such a model takes tools"
    return fault


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _message(message: Message, ways: frozenset[str]) -> dict[str, Any]:
    if message.result is not None:
        return {"role": "tool", "tool_call_id": message.result.call_id, "content": message.result.text}
    if message.role != "assistant":
        system = "developer" if "developer" in ways else "system"
        return {"role": system if message.role == "system" else message.role, "content": message.text}
    if message.raw is not None and "chat" in message.raw and turns.named(message, "chat"):
        raw = message.raw["chat"]
        if "no reasoning" in ways:
            raw = {name: value for name, value in raw.items() if name not in REASONING}
        return {"role": "assistant", "content": None if raw.get("tool_calls") else "", **raw}
    sent: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        sent["content"] = message.text or None
        sent["tool_calls"] = [_sent_call(call) for call in message.tool_calls]
    return sent


def _sent_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.raw or json.dumps(call.args, ensure_ascii=False)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": turns.fit(call.name), "arguments": arguments},
    }


def _calls(answer: _Answer, raw: dict[str, Any], salt: str) -> tuple[ToolCall, ...]:
    """Return the calls, each with a unique id: some servers send none, or the same one twice."""
    calls: list[ToolCall] = []
    seen: set[str] = set()
    for index, call in enumerate(answer.tool_calls or ()):
        call_id = str(call.id) if call.id not in (None, "") else ""
        if not call_id or call_id in seen:
            # derived from the answer's id, so that the calls of the next turn get other ids
            call_id = "call_" + hashlib.sha256(f"{salt} {index} {sorted(seen)}".encode()).hexdigest()[:16]
        seen.add(call_id)
        calls.append(ToolCall.parse(call_id, call.function.name, call.function.arguments))
    if calls:
        raw["tool_calls"] = [
            {
                "type": "function",
                **given,
                "id": call.id,
                "function": {**given["function"], "arguments": call.raw or "{}"},
            }
            for call, given in zip(calls, raw["tool_calls"], strict=True)
        ]
    return tuple(calls)


def _usage(usage: dict[str, Any] | None) -> Usage:
    """Return the usage; a missing, partial or null count is 0."""

    def number(*path: str) -> Any:
        value: Any = usage
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value if isinstance(value, int | float) and 0 <= value < HUGE else 0

    return Usage(
        int(number("prompt_tokens")),
        int(number("completion_tokens")),
        int(number("prompt_tokens_details", "cached_tokens")),
        int(number("prompt_tokens_details", "cache_write_tokens")),
        int(number("completion_tokens_details", "reasoning_tokens")),
        float(number("cost")),
    )


def _stop(choice: _Choice) -> str:
    if choice.finish_reason in CUT:
        return "length"
    if choice.message.tool_calls:
        return "tool"
    if choice.message.refusal or choice.finish_reason == "content_filter":
        return "refusal"
    return "end"
