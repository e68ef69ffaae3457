"""quine ps shows what of quine runs on this machine: agents of any data directory, proxies, queued jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quine.base.cli_options import RunOptions
from quine.jobs.client import LONG, Notes
from tests.lab import Lab
from tests.support.agents import OK, QUINE, Agents, call, says, sh
from tests.support.detached import go as go
from tests.support.machine import only_node
from tests.support.remote_agents import environment, leave
from tests.support.waiting import until


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive a failure."""
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=120)


def parsed(out: str | bytes) -> dict[str, dict[str, Any]]:
    """Of ps --json, by mission or command."""
    return {fact["mission"]: fact for fact in map(json.loads, out.splitlines())}


def from_elsewhere(agents: Agents, *words: str) -> subprocess.CompletedProcess[str]:
    """From another directory, with another data directory."""
    other = agents.directory / "other"
    other.mkdir(exist_ok=True)
    return agents.quine(*words, cwd=other, env={"QUINE_DATA_DIR": str(other / "data")})


def test_an_agent_is_listed_and_killed_from_any_directory(agents: Agents) -> None:
    agents.script(says(sh("true")), says(sh("touch up; sleep 60")))
    with agents.start("work") as process:
        until((agents.directory / "up").exists, "it runs")
        fact = parsed(from_elsewhere(agents, "ps", "--json").stdout)["work"]
        assert (fact["pid"], fact["state"], fact["kind"]) == (process.pid, "running", "agent")
        assert (fact["turns"], fact["doing"]) == (2, "sh touch up; sleep 60")
        assert from_elsewhere(agents, "kill", fact["id"]).returncode == 0
        assert process.wait(120) == -signal.SIGTERM
        process.communicate(timeout=120)
    assert "work" not in parsed(from_elsewhere(agents, "ps", "-a", "--json").stdout)


def test_a_reader_of_a_tape_is_no_agent(agents: Agents) -> None:
    agents.run(says(OK))
    (path,) = agents.data.glob("*.jsonl")
    with open(path) as tape, subprocess.Popen(["sleep", "60"], stdin=tape, env=agents.env) as reader:
        assert parsed(from_elsewhere(agents, "ps", "--json").stdout) == {}
        reader.kill()


def test_an_agent_with_another_runtime_directory_is_of_another_session(agents: Agents) -> None:
    agents.script(says(sh("touch up; sleep 60")))
    own = agents.directory / "run"
    own.mkdir(mode=0o700)
    with agents.start("work", env={"XDG_RUNTIME_DIR": str(own)}) as process:
        until((agents.directory / "up").exists, "it runs")
        assert parsed(from_elsewhere(agents, "ps", "--json").stdout) == {}
        process.terminate()
        process.communicate(timeout=120)


def test_follow_lists_again_when_something_has_happened(agents: Agents) -> None:
    agents.script(says(sh("touch up; sleep 60")))
    following = subprocess.Popen(
        [*QUINE, "ps", "-f", "--json"], cwd=agents.directory, env=agents.env, stdout=subprocess.PIPE
    )
    with following, agents.start("work") as process:
        assert following.stdout
        assert json.loads(following.stdout.readline())["pid"] == process.pid
        process.terminate()
        process.communicate(timeout=120)
        following.terminate()


