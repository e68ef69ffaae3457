"""Caps that hold for agents over a server, whose starters have the key: of a batch, of a budget, of another tree."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.broker import server, wire
from quine.broker.admission import Denied, Register
from quine.broker.server import Seat, _Worker
from quine.budget import purse
from quine.budget.purse import Cap
from quine.budget.shared_counters import Numbers, SharedCounters
from tests.broker.serving import BYE, FIRST, Served, said
from tests.support.agents import PATIENCE, QUINE
from tests.vendors.server import KEY, Said
from transport.this_build import build_hash

COST = (1500, 100, 0)
EACH = sum(COST)
CLOSE = "import os, sys; os.closerange(3, 1000); os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short, Served(tmp_path) as made:
        made.env["PYTHONFAULTHANDLER"] = "1"
        made.env["XDG_RUNTIME_DIR"] = short  # a batch has a node, whose socket has a longer name
        turn = Said(calls=said("true").calls, usage=COST)
        made.plan[FIRST] = [*[turn] * 8, Said(calls=BYE.calls, usage=COST)]
        yield made


def run(served: Served, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*QUINE, *words],
        env=served.env,
        cwd=served.directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


def test_a_cap_holds_for_agents_of_a_server(served: Served) -> None:
    """A batch has one; below that of a budget are a batch, and an agent that has closed all descriptors."""
    below = ("budget", "--max-tokens", "9000", "--")
    capped = {
        "a batch": ("xargs", "--max-tokens", "9000", "-P", "1", FIRST, ":::", *"abcd"),
        "a batch below a budget": (*below, *QUINE, "xargs", FIRST, ":::", *"abcd"),
        "no descriptors": (*below, sys.executable, "-c", CLOSE, *QUINE, FIRST),
    }
    for what, words in capped.items():
        done = run(served, *words)
        assert done.returncode == 77, (what, done.stderr)
        assert 2 * EACH <= len(served.provider.requests) * EACH <= 9000, what
        served.provider.requests.clear()


def test_the_command_of_a_budget_has_the_key_and_the_budget_no_longer(served: Served) -> None:
    look = "echo $QUINE_API_KEY; tr '\\0' '\\n' </proc/$PPID/environ | grep -c QUINE_API_KEY"
    done = run(served, "budget", "--", "sh", "-c", look)
    assert done.stdout == f"{KEY}\n0\n".encode(), done.stderr


def test_a_process_below_one_agent_does_not_let_another_tree_pay() -> None:
    memory = os.memfd_create("state")
    register = Register(memory, lambda pidfd, call: None, lambda: None)
    other = subprocess.Popen(["sleep", "100"])
    try:
        register.admit(other.pid, 2, Cap(), proved=True)
        register.admit(os.getpid(), 1, Cap(), proved=True)
        with pytest.raises(Denied):
            register.admit(os.getpid(), 2, Cap(), proved=False)
    finally:
        other.kill()
        other.wait()
        for member in register.members.values():
            os.close(member.pidfd)
        os.close(memory)


class Greeted:
    """A worker of a broker in this process, and clients of it that give a ledger and purses."""

    def __init__(self, directory: str) -> None:
        self.book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0))
        self.purses = [purse.create(self.book, "x", "cmd", (9, 0.0, 0.0), (1, 1)) for _ in range(3)]
        path, state = f"{directory}/x.broker", os.memfd_create("state")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            self.path = path
            self.seat = Seat(os.dup(listener.fileno()), state, path, b"k", {}, {}, os.getpid(), 0)
        self.worker = _Worker(self.seat)

    async def greet(self, hello: dict[str, object], ledger: int) -> bytes:
        """Return the answer to a hello, b"" if there is none; the worker has then closed the connection."""
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(self.path)
            line.settimeout(PATIENCE)
            await asyncio.to_thread(wire.receive, line)
            wire.send(line, wire.packed(hello), [ledger, *self.purses])
            answer = await asyncio.to_thread(line.recv, 4096)
            if answer:
                assert await asyncio.to_thread(line.recv, 4096) == b""
            return answer

    async def refusals(self) -> None:
        whole = {
            "build": build_hash(),
            "mark": [0, 0, 0],
            "concurrent": 1,
            "limited": False,
            "env": {},
            "tools": [],
        }
        for hello, ledger, why in (
            ({**whole, "mark": None}, self.book.fd, b""),
            ({**whole, "build": "another"}, self.book.fd, b"it is of another build"),
            (whole, self.purses[0], b"its ledger is none"),
            (whole, self.book.fd, b"no agent of this broker is above it"),
        ):
            answer = await self.greet(hello, ledger)
            assert why in answer if why else not answer, answer

    async def run(self) -> None:
        serving = asyncio.create_task(self.worker.run())
        await self.refusals()  # the ledger is kept for a time, in case an orphan comes
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            await self.refusals()
        assert len(os.listdir("/proc/self/fd")) == before
        for _ in range(2):
            self.worker._register.forget_books()
        self.worker._over.set_result(None)
        await serving

    def close(self) -> None:
        self.worker._listener.close()
        for fd in (self.seat.listener, self.seat.state, self.book.fd, *self.purses):
            os.close(fd)


def test_a_client_that_is_refused_leaves_no_descriptor_in_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short:
        greeted = Greeted(short)
        # Those of another process are opened anew, and the client is this process here.
        monkeypatch.setattr(server, "purses_around", lambda pid, ledger: tuple(map(os.dup, greeted.purses)))
        try:
            asyncio.run(greeted.run())
        finally:
            greeted.close()
