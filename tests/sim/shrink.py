"""Makes a failing scenario small: whatever can be left out is left out, as long as the same rule is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from tests.sim.drawing import draw
from tests.sim.scenario import Scenario
from tests.sim.simulation import simulate
from tests.sim.world import Violation


def lesser(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that have a little less in them, those that have least first."""
    for job in scenario.jobs:
        if len(scenario.jobs) > 1:
            yield scenario.without(job=job)
    for fault in scenario.faults:
        yield scenario.without(fault=fault)
    if scenario.slots:
        yield replace(scenario, slots=0)
    for job in scenario.jobs:
        for less in _lesser_job(job):
            yield replace(scenario, jobs=tuple(less if other is job else other for other in scenario.jobs))


class Kind(NamedTuple):
    """A kind of scenarios: how one is drawn, run, and made smaller; and the option of `python -m tests.sim` for it."""

    draw: Callable[[int], Any]
    simulate: Callable[..., Violation | None]
    lesser: Callable[[Any], Iterator[Any]]
    option: str


NODES = Kind(draw, simulate, lesser, "")


def shrink(
    scenario: Scenario, violation: Violation, mutation: Callable[[], Any] | None = None, kind: Kind = NODES
) -> tuple[Scenario, Violation]:
    """The smallest scenario found that breaks the same rule, and how it breaks it."""
    smaller = True
    while smaller:
        smaller = False
        for less in kind.lesser(scenario):
            found = kind.simulate(less, mutation=mutation)
            if found and found.rule == violation.rule:
                scenario, violation, smaller = less, found, True
                break
    return scenario, violation


def _lesser_job(job: Any) -> Iterator[Any]:
    for number in range(len(job.steps)):
        yield replace(job, steps=job.steps[:number] + job.steps[number + 1 :])
    for name, least in (("stdin", 0), ("rate", 0.0), ("at", 0.0), ("on_term", ("die",)), ("unsure", False)):
        if getattr(job, name) != least:
            yield replace(job, **{name: least})
