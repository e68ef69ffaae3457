"""Many seeds, and the report of one that failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.sim.shrink import NODES, Kind, shrink
from tests.sim.world import Violation


def run_seeds(
    seeds: Iterable[int],
    mutation: Callable[[], Any] | None = None,
    until: float | None = None,
    kind: Kind = NODES,
) -> tuple[int, tuple[int, Violation] | None]:
    """Run them until one fails, or until time.monotonic() is `until`: how many were run, and the one that failed."""
    done = 0
    for seed in seeds:
        done += 1
        if violation := kind.simulate(kind.draw(seed), mutation=mutation):
            return done, (seed, violation)
        if until is not None and time.monotonic() >= until:
            break
    return done, None


def report(
    seed: int,
    violation: Violation,
    mutation: Callable[[], Any] | None = None,
    shrinks: bool = True,
    kind: Kind = NODES,
) -> str:
    """Return the failure, the command that repeats it, and the least scenario that fails in the same way."""
    lines = [f"seed {seed}: {violation}", f"again: .venv/bin/python -m tests.sim{kind.option} --seed {seed}"]
    if shrinks:
        least, how = shrink(kind.draw(seed), violation, mutation, kind)
        trace: list[str] = []
        kind.simulate(least, trace, mutation)
        lines += ["", f"the least that fails so: {how}", least.describe(), "", *trace[-60:]]
    return "\n".join(lines)
