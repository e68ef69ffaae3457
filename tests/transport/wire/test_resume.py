"""Lines: two ends, and connections between them that break at any byte. Nothing is lost, nothing comes twice."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from transport.errors import ProtocolError
from transport.status import Status
from transport.wire import resume
from transport.wire.flow import MAX_WINDOW
from transport.wire.frames import GREETING, HEADER_SIZE, LIFE, Frame, Kind, encode, header
from transport.wire.resume import KEEP, MAX_WORDS, QUANTUM, Handshake, Line, hello
from transport.wire.session import GONE, STDERR, STDIN, STDOUT

NAME = "ab" * 16
EXITED = Status("exited", 7).to_json()


class Pair:
    """Two lines and the connection between them, if there is one."""

    def __init__(self) -> None:
        self.opener, self.server = Line(True, NAME), Line(False, NAME)
        self.wires: dict[Line, bytearray] = {self.opener: bytearray(), self.server: bytearray()}  # from whom
        self.up = False
        self.got: dict[Line, list[Frame]] = {self.opener: [], self.server: []}
        self.connect()

    def other(self, end: Line) -> Line:
        return self.server if end is self.opener else self.opener

    def connect(self) -> None:
        """Both greet; each says how much it has, and the rest comes again."""
        for wire in self.wires.values():
            wire.clear()
        greetings = {end: GREETING + hello({}, NAME, end.received, resume=True) for end in self.wires}
        for end in self.wires:
            handshake = Handshake()
            assert handshake.feed(greetings[self.other(end)])
            self.wires[end] += b"".join(end.join(handshake))
        self.up = True

    def cut(self) -> None:
        """The bytes under way are lost, be it in the middle of a frame."""
        self.up = False
        for wire in self.wires.values():
            wire.clear()

    def write(self, end: Line, limit: int = 1 << 16) -> None:
        """Pull, as a driver does, if there is a connection."""
        if self.up:
            self.wires[end] += b"".join([*end.beside(), *end.pull(limit)])

    def carry(self, end: Line, size: int) -> None:
        """Let `size` bytes of `end` arrive."""
        wire = self.wires[end]
        data, wire[:] = bytes(wire[:size]), wire[size:]
        self.got[self.other(end)] += self.other(end).receive(data)

    def settle(self) -> None:
        """Connect if need be and carry everything."""
        if not self.up:
            self.connect()
        while True:
            for end in self.wires:
                self.write(end)
                self.carry(end, 1 << 30)
            if not any(self.wires.values()) and not self.opener.has_output and not self.server.has_output:
                return


@pytest.fixture
def pair() -> Pair:
    return Pair()


def job(pair: Pair) -> int:
    number = pair.opener.open(Kind.SPAWN, {"id": "x"})
    pair.settle()
    pair.server.tell(number, Kind.ATTACH, {"pid": 1})
    pair.settle()
    return number


def test_a_cut_in_the_middle_of_a_frame(pair: Pair) -> None:
    number = job(pair)
    for part in (b"a" * 1000, b"b" * 1000, b"c" * 1000):
        pair.opener.data(number, STDIN, part)
    pair.write(pair.opener)
    pair.carry(pair.opener, 1500)
    pair.cut()
    pair.opener.tell(number, Kind.SIGNAL, {"signal": "TERM"}, 1)
    pair.settle()
    data = [frame.payload for frame in pair.got[pair.server] if frame.kind == Kind.DATA]
    assert b"".join(data) == b"a" * 1000 + b"b" * 1000 + b"c" * 1000
    assert [frame.kind for frame in pair.got[pair.server]].count(Kind.SIGNAL) == 1
    assert pair.opener.received == pair.server.sent and pair.server.received == pair.opener.sent


def test_what_was_seen_is_forgotten_and_what_was_not_is_bounded(pair: Pair) -> None:
    number = job(pair)
    flow = pair.opener.flow(number, STDIN)
    flow.window = 4 * KEEP
    for _ in range(3 * KEEP // 50_000):
        flow.acked = flow.offset  # the job over there takes it all: it is the line that bounds here
        pair.opener.data(number, STDIN, b"x" * 50_000)
    while chunks := pair.opener.pull(1 << 16):
        pair.wires[pair.opener] += b"".join(chunks)
    assert KEEP <= pair.opener.kept < KEEP + (1 << 17)
    assert sum(map(len, pair.opener._kept)) == pair.opener.kept
    pair.carry(pair.opener, QUANTUM + 100_000)
    assert pair.server.beside() == [header(Kind.SEEN, 0, 0, pair.server.received, 0)]
    before = pair.opener.kept
    list(pair.opener.receive(header(Kind.SEEN, 0, 0, pair.server.received, 0)))
    assert pair.opener.kept == before - pair.server.received < KEEP
    assert pair.opener.pull(1 << 16)


def test_that_much_was_seen_is_said_beside_other_words_sooner(pair: Pair) -> None:
    number = job(pair)
    pair.opener.flow(number, STDIN).window = KEEP
    for _ in range(3):
        pair.opener.data(number, STDIN, b"x" * (QUANTUM // 4))
    pair.write(pair.opener, KEEP)
    pair.carry(pair.opener, KEEP)
    assert pair.server.beside() == []
    pair.server.ack(number, STDIN, QUANTUM // 2)
    assert pair.server.beside() == [header(Kind.SEEN, 0, 0, pair.server.received, 0)]


def test_words_beside_the_line_wait_for_nobody(pair: Pair) -> None:
    """Both ends are full, and each waits for the other to tell which bytes it has seen."""
    number = job(pair)
    pair.server.flow(number, STDOUT).window = 4 * KEEP
    while pair.server.kept < KEEP:
        flow = pair.server.flow(number, STDOUT)
        flow.acked = flow.offset
        pair.server.data(number, STDOUT, b"y" * 60_000)
        pair.server.pull(1 << 16)
    pair.server.received += QUANTUM
    assert pair.server.pull(1 << 16) == []
    assert pair.server.beside()


def test_pings_are_answered_once_however_many_they_are(pair: Pair) -> None:
    list(pair.server.receive(encode(Frame(Kind.PING, offset=5)) * 9_000 + encode(Frame(Kind.PING, offset=6))))
    assert pair.server.beside() == [header(Kind.PING, 0, 1, 6, 0)]
    assert pair.server.beside() == []
    list(pair.opener.receive(header(Kind.PING, 0, 1, 6, 0)))
    assert pair.opener.pong == 6


def test_a_flood_of_words_is_no_peer(pair: Pair) -> None:
    with pytest.raises(ProtocolError, match="flood of words"):
        list(pair.server.receive(encode(Frame(Kind.PING)) * (MAX_WORDS + 1)))


def test_words_are_counted_from_beat_to_beat(pair: Pair) -> None:
    for _ in range(3):
        list(pair.server.receive(encode(Frame(Kind.PING)) * MAX_WORDS))
        pair.server.ping(0)


def test_a_connection_begins_without_words_that_were_due_on_the_last_one(pair: Pair) -> None:
    """A late answer to a ping measures the pause, and how much was seen has been said in the hello."""
    number = job(pair)
    pair.opener.flow(number, STDIN).window = KEEP
    for _ in range(5):
        pair.opener.data(number, STDIN, b"x" * (QUANTUM // 4))
    pair.write(pair.opener, KEEP)
    pair.carry(pair.opener, KEEP)
    list(pair.server.receive(encode(Frame(Kind.PING, offset=5))))
    pair.cut()
    pair.connect()
    assert pair.server.beside() == []


@pytest.mark.parametrize("lie", ["backwards", "beyond", "after the header", "inside"])
def test_lies_about_what_was_seen(pair: Pair, lie: str) -> None:
    number = job(pair)
    pair.opener.data(number, STDIN, b"z" * 100)
    seen = pair.opener.sent
    list(pair.opener.receive(header(Kind.SEEN, 0, 0, seen, 0)))
    pair.write(pair.opener)
    said = {
        "backwards": seen - 1,
        "beyond": pair.opener.sent + 1,
        "after the header": seen + HEADER_SIZE,
        "inside": seen + HEADER_SIZE + 5,
    }
    with pytest.raises(ProtocolError, match="seen"):
        list(pair.opener.receive(header(Kind.SEEN, 0, 0, said[lie], 0)))


def test_a_second_hello_is_a_violation(pair: Pair) -> None:
    with pytest.raises(ProtocolError, match="second hello"):
        list(pair.opener.receive(hello({}, NAME, 0, resume=False)))


@pytest.mark.parametrize(
    "body",
    [
        {"version": 1, "link": NAME, "seen": 0},
        {"version": 2, "seen": 0},
        {"version": 2, "link": "../" + NAME[3:], "seen": 0},
        {"version": 2, "link": NAME[1:], "seen": 0},
        {"version": 2, "link": NAME, "seen": -1},
        {"version": 2, "link": NAME, "seen": True},
        {"version": 2, "link": NAME, "seen": 1.0},
        {"version": 2, "link": NAME},
        {"version": 2, "link": NAME, "seen": 0},
        {"version": 2, "link": NAME, "seen": 0, "attempt": -1},
    ],
)
def test_a_hello_that_is_none(body: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        Handshake().feed(GREETING + encode(Frame(Kind.HELLO, payload=resume.pack(body))))


def test_what_follows_a_hello_is_the_lines() -> None:
    end = Line(False, NAME)
    handshake = Handshake()
    frame = encode(Frame(Kind.PING, offset=9))
    data = b"Welcome!\r\n" + GREETING + hello({"pid": 1}, NAME, 0, resume=False) + frame + frame[:7]
    assert [handshake.feed(data[i : i + 1]) for i in range(len(data) - 25)].count(True) <= 1
    rest = data[len(data) - 25 :]
    while not handshake.feed(rest[:1]):
        rest = rest[1:]
    handshake.decoder.hold(rest[1:])
    assert end.join(handshake) == []
    list(end.receive(b""))
    assert end.beside() == [header(Kind.PING, 0, 1, 9, 0)]


class Model(RuleBasedStateMachine):
    """Jobs and requests over a line whose connection breaks at any byte, against what each end has been given to say.

    These invariants of ARCHITECTURE must hold: every byte once and in order; not more than a window unacknowledged;
    an exit record once, and not before it was sent; control exactly once; both ends forget the same channels.
    """

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.pair = Pair()
        self.said: dict[tuple[Line, int, int], bytearray] = {}  # (who, channel, stream) -> bytes
        self.told: dict[tuple[Line, int, int], int] = {}  # (who, channel, kind) -> count
        self.open: dict[int, str] = {}  # state of each channel: opening, running, ended
        self.ended: dict[int, set[int]] = {}  # streams of the server that have ended
        self.signals: deque[int] = deque()

    def _say(self, end: Line, number: int, stream: int, size: int) -> None:
        flow = end.flow(number, stream)
        size = min(size, flow.credit)
        if size:
            payload = self.rng.randbytes(size)
            end.data(number, stream, payload)
            self.said.setdefault((end, number, stream), bytearray()).extend(payload)

    def _count(self, end: Line, number: int, kind: int) -> None:
        key = (end, number, kind)
        self.told[key] = self.told.get(key, 0) + 1

    def _server_knows(self, number: int) -> bool:
        return number in self.pair.server.channels

    @rule()
    def spawn(self) -> None:
        if len(self.open) < 6:
            number = self.pair.opener.open(Kind.SPAWN, {"id": str(len(self.open))})
            self.open[number] = "opening"
            self.ended[number] = set()
            self._count(self.pair.opener, number, Kind.SPAWN)

    @rule(pick=st.integers(0, 5), size=st.integers(1, 60_000))
    def stdin(self, pick: int, size: int) -> None:
        number = 1 + 2 * pick
        if number in self.open:
            self._say(self.pair.opener, number, STDIN, size)

    @rule(pick=st.integers(0, 5))
    def attach(self, pick: int) -> None:
        number = 1 + 2 * pick
        if self.open.get(number) == "opening" and self._server_knows(number):
            self.pair.server.tell(number, Kind.ATTACH, {"pid": number})
            self.open[number] = "running"
            self._count(self.pair.server, number, Kind.ATTACH)

    @rule(pick=st.integers(0, 5), stream=st.sampled_from([STDOUT, STDERR]), size=st.integers(1, 60_000))
    def output(self, pick: int, stream: int, size: int) -> None:
        number = 1 + 2 * pick
        if self.open.get(number) in ("running", "exited") and stream not in self.ended[number]:
            self._say(self.pair.server, number, stream, size)

    @rule(pick=st.integers(0, 5), which=st.sampled_from([STDOUT, STDERR]))
    def eof(self, pick: int, which: int) -> None:
        number = 1 + 2 * pick
        if self.open.get(number) in ("running", "exited") and which not in self.ended[number]:
            self.pair.server.eof(number, which)
            self.ended[number].add(which)
            self._count(self.pair.server, number, Kind.EOF)

    @rule(pick=st.integers(0, 5))
    def signal(self, pick: int) -> None:
        number = 1 + 2 * pick
        if number in self.open:
            self._count(self.pair.opener, number, Kind.SIGNAL)
            count = self.told[self.pair.opener, number, Kind.SIGNAL]
            self.pair.opener.tell(number, Kind.SIGNAL, {"signal": "USR1"}, count)

    @rule(pick=st.integers(0, 5))
    def end(self, pick: int) -> None:
        number = 1 + 2 * pick
        if self.open.get(number) == "running":
            self.pair.server.tell(number, Kind.EXIT, EXITED)
            self.open[number] = "exited"
            self._count(self.pair.server, number, Kind.EXIT)

    @rule(pick=st.integers(0, 5), where=st.sampled_from([STDIN, STDOUT, STDERR]))
    def take(self, pick: int, where: int) -> None:
        """The receiver acknowledges all bytes of a stream that have arrived."""
        number = 1 + 2 * pick
        end = self.pair.server if where == STDIN else self.pair.opener
        channel = end.channels.get(number)
        if channel and (where != STDIN or self.open[number] != "opening"):
            end.ack(number, where, channel.flows[where].offset)

    @precondition(lambda self: self.pair.up)
    @rule(which=st.booleans(), limit=st.integers(1, 1 << 17))
    def write(self, which: bool, limit: int) -> None:
        self.pair.write(self.pair.opener if which else self.pair.server, limit)

    @precondition(lambda self: self.pair.up)
    @rule(which=st.booleans(), size=st.integers(1, 1 << 17))
    def carry(self, which: bool, size: int) -> None:
        self.pair.carry(self.pair.opener if which else self.pair.server, size)

    @precondition(lambda self: self.pair.up)
    @rule()
    def cut(self) -> None:
        self.pair.cut()

    @precondition(lambda self: not self.pair.up)
    @rule()
    def connect(self) -> None:
        self.pair.connect()

    @invariant()
    def what_came_is_a_beginning_of_what_was_said(self) -> None:
        if not hasattr(self, "pair"):
            return
        for (end, number, stream), said in self.said.items():
            assert said.startswith(self._came(end, number, stream))
        for end in (self.pair.opener, self.pair.server):
            assert end.kept == sum(map(len, end._kept))
            assert end.seen <= self.pair.other(end).received <= end.sent
            for channel in end.channels.values():
                for flow in channel.flows:
                    assert flow.offset - flow.acked <= MAX_WINDOW

    def _came(self, end: Line, number: int, stream: int) -> bytes:
        frames = self.pair.got[self.pair.other(end)]
        wanted = (Kind.DATA, number, stream)
        return b"".join(f.payload for f in frames if (f.kind, f.channel, f.stream) == wanted)

    def teardown(self) -> None:
        if not hasattr(self, "pair"):
            return
        self.pair.settle()
        for (end, number, stream), said in self.said.items():
            assert self._came(end, number, stream) == said
        for (end, number, kind), count in self.told.items():
            frames = [f for f in self.pair.got[self.pair.other(end)] if (f.kind, f.channel) == (kind, number)]
            assert len(frames) == count
        for number, state in self.open.items():
            channel = self.pair.opener.channels[number]
            if state == "exited" and self.ended[number] == {STDOUT, STDERR}:
                assert channel.finished
                self.pair.opener.last_word(number)
                assert channel.state == GONE
            else:
                self.pair.opener.abandon(number)
        self.pair.cut()
        self.pair.settle()
        assert not self.pair.opener.channels and not self.pair.server.channels
        assert LIFE not in (STDIN, STDOUT, STDERR)


Model.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
test_random_operations_over_a_faulty_link = Model.TestCase
