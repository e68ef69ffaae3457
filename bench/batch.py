"""Many jobs by one command: over four hosts, behind a long line, agents, and one command on fifty hosts."""

from __future__ import annotations

import os
import shlex
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.measure import Row, alternate, timed
from tests.lab import Lab, peak_rss
from tests.support.agents import OK, says
from tests.support.machine import nodes

HOSTS = ("h1", "h2", "h3", "h4")
ITEMS = 5000
FEW = 500  # for GNU parallel, which starts an ssh for each
AT_ONCE = 8  # jobs, of all hosts together
AGENTS = 300
LINES = "\n".join(map(str, range(AGENTS)))
MANY = 20_000
CROWD = 50  # hosts


def peer(lab: Lab, directory: Path, *more: str) -> Path:
    """Write a configuration with which OpenSSH and what starts it reach the hosts of a lab by their names."""
    lines = [
        *(
            "StrictHostKeyChecking accept-new",
            f"UserKnownHostsFile {directory}/known_hosts",
            "LogLevel ERROR",
        ),
        *(f"IdentityFile {lab.identity}", "IdentitiesOnly yes", "BatchMode yes", *more),
    ]
    for name, host in lab.hosts.items():
        lines += [f"Host {name}", f"HostName {host.address}", f"Port {host.port}", f"User {host.user}"]
    path = directory / "ssh_config"
    path.write_text("\n".join(lines) + "\n")
    return path


def quiet(lab: Lab, command: str) -> Callable[[], None]:
    """Run a shell command of the origin; AssertionError if it fails."""

    def run() -> None:
        done = lab.sh(f"{command} >/dev/null", timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]

    return run


