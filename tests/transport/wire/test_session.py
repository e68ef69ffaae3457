"""Sessions: two real ends joined, every cell of the table, and what a hostile end may try."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transport.errors import ProtocolError, Refused
from transport.status import Status
from transport.wire import session
from transport.wire.frames import LIFE, MAX_PAYLOAD, NAMES, VERSION, Frame, Kind, encode, pack
from transport.wire.session import (
    ENDED,
    GONE,
    MAX_CONTROL,
    MOST_ASKED,
    OPENING,
    RUNNING,
    STDERR,
    STDIN,
    STDOUT,
    TABLE,
    Channel,
    Session,
    diagram,
)

EXITED = Status("exited", 0).to_json()


class Wire:
    """Two sessions and the bytes between them."""

    def __init__(self) -> None:
        self.opener = Session(True, {"build": "b"})
        self.server = Session(False, {"build": "b"})
        self.exchange()

    def exchange(self, rng: random.Random | None = None) -> list[Frame]:
        """Carry all bytes both ways, in pieces of random size if asked; frames the ends saw."""
        seen: list[Frame] = []
        while self.opener.has_output or self.server.has_output:
            for source, sink in ((self.opener, self.server), (self.server, self.opener)):
                data = b"".join(iter(lambda source=source: b"".join(source.pull(1 << 16)), b""))
                while data:
                    size = rng.randint(1, len(data)) if rng else len(data)
                    seen += sink.receive(data[:size])
                    data = data[size:]
        return seen

    def job(self) -> int:
        number = self.opener.open(Kind.SPAWN, {"id": "x"})
        self.exchange()
        self.server.tell(number, Kind.ATTACH, {"pid": 1})
        self.exchange()
        return number


@pytest.fixture
def wire() -> Wire:
    return Wire()


def test_a_whole_life(wire: Wire) -> None:
    number = wire.job()
    wire.opener.data(number, STDIN, b"material")
    wire.opener.eof(number, STDIN)
    assert [frame.payload for frame in wire.exchange()] == [b"material", b""]
    wire.server.ack(number, STDIN, 8)
    wire.server.data(number, STDOUT, b"deliverable")
    wire.server.eof(number, STDOUT)
    wire.server.tell(number, Kind.EXIT, EXITED)
    wire.exchange()
    channel = wire.opener.channels[number]
    assert channel.state == ENDED and not channel.finished  # stderr is still open
    wire.server.eof(number, STDERR)
    wire.exchange()
    assert channel.finished
    wire.opener.last_word(number)
    wire.exchange()
    assert not wire.opener.channels and not wire.server.channels


def test_every_cell_of_the_table() -> None:
    """Each legal move moves both ends alike; each other one is refused by both."""
    streams = {"in": STDIN, "out": STDOUT, "life": LIFE}
    for state, who, kind, where in itertools.product(
        (OPENING, RUNNING, ENDED), ("opener", "server"), sorted(NAMES), streams
    ):
        request = kind in (Kind.REPLY, Kind.LEND, Kind.RETURN)
        after = TABLE.get((state, who, kind, where))
        for mine in (True, False):
            channel = Channel(1, mine, request)
            channel.state = state
            if after is None:
                with pytest.raises(ProtocolError):
                    channel.move(who, kind, streams[where])
                assert channel.state == state
            else:
                assert channel.move(who, kind, streams[where]) == after == channel.state


def test_no_row_is_out_of_reach_and_the_diagram_prints_them_all() -> None:
    reached = {OPENING}
    for _ in TABLE:
        reached |= {after for (before, *_), after in TABLE.items() if before in reached}
    assert reached == {OPENING, RUNNING, ENDED, GONE}
    assert len(diagram().splitlines()) == len(TABLE) + 2


def test_a_job_never_ends_with_a_reply_nor_a_request_with_an_exit(wire: Wire) -> None:
    job = wire.job()
    request = wire.server.open(Kind.REQUEST, {"name": "infer"})
    wire.exchange()
    with pytest.raises(ProtocolError):
        wire.server.tell(job, Kind.REPLY, {"error": None})
    with pytest.raises(ProtocolError):
        wire.opener.tell(request, Kind.EXIT, EXITED)


def test_a_request_goes_the_other_way(wire: Wire) -> None:
    number = wire.server.open(Kind.REQUEST, {"name": "infer"})
    wire.exchange()
    wire.opener.tell(number, Kind.ATTACH, {})
    wire.server.data(number, STDIN, b"question")
    wire.server.eof(number, STDIN)
    wire.exchange()
    wire.opener.data(number, STDOUT, b"answer")
    wire.opener.eof(number, STDOUT)
    wire.opener.tell(number, Kind.REPLY, {"error": None})
    wire.exchange()
    assert wire.server.channels[number].finished
    wire.server.last_word(number)
    wire.exchange()
    assert not wire.opener.channels and not wire.server.channels


def test_what_was_on_its_way_to_a_forgotten_channel_is_dropped(wire: Wire) -> None:
    number = wire.job()
    wire.server.data(number, STDOUT, b"x" * 100)
    wire.opener.abandon(number)
    seen = wire.exchange()
    assert [frame.kind for frame in seen] == [Kind.STOP]
    assert not wire.server.channels and wire.server.pending == 0


@pytest.mark.parametrize("whole", [True, False])
def test_a_whole_body_counts_although_nobody_waits_any_more(wire: Wire, whole: bool) -> None:
    """It is sent before that is said; half a body is not."""
    number = wire.opener.open(Kind.REQUEST, {})
    wire.exchange()
    wire.opener.data(number, STDIN, b"x" * MAX_PAYLOAD)
    if whole:
        wire.opener.eof(number, STDIN)
    wire.opener.abandon(number)
    assert [frame.kind for frame in wire.exchange()] == [Kind.DATA, Kind.EOF, Kind.STOP][0 if whole else 2 :]
    assert not wire.opener.channels and not wire.server.channels and wire.opener.pending == 0


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Kind.DATA, 9, 0, 0, b"never opened"),
        Frame(Kind.DATA, 0, 0, 0, b"the link itself"),
        Frame(Kind.SPAWN, 2, 0, 0, b"{}"),
        Frame(Kind.HELLO, 0, 0, 0, b"{}"),
        Frame(Kind.EXIT, 2, LIFE, 0, b"{}"),
    ],
    ids=["unopened", "zero", "wrong parity", "second hello", "exit of nothing"],
)
def test_frames_out_of_place_end_the_link(wire: Wire, frame: Frame) -> None:
    with pytest.raises(ProtocolError):
        list(wire.server.receive(encode(frame)))


def test_a_channel_number_is_used_once(wire: Wire) -> None:
    number = wire.job()
    with pytest.raises(ProtocolError, match="not a new one"):
        list(wire.server.receive(encode(Frame(Kind.SPAWN, number, 0, 0, b"{}"))))


@pytest.mark.parametrize("hello", [{}, {"version": VERSION + 1}])
def test_another_version_is_refused(hello: dict[str, int]) -> None:
    session = Session(False, {})
    greeting = b"".join(Session(True, {}).pull(8))[:8]
    with pytest.raises(ProtocolError, match="version"):
        list(session.receive(greeting + encode(Frame(Kind.HELLO, 0, 0, 0, pack(hello)))))


def test_a_long_argv_travels_in_parts_and_too_long_a_one_is_refused(wire: Wire) -> None:
    long = {"argv": ["x" * 200_000], "id": "y"}
    wire.opener.open(Kind.SPAWN, long)
    (frame,) = wire.exchange()
    assert frame.body() == long
    with pytest.raises(ValueError, match="limit"):
        wire.opener.open(Kind.SPAWN, {"argv": ["x" * 5_000_000]})
    part = encode(Frame(Kind.SPAWN, 5, 1, 0, b"x" * MAX_PAYLOAD))
    with pytest.raises(ProtocolError, match="more than"):
        for _ in range(100):
            list(wire.server.receive(part))


@pytest.mark.parametrize("kind, number", [(Kind.SPAWN, 7), (Kind.REQUEST, 5)])
def test_the_parts_of_one_opening_are_not_those_of_another(wire: Wire, kind: int, number: int) -> None:
    first = Frame(Kind.SPAWN, 5, 1, 0, b'{"argv": ["rm", "-r"')
    with pytest.raises(ProtocolError, match=f"of channel {number} among the parts of channel 5"):
        list(wire.server.receive(encode(first) + encode(Frame(kind, number, 0, 0, b', "/"]}'))))


@pytest.mark.parametrize("kind", [Kind.HELLO, Kind.PING, Kind.SEEN, Kind.BYE])
def test_words_about_a_connection_are_not_for_a_session_that_has_one(wire: Wire, kind: int) -> None:
    with pytest.raises(ProtocolError, match="none is due"):
        list(wire.server.receive(encode(Frame(kind))))


def test_control_goes_first_and_streams_take_turns(wire: Wire) -> None:
    bulk, small = wire.job(), wire.job()
    for _ in range(4):
        wire.server.data(bulk, STDOUT, b"b" * MAX_PAYLOAD)
    wire.server.data(small, STDOUT, b"s")
    wire.server.tell(small, Kind.EXIT, EXITED)
    order = [(frame.kind, frame.channel) for frame in wire.exchange()]
    assert order == [
        (Kind.EXIT, small),
        (Kind.DATA, bulk),
        (Kind.DATA, small),
        (Kind.DATA, bulk),
        (Kind.DATA, bulk),
        (Kind.DATA, bulk),
    ]


def test_acknowledgements_are_merged(wire: Wire) -> None:
    number = wire.job()
    wire.server.data(number, STDOUT, b"x" * 30)
    wire.exchange()
    for offset in (10, 20, 30):
        wire.opener.ack(number, STDOUT, offset)
    assert [frame.offset for frame in wire.exchange()] == [30]


def test_small_data_that_waits_is_one_frame(wire: Wire) -> None:
    """A frame costs a queue more than its few bytes do, and a window counts bytes."""
    number = wire.job()
    for at in range(10_000):
        wire.server.data(number, STDOUT, b"%d" % (at % 10))
    wire.server.eof(number, STDOUT)
    seen = wire.exchange()
    assert b"".join(frame.payload for frame in seen) == b"0123456789" * 1000
    assert [frame.kind for frame in seen] == [Kind.DATA] * 3 + [Kind.EOF]


def test_nothing_is_no_data_and_the_same_stop_is_said_once(wire: Wire) -> None:
    number = wire.job()
    wire.server.data(number, STDOUT, b"")
    wire.opener.stop(number, STDOUT)
    wire.opener.stop(number, STDOUT)
    assert [frame.kind for frame in wire.exchange()] == [Kind.STOP]


@pytest.mark.parametrize("kind", [Kind.DATA, Kind.STOP], ids=["data without bytes", "second stop"])
def test_what_no_window_bounds_is_refused(wire: Wire, kind: int) -> None:
    number = wire.job()
    frames = encode(Frame(kind, number, STDIN if kind == Kind.DATA else STDOUT)) * 2
    with pytest.raises(ProtocolError, match=r"without bytes|second stop"):
        list(wire.server.receive(frames))


def test_who_asks_and_does_not_read_is_cut_off(wire: Wire) -> None:
    """Requests taken back count too: their replies still wait to be written."""
    with pytest.raises(ProtocolError, match="does not read"):
        for number in range(2, 10 * MAX_CONTROL, 2):
            asked = encode(Frame(Kind.REQUEST, number, payload=b"{}")) + encode(
                Frame(Kind.STOP, number, LIFE)
            )
            for frame in wire.opener.receive(asked):
                if frame.kind == Kind.REQUEST:
                    wire.opener.tell(number, Kind.REPLY, {"error": "no"})
    assert len(wire.opener._outbox.control) <= MAX_CONTROL + 2


def test_a_windows_growth_is_given_back_with_its_channel(wire: Wire) -> None:
    """Else a handful of bulk jobs would leave a long line slow for good."""
    number = wire.job()
    before = wire.server.spare
    wire.server.flow(number, STDOUT).window += 1000
    wire.server.spare -= 1000
    wire.opener.abandon(number)
    wire.exchange()
    assert wire.server.spare == before


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32))
def test_random_lawful_traffic_arrives_whole(seed: int) -> None:
    """Many jobs, many streams, random splits: every byte arrives once and in order, and nothing is left over."""
    rng = random.Random(seed)
    wire = Wire()
    jobs = [wire.job() for _ in range(rng.randint(1, 5))]
    sent: dict[tuple[int, int], bytearray] = {}
    got: dict[tuple[int, int], bytearray] = {}

    def carry() -> None:
        for frame in wire.exchange(rng):
            if frame.kind == Kind.DATA:
                got.setdefault((frame.channel, frame.stream), bytearray()).extend(frame.payload)
                end = wire.server if frame.stream == STDIN else wire.opener
                end.ack(frame.channel, frame.stream, len(got[frame.channel, frame.stream]))

    for _ in range(rng.randint(1, 40)):
        number, stream = rng.choice(jobs), rng.choice((STDIN, STDOUT, STDERR))
        end = wire.opener if stream == STDIN else wire.server
        data = rng.randbytes(min(rng.randint(0, 70_000), MAX_PAYLOAD, end.flow(number, stream).credit))
        end.data(number, stream, data)
        sent.setdefault((number, stream), bytearray()).extend(data)
        if rng.random() < 0.5:
            carry()
    carry()
    assert {key: bytes(value) for key, value in sent.items() if value} == {
        key: bytes(value) for key, value in got.items() if value
    }
    for number in jobs:
        wire.server.eof(number, STDOUT)
        wire.server.eof(number, STDERR)
        wire.server.tell(number, Kind.EXIT, EXITED)
    carry()
    for number in jobs:
        wire.opener.last_word(number)
    carry()
    assert not wire.opener.channels and not wire.server.channels and not wire.server.has_output


@settings(deadline=None)
@given(st.binary(max_size=600))
def test_garbage_on_a_live_link_is_a_protocol_error_or_nothing(data: bytes) -> None:
    wire = Wire()
    wire.job()
    try:
        list(wire.server.receive(data))
    except ProtocolError:
        pass


@settings(deadline=None)
@given(
    st.lists(
        st.builds(
            Frame,
            st.sampled_from(sorted(NAMES)),
            st.integers(0, 6),
            st.sampled_from([0, 1, 2, 3, LIFE]),
            st.integers(0, 40),
            st.binary(max_size=20),
        ),
        max_size=30,
    )
)
def test_hostile_frames_are_protocol_errors_or_nothing(frames: list[Frame]) -> None:
    wire = Wire()
    wire.job()
    request = wire.server.open(Kind.REQUEST, {"name": "x"})
    wire.exchange()
    assert request in wire.server.channels
    for end in (wire.server, wire.opener):
        try:
            for frame in frames:
                list(end.receive(encode(frame)))
        except ProtocolError:
            pass


def test_a_channel_too_many_is_refused_by_its_own_end(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other end would end the link for it, and with it every job."""
    monkeypatch.setattr(session, "MAX_CHANNELS", 3)
    requests = [
        wire.server.open(Kind.REQUEST, {}) for _ in range(3)
    ]  # of the other end: they count for it alone
    wire.exchange()
    jobs = [wire.job() for _ in range(3)]
    with pytest.raises(Refused, match="3 jobs and requests"):
        wire.opener.open(Kind.SPAWN, {"id": "x"})
    with pytest.raises(Refused):
        wire.server.open(Kind.REQUEST, {})
    wire.opener.abandon(jobs[0])
    wire.server.abandon(requests[0])
    again = wire.opener.open(Kind.SPAWN, {"id": "x"})
    wire.server.open(Kind.REQUEST, {})
    wire.exchange()
    assert again in wire.server.channels and len(wire.server.channels) == len(wire.opener.channels) == 6


