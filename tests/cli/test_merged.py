"""stdout and stderr that go to one place come in the order in which the command wrote them, here and over a link."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import quine
from tests.lab import Lab
from tests.support.agents import PATIENCE
from tests.system import breaks
from tests.transport.client.test_batch import origin
from transport.writes import is_one_file

LINES = 300
# Each line by another of the two streams, each by one write(2)
SCRIPT = f"i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i+1)); done"
EXPECTED = b"".join(b"out %d\nerr %d\n" % (number, number) for number in range(LINES))


# -- whether two descriptors are one place -----------------------------------------------------------


def opened(path: Path, flags: int = os.O_WRONLY | os.O_CREAT) -> int:
    return os.open(path, flags, 0o600)


def closing(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def test_a_file_is_one_place_with_one_position_or_by_appending(tmp_path: Path) -> None:
    path = tmp_path / "file"
    one = opened(path)
    copy, apart = os.dup(one), opened(path)
    assert is_one_file(one, copy)
    os.write(one, b"x")
    assert is_one_file(one, copy) and not is_one_file(one, apart)
    adds = [opened(path, os.O_WRONLY | os.O_APPEND) for _ in "12"]
    assert is_one_file(*adds) and not is_one_file(one, adds[0])
    other = opened(tmp_path / "other")
    assert not is_one_file(one, other)
    closing(one, copy, apart, *adds, other)


def test_pipes_terminals_and_what_cannot_be_written(tmp_path: Path) -> None:
    read, write = os.pipe()
    other = os.pipe()
    assert is_one_file(write, write) and not is_one_file(write, other[1]) and not is_one_file(read, read)
    primary, terminal = pty.openpty()
    assert is_one_file(terminal, terminal)
    reading = [os.open(os.devnull, os.O_RDONLY), os.open(os.devnull, os.O_WRONLY)]
    assert not is_one_file(*reading)
    closing(read, write, *other, primary, terminal, *reading)
    assert not is_one_file(write, write)  # closed


# -- over a link -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "quine run --on {host} -- sh -c '{script}' 2>&1",
        "quine run --on {host} -- sh -c '{script}' >both 2>&1; cat both",
        "quine run --on {host} -- sh -c '{script}' >>appended 2>>appended; cat appended",
        "quine rsh {host} '{script}' 2>&1",
        "quine xargs --on {host} -k -- sh -c '{script}' {{}} ::: 1 2>&1",
    ],
    ids=["pipe", "file", "appended", "rsh", "xargs"],
)
def test_the_order_is_kept(lab: Lab, line: str) -> None:
    done = lab.sh(line.format(host="h1", script=SCRIPT))
    assert (done.returncode, done.stdout) == (0, EXPECTED), done.stderr


def test_the_order_is_kept_over_cuts(lab: Lab, through: Callable[..., str]) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    lab.run(["run", "--on", host, "--", "true"], check=True)
    done = proxy.cuts()
    proxy.cut_after(*breaks.plan(5, 4, len(EXPECTED)))
    ended = lab.sh(f"quine run --on {host} -- sh -c '{SCRIPT}' 2>&1")
    assert ended.stdout == EXPECTED and proxy.cuts() > done


def test_two_places_stay_two_streams(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "sh", "-c", SCRIPT])
    assert done.stdout == b"".join(b"out %d\n" % number for number in range(LINES))
    assert done.stderr == b"".join(b"err %d\n" % number for number in range(LINES))


def test_idempotent_jobs_tell_output_from_messages(lab: Lab) -> None:
    """Nothing of stdout has come, so the job may be tried again: the two are not one pipe for it."""
    script = '[ "$(readlink /proc/$$/fd/1)" = "$(readlink /proc/$$/fd/2)" ]; echo $?'
    words = f"-- sh -c '{script}' 2>&1"
    assert lab.sh(f"quine run --on h1 {words}").stdout == b"0\n"
    assert lab.sh(f"quine run --retry 2 --idempotent --on h1 {words}").stdout == b"1\n"


def test_on_a_terminal_messages_are_between_the_lines(lab: Lab) -> None:
    """One place without being asked for: both are the terminal, and stdin is none."""
    primary, terminal = pty.openpty()
    words = [
        sys.executable,
        "-P",
        "-m",
        "quine",
        "run",
        "--on",
        "h1",
        "--",
        "sh",
        "-c",
        "echo a; echo b >&2; echo c",
    ]
    with subprocess.Popen(
        words, env=lab.env, cwd=lab.work, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
    ) as client:
        assert client.wait(PATIENCE) == 0
    assert os.read(primary, 1000) == b"a\r\nb\r\nc\r\n"
    closing(primary, terminal)


# -- for Python --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", "h1"])
def test_stdout_of_run_and_executor(lab: Lab, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    origin(lab, monkeypatch)
    words = ["sh", "-c", SCRIPT]
    done = quine.run(words, on=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert (done.stdout, done.stderr) == (EXPECTED, None)
    with quine.Executor(where or "local") as executor:
        result = executor.submit(words, stderr=subprocess.STDOUT).result(PATIENCE)
        assert (result.stdout, result.stderr) == (EXPECTED, None)
        with pytest.raises(ValueError, match="stderr is PIPE"):
            executor.submit(mission="m", stderr=subprocess.STDOUT)
        with pytest.raises(ValueError, match="stderr is PIPE"):
            executor.submit(words, stderr=subprocess.DEVNULL)
