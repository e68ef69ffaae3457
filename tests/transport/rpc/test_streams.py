"""Streaming requests without a node between: every byte exact, whoever ends first, and what is held is bounded."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.agents import until
from transport.errors import Abandoned, ProtocolError, RequestError
from transport.rpc import incoming as incoming_module
from transport.rpc import streams as streams_module
from transport.rpc.incoming import Incoming, Streaming
from transport.rpc.outgoing import Asked, Connection, Pool
from transport.rpc.services import Services
from transport.wire.flow import INITIAL_WINDOW, MAX_WINDOW
from transport.wire.frames import CHUNK, Kind, header
from transport.wire.session import STDIN, STDOUT, Session

BODY = bytes(range(256)) * 4001  # a million bytes and a bit; where one is missing, all that follow are others
SIZES = st.lists(st.integers(1, 150_000), max_size=6)
Handler = Callable[[Incoming], None]


class Proxy(threading.Thread):
    """Services on one end of a socket pair, as a proxy has them. The other end is the asker's."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(name="proxy")
        self.ours, self.theirs = socket.socketpair()
        self.woken, self.wake = os.pipe()
        for fd in (self.woken, self.wake):
            os.set_blocking(fd, False)
        self.session = Session(False, {})
        self.said: list[str] = []
        made = {"work": Streaming(handler), "plain": bytes.upper}
        self.services = Services(self.session, made, self.wake, "c", self.said.append)
        self.reads = threading.Event()
        self.reads.set()
        self.connections = 1

    def run(self) -> None:
        try:
            while True:
                while chunks := self.session.pull(1 << 16):
                    with contextlib.suppress(BrokenPipeError):  # bytes that came before its end still count
                        self.ours.sendall(b"".join(chunks))
                ready = select.select(
                    [self.woken, *([self.ours] if self.reads.is_set() else [])], [], [], 0.05
                )[0]
                if self.woken in ready:
                    os.read(self.woken, 4096)
                    self.services.send()
                if self.ours in ready:
                    if not (data := self.ours.recv(1 << 17)):
                        break
                    for frame in self.session.receive(data):
                        self.services.on_frame(frame)
        except OSError:
            pass  # the asker has gone
        # A node tells of that by ending what its client has asked; here the proxy does it.
        for number in list(self.session.channels):
            for frame in self.session.receive(header(Kind.STOP, number, 255, 0, 0)):
                self.services.on_frame(frame)
        self.services.send()

    def ask(self, name: str = "work", capability: str = "c") -> Asked:
        connection = Connection.__new__(Connection)
        connection.pid, connection.socket = os.getpid(), self.theirs
        connection.session = Session(True, {"build": "x"})
        self.kept: list[Connection] = []
        connection.socket.sendall(b"".join(connection.session.pull(1000)))
        return Asked(connection, {"name": name, "capability": capability}, self.kept.append)

    def close(self) -> None:
        self.theirs.close()
        self.join()
        self.services.close()
        self.ours.close()
        os.close(self.woken)
        os.close(self.wake)


@contextmanager
def served(handler: Handler) -> Iterator[Proxy]:
    proxy = Proxy(handler)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()


def all_of(read: Callable[[int], bytes], size: int = 1 << 20) -> bytes:
    got = bytearray()
    while data := read(size):
        assert len(data) <= size
        got += data
    return bytes(got)


