"""How a session ended has one answer: ps, wait, tape tree, tape verify and the parent tell the same of each way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from quine.base.sessions import new_session
from quine.cli import job_verbs
from quine.tape import registry
from tests.lab import Lab
from tests.support.agents import OK, QUINE, Agents, call, says, sh, until
from tests.support.remote_agents import environment, leave
from transport.address import boot_id, start_time


def quine(agents: Agents, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*QUINE, *words], cwd=agents.directory, env=agents.env, capture_output=True, text=True, timeout=120
    )


def facts(lines: str) -> dict[str, dict[str, Any]]:
    """Of ps --json, by mission."""
    return {fact["mission"]: fact for fact in map(json.loads, lines.splitlines())}


def exits(tree: str) -> dict[str, str]:
    """The EXIT of each line of a tree, by mission."""
    return {line.split()[-1]: line.split()[2] for line in tree.splitlines()[1:]}


WAYS = {
    "exit": (says(call("exit", status=5, stderr="five"), match="^child"), "exited", 5),
    "signal": (says(sh("kill -TERM $PPID; sleep 60"), match="^child"), "signaled", 143),
    "kill": (says(sh("kill -KILL $PPID; sleep 60"), match="^child"), "signaled", 137),
    "program": (says(call("exec", argv=["sh", "-c", "exit 3"]), match="^child"), "exited", 3),
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("wait", [True, False])
def test_of_a_child_all_verbs_tell_what_its_parent_saw(agents: Agents, way: str, wait: bool) -> None:
    child, state, code = WAYS[way]
    behind = [] if wait else [sh('quine wait $(ls "$QUINE_DATA_DIR/jobs"); true')]
    agents.run(
        says(call("fork", intent="child", wait=wait), *behind, sh("true"), match="^work"),
        says(OK, match="^work"),
        child,
    )
    assert any(f"[EXIT CODE] {code}" in told or f"exit code {code}" in told for told in agents.results())
    fact = facts(quine(agents, "ps", "-a", "--json").stdout)["child"]
    assert (fact["state"], fact["code"]) == (state, code)
    assert quine(agents, "wait", fact["id"]).returncode == code
    assert exits(quine(agents, "tape", "tree").stdout)["child"] == str(code)
    verified = quine(agents, "tape", "verify", fact["id"]).stdout
    assert ("no outcome: its process died without recording" in verified) == (way == "kill")
    assert "running" not in verified


@pytest.mark.long
def test_a_child_that_never_started_is_told_by_all_verbs(agents: Agents) -> None:
    agents.run(
        says(call("fork", intent="child", host="nowhere", wait=True), match="^work"), says(OK, match="^work")
    )
    assert "[EXIT CODE] 69" in agents.results()[0]
    fact = facts(quine(agents, "ps", "-a", "--json").stdout)["child"]
    assert (fact["state"], fact["code"], fact["host"]) == ("unreachable", 69, "nowhere")
    root = agents.tape()[0]["data"]["session_id"]
    assert (fact["parent"], fact["root"]) == (root, root)
    done = quine(agents, "wait", fact["id"])
    assert done.returncode == 69
    assert f"quine: error: {fact['id']}: unreachable: " in done.stderr
    assert exits(quine(agents, "tape", "tree").stdout)["child"] == "69"
    for verb in ("attach", "logs"):
        done = quine(agents, verb, fact["id"])
        assert (done.returncode, "it never started" in done.stderr) == (1, True)


@pytest.mark.parametrize(("tape", "state"), [(True, "exited"), (False, "denied")])
def test_a_session_that_has_a_tape_has_started_whatever_its_job_says(
    tmp_path: Path, tape: bool, state: str
) -> None:
    """Any process that it left behind can write the status of its job."""
    session = new_session()
    job = tmp_path / "jobs" / session
    job.mkdir(parents=True)
    (job / "job").write_text(json.dumps({"session": session, "intent": "work", "host": "local"}))
    (job / "status").write_text(json.dumps({"code": 77, "state": "denied", "signal": "", "detail": ""}))
    if tape:
        lines = [("meta", {"session_id": session, "born": "fork"}), ("outcome", {"exit_code": 0})]
        entries = [
            json.dumps({"type": kind, "data": data, "seq": n, "ts": 1})
            for n, (kind, data) in enumerate(lines)
        ]
        (tmp_path / f"{session}.jsonl").write_text("\n".join(entries) + "\n")
    (agent,) = registry.find(session, str(tmp_path))
    assert agent.state() == state


@pytest.mark.parametrize("facts", [{"told_by": "h1"}, {"pid_space": "pid:[1]"}])
def test_a_process_that_another_machine_tells_is_none_of_here(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], facts: dict[str, str]
) -> None:
    """A container has our boot and our clock. A host that lies would have `quine kill` end a process of ours."""
    session = new_session()
    with subprocess.Popen(["sleep", "60"]) as victim:
        mine = {"pid": victim.pid, "started": start_time(victim.pid), "boot_id": boot_id(), **facts}
        meta = {"session_id": session, "node": os.uname().nodename, "mission": "work", **mine}
        (tmp_path / f"{session}.jsonl").write_text(json.dumps({"type": "meta", "data": meta, "ts": 1}) + "\n")
        (agent,) = registry.find(session, str(tmp_path))
        assert (agent.alive, agent.holds(), agent.known_here, agent.verdict().state) == (
            False,
            [],
            False,
            "unknown",
        )
        assert job_verbs.main("kill", ["--data-dir", str(tmp_path), session]) == 1
        assert "its process is not known here" in capfd.readouterr().err
        assert victim.poll() is None
        victim.kill()


@pytest.mark.parametrize("told", [False, True])
def test_a_detached_job_without_its_supervisor_is_lost_whatever_its_process_left(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], told: bool
) -> None:
    """The exit word of a zombie, or an outcome on the tape, says nothing of the output that nobody has read."""
    session = new_session()
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        facts = {"pid": process.pid, "started": start_time(process.pid), "boot_id": boot_id()}
        job = tmp_path / "jobs" / session
        job.mkdir(parents=True)
        supervisor = {"supervisor": process.pid, "supervisor_started": 1, "node": os.uname().nodename}
        (job / "job").write_text(json.dumps({"session": session, **facts, **supervisor}))
        if told:
            lines = [("meta", {"session_id": session, **facts}), ("outcome", {"exit_code": 0})]
            text = "".join(json.dumps({"type": kind, "data": data, "ts": 1}) + "\n" for kind, data in lines)
            (tmp_path / f"{session}.jsonl").write_text(text)
        (agent,) = registry.find(session, str(tmp_path))
        assert (agent.state(), agent.end().code) == ("lost", 74)
        assert job_verbs.main("wait", ["--data-dir", str(tmp_path), session]) == 74
        assert "its supervisor was killed" in capfd.readouterr().err
        (job / "status").write_text(json.dumps({"code": 3, "state": "exited", "signal": "", "detail": ""}))
        assert (agent.state(), agent.end().code) == ("exited", 3)


SECOND_FORK_FAILS = """
import errno, os

