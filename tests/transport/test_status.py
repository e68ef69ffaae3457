"""Statuses: as the kernel gives them, as the wire carries them, as a shell sees them."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.status import Status, signal_name, signal_number


@given(st.integers(0, 255))
def test_every_exit_code(code: int) -> None:
    status = Status.from_wait(code << 8, pid=3)
    assert (status.state, status.code, status.signal) == ("exited", code, None)
    assert Status.from_json(status.to_json()) == status


@pytest.mark.parametrize("number", range(1, 65))
def test_every_signal(number: int) -> None:
    status = Status.from_wait(number)
    assert (status.state, status.code) == ("signaled", 128 + number)
    assert status.signal is not None and signal_number(status.signal) == number
    assert Status.from_json(status.to_json()) == status


def test_names_of_signals_are_those_of_the_standard_library() -> None:
    for number in signal.valid_signals():
        known = number in list(signal.Signals)
        assert signal_name(number) == (
            signal.Signals(number).name.removeprefix("SIG") if known else str(number)
        )
    for name, one in signal.Signals.__members__.items():
        assert signal_number(name) == one


@pytest.mark.parametrize(
    "change",
    [
        {"state": "fine"},
        {"code": 256},
        {"code": True},
        {"code": "0"},
        {"signal": 9},
        {"detail": None},
        {"rusage": []},
        {"pid": "1"},
        {"extra": 1},
        {"state": "signaled", "signal": "NOPE"},
        {"detail": {}},
        {"host": []},
    ],
)
def test_what_is_no_status_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Status.from_json({**Status("exited", 0).to_json(), **change})


@pytest.mark.parametrize("name", ["TERM", "SIGTERM", "term", "15"])
def test_names_of_signals(name: str) -> None:
    assert signal_number(name) == signal.SIGTERM
    assert signal_name(15) == "TERM"


@pytest.mark.parametrize("name", ["", "0", "65", "-1", "SIG_DFL", "BLOCK", "٣"])
def test_what_is_no_signal(name: str) -> None:
    with pytest.raises(ValueError):
        signal_number(name)
