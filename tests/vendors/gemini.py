"""Gemini's generateContent, strictly: its checks of a request, and its answers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.vendors.common import as_object, closed, found, fresh, need, pieces, seal
from tests.vendors.server import KEY, Said

PATH = re.compile(r"/v1(beta)?/models/([\w.-]+):streamGenerateContent\?alt=sse")
OPTIONAL = (
    "systemInstruction tools toolConfig generationConfig safetySettings cachedContent continuationToken store"
)
NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}")
DATA = {"text", "functionCall", "functionResponse"}
UNSIGNED = "skip_thought_signature_validator"
SIGNED = "made"  # signatures that this file made, and can check
TOKEN = "dG9rZW4="
STOPS = {"length": "MAX_TOKENS", "context": "MAX_TOKENS", "refusal": "SAFETY", "pause": "CONTINUATION"}
ERRORS = {
    "bad": (400, "INVALID_ARGUMENT", "bad request"),
    "auth": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
    "model": (404, "NOT_FOUND", "models/m is not found"),
    "rate": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota. Please retry in 7s."),
    "quota": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota."),
    "server": (500, "INTERNAL", "An internal error has occurred."),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "overflow": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (2000000) exceeds the maximum number of tokens allowed (1048576).",
    ),
}


def check(headers: Mapping[str, str], path: str, body: Any) -> str | None:
    def whole() -> None:
        asked = PATH.fullmatch(path)
        need(asked, f"no such path: {path}")
        need(headers.get("x-goog-api-key") == KEY, "API key not valid. Please pass a valid API key.")
        check_body(body, signs=not re.match(r"gemini-[12]\b", asked[2] if asked else ""))

    return found(whole)


def check_body(body: Any, signs: bool = True) -> None:
    closed(body, "body", "contents", OPTIONAL)
    closed(body.get("generationConfig", {}), "generationConfig", "", "maxOutputTokens thinkingConfig")
    if "systemInstruction" in body:
        closed(body["systemInstruction"], "systemInstruction", "parts", "role")
        need(
            all(part["text"].strip() for part in body["systemInstruction"]["parts"]),
            "systemInstruction: empty",
        )
    for group in body.get("tools", []):
        for tool in group["functionDeclarations"]:
            closed(tool, "tools", "name description", "parametersJsonSchema")
            need(NAME.fullmatch(tool["name"]), "function_declarations.name")
    contents = body["contents"]
    need(contents and contents[0]["role"] == "user", "Please ensure that the first content is of the user")
    need(contents[-1]["role"] == "user", "Requests ending with a model turn are not supported.")
    calls: list[Any] = []
    for at, content in enumerate(contents):
        where = f"contents[{at}]"
        closed(content, where, "role parts")
        need(content["role"] in ("user", "model"), f"{where}: Please use a valid role: user, model.")
        need(content["parts"], f"{where}.parts: contents.parts must not be empty.")
        for part in content["parts"]:
            _part(part, content["role"], where)
        answers = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        need(
            not answers or len(answers) == len(content["parts"]),
            f"{where}: responses and other parts are mixed",
        )
        _answers(calls, answers, where)
        need(
            content["role"] != "model" or at == 0 or contents[at - 1]["role"] == "user",
            f"{where}: model twice",
        )
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
    if signs:
        _signed(contents)


def _part(part: Any, role: str, where: str) -> None:
    kinds = part.keys() & DATA
    need(len(kinds) == 1, f"{where}: oneof field 'data' must have one initialized field")
    closed(part, where, " ".join(kinds), "thought thoughtSignature")
    if part.get("text") == "":
        need("thoughtSignature" in part, f"{where}: empty text parameter")
    if call := part.get("functionCall"):
        need(role == "model", f"{where}: a call of the user")
        closed(call, where, "name", "id args")
        need(NAME.fullmatch(call["name"]), f"{where}.function_call.name: Invalid function name")
        need(isinstance(call.get("args", {}), dict), f"{where}.function_call.args")
    if answer := part.get("functionResponse"):
        need(role == "user", f"{where}: a response of the model")
        closed(answer, where, "name response", "id")
        need(isinstance(answer["response"], dict), f"{where}.function_response.response")
    signature = part.get("thoughtSignature", UNSIGNED)
    if signature.startswith(SIGNED):
        data = {key: value for key, value in part.items() if key != "thoughtSignature"}
        need(signature == SIGNED + seal(data), "Thought signature is not valid")


def _answers(calls: list[Any], answers: list[Any], where: str) -> None:
    need(
        len(calls) == len(answers),
        f"{where}: Please ensure that the number of function response parts is equal to the number of function call "
        "parts of the function call turn.",
    )
    for call, answer in zip(calls, answers, strict=True):
        need(
            call["name"] == answer["name"] and call.get("id") == answer.get("id"),
            f"{where}: not the response",
        )


def _signed(contents: list[Any]) -> None:
    """The first call of each step since the user last said something needs its signature."""
    said = [at for at, c in enumerate(contents) if c["role"] == "user" and "text" in c["parts"][0]]
    for content in contents[said[-1] :]:
        calls = [part for part in content["parts"] if "functionCall" in part]
        need(
            not calls or calls[0].get("thoughtSignature"),
            "Function call is missing a thought_signature in functionCall parts.",
        )


def reply_json(said: Said) -> Any:
    number = fresh()
    parts: list[dict[str, Any]] = []
    if said.reasoning:
        parts.append({"text": said.reasoning, "thought": True})
    if said.text:
        parts.append({"text": said.text} if said.calls else _sign({"text": said.text}))
    for index, call in enumerate(said.calls):
        one = {"functionCall": {"id": f"c{number}_{index}", "name": call["name"], "args": as_object(call)}}
        parts.append(one if index else _sign(one))
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}} if parts else {}
    candidate |= {"finishReason": STOPS.get(said.stop, "STOP"), "index": 0}
    if said.stop == "pause":
        candidate["continuationToken"] = TOKEN
    sent, made, cached = said.usage
    usage = {
        "promptTokenCount": sent,
        "cachedContentTokenCount": cached,
        "candidatesTokenCount": made - made // 2,
        "thoughtsTokenCount": made // 2,
        "totalTokenCount": sent + made,
    }
    head = {"modelVersion": "gemini", "responseId": f"r{number}"}
    return {"candidates": [candidate], "usageMetadata": usage, **head}


def _sign(part: dict[str, Any]) -> dict[str, Any]:
    return {**part, "thoughtSignature": SIGNED + seal(part)}


def reply_events(said: Said) -> list[tuple[str, Any]]:
    return list(events(reply_json(said), said))


def events(body: Any, said: Said) -> Iterator[tuple[str, Any]]:
    """A body as it is streamed: unsigned text in pieces, every other part whole."""
    (candidate,) = body["candidates"]
    head = {key: body[key] for key in ("modelVersion", "responseId")}
    for part in candidate.get("content", {"parts": []})["parts"]:
        cut = "text" in part and "thoughtSignature" not in part
        for piece in pieces(part["text"]) if cut else [""]:
            one = {**part, "text": piece} if cut else part
            usage = {"promptTokenCount": body["usageMetadata"]["promptTokenCount"]}
            content = {"role": "model", "parts": [one]}
            yield "", {"candidates": [{"content": content, "index": 0}], "usageMetadata": usage, **head}
    last = {key: value for key, value in candidate.items() if key != "content"}
    yield "", {"candidates": [last], "usageMetadata": body["usageMetadata"], **head}


def error(status: int, kind: str, message: str = "") -> Any:
    code, name, usual = ERRORS[kind]
    told: dict[str, Any] = {"code": code, "message": message or usual, "status": name}
    if kind == "auth":
        told["details"] = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
    if kind in ("rate", "quota"):
        quota = (
            "GenerateRequestsPerMinutePerProject" if kind == "rate" else "GenerateRequestsPerDayPerProject"
        )
        told["details"] = [
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [{"quotaId": quota}]},
            {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"},
        ]
    return {"error": told}


def error_event(kind: str, message: str) -> tuple[str, Any]:
    return "", [error(200, kind, message)]
