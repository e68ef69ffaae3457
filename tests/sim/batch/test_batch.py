"""A batch in a simulation: hundreds of seeds keep every rule, and a mutation of the fan-out is noticed."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.batch import judge
from tests.sim.batch.course import ALIKE, AMONG, APART, BATCH, IN_PLACE, Course, draw
from tests.sim.batch.mutations import MUTATIONS, RARE
from tests.sim.batch.simulation import BATCHES, simulate
from tests.sim.marks import by_seeds
from tests.sim.run import report, run_seeds
from tests.sim.scenario import ORIGIN, Fault, Job

SEEDS, LONG, SHORT = 1000, 400, 25  # before a release, in `make test-more`, and in `make test`
PART = 25  # of one test, so that workers share them
MANY = int(os.environ.get("QUINE_TEST_SEEDS", 0))
SLOW, QUICK = 100, 10  # a mutation that so many seeds show is tried in these two


@pytest.mark.parametrize("first", [by_seeds(n, n + PART, SHORT, LONG) for n in range(0, SEEDS, PART)])
def test_every_rule_holds(first: int) -> None:
    _, found = run_seeds(range(first, first + PART), kind=BATCHES)
    assert not found, report(*found, kind=BATCHES)


@pytest.mark.parametrize("files", [AMONG, ALIKE])
@pytest.mark.parametrize("first", [by_seeds(n, n + PART, PART, LONG) for n in range(0, LONG, PART)])
def test_every_rule_holds_where_files_meet(first: int, files: str) -> None:
    for seed in range(first, first + PART):
        course = replace(draw(seed), files=files)
        violation = simulate(course)
        assert not violation, f"{violation}\n{course.describe()}"


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.skipif(not MANY, reason="QUINE_TEST_SEEDS=N")
def test_every_rule_holds_for_many_seeds() -> None:
    _, found = run_seeds(range(SEEDS, MANY), kind=BATCHES)
    assert not found, report(*found, kind=BATCHES)


@pytest.mark.parametrize(
    "name", [by_seeds(name, row.seeds, QUICK, SLOW) for name, row in sorted(MUTATIONS.items())]
)
def test_a_mutation_is_noticed(name: str) -> None:
    row = MUTATIONS[name]
    _, found = run_seeds(range(row.seeds), row.restore, kind=BATCHES)
    assert found and found[1].rule in row.rules, found


def fails_without(name: str, course: Course) -> None:
    """A course keeps every rule, and breaks one of those of a fix without it."""
    assert simulate(course) is None
    row = (MUTATIONS | RARE)[name]
    violation = simulate(course, mutation=row.restore)
    assert violation and violation.rule in row.rules, violation


def test_a_batch_that_is_told_to_end_has_jobs_that_were_never_sent() -> None:
    """An item that has failed waits for its second try as one job is sent at a time: that has no session yet."""
    items = (Job("i0", "", steps=(("sleep", 0.077), ("exit", 1))), Job("i1", "", steps=(("sleep", 0.042),)))
    faults = (Fault(1.2, "signal", BATCH, how="TERM"),)
    course = Course(
        60, ("h1", "h2"), (), faults, 1, limits={"UNSTARTED": 1}, items=items, retries=3, again=15.2
    )
    assert simulate(course) is None


def test_a_job_that_could_not_be_started_is_not_taken_over() -> None:
    """Its record says that nothing ran, and the next client took that for a link that was lost, ten times."""
    faults = (Fault(1.809, "kill_client", BATCH, how="node"),)
    items = (Job("i2", "", refused=True),)
    fails_without("refused-kept", Course(233, ("h1", "h2"), (), faults, 2, items=items, again=2.616))


def test_a_host_is_asked_that_has_left_before_its_first_start_was_heard_of() -> None:
    """The journal did not have it, and all others knew nothing of the job: it ran a second time."""
    faults = (Fault(1.439, "kill_client", BATCH), Fault(3.174, "leave", "h2", 1.744))
    items = (Job("i0", ""), Job("i1", ""))
    fails_without("hosts-unnoted", Course(191, ("h1", "h2"), (), faults, 4, items=items, again=2.797))


def test_output_that_comes_again_into_memory_is_not_acknowledged() -> None:
    """The node of the client died, and then the client: the bytes were nowhere."""
    faults = (Fault(1.9, "kill_node", ORIGIN), Fault(3.9, "kill_client", BATCH))
    items = (Job("i0", "", steps=(("write", 2, 3000), ("sleep", 4.5))),)
    fails_without("memory-acknowledged", Course(1, ("h1",), (), faults, 1, items=items, again=0.2))


@pytest.mark.parametrize(
    "item",
    [
        Job("i0", "", steps=(("sleep", 0.001),)),  # it has ended with 0 when the client gets TERM
        Job("i0", "", steps=(("sleep", 20.0),), on_term=("ignore",)),  # it runs on when the next one begins
    ],
)
def test_a_job_that_was_not_heard_of_is_not_run_again_by_guess(item: Job) -> None:
    """Its start was on the way when the client got TERM."""
    faults = (Fault(1.36, "signal", BATCH, how="TERM"),)
    fails_without("unheard-ended", Course(1, ("h1",), (), faults, 1, items=(item,), again=0.3))


def test_a_job_that_is_not_heard_of_in_time_after_term_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host is away for as long as the client waits, which is no excuse here."""
    monkeypatch.setattr(judge, "excused", lambda sim: False)
    faults = (Fault(1.35, "down", "h1", 9.9), Fault(1.36, "signal", BATCH, how="TERM"))
    items = (Job("i0", "", steps=(("sleep", 0.1),)),)
    fails_without("unanswered-lost", Course(1, ("h1",), (), faults, 1, lease=60.0, items=items, again=0.3))


