"""Many hosts asked at one time: each one's trouble is told as it is, and is nobody else's."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.inventory import load
from quine.base.cli_options import RunOptions
from quine.cli import visits
from quine.jobs import remote
from quine.jobs.remote import Answer
from transport.errors import Refused, Unreachable
from transport.status import Status

Run = Callable[..., Status]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Answer]]:
    """`ask` with a client that behaves as each host's name says."""

    def run(host: str, _stdin: int, out: int, err: int) -> Status:
        if host == "defect":
            raise ZeroDivisionError("division by zero")
        if host == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if host == "leaves":
            sys.exit(3)
        if host == "refused":
            raise Refused("no node here", "start one")
        if host == "silent":
            signal.pause()
        if host == "talks":
            while True:
                os.write(out, bytes(1 << 16))
        os.write(out, b"fine")
        return Status("exited", 0, host=host)

    monkeypatch.setattr(remote, "_asking", lambda words, host, options: host)
    monkeypatch.setattr(remote.client, "run", run)
    monkeypatch.setattr(remote.rendezvous, "connect", lambda: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(remote, "MOST", 1 << 20)
    return lambda *names, **more: remote.ask(["ps"], list(names), RunOptions(), **more)


def test_each_failure_of_an_asking_process_is_told_as_it_is(asked: Callable[..., dict[str, Answer]]) -> None:
    answers = asked("defect", "killed", "leaves", "refused", "talks", "good")
    told = {host: answer.status.detail for host, answer in answers.items()}
    assert told == {
        "defect": "a defect in quine: ZeroDivisionError: division by zero",
        "killed": "the process that asked ended: signal KILL",
        "leaves": "the process that asked ended: status 70",
        "refused": "no node here",
        "talks": "an answer of more than 1 MiB",
        "good": "",
    }
    assert answers["good"] == Answer(Status("exited", 0, host="good"), b"fine", b"")
    assert answers["defect"].status.code == 70


@pytest.mark.clock  # half a second is enough for a fork to answer
def test_only_a_host_that_is_silent_is_said_to_be_late(asked: Callable[..., dict[str, Answer]]) -> None:
    answers = asked("silent", "good", seconds=0.5)
    assert answers["silent"].status.detail.startswith("no answer within") and answers["good"].out == b"fine"


def test_an_answer_that_is_enough_does_not_wait_for_a_host_that_is_silent(
    asked: Callable[..., dict[str, Answer]],
) -> None:
    answers = asked("silent", "good", seconds=3600, enough=lambda host, out: (host, out) == ("good", b"fine"))
    assert answers["good"].out == b"fine" and answers["silent"].status.detail.startswith("no answer within")


def test_a_machine_without_descriptors_asks_as_many_as_it_can(
    asked: Callable[..., dict[str, Answer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, left = os.pipe, [4]

    def scarce() -> tuple[int, int]:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return pipe()

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "pipe", scarce)
    answers = asked("good", "none")
    assert answers["good"].out == b"fine"
    assert answers["none"].status.detail == "no process of this machine can ask: too many open files"
    assert os.listdir("/proc/self/fd") == before


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
