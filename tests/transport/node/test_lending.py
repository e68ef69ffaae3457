"""Descriptors lent to the node: the same bytes as without, in any order of lending and not; nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import Lab
from tests.support.agents import until
from tests.system import breaks
from tests.system.breaks import CUTS, LONG, MiB
from tests.transport.rpc import streaming
from tests.transport.rpc.test_streams import all_of, served
from tests.transport.rpc.test_streams_hosts import asked
from transport.carrier.duplex import ClientDuplex, descriptors
from transport.carrier.unix import Wire
from transport.errors import Abandoned, ProtocolError
from transport.node import lending
from transport.rpc import lendable
from transport.rpc.incoming import Incoming
from transport.wire.flow import MAX_WINDOW, Flow
from transport.wire.frames import Kind
from transport.wire.session import STDIN, STDOUT, Session

pytestmark = pytest.mark.timeout(300 + 15 * CUTS)
ROUNDS = 40 if LONG else 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("handler", ["echo", "spool"])
@pytest.mark.parametrize("where", ["local", "h1"])
def test_bytes_and_descriptors_in_any_order(lab: Lab, where: str, handler: str, seed: int) -> None:
    """Both ends lend, or one, or none; both have one node, or a link lies between their nodes."""
    same, count = asked(lab, where, "lent", handler, ROUNDS, seed).split()
    assert same == "same" and int(count) > 0


@pytest.mark.long
def test_over_cuts(lab: Lab, through: Callable[..., str]) -> None:
    host, proxy = through("h1", lease=120), lab["h1"].proxy
    assert asked(lab, host, "put", 1) == "same"  # the link is there
    done, seed = proxy.cuts(), os.getpid()
    proxy.cut_after(*breaks.plan(seed, 6, 16 * MiB))
    assert asked(lab, host, "lent", "spool", ROUNDS, 4).startswith("same"), seed
    assert proxy.cuts() > done, seed


def test_an_error_of_the_file_is_its_own(lab: Lab) -> None:
    assert asked(lab, "h1", "readonly") == "Bad file descriptor"


def test_who_is_killed_leaves_nothing_open(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "lent"
    path.write_bytes(bytes(10 * MiB))
    argv, more = streaming.command(lab, "local", "lenddie", path)
    assert subprocess.run(argv, capture_output=True, timeout=120, check=False, **more).returncode == 137

    def held() -> list[str]:
        found = []
        for process in lab.processes():
            folder = f"/proc/{process.pid}/fd"
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                found += [fd for fd in os.listdir(folder) if os.path.realpath(f"{folder}/{fd}") == str(path)]
        return found

    until(lambda: not held())


def test_what_is_lent_and_what_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    read, write = os.pipe()
    with open(path, "r+b", buffering=0) as file, open(path, "ab") as appended:
        os.lseek(file.fileno(), 10, os.SEEK_SET)
        assert lendable.source(file.fileno()) == (10, 990)
        assert lendable.target(file.fileno()) == 10
        assert lendable.target(appended.fileno()) == -1
        assert lendable.source(read) == (0, 0) and lendable.target(write) == -1
        assert lendable.source(-1) == (0, 0)
        monkeypatch.setattr(lendable, "_known", {os.fstat(file.fileno()).st_dev: False})
        assert lendable.source(file.fileno()) == (0, 0) and lendable.target(file.fileno()) == -1
    for fd in (read, write):
        os.close(fd)


@pytest.mark.parametrize("whole", [True, False])
def test_what_comes_behind_a_file_is_not_the_files(tmp_path: Path, whole: bool) -> None:
    """All bytes are there, or on their way, before the node hears that a file is lent."""
    size, rest = 2 * lendable.LEAST, b"the next word"
    body = os.urandom(size) + rest

    def node(incoming: Incoming) -> None:
        if incoming.lends:
            incoming.lends.clear()
            incoming.put(body[1:])
            if whole:
                incoming.end()
            incoming.returned(STDIN, 0, 0, len(body))

    incoming = Incoming(1, lambda _: None, node)
    incoming.put(body[:1])
    with open(tmp_path / "file", "w+b", buffering=0) as file:
        assert incoming.receive_file(file.fileno(), size) == size
        assert incoming.read(1000) == rest
        file.seek(0)
        assert file.read() == body[:size]


def pair() -> tuple[Session, Session, int]:
    client, node = Session(True, {}), Session(False, {})
    number = client.open(Kind.REQUEST, {})
    node.borrows = True
    carry(client, node)
    return client, node, number


def carry(one: Session, two: Session) -> list[int]:
    """Carry frames until both ends are quiet; return the kinds of the frames."""
    kinds = []
    while one.has_output or two.has_output:
        for sender, receiver in ((one, two), (two, one)):
            kinds += [frame.kind for frame in receiver.receive(b"".join(sender.pull(1 << 20)))]
    return kinds


def test_both_ends_agree_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client, node, number = pair()
    node.tell(number, Kind.ATTACH, {})
    client.data(number, STDIN, b"before")
    client.lend(number, STDIN, 6, {"fd": 0, "at": 0, "length": 100})
    assert carry(client, node) == [Kind.DATA, Kind.LEND, Kind.ATTACH], "in its place in the stream"
    node.give_back(number, STDIN, 90, {"acked": 50, "errno": 0, "window": 1 << 20})
    carry(client, node)
    flows = [session.flow(number, STDIN) for session in (client, node)]
    assert [(flow.offset, flow.acked, flow.lent) for flow in flows] == [(96, 50, ""), (96, 50, "")]
    assert flows[0].window == 1 << 20
    client.data(number, STDIN, b"after")
    carry(client, node)
    assert flows[1].offset == 101


def test_what_was_acknowledged_is_said_before_the_stream_is_lent() -> None:
    """Said after the return, it would be one that goes backwards."""
    client, node, number = pair()
    node.tell(number, Kind.ATTACH, {})
    node.data(number, STDOUT, b"answer")
    carry(client, node)
    client.ack(number, STDOUT, 6)
    client.lend(number, STDOUT, 6, {"fd": 0, "at": 0, "length": 100})
    assert carry(client, node) == [Kind.ACK, Kind.LEND]
    assert node.flow(number, STDOUT).acked == 6


@pytest.mark.parametrize("stream", [STDIN, STDOUT])
def test_only_a_node_borrows_and_only_from_its_client(stream: int) -> None:
    client, node, number = pair()
    node.tell(number, Kind.ATTACH, {})
    node.lend(number, stream, 0, {})
    with pytest.raises(ProtocolError, match="takes no descriptors"):
        carry(client, node)


@pytest.mark.parametrize(("acked", "window"), [(-1, 0), (11, 0), (0, MAX_WINDOW + 1)])
def test_a_return_that_cannot_be(acked: int, window: int) -> None:
    flow = Flow()
    with pytest.raises(ProtocolError):
        flow.returned("ours", 0, 0, 0)
    flow.lend("ours")
    with pytest.raises(ProtocolError):
        flow.returned("ours", 10, acked, window)
    with pytest.raises(ProtocolError):
        flow.lend("ours")


def test_a_client_that_lends_nothing_ends_itself_alone(lab: Lab) -> None:
    assert asked(lab, "local", "fraud") == "the node ended"
    assert asked(lab, "local", "put", 1) == "same"


def test_what_its_lender_ended_is_not_given_back(tmp_path: Path) -> None:
    """A client that ends a stream which it has lent breaks the link of no other client."""
    client, node, number = pair()
    node.tell(number, Kind.ATTACH, {})
    client.lend(number, STDIN, 0, {"fd": 0, "at": 0, "length": 100})
    client.eof(number, STDIN)
    carry(client, node)
    side: Any = SimpleNamespace(link=SimpleNamespace(session=node, dead="", wake=None), number=number)
    other = SimpleNamespace(link=SimpleNamespace(session=Session(True, {}), dead=""), number=number)
    (tmp_path / "lent").write_bytes(b"x")
    fd = os.open(tmp_path / "lent", os.O_RDONLY)
    ours: Any = SimpleNamespace(sources={}, sinks={}, other=lambda _: other)
    source = lending.Source(ours, side, STDIN, fd, 0, 100)
    source.finish()
    assert source.fd == -1 and not node.has_output
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_handler_that_has_left_lends_no_more(tmp_path: Path) -> None:
    """Its number may be another file's by then."""
    (tmp_path / "lent").write_bytes(bytes(MiB))
    incoming = Incoming(2, lambda _: None, lambda _: None)
    ends: list[str] = []

    def send() -> None:
        with open(tmp_path / "lent", "rb", buffering=0) as file:
            try:
                incoming.send_file(file.fileno(), MiB)
            except Abandoned as error:
                ends.append(str(error))

    thread = threading.Thread(target=send)
    thread.start()
    until(lambda: incoming.lends)
    incoming.abandon("gone")
    thread.join(60)
    assert ends == ["gone"]
    assert incoming.lend(STDOUT, os.dup) is None


