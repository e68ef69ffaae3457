"""The output of a job by a lent descriptor, without processes: in any order of events each byte once, in its place."""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from transport.client.core import Core
from transport.errors import ProtocolError
from transport.node import lent_stdio
from transport.node.link import Link
from transport.node.relay import Relay
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.frames import Kind
from transport.wire.session import STDERR, STDOUT, Session

SIZE = 600_000
PIPE = 4096  # bytes that the pipe holds


class Caller(Core):
    """A client whose stdout is a pipe: it writes, and lends, when it is told to."""

    def __init__(self, write: int) -> None:
        nobody: Any = None
        super().__init__(Spawn(["true"], capability="c"), {"build": "x"}, nobody)
        self.pipe = write
        self.queue: deque[bytes] = deque()
        self.taken = 0

    def on_output(self, stream: int, data: bytes) -> None:
        assert stream == STDOUT
        self.queue.append(bytes(data))

    def on_started(self) -> None: ...

    def on_written(self, stream: int, count: int, errno: int) -> None:
        assert stream == STDOUT and not (count and self.queue), (
            "the node waits for what comes before its bytes"
        )
        assert not (count and self.pending)
        self.taken += count

    def write(self) -> None:
        """As the proxy does: it reports what it has written, and nothing if that was nothing."""
        while self.queue:
            try:
                done = os.write(self.pipe, self.queue[0])
            except BlockingIOError:
                break
            except BrokenPipeError:
                self.queue.clear()
                self.took(STDOUT, self.taken, 0.0, alive=False)
                return
            self.taken += done
            rest = self.queue.popleft()[done:]
            if rest:
                self.queue.appendleft(rest)
            self.took(STDOUT, self.taken, 0.0)

    def try_to_lend(self) -> bool:
        if not self.lends(STDOUT):
            return False
        self.lend(STDOUT, 0)
        return True


