"""Nodes in a simulation: a thousand seeds keep every rule, and a fix that is taken back is noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.drawing import draw
from tests.sim.marks import by_seeds
from tests.sim.run import report, run_seeds
from tests.sim.scenario import Fault, Job, Scenario
from tests.sim.shrink import shrink
from tests.sim.simulation import simulate
from tests.sim.taken_back import TAKEN_BACK

SEEDS, LONG, SHORT = 1000, 500, 150  # before a release, in `make test-more`, and in `make test`
PART = 50  # of one test, so that workers share them
SLOW, QUICK = 200, 100  # a fix that so many seeds show to be missing is taken back in these two


@pytest.mark.parametrize("first", [by_seeds(n, n + PART, SHORT, LONG) for n in range(0, SEEDS, PART)])
def test_every_rule_holds(first: int) -> None:
    """And a simulation leaves no descriptor open."""
    before = set(os.listdir("/proc/self/fd"))
    _, found = run_seeds(range(first, first + PART))
    assert not found, report(*found)
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    "name", [by_seeds(name, taken.seeds, QUICK, SLOW) for name, taken in sorted(TAKEN_BACK.items())]
)
def test_a_fix_that_is_taken_back_is_noticed(name: str) -> None:
    taken = TAKEN_BACK[name]
    _, found = run_seeds(range(taken.seeds), taken.restore)
    assert found and found[1].rule in taken.rules, found


def test_a_seed_is_the_same_in_every_process() -> None:
    """Another one, with another order of sets, and this one, with all that ran in it before."""
    code = (
        "from tests.sim.drawing import draw; from tests.sim.simulation import simulate\n"
        "for seed in range(12):\n"
        "    trace = []\n"
        "    print(simulate(draw(seed), trace), *trace, sep='\\n')"
    )
    other = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        check=True,
    ).stdout.decode()
    here: list[object] = []
    for seed in range(12):
        trace: list[str] = []
        here += [simulate(draw(seed), trace), *trace]
    assert "".join(f"{line}\n" for line in here) == other and len(here) > 100


def test_how_a_job_ended_is_kept_for_its_lease() -> None:
    """Its process ended on a link that was a hole by then, and is down for minutes."""
    job = Job("j0", "h1", lease=600.0, steps=(("sleep", 5.0), ("write", 1, 100), ("exit", 7)))
    scenario = Scenario(1, ("h1",), (job,), (Fault(4.0, "down", "h1", 200.0, how="hang"),))
    assert simulate(scenario) is None


def test_a_client_is_heard_to_its_end_when_the_link_to_its_host_has_failed() -> None:
    """Its frames waited for room on that link, and stayed there: the node kept the connection for ever."""
    job = Job("j0", "h1", at=1.733, lease=600.0, stdin=20_000)
    faults = (Fault(1.57, "stop_node", "o", 4.084), Fault(2.707, "stop_client", "j0", 30.0))
    assert simulate(Scenario(121602, ("h1",), (job,), faults, hostile="requests")) is None


def test_a_host_that_answers_pings_and_no_start_is_not_waited_for() -> None:
    """Each client stood for ever: the clocks of a job began at its start over there."""
    job = Job("j0", "h1", lease=60.0, steps=(("exit", 7),))
    assert simulate(Scenario(1, ("h1",), (job,), hostile="mute")) is None


def test_a_link_that_is_down_is_not_closed_as_idle_while_the_other_end_must_hear_of_something() -> None:
    """Its job had nobody any more, and went on for its lease: the node had forgotten the host."""
    job = Job("j1", "h1", lease=600.0, steps=(("sleep", 100_000.0),))
    faults = (
        Fault(2.439, "cut", "h1", how="drop"),
        Fault(2.469, "stop_node", "h1", 29.418),
        Fault(2.793, "kill_client", "j1"),
    )
    assert simulate(Scenario(2014406, ("h1",), (job,), faults, idle=20.0)) is None


def test_a_failing_scenario_is_made_small() -> None:
    busy = Job("j0", "h1", lease=600.0, steps=(("write", 1, 100), ("sleep", 1.0), ("exit", 7)))
    unsure = Job("j1", "h1", lease=600.0, steps=(("write", 1, 100), ("sleep", 3.0)), unsure=True)
    faults = (Fault(0.1, "cut", "h1", how="clean"), Fault(2.0, "hole", "h1", how="both"))
    scenario = Scenario(1, ("h1",), (busy, unsure), faults, slots=2)
    restore = TAKEN_BACK["launch-unsure"].restore
    violation = simulate(scenario, mutation=restore)
    assert violation and violation.rule == "retry"
    least, how = shrink(scenario, violation, restore)
    assert how.rule == "retry"
    assert (least.jobs, least.faults, least.slots) == ((Job("j1", "h1", lease=600.0, unsure=True),), (), 0)
    assert simulate(least) is None
