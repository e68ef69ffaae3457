"""Verbs that go to hosts, ended in the middle: by a signal, or because nobody reads their output."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, processes
from tests.lab.machine import FULL
from tests.support.waiting import until

NEVER = 'echo $$ >"$0.new"; mv "$0.new" "$0"; exec sleep 8640'  # says nothing, and reads nothing of its stdin
Stub = Callable[[str], Callable[[], int]]


@pytest.fixture
def stub(lab: Lab, tmp_path: Path) -> Iterator[Stub]:
    """Add the host `stub`, whose carrier is a program that never says anything; return a function for its pid."""
    path = tmp_path / "pid"

    def make(before: str) -> Callable[[], int]:
        none = dict.fromkeys(("address", "port", "user", "identity"))
        words = ["sh", "-c", before + NEVER, str(path)]
        lab.alias("stub", "h1", **{**none, "transport": "command", "command": words})
        return lambda: int(until(lambda: path.exists() and path.read_text(), "the carrier runs"))

    yield make
    lab.forget_aliases()
    if path.exists():  # it is also the last word of its command line, until the exec
        found = processes.find(int(path.read_text()))
        if found and "8640" in str(found):
            processes.kill(found.pid)


@pytest.mark.parametrize(("words", "name"), [("doctor", "INT"), ("hosts check", "TERM"), ("deploy", "HUP")])
def test_a_program_of_a_carrier_ends_with_the_command(lab: Lab, stub: Stub, words: str, name: str) -> None:
    """One function goes to the hosts for all verbs. INT is Python's own exception, the others are the loop's."""
    started = stub("")
    process = lab.popen([*words.split(), "stub"], stderr=subprocess.PIPE)
    pid = started()
    number = getattr(signal, f"SIG{name}")
    process.send_signal(number)
    assert process.communicate()[1] == b"" and process.returncode == -number
    assert processes.find(pid) is None


@pytest.mark.long  # five seconds, after which it is killed
def test_a_program_of_a_carrier_that_ignores_signals_ends_with_the_command(lab: Lab, stub: Stub) -> None:
    started = stub("trap '' TERM HUP; ")
    process = lab.popen(["hosts", "check", "stub"])
    pid = started()
    process.terminate()
    assert process.wait() == -signal.SIGTERM and processes.find(pid) is None


@pytest.mark.long
def test_a_program_of_a_carrier_that_ignores_signals_ends_with_the_node(
    own_lab: Callable[..., Lab], tmp_path: Path
) -> None:
    lab = own_lab(["h1"])
    path = tmp_path / "pid"
    words = ["sh", "-c", "trap '' TERM HUP; " + NEVER, str(path)]
    none = dict.fromkeys(("address", "port", "user", "identity"))
    lab.alias("stub", "h1", **{**none, "transport": "command", "command": words})
    process = lab.popen(["run", "--on", "stub", "--", "true"], stderr=subprocess.DEVNULL)
    pid = int(until(lambda: path.exists() and path.read_text(), "the carrier runs"))
    lab.run(["node", "--stop", "--force"], check=True)
    assert processes.find(pid) is None
    process.wait()


def test_a_signal_that_nohup_ignores_ends_nothing(lab: Lab) -> None:
    lab.run(["deploy", "h2"], check=True)
    ignored = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = lab.popen(["doctor", "h2"], stdout=subprocess.PIPE, preexec=ignored)
    assert process.stdout
    process.stdout.readline()  # it is on its way
    process.send_signal(signal.SIGHUP)
    assert b"ping the node" in process.communicate()[0] and process.returncode == 0


def test_a_reader_that_has_gone_ends_it_silently(lab: Lab) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        for words in (
            "doctor h1", "doctor h1 h2", "doctor --help", "hosts", "hosts check h1", "deploy --plan h1", "deploy h1",
            "run --help",
        ):  # fmt: skip
            done = lab.run(words.split(), stdout=theirs)
            assert (done.stderr, done.returncode) == (b"", -signal.SIGPIPE), words
    finally:
        os.close(theirs)


def test_a_full_disk_is_told(lab: Lab) -> None:
    done = lab.run(["doctor", "h1"], stdout=FULL)
    assert (done.returncode, done.stderr) == (74, b"quine: error: cannot write: no space left on device\n")
