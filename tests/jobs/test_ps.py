"""ps, wait, logs, kill: agents found again by their ids, whoever asks and whatever became of them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base import procs
from quine.base.cli_options import RunOptions
from quine.base.sessions import new_session
from quine.cli import ps_table
from quine.jobs import attach_logs
from quine.tape import registry
from tests.support.agents import OK, QUINE, Agents, Started, call, running, says, sh, until
from tests.support.values import JSON
from transport.address import boot_id

NONE, SOME = "^\\{\\}$", "."
WAIT = call("fork", intent="child")


def listed(agents: Agents) -> dict[str, dict[str, Any]]:
    """ps --all --json by mission."""
    done = agents.quine("ps", "-a", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    return {fact["mission"]: fact for fact in map(json.loads, done.stdout.splitlines())}


def wait_for(path: Path) -> str:
    until(lambda: path.exists() and path.read_text())
    return path.read_text()


@contextmanager
def adopting() -> Iterator[None]:
    """Orphans become children of this process, so that it is known when they are reaped."""
    subreaper, libc = 36, ctypes.CDLL(None)
    assert libc.prctl(subreaper, 1) == 0
    try:
        yield
    finally:
        libc.prctl(subreaper, 0)


@contextmanager
def loose(agents: Agents, *child: dict[str, Any]) -> Iterator[str]:
    """A child that nobody waits for, and whose parent has ended: it waits for a line in the fifo `go`, then does these.

    It writes its pid into `pid` first.
    """
    os.mkfifo(agents.directory / "go")
    agents.script(
        says(WAIT, match="^work"),
        says(OK, match="^work"),
        says(sh("echo begun >&4; echo warned >&5; echo $PPID >pid; read x <go"), match="^child", wisdom=NONE),
        *child,
    )
    with agents.start("work") as process:
        process.communicate(timeout=120)
    (folder,) = (agents.data / "jobs").iterdir()
    pid = int(wait_for(agents.directory / "pid"))
    try:
        yield folder.name
    finally:
        with open(os.open(agents.directory / "go", os.O_RDWR), "w"):  # whoever still waits goes on
            if (process_ := procs.look(pid)) and process_.started == listed_start(folder):
                os.kill(pid, signal.SIGKILL)


def listed_start(folder: Path) -> int:
    return int(json.loads((folder / "job").read_text())["started"])


def go(agents: Agents) -> None:
    (agents.directory / "go").write_text("\n")


# -- wait ------------------------------------------------------------------------------------------


def test_wait_in_the_parents_own_shell(agents: Agents) -> None:
    """The parent is the one that will reap it, and it sits in the command that waits."""
    job = 'quine wait $(ls "$QUINE_DATA_DIR/jobs"); echo $?'
    agents.run(
        says(WAIT, sh(job), sh("true"), match="^work"),
        says(OK, match="^work"),
        says(call("exit", status=7, stderr="seven"), match="^child"),
    )
    assert "[STDOUT]\n7\n" in agents.results()[1]


def test_wait_for_a_killed_child_in_the_parents_own_shell(agents: Agents) -> None:
    """It leaves no status; the kernel keeps its word until the parent, who sits in this command, takes it."""
    agents.run(
        says(WAIT, sh('quine wait $(ls "$QUINE_DATA_DIR/jobs"); echo $?'), match="^work"),
        says(OK, match="^work"),
        says(sh("kill -KILL $PPID"), match="^child"),
    )
    assert "[STDOUT]\n137\n" in agents.results()[1]


def test_wait_after_exec_of_the_parent(agents: Agents) -> None:
    agents.run(
        says(WAIT, call("exec", wisdom={"n": "1"}), match="^work", wisdom=NONE),
        says(sh('quine wait $(ls "$QUINE_DATA_DIR/jobs"); echo $?'), match="^work", wisdom=SOME),
        says(OK, match="^work", wisdom=SOME),
        says(call("exit", status=6, stderr="six"), match="^child"),
    )
    told = [e["data"]["content"] for tape in agents.tapes() for e in tape if e["type"] == "tool_result"]
    assert any("[STDOUT]\n6\n" in text and "[FORK ENDED]" in text and "exit code 6" in text for text in told)


def test_wait_for_an_orphan(agents: Agents) -> None:
    with loose(agents, says(call("exit", status=5, stderr="five"), match="^child")) as job:
        assert agents.quine("wait", "--timeout=0", job).returncode == 124
        waiting = subprocess.Popen([*QUINE, "wait", job[:20]], cwd=agents.directory, env=agents.env)
        go(agents)
        assert waiting.wait(120) == 5
        assert agents.quine("wait", job).returncode == 5
        assert listed(agents)["child"]["state"] == "exited"


def test_wait_for_an_orphan_that_has_begun_anew(agents: Agents) -> None:
    """Its first life's session is its id; the last life's tape tells its end. Either names it."""
    with loose(
        agents,
        says(call("exec", wisdom={"n": "1"}), match="^child", wisdom=NONE),
        says(sh("true"), call("exit", status=4, stderr="four"), match="^child", wisdom=SOME),
    ) as job:
        go(agents)
        assert agents.quine("wait", job).returncode == 4
        fact = listed(agents)["child"]
        assert (fact["id"], fact["code"]) == (job, 4)
        assert fact["session"] != job
        assert agents.quine("wait", fact["session"]).returncode == 4


def test_wait_for_an_orphan_that_was_killed(agents: Agents) -> None:
    """The kernel knows until somebody reaps it. Then nobody does: lost, and what is known of it."""
    with adopting(), loose(agents) as job:
        assert agents.quine("kill", "-KILL", job).returncode == 0
        assert agents.quine("wait", job).returncode == 137
        os.waitpid(listed(agents)["child"]["pid"], 0)
        done = agents.quine("wait", job)
        assert done.returncode == 74
        assert f"quine: error: {job}: lost: process " in done.stderr
        assert listed(agents)["child"]["state"] == "lost"


def test_wait_for_what_another_program_became(agents: Agents) -> None:
    with adopting(), loose(agents, says(call("exec", argv=["sleep", "72191"]), match="^child")) as job:
        go(agents)
        until(lambda: running("sleep 72191"))
        assert listed(agents)["child"]["state"] == "running"
        assert agents.quine("kill", job).returncode == 0
        os.waitpid(listed(agents)["child"]["pid"], 0)
        done = agents.quine("wait", job)
        assert (done.returncode, "it was exec: sleep takes over" in done.stderr) == (74, True)


def test_wait_for_several_is_the_status_of_the_last(agents: Agents) -> None:
    agents.run(
        says(call("fork", children=[{"intent": "five"}, {"intent": "six"}], wait=True), match="^work"),
        says(OK, match="^work"),
        says(call("exit", status=5, stderr="x"), match="^five"),
        says(call("exit", status=6, stderr="x"), match="^six"),
    )
    five, six = (listed(agents)[mission]["id"] for mission in ("five", "six"))
    assert agents.quine("wait", five, six).returncode == 6
    assert agents.quine("wait", six, five).returncode == 5


def test_wait_for_a_signalled_root(agents: Agents) -> None:
    agents.script(says(sh("touch up; sleep 72190")))
    with agents.start("work") as process:
        until((agents.directory / "up").exists)
        fact = listed(agents)["work"]
        assert (fact["state"], fact["pid"], fact["code"]) == ("running", process.pid, None)
        assert agents.quine("kill", fact["id"]).returncode == 0
        assert agents.quine("wait", fact["id"]).returncode == 143
        assert process.wait(120) == -signal.SIGTERM
    fact = listed(agents)["work"]
    assert (fact["state"], fact["signal"], fact["code"]) == ("signaled", "TERM", 143)


def test_wait_for_a_root_that_ends_meanwhile_has_its_status(agents: Agents) -> None:
    """Its tape told nothing of the end when the wait began, and its parent reaps it at once."""
    os.mkfifo(agents.directory / "go")
    agents.script(says(sh("touch up; read x <go")), says(call("exit", status=9, stderr="nine")))
    with agents.start("work", stderr=subprocess.DEVNULL) as process:
        until((agents.directory / "up").exists)
        words = [*QUINE, "wait", listed(agents)["work"]["id"]]
        with subprocess.Popen(words, cwd=agents.directory, env=agents.env) as waiting:
            until(lambda: "anon_inode:[pidfd]" in descriptors(waiting.pid))
            os.kill(waiting.pid, signal.SIGSTOP)
            go(agents)
            assert process.wait(120) == 9
            os.kill(waiting.pid, signal.SIGCONT)
            assert waiting.wait(120) == 9


def descriptors(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def test_an_agent_cannot_be_waited_for_by_its_own_command(agents: Agents) -> None:
    agents.run(says(sh("quine wait $QUINE_SESSION_ID; echo $? >&4")), says(OK))
    assert "waits for this command" in agents.results()[0]


def test_an_unknown_id(agents: Agents) -> None:
    agents.run(says(OK))
    known = agents.tape()[0]["data"]["session_id"]
    for verb in ("wait", "logs", "kill"):
        done = agents.quine(verb, f"{known[:-1]}z")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"no such job: {known[:-1]}z\nquine: hint: known are {known}; an id has only" in done.stderr
        assert agents.quine(verb, "").returncode == 2
    assert agents.quine("wait", known, "nobody").returncode == 2
    agents.run(says(OK))
    assert "2 jobs begin with 0" in agents.quine("wait", "0").stderr


def test_usage(agents: Agents) -> None:
    for words, error in (
        ("wait", "no id"),
        ("wait --timeout=soon x", "no such job"),
        ("ps x", "ps takes no id"),
        ("logs x y", "logs takes one id"),
        ("logs", "no id"),
        ("kill -HUP", "no id"),
        ("kill -l NOISE", "no such signal: 'NOISE'"),
        ("kill -l 999", "no such signal: '999'"),
        ("kill -FOO x", "no such signal: 'FOO'\nquine: hint: quine kill -l\n"),
        ("kill x -99", "no such signal: '99'\nquine: hint: quine kill -l\n"),
        ("kill -s foo x", "no such signal: 'foo'\nquine: hint: quine kill -l\n"),
        ("kill -list", "no such option: -ist"),
        ("ps --stdin", "no such option: --stdin"),
        ("attach", "no id"),
        ("attach x y", "attach takes one id"),
    ):
        done = agents.quine(*words.split())
        assert (done.returncode, done.stdout) == (2, ""), words
        assert done.stderr.startswith(f"quine: error: {error}"), words


def test_these_verbs_import_no_library() -> None:
    code = "import quine.cli.job_verbs, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"typer", "httpx", "pydantic", "asyncssh", "asyncio", "argparse", "json", "dataclasses"} & set(
        loaded
    )


# -- ps --------------------------------------------------------------------------------------------


def test_ps(agents: Agents) -> None:
    with loose(agents, says(OK, match="^child")) as job:
        head, row = agents.quine("ps").stdout.splitlines()
        assert " ".join(head.split()) == "ID HOST PID STATE EXIT SECONDS TREE TURN COST DOING COMMAND"
        assert row.split()[:2] == [job[:18], "local"]
        assert row.split()[3:5] == ["running", "-"]
        assert agents.quine("kill", "-STOP", job).returncode == 0
        until_it_is(agents, "stopped")
        assert agents.quine("kill", "-CONT", job).returncode == 0
        until_it_is(agents, "running")
        everyone = agents.quine("ps", "--all").stdout.splitlines()
        assert [line.split()[3] for line in everyone[1:]] == ["exited", "running"]
        go(agents)
        assert agents.quine("wait", job).returncode == 0
    fact = listed(agents)["child"]
    assert fact["parent"] == listed(agents)["work"]["id"]
    assert Path(fact["stdout"]).read_text() == "begun\n"
    assert agents.quine("ps").stdout.split() == head.split()
    assert agents.quine("ps", "--data-dir", "nowhere").stdout.split()[:1] == ["ID"]


def until_it_is(agents: Agents, state: str) -> None:
    until(lambda: listed(agents)["child"]["state"] == state)


FIELDS = st.sampled_from([
    "mission", "born", "parent_session_id", "pid", "started", "boot_id", "node", "to", "exit_code", "signal", "intent",
    "supervisor", "supervisor_started",
])  # fmt: skip
SESSIONS = [new_session() for _ in range(3)]


def test_on_a_terminal_a_row_is_a_line(
    agents: Agents, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    agents.run(says(OK), mission="m" * 70)
    options = RunOptions(all=True)
    assert ps_table.ps((str(agents.data),), options) == 0
    assert "m" * 59 + "…" in capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert ps_table.ps((str(agents.data),), options) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.startswith("ID") and len(row) == 80 and row.endswith("…")


@settings(max_examples=60, deadline=None)
@given(
    tapes=st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["meta", "outcome", "message"]),
                st.dictionaries(FIELDS, JSON | st.sampled_from([*SESSIONS, "exec", "local"]), max_size=5),
                st.binary(max_size=3),
            ),
            max_size=3,
        ),
        max_size=3,
    ),
    job=st.dictionaries(FIELDS, JSON, max_size=4) | st.binary(max_size=9),
)
def test_whatever_lies_in_a_data_directory(tapes: list[Any], job: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for session, tape in zip(SESSIONS, tapes, strict=False):
            lines = [
                json.dumps({"type": kind, "data": {"born": "exec", **data}, "ts": 1}).encode() + b"\n" + noise
                for kind, data, noise in tape
            ]
            Path(folder, f"{session}.jsonl").write_bytes(b"".join(lines))
        directory = Path(folder, "jobs", SESSIONS[0])
        directory.mkdir(parents=True)
        text = job if isinstance(job, bytes) else json.dumps(job).encode()
        (directory / "job").write_bytes(text)
        (directory / "status").write_bytes(text)
        for agent in registry.everyone(folder):
            assert agent.state() in ("lost", "unknown", "exited", "signaled", "unreachable", "denied")
            assert agent.hold() == -1


# -- logs ------------------------------------------------------------------------------------------


def test_logs(agents: Agents) -> None:
    with loose(
        agents, says(sh("echo more >&4"), call("exit", status=3, stderr="why"), match="^child")
    ) as job:
        assert agents.quine("logs", job).stdout == "begun\n"
        assert agents.quine("logs", "--offset=3", job).stdout == "un\n"
        assert agents.quine("logs", "--offset=99", job).stdout == ""
        assert agents.quine("logs", job, "--stderr").stdout == "warned\n"
        both = agents.quine("logs", "--both", job)
        assert (both.returncode, both.stdout, both.stderr) == (0, "begun\n", "warned\n")
        following = subprocess.Popen(
            [*QUINE, "logs", "-f", job],
            cwd=agents.directory,
            env=agents.env,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert following.stdout
        assert following.stdout.readline() == "begun\n"
        go(agents)
        assert following.communicate(timeout=120)[0] == "more\n"
        assert following.returncode == 0
        assert agents.quine("logs", "--both", job).stderr == "warned\nwhy\n"
        assert agents.quine("logs", "-n", "1", "--both", job).stdout == "more\n"
        for words in (
            ("--both", "--offset=1"),
            ("--offset=-1",),
            ("--both", "--stderr"),
            ("-n1", "--offset=1"),
        ):
            assert agents.quine("logs", *words, job).returncode == 2
    root = listed(agents)["work"]["id"]
    assert "is not kept" in agents.quine("logs", root).stderr


@given(
    st.lists(st.sampled_from(["", "a", "bc" * 9]), max_size=9),
    st.integers(0, 9),
    st.integers(1, 7),
    st.booleans(),
)
def test_the_last_lines(lines: list[str], count: int, step: int, ended: bool) -> None:
    text = "\n".join(lines) + "\n" * ended
    whole = text.splitlines(keepends=True)
    with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
        patch.setattr(attach_logs, "STEP", step)
        file.write(text.encode())
        file.flush()
        expected = whole[max(0, len(whole) - count) :]
        assert text[attach_logs._last_lines(file.fileno(), count) :] == "".join(expected)


def test_logs_into_a_pipe_that_nobody_reads(agents: Agents) -> None:
    with loose(agents) as job:
        (agents.data / "jobs" / job / "stdout").write_bytes(b"x" * 1_000_000)
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*QUINE, "logs", job], cwd=agents.directory, env=agents.env, stdout=write, timeout=120
        )
        os.close(write)
        assert done.returncode == -signal.SIGPIPE


# -- kill ------------------------------------------------------------------------------------------


def test_kill_ends_a_stopped_agent_and_its_command(agents: Agents) -> None:
    with loose(agents) as job:
        assert agents.quine("kill", "-0", job).returncode == 0
        assert agents.quine("kill", "-s", "STOP", job).returncode == 0
        until_it_is(agents, "stopped")
        assert agents.quine("kill", job).returncode == 0
        assert agents.quine("wait", job).returncode == 143
        assert not agents.quine("ps").stdout.splitlines()[1:]
        done = agents.quine("kill", "-9", job)
        assert (done.returncode, done.stderr) == (1, f"quine: error: {job}: it has ended\n")
        assert agents.quine("kill", "-0", job).returncode == 1
    assert agents.outcome("child")["termination_mode"] == "signal"


def test_a_recycled_pid_is_nobody(agents: Agents) -> None:
    """The pid of a job belongs to somebody else by now, who must neither be waited for nor be killed."""
    session = new_session()
    directory = agents.data / "jobs" / session
    directory.mkdir(parents=True)
    with Started(["sleep", "1000"]) as other:
        process = procs.look(other.pid)
        assert process
        facts = {
            "pid": other.pid,
            "started": process.started,
            "boot_id": boot_id(),
            "intent": "child",
            "host": "local",
        }
        (directory / "job").write_text(json.dumps(facts))
        assert agents.quine("kill", "-0", session).returncode == 0
        (directory / "job").write_text(json.dumps({**facts, "started": process.started - 1}))
        assert agents.quine("kill", session).returncode == 1
        assert agents.quine("wait", session).returncode == 74
        (directory / "job").write_text(json.dumps({**facts, "boot_id": "another"}))
        assert agents.quine("kill", session).returncode == 1
        assert listed(agents)["child"]["state"] == "unknown"
        assert other.poll() is None
        other.kill()


def test_signals_by_name_and_number(agents: Agents) -> None:
    assert "TERM" in agents.quine("kill", "-l").stdout.split()
    assert agents.quine("kill", "-l", "15", "143", "KILL").stdout.split() == ["TERM", "TERM", "9"]
