"""The dialect of chat completions, and the file that owns the socket, against a server of strings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from quine.exits import Misconfigured
from quine.guests.base import (
    GuestError,
    Message,
    Overflow,
    Refused,
    Request,
    ToolCall,
    ToolResult,
    Unavailable,
    Usage,
)
from quine.guests.chat import ChatDialect
from quine.guests.http import ATTEMPTS, HttpGuest
from quine.tools import TOOLS

ASKED = Request([Message("system", "be"), Message("user", "do")], TOOLS)


def answer(message: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "hi", **(message or {})}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": said}], **more}


def called(*calls: tuple[object, str, object]) -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": args}}
            for id, name, args in calls
        ],
    }


class Server:
    """Answers in turn; a callable is called, an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []
        self.pauses: list[float] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        given = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(given, Exception):
            raise given
        if isinstance(given, httpx.Response):
            return given
        return httpx.Response(200, json=given)

    def guest(self, base: str = "http://host/v1", key: str = "k") -> HttpGuest:
        return HttpGuest(ChatDialect("model"), base, key, httpx.MockTransport(self), self.pauses.append)

    def body(self, index: int = 0) -> Any:
        return json.loads(self.requests[index].content)


def fault(status: int, body: Any, headers: dict[str, str] | None = None) -> httpx.Response:
    return httpx.Response(status, json=body, headers=headers)


def test_request() -> None:
    server = Server(answer())
    reply = server.guest().infer(ASKED)
    (request,) = server.requests
    assert str(request.url) == "http://host/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k"
    body = server.body()
    assert set(body) == {"model", "tools", "messages"}
    assert body["messages"] == [{"role": "system", "content": "be"}, {"role": "user", "content": "do"}]
    assert [t["function"]["name"] for t in body["tools"]] == ["sh", "fork", "exec", "exit"]
    assert all(t["function"]["parameters"]["type"] == "object" for t in body["tools"])
    assert (reply.message.text, reply.stop, reply.usage) == ("hi", "end", Usage())


def test_no_key_no_header() -> None:
    server = Server(answer())
    server.guest(key="").infer(ASKED)
    assert "authorization" not in server.requests[0].headers


def test_calls_come_and_go_back_as_they_came() -> None:
    raw = '{"command" : "ls"}'
    message = called(("c1", "sh", raw), ("c2", "exit", '{"status":0}')) | {
        "reasoning_content": "hm",
        "annotations": [],
    }
    server = Server(answer(message), answer())
    guest = server.guest()
    reply = guest.infer(ASKED)
    assert reply.stop == "tool"
    assert reply.message.reasoning == "hm"
    assert [(c.id, c.name, c.args) for c in reply.message.tool_calls] == [
        ("c1", "sh", {"command": "ls"}),
        ("c2", "exit", {"status": 0}),
    ]
    results = [Message("tool", result=ToolResult(c.id, c.name, "done")) for c in reply.message.tool_calls]
    through = Message.from_json(json.loads(json.dumps(reply.message.to_json())))
    assert through == reply.message
    guest.infer(ASKED._replace(messages=[*ASKED.messages, through, *results]))
    sent, *rest = server.body(1)["messages"][2:]
    assert sent["tool_calls"] == message["tool_calls"]
    assert sent["content"] is None
    assert sent["reasoning_content"] == "hm"
    assert "annotations" not in sent
    assert rest == [{"role": "tool", "tool_call_id": c, "content": "done"} for c in ("c1", "c2")]


def test_a_message_of_another_guest_is_sent_in_this_dialect() -> None:
    server = Server(answer())
    other = Message("assistant", "", (ToolCall("x", "sh", {"command": "ä"}),))
    server.guest().infer(ASKED._replace(messages=[*ASKED.messages, other, Message("assistant", "text")]))
    call, text = server.body()["messages"][2:]
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"command": "ä"}
    assert call["content"] is None
    assert text == {"role": "assistant", "content": "text"}


@pytest.mark.parametrize(
    ("ids", "unique"), [((None, None), True), (("a", "a"), True), (("", "x"), True), ((1, 2), True)]
)  # fmt: skip
def test_missing_or_double_ids(ids: tuple[object, object], unique: bool) -> None:
    server = Server(answer(called((ids[0], "sh", "{}"), (ids[1], "sh", "{}"))))
    message = server.guest().infer(ASKED).message
    first, second = (call.id for call in message.tool_calls)
    assert first and second and first != second
    assert message.raw is not None
    assert [c["id"] for c in message.raw["chat"]["tool_calls"]] == [first, second]


@pytest.mark.parametrize(
    ("arguments", "args", "bad"),
    [('{"a":1}', {"a": 1}, False), ("", {}, False), (None, {}, False), ({"a": 1}, {"a": 1}, False), ("{", {}, True),
     ("[]", {}, True), ("null", {}, True)],
)  # fmt: skip
def test_arguments(arguments: object, args: dict[str, object], bad: bool) -> None:
    (call,) = Server(answer(called(("c", "sh", arguments)))).guest().infer(ASKED).message.tool_calls
    assert call.args == args
    assert bool(call.fault) is bad


