"""Anthropic's Messages API, strictly: its checks of a request, and its answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.common import Wrong, arguments, as_object, closed, found, fresh, need, pieces, seal
from tests.vendors.server import KEY, Said

PATH = "/v1/messages"
OPTIONAL = (
    "system tools tool_choice thinking output_config cache_control stop_sequences stream metadata service_tier speed "
    "container diagnostics inference_geo"
)
ID = re.compile(r"[a-zA-Z0-9_-]+")
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
SIGNED = "made:"  # signatures and data that this file made, and can check
STOPS = {
    "length": "max_tokens",
    "context": "model_context_window_exceeded",
    "refusal": "refusal",
    "pause": "pause_turn",
}
ERRORS = {
    "bad": ("invalid_request_error", "bad request"),
    "auth": ("authentication_error", "invalid x-api-key"),
    "model": ("not_found_error", "model: m"),
    "rate": ("rate_limit_error", "This request would exceed your rate limit"),
    "quota": ("rate_limit_error", "The spend limit of this workspace is reached"),
    "server": ("api_error", "Internal server error"),
    "overloaded": ("overloaded_error", "Overloaded"),
    "overflow": ("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
}


def check(headers: Mapping[str, str], path: str, body: Any) -> str | None:
    def whole() -> None:
        need(path == PATH, f"no such path: {path}")
        need(headers.get("anthropic-version") == "2026-10-21", "anthropic-version: header is required")
        need(headers.get("x-api-key") == KEY and "authorization" not in headers, "invalid x-api-key")
        check_body(body)

    return found(whole)


def check_body(body: Any) -> None:
    closed(body, "body", "model max_tokens messages", OPTIONAL)
    need(isinstance(body["max_tokens"], int) and body["max_tokens"] > 0, "max_tokens: must be positive")
    if "thinking" in body:
        kind = body["thinking"]["type"]
        need(kind in ("adaptive", "enabled", "disabled", "between_tools"), f"thinking.type: {kind}")
        old = re.search(r"claude-(3|[a-z]+-4-[0-5]\b|[a-z]+-4-2)", body["model"])
        need(not (old and kind == "adaptive"), "adaptive thinking is not supported on this model")
    if isinstance(body.get("system"), list):
        need(body["system"], "system: must not be empty")
        for block in body["system"]:
            _text(block, "system")
    for index, tool in enumerate(body.get("tools", [])):
        closed(tool, f"tools.{index}", "name input_schema", "description cache_control")
        need(NAME.fullmatch(tool["name"]), f"tools.{index}.name: String should match pattern")
        need(tool["input_schema"]["type"] == "object", f"tools.{index}.input_schema.type")
    messages = body["messages"]
    need(messages and messages[0]["role"] == "user", "messages: first message must use the user role")
    need(messages[-1]["role"] == "user", "This model does not support assistant message prefill.")
    marks, used, due = 0, set[str](), list[str]()
    marks += sum("cache_control" in block for block in [*body.get("tools", []), *_blocks(body.get("system"))])
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        closed(message, where, "role content")
        need(message["role"] == ("user", "assistant")[index % 2], f"{where}: roles must alternate")
        blocks = _blocks(message["content"])
        need(blocks, f"{where}: all messages must have non-empty content")
        marks += sum("cache_control" in block for block in blocks)
        if message["role"] == "user":
            _user(blocks, where, due)
            due = []
        else:
            due = _assistant(blocks, where)
            need(not used & {*due}, f"{where}: `tool_use` ids must be unique")
            used |= {*due}
    marks += "cache_control" in body
    need(marks <= 4, f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return content or []


def _text(block: Any, where: str, more: str = "") -> None:
    closed(block, where, "type text", f"cache_control {more}")
    need(block["text"].strip(), f"{where}: text content blocks must contain non-whitespace text")


def _mark(block: Any, where: str) -> None:
    if "cache_control" in block:
        closed(block["cache_control"], f"{where}.cache_control", "type", "ttl")


def _user(blocks: list[Any], where: str, due: list[str]) -> None:
    answered: list[str] = []
    for at, block in enumerate(blocks):
        here = f"{where}.content.{at}"
        _mark(block, here)
        match block["type"]:
            case "tool_result":
                closed(block, here, "type tool_use_id content", "is_error cache_control")
                need(at == len(answered), f"{here}: tool_result blocks must come first")
                need(isinstance(block["content"], str | list), f"{here}.content: must be text or blocks")
                need(
                    block["tool_use_id"] in due,
                    f"{here}: unexpected `tool_use_id` found in `tool_result` blocks",
                )
                need(block["tool_use_id"] not in answered, f"{here}: each tool_use must have a single result")
                need(block.get("is_error", False) in (True, False), f"{here}.is_error")
                answered.append(block["tool_use_id"])
            case "text":
                _text(block, here)
            case other:
                raise Wrong(f"{here}: Input tag '{other}' found")
    missing = [one for one in due if one not in answered]
    need(
        not missing,
        f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {missing}",
    )


def _assistant(blocks: list[Any], where: str) -> list[str]:
    calls = []
    for at, block in enumerate(blocks):
        here = f"{where}.content.{at}"
        match block["type"]:
            case "text":
                _text(block, here, "citations")
            case "thinking":
                closed(block, here, "type thinking signature")
                signature = block["signature"]
                need(signature, f"{here}: Invalid `signature` in `thinking` block")
                if signature.startswith(SIGNED):
                    need(signature == SIGNED + seal(block["thinking"]), f"{here}: Invalid `signature`")
            case "redacted_thinking":
                closed(block, here, "type data")
            case "tool_use":
                closed(block, here, "type id name input", "caller cache_control")
                need(isinstance(block["input"], dict), f"{here}.input: Input should be a valid dictionary")
                need(ID.fullmatch(block["id"]), f"{here}.id: String should match pattern")
                need(NAME.fullmatch(block["name"]), f"{here}.name: String should match pattern")
                calls.append(block["id"])
            case other:
                raise Wrong(f"{here}: Input tag '{other}' found")
    last = blocks[-1]["type"]
    need(last not in ("thinking", "redacted_thinking"), f"{where}: The final block cannot be `thinking`")
    need(len({*calls}) == len(calls), f"{where}: `tool_use` ids must be unique")
    return calls


def reply_json(said: Said) -> Any:
    number = fresh()
    content: list[dict[str, Any]] = []
    if said.reasoning:
        content.append(
            {"type": "thinking", "thinking": said.reasoning, "signature": SIGNED + seal(said.reasoning)}
        )
        content.append({"type": "redacted_thinking", "data": f"{SIGNED}{number}"})
    if said.text:
        content.append({"type": "text", "text": said.text})
    for index, call in enumerate(said.calls):
        one = {
            "type": "tool_use",
            "id": f"toolu_{number}_{index}",
            "name": call["name"],
            "input": as_object(call),
        }
        content.append(one)
    sent, made, cached = said.usage
    details = (
        {"type": "refusal", "category": "cyber", "explanation": None} if said.stop == "refusal" else None
    )
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": content,
        "stop_reason": STOPS.get(said.stop, "tool_use" if said.calls else "end_turn"),
        "stop_sequence": None,
        "stop_details": details,
        "usage": {
            "input_tokens": sent - cached - cached // 2,
            "cache_creation_input_tokens": cached // 2,
            "cache_read_input_tokens": cached,
            "output_tokens": made,
            "output_tokens_details": {"thinking_tokens": made // 2},
            "service_tier": "standard",
        },
    }


def reply_events(said: Said) -> list[tuple[str, Any]]:
    return list(events(reply_json(said), said))


def events(body: Any, said: Said) -> Iterator[tuple[str, Any]]:
    """A body as it is streamed; the arguments come as text, as they were said."""
    uses = [block for block in body["content"] if block["type"] == "tool_use"]
    inputs = {use["id"]: arguments(call) for use, call in zip(uses, said.calls, strict=True)}

    def event(kind: str, **more: Any) -> tuple[str, Any]:
        return kind, {"type": kind, **more}

    begun = {**body["usage"], "output_tokens": 1}
    del begun["output_tokens_details"]
    empty = {"content": [], "stop_reason": None, "stop_sequence": None, "stop_details": None, "usage": begun}
    yield event("message_start", message={**body, **empty})
    yield event("ping")
    for index, block in enumerate(body["content"]):
        hollow = {"text": "", "thinking": "", "signature": "", "input": {}}
        start = {key: hollow.get(key, value) for key, value in block.items()}
        yield event("content_block_start", index=index, content_block=start)
        for delta in _deltas(block, inputs):
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    ends = {key: body[key] for key in ("stop_reason", "stop_sequence", "stop_details")}
    told = {
        "output_tokens": body["usage"]["output_tokens"],
        "output_tokens_details": body["usage"]["output_tokens_details"],
        "input_tokens": None,
    }
    yield event("message_delta", delta=ends, usage=told)
    yield event("message_stop")


def _deltas(block: Any, inputs: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    match block["type"]:
        case "text":
            yield from ({"type": "text_delta", "text": piece} for piece in pieces(block["text"]))
        case "thinking":
            yield from ({"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"]))
            yield {"type": "signature_delta", "signature": block["signature"]}
        case "tool_use":
            yield {"type": "input_json_delta", "partial_json": ""}
            for piece in pieces(inputs[block["id"]]):
                yield {"type": "input_json_delta", "partial_json": piece}


def error(status: int, kind: str, message: str = "") -> Any:
    name, usual = ERRORS[kind]
    told: dict[str, Any] = {"type": name, "message": message or usual}
    if kind == "quota":
        told["details"] = {"error_code": "enforced_spend_limit_reached"}
    return {"type": "error", "error": told, "request_id": "req_1"}


def error_event(kind: str, message: str) -> tuple[str, Any]:
    return "error", error(200, kind, message)
