"""Model servers on this machine are named to who has set nothing; nothing is used unasked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from quine.cli import local_servers


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[int]:
    """A server on 127.0.0.1 with this answer to everything; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models" and "authorization" not in self.headers
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def listed(*names: object) -> bytes:
    return json.dumps({"data": [{"id": name} for name in names]}).encode()


@pytest.fixture
def hint_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    def hint(body: bytes, status: int = 200) -> str:
        with answering(body, status) as port:
            monkeypatch.setattr(local_servers, "PORTS", (port,))
            return local_servers.hint().replace(str(port), "PORT")

    return hint


def test_the_first_model_is_in_the_line(hint_of: Callable[..., str]) -> None:
    line = "a model server answers here: export QUINE_API_BASE=http://127.0.0.1:PORT/v1"
    assert hint_of(listed("qwen3:8b")) == f"{line} QUINE_MODEL_ID=qwen3:8b"
    assert hint_of(listed("a", "b", "c", "d")) == f"{line} QUINE_MODEL_ID=a (or b, c, …)"
    assert hint_of(listed()) == f"{line}, and QUINE_MODEL_ID by the names that it knows"


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data": 3}', b'{"data":' + b"[" * 9999])
def test_whatever_else_listens_there_is_none(hint_of: Callable[..., str], body: bytes) -> None:
    assert hint_of(body) == ""


def test_a_refusal_is_none(hint_of: Callable[..., str]) -> None:
    assert hint_of(listed("m"), 404) == ""


def test_one_that_never_ends_its_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user of this machine can have the port."""
    monkeypatch.setattr(local_servers, "TOGETHER", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(local_servers, "PORTS", (listener.getsockname()[1],))
        monkeypatch.setattr(local_servers, "MOMENT", 1000.0)
        assert local_servers.hint() == ""
        listener.accept()[0].close()  # which ends the question, too


def test_a_name_is_made_harmless(hint_of: Callable[..., str]) -> None:
    """Another user of this machine may have put the server there, and the line is made to be copied."""
    assert "QUINE_MODEL_ID='$(reboot)'" in hint_of(
        listed("a\x1b[2J", "\u202e", 3, "", "x" * 999, "$(reboot)")
    )
