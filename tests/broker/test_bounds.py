"""Bounds of a broker for one tree and for strangers: connections, bytes of requests, and threads."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from threading import Event, current_thread
from types import SimpleNamespace
from typing import Any

import pytest

from quine.broker import client, connection, server, wire
from quine.broker.connection import Room, Walks
from quine.budget import caller, shared_counters
from quine.budget.pinned import PinnedProcess, pinned
from tests.broker.admitting import Greeted, forget_all
from tests.support.agents import PATIENCE
from transport.errors import Unseen
from transport.this_build import build_hash

HELLO = {
    "build": build_hash(),
    "mark": [0, 0.0, 0.0],
    "concurrent": 0,
    "limited": False,
    "env": {"QUINE_API_TYPE": "openai", "QUINE_API_BASE": "http://127.0.0.1:1", "QUINE_MODEL_ID": "m"},
    "tools": [],
}


class Asked(Greeted):
    """A worker, and lines to it of this process, which are closed at its end."""

    def __init__(self, directory: str, files: int = 1 << 16) -> None:
        super().__init__(directory)
        self.worker._most = files // 4
        self.lines = ExitStack()

    def serve(self, asks: Callable[[], Awaitable[None]]) -> None:
        async def work() -> None:
            serving = asyncio.create_task(self.worker.run())
            await asyncio.sleep(0)
            with self.lines:
                await asks()
            while self.worker._tasks:
                await asyncio.sleep(0)
            forget_all(self.worker._register)
            self.worker._over.set_result(None)
            await serving

        asyncio.run(work())

    async def line(self) -> socket.socket:
        """Connect, and say nothing."""
        line, _ = await asyncio.to_thread(client.connected, self.path, PATIENCE)
        self.lines.callback(line.close)
        return line

    async def admitted(self) -> dict[str, Any]:
        """Connect with the keys, and greet. Return the answer."""

        def proofs(nonces: tuple[str, str], pids: tuple[int, int]) -> tuple[str, str]:
            return wire.proof(b"k", "client", nonces, pids), wire.proof(b"k", "broker", nonces, pids)

        line = await asyncio.to_thread(client.proven, self.path, proofs)
        self.lines.callback(line.close)
        wire.send(line, wire.packed(HELLO), [self.book.fd])
        return await asyncio.to_thread(wire.receive_json, line)


@pytest.fixture
def short() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as made:
        yield made


def test_connections_that_say_nothing_are_bounded(short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is given up, and the broker takes others. A greeting is short."""
    monkeypatch.setattr(server, "MOST_GREETING", 2)
    asked = Asked(short)

    async def asks() -> None:
        first, *later = [await asked.line() for _ in range(3)]
        assert await asyncio.to_thread(first.recv, 1) == b""
        for line in later:
            line.setblocking(False)
            with pytest.raises(BlockingIOError):
                line.recv(1)
            line.settimeout(PATIENCE)
        later[0].sendall(wire.SIZE.pack(wire.LONGEST_GREETING + 1))
        assert await asyncio.to_thread(later[0].recv, 1) == b""
        assert (await asked.admitted())["model"] == "m"

    try:
        asked.serve(asks)
    finally:
        asked.close()


def test_the_connections_of_a_tree_are_bounded(short: str) -> None:
    """A command may open as many as the broker has descriptors, and agents of other trees found none."""
    asked = Asked(short, files=8)

    async def asks() -> None:
        answers = [await asked.admitted() for _ in range(3)]
        assert [answer.get("model") for answer in answers[:2]] == ["m", "m"]
        assert answers[2]["detail"] == "there are 2 connections of its tree already"
        asked.lines.close()  # then they count no more
        while next(iter(asked.worker._rooms.values())).lines:
            await asyncio.sleep(0)
        assert (await asked.admitted())["model"] == "m"

    try:
        asked.serve(asks)
    finally:
        asked.close()


