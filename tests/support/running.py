"""A job behind a link in this process, with a real command, and the opener's end of it in the hands of the test."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.support import clock
from transport.errors import LinkLost
from transport.job.job import Job
from transport.launcher.termination import PAUSE
from transport.node.link import Link
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.frames import Frame, Kind
from transport.wire.session import STDOUT, Session

if TYPE_CHECKING:
    from transport.job.interface import Order, Owner


class Carried:
    """The duplex below a link, by hand: it takes all, and the test reads what was written."""

    def __init__(self) -> None:
        self.written = bytearray()

    def attach(self, protocol: object) -> None:
        self.protocol = protocol

    def writelines(self, chunks: list[bytes]) -> None:
        for chunk in chunks:
            self.written += chunk

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        pass


class Child:
    """transport.job.interface.Running, by the standard library, in a session of its own. KILL comes last."""

    leaves = True  # says by itself that the folder of the job is not kept

    def __init__(self, order: Order, owner: Owner) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = 0, -1, -1, -1
        self._order, self._owner = order, owner
        self._ending = False
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._start)

    def _start(self) -> None:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self._process = subprocess.Popen(
            self._order.argv, env=dict(self._order.env), start_new_session=True, **pipes
        )
        self.pid = self._process.pid
        self.stdin, self.stdout, self.stderr = (
            os.dup(pipe.fileno())
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr)
            if pipe
        )
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert pipe
            pipe.close()
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._ended)
        self._owner.on_started()

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        status = Status.from_wait(-code if code < 0 else code << 8, pid=self.pid)
        self._owner.on_exited(status)
        if self._ending:
            self._loop.call_later(PAUSE, self._kill)
        elif self._order.folder and self.leaves:
            self._loop.call_soon(self._owner.on_left, False)

    def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._owner.on_gone()

    def signal(self, number: int) -> None:
        self._signal(number)
        self._loop.call_soon(self._owner.on_signalled)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self, hung_up: bool = False) -> None:
        self._ending = True
        self.signal(signal.SIGTERM)


class Children:
    """transport.job.interface.Launcher of `Child`s."""

    pid = 0

    def watch(self) -> None:
        pass

    def start(self, order: Order, owner: Owner) -> Child:
        return Child(order, owner)

    async def close(self) -> None:
        pass


class Running:
    """A job behind a link, and the opener's session, which acknowledges only what `take` is told to."""

    def __init__(self, argv: list[str], lease: float = 60.0, **more: Any) -> None:
        self.carried = Carried()
        self.ended = asyncio.Event()
        self.opener = Session(True, {"build": "x", "pid": 1})
        self.status: Status | None = None
        self.out = b""
        self.link = Link(Session(False, {"build": "x", "pid": 2}), "origin", self._open, self._lost)
        self.link.start(self.carried)  # type: ignore[arg-type]
        spawn = Spawn(argv, lease=lease, **more)
        self.number = self.opener.open(Kind.SPAWN, spawn.to_json())
        self.take()

    def _open(self, link: Link, frame: Frame) -> Job:
        spawn = Spawn.from_json(frame.body())
        end = self.ended.set
        self.job = Job(link, frame.channel, spawn, {}, "", lambda _: end(), Children())
        self.job.start()
        return self.job

    def _lost(self, link: Link, why: str) -> None:
        raise LinkLost(why)

    def take(self, acknowledge: bool = False) -> None:
        """Carry bytes between the two ends."""
        data = b"".join(self.opener.pull(1 << 30))
        if data:
            self.carried.protocol.data_received(data)  # type: ignore[attr-defined]
        self.link.flush()
        data = bytes(self.carried.written)
        self.carried.written.clear()
        for frame in self.opener.receive(data):
            if frame.kind == Kind.DATA and frame.stream == STDOUT:
                self.out += frame.payload
            elif frame.kind == Kind.EXIT:
                self.status = Status.from_json(frame.body())
        if acknowledge and self.opener.took(self.number, STDOUT, len(self.out)):
            self.take(acknowledge)

    @property
    def whole(self) -> bool:
        """As the opener sees it: an exit record, and both streams at their end."""
        return self.opener.channels[self.number].finished

    async def until(
        self, holds: Callable[[], object], acknowledge: bool = False, seconds: float = 60
    ) -> None:
        async with asyncio.timeout(seconds):
            while not holds():
                self.take(acknowledge)
                await asyncio.sleep(0.001)

    async def over(self) -> None:
        """Until the job is gone from its node; its pause passes at once."""
        deadline = time.monotonic() + 60  # not by the loop's clock, of which six turns are a minute here
        while not self.ended.is_set():
            assert time.monotonic() < deadline
            clock.skip(10)
            await asyncio.sleep(0.001)
        self.take()
