"""`quine run --deadline`: TERM when the time is over, KILL later, exit status 124; here, on a host, detached."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.support.agents import left
from transport.errors import ProtocolError
from transport.job.deadline import NEVER, PAUSE, Deadline
from transport.spawn import Spawn
from transport.status import Status

WHERE = pytest.mark.parametrize("where", [[], ["--on", "local"], ["--on", "h1"]], ids=["here", "local", "h1"])


@pytest.mark.clock  # half a second is enough for a shell to speak
@WHERE
def test_a_command_that_takes_too_long_is_ended(lab: Lab, tmp_path: Path, where: list[str]) -> None:
    """Its output so far is there, and it may write more when it gets TERM, as may its children."""
    script = "trap 'echo last; exit 3' TERM; echo first; sleep 71412 & wait"
    report = ["--report", str(tmp_path / "r")]
    done = lab.run(["run", "--deadline", "0.5", *report, *where, "--", "sh", "-c", script])
    assert (done.returncode, done.stdout) == (124, b"first\nlast\n")
    prefix = "quine: h1: error" if "h1" in where else "quine: error"
    assert done.stderr == f"{prefix}: it was ended after 0.5 s (--deadline)\n".encode()
    told = json.loads((tmp_path / "r").read_text())
    assert (told["state"], told["code"], told["signal"]) == ("exited", 124, None)
    assert not left("sleep", "71412")


@WHERE
def test_a_command_in_time_is_as_without(lab: Lab, where: list[str]) -> None:
    for script, code in (("cat; exit 7", 7), ("kill -9 $$", -9)):
        done = lab.run(["run", "--deadline", "600", *where, "--", "sh", "-c", script], input="x")
        assert (done.returncode, done.stdout, done.stderr) == (code, b"x" * (code == 7), b"")


@pytest.mark.long
def test_a_command_that_ignores_term_is_killed(lab: Lab) -> None:
    done = lab.run(["run", "--deadline", "0.5", "--on", "h1", "--", "sh", "-c", "trap '' TERM; sleep 71413"])
    assert done.returncode == 124
    assert not left("sleep", "71413")


@pytest.mark.clock  # a second is
@pytest.mark.parametrize("where", [[], ["--on", "h1"]], ids=["here", "h1"])
def test_a_detached_command(lab: Lab, where: list[str]) -> None:
    words = ["run", "--detach", "--deadline", "1", *where, "--", "sh", "-c", "echo out; sleep 71414"]
    job = lab.run(words, check=True).stdout.decode().strip()
    done = lab.run(["wait", *where, job])
    assert done.returncode == 124
    assert lab.run(["logs", *where, job]).stdout == b"out\n"
    assert not left("sleep", "71414")


def test_a_bad_time(lab: Lab) -> None:
    for value in ("soon", "-1", "nan", "1e99"):
        for more in ([], ["--detach"]):
            done = lab.run(["run", f"--deadline={value}", *more, "--", "true"])
            assert done.returncode == 2, (value, more)
            assert f"--deadline must be a number of seconds, not '{value}'".encode() in done.stderr


def test_no_time_is_no_limit(lab: Lab) -> None:
    for value in ("0", "5m"):
        assert lab.run(["run", "--deadline", value, "--", "true"]).returncode == 0


def test_signals_of_a_deadline() -> None:
    killed = Status("signaled", 143, "TERM", pid=7)
    one = Deadline(10, 100.0)
    assert [one.tick(109.9), one.of(killed), one.due] == [0, killed, 110.0]
    assert [one.tick(110.0), one.due, one.tick(110.1)] == [signal.SIGTERM, 110.0 + PAUSE, 0]
    assert [one.tick(110.0 + PAUSE), one.due, one.tick(1e9)] == [signal.SIGKILL, NEVER, 0]
    assert (one.of(killed).state, one.of(killed).code, one.of(killed).pid) == ("exited", 124, 7)
    lost = Status("lost", 74)
    assert one.of(lost) is lost
    assert Deadline(0, 100.0).due == NEVER


@pytest.mark.parametrize("value", [-1, 1e10, "1", None])
def test_a_spawn_with_a_bad_deadline(value: object) -> None:
    with pytest.raises(ProtocolError):
        Spawn.from_json({**Spawn(["true"]).to_json(), "deadline": value})
