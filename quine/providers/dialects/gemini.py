"""The dialect of Gemini's generateContent.

Laws
1. The parts of a reply are kept and sent back in their order as they came, each with its own thoughtSignature, unless
   the service has refused one. Text that a stream brought in pieces is joined only if no piece is signed.
2. The content after a reply with calls holds their responses and nothing else, one for each. Text comes after it in a
   content of its own, or the service takes the turn for one of the model's.
3. A stream has no end marker: an answer without a finishReason was cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, ClassVar
from urllib.parse import quote

from quine.base.errors import USAGE
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
from quine.providers.dialects import faults
from quine.providers.dialects.dialect import Dialect, Foreign, Stream, number, unused
from quine.providers.dialects.turns import User, arguments, output, own, split

NAME = "gemini"
TOKEN = "continuationToken"
UNSIGNED = (
    "skip_thought_signature_validator"  # for a call without a valid signature, such as one of another model
)
BLOCKED = (
    "SAFETY", "RECITATION", "LANGUAGE", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "ESCALATION", "MODEL_ARMOR",
    "PUP_LIMITED_DISABLED",
)  # fmt: skip
# Every other reason is a fault of the model or of the service, and worth another try.
STOPS = {"STOP": "end", "MAX_TOKENS": "length", "CONTINUATION": "pause", **dict.fromkeys(BLOCKED, "refusal")}


class _Call(Foreign):
    id: str | None = None
    name: str = ""
    args: dict[str, Any] | None = None


class _Part(Foreign):
    text: str | None = None
    thought: bool | None = None
    functionCall: _Call | None = None


class _Content(Foreign):
    parts: list[_Part] | None = None


class _Candidate(Foreign):
    content: _Content | None = None
    finishReason: str | None = None
    finishMessage: str | None = None
    continuationToken: str | None = None


class _Answer(Foreign):
    candidates: list[_Candidate] | None = None
    promptFeedback: dict[str, Any] | None = None
    usageMetadata: dict[str, Any] | None = None


class GeminiDialect(Dialect):
    KIND = NAME
    SPARE: ClassVar = {
        "output": re.compile(r"max_?output_?tokens", re.IGNORECASE),
        "signatures": re.compile(r"thought.?signature", re.IGNORECASE),
    }

    def __init__(self, model: str) -> None:
        super().__init__(model.removeprefix("models/"))
        self._signs = not re.match(r"gemini-[12]\b", self._model)

    def _url(self, base: str) -> str:
        if not re.search(r"/v\d+\w*$", base):
            # Only the beta knows the aliases that follow the newest model.
            base += "/v1beta" if self._model.endswith("-latest") else "/v1"
        return f"{base}/models/{quote(self._model)}:streamGenerateContent?alt=sse"

    def headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key} if key else {}

    def body(self, request: Request, without: Collection[str] = ()) -> dict[str, Any]:
        told = split(request.messages, NAME)
        body: dict[str, Any] = {"generationConfig": {"maxOutputTokens": output(request, "output" in without)}}
        if told.system:
            body["systemInstruction"] = {"parts": [{"text": told.system}]}
        if request.tools:
            body["tools"] = [{"functionDeclarations": [_tool(tool) for tool in request.tools]}]
        contents: list[dict[str, Any]] = []
        _add(contents, "user", _texts(told.first))
        token = ""
        for reply, said in told.rest:
            _add(contents, "model", self._parts(reply, "signatures" not in without))
            token = str((reply.raw or {}).get(TOKEN, ""))
            if not token:  # else the answer goes on where it stopped: the messages since are left out
                _add(contents, "user", _responses(said, reply))
                _add(contents, "user", _texts(said))
        if token:
            # The same request as before; the token tells the service how much of the answer exists.
            body[TOKEN] = token
            if contents[-1]["role"] == "model":
                contents.pop()
        body["contents"] = contents
        return body

    def stream(self) -> _Stream:
        return _Stream(self.fault)

    def reply(self, data: Any) -> Reply:
        answer = self._answer(_Answer, data)
        if not answer.candidates:
            if reason := (answer.promptFeedback or {}).get("blockReason"):
                raise Refused(f"the prompt was blocked: {faults.printable(str(reason))}")
            raise Unavailable("the server's answer holds no candidate")
        candidate = answer.candidates[0]
        reason = candidate.finishReason or "no reason"
        told = faults.printable(candidate.finishMessage or reason)
        if reason not in STOPS:
            faults.end_of(reason)  # which raises if it is known to leave no reply
            raise Unavailable(f"the answer failed: {told}")
        parts = candidate.content.parts or [] if candidate.content else []
        raw = list(data["candidates"][0]["content"]["parts"]) if parts else []
        calls = _calls(parts, raw)
        text = "".join(part.text for part in parts if part.text and not part.thought)
        if STOPS[reason] == "refusal" and not text:
            text = f"refused: {told}"
        kept: dict[str, Any] = {NAME: raw}
        stop = STOPS[reason]
        if stop == "pause" and candidate.continuationToken and not calls:
            kept[TOKEN] = candidate.continuationToken
        if calls and stop == "end":
            stop = "tool"
        thoughts = "".join(part.text for part in parts if part.text and part.thought)
        message = Message("assistant", text, calls, reasoning=thoughts, raw=kept)
        return Reply(message, _usage(answer.usageMetadata), stop)

    def usage(self, data: dict[str, Any]) -> Usage:
        return _usage(data.get("usageMetadata"))

    def fault(self, status: int, data: Any) -> GuestError:
        said, error = faults.told(data), _error(data)
        if status == 200:
            status = faults.inner(said.code, status)
        details = [d for d in _list(error.get("details")) if isinstance(d, dict)]
        shown = f"{said.message} (HTTP {status})"
        if any(detail.get("reason") == "API_KEY_INVALID" for detail in details):
            return Refused(shown, "see QUINE_API_KEY, or the vendor's own variable", USAGE)
        if status == 429 and _used_up(details, said.message):
            return Refused(shown, faults.NO_QUOTA_LEFT, USAGE)
        fault = self._judged(status, said)
        if isinstance(fault, Unavailable):
            fault.after = _delay(details)
        return self._adapted(fault, status, said.message)

    def _parts(self, reply: Message, signed: bool) -> list[dict[str, Any]]:
        kept = own(reply, NAME)
        if kept is not None and signed:
            return [part for part in kept if part not in ({}, {"text": ""})]
        if kept is not None:
            unsigned = [{k: v for k, v in part.items() if k != "thoughtSignature"} for part in kept]
            parts = [part for part in unsigned if part not in ({}, {"text": ""})]
        else:
            parts = [{"text": reply.text}] if reply.text.strip() else []
            parts += [{"functionCall": {"name": c.name, "args": arguments(c)}} for c in reply.tool_calls]
        first = next((part for part in parts if "functionCall" in part), None)
        if first is not None and self._signs:
            first["thoughtSignature"] = UNSIGNED
        return parts


class _Stream(Stream):
    """Assembles the events: each is an answer with new parts only, and the last one has the reason."""

    def __init__(self, fault: Callable[[int, Any], GuestError]) -> None:
        super().__init__(fault)
        self._whole: dict[str, Any] = {}
        self._candidate: dict[str, Any] = {}
        self._parts: list[dict[str, Any]] = []

    def _take(self, event: str, data: Any) -> bool:
        self._whole.update(data)
        for candidate in _list(data.get("candidates"))[:1]:
            content = candidate.get("content") or {}
            self._parts += [dict(part) for part in _list(content.get("parts"))]
            self._candidate.update(candidate)
        feedback = data.get("promptFeedback") or {}
        self.complete = bool(self._candidate.get("finishReason") or feedback.get("blockReason"))
        return False  # parts, a call among them, may come behind the reason

    def _body(self) -> dict[str, Any]:
        if not self._candidate:
            return self._whole
        content = {"role": "model", "parts": _joined(self._parts)}
        return {**self._whole, "candidates": [{**self._candidate, "content": content}]}


def _joined(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge pieces of plain text into one part."""
    joined: list[tuple[dict[str, Any], list[str]]] = []
    for part in parts:
        plain = part.keys() <= {"text", "thought"} and isinstance(part.get("text"), str)
        if plain and joined and joined[-1][1] and joined[-1][0].get("thought") == part.get("thought"):
            joined[-1][1].append(part["text"])
        else:
            joined.append((part, [part["text"]] if plain else []))
    return [{**part, "text": "".join(pieces)} if pieces else part for part, pieces in joined]


