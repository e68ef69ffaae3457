"""One command on fifty hosts of this machine, and the time until all of them are busy."""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.fanout.peers import beside, configured, hang_up, has_mitogen, mitogen, quiet, shared, tool
from bench.measure import Row, alternate, size, timed
from tests.lab import Lab


class Peers:
    """Commands of others for all hosts of a lab, by a configuration of ssh; None: not installed."""

    def __init__(self, lab: Lab, command: str, cold: Path, warm: Path) -> None:
        many = len(lab.hosts)
        names = f"n[0-{many - 1}]"
        self.clush: dict[bool, Callable[[], None] | None] = {}
        self.pdsh: dict[bool, Callable[[], None] | None] = {}
        for is_warm, config in ((False, cold), (True, warm)):
            clush = f"{tool('clush')} -f {many} -w {names} -o '-F {config}' {command}"
            pdsh = f"pdsh -R exec -f {many} -w {names} ssh -F {config} %h {command}"
            self.clush[is_warm] = quiet(lab, clush) if tool("clush") else None
            self.pdsh[is_warm] = quiet(lab, pdsh) if tool("pdsh") else None


@contextmanager
def crowd() -> Iterator[tuple[Lab, Path, Path]]:
    """A lab of fifty hosts that have quine, and configurations of ssh without and with connections that stay up."""
    many = size(10, 50)
    with tempfile.TemporaryDirectory() as name, Lab([f"n{n}" for n in range(many)], installed=True) as lab:
        directory = Path(name)
        (directory / "plain").mkdir()
        warm = shared(lab, directory)
        yield lab, configured(lab, directory / "plain"), warm
        hang_up(lab, warm)


def each(_: Lab) -> list[Row]:
    """`quine each` with all connections to be made, and with all of them up."""
    with crowd() as (lab, cold, warm):
        many = len(lab.hosts)
        peers = Peers(lab, "true", cold, warm)
        ours = quiet(lab, "quine each any -- true")
        lab.stop_nodes()
        times = []
        for _round in range(3):
            times.append(timed(ours))
            lab.stop_nodes()
        made = statistics.median(times)
        cold_peers = {
            "clush": peers.clush[False],
            "pdsh": peers.pdsh[False],
            "mitogen": quiet(lab, mitogen(cold, many, 1, *lab.hosts)) if has_mitogen() else None,
        }
        warm_peers = {"clush": peers.clush[True], "pdsh": peers.pdsh[True]}
        cold_times = {name: _median(3, call) for name, call in cold_peers.items()}
        up, warm_times = None, {}
        for name, call in warm_peers.items():
            up, warm_times[name] = alternate(5, ours, call) if call else (up, None)
        up = up or alternate(5, ours)[0]
    rows = []
    for how, value, others, most in (
        ("no connection is up", made, cold_times, 2.0),
        ("all connections are up", up, warm_times, 1.0),
    ):
        for name, other in others.items():
            bound = (f"≤ {most:g} ×", value <= most * (other or 0)) if name == "clush" else ()
            figure = f"`quine each` on {many} hosts, {how}" if name == "clush" else "the same"
            rows.append(beside(figure, 1000 * value, "ms", name, other and 1000 * other, *bound))
    return rows


def _median(runs: int, call: Callable[[], None] | None) -> float | None:
    return alternate(runs, call)[0] if call else None


def _let_go(gate: Path) -> None:
    """End the jobs that wait at a gate; those that come later find it again."""
    with suppress(OSError):  # nobody is there
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))


def busy(_: Lab) -> list[Row]:
    """From the start of one command until a job runs on each of fifty hosts, which have quine already."""
    with crowd() as (lab, cold, warm):
        many = len(lab.hosts)
        for host in list(lab.hosts):
            lab.alias(f"{host}s", host, slots=1, tags=["batch"])
        # Each job stays until all of them have begun, so that no host gets two: the clock is that of this machine.
        at, gate, job = lab.tmp / "began", lab.tmp / "gate", lab.tmp / "job"
        os.mkfifo(gate)
        job.write_text(f"#!/bin/sh\ndate +%s.%N >>{at}\nexec cat {gate}\n")
        job.chmod(0o755)

        def until_busy(command: str) -> float:
            at.write_text("")
            began = time.time()
            with subprocess.Popen(
                ["/bin/sh", "-c", command], env=lab.env, cwd=lab.work, stdin=-3, stdout=-3
            ) as process:
                while process.poll() is None:
                    if len(at.read_text().split()) >= many:
                        _let_go(gate)
                    time.sleep(0.02)
            assert process.returncode == 0, command
            return max(map(float, at.read_text().split())) - began

        ours = f"seq {many} | quine xargs -P {many} --on @batch -I% -- {job}"
        clush = f"{tool('clush')} -f {many} -w n[0-{many - 1}]"
        found: dict[str, list[float]] = {"cold": [], "warm": [], "clush cold": [], "clush warm": []}
        for _round in range(size(1, 3)):
            lab.stop_nodes()
            found["cold"].append(until_busy(ours))
            found["warm"].append(until_busy(ours))
            if tool("clush"):
                found["clush cold"].append(until_busy(f"{clush} -o '-F {cold}' {job}"))
                until_busy(f"{clush} -o '-F {warm}' {job}")
                found["clush warm"].append(until_busy(f"{clush} -o '-F {warm}' {job}"))
    rows = []
    for how in ("cold", "warm"):
        theirs = found[f"clush {how}"]
        rows.append(
            beside(
                f"from the start to {many} busy hosts, {how}: `quine xargs`",
                1000 * statistics.median(found[how]),
                "ms",
                "clush",
                1000 * statistics.median(theirs) if theirs else None,
            )
        )
    return rows
