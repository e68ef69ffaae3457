"""`quine run -t`: a terminal over there. Real ptys at both ends, real sshd between them."""

from __future__ import annotations

import hashlib
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.screen import Screen
from tests.lab import Lab
from tests.lab.machine import readable
from tests.support.agents import PATIENCE, until
from tests.support.machine import only_node
from tests.support.waiting import read_until
from transport.errors import ProtocolError
from transport.job import process
from transport.spawn import Spawn
from transport.terminal import HELP, LEAVE, SUSPEND, Escapes

RUN = ["run", "-t", "--on", "h1", "--"]


@pytest.fixture
def screen() -> Iterator[Screen]:
    with Screen() as made:
        yield made


def sh(script: str) -> list[str]:
    return [*RUN, "sh", "-c", script]


def bash(screen: Screen, lab: Lab, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Start an interactive shell on the host and wait for its prompt."""
    args = ["run", "-t", "--on", "h1", "--env", "PS1=there> ", "--", "bash", "--norc", "--noprofile", "-i"]
    started = screen.start(lab, args, env={"TERM": "vt100", **(env or {})})
    screen.wait(b"there> ")
    return started


def test_with_the_files_tier_as_a_directory(lab: Lab, screen: Screen) -> None:
    """With --mount a program of quine starts first in the terminal; the command still has it."""
    words = ["run", "-t", "--mount", "--on", "h1", "--", "sh", "-c", "test -t 0 && echo a$((1+1))c"]
    client = screen.start(lab, words)
    screen.wait(b"a2c\r\n")
    assert client.wait(PATIENCE) == 0


# -- an interactive program ------------------------------------------------------------------------


def test_a_shell_over_there(lab: Lab, screen: Screen) -> None:
    screen.resize(31, 97)
    client = bash(screen, lab)
    assert screen.settings != screen.found
    for typed, shown in (
        ("stty size", b"31 97\r\n"),
        ("echo =$TERM=", b"=vt100=\r\n"),
        ("test -t 0 && test -t 1 && test -t 2 && echo a$((1+1))c", b"a2c\r\n"),
        ("tty", b"/dev/pts/"),
        (": </dev/tty && echo controls$((1))", b"controls1\r\n"),
    ):
        screen.type(typed.encode() + b"\r")
        screen.wait(shown)
        screen.wait(b"there> ")
    screen.type(b"exit 7\r")
    assert client.wait(PATIENCE) == 7
    assert screen.settings == screen.found
    assert lab.wait_idle() == []


def test_its_size_follows(lab: Lab, screen: Screen) -> None:
    script = "trap 'stty size' WINCH; echo up; while :; do read line && exit 0; done"
    client = screen.start(lab, sh(script))
    screen.wait(b"up\r\n")
    screen.resize(50, 132)
    screen.wait(b"50 132\r\n")
    screen.resize(10, 20)
    screen.wait(b"10 20\r\n")
    screen.type(b"\r")
    assert client.wait(PATIENCE) == 0


def test_keys_make_signals_over_there(lab: Lab, screen: Screen) -> None:
    """^C ends the command and not its shell, ^Z stops it, ^\\ is a core dump without a core; the client sees bytes."""
    client = bash(screen, lab)  # each command prints a line: then it is in the foreground
    screen.type(b"sh -c 'echo up$((1)); exec sleep 1000'\r")
    screen.wait(b"up1\r\n")
    screen.type(b"\x03")
    screen.wait(b"there> ")
    screen.type(b"echo =$?=\r")
    screen.wait(b"=130=\r\n")
    screen.type(b"sh -c 'echo up$((2)); read x; kill $$'\r")
    screen.wait(b"up2\r\n")
    screen.type(b"\x1a")
    screen.wait(b"Stopped")
    screen.wait(b"there> ")
    screen.type(b"fg; echo =$?=\r")
    screen.wait(b"kill $$'\r\n")  # it is in the foreground again
    screen.type(b"\r")
    screen.wait(b"=143=\r\n")
    assert client.poll() is None
    screen.type(b"echo up$((3)); exec cat\r")
    screen.wait(b"up3\r\n")
    screen.type(b"\x04")  # the end of input is a key, too
    assert client.wait(PATIENCE) == 0
    assert screen.settings == screen.found


@pytest.mark.skipif(not shutil.which("vim"), reason="no vim here")
def test_an_editor(lab: Lab, screen: Screen, tmp_path: Path) -> None:
    """It draws for our size, again after a resize, takes escape sequences, and gives the screen back."""
    path = tmp_path / "text"
    path.write_text("one\ntwo\n")
    vim = ["--cwd", str(tmp_path), "--", "vim", "-u", "NONE", "-i", "NONE", "-n", "text"]
    client = screen.start(lab, ["run", "-t", "--on", "h1", *vim], env={"TERM": "xterm"})
    screen.wait(b"two")
    screen.resize(40, 100)
    screen.wait(b"\x1b[39;1H~")
    screen.type(b"\x1b[Bothree \xc3\xa9\x1b:wq\r")
    assert client.wait(PATIENCE) == 0
    assert path.read_text() == "one\ntwo\nthree é\n"
    assert screen.settings == screen.found


# -- every way out ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["TERM", "HUP", "INT", "QUIT", "XCPU"])
def test_a_signal_to_the_client_is_for_the_client(
    lab: Lab, screen: Screen, name: str, tmp_path: Path
) -> None:
    """The client ends and restores the terminal. The interactive shell on the host ignores TERM and gets HUP."""
    client = bash(screen, lab)
    screen.type(f"trap 'echo bye >{tmp_path}/up' EXIT; echo up$((1))\r".encode())
    screen.wait(b"up1\r\n")
    client.send_signal(getattr(signal, f"SIG{name}"))
    assert client.wait(PATIENCE) == -getattr(signal, f"SIG{name}")
    assert screen.settings == screen.found
    assert lab.wait_idle() == []
    assert (tmp_path / "up").read_text() == "bye\n"


@pytest.mark.parametrize("name", ["TERM", "KILL"])
def test_its_death_by_signal_is_that_death(lab: Lab, screen: Screen, name: str) -> None:
    client = screen.start(lab, sh(f"echo up; kill -{name} $$"))
    assert client.wait(PATIENCE) == -getattr(signal, f"SIG{name}")
    assert screen.settings == screen.found


def test_leaving_by_keys(lab: Lab, screen: Screen) -> None:
    client = bash(screen, lab)
    screen.type(b"sleep 1000\r~.")
    assert client.wait(PATIENCE) == 74
    screen.wait(b"disconnected by ~.; sent SIGHUP to pid ")
    assert screen.settings == screen.found
    assert lab.wait_idle() == []


def test_leaving_a_node_that_does_not_answer(lab: Lab, screen: Screen) -> None:
    """~. works while the node is stopped: no key reaches the command, and ^C is one of the lost keys."""
    client = bash(screen, lab)
    node = only_node(lab)
    os.kill(node.pid, signal.SIGSTOP)
    try:
        screen.type(b"\x03\r~?~.")
        assert client.wait(PATIENCE) == 74
        screen.wait(b"~^Z  suspend")
    finally:
        os.kill(node.pid, signal.SIGCONT)
    assert screen.settings == screen.found
    assert lab.wait_idle() == []


def test_the_node_here_is_killed(lab: Lab, screen: Screen) -> None:
    client = bash(screen, lab)
    node = only_node(lab)
    os.kill(node.pid, signal.SIGKILL)
    assert client.wait(PATIENCE) == 74
    assert screen.settings == screen.found
    lab.stop_nodes()


def test_a_client_killed_at_once_is_a_terminal_hung_up(lab: Lab, screen: Screen, tmp_path: Path) -> None:
    script = f"trap 'echo hung >{tmp_path}/up; exit' HUP; echo up; while :; do read line || sleep 0.1; done"
    client = screen.start(lab, sh(script))
    screen.wait(b"up\r\n")
    client.kill()
    client.wait()
    assert lab.wait_idle() == []
    assert (tmp_path / "up").read_text() == "hung\n"


@pytest.mark.long
def test_what_ignores_the_hangup_is_killed(lab: Lab, screen: Screen) -> None:
    client = screen.start(lab, sh("trap '' HUP TERM; echo up; while :; do sleep 1; done"))
    screen.wait(b"up\r\n")
    client.terminate()
    assert client.wait(PATIENCE) == -signal.SIGTERM
    assert lab.wait_idle(90) == []


def test_a_terminal_that_vanishes(lab: Lab) -> None:
    with Screen() as screen:
        client = bash(screen, lab)
    assert client.wait(PATIENCE) == -signal.SIGHUP
    assert lab.wait_idle() == []


def test_nobody_at_the_terminal_any_more(lab: Lab) -> None:
    """Where it is not ours to be hung up with, it is the end of input, told over there by the key that means it."""
    master, slave = pty.openpty()
    client = lab.popen([*RUN, "cat"], stdin=slave, stdout=subprocess.PIPE, new_session=True)
    os.close(slave)
    os.write(master, b"half a line")
    assert client.stdout
    read_until(client.stdout.fileno(), b"half a line")
    os.close(master)
    rest, _ = client.communicate(timeout=PATIENCE)
    assert (client.returncode, rest) == (0, b"half a line")


def test_a_defect_of_ours(lab: Lab, screen: Screen) -> None:
    program = """
import os, sys
from transport.client import client, proxy
from transport.spawn import Spawn
from transport.terminal import description
proxy.Proxy.tell_size = lambda self: 1 / 0
command = ["sh", "-c", "echo up; cat"]
context = {"inventory": os.environ["QUINE_INVENTORY"]}
client.run(Spawn(command, where="h1", context=context, terminal=description(0, os.environ)))
"""
    started = screen.program(lab, [sys.executable, "-c", program])
    screen.wait(b"up\r\n")
    screen.resize(5, 6)
    assert started.wait(PATIENCE) == 1
    screen.wait(b"ZeroDivisionError")
    assert screen.settings == screen.found
    assert lab.wait_idle() == []


def test_what_was_never_started_leaves_the_terminal_alone(lab: Lab, screen: Screen) -> None:
    """Keys typed before the refusal stay in the terminal, for the shell."""
    screen.type(b"next\r")
    client = screen.start(lab, [*RUN, "no-such-command"])
    assert client.wait(PATIENCE) == 127
    screen.wait(b"quine: h1: error: command not found: no-such-command\r\n")
    assert screen.settings == screen.found
    assert os.read(screen.slave, 100) == b"next\n"


@pytest.mark.parametrize("verbose", [False, True])
def test_the_connection_breaks(lab: Lab, verbose: bool) -> None:
    """Input and output go on where they were. Messages about the break appear with -v only."""
    lab.alias("cuttable", "h1", lab["h1"].proxy, lease=60)
    with Screen() as screen:
        words = ["-v"] if verbose else []
        client = screen.start(lab, ["run", "-t", *words, "--on", "cuttable", "--", "cat"])
        screen.type(b"one\r")
        screen.wait(b"one\r\none\r\n")
        assert lab["h1"].proxy.cut()
        if verbose:
            screen.wait(b"quine: cuttable: connection lost 0 s ago; reconnecting")
            screen.wait(b"quine: cuttable: reconnected after ")
        screen.type(b"two\r")
        shown = screen.wait(b"two\r\ntwo\r\n")
        assert b"quine: " not in shown or verbose
        screen.resize(33, 44)
        screen.type(b"\x04")
        assert client.wait(PATIENCE) == 0
        assert screen.settings == screen.found


# -- suspended -------------------------------------------------------------------------------------


def test_suspended_by_keys_and_brought_back(lab: Lab, screen: Screen) -> None:
    """In a real shell: ~^Z gives its prompt back in its own mode, fg goes on, and the screen is drawn again."""
    screen.shell(lab)
    screen.wait(b"$ ")
    script = "trap 'echo drawn$((1))' WINCH; echo up$((1)); while :; do read line && echo got $line; done"
    screen.type(f'quine run -t --on h1 -- sh -c "{script.replace("$", chr(92) + "$")}"\r'.encode())
    screen.wait(b"up1\r\n")
    screen.type(b"\r~\x1a")
    screen.wait(b"Stopped")
    screen.type(b"echo here$((2))\r")
    screen.wait(b"here2\r\n")
    screen.type(b"fg\r")
    screen.wait(b"drawn1")
    screen.type(b"word\r")
    screen.wait(b"got word\r\n")
    screen.type(b"\x03")
    screen.wait(b"$ ")
    screen.type(b"echo =$?=; exit\r")
    screen.wait(b"=130=\r\n")


def test_begun_in_the_background(lab: Lab, screen: Screen) -> None:
    """It may not touch the terminal there, and waits, as the kernel has it, until it is brought to the front."""
    screen.shell(lab)
    screen.wait(b"$ ")
    screen.type(b"quine run -t --on h1 -- cat &\r")
    screen.wait(b"[1] ")
    screen.type(b"while ! jobs | grep -q Stopped; do sleep 0.05; done; echo stopped$((1))\r")
    screen.wait(b"stopped1\r\n")
    screen.type(b"fg\r")
    screen.wait(b"cat\r\n")
    screen.type(b"word\r")
    screen.wait(b"word\r\nword\r\n")
    screen.type(b"\x04")
    screen.wait(b"$ ")
    screen.type(b"exit\r")


def test_ended_in_the_background(lab: Lab, screen: Screen) -> None:
    """The settings are the shell's then, and to be stopped for them is no reason not to hear a TERM."""
    screen.shell(lab)
    screen.wait(b"$ ")
    screen.type(b"quine run -t --on h1 -- cat &\r")
    screen.wait(b"[1] ")
    screen.type(b"while ! jobs | grep -q Stopped; do sleep 0.05; done; echo stopped$((1))\r")
    screen.wait(b"stopped1\r\n")
    screen.type(
        b"kill %1; kill -CONT %1; while kill -0 $! 2>&-; do sleep 0.05; done; wait $!; echo =$?=; exit\r"
    )
    screen.wait(b"=143=\r\n")


@pytest.mark.parametrize("name", ["TSTP", "STOP"])
def test_suspended_by_a_signal(lab: Lab, screen: Screen, name: str) -> None:
    client = screen.start(lab, sh("trap 'echo drawn' WINCH; echo up; while :; do read line && exit 3; done"))
    screen.wait(b"up\r\n")
    raw = screen.settings
    if name == "TSTP":  # nobody to wake us, says the kernel of a session leader, and does not stop it
        client.send_signal(signal.SIGTSTP)
        screen.wait(b"drawn")
    else:
        client.send_signal(signal.SIGSTOP)
        os.waitpid(client.pid, os.WUNTRACED)
        termios.tcsetattr(screen.slave, termios.TCSANOW, screen.found)
        client.send_signal(signal.SIGCONT)
        screen.wait(b"drawn")
    assert screen.settings == raw
    screen.type(b"\r")
    assert client.wait(PATIENCE) == 3
    assert screen.settings == screen.found


# -- streams ---------------------------------------------------------------------------------------


@pytest.mark.long
def test_ten_megabytes_for_a_slow_reader(lab: Lab, screen: Screen, tmp_path: Path) -> None:
    material = random.Random(1).randbytes(10_000_000)
    (tmp_path / "material").write_bytes(material)
    client = screen.start(lab, sh(f"stty raw; cat {tmp_path}/material; echo end"))
    total, got = len(material) + 4, hashlib.sha256()
    while total:
        assert readable(screen.master, PATIENCE)
        data = os.read(screen.master, min(1000, total))
        got.update(data)
        total -= len(data)
    assert got.digest() == hashlib.sha256(material + b"end\n").digest()
    assert client.wait(PATIENCE) == 0


def test_every_byte_can_be_typed(lab: Lab, screen: Screen) -> None:
    """Of 256 bytes, one after the other, none is taken by a terminal on the way; no byte has to be UTF-8."""
    client = screen.start(lab, sh("stty raw -echo; echo up; head -c 512 | od -An -v -tx1 | tr -d ' \n'"))
    screen.wait(b"up\n")
    keys = bytes(range(256)) + bytes(reversed(range(256)))
    screen.type(keys)
    screen.wait(keys.hex().encode())
    assert client.wait(PATIENCE) == 0


def test_output_into_a_file(lab: Lab, screen: Screen, tmp_path: Path) -> None:
    """As with ssh -t, the command on the host still has a terminal."""
    with (tmp_path / "out").open("wb") as out:
        client = screen.start(lab, sh("echo out; echo err >&2; read line; echo $line"), stdout=out)
        # the echo may come between a line and its end
        until(lambda: {b"out", b"err"} <= set((tmp_path / "out").read_bytes().split(b"\r\n")[:-1]))
        screen.type(b"typed\r")
        assert client.wait(PATIENCE) == 0
    lines = (tmp_path / "out").read_bytes().split(b"\r\n")
    assert sorted(lines) == [b"", b"err", b"out", b"typed", b"typed"]  # one of them is the echo
    assert screen.settings == screen.found


def test_what_is_typed_too_early_is_not_lost(lab: Lab, screen: Screen) -> None:
    screen.type(b"early\r")
    client = screen.start(lab, sh("read line; echo got $line"))
    screen.wait(b"got early\r\n")
    assert client.wait(PATIENCE) == 0


# -- who may ---------------------------------------------------------------------------------------


def test_it_needs_a_terminal_here(lab: Lab) -> None:
    for words in (RUN, ["run", "-t", "--"]):
        done = lab.run([*words, "true"])
        assert (done.returncode, done.stdout) == (2, b"")
        assert done.stderr.startswith(
            b"quine: error: -t needs a terminal on stdin\nquine: hint: leave -t out"
        )


def test_an_agent_has_none(lab: Lab) -> None:
    for words in (["-t", "work"], ["--on", "h1", "-t", "work"], ["--terminal", "work"]):
        done = lab.run(words)
        assert done.returncode == 2 and b"no such option: -" in done.stderr, words
        assert b"hint: an agent has no terminal, only streams" in done.stderr, words


@pytest.mark.parametrize("where", [[], ["--on", "local"]])
def test_on_this_machine(lab: Lab, screen: Screen, where: list[str]) -> None:
    screen.resize(12, 34)
    client = screen.start(lab, ["run", "-t", *where, "--", "sh", "-c", "stty size; test -t 2 && exit 5"])
    screen.wait(b"12 34\r\n")
    assert client.wait(PATIENCE) == 5
    assert screen.settings == screen.found


def test_beside_it_a_command_without_one(lab: Lab, screen: Screen) -> None:
    """Without -t the command gets pipes even if the client has a terminal, as with ssh."""
    client = screen.start(lab, ["run", "--on", "h1", "--", "sh", "-c", "test -t 0 || test -t 1 || echo none"])
    screen.wait(b"none\r\n")
    assert client.wait(PATIENCE) == 0


# -- parts -----------------------------------------------------------------------------------------


def test_a_child_with_a_terminal() -> None:
    child = process.launch(
        ["sh", "-c", "tty; stty size; echo err >&2"], dict(os.environ), "/", [], (), (7, 9)
    )
    assert isinstance(child, process.Child)
    out = b""
    while True:
        try:
            out += os.read(child.stdout, 65536)
        except OSError:  # EIO: nobody has it open any more
            break
    assert out.split()[1:] == [b"7", b"9", b"err"] and out.startswith(b"/dev/pts/")
    assert os.read(child.stderr, 1) == b""
    assert readable(child.pidfd, PATIENCE)
    assert child.reap().code == 0
    for fd in (child.stdin, child.stdout, child.stderr, child.pidfd):
        os.close(fd)


@pytest.mark.parametrize(
    ("typed", "sent", "commands"),
    [
        (b"~.", b"", [LEAVE]),
        (b"a~.", b"a~.", []),
        (b"a\r~.rest", b"a\r", [LEAVE]),
        (b"a\n~.", b"a\n", [LEAVE]),
        (b"~~.", b"~.", []),
        (b"~~\r~.", b"~\r", [LEAVE]),
        (b"~x~.", b"~x~.", []),
        (b"~?~\x1a~.", b"", [HELP, SUSPEND, LEAVE]),
        (b"\r~\r~.", b"\r~\r", [LEAVE]),
        (b"\r\r~a", b"\r\r~a", []),
        (b"~/bin\r", b"~/bin\r", []),
        (b"\xff\r~\xff", b"\xff\r~\xff", []),
    ],
)
def test_escapes(typed: bytes, sent: bytes, commands: list[str]) -> None:
    """The same in one piece and byte by byte: where the reads fall says nothing."""
    assert Escapes().feed(typed) == (sent, commands)
    escapes, out, found = Escapes(), b"", []
    for at in range(len(typed)):
        keys, some = escapes.feed(typed[at : at + 1])
        out, found = out + keys, found + some
        if LEAVE in found:
            break
    assert (out, found) == (sent, commands)


@pytest.mark.parametrize(
    "terminal",
    [
        {},
        {"rows": 1, "columns": 1},
        {"rows": -1, "columns": 1, "term": "x"},
        {"rows": 1, "columns": 65536, "term": "x"},
        {"rows": True, "columns": 1, "term": "x"},
        {"rows": 1, "columns": 1, "term": "a\0b"},
        {"rows": 1, "columns": 1, "term": "x" * 129},
        {"rows": 1, "columns": 1, "term": "x", "more": 1},
        [],
    ],
)
def test_a_terminal_is_described_strictly(terminal: object) -> None:
    with pytest.raises(ProtocolError, match="terminal"):
        Spawn.from_json({**Spawn(["true"]).to_json(), "terminal": terminal})
