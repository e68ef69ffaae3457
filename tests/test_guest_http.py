"""The chat guest against a real server that checks every request strictly and misbehaves on demand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from quine.guests.base import Refused, Request, Unavailable
from quine.guests.chat import ChatDialect
from quine.guests.http import HttpGuest
from tests.lab import Lab

KEY = "canary-5f3a9c1e7b"


class Server(ThreadingHTTPServer):
    """Replies by turns: the n-th request of a test gets the n-th answer; each is (status, headers, body)."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[tuple[int, dict[str, str], Any]] = []
        self.requests: list[dict[str, Any]] = []
        self.faults: list[str] = []

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        self.server.faults += check(self.path, dict(self.headers), body)
        status, headers, answer = (
            self.server.answers.pop(0) if self.server.answers else (500, {}, "no answer left")
        )
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def check(path: str, headers: dict[str, str], body: dict[str, Any]) -> list[str]:
    """What a strict provider would refuse."""
    faults = []
    if path != "/v1/chat/completions":
        faults.append(f"path {path}")
    if headers.get("Authorization") != f"Bearer {KEY}":
        faults.append("no key")
    if not set(body) <= {"model", "messages", "tools", "max_tokens"}:
        faults.append(f"fields {sorted(body)}")
    if [tool["function"]["name"] for tool in body["tools"]] != ["sh", "fork", "exec", "exit"]:
        faults.append("tools")
    open_calls: list[str] = []
    for index, message in enumerate(body["messages"]):
        role = message["role"]
        if (index == 0) != (role == "system"):
            faults.append(f"message {index} is {role}")
        if role == "tool":
            if message["tool_call_id"] not in open_calls:
                faults.append("a tool message that answers nothing")
            else:
                open_calls.remove(message["tool_call_id"])
        elif open_calls:
            faults.append("calls without an answer")
        if role == "assistant":
            calls = message.get("tool_calls")
            if calls == [] or (message.get("content") is None and not calls):
                faults.append("an empty assistant message")
            open_calls += [call["id"] for call in calls or []]
        elif not isinstance(message["content"], str):
            faults.append("content is no text")
    if open_calls:
        faults.append("calls without an answer at the end")
    return faults


def says(
    *calls: tuple[str, object], content: str | None = None, **more: Any
) -> tuple[int, dict[str, str], Any]:
    tool_calls = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
        }
        for index, (name, args) in enumerate(calls)
    ]
    message = {
        "role": "assistant",
        "content": content,
        **({"tool_calls": tool_calls} if calls else {}),
        **more,
    }
    return (
        200,
        {},
        {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": message}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        },
    )


LEAVE = says(("exit", {"status": "success"}))


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    thread.join()
    made.server_close()
    assert made.faults == []


@pytest.fixture
def ask(lab: Lab, server: Server, tmp_path: Path) -> Callable[..., Any]:
    env = {
        "QUINE_API_BASE": server.base,
        "QUINE_API_KEY": KEY,
        "QUINE_MODEL_ID": "m",
        "QUINE_DATA_DIR": str(tmp_path / "data"),
    }
    return lambda *args, **more: lab.run([*args, "do it"], env=env, **more)


@pytest.mark.parametrize("place", [[], ["--on", "h1"]], ids=["here", "elsewhere"])
def test_a_life(ask: Callable[..., Any], server: Server, tmp_path: Path, place: list[str]) -> None:
    """Calls in parallel, reasoning handed back, arguments resent as they were received."""
    server.answers = [
        says(("sh", '{"command":  "echo a"}'), ("sh", {"command": "cat <&3 >&4"}), reasoning_content="hmm"),
        says(content="thinking aloud"),
        LEAVE,
    ]
    done = ask(*place, input="material")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"material", b"")
    last = server.requests[-1]["messages"]
    assert [message["role"] for message in last] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert last[2]["tool_calls"][0]["function"]["arguments"] == '{"command":  "echo a"}'
    assert last[2]["reasoning_content"] == "hmm"
    assert "do it" in last[0]["content"] and "do it" not in last[1]["content"]
    text = "".join(path.read_text() for path in (tmp_path / "data").rglob("*.jsonl"))
    assert KEY not in text


