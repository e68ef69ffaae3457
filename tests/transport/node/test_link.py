"""A link that is flooded: its frames are handled in slices, in their order, none is lost with the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import clock
from transport import node_socket
from transport.carrier.duplex import Duplex
from transport.carrier.handshake import Greeter
from transport.errors import Interrupted
from transport.node.daemon import Node
from transport.node.host import Host, Met, Target
from transport.node.link import SLICE, Link
from transport.node.relay import Relay
from transport.node.side import Side
from transport.spawn import Spawn
from transport.status import Status
from transport.wire import session
from transport.wire.flow import MAX_WINDOW
from transport.wire.frames import GREETING, LIFE, MAX_PAYLOAD, VERSION, Frame, Kind, encode, pack
from transport.wire.resume import Line, hello
from transport.wire.session import ASKED, MOST_ASKED, STDIN, Session
from transport.wire.states import Asker

MANY = 60_000  # frames that no machine handles in one slice


class Pipe:
    """The duplex below, by hand."""

    def __init__(self) -> None:
        self.reading = True
        self.closed = False
        self.written = b""
        self.packets: list[bytes] = []

    def attach(self, protocol: object) -> None:
        self.protocol = protocol

    def pause_reading(self) -> None:
        assert self.reading
        self.reading = False

    def resume_reading(self) -> None:
        assert not self.reading
        self.reading = True

    def writelines(self, chunks: list[bytes]) -> None:
        self.packets.append(b"".join(chunks))

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closed = True


class Seen:
    """A handler of the channel, which notes its frames."""

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.lost = ""

    def on_frame(self, frame: Frame) -> None:
        self.frames.append(frame.offset)

    def on_down(self, why: str) -> None:
        pass

    def on_up(self) -> None:
        pass

    def on_lost(self, why: str) -> None:
        self.lost = why


def flooded(then: Callable[[Pipe], None]) -> tuple[Pipe, Seen, int]:
    """Receive a job, MANY signals for it, and `then`; return the signals handled before any other task ran."""

    async def main() -> tuple[Pipe, Seen, int]:
        pipe, seen, ended = Pipe(), Seen(), asyncio.Event()
        link = Link(Session(False, {}), "client", lambda *_: seen, lambda *_: ended.set())  # type: ignore[arg-type,return-value]
        link.start(pipe)  # type: ignore[arg-type]
        hello = encode(Frame(Kind.HELLO, payload=pack({"version": VERSION})))
        pipe.protocol.data_received(GREETING + hello + encode(Frame(Kind.SPAWN, 1, payload=b"{}")))  # type: ignore[attr-defined]
        signals = b"".join(encode(Frame(Kind.SIGNAL, 1, LIFE, n, b"{}")) for n in range(MANY))
        pipe.protocol.data_received(signals)  # type: ignore[attr-defined]
        first = len(seen.frames)
        then(pipe)
        async with asyncio.timeout(60):
            while len(seen.frames) < MANY or (not pipe.reading and not ended.is_set()):
                await asyncio.sleep(0)
        return pipe, seen, first

    return clock.run(main(), clock.Ticking)


def test_a_flood_waits_for_the_others() -> None:
    def more(pipe: Pipe) -> None:
        assert not pipe.reading
        pipe.protocol.data_received(encode(Frame(Kind.WINCH, 1, LIFE, MANY, b"{}")))  # type: ignore[attr-defined]

    pipe, seen, first = flooded(more)
    assert 0 < first < MANY
    assert seen.frames[: MANY + 1] == list(range(len(seen.frames)))
    assert pipe.reading and not pipe.closed


def test_between_two_frames_of_one_link_a_flooded_one_has_one_slice() -> None:
    """However many hosts flood us. Counted on a clock that moves by each look at it."""
    floods, most = 3, round(SLICE / clock.Ticking.TICK)

    async def main() -> list[int]:
        handled = [0] * floods
        shares: list[int] = []

        class Count(Seen):
            def __init__(self, index: int) -> None:
                self.index = index

            def on_frame(self, frame: Frame) -> None:
                handled[self.index] += 1

        class Good(Seen):
            def on_frame(self, frame: Frame) -> None:
                shares.append(max(handled))
                handled[:] = [0] * floods

        def begun(seen: Seen) -> Pipe:
            pipe = Pipe()
            link = Link(Session(False, {}), "client", lambda *_: seen, lambda *_: None)  # type: ignore[arg-type,return-value]
            link.start(pipe)  # type: ignore[arg-type]
            hello = encode(Frame(Kind.HELLO, payload=pack({"version": VERSION})))
            pipe.protocol.data_received(GREETING + hello + encode(Frame(Kind.SPAWN, 1, payload=b"{}")))  # type: ignore[attr-defined]
            return pipe

        good, bad = begun(Good()), [begun(Count(n)) for n in range(floods)]
        flood = b"".join(encode(Frame(Kind.SIGNAL, 1, LIFE, n, b"{}")) for n in range(3 * most))
        loop = asyncio.get_running_loop()
        for n in range(50):
            for pipe in bad:
                if pipe.reading:
                    loop.call_soon(pipe.protocol.data_received, flood)  # type: ignore[attr-defined]
            await asyncio.sleep(0)
            good.protocol.data_received(encode(Frame(Kind.SIGNAL, 1, LIFE, n, b"{}")))  # type: ignore[attr-defined]
        return shares

    shares = clock.run(main(), clock.Ticking)
    assert len(shares) == 50 and most // 2 < max(shares) <= most + 1  # the last one ends the slice


def test_what_came_before_the_end_is_handled_before_it() -> None:
    def end(pipe: Pipe) -> None:
        pipe.protocol.connection_lost("gone")  # type: ignore[attr-defined]

    pipe, seen, first = flooded(end)
    assert first < len(seen.frames) == MANY
    assert seen.lost == "gone" and pipe.closed and not pipe.reading


def test_after_a_bad_frame_nothing_is_handled() -> None:
    async def main() -> None:
        pipe, seen = Pipe(), Seen()
        link = Link(Session(False, {}), "client", lambda *_: seen, lambda *_: None)  # type: ignore[arg-type,return-value]
        link.start(pipe)  # type: ignore[arg-type]
        hello = encode(Frame(Kind.HELLO, payload=pack({"version": VERSION})))
        pipe.protocol.data_received(GREETING + hello + encode(Frame(Kind.SPAWN, 1, payload=b"{}")))  # type: ignore[attr-defined]
        good = b"".join(encode(Frame(Kind.SIGNAL, 1, LIFE, n, b"{}")) for n in range(MANY))
        pipe.protocol.data_received(good + encode(Frame(Kind.DATA, 9)) + good)  # type: ignore[attr-defined]
        pipe.protocol.data_received(good)  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            while not link.dead:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(seen.frames) == MANY and "never opened" in seen.lost and pipe.closed

    asyncio.run(main())


def socket_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a node of this test has its socket."""
    (path / "sock").touch()
    monkeypatch.setattr(node_socket, "socket_path", lambda: str(path / "sock"))


