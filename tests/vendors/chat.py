"""A server of chat completions that is as strict as any of them.

The id of a call is a digest of its argument string and of the reasoning before it: a client that spells the one anew
or loses the other is found out from its request alone. Arguments that are no object of JSON are refused, as vLLM,
llama.cpp and Ollama refuse them, also where they are its own; and so is a user after a tool, as by Mistral.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.server import KEY, Said

PATH = "/v1/chat/completions"
FIELDS = {"model", "messages", "tools", "max_tokens", "stream", "stream_options"}
STOPS = {"length": "length", "context": "length", "refusal": "content_filter"}
ERRORS = {  # kind -> type, code, message
    "bad": ("invalid_request_error", None, ""),
    "auth": ("invalid_request_error", "invalid_api_key", "Incorrect API key provided"),
    "model": ("invalid_request_error", "model_not_found", "The model `m` does not exist"),
    "rate": ("requests", "rate_limit_exceeded", "Rate limit reached for requests"),
    "quota": ("insufficient_quota", "insufficient_quota", "You exceeded your current quota"),
    "server": ("server_error", None, "The server had an error while processing your request"),
    "overloaded": (
        "service_unavailable_error",
        "server_is_overloaded",
        "Overloaded: too much context to hold",
    ),
    "overflow": (
        "invalid_request_error",
        "context_length_exceeded",
        "This model's maximum context length is 128000 tokens. However, you requested about 130000 tokens",
    ),
}


def check(headers: Mapping[str, str], path: str, body: Any) -> str | None:
    if path != PATH:
        return f"Invalid URL (POST {path})"
    if headers.get("authorization") != f"Bearer {KEY}":
        return "You didn't provide an API key"
    if unknown := body.keys() - FIELDS:
        return f"Unrecognized request arguments supplied: {sorted(unknown)}"
    if not body.get("model"):
        return "you must provide a model parameter"
    if "stream_options" in body and not body.get("stream"):
        return "The 'stream_options' parameter is only allowed when 'stream' is enabled."
    if "max_tokens" in body and not (type(body["max_tokens"]) is int and body["max_tokens"] > 0):
        return f"Invalid 'max_tokens': {body['max_tokens']!r}"
    return _tools(body.get("tools")) or _messages(body.get("messages"))


def _tools(tools: Any) -> str | None:
    if tools is None:
        return None
    if not tools:
        return "[] is too short - 'tools'"
    for tool in tools:
        function = tool.get("function", {})
        if tool.keys() != {"type", "function"} or tool["type"] != "function":
            return f"Invalid tool: {tool}"
        if function.keys() != {"name", "description", "parameters"}:
            return f"Invalid function: {sorted(function)}"
        if not re.fullmatch("[a-zA-Z0-9_-]{1,64}", function["name"]):
            return f"Invalid function name: {function['name']}"
        if function["parameters"].get("type") != "object":
            return "Invalid schema for function: type must be 'object'"
    return None


def _messages(messages: Any) -> str | None:
    if not isinstance(messages, list) or not messages:
        return "[] is too short - 'messages'"
    unanswered: list[str] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if (role == "system") != (index == 0):
            return f"messages[{index}]: role {role}"
        if role == "tool":
            if message.keys() != {"role", "tool_call_id", "content"}:
                return f"messages[{index}]: fields {sorted(message)}"
            if message["tool_call_id"] not in unanswered:
                return "messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
            unanswered.remove(message["tool_call_id"])
        elif role == "user" and messages[index - 1].get("role") == "tool":
            return "Unexpected role 'user' after role 'tool'"
        elif unanswered:
            return f"An assistant message with 'tool_calls' must be followed by tool messages: {unanswered}"
        if role == "assistant":
            if wrong := _assistant(message):
                return f"messages[{index}]: {wrong}"
            unanswered = [call["id"] for call in message.get("tool_calls", ())]
        elif not isinstance(message.get("content"), str):
            return f"messages[{index}]: content {message.get('content')!r}"
    return f"tool calls without a response: {unanswered}" if unanswered else None


def _assistant(message: dict[str, Any]) -> str | None:
    known = {"role", "content", "tool_calls", "reasoning_content", "reasoning_details"}
    if unknown := message.keys() - known:
        return f"fields {sorted(unknown)}"
    calls = message.get("tool_calls")
    if calls == [] or (message.get("content") is None and not calls):
        return "content is required unless there are tool_calls"
    reasoning = message.get("reasoning_content", "")
    if message.get("reasoning_details", []) != _details(reasoning):
        return "reasoning_details were changed"
    for index, call in enumerate(calls or ()):
        if call.keys() != {"id", "type", "function"} or call["function"].keys() != {"name", "arguments"}:
            return f"tool_calls[{index}]: {call}"
        if not is_object(call["function"]["arguments"]):
            return f"tool_calls[{index}]: invalid tool call arguments"
        if call["id"].startswith("call_q") and call["id"] != _id(
            index, call["function"]["arguments"], reasoning
        ):
            return f"tool_calls[{index}]: the arguments or the reasoning are not what was sent: {message}"
    return None


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _id(index: int, arguments: str, reasoning: str) -> str:
    return f"call_q{index}" + hashlib.sha256(f"{arguments}\0{reasoning}".encode()).hexdigest()[:12]


def _details(reasoning: str) -> list[dict[str, Any]]:
    signature = hashlib.sha256(reasoning.encode()).hexdigest()
    piece = {"type": "reasoning.text", "index": 0, "text": reasoning, "signature": signature, "format": "x"}
    return [piece] if reasoning else []


def _calls(said: Said) -> list[dict[str, Any]]:
    calls = []
    for index, call in enumerate(said.calls):
        given = call["arguments"]
        # spelled as no serialiser would
        arguments = given if isinstance(given, str) else json.dumps(given, separators=(" ,  ", " : "))
        function = {"name": call["name"], "arguments": arguments}
        own = _id(index, arguments, said.reasoning) if is_object(arguments) else f"call_bad{index}"
        calls.append({"id": own, "type": "function", "function": function})
    return calls


def _finish(said: Said) -> str:
    return STOPS.get(said.stop) or ("tool_calls" if said.calls else "stop")


def _usage(said: Said) -> dict[str, Any]:
    read, written, cached = said.usage
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def reply_json(said: Said) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "refusal": None}
    if said.calls:
        message["tool_calls"] = _calls(said)
    if said.reasoning:
        message |= {"reasoning_content": said.reasoning, "reasoning_details": _details(said.reasoning)}
    choice = {"index": 0, "finish_reason": _finish(said), "logprobs": None, "message": message}
    return {"id": "chatcmpl-1", "object": "chat.completion", "choices": [choice], "usage": _usage(said)}


def reply_events(said: Said) -> Iterator[tuple[str, Any]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return "", {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "choices": [choice],
            "usage": None,
        }

    yield chunk({"role": "assistant", "content": ""})
    for piece in pieces(said.reasoning):
        yield chunk(
            {"reasoning_content": piece, "reasoning_details": [_details(said.reasoning)[0] | {"text": piece}]}
        )
    for piece in pieces(said.text):
        yield chunk({"content": piece})
    for index, call in enumerate(_calls(said)):
        name = {"name": call["function"]["name"], "arguments": ""}
        yield chunk({"tool_calls": [{**call, "index": index, "function": name}]})
        for piece in pieces(call["function"]["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(said))
    yield "", {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": _usage(said)}
    yield "", "[DONE]"


def pieces(text: str, size: int = 3) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def error(status: int, kind: str, message: str = "") -> Any:
    type, code, usual = ERRORS[kind]
    return {"error": {"message": message or usual, "type": type, "param": None, "code": code}}
