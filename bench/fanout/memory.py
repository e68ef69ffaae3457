"""The memory of a batch at its origin: client and node together, early, and after many items; is it flat?"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from bench.fanout.peers import HOSTS
from bench.fanout.rate import batch_hosts
from bench.measure import Row, size
from tests.lab import Lab
from tests.support.machine import nodes

EARLY = 2000  # items, after which all that is needed was loaded
WAITING = 10_000
GROWTH = 1.15  # of the memory from then on: more is not flat


def pss(pid: int) -> float:
    """The share of a process in the memory, in megabytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise ProcessLookupError(pid)


def run(_: Lab) -> list[Row]:
    many = size(5000, 50_000, 1_000_000)
    with Lab(HOSTS, installed=True) as lab:
        batch_hosts(lab)
        (early, late), (waiting, idle) = _passed(lab, (EARLY, many)), _waiting(lab)
    flat = late <= GROWTH * early
    what = "client and node at the origin, PSS together"
    return [
        Row(f"{what}, {WAITING} items waiting", waiting, "MB", "none waiting", idle),
        Row(
            *(f"{what}, after {many} items", late, "MB", f"after {EARLY}", early),
            *(f"flat: ≤ {GROWTH} ×", flat),
        ),
    ]


def _used(lab: Lab, client: int) -> float:
    """The memory of the client and of the node here."""
    return sum(map(pss, (client, *(node.pid for node in nodes(lab.processes())))))


def _passed(lab: Lab, marks: tuple[int, ...]) -> list[float]:
    """The memory when nearly all of so many items are done: the one behind them waits to be looked at."""
    gates = [
        lab.tmp / f"gate{mark}" for mark in marks
    ]  # one each: its reader may still be there as the next opens
    for gate in gates:
        os.mkfifo(gate)
    script = f"test -p {lab.tmp}/gate% && cat {lab.tmp}/gate%; :"
    used = []
    command = ["/bin/sh", "-c", f"seq {marks[-1]} | exec quine xargs --on @batch -I% -- sh -c '{script}'; :"]
    with subprocess.Popen(command, env=lab.env, cwd=lab.work, stdout=-3) as shell:
        for gate in gates:
            with gate.open("w"):  # opens when the item of the mark reads
                used.append(_used(lab, _client(shell.pid)))
    assert shell.returncode == 0
    return used


def _client(shell: int) -> int:
    """The end of a pipeline is a child of its shell."""
    children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
    return next(int(pid) for pid in children if b"xargs" in Path(f"/proc/{pid}/cmdline").read_bytes())


def _waiting(lab: Lab) -> list[float]:
    """The memory while all slots are taken: with many items behind, and with none."""
    gate = lab.tmp / "slots"
    os.mkfifo(gate)
    used = []
    for items in (WAITING, 8):
        with subprocess.Popen(
            [lab.quine, "xargs", "-P", str(items), "--on", "@batch", "-I%", "--", "sh", "-c", f"cat {gate}"],
            env=lab.env,
            cwd=lab.work,
            stdin=-1,
            stdout=-3,
        ) as client:
            assert client.stdin
            client.stdin.write(b"".join(b"%d\n" % number for number in range(items)))
            client.stdin.close()
            with gate.open("w"):
                used.append(_used(lab, client.pid))
                client.kill()
    return used
