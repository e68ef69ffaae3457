"""The dialect of chat completions, as OpenAI defined it and llama.cpp, Ollama, vLLM and others speak it.

Laws
1. Requests use the least that all servers take: role system, text contents, no tool_choice. Fields of a message that
   only some know (reasoning, signatures) are sent only if they came from the server itself.
2. A tool call keeps the argument string that was received, as long as that is an object of JSON: another spelling of it
   would cost the prefix cache. Any other text goes back as an object that holds it.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar

from quine.base.messages import (
    GuestError,
    Message,
    Refused,
    Reply,
    Request,
    Tool,
    ToolCall,
    Unavailable,
    Usage,
)
from quine.providers.dialects import turns
from quine.providers.dialects.chatstream import ChatStream, plain
from quine.providers.dialects.dialect import Dialect, Foreign, amount, number, refusing, spelled, unused
from quine.providers.dialects.faults import end_of, told

# Fields sent back to the server as they came; the rest of its message is for the client alone.
REASONING = ("reasoning_content", "reasoning", "reasoning_details")
RETURNED = ("content", "tool_calls", *REASONING, "refusal")

OPENAI, OPENROUTER, MISTRAL = "api.openai.com", "openrouter.ai", "mistral.ai"
AZURE = (".openai.azure.com", ".cognitiveservices.azure.com", ".services.ai.azure.com")
PASSED_ON = "Provider returned error"  # of OpenRouter: the words of the provider are in its metadata
SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")  # Mistral takes no other id of a call


class _Function(Foreign):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(Foreign):
    id: str | int | None = None
    function: _Function


class _Message(Foreign):
    content: str | list[Any] | None = None  # some reasoning models answer in parts
    tool_calls: list[_Call] | None = None
    reasoning_content: str | list[Any] | None = None
    reasoning: str | list[Any] | None = None
    refusal: str | None = None


class _Choice(Foreign):
    message: _Message
    finish_reason: str | None = None


class _Answer(Foreign):
    id: str | int | None = None
    choices: list[_Choice]
    usage: dict[str, Any] | None = None


class ChatDialect(Dialect):
    KIND = "openai"
    SPARE: ClassVar = {
        "output": re.compile(  # of vLLM, and of what is in front of it
            r"max_(completion_)?tokens=\d+ ?cannot be greater|requested \d+ output tokens|max_new_tokens. must be",
            re.IGNORECASE,
        ),
        "usage": refusing(r"\bstream_options\b"),
        "stream": re.compile(
            r"tools with stream|\bstream(ing)?\b.{0,40}(not |un)(supported|permitted|allowed)"
        ),
        "max_tokens": re.compile(r"\bmax_completion_tokens\b"),
        "reasoning": refusing(r"\breasoning(_content|_details)?\b"),
        "effort": re.compile(r"tools with reasoning_effort"),
        # Ids of calls as another server made them: of Mistral, also behind vLLM, NIM or a proxy, and of OpenAI.
        "ids": re.compile(
            r"tool call id .{1,300}length of 9|tool_calls?\b.{0,40}\bid\b.{0,40}string too long",
            re.IGNORECASE | re.DOTALL,
        ),
        # Replies without a reasoning of their own, where the server demands one of each: they get an empty one.
        "unreasoned": re.compile(
            r"missing.{0,40}\breasoning_content\b|\breasoning_content\b.{0,40}(missing|required)",
            re.IGNORECASE,
        ),
    }

    def __init__(self, model: str) -> None:
        super().__init__(model)
        self._base = ""
        self._tools: frozenset[str] = frozenset()  # names, of the last request

    def _url(self, base: str) -> str:
        self._base = base
        if self.host == OPENAI:
            base = base if "/" in base.partition("://")[2] else f"{base}/v1"
        base, mark, query = base.partition("?")
        base = base.rstrip("/").removesuffix("/chat/completions")
        return f"{base}/chat/completions{mark}{query}"  # Azure's address has a query

    def headers(self, key: str) -> dict[str, str]:
        headers = super().headers(key)
        return {**headers, "api-key": key} if key and self.host.endswith(AZURE) else headers

    def body(self, request: Request, without: Collection[str] = ()) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self._model}
        self._tools = frozenset(tool.name for tool in request.tools)
        if request.tools:  # some servers refuse an empty list
            body["tools"] = [_tool(tool) for tool in request.tools]
        system = "developer" if self.host == OPENAI else "system"
        messages = _messages(request.messages, system, without)
        short = "ids" in without or f".{self.host}".endswith(f".{MISTRAL}")
        body["messages"] = _with_short_ids(messages) if short else messages
        if request.output > 0:
            newer = self.host == OPENAI or "max_tokens" in without
            limit = "max_completion_tokens" if newer else "max_tokens"
            body[limit] = turns.output(request, "output" in without)
        if "effort" in without and request.tools:
            body["reasoning_effort"] = "none"
        if self.host == OPENAI:
            # Conversations with the same beginning, such as clones of one agent, must meet the same cache.
            first = request.messages[0].text if request.messages else ""
            body["prompt_cache_key"] = _digest(first)[:32]
        if self.host == OPENROUTER:
            body["usage"] = {"include": True}  # with the cost
        if "stream" not in without:
            body["stream"] = True
            if "usage" not in without:
                body["stream_options"] = {"include_usage": True}
        return body

    def stream(self) -> ChatStream:
        return ChatStream(self.fault, self._tools)

    def reply(self, data: Any) -> Reply:
        answer = self._answer(_Answer, data)
        if not answer.choices:
            raise Unavailable("the server's answer holds no choice")
        choice = answer.choices[0]
        said = choice.message
        end = end_of(choice.finish_reason)
        given = data["choices"][0]["message"]
        raw = {k: v for k, v in given.items() if k in RETURNED and v not in (None, [])}
        message = Message(
            "assistant",
            plain(said.content) or said.refusal or "",
            _calls(said, raw, str(answer.id or "")),
            reasoning=plain(said.reasoning_content) or plain(said.reasoning),
            raw={"chat": raw},
        )
        return Reply(message, _usage(answer.usage), end or _stop(said))

    def usage(self, data: dict[str, Any]) -> Usage:
        return _usage(data.get("usage"))

    def fault(self, status: int, data: Any) -> GuestError:
        said = told(data)
        fault = _hinted(self._judged(status, said), status, said.message, self._base)
        return self._adapted(fault, status, said.text if said.message == PASSED_ON else said.message)


def _hinted(fault: GuestError, status: int, message: str, base: str) -> GuestError:
    if isinstance(fault, Refused) and status == 404 and not base.endswith("/v1"):
        fault.hint = "see --model and QUINE_API_BASE, which ends in /v1 with most servers"
    if isinstance(fault, Refused) and "reasoning_effort" in message:
        fault.hint = "with QUINE_API_TYPE=responses such a model takes tools"
    return fault


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function}


def _messages(messages: Sequence[Message], system: str, without: Collection[str]) -> list[dict[str, Any]]:
    """Return the messages as they are sent.

    A text behind results, which are notes of the host, goes into the last one: Mistral and others refuse a user there.
    """
    sent: list[dict[str, Any]] = []
    for message in messages:
        one = _message(message, system, "reasoning" in without)
        if one["role"] == "assistant":
            if "unreasoned" in without:
                one.setdefault("reasoning_content", "")
            if not one.get("tool_calls") and not str(one.get("content") or "").strip():
                one["content"] = turns.EMPTY  # refused by some: neither content nor calls
        if one["role"] == "user" and sent and sent[-1]["role"] == "tool":
            sent[-1]["content"] += f"\n\n{one['content']}"
        else:
            sent.append(one)
    return sent


def _message(message: Message, system: str, bare: bool) -> dict[str, Any]:
    """Return the message as it is sent: instructions as the role `system`, a `bare` one without its reasoning."""
    if message.result is not None:
        return {"role": "tool", "tool_call_id": message.result.call_id, "content": message.result.text}
    if message.role != "assistant":
        return {"role": system if message.role == "system" else message.role, "content": message.text}
    if message.raw is not None and "chat" in message.raw and turns.named(message, "chat"):
        raw = message.raw["chat"]
        if bare:
            raw = {name: value for name, value in raw.items() if name not in REASONING}
        return {"role": "assistant", "content": None if raw.get("tool_calls") else "", **raw}
    sent: dict[str, Any] = {"role": "assistant", "content": message.text}
    if message.tool_calls:
        sent["content"] = message.text or None
        sent["tool_calls"] = [_sent_call(call) for call in message.tool_calls]
    return sent


def _with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with ids of SHORT_ID for their calls: one for each id, the same in every longer conversation.

    Ids of another server are in the history of an agent whose guest was changed.
    """
    short: dict[str, str] = {}
    taken: set[str] = set()

    def of(own: str) -> str:
        if own not in short:
            tries = (_digest(f"{n} {own}")[:9] if n else own for n in itertools.count())
            short[own] = next(one for one in tries if SHORT_ID.fullmatch(one) and one not in taken)
            taken.add(short[own])
        return short[own]

    sent = []
    for message in messages:
        if message["role"] == "tool":
            message = {**message, "tool_call_id": of(message["tool_call_id"])}
        elif calls := message.get("tool_calls"):
            message = {**message, "tool_calls": [{**call, "id": of(str(call["id"]))} for call in calls]}
        sent.append(message)
    return sent


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _sent_call(call: ToolCall) -> dict[str, Any]:
    function = {"name": turns.fit(call.name), "arguments": turns.argument_text(call)}
    return {"id": call.id, "type": "function", "function": function}


