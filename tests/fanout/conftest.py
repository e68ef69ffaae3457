"""The clients of these tests are forks of a process that has loaded them: tests/support/warm.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.support.warm import Server

_servers: list[Server] = []


def pytest_runtest_setup() -> None:
    """One that the test before has killed comes again, before the watch looks what there is."""
    for server in _servers:
        server.ready()


@pytest.fixture(scope="session")
def warm_server(session_lab: Lab) -> Iterator[Server]:
    server = Server(session_lab)
    server.ready()
    _servers.append(server)
    yield server
    _servers.remove(server)
    server.close()


@pytest.fixture
def cold() -> None:
    """For a test of a client that starts by itself."""


@pytest.fixture
def lab(
    lab: Lab, warm_server: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Lab:
    if "cold" not in request.fixturenames:
        monkeypatch.setattr(lab, "popen", warm_server.popen)
        monkeypatch.setattr(lab, "sh", warm_server.sh)
    return lab
