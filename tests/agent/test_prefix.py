"""Requests of a parent and its clones begin with the same bytes, so the provider's cache pays for the clone."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import OK, Agents, call, sh

MARK = "CHILD-"


def common(bodies: list[bytes]) -> bytes:
    """The bytes that all of them begin with."""
    shortest = min(bodies, key=len)
    return shortest[
        : next(
            (n for n, column in enumerate(zip(*bodies, strict=False)) if len({*column}) > 1), len(shortest)
        )
    ]


class Recorder(ThreadingHTTPServer):
    """A server of chat completions that keeps the bytes of every request and answers with the calls of `script`."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies: list[bytes] = []
        self.lock = threading.Lock()

    def script(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        told = [m["content"] for m in messages if m["role"] == "tool"]
        if any(f"yours is this, and when it is done you exit:\n\n{MARK}" in text for text in told):
            return [OK]
        if not told:
            return [sh("echo read it all")]
        if len(told) == 1:
            children = [{"intent": f"{MARK}{n}"} for n in range(3)]
            return [sh("echo before"), call("fork", children=children, wait=True), sh("echo after")]
        return [OK]


class _Handler(BaseHTTPRequestHandler):
    server: Recorder
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.bodies.append(body)
        calls = [
            {"id": f"c{n}", "type": "function", "function": {**c, "arguments": json.dumps(c["arguments"])}}
            for n, c in enumerate(self.server.script(json.loads(body)["messages"]))
        ]
        message = {"role": "assistant", "content": "as I see it", "tool_calls": calls}
        answer = json.dumps({"choices": [{"message": message, "finish_reason": "tool_calls"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    with Recorder() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_clones_share_their_prefix_byte_for_byte(recorder: Recorder, tmp_path: Path) -> None:
    agents = Agents(tmp_path)
    env = {
        "QUINE_API_TYPE": "openai",
        "QUINE_API_BASE": f"http://127.0.0.1:{recorder.server_address[1]}/v1",
        "QUINE_MODEL_ID": "m",
        "QUINE_BROKER_IDLE": "0.5",  # the server waits at its end until its connections are closed
    }
    done = agents.run(mission="the mission of the parent", env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    # Nothing volatile stands in front: two agents with one mission send the same first request.
    own, recorder.bodies = recorder.bodies, []
    agents.run(mission="the mission of the parent", env=env)
    assert recorder.bodies[0] == own[0]
    children = [body for body in own if b"yours is this" in body]
    parent = [body for body in own if b"yours is this" not in body]
    assert (len(children), len(parent)) == (3, 3)
    before, asked, after = parent
    # All that the parent had said and heard when it forked, its own reply with the fork call in it too.
    shared = len(common([after, *children]))
    assert after[:shared].endswith(
        b'before\\n\\n[STDERR]\\n"}, {"role": "tool", "tool_call_id": "c1", "content": "'
    )
    # ... and siblings differ from each other in their own mission only.
    first, second, third = children
    where = len(common(children))
    assert first[:where].endswith(MARK.encode())
    assert {len(first), len(second), len(third)} == {len(first)}
    for one in (second, third):
        assert [n for n, (a, b) in enumerate(zip(first, one, strict=True)) if a != b] == [where]
    assert all(json.loads(one)["tools"] == json.loads(before)["tools"] for one in children)
    # A parent's own requests grow at the end only.
    for earlier, later in ((before, asked), (asked, after)):
        end = earlier.rindex(b"}]")
        assert later[: end + 1] == earlier[: end + 1]
