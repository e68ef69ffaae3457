"""OpenAI's Responses API, strictly: its checks of a request, and its answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.common import Wrong, arguments, closed, found, fresh, need, pieces, seal
from tests.vendors.server import KEY, Said

PATH = "/v1/responses"
OPTIONAL = (
    "instructions store stream max_output_tokens reasoning include parallel_tool_calls tool_choice prompt_cache_key "
    "prompt_cache_options tools metadata previous_response_id truncation text service_tier safety_identifier"
)
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MADE = re.compile(r"(fc|msg)_(\d+)r")  # an item that came with reasoning, by number
ERRORS = {
    "bad": (400, "invalid_request_error", None, "bad request"),
    "auth": (401, "invalid_request_error", "invalid_api_key", "Incorrect API key provided"),
    "model": (404, "invalid_request_error", "model_not_found", "The model does not exist"),
    "rate": (429, "requests", "rate_limit_exceeded", "Rate limit reached"),
    "quota": (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota"),
    "server": (500, "server_error", "server_error", "The server had an error"),
    "overloaded": (503, "service_unavailable_error", "server_is_overloaded", "The server is overloaded"),
    "overflow": (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "Your input exceeds the context window of this model.",
    ),
}


def check(headers: Mapping[str, str], path: str, body: Any) -> str | None:
    def whole() -> None:
        need(path == PATH, f"Invalid URL (POST {path})")
        need(headers.get("authorization") == f"Bearer {KEY}", "Incorrect API key provided")
        check_body(body)

    return found(whole)


def check_body(body: Any) -> None:
    closed(body, "body", "model input", OPTIONAL)
    need(body.get("store") is False, "store: this account must not store")
    need(body.get("max_output_tokens", 16) >= 16, "max_output_tokens: Expected a value >= 16")
    need("reasoning.encrypted_content" in body.get("include", ["reasoning.encrypted_content"]), "include")
    need(body.get("instructions", "-"), "instructions: must not be empty")
    need(len(body.get("prompt_cache_key", "")) <= 64, "prompt_cache_key: string too long")
    for at, tool in enumerate(body.get("tools", [])):
        closed(tool, f"tools[{at}]", "type name parameters strict", "description")
        need(tool["type"] == "function" and NAME.fullmatch(tool["name"]), f"tools[{at}].name")
        need(tool["strict"] is False and tool["parameters"]["type"] == "object", f"tools[{at}].parameters")
    need(body["input"], "input: must not be empty")
    _input(body["input"])


def _input(items: list[Any]) -> None:
    calls: set[str] = set()
    due: list[str] = []
    thoughts: set[str] = set()
    pending = ""  # reasoning that nothing has followed yet
    for at, item in enumerate(items):
        where = f"input[{at}]"
        kind = item.get("type", "message")
        need(
            not (pending and item.get("role") == "user"),
            f"Item '{pending}' without its required following item",
        )
        if kind == "function_call_output":
            closed(item, where, "type call_id output")
            need(isinstance(item["output"], str), f"{where}.output")
            need(
                item["call_id"] in due,
                f"No tool call found for function call output with call_id {item['call_id']}",
            )
            due.remove(item["call_id"])
            continue
        if kind != "function_call":
            need(not due, f"No tool output found for function call {due}")
        if kind == "reasoning":
            _reasoning(item, where)
            thoughts.add(item["id"])
            pending = item["id"]
            continue
        if made := MADE.match(item.get("id", "")):
            need(f"rs_{made[2]}r" in thoughts, f"Item '{item['id']}' without its required 'reasoning' item")
        pending = ""
        if kind == "function_call":
            closed(item, where, "type call_id name arguments", "id status")
            need(item["call_id"] not in calls, f"{where}.call_id: twice")
            need(NAME.fullmatch(item["name"]), f"{where}.name")
            need(isinstance(item["arguments"], str) and item["arguments"], f"{where}.arguments")
            calls.add(item["call_id"])
            due.append(item["call_id"])
        elif kind == "message":
            _message(item, where)
        else:
            raise Wrong(f"{where}.type: Invalid value '{kind}'")
    need(not due, f"No tool output found for function call {due}")
    need(
        not pending, f"Item '{pending}' of type 'reasoning' was provided without its required following item."
    )
    need(items[-1].get("role", "tool") != "assistant", "the last item is of the assistant")


def _reasoning(item: Any, where: str) -> None:
    closed(item, where, "type id summary", "encrypted_content content status")
    need(item.get("encrypted_content"), f"Item with id '{item['id']}' not found. Items are not persisted")
    if item["id"].endswith("r"):
        same = item["encrypted_content"] == seal(item["id"], item["summary"])
        need(same, "The encrypted content could not be verified.")


def _message(item: Any, where: str) -> None:
    closed(item, where, "role content", "type id status phase")
    need(item["role"] in ("user", "assistant", "developer"), f"{where}.role")
    if isinstance(item["content"], str):
        need(item["content"].strip(), f"{where}.content: empty")
        return
    need(item["role"] == "assistant" and "id" in item, f"{where}.content")
    for part in item["content"]:
        if part["type"] == "refusal":
            closed(part, where, "type refusal")
        else:
            closed(part, where, "type text annotations", "logprobs")


def reply_json(said: Said) -> Any:
    number = fresh()
    mark = f"{number}r" if said.reasoning else str(number)
    output: list[dict[str, Any]] = []
    if said.reasoning:
        item = {"id": f"rs_{mark}", "type": "reasoning", "summary": _summary(said.reasoning)}
        output.append({**item, "encrypted_content": seal(item["id"], item["summary"])})
    if said.text or said.stop == "refusal":
        part = {"type": "output_text", "text": said.text, "annotations": []}
        if said.stop == "refusal":
            part = {"type": "refusal", "refusal": said.text or "I cannot help with that."}
        phase = "commentary" if said.calls else "final_answer"
        message = {"id": f"msg_{mark}", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**message, "phase": phase, "content": [part]})
    for index, call in enumerate(said.calls):
        one = {"id": f"fc_{mark}{index}", "type": "function_call", "call_id": f"call_{number}_{index}"}
        output.append({**one, "name": call["name"], "arguments": arguments(call), "status": "completed"})
    cut = said.stop in ("length", "context")
    sent, made, cached = said.usage
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1780000000,
        "status": "incomplete" if cut else "completed",
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "instructions": None,
        "model": "gpt",
        "output": output,
        "usage": {
            "input_tokens": sent,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": cached // 2},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": made // 2},
            "total_tokens": sent + made,
        },
    }


def _summary(text: str) -> list[dict[str, Any]]:
    return [{"type": "summary_text", "text": text}]


def reply_events(said: Said) -> list[tuple[str, Any]]:
    return list(events(reply_json(said), said))


def events(body: Any, said: Said) -> Iterator[tuple[str, Any]]:
    """A body as it is streamed."""
    numbers = iter(range(1_000_000))

    def event(kind: str, **more: Any) -> tuple[str, Any]:
        return kind, {"type": kind, "sequence_number": next(numbers), **more}

    hollow = {**body, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("response.created", response=hollow)
    yield event("response.in_progress", response=hollow)
    for index, item in enumerate(body["output"]):
        begun = {**item, "content": []} if "content" in item else {**item, "arguments": ""}
        if item["type"] == "reasoning":
            begun = {**item, "encrypted_content": item["encrypted_content"][:3]}  # not yet the whole of it
        yield event("response.output_item.added", output_index=index, item=begun)
        if item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", output_index=index, delta=piece)
        for part in item.get("content", []):
            for piece in pieces(part.get("text", "")):
                yield event("response.output_text.delta", output_index=index, content_index=0, delta=piece)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{body['status']}", response=body)


def error(status: int, kind: str, message: str = "") -> Any:
    _, type, code, usual = ERRORS[kind]
    return {"error": {"message": message or usual, "type": type, "param": None, "code": code}}


def error_event(kind: str, message: str) -> tuple[str, Any]:
    _, _, code, usual = ERRORS[kind]
    told = {"code": code, "message": message or usual, "param": None, "sequence_number": 7}
    return "error", {"type": "error", **told}
