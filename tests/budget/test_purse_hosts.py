"""One budget for agents on hosts, and for the agents of `quine xargs`. Against real sshd."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from tests.lab import Lab
from tests.support.agents import OK, Started, says, sh, until
from tests.support.rights import ordinary

DONE = {**says(OK), "usage": {"input": 1000, "output": 100}}


def script(lab: Lab, tmp_path: Path, *lines: dict[str, Any]) -> dict[str, str]:
    return {
        **lab.script(list(lines), "purse.jsonl"),
        "QUINE_DATA_DIR": str(tmp_path / "data"),
        "QUINE": lab.quine,
        "GO": str(tmp_path),
    }


def shown(lab: Lab, command: str) -> list[dict[str, Any]]:
    done = lab.run(["budget", "show", "--json"])
    assert (done.returncode, done.stderr) == (0, b"")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row for row in rows if command in row["command"]]


def test_the_proxies_of_agents_on_hosts_pay(lab: Lab, tmp_path: Path) -> None:
    env = script(lab, tmp_path, DONE)
    line = "for n in 1 2; do for on in h1 h2 local; do echo $on; done; done"
    line += " | xargs -P 3 -I{} sh -c '$QUINE --on {} work 2>>err; echo $?'; $QUINE budget show --json"
    done = lab.run(["budget", "--max-tokens", "5k", "--", "sh", "-c", line], env=env, cwd=tmp_path)
    *ends, last = done.stdout.splitlines()
    assert set(ends) == {b"0", b"77"} and len(ends) == 6
    found = json.loads(last)
    assert found["tokens"] == 1100 * ends.count(b"0") <= 5000
    assert b"tokens are used" in (tmp_path / "err").read_bytes()


def test_a_raise_reaches_an_agent_on_a_host(lab: Lab, tmp_path: Path) -> None:
    """It hears of it with its next reply; without it, that one would be its last but one."""
    waits = sh(f"touch {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")
    env = script(
        lab, tmp_path, {**says(waits), "usage": {"input": 1000, "output": 100}},
        *[{**says(sh("true")), "usage": {"input": 4000, "output": 100}}] * 2, DONE,
    )  # fmt: skip
    words = ["budget", "--max-tokens", "7000", "--", "sh", "-c", "exec $QUINE --on h1 raised"]
    with lab.popen(words, env=env, cwd=tmp_path) as process:
        until((tmp_path / "began").exists)
        (found,) = shown(lab, "raised")
        assert found["running"] == 1
        assert lab.run(["budget", "raise", found["id"], "--max-tokens", "90k"]).returncode == 0
        (tmp_path / "go").touch()
        assert process.wait(100) == 0


def test_a_node_that_is_started_below_a_budget_is_not_of_it(lab: Lab, tmp_path: Path) -> None:
    """It outlives the command that needed it; agents that it starts for others have their own budgets."""
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as runtime:  # of a node of this test alone
        env = {**script(lab, tmp_path, DONE), "XDG_RUNTIME_DIR": runtime}
        line = "$QUINE run --on local -- true && touch $GO/up && while [ ! -e $GO/go ]; do sleep 0.02; done"
        words = ["budget", "--max-tokens", "100", "--", "sh", "-c", line]
        with lab.popen(words, env=env, cwd=tmp_path) as process:
            try:
                until((tmp_path / "up").exists)
                inner = 'exec "$QUINE" plain'
                job = ["run", "--on", "local", *(f"--env={name}" for name in env), "--", "sh", "-c", inner]
                done = lab.run(job, env=env, cwd=tmp_path)
                assert (done.returncode, done.stderr) == (0, b"")
                done = lab.run(["--on", "local", "plain"], env=env, cwd=tmp_path)
                assert (done.returncode, done.stderr) == (0, b"")
            finally:
                (tmp_path / "go").touch()
            assert process.wait(60) == 0
        lab.run(["node", "--stop", "--force"], env=env, check=True)


def test_a_detached_agent_draws_on_the_budget_it_was_started_below(lab: Lab, tmp_path: Path) -> None:
    env = script(lab, tmp_path, DONE)
    line = "id=$($QUINE --detach work); $QUINE wait $id; echo $?; $QUINE budget show --json"
    done = lab.run(["budget", "--max-tokens", "3000", "--", "sh", "-c", line], env=env, cwd=tmp_path)
    status, last = done.stdout.splitlines()
    assert status == b"0" and json.loads(last)["tokens"] == 1100


def test_a_batch_is_a_budget(lab: Lab, tmp_path: Path) -> None:
    """Also to an ordinary user who has a key in the environment: no process of the batch is closed to its user."""
    waits = sh(f"touch {tmp_path}/began; while [ ! -e {tmp_path}/go ]; do sleep 0.02; done")
    env = script(lab, tmp_path, {**says(waits), "usage": {"input": 1000, "output": 100}}, DONE)
    env = lab.overlaid({**env, "QUINE_API_KEY": "k-1234567"})
    words = ["xargs", "-P1", "--max-tokens", "9000", "batch {}", ":::", *"abcde"]
    more = {"env": env, "cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}

    def told(*words: str) -> bytes:
        return subprocess.run(words, env=env, capture_output=True, check=True).stdout

    with Started([*(quine := [*ordinary(), lab.quine]), *words], **more) as process:
        until((tmp_path / "began").exists)
        (found,) = map(json.loads, told(*quine, "budget", "show", "--json").splitlines())
        assert (found["max_tokens"], found["running"], found["pid"]) == (9000, 1, process.pid)
        assert told(*quine, "budget", "raise", found["id"], "--max-tokens", "90k") == b""
        (tmp_path / "go").touch()
        _, errors = process.communicate(timeout=100)
        assert (process.returncode, errors) == (0, b"")
    assert len(list((tmp_path / "data").glob("*.jsonl"))) == 5
