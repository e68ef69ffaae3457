"""A killed agent, whose processes the kernel ends. And an agent as PID 1, the parent of every orphan."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from quine.base import procs
from tests.lab import processes
from tests.support.agents import OK, QUINE, Agents, Started, call, left, running, says, sh, until
from tests.support.machine import CONTAINER, containers
from tests.support.waiting import wait_for

# -- SIGKILL: nothing of ours runs any more, the kernel does it ------------------------------------


def test_a_killed_agent_leaves_no_command(agents: Agents) -> None:
    """Neither the running command nor a process that an earlier command left in the background survives."""
    agents.script(says(sh("sleep 71281.5 &"), sh("touch up; sleep 71281.5")))
    with agents.start("work") as process:
        wait_for(agents.directory / "up")
        until(lambda: len(running("sleep", "71281.5")) == 2)
        process.kill()
        process.communicate(timeout=120)
    until(lambda: not running("sleep", "71281.5"))


def test_a_killed_agent_ends_the_children_it_waits_for(agents: Agents) -> None:
    """They end by their own rules, with an outcome. A child without `wait` goes on, as its parent intended."""
    agents.script(
        says(call("fork", intent="loose"), match="^work"),
        says(sh("sleep 71287.5 &"), call("fork", intent="held", wait=True), match="^work"),
        says(sh("echo $PPID >pid; touch loose; sleep 71282.5"), match="^loose"),
        says(sh("touch held; sleep 71283.5"), match="^held"),
    )
    with agents.start("work") as process:
        wait_for(agents.directory / "loose")
        wait_for(agents.directory / "held")
        until(lambda: all(running("sleep", f"7128{number}.5") for number in (2, 3, 7)))
        process.kill()
        process.communicate(timeout=120)
    until(lambda: not running("sleep", "71283.5") and not running("sleep", "71287.5"))
    until(lambda: agents.tape("held")[-1]["type"] == "outcome")
    assert agents.outcome("held")["exit_code"] == 143
    assert running("sleep", "71282.5")
    os.kill(int((agents.directory / "pid").read_text()), signal.SIGTERM)
    until(lambda: not running("sleep", "71282.5") and not running("quine", "loose"))


def test_what_is_in_the_background_survives_a_shell_that_ends(agents: Agents) -> None:
    """The shell's end is not the agent's."""
    agents.run(
        says(
            sh("sleep 71284.5 4>&- & echo $! >pid; exit 3"),
            sh("kill -0 $(cat pid); echo $?"),
            sh("kill -0 $(cat pid)"),
        ),
        says(OK),
    )
    assert "[STDOUT]\n0\n" in agents.results()[1]
    assert agents.results()[2].startswith("[EXIT CODE] 0")


# -- as PID 1 --------------------------------------------------------------------------------------

ORPHANS = "for i in 1 2 3 4 5 6 7 8 9; do (sh -c 'exec sleep 0' & ) ; done"
ZOMBIES = "cat /proc/[0-9]*/stat 2>/dev/null | grep -cE '[(](sleep|sh)[)] Z '"


def contained(agents: Agents, **more: Any) -> subprocess.Popen[bytes]:
    return Started([*CONTAINER, *QUINE, "--", "work"], cwd=agents.directory, env=agents.env, stdin=subprocess.DEVNULL,
                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **more)  # fmt: skip


@containers
def test_orphans_of_a_container_are_reaped(agents: Agents) -> None:
    """While a command runs and while a child is waited for, and never a child of our own."""
    none = f"while [ $({ZOMBIES}) != 0 ]; do :; done"
    agents.script(
        says(sh(f"echo $PPID >&4; {ORPHANS}; {none}"), match="^work", wisdom="^{}$"),
        says(call("fork", intent="child", wait=True), match="^work", wisdom="^{}$"),
        says(call("fork", intent="loose"), sh(f"{ORPHANS}; {none}; exit 7"), match="^work", wisdom="^{}$"),
        says(call("exec", wisdom={"n": "1"}), match="^work", wisdom="^{}$"),
        says(sh(f"{ORPHANS}; {none}"), OK, match="^work", wisdom="1"),
        says(sh(f"{ORPHANS}; {none}"), call("exit", status=4, stderr="x"), match="^child"),
        says(call("exit", status=5, stderr="x"), match="^loose"),
    )
    with contained(agents) as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (0, b"1\n", b"")
    told = [e["data"]["content"] for tape in agents.tapes() for e in tape if e["type"] == "tool_result"]
    assert any(text.startswith("[EXIT CODE] 4\n") for text in told)
    assert any("exited with status 7" in text for text in told)
    (folder,) = (agents.data / "jobs").iterdir()
    assert '"code":5' in (folder / "status").read_text()


PAUSE = 0.2  # seconds between two interrupts


@pytest.mark.long
@containers
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])  # not TERM alone
def test_pid_1_heeds_signals(agents: Agents, number: int) -> None:
    """The kernel gives PID 1 no default action, neither before our end nor for it."""
    agents.script(
        says(call("fork", intent="child", wait=True), match="^work"),
        says(sh(f"touch up; sleep 71285.{number}")),
    )
    with contained(agents) as process:
        wait_for(agents.directory / "up")
        (pid,) = procs.children(process.pid)
        os.kill(pid, number)
        while number == signal.SIGINT and process.poll() is None:
            # Two within a second are for the agent; two that are pending at one time are one.
            try:
                process.wait(PAUSE)
            except subprocess.TimeoutExpired:
                processes.kill(pid, number)
        process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert agents.outcome()["exit_code"] == 128 + number
    assert not left("sleep", f"71285.{number}")