def test_a_descriptor_that_had_no_room_ends_its_link_alone() -> None:
    """The next one would be taken for it."""

    async def take() -> None:
        ours, theirs = socket.socketpair()
        duplex = ClientDuplex(theirs)
        free = os.dup(ours.fileno())
        os.close(free)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        socket.send_fds(ours, [b"x"], [0, 0])
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                duplex._take()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert list(duplex.lent) == [0]
        duplex.close()
        ours.close()

    asyncio.run(take())


def test_more_descriptors_than_one_message_takes_are_not_lent() -> None:
    """The node stops reading for a moment while three hundred handlers lend: the proxy goes on."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open("/dev/null") as file:
        wire = Wire(ours, Session(opener=True, hello={}), b"x")
        lent = 0
        with contextlib.suppress(OSError):
            while lent < 300:
                assert wire.attach(file.fileno()) == lent
                lent += 1
        wire.flush()
        assert 100 < lent < 300
        _, ancillary, flags, _ = theirs.recvmsg(100, socket.CMSG_SPACE(4 * ClientDuplex.MOST))
        came = descriptors(ancillary)
        for fd in came:
            os.close(fd)
        assert len(came) == lent and not flags & socket.MSG_CTRUNC
        assert wire.attach(file.fileno()) == lent
        wire.drop()


@pytest.mark.parametrize("attaches", [None, "no room"])
def test_where_nothing_can_be_lent_the_handler_moves_it_all(tmp_path: Path, attaches: str | None) -> None:
    """More than a window, into a file and out of it: the bytes taken by then are acknowledged."""

    def attach(fd: int) -> int:
        raise OSError(errno.EMFILE, "no room")

    def handler(incoming: Incoming) -> None:
        with open(tmp_path / "file", "w+b", buffering=0) as file:
            size = incoming.receive_file(file.fileno(), 8 * MiB)
            file.seek(0)
            incoming.send_file(file.fileno(), size)

    body = streaming.content(7, 3_000_000)
    with served(handler) as proxy:
        proxy.services._streams._attach = attach if attaches else None
        with proxy.ask() as asking:
            writer = threading.Thread(target=lambda: (asking.write(body), asking.end()))
            writer.start()
            assert all_of(asking.read) == body
            writer.join()
