"""Two hundred agents on one machine: one tree by fork, and as many nested processes."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.measure import Row, alternate
from tests.lab import Lab
from tests.support.agents import OK, call, says, sh
from tests.support.crowd import Crowd

AGENTS = 200
BRANCHES = 9
AT_ONCE = 8  # processes of xargs


def tree(crowd: Crowd) -> Callable[[], None]:
    """One agent, nine below it, and the others below those; each leaf runs a command."""

    def fork(*intents: str) -> dict[str, object]:
        return says(call("fork", children=[{"intent": intent} for intent in intents], wait=True))

    leaves = [f"leaf {n}" for n in range(AGENTS - 1 - BRANCHES)]
    crowd.says("root", fork(*(f"branch{n}" for n in range(BRANCHES))), says(OK))
    for n in range(BRANCHES):
        crowd.says(f"branch{n}", fork(*leaves[n::BRANCHES]), says(OK))
    crowd.says("leaf", says(sh("echo done >&4")), says(OK))
    crowd.env |= {"QUINE_MAX_AGENTS": str(AGENTS)}

    def run() -> None:
        done = crowd.run(mission="root")
        assert done.returncode == 0, done.stderr

    return run


def nested(crowd: Crowd) -> Callable[[], None]:
    crowd.says(
        "start",
        says(sh(f"seq {AGENTS - 1} | xargs -P {AT_ONCE} -I% quine leaf % >&4", timeout=300)),
        says(OK),
    )

    def run() -> None:
        done = crowd.run(mission="start")
        assert (done.returncode, done.stdout.count(b"done")) == (0, AGENTS - 1), done.stderr

    return run


def run(lab: Lab) -> list[Row]:
    with tempfile.TemporaryDirectory() as name, Crowd(Path(name)) as crowd:
        forked = alternate(3, tree(crowd))[0]
        alone = nested(crowd)
        bare = f"seq {AGENTS} | xargs -P {AT_ONCE} -I% {shlex.quote(sys.executable)} -c pass"

        def python() -> None:
            subprocess.run(["sh", "-c", bare], check=True)

        apart, peer = alternate(3, alone, python)
    return [
        Row(f"{AGENTS} agents in one tree, by fork", forked, "s"),
        Row("the same, per second", AGENTS / forked, "agents/s"),
        Row(f"{AGENTS} agents by nested `quine`, {AT_ONCE} at one time", apart, "s", "bare python", peer),
        Row("the same, per second", AGENTS / apart, "agents/s", "bare python", AGENTS / peer),
    ]
