"""`quine tape show --follow`: the events of a running session, as they happen, until it has ended."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.agents import OK, QUINE, Agents, Started, call, says, sh, until


def following(agents: Agents, *words: str) -> subprocess.Popen[bytes]:
    """Of the latest session; `with` ends it where a test fails."""
    until(lambda: any(path.stat().st_size for path in agents.data.glob("*.jsonl")))
    return Started(
        [*QUINE, "tape", "show", "-f", *words], cwd=agents.directory, env=agents.env, stdout=subprocess.PIPE
    )


@pytest.fixture
def go(agents: Agents) -> Path:
    """A command of an agent goes on when this file is there."""
    return agents.directory / "go"


UNTIL_GO = "until [ -e go ]; do sleep 0.02; done"


def test_entries_are_shown_as_they_come_until_the_outcome(agents: Agents, go: Path) -> None:
    agents.script(says(sh(UNTIL_GO)), says(sh("echo then")), says(OK))
    with agents.start("work") as process, following(agents) as shown:
        assert shown.stdout
        seen = b""
        while b"-> sh" not in seen:
            seen += shown.stdout.readline()
        assert process.poll() is None
        go.touch()
        rest = shown.stdout.read()
        process.communicate(timeout=120)
    whole = subprocess.run(
        [*QUINE, "tape", "show"], cwd=agents.directory, env=agents.env, capture_output=True, check=True
    )
    assert seen + rest == whole.stdout
    assert b"outcome" in rest and shown.returncode == 0


def test_it_ends_with_a_process_that_leaves_no_outcome(agents: Agents) -> None:
    agents.script(says(sh("touch up; sleep 60")))
    with agents.start("work") as process:
        until((agents.directory / "up").exists)
        with following(agents) as shown:
            assert shown.stdout and shown.stdout.readline() == b"[0] meta\n"
            process.send_signal(signal.SIGKILL)
            rest = shown.stdout.read()
        process.communicate(timeout=120)
    assert b"-> sh" in rest and b"outcome" not in rest and shown.returncode == 0


def test_it_ends_where_the_process_begins_another_session(agents: Agents, go: Path) -> None:
    agents.script(
        says(sh(UNTIL_GO), call("exec", wisdom={"n": "1"}), wisdom="^\\{\\}$"),
        says(sh("sleep 60"), wisdom="n"),
    )
    with agents.start("work") as process:
        with following(agents) as shown:
            assert shown.stdout and shown.stdout.readline() == b"[0] meta\n"
            go.touch()
            rest = shown.stdout.read()
        assert process.poll() is None
        process.terminate()
        process.communicate(timeout=120)
    assert b"termination_mode: exec" in rest


def test_a_session_that_has_ended_is_shown_once(agents: Agents) -> None:
    agents.run(says(OK))
    with following(agents) as shown:
        assert shown.stdout and b"exit_code: 0" in shown.stdout.read()
    assert shown.returncode == 0
