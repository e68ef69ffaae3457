"""Limits of a tree, seen from its agents: tokens, money, time, depth, number; and that none can be raised."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support.agents import OK, Agents, call, says, sh, until

QUINE = f"{sys.executable} -P -m quine"


def used(line: dict[str, Any], prompt: int, reply: int) -> dict[str, Any]:
    return {**line, "usage": {"input": prompt, "output": reply}}


def test_tokens_are_told_and_end_the_tree(agents: Agents) -> None:
    agents.script(*(used(says(sh("true")), 4000, 100) for _ in range(9)))
    done = agents.run(options=("--max-tokens", "16000"))
    assert done.returncode == 77
    assert b"the budget of the tree is used up" in done.stderr
    assert b"hint: see --max-tokens" in done.stderr
    results = agents.results()
    assert "[TOKENS LEFT] 11900" in results[0]
    assert "[LAST REPLY] The budget of the tree is used up" in results[1]
    assert "Refused" in results[2]
    assert agents.outcome()["termination_mode"] == "budget"
    assert agents.outcome()["tokens_in"] + agents.outcome()["tokens_out"] <= 16_000


def test_a_prompt_that_is_too_dear_is_not_sent(agents: Agents) -> None:
    agents.script(says(OK))
    done = agents.run(options=("--max-tokens", "100"))
    assert done.returncode == 77
    assert done.stderr.startswith(b"quine: error: the budget is spent: 0 of 100 tokens are used")
    assert agents.outcome()["termination_mode"] == "budget"


def test_children_and_nested_agents_draw_on_the_same_budget(agents: Agents) -> None:
    """A nested one whatever its variables say, or with less of it."""
    nested = f"env -u QUINE_CREDENTIALS_FD -u QUINE_MAX_TOKENS {QUINE} nested"
    agents.script(
        used(says(call("fork", intent="child", wait=True), match="^work"), 3000, 0),
        used(says(sh(nested), match="^work"), 3000, 0),
        used(says(sh(f"{QUINE} --max-tokens 100 less"), match="^work"), 3000, 0),
        used(says(OK, match="^work"), 3000, 0),
        used(says(OK, match="^(child|nested|less)"), 9000, 0),
    )
    done = agents.run(options=("--max-tokens", "80000", "--report", "r.json"))
    assert done.returncode == 0
    child, nested, less = agents.results()
    assert "[TOKENS LEFT] 68000" in child
    assert "[TOKENS LEFT] 56000" in nested
    assert "[EXIT CODE] 77" in less and "of 27100 tokens are used" in less
    report = json.loads((agents.directory / "r.json").read_text())
    assert (report["agents"], report["tokens_in"]) == (4, 12_000)


def test_money(agents: Agents) -> None:
    prices = agents.directory / "prices.toml"
    prices.write_text("[models.dear]\ninput = 10\noutput = 100\n")
    agents.script(*(used(says(sh("true")), 10_000, 1000) for _ in range(9)))
    env = {"QUINE_PRICES": str(prices), "QUINE_MODEL_ID": "dear"}
    done = agents.run(options=("--max-cost", "1", "--report", "r.json"), env=env)
    assert done.returncode == 77
    assert "[COST LEFT] 0.8000 US dollars" in agents.results()[0]
    assert json.loads((agents.directory / "r.json").read_text())["cost"] == pytest.approx(0.8, abs=0.21)
    assert agents.outcome()["termination_mode"] == "budget"


BUY = {
    "a variable": f"QUINE_MAX_DEPTH=99 QUINE_DEPTH=0 QUINE_MAX_TOKENS=999999 QUINE_MAX_AGENTS=99 {QUINE} nested",
    "no memo": f"env -u QUINE_CREDENTIALS_FD QUINE_DEPTH=0 QUINE_MAX_DEPTH=99 QUINE_MAX_AGENTS=99 {QUINE} nested",
    "no environment": "env -i QUINE_API_TYPE=script QUINE_API_BASE=$QUINE_API_BASE QUINE_DATA_DIR=$QUINE_DATA_DIR "
    f"QUINE_MAX_DEPTH=99 {QUINE} nested",
    "no descriptors": f"{sys.executable} ./closing {QUINE} nested",
    "a memo of its own": f"{sys.executable} ./forging {QUINE} nested",
    "another data directory": f"QUINE_DATA_DIR=$PWD/other QUINE_MAX_DEPTH=99 {QUINE} nested",
}


FORGING = """
import os, sys
from transport import inherit
fd = inherit.write({"environ": {}})
os.set_inheritable(fd, True)
OURS = ("QUINE_MAX", "QUINE_DEPTH", "QUINE_ROOT", "QUINE_SESSION")
for name in [name for name in os.environ if name.startswith(OURS)]:
    del os.environ[name]