def run(_: Lab) -> list[Row]:
    """Figures of `quine xargs` over four hosts of two slots each, beside what people use today."""
    with tempfile.TemporaryDirectory() as name, Lab(HOSTS, installed=True) as lab:
        for host in HOSTS:
            lab.alias(f"{host}s", host, slots=AT_ONCE // len(HOSTS), tags=["batch"])
        lab.run(["xargs", "--on", "@batch", "--", "true", ":::", *map(str, range(16))], check=True)
        return [*_many(lab, Path(name)), *_agents(lab), *_memory(lab), *_long_line(lab)]


def _many(lab: Lab, directory: Path) -> list[Row]:
    control = ("ControlMaster auto", f"ControlPath {directory}/%n", "ControlPersist 600")
    config = peer(lab, directory, *control)
    hop = f"ssh -n -F {config} h$((1 + $0 % {len(HOSTS)})) true"
    ours = quiet(lab, f"seq {ITEMS} | quine xargs --on @batch -I% -- true")
    mux = quiet(lab, f"seq {ITEMS} | xargs -P {AT_ONCE} -n1 sh -c {shlex.quote(f'exec {hop}')}")
    local = quiet(lab, f"seq {ITEMS} | xargs -P {AT_ONCE} -I% true %")
    logins = ",".join(f"2/ssh -F {config} {host}" for host in HOSTS)
    parallel = quiet(lab, f"seq {FEW} | parallel -S {shlex.quote(logins)} -I% true")
    try:
        ours_time, mux_time, local_time = alternate(3, ours, mux, local)
        slow = alternate(1, parallel)[0] if shutil.which("parallel") else None
    finally:
        for host in HOSTS:
            lab.sh(f"ssh -F {config} -O exit {host}")
    rate, unit = ITEMS / ours_time, "jobs/s"
    rows = [
        Row(
            f"{ITEMS} × `true` over 4 hosts, 8 at one time: `quine xargs`",
            rate,
            unit,
            "xargs + ssh ControlMaster",
            ITEMS / mux_time,
            "≥ 3 ×",
            rate >= 3 * ITEMS / mux_time,
        ),
        Row("the same", rate, unit, "xargs on this machine alone", ITEMS / local_time, "aim 0.6 ×"),
    ]
    if slow:
        rows.insert(
            1, Row("the same", rate, unit, "parallel -S", FEW / slow, "≥ 10 ×", rate >= 10 * FEW / slow)
        )
    return rows


def _long_line(lab: Lab) -> list[Row]:
    lab["h1"].proxy.delay(0.05)
    lab.alias("long", "h1", via=lab["h1"].proxy, slots=8)
    took = 1000 * alternate(5, quiet(lab, "seq 64 | quine xargs --on long -I% -- sleep 0.01"))[0]
    lab["h1"].proxy.delay(0)
    lab.forget_aliases()
    figure = "64 jobs of 10 ms on one host of 8 slots behind 100 ms"
    return [Row(figure, took, "ms", "mux: 8 rounds", 8 * 110, "≤ 3 round trips + work", took <= 380)]


def _agents(lab: Lab) -> list[Row]:
    env = {**lab.script([says(OK)]), "QUINE_DATA_DIR": str(lab.tmp / "agents")}
    done: list[float] = []
    for _ in range(3):
        done.append(
            timed(
                lambda: lab.run(["xargs", "--on", "@batch", "say nothing"], check=True, env=env, input=LINES)
            )
        )
    rate = AGENTS / statistics.median(done)
    return [
        Row(f"{AGENTS} one-turn agents over 4 hosts", rate, "agents/s", reach="≥ 50, aim 100", met=rate >= 50)
    ]


def _memory(lab: Lab) -> list[Row]:
    """Client and node at the origin, when nearly all of many items are done: the last one waits to be looked at."""
    lab.stop_nodes()
    gate = lab.tmp / "gate"
    os.mkfifo(gate)
    script = f"test $0 -lt {MANY} || cat {gate}"
    items = "\n".join(map(str, range(1, MANY + 1)))
    with subprocess.Popen(
        [lab.quine, "xargs", "--on", "@batch", "--", "sh", "-c", script],
        env=lab.env,
        cwd=lab.work,
        stdin=-1,
        stdout=-3,
    ) as client:
        assert client.stdin
        client.stdin.write(items.encode())
        client.stdin.close()
        with gate.open("w"):  # opens when the last item reads
            used = [peak_rss(pid) for pid in (client.pid, *(node.pid for node in nodes(lab.processes())))]
    whole = sum(used) / 1e6
    return [
        Row(
            f"client and node at the origin after {MANY} items, peak",
            whole,
            "MB",
            reach="≤ 120",
            met=whole <= 120,
        )
    ]


def each(_: Lab) -> list[Row]:
    """One command on fifty hosts of this machine, with all connections to be made, and with all of them up."""
    with tempfile.TemporaryDirectory() as name, Lab([f"n{n}" for n in range(CROWD)], installed=True) as lab:
        directory = Path(name)
        control = ("ControlMaster auto", f"ControlPath {directory}/%n", "ControlPersist 600")
        warm_peer = f"-F {peer(lab, directory, *control)}"
        (directory / "plain").mkdir()
        cold_peer = f"-F {peer(lab, directory / 'plain')}"
        clush = f"clush -f {CROWD} -w n[0-{CROWD - 1}] -o"
        ours = quiet(lab, "quine each any -- true")
        theirs = [quiet(lab, f"{clush} '{options}' true") for options in (cold_peer, warm_peer)]
        have = bool(shutil.which("clush"))
        lab.stop_nodes()
        times = []
        for _round in range(3):
            times.append(timed(ours))
            lab.stop_nodes()
        cold_time = statistics.median(times)
        cold_theirs = alternate(3, theirs[0])[0] if have else None
        warm = alternate(5, ours, *theirs[1:]) if have else alternate(5, ours)
        for n in range(CROWD) if have else ():
            lab.sh(f"ssh {warm_peer} -O exit n{n}")
    rows = [("no connection is up", cold_time, cold_theirs, 2.0)]
    rows.append(("all connections are up", warm[0], warm[1] if have else None, 1.0))
    return [
        Row(
            f"`quine each` on {CROWD} hosts, {how}",
            1000 * value,
            "ms",
            "clush" if other else "",
            1000 * other if other else None,
            f"≤ {most:g} ×",
            value <= most * other if other else None,
        )
        for how, value, other, most in rows
    ]
