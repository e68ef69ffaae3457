"""The time that each job of a batch may take. Without a job and without a clock."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from quine.fanout.progress import Median
from quine.fanout.timers import Timeout


def test_a_timeout_in_shares_needs_a_median() -> None:
    class Task:
        began = 5.0

    median = Median()
    timeout = Timeout(0.0, 2.0, median)
    timeout.started(Task())  # type: ignore[arg-type]
    assert timeout.due == float("inf")
    for time in (1.0, 2.0, 3.0):
        median.add(time)
    assert timeout.due == 9.0 and not list(timeout.late(8.9))
    assert len(list(timeout.late(9.0))) == 1 and timeout.due == float("inf")


class Started:
    """A task that counts how often its start is looked at."""

    def __init__(self, began: float) -> None:
        self._began, self.looks = began, 0

    @property
    def began(self) -> float:
        self.looks += 1
        return self._began


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("start"), st.integers(0, 9)), st.tuples(st.just("end"), st.integers(0, 99))
        )
    )
)
def test_tasks_run_out_of_time_in_the_order_of_their_starts(steps: list[tuple[str, int]]) -> None:
    """Of those that began at one time the first is the one that was heard of first."""
    timeout: Any = Timeout(1.0, 0.0, Median())
    running: list[Started] = []
    for step, number in steps:
        if step == "start":
            running.append(Started(number))
            timeout.started(running[-1])
        elif running:
            timeout.ended(running.pop(number % len(running)))
        assert timeout.due == min((task.began + 1 for task in running), default=float("inf"))
    early = [task for task in running if task.began <= 5]
    assert list(timeout.late(6.0)) == sorted(early, key=lambda task: task.began)
    assert list(timeout.late(10.0)) == sorted(
        set(running) - set(early), key=lambda task: (task.began, running.index(task))
    )
    assert timeout.due == float("inf")


def test_a_job_that_is_adopted_costs_no_look_at_all_others() -> None:
    timeout: Any = Timeout(1.0, 0.0, Median())
    tasks = [Started(-number) for number in range(1000)]
    for task in tasks:
        timeout.started(task)
    assert max(task.looks for task in tasks) <= 2
    assert list(timeout.late(2.0)) == tasks[::-1]
