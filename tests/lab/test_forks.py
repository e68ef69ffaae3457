"""A fork that stands for a program has an argv, environment, directory and group of its own, as a program has."""

from __future__ import annotations

import os
import sys

import pytest

from tests.lab import forks
from tests.support.agents import OK, QUINE, Agents, says, sh

LOOK = "cd /proc/$PPID && tr -s '\\0' '\\n' <cmdline; tr -s '\\0' '\\n' <environ; readlink cwd; ps -o pgid= $PPID"


@pytest.mark.parametrize("cold", [False, True], ids=["a fork", "a program"])
def test_an_agent_looks_at_itself(agents: Agents, cold: bool, request: pytest.FixtureRequest) -> None:
    agents.env["LONG"] = "x" * 9000
    assert forks.can([*QUINE, "--", "look"], agents.env)
    if cold:
        request.getfixturevalue("cold")
    done = agents.run(says(sh(LOOK)), says(OK), mission="look")
    assert (done.returncode, done.stderr) == (0, b"")
    shown = agents.results("look")[0]
    assert f"{sys.executable}\n-P\n-m\nquine\n--\nlook\n" in shown
    for name in ("LONG", "QUINE_DATA_DIR", "QUINE_API_TYPE"):
        assert f"{name}={agents.env[name]}\n" in shown
    assert f"\n{agents.directory}\n" in shown and forks.FILL not in shown
    assert shown.split("\n[STDERR]")[0].split()[-1] == str(os.getpgrp())
