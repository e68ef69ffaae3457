"""Traps of Python and Linux that an agent must not fall into: signals, descriptors, execve.

Each docstring names the trap. docs/reference/conformance.md lists them all with their tests.
"""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quine.agent import prompt
from tests.support.agents import OK, Agents, call, says, sh

NONE, SOME = r"^\{\}$", "."
LONGEST = 131072  # bytes of one string that Linux takes in execve: NAME=value and its NUL
SCRIPT = Path(sys.executable).with_name("quine")


def everywhere(agents: Agents, command: str) -> list[str]:
    """Return the output of `command` in five places.

    They are: the first life, a forked child, the life after exec, a nested quine, the program that replaces quine.
    The shell is bash: dash gives its commands an empty signal mask and hides the mask that it was given.
    """
    agents.env["QUINE_SHELL"] = "bash"
    noted = f"({command}; echo ----) >>log"
    agents.run(
        says(sh(noted), call("fork", intent="child", wait=True), match="^work", wisdom=NONE),
        says(call("exec", wisdom={"n": "1"}), match="^work", wisdom=NONE),
        says(sh(noted), sh("quine nested"), match="^work", wisdom=SOME),
        says(call("exec", argv=["bash", "-c", noted]), match="^work", wisdom=SOME),
        says(sh(noted), OK, match="^(child|nested)"),
    )
    *seen, last = (agents.directory / "log").read_text().split("----\n")
    assert (len(seen), last) == (5, "")
    return seen


def test_every_program_is_born_with_default_signals_and_no_descriptor_of_ours(agents: Agents) -> None:
    """CPython ignores SIGPIPE and SIGXFSZ. execve keeps ignored signals, and the mask of blocked ones too.

    Python's descriptors close on exec. Commands must inherit 3, 4 and 5, but neither locks nor the tape.
    """
    descriptors = "ls -l /proc/self/fd | sed -n 's/.* \\([0-9]* -> .*\\)/\\1/p'"
    looks = everywhere(agents, f"grep -E '^Sig(Blk|Ign)' /proc/self/status; {descriptors}")
    for at, seen in enumerate(looks):
        lines = seen.splitlines()
        status = dict(line.split(":\t") for line in lines if line.startswith("Sig"))
        assert int(status["SigBlk"], 16) == 0
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT):
            assert not int(status["SigIgn"], 16) >> (number - 1) & 1, number
        table = dict(line.split(" -> ") for line in lines if not line.startswith("Sig"))
        streams = "012" if at == len(looks) - 1 else "012345"
        more = {to for fd, to in table.items() if fd not in streams and not to.startswith("/proc/")}
        assert more <= {f"/memfd:quine-{what} (deleted)" for what in ("credentials", "ledger", "beginning")}


def test_nothing_of_stdin_is_read(agents: Agents) -> None:
    """A single look at sys.stdin.buffer takes 8 KiB of a stream that belongs to the commands."""
    read, write = os.pipe()
    os.write(write, b"material")
    os.close(write)
    agents.script(
        says(sh("true"), call("fork", intent="child", wait=True, stdin="inherit"), match="^work", wisdom=NONE),
        says(call("exec", wisdom={"n": "1"}), match="^work", wisdom=NONE),
        says(OK),
        says(OK),
    )  # fmt: skip
    with agents.start("work", stdin=read) as process:
        process.communicate(timeout=120)
    assert process.returncode == 0
    assert os.read(read, 100) == b"material"
    os.close(read)


@contextmanager
def stdin(kind: str) -> Iterator[int]:
    if kind == "a terminal":
        ours, fd = pty.openpty()
        ends = [ours, fd]
    elif kind == "a socket":
        one, two = socket.socketpair()
        ends = [one.detach(), fd := two.detach()]
    else:
        ends = [fd := os.open("/dev/zero" if kind == "a file" else os.devnull, os.O_RDONLY)]
    try:
        yield fd
    finally:
        for end in ends:
            os.close(end)


def test_stdin_is_told_by_what_it_is() -> None:
    """ "A character device" is a terminal, /dev/null and /dev/zero alike, and none of the three is material alike."""
    kinds = {"a terminal": "terminal", "a socket": "socket", "a file": "file", "empty": "none"}
    for kind, name in kinds.items():
        with stdin(kind) as fd:
            assert prompt.material(fd) == name, kind
        told = f"descriptor 3{',' if kind in ('a socket', 'a file') else ' is'} {kind}"
        assert told in prompt._MATERIAL[name]


@pytest.mark.parametrize("entry", ["script", "code"])
def test_exec_begins_anew_however_it_was_started(agents: Agents, entry: str) -> None:
    """/proc/self/exe is python itself, and a module in the working directory comes before the installed one."""
    if entry == "script" and not SCRIPT.exists():
        pytest.skip("no console script beside this Python")
    words = {"script": [str(SCRIPT)],
             "code": [sys.executable, "-P", "-c", "from quine.__main__ import main; main()"]}[entry]  # fmt: skip
    for name in ("quine", "json", "transport"):
        (agents.directory / f"{name}.py").write_text("raise SystemExit(99)\n")
    agents.script(
        says(sh("cd /"), call("exec", wisdom={"n": "1"}), wisdom=NONE),
        says(sh("quine nested; echo $? >&4"), OK, match="work", wisdom=SOME),
        says(OK, match="nested"),
    )
    done = subprocess.run([*words, "work"], cwd=agents.directory, env=agents.env, capture_output=True,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"0\n", b"")
    assert [tape[0]["data"]["born"] for tape in agents.tapes()] == ["start", "exec", "start"]


def test_wisdom_up_to_the_last_byte_of_a_string(agents: Agents) -> None:
    """The limit of execve that bites is not the total but the single string: 131072 bytes with name and NUL."""
    value = "x" * (LONGEST - len("QUINE_WISDOM_k=\0"))
    done = agents.run(
        says(sh("X=untouched"), call("exec", wisdom={"k": f"{value}x"}), wisdom=NONE),
        says(sh("echo $X >&4"), call("exec", wisdom={"k": value}), wisdom=NONE),
        says(sh('printf %s "$QUINE_WISDOM_k" | wc -c >&4'), OK, wisdom=SOME),
    )
    assert done.stdout == f"untouched\n{len(value)}\n".encode()


def test_more_wisdom_than_execve_takes(agents: Agents) -> None:
    """All strings together have a limit as well: the old life must be able to go on when the new one is too large."""
    many = {f"k{n}": "x" * 130_000 for n in range(20)}
    env = {"QUINE_CONTEXT_WINDOW": "0"}
    done = agents.run(says(call("exec", wisdom=many)), says(sh("echo lives on >&4")), says(OK), env=env)
    assert done.stdout == b"lives on\n"
    assert agents.results()[0].startswith("[EXEC ERROR]")


def test_a_command_longer_than_an_argument_may_be(agents: Agents) -> None:
    """`sh -c` takes 128 KiB, and a program written in a here-document is soon longer."""
    text = "0123456789abcde\n" * 20_000
    done = agents.run(says(sh(f"cat >&4 <<'END'\n{text}END\necho $?")), says(OK))
    assert done.stdout == text.encode()
