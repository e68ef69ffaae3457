"""A real server that speaks chat completions, whole or as a stream, and misbehaves on demand: a guest for tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Answer = Callable[["Handler", Body], None]


class ChatServer(ThreadingHTTPServer):
    """The n-th request gets the n-th answer. `hung` is set when an answer of `hangs` has been asked for."""

    daemon_threads = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[Answer] = []
        self.requests: list[Body] = []
        self.hung = threading.Event()

    @property
    def env(self) -> dict[str, str]:
        base = f"http://127.0.0.1:{self.server_address[1]}/v1"
        return {"QUINE_API_TYPE": "openai", "QUINE_API_BASE": base, "QUINE_MODEL_ID": "m"}


class Handler(BaseHTTPRequestHandler):
    server: ChatServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        answer = self.server.answers.pop(0) if self.server.answers else fails(400, "no answer is left")
        answer(self, body)

    def send(self, status: int, kind: str, data: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Type": kind, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def replies(*calls: tuple[str, dict[str, Any] | str], text: str = "") -> Answer:
    """A reply with these calls (name, arguments); arguments that are text are sent as they are."""
    made = [
        {"index": n, "id": f"call_{n}", "type": "function", "function": {
            "name": name, "arguments": args if isinstance(args, str) else json.dumps(args)}}
        for n, (name, args) in enumerate(calls)
    ]  # fmt: skip
    message = {"role": "assistant", "content": text or None, **({"tool_calls": made} if made else {})}
    stop = "tool_calls" if made else "stop"
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}

    def answer(handler: Handler, body: Body) -> None:
        if not body.get("stream"):
            whole = {"choices": [{"index": 0, "message": message, "finish_reason": stop}], "usage": usage}
            handler.send(200, "application/json", json.dumps(whole).encode(), {})
            return
        parts: list[Any] = [
            {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": stop}]},
            {"choices": [], "usage": usage},
        ]
        events = [*(json.dumps(part) for part in parts), "[DONE]"]
        handler.send(200, "text/event-stream", "".join(f"data: {e}\n\n" for e in events).encode(), {})

    return answer


def fails(status: int, text: str, headers: dict[str, str] | None = None, **fields: str) -> Answer:
    data = json.dumps({"error": {"message": text, **fields}}).encode()
    return lambda handler, body: handler.send(status, "application/json", data, headers or {})


def hangs(handler: Handler, body: Body) -> None:
    """No answer until the client is gone."""
    handler.server.hung.set()
    with suppress(ConnectionError):
        handler.rfile.read(1)
    handler.close_connection = True


DONE = replies(("exit", {"status": 0}))


@contextmanager
def serving() -> Iterator[ChatServer]:
    made = ChatServer()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        thread.join()
        made.server_close()
