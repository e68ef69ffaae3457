"""A node that breaks the rules: it speaks the protocol just well enough to be believed, and then does its worst."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.sim.machine import Machine
from tests.sim.network import End
from tests.sim.world import World
from transport import this_build
from transport.carrier.handshake import Greeter
from transport.wire.frames import CHUNK, LIFE, Frame, Kind, encode, pack
from transport.wire.resume import hello

MOST = 3 << 20  # bytes that one hostile node sends: enough to exceed every bound as it is scaled here
FLOOD = 300_000  # of small frames, which cost more
TURN = 64 * 1024  # bytes that it sends at once


class Hostile(Machine):
    """`how` is what it does with the first job that it is given.

    requests  opens as many requests for it as it may, each with a large body
    taken     opens requests without end, takes each back, and reads nothing more
    overrun   sends its output without minding any window
    flood     sends small frames without end
    noise     sends chance bytes
    silent    says nothing more
    mute      answers pings, and not one start
    """

    def __init__(self, world: World, name: str, number: int, scripts: dict[str, Any], how: str) -> None:
        self.how = how
        self.ended = False
        super().__init__(world, name, number, scripts)

    def start_node(self) -> None:
        if not hasattr(self, "loop"):
            self.loop = self.world.make_loop(self.clock)

    def kill_node(self) -> None:
        for end in self.ends:
            end.close()

    def dialled(self, end: End) -> None:
        end.soon = self.loop.call_soon
        self.ends.append(end)
        self.loop.call_soon(lambda: Speaker(self, end))


class Speaker:
    """One connection of it."""

    def __init__(self, machine: Hostile, end: End) -> None:
        self.machine = machine
        self.end = end
        self.random = machine.world.random("hostile", len(machine.ends))
        self.sent = 0
        self._out = bytearray()
        self._most = FLOOD if machine.how in ("flood", "taken") else MOST
        self._next = 2
        self._job: int | None = None
        self._offset = 0
        self._greeter = Greeter(end)
        self._task = machine.loop.create_task(self._greet())

    async def _greet(self) -> None:
        peer = await self._greeter.hello(30.0)
        facts = {"build": this_build.build_hash(), "node": "x", "boot": "x", "pid": 1}
        self.end.write(hello(facts, peer["link"], 0, resume=False))
        self._decoder = self._greeter.handshake.decoder
        self.end.attach(self)
        self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            if self.machine.how == "mute":
                if frame.kind == Kind.PING and not frame.stream:
                    self.end.write(encode(Frame(Kind.PING, 0, 1, frame.offset)))
            elif frame.kind == Kind.SPAWN and not frame.stream:
                self.end.write(encode(Frame(Kind.ATTACH, frame.channel, LIFE, 0, pack({"pid": 7}))))
                if self._job is None:
                    self._job, self._capability = frame.channel, frame.body().get("capability")
                    self.machine.clock.after(0.1, self._go_on)

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, why: str) -> None:
        self.sent = self._most

    def _say(self, kind: int, channel: int, stream: int, offset: int = 0, payload: bytes = b"") -> None:
        self._out += encode(Frame(kind, channel, stream, offset, payload))

    def _go_on(self) -> None:
        """Send a piece of it, and more in a while."""
        act: Callable[[], None] = getattr(self, "_" + self.machine.how)
        while self.sent + len(self._out) < self._most and len(self._out) < TURN:
            act()
        self.end.write(bytes(self._out))
        self.sent += len(self._out)
        self._out.clear()
        if self.sent < self._most and not self.end.closed:
            self.machine.clock.after(0.05, self._go_on)

    def _requests(self) -> None:
        asked = {"name": "echo", "job": self._job, "capability": self._capability}
        self._say(Kind.REQUEST, self._next, 0, 0, pack(asked))
        offset = 0
        while offset < 48 * 1024:
            self._say(Kind.DATA, self._next, 0, offset, bytes(CHUNK // 4))
            offset += CHUNK // 4
        self._next += 2

    def _taken(self) -> None:
        self.end.pause_reading()
        asked = {"name": "echo", "job": self._job, "capability": self._capability}
        self._say(Kind.REQUEST, self._next, 0, 0, pack(asked))
        self._say(Kind.STOP, self._next, LIFE, 0)
        self._next += 2

    def _overrun(self) -> None:
        self._say(Kind.DATA, self._job, 1, self._offset, bytes(CHUNK))
        self._offset += CHUNK

    def _flood(self) -> None:
        self._say(Kind.ACK, self._job or 0, 0)

    def _noise(self) -> None:
        self._out += self.random.randbytes(1000)

    def _silent(self) -> None:
        self.sent = self._most
