"""Clients of a lab's node in the process of the test: each is a session over a socket, and no program."""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Mapping

from tests.lab import Lab
from tests.support.machine import node_file
from transport import this_build
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.frames import Frame, Kind
from transport.wire.session import STDIN, STDOUT, Session

SECONDS = 240.0


class Clients:
    """Many clients of the node here in one process: a client of its own each would be a gigabyte of them."""

    def __init__(self, lab: Lab) -> None:
        self.path, self.inventory = node_file(lab, "sock"), lab.inventory
        self.poll = select.poll()
        self.members: dict[int, Client] = {}

    def start(self, where: str, argv: list[str], cwd: str | None = None, **context: object) -> Client:
        member = Client(self, where, argv, cwd, context)
        self.members[member.socket.fileno()] = member
        self.poll.register(member.socket, select.POLLIN)
        return member

    def until(self, done: Callable[[], bool]) -> None:
        """Serve all clients that have data until the condition holds."""
        deadline = time.monotonic() + SECONDS
        while not done():
            for fd, _ in self.poll.poll(1000):
                self.members[fd].receive()
            assert time.monotonic() < deadline, f"not done in {SECONDS} s"

    def close(self) -> None:
        for member in self.members.values():
            member.socket.close()


class Client:
    """One client: a session over a socket, which reads stdout only while `reads`."""

    def __init__(
        self, crowd: Clients, where: str, argv: list[str], cwd: str | None, context: Mapping[str, object]
    ) -> None:
        self.session = Session(True, {"build": this_build.build_hash(), "pid": os.getpid()})
        self.socket = socket.socket(socket.AF_UNIX)
        try:
            self.socket.connect(str(crowd.path))
        except OSError:
            self.socket.close()
            raise
        env = {"PATH": os.environ["PATH"]} if where == "local" else {}  # there it is the host's own
        known = {"inventory": str(crowd.inventory), **context}
        spawn = Spawn(argv, where=where, env=env, cwd=cwd, context=known)
        self.number = self.session.open(Kind.SPAWN, spawn.to_json())
        self.socket.sendall(b"C")
        self.pid = 0
        self.got = bytearray()
        self.status: Status | None = None
        self.flush()

    def flush(self) -> None:
        while chunks := self.session.pull(1 << 16):
            self.socket.sendall(b"".join(chunks))

    def receive(self) -> None:
        data = self.socket.recv(1 << 18)
        assert data, "the node ended"
        for frame in self.session.receive(data):
            self.on_frame(frame)
        self.flush()

    def on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.ATTACH:
            self.pid = frame.number("pid")
        elif frame.kind == Kind.DATA and frame.stream == STDOUT:
            self.got += frame.payload
            self.session.took(self.number, STDOUT, len(self.got))
        elif frame.kind == Kind.EXIT:
            self.status = Status.from_json(frame.body())

    def say(self, data: bytes, last: bool) -> None:
        self.session.data(self.number, STDIN, data)
        if last:
            self.session.eof(self.number, STDIN)
        self.flush()

    @property
    def over(self) -> bool:
        channel = self.session.channels[self.number]
        return self.status is not None and channel.finished


def output(lab: Lab, where: str, *argv: str) -> bytes:
    """Run a job by way of the node that runs; return its output. It must end well."""
    clients = Clients(lab)
    try:
        one = clients.start(where, [*argv])
        clients.until(lambda: one.over)
    finally:
        clients.close()
    assert one.status and (one.status.state, one.status.code) == ("exited", 0), one.status
    return bytes(one.got)
