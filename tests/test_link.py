"""A link that is flooded: its frames are handled in slices, in their order, none is lost with the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from transport import address
from transport.frames import GREETING, LIFE, VERSION, Frame, Kind, encode, pack
from transport.greeter import Greeter
from transport.line import Line, hello
from transport.link import Link
from transport.node import Node
from transport.session import Session

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
    """What stands behind the channel."""

    def __init__(self) -> None:
        self.frames: list[int] = []
        self.lost = ""

    def on_frame(self, frame: Frame) -> None:
        self.frames.append(frame.offset)

    def on_lost(self, why: str) -> None:
        self.lost = why


def flooded(then: Callable[[Pipe], None]) -> tuple[Pipe, Seen, int]:
    """A job, MANY signals for it, and what comes `then`; how many were handled before anybody else had a turn."""

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

    return asyncio.run(main())


def test_a_flood_waits_for_the_others() -> None:
    def more(pipe: Pipe) -> None:
        assert not pipe.reading
        pipe.protocol.data_received(encode(Frame(Kind.WINCH, 1, LIFE, MANY, b"{}")))  # type: ignore[attr-defined]

    pipe, seen, first = flooded(more)
    assert 0 < first < MANY
    assert seen.frames[: MANY + 1] == list(range(len(seen.frames)))
    assert pipe.reading and not pipe.closed


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


def test_a_link_that_has_said_goodbye_is_not_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last slice may still wait for its turn when somebody dials again."""
    (tmp_path / "sock").touch()
    monkeypatch.setattr(address, "socket_path", lambda: str(tmp_path / "sock"))

    async def main() -> None:
        node = Node(None)  # type: ignore[arg-type]
        pipes = []
        for resume in (False, True):
            pipes.append(Pipe())
            greeter = Greeter(pipes[-1])  # type: ignore[arg-type]
            pipes[-1].protocol.data_received(GREETING + hello({}, "0" * 32, 0, resume))  # type: ignore[attr-defined]
            await node._serve(greeter)
            for link in node._served.values():
                assert link.line
                link.line.over = True  # as a goodbye leaves it
        assert not node._served and all(pipe.closed for pipe in pipes)
        assert b'"resume":false' in pipes[1].written.replace(b" ", b"")

    asyncio.run(main())


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

    asyncio.run(main())
