"""Decisions of a run, each by itself: about items that no host has, tries that follow, and hosts that are held back."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quine.fanout.files.files import Files
from quine.fanout.joblog import Entry
from quine.fanout.messages import Messages
from quine.fanout.options import Options
from quine.fanout.outcome import Hosts, Tally, kind_of
from quine.fanout.retries import Retries
from quine.fanout.run import Run
from quine.fanout.starter import Starter
from quine.fanout.tasks import Task
from quine.fanout.timers import Timers
from transport.status import Status


def a_task() -> Task:
    return Task(SimpleNamespace(number=1, slot=0), Entry(1, "hash"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("never", "state"), [(True, "unreachable"), (False, "lost")])
def test_an_item_of_a_stopped_batch_that_never_began_is_not_lost(never: bool, state: str) -> None:
    """A lost one is not run again by --resume, and this one would not be."""
    run, judged, may = object.__new__(Run), [], list[bool]()
    run.stopped = True
    run._starter = SimpleNamespace(give_names=lambda task, may_run: may.append(may_run))  # type: ignore[assignment]
    run._options = Options()
    run._judge = lambda task, status: judged.append(status)  # type: ignore[method-assign]
    task = a_task()
    task.job = SimpleNamespace(host="")  # type: ignore[assignment]
    run.missed(task, never)
    assert [status.state for status in judged] == [state] and task.unstarted == 0
    assert may == [not never]  # then it keeps its files


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("stopped", [True, False])
@pytest.mark.parametrize("cut", [True, False])
def test_an_item_that_a_silent_host_may_have_is_left_to_the_next_run(
    cut: bool, stopped: bool, idempotent: bool
) -> None:
    """It was lost for good after 30 s, and the next run did not ask the host any more."""
    run: Any = object.__new__(Run)
    did, said = list[object](), list[str]()
    run._starter = SimpleNamespace(give_names=lambda task, may_run: did.append(may_run))
    run._sink = SimpleNamespace(skip=did.append, say=said.append)
    run._messages, run.tally, run.stopped = Messages(run._sink, False), Tally(), stopped
    run._options, run._again = Options(idempotent=idempotent), SimpleNamespace(ready=[])
    run._judge = lambda task, status: did.append(status.state)
    task = a_task()
    task.job = SimpleNamespace(host="") if cut else None  # type: ignore[assignment]
    task.output = SimpleNamespace(leave=lambda: did.append("left"))  # type: ignore[assignment]
    run.missed(task, False, ["n2", "n3"])
    if idempotent and not stopped:
        assert did == [True, *["lost"] * cut] and run._again.ready == [task][cut:]
        return
    assert did == [True, 1, "left"] and not run._again.ready
    assert (run.tally.open, run.tally.ended, run.tally.exit_status(), run.tally.exit_status(True)) == (
        1,
        0,
        74,
        1,
    )
    run._messages.sum_up(run.tally.open)
    assert (
        "error: n2, n3 did not answer; 1 items" in said[0] and "hint: start them, then --resume;" in said[0]
    )


def test_a_lost_item_is_told_of_with_its_host_and_the_cure() -> None:
    said = list[str]()
    messages = Messages(SimpleNamespace(say=said.append), False)  # type: ignore[arg-type]
    messages.lost(1, "n2")
    messages.lost(2, "")
    messages.sum_up(0)
    why = "it was sent before the batch ended, and no host has it or its end any more"
    assert said == [
        f"quine: n2: error: item 1: {why}\nquine: n2: hint: --resume --idempotent runs it again\n",
        f"quine: error: item 2: {why}\n",
    ]


def test_a_job_that_was_looked_for_too_often_keeps_its_files() -> None:
    run: Any = object.__new__(Run)
    did: list[object] = []
    run._under_way = SimpleNamespace(give=lambda task: None)
    run._orphans = SimpleNamespace(sever=lambda task: False)
    run._starter = SimpleNamespace(give_names=lambda task, may_run: did.append(may_run))
    run._judge = lambda task, status: did.append(status.state)
    task = a_task()
    task.tries, task.job = 2, SimpleNamespace(severed=True, withdrawn=False)  # type: ignore[assignment]
    run._ended(task, Status("lost", 74, host="h1"))
    assert did == [True, "lost"]


def test_a_host_that_is_held_back_comes_behind_any_that_has_failed() -> None:
    given: list[list[str]] = []
    run: Any = object.__new__(Run)
    run._hosts, run._view = Hosts(), SimpleNamespace(loads=SimpleNamespace(avoid=["busy"]))
    run._starter = SimpleNamespace(start=lambda task, avoid, *_: given.append(avoid))
    run._under_way = SimpleNamespace(take=lambda task: None)
    task = a_task()
    task.failed_on = ["free", "free"]
    run._try(task)
    assert given[0].count("busy") > given[0].count("free") == 2


def test_the_next_try_of_an_adopted_item_is_a_start_of_its_own() -> None:
    options = SimpleNamespace(number=lambda *_: 1, spawn=SimpleNamespace(idempotent=True))
    retries = Retries(options, Timers())  # type: ignore[arg-type]
    task = a_task()
    task.adopted = object()  # type: ignore[assignment]
    assert retries.may(task, Status("lost", 74), "lost")
    retries.add(task, "h1", "lost")
    assert task.adopted is None and list(retries.ready) == [task]


@pytest.mark.parametrize("tries", [0, 1])
def test_an_item_that_waits_at_the_end_of_its_batch_has_the_end_that_it_had(tries: int) -> None:
    """Here for --cleanup: it is not sent, and was not killed."""
    starter: Any = object.__new__(Starter)
    starter.files = files = Files(None, None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
    given: list[list[str]] = []
    files._cleanup = SimpleNamespace(  # type: ignore[assignment]
        names=lambda task: ["f"], begin=lambda names: None, wait=lambda names, call: True, give=given.append
    )
    starter._report = SimpleNamespace(open=lambda task, sink: SimpleNamespace(size=7, drop=lambda: None))
    starter._work = SimpleNamespace(
        check=lambda task: None,
        open_stdin=lambda item: None,
        stage=lambda item: SimpleNamespace(sources=[], alone=[], varying=[], patterns=[]),
    )
    starter._sink, starter._journal, starter._batch = None, None, None
    task, ends = a_task(), []
    for _ in range(tries):
        task.begin()
        task.entry.started = 5.0
        task.ended(Status("exited", 3, host="h1"), "failed")

    def ended(task: Task, status: Status) -> None:
        task.ended(status, kind_of(status))
        ends.append(status.state)

    starter.start(task, [], None, ended)
    assert not ends
    task.end(lambda when, call: None, {})
    entry = task.entry
    assert given == [["f"]] and not files._held and not task.unsent
    assert ends == ["unreachable"] and not entry.stopped and not entry.signal
    if tries:
        assert (entry.kind, entry.code, entry.host, entry.attempt, entry.started) == (
            "failed",
            3,
            "h1",
            1,
            5.0,
        )
    else:
        assert entry.kind == "never started"