def _calls(said: _Message, raw: dict[str, Any], answer: str) -> tuple[ToolCall, ...]:
    """Return the calls. Those in `raw` get the same ids, and text as arguments."""
    taken: set[str] = set()
    # An id that is made is sent back, so the calls of another answer need other ones.
    made = f"call_{_digest(answer)[:16]}_"
    calls = tuple(
        ToolCall.parse(unused(call.id, taken, made), call.function.name, spelled(call.function.arguments))
        for call in said.tool_calls or ()
    )
    if calls:
        raw["tool_calls"] = [
            {
                "type": "function",
                **given,
                "id": call.id,
                "function": {**given["function"], "arguments": turns.argument_text(call)},
            }
            for call, given in zip(calls, raw["tool_calls"])
        ]
    return calls


def _usage(usage: dict[str, Any] | None) -> Usage:
    return Usage(
        number(usage, "prompt_tokens"),
        number(usage, "completion_tokens"),
        number(usage, "prompt_tokens_details", "cached_tokens"),
        number(usage, "prompt_tokens_details", "cache_write_tokens"),
        number(usage, "completion_tokens_details", "reasoning_tokens"),
        float(amount(usage, "cost")),
    )


def _stop(said: _Message) -> str:
    if said.tool_calls:
        return "tool"
    return "refusal" if said.refusal else "end"