class Course:
    """A client, its node, and the node of the job, with all that is under way between them in our hands."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.sent = self.random.randbytes(SIZE)
        self.got = bytearray()
        self.read, self.write = os.pipe()
        fcntl.fcntl(self.write, fcntl.F_SETPIPE_SZ, PIPE)
        os.set_blocking(self.read, False)
        os.set_blocking(self.write, False)
        self.caller = Caller(self.write)
        self.caller.begin()
        node = Session(opener=False, hello={"build": "x"})
        node.borrows = True
        (spawn,) = node.receive(b"".join(self.caller.session.pull(1 << 20)))
        self.near = Link(node, "near", lambda *_: self.relay.near, lambda *_: None)
        self.relay = Relay(self.near, spawn.channel, "h1", lambda _: None)
        self.near.descriptor = lambda _: os.dup(self.write)  # type: ignore[method-assign]
        self.near.handlers[spawn.channel] = self.relay.near
        self.far = Link(Session(True, {"build": "x"}), "far", lambda *_: self.relay.near, lambda *_: None)
        self.there = Session(opener=False, hello={"build": "x"})
        self.relay.connect(self.far, Kind.SPAWN, {})
        self.channel = next(iter(self.far.session.channels))
        while self.far.session.has_output:
            self.carry(self.far.session, self.there)
        self.there.tell(self.channel, Kind.ATTACH, {"pid": 7})
        self.lends = 0
        self.ended = False

    def carry(self, sender: Session, receiver: Session) -> None:
        """Carry some of what waits to its other end, which deals with it."""
        for frame in receiver.receive(b"".join(sender.pull(self.random.choice((1, 1 << 12, 1 << 20))))):
            if receiver is self.near.session:
                self.relay.from_side(self.relay.near, frame)
            elif receiver is self.far.session:
                assert self.relay.far
                self.relay.from_side(self.relay.far, frame)
            elif receiver is self.caller.session:
                self.caller.on_frame(frame, 0.0)
            elif frame.kind == Kind.ACK and frame.stream == STDOUT:
                assert frame.offset <= len(self.got) + self.in_pipe(), "acknowledged means written"

    def in_pipe(self) -> int:
        import array
        import termios

        count = array.array("i", [0])
        fcntl.ioctl(self.read, termios.FIONREAD, count)
        return count[0]

    def produce(self) -> None:
        """The job writes some bytes, or comes to its end."""
        channel = self.there.channels.get(self.channel)
        if not channel or self.ended:
            return
        flow = channel.flows[STDOUT]
        if flow.offset == SIZE or flow.stopped:
            self.ended = True
            self.there.eof(self.channel, STDOUT)
            self.there.eof(self.channel, STDERR)
            self.there.tell(self.channel, Kind.EXIT, Status("exited", 3).to_json())
        elif room := min(flow.credit, self.random.choice((1, 5000, 60_000)), SIZE - flow.offset):
            self.there.data(self.channel, STDOUT, self.sent[flow.offset : flow.offset + room])

    def consume(self) -> None:
        try:
            self.got += os.read(self.read, self.random.choice((1, 700, 1 << 16)))
        except BlockingIOError:
            pass

    def signal(self) -> None:
        if self.caller.session.flow(self.caller.number, STDOUT).lent or self.random.random() < 0.1:
            self.caller.signal(10)

    def lend(self) -> None:
        self.lends += self.caller.try_to_lend()

    def steps(self) -> list[Callable[[], None]]:
        caller, near, far, there = self.caller.session, self.near.session, self.far.session, self.there
        carries = [(there, far), (far, there), (near, caller), (caller, near)]
        return [
            *(lambda pair=pair: self.carry(*pair) for pair in carries),  # type: ignore[misc]
            self.produce,
            self.caller.write,
            self.consume,
            self.lend,
        ]

    async def settle(self) -> None:
        """All that is under way arrives, and all that was written is read."""
        for _ in range(100_000):
            self.caller.settle()
            if self.caller.over:
                break
            for step in self.steps()[:-1]:
                step()
            await asyncio.sleep(0)
        assert self.caller.over
        while self.in_pipe():
            self.consume()

    def close(self) -> None:
        self.relay.end()
        for fd in (self.read, self.write):
            if fd >= 0:
                os.close(fd)


def run(course: Callable[[Course], Any], seed: int) -> None:
    async def main() -> None:
        one = Course(seed)
        try:
            await course(one)
        finally:
            one.close()

    before = len(os.listdir("/proc/self/fd"))
    asyncio.run(main())
    assert len(os.listdir("/proc/self/fd")) == before


async def walk(one: Course, weights: list[float], rounds: int = 3000) -> None:
    steps = one.steps()
    for _ in range(rounds):
        one.random.choices(steps, weights)[0]()
        if one.random.random() < 0.3:
            await asyncio.sleep(0)
        one.caller.settle()
        if one.caller.over:
            break


@pytest.mark.parametrize("seed", range(40))
def test_each_byte_once_and_in_its_place(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes it, whatever is under way when it is lent, and however often it comes back."""
    monkeypatch.setattr(lent_stdio, "TURN", (1, 1000, 1 << 18)[seed % 3])

    async def course(one: Course) -> None:
        weights = [one.random.choice((1, 1, 8)) for _ in one.steps()]
        signals = one.random.choice((0, 0, 30))
        for _ in range(20):
            await walk(one, weights, 150)
            if one.caller.over:
                break
            if one.random.randrange(40) < signals:
                one.signal()
        await one.settle()
        assert bytes(one.got) == one.sent
        assert one.lends
        assert one.caller.status and one.caller.status.code == 3
        assert one.caller.taken == SIZE

    run(course, seed)