async def dialled(
    node: Node, seen: int, resume: bool, attempt: int, link: str = "0", **facts: object
) -> Pipe:
    """A dial of the link "0…0" comes in, or of another one, by a node that says `facts` of itself."""
    pipe = Pipe()
    greeter = Greeter(pipe)  # type: ignore[arg-type]
    words = GREETING + hello(facts, link * 32, seen, resume, attempt)
    pipe.protocol.data_received(words)  # type: ignore[attr-defined]
    await node._served.serve(greeter)
    return pipe


def test_a_hello_of_an_abandoned_dial_does_not_end_the_connection_of_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older hello arrives after the newer one, and its facts are out of date."""
    socket_in(tmp_path, monkeypatch)

    async def main() -> None:
        node = Node(None)  # type: ignore[arg-type]
        first = await dialled(node, 0, resume=False, attempt=0)
        (link,) = node._served.links.values()
        assert link.line
        link.handlers[1] = seen = Seen()  # type: ignore[assignment]
        link.line.opener = True
        link.line._outbox.put(Kind.SIGNAL, 1, LIFE, 1, b"{}")
        link.flush()
        sent = link.line.sent
        second = await dialled(node, sent, resume=True, attempt=2)
        assert first.closed and sent > 0 and link.line.seen == sent
        late = await dialled(node, 0, resume=True, attempt=1)
        assert late.closed and not second.closed
        assert not link.dead and not link.down and not seen.lost
        third = await dialled(node, sent, resume=True, attempt=3)
        assert second.closed and not third.closed and not link.down
        link.fail("over")

    asyncio.run(main())


def test_a_link_that_has_said_goodbye_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last slice may still wait for its turn when the next dial comes."""
    socket_in(tmp_path, monkeypatch)

    async def main() -> None:
        node = Node(None)  # type: ignore[arg-type]
        pipes = []
        for resume in (False, True):
            pipes.append(await dialled(node, 0, resume, attempt=int(resume)))
            for link in node._served.links.values():
                assert link.line
                link.line.over = True  # as a goodbye leaves it
        assert not node._served.links and all(pipe.closed for pipe in pipes)
        assert b'"resume":false' in pipes[1].written.replace(b" ", b"")

    asyncio.run(main())