@pytest.mark.parametrize("content", [None, "", "x"])
def test_content(content: str | None) -> None:
    assert Server(answer({"content": content})).guest().infer(ASKED).message.text == (content or "")


def test_usage() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert Server(answer(usage=usage)).guest().infer(ASKED).usage == Usage(10, 5, 4, 3, 2)
    for some in (None, {}, {"prompt_tokens": None}, {"prompt_tokens_details": None}):
        assert Server(answer(usage=some)).guest().infer(ASKED).usage == Usage()


def test_stops() -> None:
    for reason, stop in (("length", "length"), ("content_filter", "refusal"), ("stop", "end"), (None, "end")):
        given = answer()
        given["choices"][0]["finish_reason"] = reason
        assert Server(given).guest().infer(ASKED).stop == stop


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (fault(401, {"error": {"message": "bad key", "code": "invalid_api_key"}}), Refused),
        (fault(403, {"error": "no"}), Refused),
        (fault(404, {"error": {"message": "no model", "code": "model_not_found"}}), Refused),
        (fault(400, {"error": {"message": "bad field"}}), Refused),
        (fault(422, {"detail": "bad"}), Refused),
        (fault(402, {"error": {"message": "no credit"}}), Refused),
        (fault(429, {"error": {"message": "quota", "code": "insufficient_quota"}}), Refused),
        (fault(400, {"error": {"message": "m", "code": "context_length_exceeded"}}), Overflow),
        (fault(400, {"error": {"message": "m", "type": "exceed_context_size_error", "code": 400}}), Overflow),
        (fault(400, {"error": {"message": "This model's maximum context length is 9 tokens."}}), Overflow),
        (fault(413, {}), Overflow),
        (fault(400, {"error": "the context window is full"}), Overflow),
        (fault(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}), Unavailable),
        (fault(500, {"error": {"message": "context of the error: overloaded"}}), Unavailable),
        (fault(529, {"error": {"message": "overloaded"}}), Unavailable),
        (fault(503, "Loading model"), Unavailable),
        (httpx.Response(502, text="<html>bad gateway</html>"), Unavailable),
        (httpx.Response(200, text="<html>a captive portal</html>"), Unavailable),
        (fault(200, {"error": {"code": 429, "message": "rate"}}), Unavailable),
        (fault(200, {"error": {"code": 401, "message": "key"}}), Refused),
        (fault(200, {"choices": []}), Unavailable),
        (fault(200, {}), Unavailable),
        (fault(200, answer({"tool_calls": [{"id": "x"}]})), Unavailable),
        (httpx.ConnectError("refused"), Unavailable),
        (httpx.ReadTimeout("slow"), Unavailable),
        (httpx.RemoteProtocolError("cut"), Unavailable),
    ],
)  # fmt: skip
def test_errors(response: Any, kind: type[GuestError]) -> None:
    server = Server(response)
    with pytest.raises(kind) as caught:
        server.guest().infer(ASKED)
    assert type(caught.value) is kind
    assert len(server.requests) == (ATTEMPTS if kind is Unavailable else 1)
    assert str(caught.value)


def test_tried_again_until_it_works() -> None:
    server = Server(httpx.ConnectError("refused"), fault(500, {}), answer())
    assert server.guest().infer(ASKED).message.text == "hi"
    assert len(server.pauses) == 2
    assert 0.375 <= server.pauses[0] <= 0.5
    assert 0.75 <= server.pauses[1] <= 1.0


@pytest.mark.parametrize(
    ("headers", "pause"), [({"Retry-After": "7"}, 7), ({"retry-after-ms": "1500"}, 1.5), ({"Retry-After": "120"}, 120)]
)  # fmt: skip
def test_retry_after_is_obeyed(headers: dict[str, str], pause: float) -> None:
    server = Server(fault(429, {"error": {}}, headers), answer())
    server.guest().infer(ASKED)
    assert server.pauses == [pause]


def test_a_long_retry_after_is_not_waited_for() -> None:
    server = Server(fault(429, {"error": {}}, {"Retry-After": "3600"}))
    with pytest.raises(Unavailable):
        server.guest().infer(ASKED)
    assert (len(server.requests), server.pauses) == (1, [])


def test_half_a_surrogate_is_never_sent() -> None:
    server = Server(answer())
    server.guest().infer(ASKED._replace(messages=[Message("user", "a\ud83db")]))
    assert server.body()["messages"][0]["content"] == "a?b"


@pytest.mark.parametrize("base", ["host", "ftp://host", ""])
def test_a_base_that_is_no_url(base: str) -> None:
    with pytest.raises(Misconfigured):
        Server(answer()).guest(base)


def test_a_forked_child_makes_its_own_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(answer())
    guest = server.guest()
    guest.infer(ASKED)
    first = guest._client
    guest.infer(ASKED)
    assert guest._client is first
    pid: Callable[[], int] = lambda: 1  # noqa: E731
    monkeypatch.setattr("os.getpid", pid)
    guest.infer(ASKED)
    assert guest._client is not first
