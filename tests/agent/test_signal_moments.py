"""Every signal of the contract at every moment of an agent: its tape and its status agree, and nobody is left."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from signal import Signals as S
from typing import Any

import pytest

from tests.lab.machine import readable
from tests.support.agents import LOOK, OK, PATIENCE, Agents, call, left, says, sh, until
from tests.support.waiting import accept_inference

FATAL = (S.SIGTERM, S.SIGHUP, S.SIGPIPE, S.SIGQUIT, S.SIGUSR1, S.SIGUSR2)
HARMLESS = (S.SIGCHLD, S.SIGWINCH, S.SIGCONT)
EVERY = (*FATAL, *HARMLESS, S.SIGINT, S.SIGALRM, S.SIGTSTP)


class One:
    """One of several agents that run at the same time, each in a directory of its own."""

    def __init__(self, folder: Path, number: int) -> None:
        folder.mkdir()
        os.mkfifo(folder / "go")
        self.number = number
        self.agents = Agents(folder)
        self.nap = f"{86300 + os.getpid() % 100}.{os.getpid()}{number}s"  # seconds that only this one sleeps
        self.process: Any = None

    @property
    def name(self) -> str:
        return S(self.number).name

    def up(self) -> bool:
        return (self.agents.directory / "up").exists()

    def on_tape(self, text: str, times: int = 1) -> bool:
        return any(path.read_text().count(text) >= times for path in self.agents.data.glob("*.jsonl"))

    def outcome(self) -> dict[str, Any]:
        return self.agents.outcome()


@contextmanager
def each(
    folder: Path, numbers: tuple[S, ...], begin: Callable[[One], None], **more: Any
) -> Iterator[list[One]]:
    """Start an agent for each signal; `begin` gives it a script and its other settings."""
    with ExitStack() as stack:
        ones = [One(folder / S(number).name, number) for number in numbers]
        for one in ones:
            begin(one)
            one.process = stack.enter_context(one.agents.start("work", process_group=0, **more))
        yield ones


def as_they_come(ones: list[One], holds: Callable[[One], object]) -> Iterator[One]:
    """Each as soon as it holds for it: waited for one after the other, some would be further by then."""
    waiting, deadline = list(ones), time.monotonic() + PATIENCE
    while waiting:
        assert time.monotonic() < deadline, [one.name for one in waiting]
        for one in waiting.copy():
            if holds(one):
                waiting.remove(one)
                yield one
        time.sleep(LOOK)


def signalled(one: One) -> None:
    """It died of the signal, said so on its tape, and wrote nothing."""
    out, err = one.process.communicate(timeout=PATIENCE)
    assert (one.process.returncode, out, err) == (-one.number, b"", b""), one.name
    outcome = one.outcome()
    assert (outcome["termination_mode"], outcome["exit_code"]) == ("signal", 128 + one.number), one.name
    assert not left("sleep", one.nap), one.name


def went_on(one: One, out: bytes = b"alive\n") -> None:
    assert one.process.communicate(timeout=PATIENCE) == (out, b""), one.name
    assert (one.process.returncode, one.outcome()["exit_code"]) == (0, 0), one.name


def release(one: One) -> None:
    (one.agents.directory / "go").write_text("\n")


def test_during_a_command(tmp_path: Path) -> None:
    def begin(one: One) -> None:
        one.agents.script(
            says(sh(f"sleep {one.nap} 4>&- & touch up; read x <go; sleep 0")), says(sh("echo alive >&4"), OK)
        )

    with each(tmp_path, (*FATAL, *HARMLESS), begin) as ones:
        for one in as_they_come(ones, One.up):
            one.process.send_signal(one.number)
        for one in ones:
            if one.number in FATAL:
                signalled(one)
            else:
                release(one)
                went_on(one)


def test_while_a_child_is_waited_for(tmp_path: Path) -> None:
    """ALRM is passed on to it: it ends its command, and answers."""

    def begin(one: One) -> None:
        one.agents.script(
            says(call("fork", intent="child", wait=True), match="^work"),
            says(sh("echo alive >&4"), OK, match="^work"),
            says(sh(f"sleep {one.nap} & touch up; read x <go || sleep {one.nap}"), OK, match="^child"),
            says(OK, match="^child"),
        )

    with each(tmp_path, (S.SIGTERM, S.SIGHUP, S.SIGPIPE, S.SIGCHLD, S.SIGCONT, S.SIGINT), begin) as ones:
        for one in as_they_come(ones, One.up):
            one.process.send_signal(one.number)
        for one in ones:
            if one.number in (*FATAL, S.SIGINT):
                signalled(one)
                child = one.agents.outcome("child")
                assert child["termination_mode"] == "signal", one.name
            else:
                release(one)
                went_on(one)


@pytest.mark.long
def test_during_an_inference(tmp_path: Path) -> None:
    """The server does not answer. After a harmless signal the server refuses, and the agent ends by itself."""
    with ExitStack() as stack:
        servers: dict[int, socket.socket] = {}

        def begin(one: One) -> None:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            server.settimeout(PATIENCE)
            servers[one.number] = server
            port = server.getsockname()[1]
            one.agents.env |= {"QUINE_API_TYPE": "openai", "QUINE_API_BASE": f"http://127.0.0.1:{port}/v1"}
            one.agents.env |= {"QUINE_MODEL_ID": "m"}

        numbers = tuple(n for n in (*FATAL, *HARMLESS, S.SIGINT) if n != S.SIGPIPE)
        with each(tmp_path, numbers, begin) as ones:
            for one in ones:
                with accept_inference(servers[one.number]) as connection:
                    take_request(connection)
                    one.process.send_signal(one.number)
                    if one.number in HARMLESS:
                        refuse(connection)
                    else:
                        signalled(one)
            for one in ones:
                if one.number in HARMLESS:
                    one.process.communicate(timeout=PATIENCE)
                    assert one.process.returncode == one.outcome()["exit_code"] > 0, one.name


def take_request(connection: socket.socket) -> None:
    """Read the whole request. Closing a connection with unread bytes resets it, and may lose the answer."""
    with connection.makefile("rb") as stream:
        size = 0
        while (line := stream.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        stream.read(size)


def refuse(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")


STUBBORN = "(trap '' TERM; touch up; while :; do sleep 0.05; done) & while ! [ -e up ]; do sleep 0.01; done"


@pytest.mark.long
def test_during_exec(tmp_path: Path) -> None:
    """The signal comes while the shell ends: the old life ends by it, or the next life receives it."""

    def begin(one: One) -> None:
        one.agents.script(
            says(sh(STUBBORN), call("exec", wisdom={"n": "1"}), wisdom="^{}$"),
            says(sh("echo alive >&4"), wisdom="."),
            says(OK, wisdom="."),
        )

    with each(tmp_path, (*FATAL, *HARMLESS, S.SIGINT, S.SIGALRM), begin) as ones:
        for one in as_they_come(ones, lambda one: one.on_tape('"termination_mode":"exec"')):
            one.process.send_signal(one.number)
        for one in ones:
            if one.number in (*FATAL, S.SIGINT):
                signalled(one)
                continue
            out, err = one.process.communicate(timeout=PATIENCE)
            assert (one.process.returncode, err) == (0, b""), one.name
            assert out == (b"" if one.number == S.SIGALRM else b"alive\n"), one.name


@pytest.mark.long
def test_during_exit(tmp_path: Path) -> None:
    """After the exit call a signal changes the outcome neither on the tape nor for the waiting parent."""

    def begin(one: One) -> None:
        # The first success is sent back, since a subshell may still write.
        one.agents.script(says(sh(STUBBORN), text="first"), says(sh("echo alive >&4"), OK), says(OK))

    def begun(one: One) -> bool:
        said = readable(one.process.stdout, 0)
        return bool(said) and one.on_tape('"name":"exit"', 2)

    with each(tmp_path, (*FATAL, *HARMLESS, S.SIGINT, S.SIGALRM), begin) as ones:
        for one in as_they_come(ones, begun):
            one.process.send_signal(one.number)
        for one in ones:
            status = one.process.wait(PATIENCE)
            outcome = one.outcome()
            one.process.communicate()
            assert status == (0 if outcome["exit_code"] == 0 else -one.number), one.name
            assert status == 0 or outcome["termination_mode"] == "signal", one.name
            if one.number in HARMLESS:
                assert status == 0, one.name


@pytest.mark.long
def test_another_one_while_it_ends(tmp_path: Path) -> None:
    """A second signal does not stop the clean-up, and the agent dies of the first one."""

    def begin(one: One) -> None:
        one.agents.script(says(sh(f"{STUBBORN}; sleep {one.nap}")))

    with each(tmp_path, (S.SIGTERM, S.SIGHUP, S.SIGINT, S.SIGALRM), begin) as ones:
        for one in as_they_come(ones, One.up):
            one.process.send_signal(S.SIGTERM)
        for one in as_they_come(ones, lambda one: one.on_tape('"type":"outcome"')):
            one.process.send_signal(one.number)
        for one in ones:
            one.number = S.SIGTERM
            signalled(one)


def test_stop_while_a_child_is_waited_for(tmp_path: Path) -> None:
    """TSTP stops the whole tree, and CONT lets all of it go on."""
    agents = Agents(tmp_path)
    os.mkfifo(tmp_path / "go")
    agents.script(
        says(call("fork", intent="child", wait=True), match="^work"),
        says(sh("echo alive >&4"), OK, match="^work"),
        says(sh("echo $PPID >pid; sh -c 'echo $$ >cmd; touch up; read x' <go"), OK, match="^child"),
    )
    with (
        agents.start("work", process_group=0) as process,
        open(os.open(tmp_path / "go", os.O_RDWR), "wb", 0) as go,
    ):
        until((tmp_path / "up").exists)
        pids = [process.pid, *(int((tmp_path / name).read_text()) for name in ("pid", "cmd"))]
        process.send_signal(S.SIGTSTP)
        for pid in pids:
            until(lambda pid=pid: state(pid) == "T")
        process.send_signal(S.SIGCONT)
        for pid in pids:
            until(lambda pid=pid: state(pid) == "S")
        go.write(b"\n")
        assert process.communicate(timeout=PATIENCE) == (b"alive\n", b"")


def test_cont_while_the_tree_is_being_stopped(tmp_path: Path) -> None:
    """The agent stopped itself after it, and took no TERM."""
    (tmp_path / "sitecustomize.py").write_text(CONTINUED)
    agents = Agents(tmp_path)
    agents.script(says(sh("sleep 72213 & echo $! >pid; touch up; wait")))
    with agents.start("work", process_group=0, env={"PYTHONPATH": str(tmp_path)}) as process:
        until((tmp_path / "up").exists)
        command = int((tmp_path / "pid").read_text())
        process.send_signal(S.SIGTSTP)
        until((tmp_path / "told").exists)
        until(lambda: state(command) == "S")
        process.terminate()
        process.communicate(timeout=PATIENCE)
        assert process.returncode == -S.SIGTERM


# CONT comes when those below have been stopped, and the agent itself not yet
CONTINUED = f"""
import os, signal
import quine.agent.signals as signals
tell = signals._tell

def told(pids, number):
    tell(pids, number)
    if number == {int(S.SIGTSTP)}:
        os.kill(os.getpid(), {int(S.SIGCONT)})
        open("told", "w").close()

signals._tell = told
"""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stopped_child_ends_when_the_time_is_over(tmp_path: Path) -> None:
    """It would be waited for without an end, and could not take its ALRM."""
    agents = Agents(tmp_path)
    agents.script(
        says(call("fork", intent="child", wait=True), match="^work"),
        says(OK, match="^work"),
        says(sh("echo $PPID >pid; touch up; sleep 71688"), match="^child"),
        says(call("exit", status=3, stderr="half"), match="^child"),
    )
    with agents.start("work") as process:
        until((tmp_path / "up").exists)
        child = int((tmp_path / "pid").read_text())
        os.kill(child, signal.SIGSTOP)
        until(lambda: state(child) == "T")
        process.send_signal(S.SIGALRM)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    assert agents.results()[0].startswith("[EXIT CODE] 3\n")