def _tool(tool: Tool) -> dict[str, Any]:
    return {"name": tool.name, "description": tool.description, "parametersJsonSchema": tool.schema}


def _add(contents: list[dict[str, Any]], role: str, parts: list[dict[str, Any]]) -> None:
    """Append `parts`; adjacent contents of one role are merged, except responses, which stand alone."""
    last: dict[str, Any] = contents[-1] if contents else {}
    if parts and last.get("role") == role and "functionResponse" not in last["parts"][-1]:
        last["parts"] += parts
    elif parts:
        contents.append({"role": role, "parts": parts})


def _texts(said: User) -> list[dict[str, Any]]:
    return [{"text": text} for text in said.texts]


def _responses(said: User, reply: Message) -> list[dict[str, Any]]:
    """Return one response for each call, with its id if the service sent one."""
    sent = {str((part.get("functionCall") or {}).get("id")) for part in own(reply, NAME) or ()}
    return [
        {
            "functionResponse": {
                **({"id": result.call_id} if result.call_id in sent else {}),
                "name": result.name,
                "response": {"error" if result.is_error else "output": result.text},
            }
        }
        for result in said.results
    ]


def _calls(parts: list[_Part], raw: list[Any]) -> tuple[ToolCall, ...]:
    """Return the calls, each with a unique id. In `raw` a call has an id only if the service sent one."""
    calls: list[ToolCall] = []
    taken: set[str] = set()
    for index, part in enumerate(parts):
        if (given := part.functionCall) is None:
            continue
        call = ToolCall(unused(given.id, taken), given.name, given.args or {})
        calls.append(call)
        if given.id not in (None, call.id):
            raw[index] = {**raw[index], "functionCall": {**raw[index]["functionCall"], "id": call.id}}
    return tuple(calls)


