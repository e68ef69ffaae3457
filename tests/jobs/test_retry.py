"""`--retry N` and `--idempotent`: failures that are tried again, on which host, and those that never are.

Against real sshd.
"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.agent.children import shown
from quine.base.cli_options import RunOptions
from quine.jobs.client import LONG, Notes
from tests.cli.screen import Screen
from tests.lab import Lab
from tests.support.agents import OK, call, says
from tests.support.remote_agents import tapes
from tests.system.breaks import QUIET
from transport.status import Status

# On its first host it kills the node, which is its launcher's parent, so nobody can tell how it ended; then it says
# where it is.
ONCE = 'if mkdir "$0" 2>/dev/null; then {} kill -9 $(ps -o ppid= -p $PPID); else {}; fi'


NUMBERS = itertools.count()  # of dead hosts: the node of this lab remembers them for a while


@pytest.fixture
def dead(lab: Lab) -> Iterator[str]:
    """A host whose port is closed, of a new name. Placement prefers it to all other hosts until it is dialled."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else's
        for name in ("h1", "h2", "h3"):
            lab.alias(f"{name}-one", name, slots=1)
        yield lab.alias(f"dead{next(NUMBERS)}", "h1", port=held.getsockname()[1])


def once(path: Path, first: str = "", then: str = "echo $QUINE_NODE_NAME") -> list[str]:
    return ["sh", "-c", ONCE.format(f"{first}{';' if first else ''}", then), str(path)]


# -- never started ---------------------------------------------------------------------------------


def test_another_host_is_tried(lab: Lab, dead: str) -> None:
    where = ["--on", f"{dead},h1-one", "--retry", "1"]  # no limit of slots comes before one of them
    done = lab.run(["run", "-v", *where, "--", "cat"], input="material")
    assert (done.returncode, done.stdout) == (0, b"material")
    first, *rest = done.stderr.decode().splitlines()
    assert first.startswith(f"quine: {dead}: try 1: unreachable: ") and first.endswith("; trying again")
    assert [line for line in rest if " try " in line] == []
    done = lab.run(["run", *where, "--", "sh", "-c", "exit 3"])
    assert (done.returncode, done.stderr) == (3, b"")


def test_a_host_that_was_not_reached_is_chosen_last_and_the_message_names_the_option(
    lab: Lab, dead: str
) -> None:
    """Idle hosts are alike, so the first of the inventory would be taken each time."""
    where = ["--on", f"{dead},h1-one"]
    for words, code in (["run", *where, "--", "true"], 69), (["run", *where, "--", "true"], 0):
        done = lab.run(words)
        assert done.returncode == code, done.stderr
        assert (f"--retry 1 tries another of {dead},h1-one\n".encode() in done.stderr) == bool(code)
    done = lab.run(["run", "--on", dead, "--", "true"])
    assert done.returncode == 69 and b"--retry" not in done.stderr


def test_all_have_failed_and_the_last_failure_is_told(lab: Lab, dead: str, tmp_path: Path) -> None:
    """A failed host comes last and is tried again. The error, printed once, is that of the last try."""
    lab.alias("dead-2", "h1", port=1)
    words = ["run", "-v", "--report", "r", "--on", f"{dead},dead-2", "--retry", "2", "--", "true"]
    done = lab.run(words, cwd=tmp_path)
    assert done.returncode == 69
    tries = [line.split(": ")[1] for line in done.stderr.decode().splitlines() if ": try " in line]
    assert tries == [dead, "dead-2"] and done.stderr.count(b"error: ") == 1
    report = json.loads((tmp_path / "r").read_text())
    assert (report["state"], report["host"]) == ("unreachable", dead)


def test_an_agent_is_tried_elsewhere(lab: Lab, dead: str, tmp_path: Path) -> None:
    lines = [says(call("sh", command="cat <&3 >&4")), says(OK)]
    env = {**lab.script(lines, "retry.jsonl"), "QUINE_DATA_DIR": str(tmp_path)}
    done = lab.run(["--on", f"{dead},h1-one", "--retry", "1", "work"], env=env, input="material")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"material", b"")
    assert len(tapes(tmp_path)) == 1


def test_what_has_an_answer_or_is_about_no_host_is_not_tried_again(lab: Lab) -> None:
    for where, words, code in (
        ("h1,h2", ["sh", "-c", "exit 69"], 69),
        ("h1,h2", ["sh", "-c", "kill -9 $$"], -9),
        ("h1,h2", ["no-such-command"], 127),
        ("h9", ["true"], 69),
    ):
        done = lab.run(["run", "-v", "--on", where, "--retry", "3", "--idempotent", "--", *words])
        assert done.returncode == code and b": try " not in done.stderr, words


