"""Shared by the benchmarks: a figure with its peer, medians, a table.

Laws
1. A figure is a median of runs that alternate with the peer's, so that a noisy neighbour disturbs both alike.
2. Nothing is compared with an absolute time of another machine; the reach and the aim are printed beside the figure.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `unit` is ms, MB/s, MB; `peer` is None if there is none, and `peer_name` may say why."""

    figure: str
    value: float
    unit: str
    peer_name: str = ""
    peer: float | None = None
    reach: str = ""
    met: bool | None = None


class Form:
    """The form of figures that is wanted: 0 short, 1 that of every day, 2 long; and the directory of plots, if any."""

    chosen = 1
    plots: Path | None = None


def size(*sizes: int) -> int:
    """Return the size for the form that was chosen: of a short, a usual and perhaps a long one."""
    return sizes[min(Form.chosen, len(sizes) - 1)]


def timed(action: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def alternate(runs: int, *actions: Callable[[], object]) -> list[float]:
    """Return the median seconds of each action, run in turn `runs` times after one unmeasured round."""
    for action in actions:
        action()
    times: list[list[float]] = [[] for _ in actions]
    for _ in range(runs):
        for action, kept in zip(actions, times, strict=True):
            kept.append(timed(action))
    return [statistics.median(kept) for kept in times]


def processor(runs: int, *actions: Callable[[], object]) -> list[float]:
    """Return the median seconds of a processor that the child processes of each action take, run in turn."""
    taken: list[list[float]] = [[] for _ in actions]
    for _ in range(runs):
        for action, kept in zip(actions, taken, strict=True):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            action()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            kept.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return [statistics.median(kept) for kept in taken]


def table(rows: list[Row]) -> str:
    """Return the rows as a table in Markdown."""
    lines = ["| figure | quine | peer | ratio | reach | |", "|---|---|---|---|---|---|"]
    for row in rows:
        peer = (
            f"{row.peer_name} {_number(row.peer)} {row.unit}"
            if row.peer is not None
            else row.peer_name or "–"
        )
        ratio = f"{row.value / row.peer:.2f} ×" if row.peer else "–"
        met = {True: "met", False: "not met", None: ""}[row.met]
        value = f"{_number(row.value)} {row.unit}"
        lines.append(f"| {row.figure} | {value} | {peer} | {ratio} | {row.reach} | {met} |")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