fork, forks = os.fork, []

def limited():
    forks.append(1)
    if len(forks) == 2:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()

os.fork = limited
"""


@pytest.mark.long
@pytest.mark.parametrize("wait", [True, False])
def test_children_of_a_fork_that_failed_are_told_by_all_verbs(agents: Agents, wait: bool) -> None:
    """The one that could not be forked never started, and the one before it was ended."""
    (agents.directory / "sitecustomize.py").write_text(SECOND_FORK_FAILS)
    children = [{"intent": "first"}, {"intent": "second"}]
    agents.run(
        says(call("fork", children=children, wait=wait), OK, match="^work"),
        says(sh("sleep 60"), match="^first"),
        env={"PYTHONPATH": str(agents.directory)},
    )
    assert "a child could not be started: Resource temporarily unavailable" in agents.results()[0]
    told = facts(quine(agents, "ps", "-a", "--json").stdout)
    assert (told["first"]["state"], told["first"]["code"]) == ("signaled", 143)
    assert (told["second"]["state"], told["second"]["code"]) == ("unreachable", 69)
    tree = exits(quine(agents, "tape", "tree").stdout)
    assert (tree["first"], tree["second"]) == ("143", "69")


@pytest.mark.long
def test_a_root_that_was_killed_is_lost_to_all_verbs(agents: Agents) -> None:
    agents.script(says(sh("touch up; sleep 60")))
    with agents.start("work") as process:
        until((agents.directory / "up").exists)
        before = exits(quine(agents, "tape", "tree").stdout)
        assert before["work"] == "-"
        assert "running; intact so far" in quine(agents, "tape", "verify").stdout
        process.kill()
        process.communicate(timeout=120)
    fact = facts(quine(agents, "ps", "-a", "--json").stdout)["work"]
    assert (fact["state"], fact["code"]) == ("lost", 74)
    assert quine(agents, "wait", fact["id"]).returncode == 74
    assert exits(quine(agents, "tape", "tree").stdout)["work"] == "74"
    assert "no outcome: its process died" in quine(agents, "tape", "verify").stdout


def test_a_root_that_is_a_zombie_does_not_run(agents: Agents) -> None:
    agents.script(says(sh("touch up; sleep 60")))
    with agents.start("work") as process:
        until((agents.directory / "up").exists)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert facts(quine(agents, "ps", "-a", "--json").stdout)["work"]["code"] == 137
        assert exits(quine(agents, "tape", "tree").stdout)["work"] == "137"
        assert "no outcome: its process died" in quine(agents, "tape", "verify").stdout
        process.communicate(timeout=120)


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [("KILL", 137), ("TERM", 143)])
def test_a_detached_agent_that_a_signal_ended_is_told_by_all_verbs(
    agents: Agents, number: str, code: int
) -> None:
    agents.script(says(sh("touch up; sleep 60")))
    started = quine(agents, "--detach", "work")
    job = started.stdout.strip()
    assert (started.returncode, started.stderr) == (0, "")
    until((agents.directory / "up").exists)
    assert quine(agents, "kill", "-s", number, job).returncode == 0
    assert quine(agents, "wait", job).returncode == code
    fact = facts(quine(agents, "ps", "-a", "--json").stdout)["work"]
    assert (fact["state"], fact["signal"], fact["code"]) == ("signaled", number, code)
    assert quine(agents, "attach", job).returncode == -int(signal.Signals[f"SIG{number}"])
    assert exits(quine(agents, "tape", "tree").stdout)["work"] == str(code)
    assert "running" not in quine(agents, "tape", "verify").stdout


def test_seconds_of_a_root_that_runs_go_on(agents: Agents) -> None:
    agents.script(says(sh("touch up; sleep 60")))
    with agents.start("work") as process:
        until((agents.directory / "up").exists)

        def seconds() -> float:
            return float(quine(agents, "tape", "tree").stdout.splitlines()[1].split()[3])

        first = seconds()
        until(lambda: seconds() > first)
        process.terminate()
        process.communicate(timeout=120)


@pytest.mark.long
def test_a_child_whose_files_did_not_come_back_failed_for_all_verbs(lab: Lab, tmp_path: Path) -> None:
    arguments = {"intent": "child", "host": "h1", "returns": ["missing"], "wait": True}
    fork = {"match": "^root", "reply": {"tool_calls": [{"name": "fork", "arguments": arguments}]}}
    data = tmp_path / "data"
    env = environment(lab, data, fork, leave(match="^root"), leave(match="^child"))
    assert lab.run(["root"], env=env, cwd=tmp_path).returncode == 0
    fact = facts(lab.run(["ps", "-a", "--json"], env=env).stdout.decode())["child"]
    assert (fact["state"], fact["code"]) == ("exited", 1)
    assert lab.run(["wait", fact["id"]], env=env).returncode == 1
    assert exits(lab.run(["tape", "tree"], env=env).stdout.decode())["child"] == "1"