def test_stdin_is_whole_for_whom_it_is_read(lab: Lab, dead: str) -> None:
    """The failed try reads nothing of stdin: the next command gets all of it."""
    line = f"printf 'one\\ntwo\\n' | {{ quine run --on {dead} --retry 1 -- cat; cat; }}"
    done = lab.sh(line)
    assert done.stdout == b"one\ntwo\n" and f"quine: {dead}: error: ".encode() in done.stderr


# -- lost ------------------------------------------------------------------------------------------


def test_lost_is_not_tried_again(lab: Lab, tmp_path: Path) -> None:
    done = lab.run(["run", "-v", "--on", "h1,h2", "--retry", "3", "--", *once(tmp_path / "once")])
    assert done.returncode == 74 and b": try " not in done.stderr


def test_lost_is_tried_again_where_that_is_harmless(lab: Lab, tmp_path: Path) -> None:
    words = ["run", "-v", "--on", "h1,h2", "--retry", "3", "--idempotent", "--"]
    done = lab.run([*words, *once(tmp_path / "once")])
    assert (done.returncode, done.stdout) == (0, b"h2\n"), done.stderr
    assert done.stderr.count(b"quine: h1: try 1: lost: ") == 1 and done.stderr.count(b": try ") == 1


def test_the_same_host_again_where_there_is_no_other(lab: Lab, tmp_path: Path) -> None:
    done = lab.run([*QUIET, "--on", "h1", "--retry", "1", "--idempotent", "--", *once(tmp_path / "once")])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"h1\n", b"")


