"""Jobs on other hosts when the node of this machine is killed: they are ended, and their end has a reason."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.support.remote_agents import environment
from tests.support.waiting import read_until, until
from tests.system.breaks import proxy_process


def killed_with_its_node(lab: Lab) -> None:
    status = json.loads(lab.run(["node", "--status", "--json"], check=True).stdout)
    for pid in (status["launcher"], status["pid"]):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.long
def test_what_a_killed_node_ran_elsewhere_ends_when_the_next_one_comes_there(
    own_lab: Callable[..., Lab],
) -> None:
    """No new node can resume the job. A job detached on the host belongs to no client, and goes on."""
    lab = own_lab(["h1"])
    done = lab.run(["run", "--detach", "--on", "h1", "--", "sleep", "4711"], check=True)
    with proxy_process(lab, "run", "--on", "h1", "--", "sh", "-c", "echo up; exec sleep 4712") as client:
        assert client.stdout and client.stderr
        read_until(client.stdout.fileno(), b"up")
        killed_with_its_node(lab)
        assert client.wait(60) == 74
        assert b"the next command that reaches h1 ends it" in client.stderr.read()

    def commands() -> list[tuple[str, ...]]:
        return [process.argv for process in lab["h1"].processes() if process.argv[0] == "sleep"]

    assert sorted(commands()) == [("sleep", "4711"), ("sleep", "4712")]
    lab.run(["ps", "--on", "h1"], check=True)
    until(lambda: commands() == [("sleep", "4711")], "only what was detached goes on")
    lab.run(["kill", done.stdout.decode().strip()], check=True)


@pytest.mark.long
def test_an_agent_whose_node_here_was_killed_is_ended_by_its_proxy(
    own_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = own_lab(["h1"])
    waits = {"reply": {"tool_calls": [{"name": "sh", "arguments": {"command": "touch up; sleep 600"}}]}}
    env = environment(lab, tmp_path / "data", waits)
    done = lab.run(["--detach", "--on", "h1", "adrift"], env=env, check=True)
    job = done.stdout.decode().strip()

    def listed(*words: str) -> list[dict[str, Any]]:
        lines = lab.run(["ps", "--json", *words], env=env, check=True).stdout.splitlines()
        return [fact for fact in map(json.loads, lines) if fact["id"] == job]

    until(lambda: [fact for fact in listed() if fact["doing"].startswith("sh")], "it works over there")
    killed_with_its_node(lab)
    done = lab.run(["wait", job], env=env)
    assert done.returncode == 74
    assert f"quine: error: {job}: lost: ".encode() in done.stderr
    assert b"quine: hint: the next command that reaches h1 ends it, or else its lease does" in done.stderr
    until(lambda: not lab["h1"].jobs(), "it is gone, and nobody else has asked for that")
    (fact,) = listed("--on", "h1", "--all")
    assert fact["state"] == "lost"
    done = lab.run(["kill", job], env=env)
    assert (done.returncode, done.stderr) == (1, f"quine: error: {job}: it has ended\n".encode())