@pytest.mark.parametrize("moves", [False, True])
def test_an_agent_on_a_host_is_its_process_here(lab: Lab, tmp_path: Path, go: Path, moves: bool) -> None:
    """The hosts of a lab share its kernel, as containers do: the process that they tell is no process of the origin."""
    steps = [says(sh(f"echo up >&4; read x <{go}"), wisdom="n" if moves else ".*")]
    if moves:
        steps.insert(0, says(call("exec", host="h1", wisdom={"n": "1"}), wisdom="^\\{\\}$"))
    env = environment(lab, tmp_path / "data", *steps)
    where = [] if moves else ["--on", "h1"]
    with ended(
        lab.popen([*where, "work"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ) as process:
        assert process.stdout and process.stdout.readline() == b"up\n"
        (fact,) = map(json.loads, lab.run(["ps", "--json"], env=env, check=True).stdout.splitlines())
        assert (fact["pid"], fact["state"], fact["host"]) == (process.pid, "running", "h1")
        assert lab.run(["wait", "--timeout", "0", fact["id"]], env=env).returncode == 124
        assert lab.run(["kill", fact["id"]], env=env).returncode == 0
        assert process.wait(120) == -signal.SIGTERM
    assert lab.run(["wait", fact["id"]], env=env).returncode == 143


def test_a_command_on_a_host_and_one_that_waits_for_its_slot_are_listed(
    lab: Lab, tmp_path: Path, go: Path
) -> None:
    text = lab.inventory.read_text().replace('[hosts."h1"]', '[hosts."h1"]\nslots = 1')
    inventory = tmp_path / "one.toml"
    inventory.write_text(text)
    words = ["run", "-v", "--inventory", str(inventory), "--on", "h1", "--", "sh", "-c"]
    with ended(
        lab.popen([*words, f"echo up; read x <{go}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ) as first:
        assert first.stdout and first.stdout.readline() == b"up\n"
        with ended(lab.popen([*words, f"read x <{go}; exit 5"], stderr=subprocess.PIPE)) as second:
            assert second.stderr
            line = second.stderr.readline()
            assert line == b"quine: h1: no free slot for 0 s, waiting; jobs ahead: 0\n"

            def facts() -> dict[int, dict[str, Any]]:
                lines = lab.run(["ps", "--json"], cwd=tmp_path, check=True).stdout.splitlines()
                return {fact["pid"]: fact for fact in map(json.loads, lines)}

            mine = facts()
            states = [(mine[one.pid]["state"], mine[one.pid]["host"]) for one in (first, second)]
            assert states == [("running", "h1"), ("queued", "h1")]
            assert {mine[one.pid]["kind"] for one in (first, second)} == {"proxy"}
            there = parsed(lab.run(["ps", "--on", "h1", "--json"], check=True).stdout)
            assert [
                fact["state"] for fact in there.values() if f"echo up; read x <{go}" in fact["mission"]
            ] == ["running"]
            assert lab.run(["kill", mine[first.pid]["id"]]).returncode == 0
            assert first.wait(120) == -signal.SIGTERM
            until(lambda: facts()[second.pid]["state"] == "running", "the slot is free")
            go.write_text("\n")
            assert second.wait(120) == 5

    assert not {first.pid, second.pid} & facts().keys()


def test_a_command_whose_files_are_laid_out_first_is_listed_as_its_user_wrote_it(
    lab: Lab, tmp_path: Path, go: Path
) -> None:
    """`ps` of its host left it out, as a verb of quine itself, and `node --stop` there would have ended it unasked."""
    (tmp_path / "f").write_text("f\n")
    script = f"cat f; read x <{go}"
    words = ["run", "--on", "h1", "--files", "f", "--", "sh", "-c", script]
    with ended(lab.popen(words, stdout=subprocess.PIPE, cwd=tmp_path)) as client:
        assert client.stdout and client.stdout.readline() == b"f\n"
        for here in ([], ["--on", "h1"]):
            listed = parsed(lab.run(["ps", *here, "--json"], check=True).stdout)
            assert f"sh -c {script}" in [fact["mission"] for fact in listed.values()]
        done = lab.run(["run", "--on", "h1", "--", "quine", "node", "--stop"])
        assert done.returncode == 1 and b"would end with it: " in done.stderr
        go.write_text("\n")
        assert client.wait(120) == 0


def test_a_command_on_a_host_that_was_stopped_is_listed_so_and_ends_by_term(lab: Lab) -> None:
    words = ["run", "--on", "h1", "--", "sh", "-c", "echo $$; exec sleep 4713"]
    with ended(lab.popen(words, stdout=subprocess.PIPE)) as client:
        assert client.stdout
        os.kill(int(client.stdout.readline()), signal.SIGSTOP)
        there = parsed(lab.run(["ps", "--on", "h1", "--json"], check=True).stdout)
        assert [fact["state"] for fact in there.values() if "sleep 4713" in fact["mission"]] == ["stopped"]
        client.terminate()
        assert client.wait(120) == -signal.SIGTERM


def test_an_agent_elsewhere_is_one_line_with_its_host(lab: Lab, tmp_path: Path, go: Path) -> None:
    data = tmp_path / "data"
    waits = {
        "match": "",
        "reply": {"tool_calls": [{"name": "sh", "arguments": {"command": f"read x <{go}"}}]},
    }
    env = environment(lab, data, waits, leave())
    with ended(lab.popen(["--on", "h1", "away"], env=env, stderr=subprocess.PIPE)) as proxy:

        def found() -> list[dict[str, Any]]:
            lines = lab.run(["ps", "--on", "h1", "--json"], env=env, check=True).stdout.splitlines()
            return [fact for fact in map(json.loads, lines) if "away" in fact["mission"]]

        until(lambda: [fact for fact in found() if fact["doing"].startswith("sh")], "it reads")
        (fact,) = found()
        assert (fact["host"], fact["state"], fact["down"]) == ("h1", "running", 0)
        go.write_text("\n")
        assert proxy.wait(120) == 0


def test_a_wait_for_a_slot_is_told_once_when_it_takes_long(capfd: pytest.CaptureFixture[str]) -> None:
    short = {"waiting": True, "seconds": 0.0, "host": "h1", "ahead": 3}
    long = {**short, "seconds": LONG}
    for links in (False, True):
        notes = Notes(RunOptions(), False, links=links)
        for note in (short, long, long):
            notes.hear(note)
        assert capfd.readouterr().err == "quine: h1: no free slot for 10 s, waiting; jobs ahead: 3\n"
    Notes(RunOptions(quiet=True), False).hear(long)
    assert capfd.readouterr().err == ""


def test_a_node_that_does_not_answer_is_told_of_once(capfd: pytest.CaptureFixture[str]) -> None:
    for links in (False, True):
        Notes(RunOptions(), False, links=links).hear({"silent": "/log"})
        said = "quine: the node of this machine does not answer, waiting; look at /log\n"
        assert capfd.readouterr().err == said
    Notes(RunOptions(quiet=True), False).hear({"silent": "/log"})
    assert capfd.readouterr().err == ""


@pytest.mark.long
def test_a_list_without_what_the_node_here_knows_is_not_success(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"])
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    node = only_node(lab).pid
    os.kill(node, signal.SIGSTOP)
    try:
        for words in (["ps"], ["ps", "--all", "--json"]):
            done = lab.run(words)
            assert done.returncode == 69
            assert done.stderr.startswith(b"quine: error: the node of this machine does not answer\n")
            assert done.stderr.count(b"error") == 1
    finally:
        os.kill(node, signal.SIGCONT)
    assert lab.run(["ps"]).returncode == 0


@pytest.mark.long
def test_a_command_whose_node_does_not_answer_says_so_and_waits(own_lab: Callable[..., Lab]) -> None:
    """The three seconds of silence pass."""
    lab = own_lab(["h1"])
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    node = only_node(lab).pid
    os.kill(node, signal.SIGSTOP)
    try:
        with ended(
            lab.popen(
                ["run", "--on", "local", "--", "echo", "x"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        ) as client:
            assert client.stderr and client.stdout
            assert client.stderr.readline().startswith(b"quine: the node of this machine does not answer, ")
            os.kill(node, signal.SIGCONT)
            assert client.wait(120) == 0
            assert (client.stdout.read(), client.stderr.read()) == (b"x\n", b"")
    finally:
        os.kill(node, signal.SIGCONT)
