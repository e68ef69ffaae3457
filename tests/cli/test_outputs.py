"""Output of quine's own processes: to full devices, to closed pipes, to descriptors made non-blocking."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from quine.base import errors
from tests.lab import Lab
from tests.lab.machine import FULL
from tests.support.detached import detach
from tests.support.waiting import until
from transport.client.output import Output


def test_a_verb_that_cannot_print_is_lost_and_says_so_once(lab: Lab) -> None:
    """Status 1 would be the verdict of an agent, or the status of a command."""
    job = detach(lab, "--", "echo", "x")
    lab.run(["wait", job], check=True)
    files = {"QUINE_FS": f"file://{lab.work}/tier"}
    lab.run(["fs", "put", "-", "file"], input="x", env=files, check=True)
    for words in (
        "ps", "ps --help", "hosts", "hosts --help", "doctor", "kill -l", "--help", "--version", "--completion bash",
        f"logs {job}", "fs ls", "fs cat file", "fs --help", "tape --help", "run --help", "run --detach -- true",
    ):  # fmt: skip
        env = files if "fs" in words else {}
        ends = [(lab.run(words.split(), env=env, stdout=FULL), "no space left on device")]
        if words in ("ps", "doctor", "fs ls", "fs cat file", f"logs {job}", "--help", "run --detach -- true"):
            ends.append((lab.sh(f"quine {words} >&-", env=env), "bad file descriptor"))
        for done, why in ends:
            assert done.returncode == 74, (words, done)
            said, *hints = done.stderr.decode().splitlines()
            assert said.startswith("quine: error: cannot write") and said.endswith(f": {why}"), words
            assert len(hints) == (words == "run --detach -- true"), words


def test_a_process_without_stdout(lab: Lab) -> None:
    """Its Python has no stdout object. A verb that prints nothing needs none."""
    done = lab.sh("quine hosts >&-")
    assert (done.returncode, done.stderr) == (74, b"quine: error: cannot write stdout: bad file descriptor\n")
    done = lab.sh("quine wait $(quine run --detach -- true) >&-")
    assert (done.returncode, done.stderr) == (0, b"")


def test_output_that_a_full_device_does_not_take_is_lost(lab: Lab) -> None:
    job = detach(lab, "--", "echo", "x")
    lab.run(["wait", job], check=True)
    for words in ("hosts", "run --on h1 -- echo x", "run --help", f"logs {job}", f"attach {job}", "ps -a"):
        done = lab.run(words.split(), stdout=FULL)
        assert done.returncode == 74, words
        host, command = ("h1: ", "; lost: echo x") if "h1" in words else ("", "")
        expected = f"quine: {host}error: cannot write stdout: no space left on device{command}\n"
        assert done.stderr.decode() == expected, words
    done = lab.sh("quine hosts >/dev/full")  # in a process of its own
    assert done.returncode == 74


@pytest.mark.parametrize("command", ["echo x", "seq 1000000", "sh -c 'seq 1000000; exit $?'"])
def test_the_report_of_a_command_whose_output_was_not_taken_says_lost(
    lab: Lab, tmp_path: Path, command: str
) -> None:
    """One with much of it dies of SIGPIPE, but no reader has left: 141 would say so."""
    words = ["run", "--on", "h1", "--report", tmp_path / "r", "--", *shlex.split(command)]
    done = lab.run(words, stdout=FULL)
    assert done.returncode == 74 and b"cannot write stdout: no space left on device" in done.stderr
    report = json.loads((tmp_path / "r").read_text())
    assert (report["state"], report["code"], report["signal"]) == ("lost", 74, None)


def test_the_own_status_of_a_command_whose_output_was_not_taken_stays(lab: Lab) -> None:
    done = lab.run(["run", "--on", "h1", "--", "sh", "-c", "echo x; exit 5"], stdout=FULL)
    assert done.returncode == 5 and b"cannot write stdout" in done.stderr


@pytest.mark.parametrize("verb", ["logs", "attach", "ps", "hosts"])
def test_a_pipe_that_is_non_blocking_gets_the_whole(lab: Lab, verb: str) -> None:
    """Another process made the shared pipe non-blocking. The writer waits while the pipe is full."""
    words = [verb]
    if verb in ("logs", "attach"):
        job = detach(lab, "--", "head", "-c", "300000", "/dev/zero")
        lab.run(["wait", job], check=True)
        words.append(job)
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(write, False)
    filled = os.write(write, bytes(4096))
    with open(os.devnull, "rb") as null:
        process = subprocess.Popen(
            [lab.quine, *words], env=lab.env, cwd=lab.work, stdin=null, stdout=write, stderr=subprocess.PIPE
        )
    wchan = Path(f"/proc/{process.pid}/wchan")
    until(lambda: process.poll() is not None or "poll" in wchan.read_text(), "it waits for its reader")
    os.close(write)
    with open(read, "rb") as file:
        whole = file.read()[filled:]
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")
    assert len(whole) == 300_000 if verb in ("logs", "attach") else whole.endswith(b"\n")


def test_a_full_pipe_that_cannot_be_opened_anew_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's, say. Its writer must hear ^C while nobody reads."""

    def refuse(*_: object) -> int:
        raise PermissionError

    reading, writing = os.pipe()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        output = Output(writing)
    output.put(bytes(1 << 20))
    for _ in range(1000):
        assert output.write()
    assert 0 < output.taken < 1 << 20 and output.taken + output.pending == 1 << 20
    output.close()
    os.close(reading)
    os.close(writing)


def test_a_message_waits_for_a_full_stderr_that_is_non_blocking() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    filled = 0
    try:
        while True:
            filled += os.write(write, bytes(4096))
    except BlockingIOError:
        pass
    pid = os.fork()
    if not pid:
        errors.complain("something", "a cure", fd=write)
        os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        assert file.read()[filled:] == b"quine: error: something\nquine: hint: a cure\n"
    assert os.waitpid(pid, 0)[1] == 0


def test_a_message_that_repeats_words_of_others_tells_a_terminal_nothing() -> None:
    """Of a guest that is a program these are its stderr and its reasons."""
    said = errors.error_text("it said: \033]52;c;eA==\a\r\x9b2J\nnext", "see \x1b[1mthis")
    assert (
        said == "quine: error: it said: \\x1b]52;c;eA==\\x07\\r\\x9b2J\nnext\nquine: hint: see \\x1b[1mthis\n"
    )