def test_the_prefix_of_a_clone_is_its_parents_to_the_byte(ask: Callable[..., Any], server: Server) -> None:
    server.answers = [
        says(("sh", {"command": "echo known"})),
        says(("fork", {"intent": "the child's errand", "wait": True})),
        LEAVE,
        LEAVE,
    ]
    assert ask().returncode == 0
    parent, child = server.requests[1], server.requests[2]
    shared = len(parent["messages"])
    assert json.dumps(child["messages"][:shared]) == json.dumps(parent["messages"])
    assert child["tools"] == parent["tools"]
    assert "the child's errand" in child["messages"][-1]["content"]


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {"retry-after-ms": "1"}, {"error": {"message": "slow down", "type": "requests"}}),
        (500, {"Retry-After": "0.01"}, {"error": {"message": "oops"}}),
        (503, {"retry-after-ms": "1"}, {"error": {"message": "Loading model", "type": "unavailable_error"}}),
    ],
    ids=["429", "500", "503"],
)
def test_what_may_pass_is_tried_again(ask: Callable[..., Any], server: Server, trouble: Any) -> None:
    server.answers = [trouble, trouble, LEAVE]
    assert ask().returncode == 0
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("answer", "code", "says_so"),
    [
        ((401, {}, {"error": {"message": "bad key", "code": "invalid_api_key"}}), 2, b"bad key"),
        ((404, {}, {"error": {"message": "no such model", "code": "model_not_found"}}), 2, b"no such model"),
        ((429, {}, {"error": {"message": "pay first", "code": "insufficient_quota"}}), 2, b"pay first"),
        (
            (400, {}, {"error": {"message": "too long", "code": "context_length_exceeded"}}),
            77,
            b"context is full",
        ),
        ((429, {"Retry-After": "3600"}, {"error": {"message": "not now"}}), 75, b"not now"),
    ],
    ids=["key", "model", "quota", "overflow", "much later"],
)
def test_what_never_helps_is_not_tried_again(
    ask: Callable[..., Any], server: Server, answer: Any, code: int, says_so: bytes
) -> None:
    server.answers = [answer]
    done = ask()
    assert done.returncode == code and says_so in done.stderr
    assert len(server.requests) == 1


def test_bad_arguments_are_answered_and_the_life_goes_on(ask: Callable[..., Any], server: Server) -> None:
    server.answers = [says(("sh", "{not json"), ("nope", {}), ("sh", {"command": 5})), LEAVE]
    assert ask().returncode == 0
    results = [message["content"] for message in server.requests[-1]["messages"] if message["role"] == "tool"]
    assert len(results) == 3 and all("Bad call" in text for text in results)


def test_nobody_listens(lab: Lab, tmp_path: Path) -> None:
    env = {"QUINE_API_BASE": "ftp://x", "QUINE_MODEL_ID": "m", "QUINE_DATA_DIR": str(tmp_path / "d")}
    done = lab.run(["do it"], env=env)
    assert done.returncode == 2 and b"must begin with http" in done.stderr


@pytest.mark.parametrize("key", [KEY + "\n", KEY + "é", KEY + "\udc80"])
def test_a_key_that_cannot_be_sent_is_not_shown(server: Server, key: str) -> None:
    guest = HttpGuest(ChatDialect("m"), server.base, key)
    with pytest.raises(Refused) as caught:
        guest.infer(Request([], ()))
    guest._connection().close()
    assert KEY not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("answer", [b"[" * 100_000, b'{"a":' * 500 + b"1" + b"}" * 500])
def test_an_answer_of_many_levels_is_none(server: Server, answer: bytes) -> None:
    server.answers = [(200, {}, answer)] * 5
    guest = HttpGuest(ChatDialect("m"), server.base, "", pause=lambda seconds: None)
    with pytest.raises(Unavailable, match="no reply"):
        guest.infer(Request([], ()))
    guest._connection().close()
    server.faults.clear()
