"""Signals to an agent: at every moment an outcome on the tape, and nothing left of its tree."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.agent import signals as module
from tests.support.agents import OK, PATIENCE, Agents, call, left, says, sh, until
from tests.support.waiting import accept_inference, wait_for

NAP = "72299"  # seconds that only a test sleeps


def end(process: subprocess.Popen[bytes], number: int) -> tuple[bytes, bytes]:
    process.send_signal(number)
    return process.communicate(timeout=PATIENCE)


def test_int_ends_the_agent_and_its_command(agents: Agents) -> None:
    """It ended with 0, and `quine … && deploy` deployed."""
    agents.script(says(sh("touch up; sleep 72298")), says(sh("echo alive >&4")), says(OK))
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        out, _ = end(process, signal.SIGINT)
    assert (process.returncode, out) == (-signal.SIGINT, b"")
    assert agents.outcome()["exit_code"] == 130
    assert not left("72298")


@pytest.mark.parametrize("way", ["option", "variable"])
def test_int_is_for_the_command_if_that_is_asked_for(agents: Agents, way: str) -> None:
    agents.script(says(sh("touch up; sleep 72298")), says(sh("echo alive >&4")), says(OK))
    agents.env |= {"QUINE_INTERRUPT": "command"} if way == "variable" else {}
    with agents.start("work", *["--interrupt=command"] * (way == "option")) as process:
        wait_for(agents.directory / "up")
        out, err = end(process, signal.SIGINT)
    assert (process.returncode, out) == (0, b"alive\n")
    assert err == b"quine: the running command was interrupted; ^C twice ends the agent\n"
    assert agents.results()[0].startswith("[EXIT CODE] 130\n")


COMMAND = {"QUINE_INTERRUPT": "command"}
# a command that does not end of it, and tells that it came
TAKES_INT = """
import signal
signal.signal(signal.SIGINT, lambda *_: open("told", "w").close())
open("up", "w").close()
while True:
    signal.pause()