class Met:
    """A handler that notes its body and how the body ended."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.whole = self.abandoned = False
        self.over = threading.Event()

    def __call__(self, incoming: Incoming) -> None:
        try:
            self.work(incoming)
        except Abandoned:
            self.abandoned = True
            raise
        finally:
            self.over.set()

    def work(self, incoming: Incoming) -> None:
        while data := incoming.read(50_000):
            self.body += data
        self.whole = True


# -- bytes ----------------------------------------------------------------------------------------------


@pytest.mark.long
@settings(max_examples=40)
@given(
    writes=SIZES,
    read=st.integers(1, 200_000),
    answers=SIZES,
    back=st.integers(1, 200_000),
    first=st.booleans(),
)
def test_every_byte_both_ways(
    writes: list[int], read: int, answers: list[int], back: int, first: bool
) -> None:
    """The body in pieces of any size, the answer in others; written before the body was read, or after."""
    bodies: list[bytes] = []

    def handler(incoming: Incoming) -> None:
        if not first:
            bodies.append(all_of(incoming.read, read))
        for size in answers:
            incoming.write(memoryview(BODY)[:size])
        if first:
            bodies.append(all_of(incoming.read, read))

    with served(handler) as proxy, proxy.ask() as asked:

        def write() -> None:
            for size in writes:
                asked.write(bytearray(BODY[:size]))
            asked.end()

        writer = threading.Thread(target=write)
        writer.start()
        got = all_of(asked.read, back)
        writer.join()
        assert got == b"".join(BODY[:size] for size in answers)
        assert bodies == [b"".join(BODY[:size] for size in writes)]
        assert asked.read(1) == b"" and proxy.kept, "the connection can serve the next one"


@settings(max_examples=40)
@given(
    sent=st.integers(0, 400_000),
    reads=st.integers(0, 400_000),
    writes=st.integers(0, 400_000),
    fails=st.booleans(),
)
def test_a_handler_that_ends_early(sent: int, reads: int, writes: int, fails: bool) -> None:
    """It reads so much of the body, writes so much of the answer, and returns or raises."""
    bodies: list[bytes] = []

    def handler(incoming: Incoming) -> None:
        got = b""
        while len(got) < reads and (data := incoming.read(reads - len(got))):
            got += data
        bodies.append(got)
        if writes:
            incoming.write(BODY[:writes])
        if fails:
            raise ValueError("no more")

    with served(handler) as proxy, proxy.ask() as asked:
        told: list[Exception] = []

        def write() -> None:
            try:
                asked.write(BODY[:sent])
                asked.end()
            except (BrokenPipeError, RequestError) as error:
                told.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        got = bytearray()
        try:
            while data := asked.read(70_000):
                got += data
            assert not fails and len(got) == writes
        except RequestError as error:
            assert fails and str(error) == "no more"
        writer.join()
        assert got == BODY[: len(got)] and bodies == [BODY[: min(sent, reads)]]
        # an asker that has sent just the bytes that were read may hear of the failure before it sends the end
        assert not told or sent > reads or (fails and sent == reads)


@settings(max_examples=40)
@given(
    sent=st.integers(0, 300_000),
    ends=st.booleans(),
    back=st.integers(0, 300_000),
    how=st.sampled_from(["close", "socket"]),
)
def test_an_asker_that_goes_at_any_point(sent: int, ends: bool, back: int, how: str) -> None:
    """Only `end` is an end: an asker that goes before it leaves none, and one that goes after it has left all."""

    class Echo(Met):
        def work(self, incoming: Incoming) -> None:
            while data := incoming.read(50_000):
                self.body += data
                incoming.write(data[: max(0, back - len(self.body))])
            self.whole = True

    met = Echo()
    with served(met) as proxy:
        asked = proxy.ask()
        asked.write(BODY[:sent])
        if ends:
            asked.end()
        if how == "close":
            asked.close()
        else:
            proxy.theirs.shutdown(socket.SHUT_WR)
        proxy.join(120)
        if len(proxy.services._streams) or met.over.is_set():
            assert met.over.wait(120)
            assert not met.whole or (ends and met.body == BODY[:sent])
            assert met.whole or met.abandoned
            assert ends or met.abandoned
            if ends and back == 0:
                assert met.whole, "a body that came whole is read whole"
        else:  # its thread had not come to it, and need not any more
            assert not ends
        asked.close()
        with pytest.raises(RequestError):
            asked.write(b"x")
        with pytest.raises(RequestError):
            asked.read(1)


# -- bounds ---------------------------------------------------------------------------------------------


def test_a_handler_that_does_not_read_stops_the_asker() -> None:
    gate = threading.Event()

    def handler(incoming: Incoming) -> None:
        assert gate.wait(120)
        all_of(incoming.read)

    with served(handler) as proxy, proxy.ask() as asked:
        asked.write(BODY[:INITIAL_WINDOW])
        writer = threading.Thread(target=asked.write, args=(BODY,))
        writer.start()
        flow = asked._channel.flows[STDIN]
        time.sleep(0.05)
        assert flow.offset == INITIAL_WINDOW and writer.is_alive()
        gate.set()
        writer.join(60)
        asked.end()
        assert asked.read(1) == b""


def test_an_asker_that_does_not_read_stops_the_handler() -> None:
    wrote = [0]

    def handler(incoming: Incoming) -> None:
        for _ in range(100):
            incoming.write(BODY[:CHUNK])
            wrote[0] += 1

    with served(handler) as proxy, proxy.ask() as asked:
        asked.end()
        asked.write(b"")
        most = (INITIAL_WINDOW + incoming_module.OUTBOX) // CHUNK + 2
        until(lambda: wrote[0] >= most - 3)
        time.sleep(0.05)
        assert wrote[0] <= most
        assert all_of(asked.read) == BODY[:CHUNK] * 100


def test_windows_grow_for_who_keeps_up() -> None:
    with served(lambda incoming: incoming.write(all_of(incoming.read))) as proxy, proxy.ask() as asked:
        for _ in range(20):
            asked.write(BODY)
        asked.end()
        assert len(all_of(asked.read)) == 20 * len(BODY)
        assert asked._channel.flows[STDIN].window > INITIAL_WINDOW


class Raw:
    """The services of a proxy, with a node that sends arbitrary frames."""

    def __init__(self, handler: Handler) -> None:
        self.woken, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        self.proxy, self.node = Session(True, {}), Session(False, {})
        self.services = Services(self.proxy, {"work": Streaming(handler)}, self.wake, "c")
        self.answers: dict[int, str | None] = {}
        self.carry()

    def carry(self) -> None:
        while self.proxy.has_output or self.node.has_output:
            for frame in self.proxy.receive(b"".join(self.node.pull(1 << 30))):
                self.services.on_frame(frame)
            for frame in self.node.receive(b"".join(self.proxy.pull(1 << 30))):
                if frame.kind == Kind.REPLY:
                    self.answers[frame.channel] = frame.body()["error"]

    def ask(self, capability: str = "c") -> int:
        number = self.node.open(Kind.REQUEST, {"name": "work", "capability": capability})
        self.carry()
        return number

    def send(self, number: int, size: int) -> None:
        for _ in range(size // CHUNK):
            self.node.data(number, STDIN, bytes(CHUNK))
        self.carry()

    def until(self, holds: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            select.select([self.woken], [], [], 1)
            self.services.send()
            self.carry()
            assert time.monotonic() < deadline

    def close(self) -> None:
        self.services.close()
        os.close(self.woken)
        os.close(self.wake)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    made = threading.Event()
    yield made
    made.set()


@pytest.fixture
def raw(gate: threading.Event) -> Iterator[Raw]:
    """Its handlers do nothing until the gate is open."""
    made = Raw(lambda incoming: gate.wait(120) and None)
    yield made
    gate.set()
    made.close()


def test_more_than_any_window_ends_the_link(raw: Raw) -> None:
    number = raw.ask()
    raw.node.flow(number, STDIN).stopped = True  # no account of ours keeps it from it
    with pytest.raises(ProtocolError, match="more data than the window allows"):
        raw.send(number, MAX_WINDOW + 2 * CHUNK)


def test_what_all_bodies_hold_is_bounded(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "HELD", 1_000_000)
    numbers = [raw.ask() for _ in range(4)]
    for number in numbers:
        raw.send(number, 400_000)
    refused = "more bytes than there is room for"
    assert [raw.answers.get(number) for number in numbers] == [None, None, refused, refused]
    assert sum(each.held for each in raw.services._streams._open.values()) <= 1_000_000


def test_a_wrong_capability_is_refused(raw: Raw) -> None:
    assert raw.answers[raw.ask("d")] == "the capability is not that of this job"
    assert not len(raw.services._streams)


@pytest.mark.parametrize("before", [0, 1])
def test_a_machine_without_threads_refuses_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, gate: threading.Event, before: int
) -> None:
    """A job with many requests at one time does not end the proxy that answers."""
    start = threading.Thread.start

    def none(self: threading.Thread) -> None:
        if self.name == "stream":
            raise RuntimeError("can't start new thread")
        start(self)

    def handler(incoming: Incoming) -> None:
        assert gate.wait(120)

    raw = Raw(handler)
    numbers = [raw.ask() for _ in range(before)]
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none)
        numbers.append(raw.ask())
    if not before:
        raw.until(lambda: len(raw.answers) == 1)
        assert "no thread" in raw.answers.pop(numbers.pop())
        numbers.append(raw.ask())
    gate.set()
    raw.until(lambda: len(raw.answers) == len(numbers))
    assert [raw.answers[number] for number in numbers] == [None] * len(numbers)
    raw.close()


def test_handlers_take_turns_in_order(monkeypatch: pytest.MonkeyPatch, gate: threading.Event) -> None:
    monkeypatch.setattr(streams_module, "THREADS", 2)
    order: list[int] = []

    def handler(incoming: Incoming) -> None:
        order.append(incoming.number)
        assert gate.wait(120)

    raw = Raw(handler)
    numbers = [raw.ask() for _ in range(6)]
    until(lambda: len(order) == 2)
    raw.node.abandon(numbers[3])  # it had not begun, and need not any more
    raw.carry()
    gate.set()
    raw.until(lambda: len(raw.answers) == 5)
    assert sorted(order) == [n for n in numbers if n != numbers[3]] and sorted(order[2:]) == sorted(
        [numbers[2], *numbers[4:]]
    )
    for number in raw.answers:
        raw.node.last_word(number)
    raw.carry()
    assert not len(raw.services._streams), "nothing is kept of them"
    raw.close()


def test_too_many_at_one_time(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transport.rpc.services.MAX_OPEN", 3)
    numbers = [raw.ask() for _ in range(4)]
    assert raw.answers == {numbers[3]: "too many requests at one time"}


def test_a_proxy_that_closes_frees_who_waits(gate: threading.Event) -> None:
    """In a read, in a write, or for its turn."""
    ends: list[str] = []

    def handler(incoming: Incoming) -> None:
        try:
            if incoming.read(1) == b"r":
                incoming.read(1)
            while True:
                incoming.write(BODY)
        except Abandoned as error:
            ends.append(str(error))

    raw = Raw(handler)
    for word in (b"r", b"w"):
        raw.node.data(raw.ask(), STDIN, word)
        raw.carry()
    flows = [raw.proxy.flow(number, STDOUT) for number in raw.proxy.channels]
    raw.until(lambda: any(flow.credit == 0 for flow in flows))
    raw.close()
    until(lambda: len(ends) == 2)
    assert set(ends) == {"the proxy of the job has ended"}
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "stream"])


def test_a_pool_keeps_what_works_and_nothing_of_a_parent(tmp_path: os.PathLike[str]) -> None:
    path = os.path.join(tmp_path, "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        pool = Pool(path)
        first = pool.take()
        there, _ = listener.accept()
        pool.give_back(first)
        assert pool.take() is first
        there.close()
        pool.give_back(first)
        second = pool.take()  # the node has ended the first one
        assert second is not first
        pool.give_back(second)
        pid = os.fork()
        if not pid:
            theirs = True
            try:
                theirs = pool.take() is second
            finally:
                os._exit(theirs)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert pool.take() is second, "and it was not hung up by the child"
        second.close()
        listener.accept()[0].close()
        listener.accept()[0].close()
