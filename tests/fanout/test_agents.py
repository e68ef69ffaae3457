"""`quine xargs MISSION`: an agent for each item, one tree and one ledger for all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.support.agents import OK, call, says
from tests.support.remote_agents import tapes

UPPER = [says(call("sh", command="tr a-z A-Z <&3 >&4; echo $QUINE_NODE_NAME >&4")), says(OK)]


def with_guest(lab: Lab, tmp_path: Path, lines: list[dict[str, object]]) -> dict[str, str]:
    return {**lab.script(lines, "xargs.jsonl"), "QUINE_DATA_DIR": str(tmp_path / "data")}


@pytest.mark.parametrize("where", [[], ["--on", "h1"]])
def test_an_item_is_the_material_of_its_agent(lab: Lab, tmp_path: Path, where: list[str]) -> None:
    env = with_guest(lab, tmp_path, UPPER)
    done = lab.run(["xargs", "-k", "--json", *where, "shout"], input="a\nb\n", env=env)
    assert (done.returncode, done.stderr) == (0, b"")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    name = "h1" if where else ""
    assert [entry["stdout"] for entry in found] == [f"A\n{name}\n", f"B\n{name}\n"]
    assert (
        {entry["id"] for entry in found} == {entry["session"] for entry in found} == set(_sessions(tmp_path))
    )


def _sessions(tmp_path: Path) -> list[str]:
    return [path.stem for path in (tmp_path / "data").glob("*.jsonl")]


def test_an_item_in_the_mission_and_one_tree(lab: Lab, tmp_path: Path) -> None:
    env = with_guest(lab, tmp_path, [says(OK)])
    done = lab.run(["xargs", "look at {}", ":::", "a b", "{}"], env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    first = [tape[0]["data"] for tape in tapes(tmp_path / "data").values()]
    assert sorted(meta["mission"] for meta in first) == ["look at a b", "look at {}"]
    assert len({meta["root_session_id"] for meta in first}) == 1


def test_an_agent_without_a_place_waits(lab: Lab, tmp_path: Path) -> None:
    """Two places: with three at one time the third could not see itself as one of two."""
    count = 'echo x >"$0"; ls live | wc -l >&4; rm "$0"'
    command = f"mkdir -p live; sh -c '{count}' live/$QUINE_SESSION_ID"
    env = with_guest(lab, tmp_path, [says(call("sh", command=command)), says(OK)])
    words = ["xargs", "--max-agents", "2", "count {}", ":::", *"123456"]
    done = lab.run(words, env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(done.stdout.split()) == 6 and set(done.stdout.split()) <= {b"1", b"2"}


def test_a_budget_that_is_spent_stops_the_batch_and_resuming_goes_on(lab: Lab, tmp_path: Path) -> None:
    usage = {"usage": {"input": 1200, "output": 60}}
    env = with_guest(lab, tmp_path, [{**line, **usage} for line in UPPER])
    words = ["xargs", "-k", "-P1", "--joblog", "log"]
    items = ["shout {}", ":::", "a", "b", "c", "d"]
    done = lab.run([*words, "--max-tokens", "5000", *items], env=env, cwd=tmp_path)
    assert (
        done.returncode == 77 and b"quine: stopped: the budget of the batch is spent; 1 done" in done.stderr
    )
    done = lab.run([*words, "--max-tokens", "500000", "--resume", *items], env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [line.split("\t") for line in (tmp_path / "log").read_text().splitlines()[1:]]
    assert sorted((row[0], row[12]) for row in rows) == [(number, "done") for number in "1234"]


def test_a_budget_that_is_used_up_by_the_last_item_stops_nothing(lab: Lab, tmp_path: Path) -> None:
    usage = {"usage": {"input": 1200, "output": 60}}
    env = with_guest(lab, tmp_path, [{**line, **usage} for line in UPPER])
    done = lab.run(["xargs", "--max-tokens", "5000", "shout {}", ":::", "a"], env=env, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_time_of_the_batch(lab: Lab, tmp_path: Path) -> None:
    env = with_guest(lab, tmp_path, [says(call("sh", command="sleep 1000")), says(OK)])
    done = lab.run(["xargs", "-P1", "--deadline", "1", "wait {}", ":::", "a", "b"], env=env, cwd=tmp_path)
    assert done.returncode == 77 and b"quine: stopped: the budget of the batch is spent; " in done.stderr


@pytest.mark.parametrize("status", [1, 5])
def test_a_verdict_is_a_failure(lab: Lab, tmp_path: Path, status: int) -> None:
    env = with_guest(lab, tmp_path, [says(call("exit", status=status, stderr="no"))])
    done = lab.run(["xargs", "--json", "judge {}", ":::", "a"], env=env)
    assert done.returncode == 123
    entry = json.loads(done.stdout)
    assert (entry["state"], entry["code"]) == ("failed", status)


def test_without_a_guest_nothing_is_begun(lab: Lab) -> None:
    done = lab.run(["xargs", "--joblog", "no-log", "judge {}", ":::", "a"])
    assert done.returncode == 2 and b"quine: error: no guest" in done.stderr
    assert not (lab.work / "no-log").exists()
