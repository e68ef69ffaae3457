"""Waiting for a condition: never by a fixed sleep, always with one deadline."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.lab.machine import readable
from tests.support.agents import LOOK, PATIENCE


def until(true: Callable[[], Any], what: str) -> Any:
    """Look until `true()` is true; returns its value. `what` names it in the failure."""
    deadline = time.monotonic() + PATIENCE
    while not (value := true()):
        assert time.monotonic() < deadline, f"not so: {what}"
        time.sleep(LOOK)
    return value


def read_until(pipe: int, text: bytes, seconds: float = PATIENCE) -> bytes:
    """Read a pipe until `text` has come; readiness by what the far command says, never by sleeping."""
    deadline, got = time.monotonic() + seconds, b""
    while text not in got:
        assert readable(pipe, max(0, deadline - time.monotonic())), f"only {got!r} came"
        data = os.read(pipe, 65536)
        assert data, f"ended after {got!r}"
        got += data
    return got


def wait_for(path: Path) -> None:
    """Until the file is there, which a command of the agent makes."""
    until(path.exists, str(path))


def accept_inference(server: socket.socket) -> socket.socket:
    """Accept the connection of an inference. Questions of the broker beside it are answered with 404."""
    while True:
        connection, _ = server.accept()
        connection.settimeout(server.gettimeout())
        if connection.recv(3, socket.MSG_PEEK | socket.MSG_WAITALL) == b"POS":
            return connection
        with connection:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n{}")
