"""The account of a stream: nothing is taken twice, nothing beyond what was sent, nothing beyond the window."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.errors import ProtocolError
from transport.wire.flow import ACK_QUANTUM, INITIAL_WINDOW, MAX_VAIN, MAX_WINDOW, Flow
from transport.wire.frames import BULK, CHUNK


@given(st.lists(st.tuples(st.sampled_from(["data", "ack"]), st.integers(0, 70_000)), max_size=60))
def test_a_lawful_sender_and_receiver_agree(steps: list[tuple[str, int]]) -> None:
    sender, receiver = Flow(), Flow()
    for what, size in steps:
        if what == "data":
            length = min(size, sender.credit)
            receiver.data(sender.offset, length)
            sender.data(sender.offset, length)
        else:
            taken = min(receiver.offset, receiver.acked + size)
            receiver.ack(taken)
            sender.ack(taken)
        assert (sender.offset, sender.acked) == (receiver.offset, receiver.acked)
        assert 0 <= sender.offset - sender.acked <= INITIAL_WINDOW


@pytest.mark.parametrize(
    ("offset", "length"),
    [(1, 1), (11, 5), (9, 1), (10, MAX_WINDOW + 1)],
    ids=["repeated", "hole", "overlap", "flood"],
)
def test_unlawful_data(offset: int, length: int) -> None:
    flow = Flow()
    flow.data(0, 10)
    with pytest.raises(ProtocolError):
        flow.data(offset, length)


@pytest.mark.parametrize("offset", [4, 11])
def test_unlawful_acknowledgement(offset: int) -> None:
    flow = Flow()
    flow.data(0, 10)
    flow.ack(5)
    with pytest.raises(ProtocolError):
        flow.ack(offset)


def test_acknowledgements_of_nothing_new_have_a_bound() -> None:
    flow = Flow()
    flow.data(0, 2)
    for offset in (0, 1, 2):
        for _ in range(MAX_VAIN):
            flow.ack(offset)
    with pytest.raises(ProtocolError, match="a flood of acknowledgements"):
        for _ in range(2):
            flow.ack(2)


def test_nothing_after_the_end() -> None:
    flow = Flow()
    flow.data(0, 3)
    with pytest.raises(ProtocolError):
        flow.eof(2)
    flow.eof(3)
    assert flow.credit == 0
    for late in (lambda: flow.data(3, 1), lambda: flow.eof(3)):
        with pytest.raises(ProtocolError):
            late()
    flow.ack(3)


def test_a_stopped_stream_may_run_out_but_gets_no_credit() -> None:
    flow = Flow()
    flow.stop()
    assert flow.credit == 0
    flow.data(0, MAX_WINDOW)  # in flight when nobody listened any more: dropped, not a violation
    with pytest.raises(ProtocolError, match="more data than the window allows"):
        flow.data(MAX_WINDOW, 1)  # no window was ever so large


def _rounds(
    flow: Flow, trip: float, rounds: int, rate: float = float("inf"), spare: int = MAX_WINDOW
) -> None:
    """Send windows full; each comes back after `trip`, or after what `rate` bytes/s needs."""
    now = 0.0
    for _ in range(rounds):
        flow.data(flow.offset, min(65536, flow.credit))
        flow.measure_sent(now)
        flow.data(flow.offset, flow.credit)
        flow.measure_sent(now)
        now += max(trip, flow.window / rate)
        flow.ack(flow.offset)
        spare -= flow.measure_acked(now, spare)


def test_a_long_line_grows_the_window() -> None:
    flow = Flow()
    _rounds(flow, trip=0.1, rounds=8)
    assert flow.window == MAX_WINDOW


def test_a_slow_reader_does_not() -> None:
    flow = Flow()
    _rounds(flow, trip=0.001, rounds=1)
    before = flow.window
    _rounds(flow, trip=0.001, rounds=20, rate=1e6)
    assert flow.window == before


def test_growth_has_a_budget() -> None:
    flow = Flow()
    _rounds(flow, trip=0.1, rounds=8, spare=100)
    assert flow.window == INITIAL_WINDOW + 100


@pytest.mark.parametrize("peak", [1, INITIAL_WINDOW, 4 * ACK_QUANTUM, MAX_WINDOW])
def test_small_frames_are_acknowledged_together_and_before_the_window_is_full(peak: int) -> None:
    """One acknowledgement for each frame costs a tenth of the speed; one at a full window stops the sender."""
    flow = Flow()
    flow.data(0, peak)
    enough = min(ACK_QUANTUM, max(peak, INITIAL_WINDOW) // 2)
    assert not flow.worth(enough - 1)
    assert flow.worth(enough)
    flow.ack(min(enough, peak))
    assert not flow.worth(flow.acked + enough - 1)


def test_a_round_that_a_loan_is_in_is_not_measured() -> None:
    flow = Flow()
    flow.data(0, INITIAL_WINDOW)
    flow.measure_sent(0.0)
    flow.lend("ours")
    flow.returned("ours", 0, INITIAL_WINDOW, 0)
    assert flow.measure_acked(0.001) == 0
    assert flow.window == INITIAL_WINDOW


def test_a_stream_that_has_ended_is_not_lent() -> None:
    flow = Flow()
    flow.eof(0)
    flow.lend("theirs")
    assert not flow.lent


def test_the_next_sender_has_the_window_that_the_receiver_goes_by() -> None:
    flow = Flow()
    flow.data(0, 4 * INITIAL_WINDOW)
    flow.ack(4 * INITIAL_WINDOW)
    assert flow.take_over() == 3 * INITIAL_WINDOW
    assert flow.credit == 4 * INITIAL_WINDOW
    assert flow.take_over() == 0


def test_frames_grow_with_a_large_window_and_never_beyond_the_credit() -> None:
    flow = Flow()
    assert flow.piece == CHUNK
    for window, piece in ((CHUNK * 4, CHUNK), (600_000, 150_000), (MAX_WINDOW, BULK)):
        flow.window = window
        assert flow.piece == piece
    flow.data(0, MAX_WINDOW - 10)
    assert flow.piece == flow.credit == 10
    flow.eof(MAX_WINDOW - 10)
    assert flow.piece == 0
