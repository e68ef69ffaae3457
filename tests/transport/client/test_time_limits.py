"""Jobs that their hosts have to end in time, and questions of a batch to a host that says nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from quine.fanout.journal import Sent
from quine.jobs import adoption
from tests.transport.client.test_batch_core import Node
from transport.client import answer
from transport.client.batch_job import BatchJob, Functions
from transport.client.time_limits import LOOK, START
from transport.spawn import Spawn
from transport.status import Status


class Clocked(Node):
    """A node and a core, whose clock runs by looks. It is the Batch of its jobs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[BatchJob] = []
        self.core.now = 1000.0

    def start_job(self, spawn: Spawn, on_output: Any = None, on_exit: Any = None, on_note: Any = None) -> Any:
        self.jobs.append(self.core.add(spawn, b"", Functions(None, on_output, on_note, on_exit), {}))
        return self.jobs[-1]

    @property
    def batch(self) -> Any:
        return SimpleNamespace(start=self.start_job)

    def wait(self, seconds: float, each: Callable[[], object] = lambda: None) -> Clocked:
        until = self.core.now + seconds
        while self.core.now < until:
            self.core.now += LOOK
            each()
            self.carry()
        return self


def test_a_job_that_its_host_does_not_end_is_abandoned() -> None:
    node = Clocked()
    job = node.add(control=True)
    job.limit(30.0)
    node.carry().wait(START - 2).start(job).wait(29)
    assert not job.over
    node.wait(4)
    assert job.overdue and (status := node.status(job)) and status.state == "lost"
    assert status.detail.startswith("its host was silent for 30 s; not waited for any longer; pid 7")
    assert [gone.spawn["id"] for gone in node.gone] == [job.spawn.id], "its node is to end it"
    assert node.core.due is None


def test_nor_does_it_wait_for_a_host_that_does_not_start_one() -> None:
    node = Clocked()
    job = node.add(control=True)
    job.limit(1.0)
    node.carry().wait(START + 2)
    assert job.overdue and (status := node.status(job)) and status.state == "lost"


def test_what_is_heard_begins_the_time_anew_and_a_stop_of_this_process_takes_none() -> None:
    node, came = Clocked(), [0]
    job = node.add(control=True)
    job.limit(30.0, lambda: came[0])
    node.carry().start(job).wait(20)
    came[0] = 1
    node.wait(20)
    node.core.now += 1000.0
    node.carry().wait(4)
    assert not job.over
    node.wait(10)
    assert job.overdue


def test_a_job_that_ends_in_time_is_not_looked_at_any_more() -> None:
    node = Clocked()
    job = node.add(control=True)
    job.limit(30.0)
    node.carry().start(job).exit(job).wait(2)
    assert node.core.due is None and not job.overdue


@pytest.mark.parametrize("stream", [1, 2])
def test_both_streams_of_an_answer_have_one_bound(stream: int) -> None:
    node, answers = Clocked(), list[Any]()
    answer.ask(node.batch, Spawn(["x"]), 5, lambda status, told: answers.append((status.state, told)), 30.0)
    job = node.jobs[0]
    node.carry().start(job)
    node.session.data(node.of(job).number, stream, b"123")
    node.session.data(node.of(job).number, 2, b"45")
    node.carry()
    assert not answers
    node.session.data(node.of(job).number, stream, b"6")
    node.carry()
    assert answers == [("lost", None)]


def test_a_host_that_does_not_say_which_jobs_it_has_is_waited_for_in_vain_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others have answered, and their jobs were neither lost nor run as long as it said nothing."""
    node, missed = Clocked(), list[tuple[str, bool]]()
    monkeypatch.setattr(adoption, "time", SimpleNamespace(monotonic=lambda: node.core.now))
    adoption.Search(
        node.batch, ["h1", "evil"], lambda host: Spawn(["node"], where=host, context={"control": True}),
        lambda at, call: None, {"a": Sent("h", 1, 1.0)}, lambda id, host: None,
        lambda id, never, silent: missed.append((id, never)), lambda: None,
    )  # fmt: skip
    good, evil = node.carry().jobs
    node.start(good).print(good, b'{"kept":{"ids":[],"remembers":1e9,"forgot":false,"settling":false}}')
    node.exit(good, Status("exited", 0)).start(evil).wait(adoption.PATIENCE - 2)
    assert not missed
    node.wait(5)
    assert missed == [("a", False)]
