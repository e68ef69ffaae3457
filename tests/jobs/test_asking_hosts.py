"""Many hosts asked at one time: each one's trouble is told as it is, and is nobody else's."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.inventory import load
from quine.base.cli_options import RunOptions
from quine.cli import visits
from quine.jobs import asking, remote
from quine.jobs.asking import Answer, ask
from quine.jobs.remote import Silent
from tests.lab import Lab
from tests.support.agents import PATIENCE, QUINE
from tests.support.detached import detach
from transport.client import batch
from transport.errors import Refused, Unreachable
from transport.status import Status


class Hosts:
    """A batch whose jobs behave as the names of their hosts say."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self.jobs)

    def start(self, host: str, **calls: Any) -> Any:
        self.jobs[host] = SimpleNamespace(abandon=lambda: self._end(host, Status("lost", 74)), **calls)
        return self.jobs[host]

    def _end(self, host: str, status: Status) -> None:
        self.jobs.pop(host).on_exit(status)

    def turn(self, seconds: float) -> None:
        for host, job in list(self.jobs.items()):
            if host == "refused":
                self._end(host, Status("unreachable", 69, detail="no node here", hint="start one"))
            elif host == "talks":
                job.on_output(1, memoryview(bytes(1 << 16)))
            elif host != "silent":
                job.on_output(1, memoryview(b"fine"))
                job.on_output(2, memoryview(b"a word"))
                self._end(host, Status("exited", 0, host=host))

    def close(self) -> None:
        self.jobs.clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Answer]]:
    """`ask` with such a batch."""
    monkeypatch.setattr(asking, "asking", lambda words, host, options: host)
    monkeypatch.setattr(batch, "Batch", Hosts)
    monkeypatch.setattr(asking.rendezvous, "connect", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(asking, "MOST", 1 << 20)
    monkeypatch.setattr(asking, "MORE", 0.1)
    return lambda *names, **more: ask(["ps"], list(names), RunOptions(), **more)


def test_what_each_host_does_is_told_as_it_is(asked: Callable[..., dict[str, Answer]]) -> None:
    answers = asked("refused", "talks", "good")
    assert {host: answer.status.detail for host, answer in answers.items()} == {
        "refused": "no node here",
        "talks": "an answer of more than 1 MiB",
        "good": "",
    }
    assert answers["good"] == Answer(Status("exited", 0, host="good"), b"fine", b"a word")
    assert (answers["talks"].status.code, answers["talks"].out) == (69, b"")


def test_only_a_host_that_is_silent_is_said_to_be_late(asked: Callable[..., dict[str, Answer]]) -> None:
    answers = asked("silent", "good", seconds=0.1)
    assert answers["silent"].status.detail.startswith("no answer within") and answers["good"].out == b"fine"


def test_an_answer_that_is_enough_does_not_wait_for_a_host_that_is_silent(
    asked: Callable[..., dict[str, Answer]],
) -> None:
    answers = asked("silent", "good", seconds=3600, enough=lambda host, out: (host, out) == ("good", b"fine"))
    assert answers["good"].out == b"fine" and answers["silent"].status.detail.startswith("no answer within")


def test_a_line_that_is_no_job_is_said_to_be_left_out(asked: Callable[..., dict[str, Answer]]) -> None:
    facts, silent = remote.listed(["good"], RunOptions())
    assert (facts, silent) == (
        [],
        [Silent("good", "its list of jobs has a malformed line, left out here", "")],
    )


def test_many_hosts_are_asked_by_few_descriptors(lab: Lab) -> None:
    names = [f"many{number}" for number in range(8)]
    for name in names:
        lab.by_command(name, "h1")
    few = ["sh", "-c", 'ulimit -S -n 20 && exec "$@"', "-", *QUINE, "ps", "--on", ",".join(names), "--json"]
    done = subprocess.run(
        few, env=lab.env, cwd=lab.directory, capture_output=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_defect_in_one_visit_leaves_the_others_their_results(tmp_path: Path) -> None:
    (tmp_path / "inventory.toml").write_text("[hosts.a]\n[hosts.b]\n[hosts.c]\n")
    known = load(tmp_path / "inventory.toml", {})

    async def call(host: Any, *_: object, **__: object) -> Any:
        if host.name == "a":
            raise KeyError("x")
        if host.name == "b":
            raise Unreachable("b", "it is away")
        return "visited"

    results = {
        host.name: result for host, result in visits.visit(list(known.hosts.values()), known, call, False)
    }
    assert results["c"] == "visited" and isinstance(results["b"], Unreachable)
    assert isinstance(results["a"], Refused) and results["a"].status == 70
    assert results["a"].detail == "a defect in quine: KeyError: 'x'"


@pytest.mark.parametrize("closed", ["<&- >&-", "<&- >&- 2>&-"])
def test_a_verb_about_another_host_with_closed_streams(lab: Lab, closed: str) -> None:
    """As cron and daemons start it: its connection must not get the number of a closed stream."""
    job = detach(lab, "--on", "h1", "--", "sleep", "8634")
    assert lab.sh(f"exec quine kill -USR1 --on h1 {job} {closed}").returncode == 0
    assert lab.sh(f"exec quine wait --on h1 {job} {closed}").returncode == 128 + signal.SIGUSR1
