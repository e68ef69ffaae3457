"""A verb on a job of a host, which runs over there: its own end is not the end of the job."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.cli_options import RunOptions
from quine.base.sessions import new_session
from quine.cli import job_verbs
from quine.jobs import asking, remote
from quine.jobs.remote import Remote
from transport import status as status_module
from transport.client import batch, client
from transport.errors import NothingThere, Refused
from transport.node import rendezvous
from transport.spawn import Spawn
from transport.status import Status
from transport.writes import write_all

JOB = Remote("h1", new_session())
LOST = Status("lost", 74, pid=5, detail="the command was started (pid 5), its outcome is not known")
KILLED = Status("signaled", 137, "KILL", pid=5)
DOWN = Status("unreachable", 69, detail="connection refused", hint="see to it")
GOES_ON = f"{JOB.id} goes on, as far as is known"


class Host:
    """A batch of one verb, and a clock. `ends` are the ends of the verbs; None: it has none, since its link is cut."""

    def __init__(self, ends: list[Status | None]) -> None:
        self.now = 1000.0
        self.asked: list[list[str]] = []
        self.pauses: list[float] = []
        self.says = b""
        self.begins = True
        self.silent = False
        self._ends = ends
        self._verbs: list[Any] = []

    def __call__(self) -> Host:
        return self

    def __len__(self) -> int:
        return len(self._verbs)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def start(self, spawn: Spawn, **calls: Any) -> Any:
        self.asked.append(spawn.argv)
        self._verbs.append(SimpleNamespace(**calls))
        return self._verbs[-1]

    def turn(self, seconds: float) -> None:
        (verb,) = self._verbs
        if self.begins:
            verb.on_started(5, "h1")
        end = self._ends[0] if len(self._ends) == 1 else self._ends.pop(0)
        if end is None:
            self.now += seconds
            if not self.silent:
                verb.on_note({"up": False})
            return
        self._verbs.clear()
        verb.on_output(2, memoryview(self.says))
        verb.on_exit(Status.from_json(end.to_json()))

    def close(self) -> None:
        self._verbs.clear()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    def made(*ends: Status | None) -> Host:
        one = Host(list(ends))
        monkeypatch.setattr(batch, "Batch", one)
        for module in (asking, remote):
            monkeypatch.setattr(module, "time", one)
        monkeypatch.setattr(rendezvous, "connect", lambda: SimpleNamespace(close=lambda: None))
        return one

    return made


def test_a_wait_whose_link_was_lost_asks_again(host: Callable[..., Host]) -> None:
    """The verb over there is lost, not the job."""
    there = host(LOST, Status("exited", 7))
    status = remote.wait(JOB, RunOptions(), float("inf"))
    assert (status.state, status.code) == ("exited", 7)
    assert there.asked == [["wait", JOB.id]] * 2


def test_a_verb_whose_link_was_lost_says_nothing_of_the_job(
    host: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    host(LOST)
    assert remote.call(["kill", "-s", "TERM"], JOB, RunOptions()) == 74
    said = capfd.readouterr().err
    assert GOES_ON in said and f"quine wait --on h1 {JOB.id}" in said
    assert "pid 5" not in said


@pytest.mark.parametrize("begins", [True, False])
def test_a_timeout_holds_while_the_link_is_down(host: Callable[..., Host], begins: bool) -> None:
    there = host(None)
    there.begins = begins
    status = remote.wait(JOB, RunOptions(), there.now + 20)
    assert (status.state, status.code) == ("exited", 124)
    assert 1020 <= there.now <= 1020 + remote.GRACE
    assert there.asked == [["wait", "--timeout=20.0", JOB.id]]


def test_a_host_that_is_dialled_has_time_to_answer(host: Callable[..., Host]) -> None:
    """`--timeout=0` asks whether it has ended."""
    there = host(Status("exited", 7))
    there.now += 5
    assert remote.wait(JOB, RunOptions(), 1000).code == 7


def test_a_timeout_holds_also_where_the_job_is_looked_for_over_a_silent_link(
    host: Callable[..., Host],
) -> None:
    """Its host has the time of one dial in all."""
    there, options = host(None), RunOptions(timeout="2")
    there.begins, there.silent = False, True
    facts, silent = remote.listed(["h1"], options, JOB.id)
    assert (facts, [one.host for one in silent], there.now) == ([], ["h1"], 1000 + remote.FIRST)
    assert remote.wait(JOB, options, 1002).code == 124
    assert there.now == 1000 + remote.FIRST + remote.GRACE


def test_a_timeout_holds_between_two_cuts(host: Callable[..., Host]) -> None:
    there = host(LOST)
    status = remote.wait(JOB, RunOptions(), there.now + 2)
    assert (status.code, there.now) == (124, 1002)


def test_a_host_that_is_down_after_a_cut_has_not_ended_the_job(
    host: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    host(LOST, DOWN)
    status = remote.wait(JOB, RunOptions(), float("inf"))
    assert (status.state, status.code) == ("lost", 74)
    assert f"it cannot be reached any more: connection refused; {GOES_ON}" in capfd.readouterr().err


def test_a_node_here_that_cannot_be_had_after_a_cut_has_not_ended_the_job(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    there = host(LOST)

    def refused() -> Any:
        if there.asked:
            raise Refused("no node here")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(rendezvous, "connect", refused)
    assert remote.wait(JOB, RunOptions(), float("inf")).code == 74
    assert f"no node here; {GOES_ON}" in capfd.readouterr().err


def test_a_host_that_is_down_from_the_beginning_is_told_as_it_is(
    host: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    host(DOWN)
    assert remote.wait(JOB, RunOptions(), float("inf")).code == 69
    assert capfd.readouterr().err == "quine: h1: error: connection refused\nquine: h1: hint: see to it\n"
    host(LOST, Status("unreachable", 69, detail=NothingThere.DETAIL))
    assert remote.wait(JOB, RunOptions(), float("inf")).code == 2


def test_a_host_that_cuts_each_answer_is_not_asked_for_ever(host: Callable[..., Host]) -> None:
    there = host(LOST)
    assert remote.wait(JOB, RunOptions(), float("inf")).code == 74
    assert len(there.asked) == remote.ROUNDS and there.pauses[-1] == remote.LONGEST_PAUSE
    assert there.pauses == sorted(there.pauses)


def test_a_verb_that_was_killed_over_there_does_not_kill_this_one(
    host: Callable[..., Host], capfd: pytest.CaptureFixture[str]
) -> None:
    """As by a host that runs out of memory. The job goes on."""
    there = host(KILLED, Status("exited", 7))
    assert remote.wait(JOB, RunOptions(), float("inf")).code == 7 and len(there.asked) == 2
    host(KILLED)
    assert remote.call(["kill", "-s", "TERM"], JOB, RunOptions()) == 74
    assert f"its quine was killed by KILL; {GOES_ON}" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("verb", "answer", "here", "told"),
    [
        ("attach", 124, False, 74),  # the job runs
        ("attach", 137, False, 137),  # the attach died as the job did
        ("logs", 137, False, 74),
        ("logs", 124, True, 137),  # the signal was sent to this process
    ],
)
def test_a_proxy_dies_of_its_own_signals_and_the_job_s(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, verb: str, answer: int, here: bool, told: int
) -> None:
    killed = Status.from_json(KILLED.to_json())
    killed.here = here
    died: list[str] = []
    monkeypatch.setattr(client, "run", lambda spawn, **_: killed)
    monkeypatch.setattr(status_module, "die_of", died.append)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    there = host(Status("exited", answer))
    assert remote.show([verb], JOB, RunOptions()) == told
    assert died == ["KILL"] * (told == 137)
    assert there.asked == [["wait", "--timeout=0", JOB.id]] * (verb == "attach")


@pytest.mark.parametrize(("verb", "code"), [("logs", 141), ("attach", 141), ("attach", 4)])
def test_a_stream_that_fails_here_is_no_lost_link(
    host: Callable[..., Host],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    verb: str,
    code: int,
) -> None:
    """The attach over there may have written all before it hears of that, and ends as its job then."""
    failed = Status("signaled", 141, "PIPE") if code == 141 else Status("exited", code)
    failed.stream_failed("write stdout", "No space left on device")
    monkeypatch.setattr(client, "run", lambda spawn, **_: failed)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    assert remote.show([verb], JOB, RunOptions()) == 74
    assert capfd.readouterr().err == "quine: error: cannot write stdout: no space left on device\n"


@pytest.mark.parametrize(("device", "told"), [("/dev/full", 74), ("/dev/null", 0)])
def test_a_wait_whose_stderr_fails_does_not_ask_again(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, device: str, told: int
) -> None:
    there = host(Status("exited", 0))
    there.says = b"a word\n"
    fd = os.open(device, os.O_WRONLY)
    monkeypatch.setattr(remote, "write_all", lambda stream, data: write_all(fd, data))
    try:
        assert remote.wait(JOB, RunOptions(), float("inf")).code == told
    finally:
        os.close(fd)
    assert len(there.asked) == 1


@pytest.mark.parametrize(("end", "brought"), [(DOWN, []), (Status("exited", 69), [69])])
def test_only_an_answer_of_the_host_ends_the_job(
    host: Callable[..., Host], monkeypatch: pytest.MonkeyPatch, end: Status, brought: list[int]
) -> None:
    """The results of a job that may run are left there: nothing is said of how it ended."""
    there = host(end)
    codes: list[int] = []

    def bring(job: Any, code: int) -> int:
        codes.append(code)
        return code

    monkeypatch.setattr(job_verbs, "_bringer", lambda agents, options: bring)
    assert job_verbs._wait([JOB], (), RunOptions(), 0.0) == 69
    assert codes == brought and len(there.asked) == 1
