"""Returns that are cut are asked for again after a pause, and a pause can be ended: by a batch that ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.fanout.timers import Timers
from quine.jobs import staged
from quine.jobs.staged import Bringing
from quine.staging import returns_receiver
from quine.staging.caller_side import Staging
from transport.client import client
from transport.spawn import Spawn
from transport.status import Status


class Course:
    """Returns whose first `cuts` tries are cut; `begun` are the times of the tries."""

    def __init__(self, cuts: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cuts, self.wanted, self.ended = 0.0, cuts, True, 0
        self.begun: list[float] = []
        self.limits: list[tuple[float, Any]] = []
        self.timers = Timers()
        self.sender: Any = None
        monkeypatch.setattr(staged, "time", SimpleNamespace(monotonic=lambda: self.now))
        taking = SimpleNamespace(place="", services=None, failure="", begin=lambda: None, close=lambda: None)
        taking.end, taking.note, taking.beaten = self._tried, lambda host: "", False
        taking.patience, taking.heard = 600.0, lambda: None
        stage = SimpleNamespace(
            tries=5, place="", taking=lambda: taking, sender=lambda *_: None, brought=lambda *_: None
        )
        self._taking = taking
        self.bringing = Bringing(self, stage, None, Status("exited", 0), self, self.timers.at, self._over)  # type: ignore[arg-type]
        self.bringing.begin()

    def start(self, sender: object, on_output: object, on_exit: Any, services: object) -> object:
        self.begun.append(self.now)
        self._exit = on_exit
        self.job = SimpleNamespace(
            over=False, overdue=False, pid=7, limit=lambda *limit: self.limits.append(limit)
        )
        return self.job

    def _tried(self, status: Status) -> None:
        self._taking.is_cut = len(self.begun) <= self.cuts and not self._taking.late

    def sent(self, job: object) -> None:
        self.sender = job

    def _over(self) -> None:
        self.ended += 1

    def cut(self) -> None:
        """The try that is under way ends."""
        self._exit(Status("lost", 74))

    def rest(self) -> None:
        """The time passes until the next try."""
        self.now = self.timers.due
        self.timers.tick(self.now)


def test_each_try_is_after_a_longer_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """An sshd that was started anew refused five tries in 0.4 s, and the results had to be fetched by --resume."""
    course = Course(9, monkeypatch)
    for _ in range(4):
        course.cut()
        assert course.sender is course.bringing and not course.bringing.over
        course.rest()
    assert course.begun == [0.0, 0.25, 0.75, 1.75, 3.75] and not course.ended
    course.cut()
    assert course.ended == 1 and not course.timers


def test_a_pause_that_is_abandoned_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(9, monkeypatch)
    course.cut()
    course.wanted = False
    course.sender.abandon()
    course.timers.tick(course.now)
    assert course.ended == 1
    course.rest()  # the end of the pause itself
    assert course.ended == 1 and course.begun == [0.0]


def test_one_that_is_left_to_the_next_process_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(9, monkeypatch)
    course.cut()
    course.sender.go_on()
    course.rest()
    assert course.bringing.over and not course.ended and course.begun == [0.0]


def test_a_host_that_says_nothing_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    course = Course(9, monkeypatch)
    taking = course.bringing._taking
    assert course.limits == [(taking.patience, taking.heard)]
    course.job.overdue = True
    course.cut()
    assert course.ended == 1 and course.begun == [0.0]


def test_a_host_that_did_not_begin_to_send_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had to be dialled, which took two minutes: its results were left there, as of one that is silent."""
    course = Course(9, monkeypatch)
    for _ in range(4):
        course.job.overdue, course.job.pid = True, 0
        course.cut()
        assert not course.ended
        course.rest()
    course.job.overdue, course.job.pid = True, 0
    course.cut()
    assert course.ended == 1 and len(course.begun) == 5


@pytest.mark.parametrize(("begins", "seconds"), [(None, 120), (0, 60), (110, 170)])
def test_a_host_that_has_to_be_dialled_has_time_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: float | None, seconds: int
) -> None:
    """Behind a deadline one that took 70 s was said to be silent, and its results were not asked for again."""
    now = [0.0]
    monkeypatch.setattr(returns_receiver, "time", SimpleNamespace(monotonic=lambda: now[0]))
    taking = Staging([], ["x"], str(tmp_path)).taking()
    taking.patience = 60.0
    monkeypatch.setattr(taking, "_in_turn", lambda incoming: None)

    def run(*_: object, left: Callable[[], float], **__: object) -> Status:
        while True:
            if now[0] == begins:
                taking.taken(object())  # type: ignore[arg-type]
            if left() < 0:
                return Status("lost", 74, detail="it was ended")
            now[0] += 1

    monkeypatch.setattr(client, "run", run)
    taking.bring(Spawn(["x"]), 2)
    assert (now[0], taking.late, taking.is_cut) == (seconds, begins is not None, begins is None)


def test_how_long_a_host_was_waited_for_is_said(tmp_path: Path) -> None:
    for late, text in ((True, "their host was silent for 640 s"), (False, "its host was silent for 120 s")):
        taking = Staging([], ["x"], str(tmp_path)).taking()
        taking.late = late
        taking.end(Status("lost", 74, detail="its host was silent for 120 s"))
        assert taking.failure == text and taking.is_cut is not late
