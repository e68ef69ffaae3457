"""A client speaks to a process of its own user alone; the kernel tells who listens."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from transport import node_socket
from transport.detached import control
from transport.errors import Refused
from transport.rpc.outgoing import Connection


@pytest.fixture
def path(tmp_path: Path) -> Iterator[str]:
    """The socket of another user: this process says that it has another user id than the one that listens."""
    path = tmp_path / control.NAME
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tmp_path, os.O_PATH)  # the path may be too long for an address
        listener.bind(f"/proc/self/fd/{here}/{path.name}")
        listener.listen()
        yield f"/proc/self/fd/{here}/{path.name}"
        listener.settimeout(0)
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                break
            with connection:
                assert connection.recv(1) == b"", "nothing was said"
        os.close(here)


def test_a_client_says_nothing_to_the_socket_of_another_user(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 4711)
    with pytest.raises(Refused, match=r"belongs to another user \(user id \d+\)"):
        node_socket.try_connect(path)
    with pytest.raises(PermissionError, match="the socket belongs to another user"):
        Connection(path)
    if os.geteuid():  # root's is heard by all
        with pytest.raises(PermissionError, match="belongs to another user"):
            control.connect(str(tmp_path))