@pytest.mark.parametrize("seed", range(10))
def test_what_a_lost_link_has_brought_is_written(seed: int) -> None:
    async def course(one: Course) -> None:
        await walk(one, [1] * 8, 400)
        if one.caller.over:
            return
        assert one.relay.far
        came = one.far.session.flow(one.relay.far.number, STDOUT).offset
        one.relay.lost(one.relay.far, "cut")
        one.there.channels.clear()
        await one.settle()
        assert one.caller.status and one.caller.status.state == "lost"
        assert bytes(one.got) == one.sent[: len(one.got)] and len(one.got) >= came

    run(course, seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_reader_that_leaves_stops_the_job(seed: int) -> None:
    async def course(one: Course) -> None:
        await walk(one, [1] * 8, 400)
        if one.caller.over:
            return
        os.close(one.read)
        one.read = -1
        one.in_pipe = lambda: SIZE  # type: ignore[method-assign]
        one.consume = lambda: None  # type: ignore[method-assign]
        for _ in range(10_000):
            for step in one.steps()[:-1]:
                step()
            await asyncio.sleep(0)
            one.caller.settle()
            if one.caller.over:
                break
            # As the proxy's poll, which sees that the reader has gone
            channel = one.caller.session.channels.get(one.caller.number)
            if channel and not channel.flows[STDOUT].stopped:
                one.caller.took(STDOUT, one.caller.taken, 0.0, alive=False)
        assert one.caller.over and one.ended

    run(course, seed)


def test_a_client_that_ends_leaves_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that was due then was made due again for ever."""
    monkeypatch.setattr(lent_stdio, "TURN", 1)

    async def course(one: Course) -> None:
        for _ in range(10_000):
            await walk(one, [1] * 8, 1)
            lending = one.relay._lending
            sink: Any = lending.sinks.get(STDOUT) if lending else None
            if sink and sink._due:
                break
        assert sink._due
        one.relay.lost(one.relay.near, "killed")
        writes: list[int] = []
        monkeypatch.setattr(type(sink), "credit", lambda _: writes.append(1))
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(writes) < 2 and sink.fd == -1 and not sink._due

    run(course, 3)


def test_before_a_signal_the_client_hears_what_is_unread() -> None:
    """After TERM it leaves a reader that takes nothing; it has to know that there is one."""

    async def course(one: Course) -> None:
        caller, near = one.caller.session, one.near.session
        one.carry = whole(one)  # type: ignore[method-assign]
        for _ in range(4):
            one.produce()
            one.carry(one.there, one.far.session)
            one.carry(near, caller)
        one.lend()
        one.carry(caller, near)
        for _ in range(50):
            one.caller.write()
            one.carry(caller, near)
            one.carry(one.far.session, one.there)
            one.produce()
            one.carry(one.there, one.far.session)
            while one.in_pipe() and one.caller.queue:
                one.consume()
        assert not one.caller.pending
        one.caller.signal(15)
        one.carry(caller, near)
        one.carry(near, caller)
        assert one.caller.pending
        await one.settle()
        assert bytes(one.got) == one.sent

    run(course, 5)


def whole(one: Course) -> Callable[[Session, Session], None]:
    def carry(sender: Session, receiver: Session) -> None:
        while sender.has_output:
            Course.carry(one, sender, receiver)

    return carry


@pytest.mark.parametrize("kind", ["terminal", "directory", "zero"])
def test_nothing_else_is_borrowed(kind: str) -> None:
    async def course(one: Course) -> None:
        one.carry = whole(one)  # type: ignore[method-assign]
        one.carry(one.there, one.far.session)
        one.carry(one.near.session, one.caller.session)
        made = {
            "terminal": lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
            "directory": lambda: os.open("/", os.O_RDONLY),
            "zero": lambda: os.open("/dev/zero", os.O_WRONLY),
        }[kind]
        one.near.descriptor = lambda _: made()  # type: ignore[method-assign]
        one.lend()
        with pytest.raises(ProtocolError, match="neither a regular file nor a pipe"):
            one.carry(one.caller.session, one.near.session)

    run(course, 1)


def test_stderr_is_not_lent() -> None:
    node = Session(opener=False, hello={})
    client = Session(opener=True, hello={})
    number = client.open(Kind.SPAWN, Spawn(["true"], capability="c").to_json())
    list(node.receive(b"".join(client.pull(1 << 20))))
    with pytest.raises(ProtocolError):
        client.lend(number, STDERR, 0, {})
