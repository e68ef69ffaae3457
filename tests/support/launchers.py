"""A real launcher beside the test's own process, which is its node."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.machine import readable
from transport.inherit import PR_SET_CHILD_SUBREAPER
from transport.job.interface import Order
from transport.job.launched_job import Child
from transport.job.launcher_client import Launching
from transport.job.launcher_process import Beside
from transport.status import Status


class Told:
    """transport.job.interface.Owner: waits for its news."""

    def __init__(self) -> None:
        self.news: asyncio.Queue[tuple[str, Status | None]] = asyncio.Queue()
        self.signalled = False

    async def expect(self, kind: str) -> Any:
        """The status in the next news, which must be of this kind; None if it has none."""
        found, status = await self.news.get()
        assert found == kind, (found, status)
        return status

    def on_started(self) -> None:
        self.news.put_nowait(("started", None))

    def on_not_started(self, status: Status) -> None:
        self.news.put_nowait(("not started", status))

    def on_signalled(self) -> None:
        self.signalled = True

    def on_exited(self, status: Status) -> None:
        self.news.put_nowait(("exited", status))

    def on_left(self, kept: bool) -> None:
        self.news.put_nowait(("kept" if kept else "left", None))

    def on_gone(self) -> None:
        self.news.put_nowait(("gone", None))


class Started:
    """A real launcher beside this process, and the node's end of it; in a loop from `watch` on."""

    def __init__(self) -> None:
        self.beside = Beside()
        self.beside.begin()
        self.launching = Launching(self.beside)

    def run(self, main: Callable[[Launching], Coroutine[Any, Any, None]]) -> None:
        async def body() -> None:
            self.launching.watch()
            try:
                await asyncio.wait_for(main(self.launching), 120)
            finally:
                await self.launching.close()

        asyncio.run(body())

    def close(self) -> None:
        """It sees that its node is gone, and goes."""
        if self.beside.pid:
            assert readable(self.beside.pidfd, 60)
            self.beside.forget()
        os.close(self.beside.table.fd)


@contextlib.contextmanager
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = Started()
    try:
        yield made
        made.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    with beside(tmp_path, monkeypatch) as made:
        yield made


def released(launching: Launching) -> Callable[[], bool]:
    """Whether its table is empty, and it has heard that the folders are removed."""
    return lambda: not launching.table.entries() and not launching._left


async def comes(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def is_up(running: Child) -> None:
    """Wait for the line with which the tests' scripts say that their traps are set."""
    assert await asyncio.to_thread(os.read, running.stdout, 20) == b"up\n"


def close(running: Child) -> None:
    for fd in (running.stdin, running.stdout, running.stderr):
        os.close(fd)


def order(*argv: str, cwd: str = "/", folder: str = "", **more: object) -> Order:
    return Order([*argv], dict(os.environ), cwd, {}, folder=folder, **more)  # type: ignore[arg-type]