"""


def test_int_twice_is_for_the_agent(agents: Agents) -> None:
    agents.script(says(sh(f"{sys.executable} -c '{TAKES_INT}' 72296")))
    agents.env |= COMMAND
    told = agents.directory / "told"
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        process.send_signal(signal.SIGINT)
        # Two signals of one number that are pending at one time are one; and two that are a second apart are not two.
        while process.poll() is None:
            until(lambda: told.exists() or process.poll() is not None)
            told.unlink(missing_ok=True)
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert agents.outcome()["exit_code"] == 130
    assert not left("72296")


def test_during_an_inference(agents: Agents) -> None:
    """A server that never answers. SIGPIPE is known when the call is over, for a call can cause one itself."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE)
        port = server.getsockname()[1]
        env = {
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": f"http://127.0.0.1:{port}/v1",
            "QUINE_MODEL_ID": "m",
        }
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE):
            with agents.start(f"work {number}", env=env) as process, accept_inference(server) as connection:
                connection.recv(100)
                process.send_signal(number)
                if number == signal.SIGPIPE:
                    connection.recv(1 << 20)
                    connection.sendall(b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n{}")
                process.communicate(timeout=PATIENCE)
            assert process.returncode == -number
            assert agents.outcome(f"work {number}")["termination_mode"] == "signal"


def test_with_children(agents: Agents) -> None:
    """One waited for, one not, each with a command under way, and a grandchild."""
    agents.script(
        says(call("fork", intent="child loose"), match="^work"),
        says(call("fork", intent="child held", wait=True), match="^work"),
        says(call("fork", intent="grand", wait=True), match="^child held"),
        says(sh(f"touch loose; sleep {NAP}2"), match="^child loose"),
        says(sh(f"touch grand; sleep {NAP}2"), match="^grand"),
    )
    with agents.start("work") as process:
        wait_for(agents.directory / "grand")
        wait_for(agents.directory / "loose")
        end(process, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    assert not left("sleep", f"{NAP}2")
    missions = ("work", "child loose", "child held", "grand")
    assert [agents.outcome(m)["termination_mode"] for m in missions] == ["signal"] * 4


@pytest.mark.long
def test_a_child_that_will_not_end_is_killed(agents: Agents) -> None:
    agents.script(
        says(call("fork", intent="child", wait=True), match="^work"),
        says(
            call("exec", argv=["sh", "-c", f"trap '' TERM; touch up; while :; do sleep {NAP}3; done"]),
            match="^child",
        ),
    )
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        end(process, signal.SIGTERM)
    assert process.returncode == -signal.SIGTERM
    assert not left(f"{NAP}3")


def test_alarm(agents: Agents) -> None:
    agents.script(
        says(sh(f"touch up; sleep {NAP}4")),
        says(sh("echo no >&4")),
        says(call("exit", status=3, stderr="late")),
    )
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        out, err = end(process, signal.SIGALRM)
    assert (process.returncode, out, err) == (3, b"", b"late\n")
    command, refused = agents.results()
    assert "[INTERRUPTED]" in command
    assert "only exit is accepted" in refused
    assert any(e["data"].get("content", "").startswith("[TIME LIMIT]") for e in agents.tape())


@pytest.mark.long
def test_alarm_that_is_not_heeded(agents: Agents) -> None:
    agents.script(says(sh(f"touch up; sleep {NAP}5")), {"reply": {"text": "hm"}, "repeat": True})
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        end(process, signal.SIGALRM)
    assert process.returncode == 124
    assert agents.outcome()["termination_mode"] == "timeout"


def test_alarm_that_is_answered_with_refused_calls(agents: Agents) -> None:
    agents.script(says(sh(f"touch up; sleep {NAP}0")), {**says(sh("true")), "repeat": True})
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        end(process, signal.SIGALRM)
    assert process.returncode == 124
    assert len(agents.results()) == 4


def test_alarm_reaches_the_children(agents: Agents) -> None:
    agents.script(
        says(call("fork", intent="child", wait=True), match="^work"),
        says(OK, match="^work"),
        says(sh(f"touch up; sleep {NAP}6"), match="^child"),
        says(call("exit", status=2, stderr="half"), match="^child"),
    )
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        end(process, signal.SIGALRM)
    assert process.returncode == 0
    assert agents.results()[0].startswith("[EXIT CODE] 2\n")


def test_what_was_ignored_stays_ignored(agents: Agents) -> None:
    agents.script(says(sh("touch up; read x <&3")), says(OK))
    ignore: Callable[[], object] = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    with agents.start("work", preexec_fn=ignore, stdin=subprocess.PIPE) as process:
        wait_for(agents.directory / "up")
        process.send_signal(signal.SIGHUP)
        process.communicate(b"go\n", timeout=PATIENCE)
    assert process.returncode == 0


AT_EXECVE = """
import os, signal
execve = os.execve

def timed(*words):
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    execve(*words)

os.execve = timed
"""


def test_an_alarm_set_before_exec_is_heeded_after_it(agents: Agents) -> None:
    """A timer survives execve, a handler does not: the next life must be ready before it is let through."""
    agents.script(
        says(call("exec", wisdom={"n": "1"}), wisdom="^\\{\\}$"),
        says(sh("sleep 72295"), wisdom="."),
        says(call("exit", status=3, stderr="late"), wisdom="."),
    )
    (agents.directory / "sitecustomize.py").write_text(AT_EXECVE)
    with agents.start("work", env={"PYTHONPATH": str(agents.directory)}) as process:
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 3


def test_ignored_children_are_waited_for_all_the_same(agents: Agents) -> None:
    agents.script(
        says(sh("exit 3"), call("fork", intent="child", wait=True), match="^work"), says(OK, match="^work"),
        says(call("exit", status=4, stderr="x"), match="^child"),
    )  # fmt: skip
    ignore: Callable[[], object] = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # noqa: E731
    with agents.start("work", preexec_fn=ignore) as process:
        process.communicate(timeout=PATIENCE)
    assert [result.splitlines()[0] for result in agents.results()] == ["[EXIT CODE] 3", "[EXIT CODE] 4"]


def until_state(pid: int, state: str) -> None:
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == state)


def test_exit_ends_what_is_in_the_background(agents: Agents) -> None:
    done = agents.run(says(sh(f"sleep {NAP}8 & sleep {NAP}8 >/dev/null 2>&1 &")), says(OK), says(OK))
    assert done.returncode == 0
    assert "Exit rejected" in agents.results()[1]
    assert not left("sleep", f"{NAP}8")


def lines(agents: Agents) -> int:
    """Of all tapes, whole ones."""
    return sum(path.read_bytes().count(b"\n") for path in agents.data.glob("*.jsonl"))


def wait_for_lines(agents: Agents, count: int) -> None:
    until(lambda: lines(agents) >= count)


@pytest.mark.long
def test_signals_at_any_moment(agents: Agents) -> None:
    """TERM after each entry of the tapes: whatever it hits, each tape has an outcome, and nobody is left."""
    agents.script(
        says(sh("true"), match="^work"),
        says(call("fork", intent="child", wait=True), match="^work"),
        says(call("exec", wisdom={"a": "1"}), match="^work", wisdom="^\\{\\}$"),
        says(sh(f"touch $QUINE_DATA_DIR/up; sleep {NAP}9"), match="^work"),
        says(sh("true"), OK, match="^child"),
    )
    whole, ended = 0, 0
    for step in range(100):
        agents.data = agents.directory / f"data{step}"
        with agents.start("work", process_group=0, env={"QUINE_DATA_DIR": str(agents.data)}) as process:
            if (
                step == 0
            ):  # ended in the last command of all, so that its tapes say how many entries there are
                wait_for(agents.data / "up")
                whole = lines(agents)
            wait_for_lines(agents, step)
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=PATIENCE)
        logs = [path.read_text() for path in (agents.directory / "state").rglob("*") if path.is_file()]
        assert process.returncode == -signal.SIGTERM, (step, said, logs)
        tapes = agents.tapes()
        assert bool(tapes) >= bool(step)
        for tape in tapes:
            assert tape[-1]["type"] == "outcome", (step, tape)
            ended += tape[-1]["data"]["termination_mode"] == "signal"
        if step == whole:
            break
    assert whole > 20
    assert ended >= whole
    assert not left("sleep", f"{NAP}9")


