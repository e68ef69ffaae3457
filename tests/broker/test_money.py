"""Caps that hold for agents over a server, whose starters have the key: of a batch, of a budget, of another tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.broker.admission import Denied, Register
from quine.budget.purse import Cap
from tests.broker.serving import BYE, FIRST, Served, said
from tests.support.agents import QUINE
from tests.vendors.server import KEY, Said

COST = (1500, 100, 0)
EACH = sum(COST)
CLOSE = "import os, sys; os.closerange(3, 1000); os.execvp(sys.argv[1], sys.argv[1:])"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short, Served(tmp_path) as made:
        made.env["PYTHONFAULTHANDLER"] = "1"
        made.env["XDG_RUNTIME_DIR"] = short  # a batch has a node, whose socket has a longer name
        turn = Said(calls=said("true").calls, usage=COST)
        made.plan[FIRST] = [*[turn] * 8, Said(calls=BYE.calls, usage=COST)]
        yield made


def run(served: Served, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*QUINE, *words],
        env=served.env,
        cwd=served.directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


def test_a_cap_holds_for_agents_of_a_server(served: Served) -> None:
    """A batch has one; below that of a budget are a batch, and an agent that has closed all descriptors."""
    below = ("budget", "--max-tokens", "9000", "--")
    capped = {
        "a batch": ("xargs", "--max-tokens", "9000", "-P", "1", FIRST, ":::", *"abcd"),
        "a batch below a budget": (*below, *QUINE, "xargs", FIRST, ":::", *"abcd"),
        "no descriptors": (*below, sys.executable, "-c", CLOSE, *QUINE, FIRST),
    }
    for what, words in capped.items():
        done = run(served, *words)
        assert done.returncode == 77, (what, done.stderr)
        assert 2 * EACH <= len(served.provider.requests) * EACH <= 9000, what
        served.provider.requests.clear()


def test_the_command_of_a_budget_has_the_key_and_the_budget_no_longer(served: Served) -> None:
    look = "echo $QUINE_API_KEY; tr '\\0' '\\n' </proc/$PPID/environ | grep -c QUINE_API_KEY"
    done = run(served, "budget", "--", "sh", "-c", look)
    assert done.stdout == f"{KEY}\n0\n".encode(), done.stderr


def test_a_process_below_one_agent_does_not_let_another_tree_pay() -> None:
    memory = os.memfd_create("state")
    register = Register(memory, lambda pidfd, call: None, lambda: None)
    other = subprocess.Popen(["sleep", "100"])
    try:
        register.admit(other.pid, 2, Cap(), proved=True)
        register.admit(os.getpid(), 1, Cap(), proved=True)
        with pytest.raises(Denied):
            register.admit(os.getpid(), 2, Cap(), proved=False)
    finally:
        other.kill()
        other.wait()
        for member in register.members.values():
            os.close(member.pidfd)
        os.close(memory)