def _error(data: Any) -> dict[str, Any]:
    """Return the error in an answer, which may be the one element of an array; {} if there is none."""
    data = data[0] if isinstance(data, list) and data else data
    error = data.get("error") if isinstance(data, dict) else None
    return error if isinstance(error, dict) else {"message": error} if error else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _used_up(details: list[dict[str, Any]], message: str) -> bool:
    """Return True for a daily quota, or a limit of 0: neither returns within the wait of a retry."""
    violations = [v for detail in details for v in _list(detail.get("violations")) if isinstance(v, dict)]
    return (
        any("PerDay" in str(v.get("quotaId")) for v in violations)
        or re.search(r"\blimit: 0\b", message) is not None
    )


def _delay(details: list[dict[str, Any]]) -> float | None:
    """Return the delay of RetryInfo in seconds, from "7s" or "7.5s"; None if there is none."""
    for detail in details:
        if found := re.fullmatch(r"(\d{1,6}(?:\.\d{1,9})?)s", str(detail.get("retryDelay"))):
            return float(found[1])
    return None


def _usage(usage: dict[str, Any] | None) -> Usage:
    thoughts = number(usage, "thoughtsTokenCount")
    return Usage(
        number(usage, "promptTokenCount") + number(usage, "toolUsePromptTokenCount"),
        number(usage, "candidatesTokenCount") + thoughts,
        number(usage, "cachedContentTokenCount"),
        0,
        thoughts,
    )