def test_a_ledger_that_is_known_is_closed_by_a_thread(short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel looks at all locks on it for that, and a command can make very many."""
    asked, closed = Asked(short), list[tuple[int, str]]()

    def release(fds: list[int]) -> None:
        closed.extend((os.fstat(fd).st_ino, current_thread().name[:4]) for fd in fds)
        shared_counters.release(fds)

    async def asks() -> None:
        for _ in range(2):
            assert (await asked.admitted())["model"] == "m"

    monkeypatch.setattr(connection, "release", release)
    ledger = os.fstat(asked.book.fd).st_ino
    try:
        asked.serve(asks)
    finally:
        asked.close()
    assert closed == [(ledger, "walk")]


def test_the_requests_of_a_tree_have_a_room() -> None:
    """Those beyond it are not read before others are answered. One that is longer than the room is read alone."""

    async def work() -> None:
        room, going, begun = Room(10), {name: asyncio.Event() for name in "abcd"}, list[str]()

        async def request(name: str, size: int) -> None:
            async with room.holding(size):
                begun.append(name)
                await going[name].wait()

        async with asyncio.TaskGroup() as tasks:
            for name, size in (("a", 6), ("b", 4), ("c", 1), ("d", 20)):
                tasks.create_task(request(name, size))
                await asyncio.sleep(0)
            assert begun == ["a", "b"]
            going["b"].set()
            while begun != ["a", "b", "c"]:
                await asyncio.sleep(0)
            going["a"].set()
            going["c"].set()
            while begun != ["a", "b", "c", "d"]:
                await asyncio.sleep(0)
            going["d"].set()

    asyncio.run(work())


def test_walks_of_one_tree_leave_threads_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can greet again and again from below very many descriptors. The names of servers are not waited for."""
    monkeypatch.setattr(connection, "WALKERS", 2)
    monkeypatch.setattr(connection, "FEW", 1)
    go = Event()

    async def work(ours: Any, others: Any) -> None:
        walks = Walks()
        hostile = [asyncio.create_task(walks.run(ours, go.wait, PATIENCE)) for _ in range(3)]
        assert await walks.run(others, lambda: "seen", proved=True) == "seen"
        assert await asyncio.to_thread(lambda: "resolved") == "resolved"
        others.close()
        with pytest.raises(Unseen):  # it has ended, as far as is known: no thread looks
            await walks.run(others, lambda: "seen")
        go.set()
        assert await asyncio.gather(*hostile) == [True] * 3
        walks.close()

    with subprocess.Popen(["sleep", "100"]) as other:
        processes = [pinned(os.getpid()), pinned(other.pid)]
        try:
            asyncio.run(work(*processes))
        finally:
            other.kill()
            for process in processes:
                assert process
                process.close()


def test_a_process_below_very_many_descriptors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "MOST_FILES", 3)
    me = pinned(os.getpid())
    assert me
    with pytest.raises(Unseen, match="more than 3 descriptors"):
        caller.purses_around(me)
    me.close()


def test_strangers_that_raise_a_purse_share_few_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may have very many descriptors above it, and sixteen of them would hold all threads."""
    monkeypatch.setattr(connection, "WALKERS", 3)
    monkeypatch.setattr(connection, "FEW", 1)
    go, begun = Event(), []

    def lift(process: PinnedProcess, which: int, limits: object) -> bool:
        begun.append(process.pid)
        return go.wait(PATIENCE)

    async def work(strangers: list[PinnedProcess]) -> None:
        worker: Any = SimpleNamespace(_walks=Walks(), _register=SimpleNamespace(lift=lift))
        asked = {"limits": [9, None, None], "purse": 1}
        clients: list[Any] = [SimpleNamespace(process=process) for process in strangers]
        raises = [asyncio.create_task(server._Worker._raised(worker, one, asked)) for one in clients]
        await asyncio.sleep(0)
        assert await worker._walks.run(strangers[1], lambda: "seen", proved=True) == "seen"
        assert begun == [os.getpid()]
        go.set()
        assert await asyncio.gather(*raises) == [{"raised": True}] * 2
        worker._walks.close()

    with subprocess.Popen(["sleep", "100"]) as other, ExitStack() as held:
        strangers = [pinned(os.getpid()), pinned(other.pid)]
        held.callback(other.kill)
        for process in strangers:
            assert process
            held.callback(process.close)
        asyncio.run(work([process for process in strangers if process]))