os.environ[inherit.VARIABLE] = str(fd)
os.execvp(sys.argv[1], sys.argv[1:])
"""
CLOSING = """
import os, subprocess, sys
environ = dict(os.environ, QUINE_MAX_DEPTH="99", QUINE_MAX_AGENTS="99")
del environ["QUINE_CREDENTIALS_FD"]
raise SystemExit(subprocess.run(sys.argv[1:], env=environ).returncode)
"""


@pytest.mark.long
@pytest.mark.parametrize("way", BUY)
@pytest.mark.parametrize(
    ("options", "words"), [(("--max-depth", "1"), "too deep"), (("--max-agents", "1"), "too many agents")]
)
def test_nothing_is_bought_in_sh(agents: Agents, way: str, options: tuple[str, str], words: str) -> None:
    (agents.directory / "closing").write_text(CLOSING)
    (agents.directory / "forging").write_text(FORGING)
    agents.script(says(sh(BUY[way]), match="^work"), says(OK, match="^work"), says(OK, match="^nested"))
    agents.run(options=options)
    assert "[EXIT CODE] 77" in agents.results()[0]
    assert words in agents.results()[0]
    assert len(agents.tapes()) == 1


def test_a_lost_place_is_free_again(agents: Agents) -> None:
    """Two places: this one's, and one that each nested agent takes and gives back, however it ends."""
    agents.script(
        says(sh(f"{QUINE} nested"), sh(f"{QUINE} nested"), match="^work"), says(OK, match="^work"),
        says(sh("kill -9 $PPID"), match="^nested"),
    )  # fmt: skip
    agents.run(options=("--max-agents", "2"))
    assert [result.split("\n")[0] for result in agents.results()] == ["[EXIT CODE] 137"] * 2


def test_exec_keeps_what_belongs_to_the_tree(agents: Agents) -> None:
    agents.script(
        used(says(call("exec", wisdom={"n": "1"}), wisdom="^{}$"), 5000, 0),
        used(says(sh(f"{QUINE} nested"), wisdom="1"), 5000, 0),
        used(says(OK, wisdom="1"), 5000, 0),
    )
    done = agents.run(options=("--max-tokens", "50000", "--max-depth", "1", "--max-agents", "1"))
    assert done.returncode == 0
    last = agents.tapes()[-1]
    (result,) = [e["data"]["content"] for e in last if e["type"] == "tool_result"]
    assert "[EXIT CODE] 77" in result
    assert "[TOKENS LEFT] 40000" in result


# -- time --------------------------------------------------------------------------------------------


@pytest.mark.clock
@pytest.mark.long
def test_the_deadline_is_told_and_then_only_exit_is_taken(agents: Agents) -> None:
    agents.script(
        says(sh("sleep 71194")), says(sh("echo more")), says(call("exit", status=3, stderr="half of it")),
    )  # fmt: skip
    done = agents.run(options=("--deadline", "3"))
    assert (done.returncode, done.stderr) == (3, b"half of it\n")
    results = agents.results()
    assert "[INTERRUPTED]" in results[0]
    assert "[TIME LEFT] 0 s, and then only exit is accepted" in results[0]
    assert "Refused: the time limit is reached" in results[1]