@pytest.mark.parametrize("before", [True, False])
def test_a_host_that_is_away_for_longer_than_it_is_waited_for_loses_no_item(
    before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is down since before the batch, or goes down with jobs that end there. That is no excuse here."""
    monkeypatch.setattr(judge, "excused", lambda sim: False)
    fault = Fault(0.5, "down", "h2", 90.0) if before else Fault(2.9, "down", "h2", 60.0)
    faults = (replace(fault, how="refused"), Fault(3.0, "kill_client", BATCH, how="node"))
    items = tuple(Job(f"i{number}", "", steps=(("sleep", 1.5),)) for number in range(12))
    assert simulate(Course(1, ("h1", "h2"), (), faults, 2, lease=600.0, items=items, again=0.3)) is None


@pytest.mark.parametrize("files", [APART, IN_PLACE])
def test_returns_that_came_at_last_are_not_asked_for_again(files: str) -> None:
    """The node of the client dies as they are asked for, and their host is away: they do not come. The next client has
    them, has removed them there, and is killed before it can write that down."""
    faults = (
        Fault(1.9, "down", "h1", 15.0, how="refused"),
        Fault(2.5, "kill_node", ORIGIN),
        Fault(10.0, "kill_client", BATCH, how="instead", number=2),
    )
    items = (Job("i0", "", steps=(("sleep", 0.5),)),)
    course = Course(1, ("h1",), (), faults, 1, items=items, again=0.3, files=files, cleanup=True)
    fails_without("arrival-forgotten", course)


def test_an_item_whose_result_replaces_its_file_as_the_client_dies_is_not_run_on_that() -> None:
    """With the fix it dies before the replacement, or with number 2 behind it; without it behind it."""
    items = (Job("i0", "", steps=(("sleep", 3.0),)),)
    faults = [Fault(3.0, "kill_client", BATCH, how="instead", number=number) for number in (1, 2)]
    for fault in faults:
        course = Course(1, ("h1",), (), (fault,), 1, items=items, again=0.3, files=IN_PLACE)
        assert simulate(course) is None
    fails_without("replacement-unnoted", replace(course, faults=(faults[0],)))


def test_results_are_where_the_agent_before_had_its_jobs() -> None:
    """The client is of another agent than the one before, which was killed."""
    faults = (Fault(3.0, "kill_client", BATCH),)
    items = (Job("i0", "", steps=(("sleep", 3.0),)),)
    course = Course(1, ("h1",), (), faults, 1, items=items, again=0.3, files=APART, moves=True)
    fails_without("directory-forgotten", course)


def test_a_result_is_not_replaced_by_the_files_of_the_next_item() -> None:
    """Among them is the one of a run before. It is laid out as the new one is asked for."""
    items = tuple(Job(f"i{number}", "", steps=(("sleep", 1.0),)) for number in range(3))
    fails_without("results-replaced", Course(1, ("h1",), (), (), 1, items=items, files=AMONG))


def test_a_job_that_is_not_found_yet_keeps_its_file() -> None:
    """Its host is away for longer than others wait for it, and the next item has a file of the same name."""
    items = (Job("i0", "", steps=(("sleep", 20.0),)), Job("i1", "", steps=(("sleep", 0.1),)))
    faults = (Fault(2.9, "down", "h1", 8.0, how="refused"), Fault(3.0, "kill_client", BATCH, how="node"))
    course = Course(1, ("h1",), (), faults, 2, lease=60.0, items=items, most=1, again=0.3, files=ALIKE)
    fails_without("names-unnoted", course)


def test_an_item_that_is_not_tried_again_as_the_batch_ends_has_its_result() -> None:
    """Its result was to be left for the next try, which had not begun."""
    steps = {
        "i2": (("exit", 7),),
        "i3": (("sleep", 13.879),),
        "i7": (),
        "i8": (),
        "i10": (("sleep", 14.911),),
    }
    items = tuple(Job(name, "", steps=each) for name, each in steps.items())
    faults = (Fault(2.818, "signal", BATCH, how="INT"),)
    more: dict[str, Any] = {"items": items, "retries": 3, "again": 0.195, "files": IN_PLACE}
    fails_without("left-forgotten", Course(1706, ("h1", "h2", "h3"), (), faults, 2, **more))


@pytest.mark.long
def test_a_seed_is_the_same_again_and_leaves_no_descriptor_open() -> None:
    before, traces = set(os.listdir("/proc/self/fd")), []
    for _ in range(2):
        trace: list[str] = []
        for seed in range(12):
            simulate(draw(seed), trace)
        traces.append(trace)
    assert traces[0] == traces[1] and len(traces[0]) > 100
    assert set(os.listdir("/proc/self/fd")) == before