def test_a_server_that_always_hangs_up_is_not_dialled_for_ever_at_one_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cut or two are passed at once; an address that goes on so for half a minute is banned."""
    dials: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def dial() -> Duplex:
            dials.append(loop.time())
            raise Interrupted("h", "the connection was lost in the handshake")

        async def sleep(seconds: float) -> None:
            clock.skip(seconds)

        monkeypatch.setattr("transport.node.host.asyncio.sleep", sleep)
        target = Target("h", "h", "h", dial, lambda spawn: None)
        host = Host(target, lambda *more: None, {}, Met(0.0))  # type: ignore[arg-type, return-value]
        with pytest.raises(Interrupted):
            await host._dial(dial)

    clock.run(main())
    assert 12 < len(dials) < 24 and dials[3] - dials[0] < 1


LOCK = {"origin": "boot 1 2 x"}  # whoever holds it is the only one
CASES: dict[str, tuple[dict[str, object], dict[str, object], bool]] = {
    "a later holder": ({**LOCK, "began": 1}, {**LOCK, "began": 2}, True),
    "the same": ({**LOCK, "began": 2}, {**LOCK, "began": 2}, False),
    "an earlier one, whose hello was under way for long": ({**LOCK, "began": 2}, {**LOCK, "began": 1}, False),
    "of another lock": ({**LOCK, "began": 1}, {"origin": "boot 1 3 x", "began": 2}, False),
    "both say nothing": ({}, {}, False),
    "the other says nothing": ({**LOCK, "began": 1}, {}, False),
    "ours had said nothing": ({}, {**LOCK, "began": 2}, False),
}


@pytest.mark.parametrize("ours, theirs, ends", CASES.values(), ids=list(CASES))
@pytest.mark.parametrize("first", ["down", "dialled"])
def test_a_link_that_is_down_ends_when_a_later_holder_of_the_lock_of_its_node_dials(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ours: dict[str, object],
    theirs: dict[str, object],
    ends: bool,
    first: str,
) -> None:
    """In whichever order this node hears of both: that one is gone, and that there is another one."""
    socket_in(tmp_path, monkeypatch)

    async def main() -> None:
        node = Node(None)  # type: ignore[arg-type]
        await dialled(node, 0, resume=False, attempt=0, **ours)
        (link,) = node._served.links.values()
        link.handlers[1] = seen = Seen()  # type: ignore[assignment]
        if first == "down":
            link.cut("gone")
        await dialled(node, 0, resume=False, attempt=0, link="1", **theirs)
        if first == "dialled":
            assert not link.dead and not link.down, "a link that is up is nobody's to end"
            link.cut("gone")
        assert bool(link.dead) is ends and bool(seen.lost) is ends
        for each in list(node._served.links.values()):
            each.fail("over")

    asyncio.run(main())


def test_a_job_too_many_for_one_connection_was_never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        pipe, client = Pipe(), Session(True, {})
        near = Link(Session(False, {}), "client", lambda *_: Seen(), lambda *_: None)  # type: ignore[arg-type,return-value]
        near.start(pipe)  # type: ignore[arg-type]
        number = client.open(Kind.SPAWN, {})
        pipe.protocol.data_received(b"".join(client.pull(1 << 20)))  # type: ignore[attr-defined]
        far = Link(Line(True, "0" * 32), "h1", lambda *_: Seen(), lambda *_: None)  # type: ignore[arg-type,return-value]
        target = Target("h1", "h1", "h1", lambda: None, lambda _: None)  # type: ignore[arg-type,return-value]
        monkeypatch.setattr(session, "MAX_CHANNELS", 0)
        Host(target, lambda *_: far, {}, Met(0.0))._connect(
            Relay(near, number, "h1", lambda _: None), far, Spawn(["x"])
        )
        near.flush()
        told = [frame for frame in client.receive(b"".join(pipe.packets)) if frame.kind == Kind.EXIT]
        status = Status.from_json(told[0].body())
        assert (status.state, status.code, status.host) == ("unreachable", 69, "h1")
        assert not far.dead

    asyncio.run(main())


def test_a_job_whose_client_takes_nothing_leaves_room_for_the_requests_of_others() -> None:
    """The client of one is stopped: the others of that host still get to their origin."""

    async def main() -> None:
        line = Line(False, "0" * 32)
        far = Link(line, "origin", lambda *_: Seen(), lambda *_: None)  # type: ignore[arg-type,return-value]
        line.peer = {"build": "x"}

        class Client:
            """One that asks for a job, and sends for as long as it is read."""

            def __init__(self, asker: Asker) -> None:
                self.asker = asker
                self.pipe, self.session = Pipe(), Session(True, {})
                Link(Session(False, {}), "client", self.opened, lambda *_: None).start(self.pipe)  # type: ignore[arg-type]
                self.number = self.session.open(Kind.REQUEST, {})
                self.session.flow(self.number, STDIN).window = MAX_WINDOW
                self.sent = 0

            def opened(self, link: Link, frame: Frame) -> Side:
                relay = Relay(link, frame.channel, "", lambda _: None)
                relay.asker = self.asker
                relay.connect(far, Kind.REQUEST, {})
                return relay.near

            async def send(self, frames: int = 1) -> None:
                for _ in range(frames):
                    if self.pipe.reading and self.session.flow(self.number, STDIN).credit:
                        self.session.data(self.number, STDIN, b"x" * MAX_PAYLOAD)
                        self.sent += MAX_PAYLOAD
                        self.pipe.protocol.data_received(b"".join(self.session.pull(1 << 30)))  # type: ignore[attr-defined]
                        await asyncio.sleep(0)

        async def fill(clients: list[Client]) -> int:
            while any(client.pipe.reading for client in clients):
                for client in clients:
                    await client.send()
            return sum(client.sent for client in clients)

        stopped = [[Client(asker) for _ in range(4)] for asker in (Asker(), Asker())]
        for each in stopped:
            room = ASKED - line.asked
            assert room // 2 <= await fill(each) <= room // 2 + 4 * MAX_PAYLOAD
        for _ in range(3):
            other = Client(Asker())
            await other.send(4)
            assert other.pipe.reading and other.sent == 4 * MAX_PAYLOAD
        while line.asked < ASKED:
            stopped.append([Client(Asker())])
            await fill(stopped[-1])
        late = Client(Asker())
        for sent in range(1, 4):  # where all is taken it goes on by frames
            await late.send()
            assert late.sent == sent * MAX_PAYLOAD and not late.pipe.reading
            number = max(line.channels)
            if sent == 1:
                line._accept(Frame(Kind.ATTACH, number, LIFE, 0, b"{}"))
            line._accept(Frame(Kind.ACK, number, STDIN, line.flow(number, STDIN).offset))
            far.flush()
            while not late.pipe.reading:
                await asyncio.sleep(0)
        assert line.asked <= ASKED + MAX_PAYLOAD
        line.abandon(number)
        for number in line.channels:
            line._accept(Frame(Kind.ATTACH, number, LIFE, 0, b"{}"))
            line._accept(Frame(Kind.ACK, number, STDIN, line.flow(number, STDIN).offset))
        far.flush()
        async with asyncio.timeout(60):
            while not all(client.pipe.reading for each in stopped for client in each):
                await asyncio.sleep(0)
        assert line.asked == 0 and not any(asker.asked for asker in (each[0].asker for each in stopped))
        far.fail("over")

    asyncio.run(main())


def test_senders_wait_while_the_bodies_of_requests_have_no_room() -> None:
    """Each of them keeps to its window, and knows nothing of the others on the same line."""

    async def main() -> None:
        line = Line(False, "0" * 32)
        far = Link(line, "origin", lambda *_: Seen(), lambda *_: None)  # type: ignore[arg-type,return-value]
        line.peer = {"build": "x"}
        clients = []

        def arrives(frame: Frame) -> None:
            if line._accept(frame):
                far._dispatch(frame)

        def opened(link: Link, frame: Frame) -> Side:
            relay = Relay(link, frame.channel, "", lambda _: None)
            relay.connect(far, Kind.REQUEST, {})
            return relay.near

        for _ in range(8):
            pipe, client = Pipe(), Session(True, {})
            near = Link(Session(False, {}), "client", opened, lambda *_: None)
            near.start(pipe)  # type: ignore[arg-type]
            number = client.open(Kind.REQUEST, {})
            client.flow(number, STDIN).window = MAX_WINDOW
            clients.append((pipe, client, number))
        sent = 0
        while any(client.flow(number, STDIN).credit for _, client, number in clients):
            for pipe, client, number in clients:
                if client.flow(number, STDIN).credit:
                    client.data(number, STDIN, b"x" * MAX_PAYLOAD)
                    sent += MAX_PAYLOAD
                if pipe.reading:
                    pipe.protocol.data_received(b"".join(client.pull(1 << 30)))  # type: ignore[attr-defined]
                    await asyncio.sleep(0)
        assert sent > MOST_ASKED
        assert ASKED <= line.asked <= ASKED + len(clients) * MAX_PAYLOAD
        assert not any(pipe.reading for pipe, _, _ in clients)
        for number in line.channels:
            arrives(Frame(Kind.ATTACH, number, LIFE, 0, b"{}"))
        async with asyncio.timeout(60):
            while sum(line.flow(number, STDIN).offset for number in line.channels) < sent or line.asked:
                for number in line.channels:  # the origin takes what came, so there is room again
                    if line.flow(number, STDIN).acked < line.flow(number, STDIN).offset:
                        arrives(Frame(Kind.ACK, number, STDIN, line.flow(number, STDIN).offset))
                far.flush()
                await asyncio.sleep(0)
                for pipe, client, _ in clients:
                    if pipe.reading and (data := b"".join(client.pull(1 << 30))):
                        pipe.protocol.data_received(data)  # type: ignore[attr-defined]
        assert all(pipe.reading for pipe, _, _ in clients)
        far.fail("over")

    asyncio.run(main())


def test_a_link_that_is_down_is_needed_while_the_other_end_has_not_heard_what_was_given_up() -> None:
    """Otherwise an abandoned job would run on the host until its lease is over."""

    async def main() -> None:
        line = Line(True, "0" * 32)
        link = Link(line, "h1", lambda *_: Seen(), lambda *_: None, lambda *_: None)  # type: ignore[arg-type,return-value]
        relay = Relay(
            Link(Session(False, {}), "client", lambda *_: Seen(), lambda *_: None), 1, "h1", lambda _: None
        )  # type: ignore[arg-type,return-value]
        relay.lease = 60
        relay.connect(link, Kind.SPAWN, {})
        link.cut("gone")
        assert link.needed
        assert relay.far
        relay.far.abandon()
        assert not link.handlers and link.needed
        clock.skip(61)  # by now its lease has ended it
        assert not link.needed
        relay.end()
        link.fail("over")

    clock.run(main())


def test_words_about_the_connection_leave_in_a_packet_with_others() -> None:
    async def main() -> None:
        pipe = Pipe()
        link = Link(Line(False, "0" * 32), "origin", lambda *_: Seen(), lambda *_: None)  # type: ignore[arg-type,return-value]
        greeter = Greeter(pipe)  # type: ignore[arg-type]
        pipe.protocol.data_received(GREETING + hello({}, "0" * 32, 0, resume=False))  # type: ignore[attr-defined]
        link.connect(greeter)
        pipe.protocol.data_received(encode(Frame(Kind.SPAWN, 1, payload=b"{}")))  # type: ignore[attr-defined]
        pipe.packets.clear()
        assert link.line
        ping = encode(Frame(Kind.PING, 0, 0, 7))
        link.line.tell(1, Kind.ATTACH, {"pid": 1})
        pipe.protocol.data_received(ping)  # type: ignore[attr-defined]
        pong = encode(Frame(Kind.PING, 0, 1, 7))
        (packet,) = pipe.packets
        assert packet.startswith(pong) and len(packet) > len(pong)
        pipe.protocol.data_received(ping)  # type: ignore[attr-defined]
        assert pipe.packets[1:] == [pong]
        link.fail("over")

    clock.run(main(), clock.Ticking)
