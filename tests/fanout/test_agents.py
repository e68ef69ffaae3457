"""`quine xargs MISSION`: an agent for each item, one tree and one ledger for all of them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.support.agents import OK, call, says, until
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


@pytest.mark.parametrize("where", [[], ["--on", "h1,h2"]])
def test_a_limit_of_cost_stops_the_batch_delivers_what_is_finished_and_goes_on(
    lab: Lab, tmp_path: Path, where: list[str]
) -> None:
    """Eight agents of 0.006 USD each, three at one time, and 0.02 USD; then as much as is needed."""
    usage = {"usage": {"input": 1000, "output": 125}}  # 0.003 USD an inference
    env = with_guest(lab, tmp_path, [{**line, **usage} for line in UPPER])
    (tmp_path / "prices.toml").write_text('[models]\n"script" = { input = 2.0, output = 8.0 }\n')
    env["QUINE_PRICES"] = str(tmp_path / "prices.toml")
    words = ["xargs", "-k", "-P3", *where, "--joblog", "log", "--report", "r"]
    items = ["shout", ":::", *(f"item{number}" for number in range(8))]

    def run(*options: str) -> tuple[int, set[str], dict[str, str], dict[str, object]]:
        done = lab.run([*words, *options, *items], env=env, cwd=tmp_path)
        rows = [line.split("\t") for line in (tmp_path / "log").read_text().splitlines()[1:]]
        shown = {line.lower() for line in done.stdout.decode().split() if line.startswith("ITEM")}
        return (
            done.returncode,
            shown,
            {row[0]: row[12] for row in rows},
            json.loads((tmp_path / "r").read_text()),
        )

    status, first, log, report = run("--max-cost", "0.02")
    done = {f"item{int(number) - 1}" for number, kind in log.items() if kind == "done"}
    assert status == report["code"] == 77 and report["spent"] is True
    assert 0 < len(done) < 8 and first == done, "an output is delivered if its item is done, and only then"
    assert set(log.values()) <= {"done", "denied"}
    assert 0 < report["cost"] <= 0.02  # type: ignore[operator]
    status, second, log, report = run("--max-cost", "1", "--resume")
    assert (status, report["code"], report["spent"]) == (0, 0, False)
    assert not first & second and len(first | second) == 8
    assert set(log.values()) == {"done"} and len(log) == 8


@pytest.mark.parametrize("where", ["local", "few"])
def test_of_the_agents_of_a_batch_that_is_killed_those_that_began_are_lost_and_end(
    lab: Lab, tmp_path: Path, where: str
) -> None:
    """Their inferences were made and paid for by it, each once. Those that wait for a slot never began, and are run."""
    lab.alias("few", "h1", slots=2)
    began = 2 if where == "few" else 4
    ran = tmp_path / "ran"
    waits = f"echo $QUINE_SESSION_ID >>{ran}; until test -e {tmp_path}/go; do sleep 0.05; done"
    env = with_guest(lab, tmp_path, [says(call("sh", command=waits)), says(OK)])
    words = ["xargs", "-P4", "--on", where, "--joblog", "log", "--resume", "look at {}", ":::", *"12345"]
    with lab.popen(words, env=env, cwd=tmp_path) as process:
        until(lambda: ran.exists() and len(ran.read_text().split()) == began)
        until(lambda: (tmp_path / "log.started").read_text().count(" -\n") >= 4)
        process.kill()
    first = set(ran.read_text().split())
    until(lambda: not [job for job in (*lab.jobs(), *lab["h1"].jobs()) if f"{tmp_path}/go" in str(job)])
    spent = {tape[0]["data"]["session_id"]: inferences(tape) for tape in tapes(tmp_path / "data").values()}
    assert spent == dict.fromkeys(first, 1)
    (tmp_path / "go").touch()
    done = lab.run(words, env=env, cwd=tmp_path)
    assert done.returncode == 74 and done.stderr.count(b"no host has it or its end any more") == began
    rows = [line.split("\t") for line in (tmp_path / "log").read_text().splitlines()[1:]]
    assert Counter(row[12] for row in rows) == {"lost": began, "done": 5 - began}
    assert {row[10] for row in rows if row[12] == "lost"} == first
    assert len(ran.read_text().split()) == 5
    assert sorted(map(inferences, tapes(tmp_path / "data").values())) == [1] * began + [2] * (5 - began)


def inferences(tape: list[dict[str, Any]]) -> int:
    return sum(entry["type"] == "message" and entry["data"]["role"] == "assistant" for entry in tape)
