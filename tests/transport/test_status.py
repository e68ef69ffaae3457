"""Statuses: as the kernel gives them, as the wire carries them, as a shell sees them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.status import SPARING, Status, signal_name, signal_number


@given(st.integers(0, 255))
def test_every_exit_code(code: int) -> None:
    status = Status.from_wait(code << 8, pid=3)
    assert (status.state, status.code, status.signal) == ("exited", code, None)
    assert Status.from_json(status.to_json()) == status


@pytest.mark.parametrize("number", sorted({*range(1, 65)} - {*SPARING}))
def test_every_signal_that_ends_a_process(number: int) -> None:
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
        {"state": "lost"},
        {"state": "lost", "code": 3},
        {"state": "unreachable"},
        {"state": "denied"},
        {"state": "lost", "code": 74, "signal": "TERM"},
        {"signal": "TERM"},
        {"state": "signaled"},
        {"state": "signaled", "code": 137, "signal": ""},
        *({"state": "signaled", "code": 128 + number, "signal": signal_name(number)} for number in SPARING),
        {"state": "signaled", "signal": "19"},
        {"left": "/etc\nquine: error: no"},
        {"left": "/" + "x" * 1001},
    ],
)
def test_what_is_no_status_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Status.from_json({**Status("exited", 0).to_json(), **change})


@pytest.mark.parametrize("code", [0, 1, 137, 255])
def test_the_code_of_a_death_by_signal_is_that_of_its_name(code: int) -> None:
    """Numbers differ between machines, and a host may say any."""
    status = Status.from_json({**Status("signaled", code).to_json(), "signal": "sigterm"})
    assert (status.state, status.code, status.signal) == ("signaled", 143, "TERM")


def test_an_exit_record_fits_the_start_of_its_job() -> None:
    for code in (126, 127):
        assert Status.of_exit(Status("exited", code).to_json(), started=False).code == code
    for status in (Status("exited", 0), Status("exited", 3), Status("signaled", 143, "TERM")):
        assert Status.of_exit(status.to_json(), started=True) == status
        with pytest.raises(ValueError, match="never started"):
            Status.of_exit(status.to_json(), started=False)
    for status in (Status("unreachable", 69), Status("denied", 77)):
        assert Status.of_exit(status.to_json(), started=False) == status
        with pytest.raises(ValueError, match="never started"):
            Status.of_exit(status.to_json(), started=True)
    for started in (False, True):
        assert Status.of_exit(Status("lost", 74).to_json(), started).state == "lost"


def dies_of(*names: str) -> int:
    """Return the status of a process that dies of these signals, one after the other, and then exits with 7."""
    program = "import sys; from transport.status import die_of; [die_of(name) for name in sys.argv[1:]]; sys.exit(7)"
    process = subprocess.Popen([sys.executable, "-c", program, *names])
    try:
        return process.wait(60)
    finally:
        process.kill()
        process.wait()


def test_a_process_dies_of_a_signal_or_goes_on() -> None:
    assert dies_of(*map(signal_name, SPARING)) == 7
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGRTMIN + 1):
        assert dies_of(signal_name(number)) == -number
    # It is the C library's: nobody can unblock it who was started with it blocked.
    assert dies_of("32") in (-32, 7)


@pytest.mark.parametrize("name", ["TERM", "SIGTERM", "term", "15"])
def test_names_of_signals(name: str) -> None:
    assert signal_number(name) == signal.SIGTERM
    assert signal_name(15) == "TERM"


@pytest.mark.parametrize("name", ["", "0", "65", "-1", "SIG_DFL", "BLOCK", "٣"])
def test_what_is_no_signal(name: str) -> None:
    with pytest.raises(ValueError):
        signal_number(name)