def test_a_peer_that_opens_a_channel_too_many_is_none(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_CHANNELS", 3)
    for number in (1, 3, 5):
        assert list(wire.server.receive(encode(Frame(Kind.SPAWN, number, payload=b"{}"))))
    with pytest.raises(ProtocolError, match="too many channels"):
        list(wire.server.receive(encode(Frame(Kind.SPAWN, 7, payload=b"{}"))))


def test_a_channel_whose_last_word_waits_behind_its_data_counts_until_it_was_sent(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MAX_CHANNELS", 1)
    number = wire.opener.open(Kind.REQUEST, {})
    wire.exchange()
    wire.opener.data(number, STDIN, b"whole")
    wire.opener.eof(number, STDIN)
    wire.opener.abandon(number)
    with pytest.raises(Refused):
        wire.opener.open(Kind.REQUEST, {})
    wire.exchange()
    wire.opener.open(Kind.REQUEST, {})
    wire.exchange()
    assert len(wire.server.channels) == 1


def under_way(end: Session) -> int:
    """Bytes of bodies that the accepting end has asked and that were not acknowledged, counted anew."""
    asked = [channel for channel in end.channels.values() if channel.mine != end.opener]
    return sum(channel.flows[STDIN].offset - channel.flows[STDIN].acked for channel in asked)


def test_bodies_of_many_requests_have_one_bound(wire: Wire) -> None:
    """Each is within its window, and a receiver that takes nothing would have to hold them all."""
    payload = b"x" * MAX_PAYLOAD
    with pytest.raises(ProtocolError, match="bytes of requests at one time"):
        for _ in range(MOST_ASKED // MAX_PAYLOAD + 1):
            wire.server.data(wire.server.open(Kind.REQUEST, {}), STDIN, payload)
            wire.exchange()
    assert wire.opener.asked <= MOST_ASKED + MAX_PAYLOAD


def test_there_is_room_for_bodies_below_their_bound_and_none_at_it(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "ASKED", 100)
    number = wire.server.open(Kind.REQUEST, {})
    wire.exchange()
    for size, crowded in ((99, False), (1, True)):
        wire.server.data(number, STDIN, b"x" * size)
        wire.exchange()
        assert wire.opener.crowded(None) is crowded is wire.server.crowded(None)


def test_what_is_asked_is_counted_alike_at_both_ends(wire: Wire) -> None:
    rng = random.Random(7)
    numbers: list[int] = []
    for _ in range(2000):
        act = rng.randrange(6)
        if act == 0 or not numbers:
            numbers.append(wire.server.open(Kind.REQUEST, {}))
            wire.exchange()
            wire.opener.tell(numbers[-1], Kind.ATTACH, {})
        number = rng.choice(numbers)
        if act == 1:
            numbers.remove(number)
            wire.server.abandon(number)
        elif act in (2, 3):
            flow = wire.server.flow(number, STDIN)
            if size := rng.randint(0, min(MAX_PAYLOAD, flow.credit)):
                wire.server.data(number, STDIN, b"x" * size)
        elif act == 4 and number in wire.opener.channels:
            flow = wire.opener.flow(number, STDIN)
            wire.opener.ack(number, STDIN, rng.randint(flow.acked, flow.offset))
        wire.exchange()
        assert wire.server.asked == under_way(wire.server) == under_way(wire.opener) == wire.opener.asked
    assert wire.server.asked > 0
