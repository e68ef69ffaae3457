"""Jobs a second: short commands over four hosts of two slots each, and on one host behind a long line."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from bench.fanout.peers import (
    AT_ONCE,
    HOSTS,
    beside,
    configured,
    hang_up,
    has_mitogen,
    mitogen,
    quiet,
    shared,
    tool,
)
from bench.measure import Row, alternate, size
from tests.lab import Lab

FEW = 500  # for GNU parallel, which starts an ssh for each
LINE = 0.05  # seconds each way


def batch_hosts(lab: Lab) -> None:
    """Have four hosts of two slots each, with the tag `batch`, all connections up."""
    for host in HOSTS:
        lab.alias(f"{host}s", host, slots=AT_ONCE // len(HOSTS), tags=["batch"])
    lab.run(["xargs", "--on", "@batch", "--", "true", ":::", *map(str, range(16))], check=True)


def run(_: Lab) -> list[Row]:
    """Figures of `quine xargs` over four hosts, beside what people use today."""
    with tempfile.TemporaryDirectory() as name, Lab(HOSTS, installed=True) as lab:
        batch_hosts(lab)
        return _many(lab, Path(name))


def _many(lab: Lab, directory: Path) -> list[Row]:
    items = size(500, 5000)
    control = shared(lab, directory)
    (directory / "plain").mkdir()
    plain = configured(lab, directory / "plain")
    hop = f"ssh -n -F {control} h$((1 + $0 % {len(HOSTS)})) true"
    ours = quiet(lab, f"seq {items} | quine xargs --on @batch -I% -- true")
    mux = quiet(lab, f"seq {items} | xargs -P {AT_ONCE} -n1 sh -c {shlex.quote(f'exec {hop}')}")
    local = quiet(lab, f"seq {items} | xargs -P {AT_ONCE} -I% true %")
    logins = ",".join(f"2/ssh -F {plain} {host}" for host in HOSTS)
    few = min(items, FEW)
    parallel = quiet(lab, f"seq {few} | parallel -S {shlex.quote(logins)} -I% true")
    try:
        ours_time, mux_time, local_time = alternate(3, ours, mux, local)
        slow = alternate(1, parallel)[0] if tool("parallel") else None
        if has_mitogen():
            _, far = alternate(3, ours, quiet(lab, mitogen(plain, items, 2, *HOSTS)))
        else:
            far = None
    finally:
        hang_up(lab, control)
    rate, unit = items / ours_time, "jobs/s"
    figure = f"{items} × `true` over 4 hosts, 8 at one time: `quine xargs`"
    mux_rate, slow_rate = items / mux_time, few / slow if slow else None
    return [
        Row(figure, rate, unit, "xargs + ssh ControlMaster", mux_rate, "≥ 3 ×", rate >= 3 * mux_rate),
        beside(
            *("the same", rate, unit, "parallel -S", slow_rate, "≥ 10 ×"),
            bool(slow_rate) and rate >= 10 * (slow_rate or 0),
        ),
        beside("the same", rate, unit, "mitogen", items / far if far else None),
        Row("the same", rate, unit, "xargs on this machine alone", items / local_time, "aim 0.6 ×"),
    ]


def long_line(_: Lab) -> list[Row]:
    """Short jobs on one host behind a line of 100 ms."""
    with Lab(("h1",), installed=True) as lab:
        lab["h1"].proxy.delay(LINE)
        lab.alias("long", "h1", via=lab["h1"].proxy, slots=8)
        # the item is the time: a word behind another one would be slept, too
        took = 1000 * alternate(5, quiet(lab, "yes 0.01 | head -n 64 | quine xargs --on long -- sleep"))[0]
        lab["h1"].proxy.delay(0)
    figure = "64 jobs of 10 ms on one host of 8 slots behind 100 ms"
    return [Row(figure, took, "ms", "mux: 8 rounds", 8 * 110, "≤ 3 round trips + work", took <= 380)]