@pytest.mark.parametrize("kind", ["pipe", "file", "unread"])
def test_lost_with_a_part_of_stdin(lab: Lab, tmp_path: Path, kind: str) -> None:
    """A file is read again from its old position; a pipe that was read in part is not retried."""
    (tmp_path / "material").write_text("skipped\nmaterial\n")
    read = "" if kind == "unread" else "head -n 1 >/dev/null"
    words = [*QUIET, "--on", "h1,h2", "--retry", "1", "--idempotent", "--"]
    words += once(tmp_path / "once", read, "echo up; cat")
    if kind == "file":
        with (tmp_path / "material").open("rb", buffering=0) as material:
            material.seek(8)
            process = lab.popen(
                words, stdin=material.fileno(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            out, err = process.communicate(timeout=120)
        assert (process.returncode, out, err) == (0, b"up\nmaterial\n", b"")
        return
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = lab.popen(words, **pipes)
    if kind == "pipe":
        out, err = process.communicate(b"material\n", timeout=120)
        assert (process.returncode, out) == (74, b"") and b"not tried again: some of its stdin" in err
    else:
        assert process.stdout and process.stdout.readline() == b"up\n"  # the second one has begun
        out, err = process.communicate(b"material\n", timeout=120)
        assert (process.returncode, out, err) == (0, b"material\n", b"")


def test_lost_with_a_part_of_its_output(lab: Lab, tmp_path: Path) -> None:
    """A reader of the output could not tell the two beginnings apart."""
    words = ["run", "--on", "h1,h2", "--retry", "1", "--idempotent", "--"]
    process = lab.popen(
        [*words, "sh", "-c", "echo up; read line; kill -9 $(ps -o ppid= -p $PPID)"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout and process.stdout.readline() == b"up\n"
    out, err = process.communicate(b"go\n", timeout=120)
    assert (process.returncode, out) == (74, b"") and b"not tried again: some of its output" in err


def test_a_lost_agent_lives_again_as_another_session(lab: Lab, tmp_path: Path) -> None:
    command = f"mkdir {tmp_path}/once && kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $PPID)); echo $QUINE_NODE_NAME >&4"
    lines = [says(call("sh", command=command)), says(OK)]
    env = {**lab.script(lines, "again.jsonl"), "QUINE_DATA_DIR": str(tmp_path / "data")}
    words = ["--on", "h1,h2", "--retry", "1", "--idempotent", "--report", str(tmp_path / "r"), "work"]
    done = lab.run(words, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"h2\n", b"")
    written = [path.stem for path in (tmp_path / "data").glob("*.jsonl")]
    assert len(written) == 2 and json.loads((tmp_path / "r").read_text())["session"] == max(written)
    assert lab.wait_idle() == []


def test_leaving_by_keys_is_no_reason_to_come_back(lab: Lab) -> None:
    with Screen() as screen:
        words = ["run", "-t", "--on", "h1,h2", "--retry", "3", "--idempotent", "--", "cat"]
        client = screen.start(lab, words)
        screen.type(b"a\r")
        screen.wait(b"a\r\na\r\n")
        screen.type(b"~.")
        assert client.wait(120) == 74
        screen.wait(b"not tried again")


def test_a_signal_ends_the_pause_before_the_next_try(lab: Lab, dead: str) -> None:
    process = lab.popen(["run", "-v", "--on", dead, "--retry", "99", "--", "true"], stderr=subprocess.PIPE)
    assert process.stderr
    for number in (1, 2, 3):
        assert f"quine: {dead}: try {number}".encode() in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGINT


# -- usage, and what is said -----------------------------------------------------------------------


def test_usage(lab: Lab) -> None:
    for words, said in (
        (["run", "--retry", "1", "--", "true"], b"it needs --on WHERE"),
        (["run", "--on", "h1", "--idempotent", "--", "true"], b"it needs --retry N"),
        (["run", "--on", "h1", "--retry", "x", "--", "true"], b"--retry x: should be a number"),
        (["run", "--on", "h1", "--retry", "-1", "--", "true"], b"--retry -1: must not be negative"),
        (["--retry", "1", "work"], b"it needs --on WHERE"),
        (["--idempotent", "work"], b"it needs --retry N"),
    ):
        done = lab.run(words)
        assert (done.returncode, done.stdout) == (2, b"") and said in done.stderr, words


def test_what_a_guest_is_told_of_a_lost_child() -> None:
    line = shown(Status("lost", 74, detail="connection lost: gone; the command was started (pid 7)"))
    assert line.startswith("[STATE] lost: connection lost: gone; the command was started (pid 7); ")
    assert "its work may have happened, in whole or in part" in line
    unreachable = Status("unreachable", 69, detail="no route")
    assert shown(unreachable) == "[STATE] unreachable: no route; it never started"
    assert shown(Status("exited", 0)) == "" and shown(Status("signaled", 137, "KILL")) == "[SIGNAL] KILL"


def test_a_guest_is_told_of_a_lost_child(lab: Lab, tmp_path: Path) -> None:
    """The whole line: a child over there kills its node."""
    lines: list[dict[str, Any]] = [
        says(call("fork", intent="child", host="h1", wait=True), match="^root"),
        says(OK, match="^root"),
        says(call("sh", command="kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $PPID))"), match="^child"),
        says(OK, match="^child"),
    ]
    env = {**lab.script(lines, "lost.jsonl"), "QUINE_DATA_DIR": str(tmp_path)}
    assert lab.run(["root"], env=env).returncode == 0
    told = [entry["data"]["content"] for entry in tapes(tmp_path)["root"] if entry["type"] == "tool_result"]
    assert "[EXIT CODE] 74" in told[0] and "its work may have happened" in told[0]
    assert lab.wait_idle() == []


@pytest.mark.parametrize("raw", [False, True])
def test_a_lost_connection_is_told_when_it_takes_long(capfd: pytest.CaptureFixture[str], raw: bool) -> None:
    end = "\r\n" if raw else "\n"

    def said(options: RunOptions, *notes: dict[str, object]) -> str:
        speaker = Notes(options, raw)
        for note in notes:
            speaker.hear(note)
        return capfd.readouterr().err

    down: dict[str, object] = {"up": False, "seconds": 0.0, "why": "gone", "host": "h1"}
    long, longer = {**down, "seconds": LONG}, {**down, "seconds": LONG + 5}
    up = {**down, "up": True, "seconds": 12.3, "why": ""}
    assert said(RunOptions(), down, up) == ""
    assert said(RunOptions(), down, long, longer, up, up) == (
        f"quine: h1: connection lost 10 s ago; reconnecting: gone{end}quine: h1: reconnected after 12 s{end}"
    )
    assert said(RunOptions(verbose=True), down, up, down).count("\n") == 3
    assert said(RunOptions(quiet=True), long) == ""
    assert "\x1b" not in said(RunOptions(verbose=True), {**down, "host": "\x1b]0;x\x07"})
    assert said(RunOptions(verbose=True), {}, {"up": "no", "seconds": "x"}) == ""
