"""The registers of a broker and its worker in the process of a test, with processes that they admit."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Collection

from quine.broker import wire
from quine.broker.admission import Register
from quine.broker.keeper_log import Log
from quine.broker.server import Seat, _Worker
from quine.budget import makers, purse
from quine.budget.kept_records import KeptRecords
from quine.budget.pinned import PinnedProcess, pinned
from quine.budget.shared_counters import Numbers, SharedCounters
from tests.support.agents import PATIENCE


def end_makers(register: Register) -> None:
    """As if the process had ended that has made the purses, which is this one."""
    for process in register.makers.values():
        process.close()
    register.makers.clear()
    for inode, kept in register._kept.items():
        register._kept[inode] = kept._replace(started=1)


def forget_books(register: Register, busy: Collection[int] = ()) -> None:
    """As the worker does it now and again, with a look at the makers in a thread."""
    register.forget_books(makers.living(register.unwatched()), busy)


def forget_all(register: Register) -> None:
    for member in register.members.values():
        member.process.close()
    register.members.clear()
    end_makers(register)
    for _ in range(2):
        forget_books(register)


class Registers:
    """The registers of the workers of one keeper. An agent has a ledger and a purse, and a command."""

    def __enter__(self) -> Registers:
        self.records = KeptRecords()
        self.book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0))
        self.purse = purse.create(self.book, "x", "cmd", (9, 0.0, 0.0), (1, 1))
        self.agent = subprocess.Popen(["sh", "-c", "sleep 100 & echo $!; wait"], stdout=subprocess.PIPE)
        assert self.agent.stdout
        self.command = int(self.agent.stdout.readline())
        self.made: list[Register] = []
        self.pinned_here: list[PinnedProcess] = []
        self.watched: dict[int, Callable[[], None]] = {}  # calls of the last register, by pidfd
        return self

    def next(self) -> Register:
        self.watched = watched = {}
        self.made.append(Register(self.records, watched.__setitem__, lambda: None))
        return self.made[-1]

    def pinned(self, pid: int) -> PinnedProcess:
        process = pinned(pid)
        assert process
        self.pinned_here.append(process)
        return process

    def __exit__(self, *_: object) -> None:
        os.kill(self.command, signal.SIGKILL)
        self.agent.communicate()
        for process in self.pinned_here:
            process.close()
        for register in self.made:
            forget_all(register)
        for fd in (self.purse, self.book.fd):
            os.close(fd)
        self.records.close()


class Greeted:
    """A worker of a broker in this process, and clients of it that give a ledger and purses."""

    def __init__(self, directory: str) -> None:
        self.book = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0))
        self.purses = [purse.create(self.book, "x", "cmd", (9, 0.0, 0.0), (1, 1)) for _ in range(3)]
        path = f"{directory}/x.broker"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen()
            self.path = path
            records, self.log = KeptRecords(), Log(path)
            self.seat = Seat(os.dup(listener.fileno()), records, path, b"k", {}, {}, os.getpid(), 0, self.log)
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

    def close(self) -> None:
        self.worker._listener.close()
        self.log.close()
        for fd in (self.seat.listener, self.book.fd, *self.purses):
            os.close(fd)