def test_a_guest_that_does_not_end_is_ended(agents: Agents) -> None:
    agents.script({**says(sh("echo more")), "repeat": True})
    done = agents.run(options=("--deadline", "0.5"), env={"QUINE_MAX_TURNS": "0"})
    assert done.returncode == 124
    assert agents.outcome()["termination_mode"] == "timeout"


def answered_late(agents: Agents, program: str) -> dict[str, str]:
    """The environment of an agent whose guest is this program. It waits 0.2 s for its last answer, a fork 1.5 s."""
    path = agents.directory / "guest"
    path.write_text(f"#!/bin/sh\n{program}\n")
    path.chmod(0o755)
    (agents.directory / "sitecustomize.py").write_text(
        "import os, quine.agent.signals\n"
        "first = os.getpid()\n"
        "class Answer:\n"
        "    def __getitem__(self, n): return 0.2 if os.getpid() == first else 1.5\n"
        "quine.agent.signals.ANSWER = Answer()\n"
    )
    return {
        "QUINE_API_TYPE": "program",
        "QUINE_API_BASE": str(path),
        "PYTHONPATH": str(agents.directory),
    }


@pytest.mark.clock
def test_a_child_that_is_not_waited_for_ends_by_the_deadline_itself(agents: Agents) -> None:
    """Its parent ends at the second SIGALRM, and sends it no TERM: it has the same deadline, and its own outcome."""
    fork = '{"tool_calls": [{"name": "fork", "arguments": {"intent": "child", "wait": false}}]}'
    first = agents.directory / "first"
    env = answered_late(agents, f"cat >/dev/null; mkdir {first} || exec sleep 71196; echo '{fork}'")
    done = agents.run(options=("--deadline", "2"), env=env)
    assert done.returncode == 124
    assert agents.outcome()["termination_mode"] == "timeout"
    until(lambda: list(agents.data.glob("jobs/*/status")))
    (status,) = agents.data.glob("jobs/*/status")
    assert json.loads(status.read_text()) == {"code": 124, "state": "exited", "signal": "", "detail": ""}
    assert agents.outcome("child")["termination_mode"] == "timeout"


def test_an_inference_that_never_ends_is_ended(agents: Agents) -> None:
    """The deadline does not cut an inference short, but it does not wait for it for ever either."""
    done = agents.run(options=("--deadline", "1"), env=answered_late(agents, "exec sleep 71195"))
    assert done.returncode == 124
    assert b"the time of the tree is over" in done.stderr
    assert agents.outcome()["termination_mode"] == "timeout"


@pytest.mark.clock
@pytest.mark.long
def test_the_deadline_is_the_trees(agents: Agents) -> None:
    """It goes through fork, exec and a nested agent, and none of them gets more of it."""
    agents.script(
        says(call("fork", intent="child", wait=True), match="^work"), says(OK, match="^work"),
        says(call("exec", wisdom={"n": "1"}), match="^child", wisdom="^{}$"),
        says(sh(f"QUINE_DEADLINE=1000 {QUINE} nested"), match="^child", wisdom="1"),
        says(sh("sleep 71171"), match="^nested"),
        says(call("exit", status=4, stderr="no time"), match="^nested"),
        {**says(call("exit", status=5, stderr="no time")), "repeat": True},
    )  # fmt: skip
    done = agents.run(options=("--deadline", "6"))  # by then the last of the three has begun
    assert done.returncode in (0, 5)
    modes = {tape[0]["data"]["mission"]: tape[-1]["data"]["exit_code"] for tape in agents.tapes()}
    assert modes["nested"] in (4, 143)


def test_no_time_left_is_no_life(agents: Agents) -> None:
    agents.script(says(sh(f"sleep 1.2; {QUINE} nested"), match="^work"), {**says(OK), "repeat": True})
    agents.run(options=("--deadline", "1"))
    assert len(agents.tapes()) == 1