# TERM comes when a `with` has entered its manager and does not know it yet, and HUP in the middle of the end
WITHIN = """
import os, signal, sys
from transport import lean

class Manager(lean.Managed):
    def __enter__(self):
        entered = super().__enter__()
        if self._generator.__name__ == "interruptible" and sys._getframe(1).f_code.co_name == "until_done":
            os.kill(os.getpid(), signal.SIGTERM)
        return entered

lean.Managed = Manager
import quine.agent.shell
close = quine.agent.shell.Shell.close

def closed(self):
    os.kill(os.getpid(), signal.SIGHUP)
    close(self)

quine.agent.shell.Shell.close = closed
"""


def test_another_one_while_it_ends_wherever_the_first_one_came(agents: Agents) -> None:
    (agents.directory / "sitecustomize.py").write_text(WITHIN)
    agents.script(says(sh("true")))
    done = agents.run(env={"PYTHONPATH": str(agents.directory)})
    assert (done.returncode, done.stderr) == (-signal.SIGTERM, b"")
    assert agents.outcome()["termination_mode"] == "signal"


# TERM comes when a child has been reaped and that is not noted yet
REAPED = """
import os, signal
import quine.base.procs
reap = quine.base.procs.reap

def reaped(pid):
    word = reap(pid)
    os.kill(os.getpid(), signal.SIGTERM)
    return word

quine.base.procs.reap = reaped
"""


def test_when_a_child_has_just_been_reaped(agents: Agents) -> None:
    """The end of the agent waited for it once more, and failed with a traceback."""
    (agents.directory / "sitecustomize.py").write_text(REAPED)
    agents.script(says(call("fork", intent="child", wait=True), match="^work"), says(OK, match="^child"))
    done = agents.run(env={"PYTHONPATH": str(agents.directory)})
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, b"", b"")
    assert agents.outcome()["termination_mode"] == "signal"


def test_while_material_is_saved(agents: Agents) -> None:
    agents.script(says(OK))
    with agents.start("work", "-b", stdin=subprocess.PIPE) as process:
        until(lambda: list(agents.data.glob("stdin-*")))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
    assert not list(agents.data.glob("stdin-*"))


def test_stop_and_continue(agents: Agents) -> None:
    """The agent, its commands, and those that have put themselves into groups of their own."""
    agents.script(
        says(sh(f"sleep {NAP}7 & p=$!; timeout 1000 sleep {NAP}10 & echo $p $! >pid; touch up; wait"))
    )
    with agents.start("work", process_group=0) as process:
        wait_for(agents.directory / "up")
        pids = [process.pid, *map(int, (agents.directory / "pid").read_text().split())]
        process.send_signal(signal.SIGTSTP)
        for pid in pids:
            until_state(pid, "T")
        process.send_signal(signal.SIGCONT)
        for pid in pids:
            until_state(pid, "S")
        end(process, signal.SIGTERM)
    assert not left("sleep", f"{NAP}10")


def test_an_alarm_for_a_deadline_that_was_raised_is_set_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    timers: list[tuple[float, ...]] = []
    now, left = [1000.0], [100.0]
    monkeypatch.setattr(module.signal, "setitimer", lambda _, *times: timers.append(times))
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    signals = module.Signals()
    signals.arm(lambda: left[0] if left else None, 0.0)
    now[0], left[0] = 1100.0, 40.0  # the deadline was raised
    signals._note(signal.SIGALRM, None)
    assert timers == [(100.0, 10.0), (40.0, 10.0)] and not signals.alarm
    now[0], left[0] = 1140.0, 0.0
    signals._note(signal.SIGALRM, None)
    assert signals.alarm and not signals.fatal
    now[0] = 1150.0
    left.clear()  # raised to none in the time for the last answer
    signals._note(signal.SIGALRM, None)
    assert timers[2:] == [(0,)] and not signals.alarm and not signals.fatal


def test_an_alarm_before_its_time_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.signal, "setitimer", lambda *_: None)
    signals = module.Signals()
    signals.arm(lambda: 1000.0, 0.0)
    signals._note(signal.SIGALRM, None)
    assert signals.alarm and not signals.fatal
