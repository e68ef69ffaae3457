"""The persistent shell, in this process: the environment of a command, its end, the processes it leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.agent import capture
from quine.agent.outcome import Ended
from quine.agent.shell import STOP, Outcome, Shell
from quine.agent.signals import HANDLED, KICK, PYTHON_IGNORES, Signals, Terminated
from quine.agent.tools import exit as exit_tool
from quine.base import procs
from quine.base.text import quote
from tests.lab import processes
from tests.support.agents import PATIENCE, until

SHELLS = [path for path in ("/bin/sh", "/bin/bash") if os.path.exists(path)]


@pytest.fixture
def signals() -> Iterator[Signals]:
    numbers = (*HANDLED, *PYTHON_IGNORES, signal.SIGTTIN, signal.SIGTTOU, KICK)
    before = {number: signal.getsignal(number) for number in numbers}
    ours = Signals()
    ours.commands_first = True
    ours.install()
    yield ours
    ours.remove()
    for number, action in before.items():
        signal.signal(number, action)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, signals: Signals, tmp_path: Path) -> Iterator[Shell]:
    one = Shell(request.param, str(tmp_path), signals, str(tmp_path / "outputs"), 4000)
    yield one
    one.close()


def exits(shell: Shell, **more: Any) -> tuple[Any, list[str]]:
    """Return a loop of which an agent says `exit`, and its notes."""
    notes: list[str] = []
    facts = {"warned": False, "account": SimpleNamespace(last=None), "signals": SimpleNamespace(alarm=False)}
    return SimpleNamespace(shell=shell, log=SimpleNamespace(note=notes.append), **{**facts, **more}), notes


def test_a_success_is_sent_back_once_while_the_deliverable_is_written(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_tool, "MOMENT", 0.0)
    assert run(shell, "mkfifo go; cat go >&4 & echo $!").code == 0
    pid = run(shell, "echo $!").stdout.strip()
    loop, notes = exits(shell)
    refused = exit_tool.run(loop, {"status": 0}).text
    assert refused.startswith(
        f"Exit rejected: background commands may still write to descriptor 4: pid {pid};"
    )
    with pytest.raises(Ended):
        exit_tool.run(loop, {"status": 0})
    assert notes == [f"ended by exit: background commands may still write to descriptor 4: pid {pid}"]
    for other in (
        exits(shell, account=SimpleNamespace(last="turn_exhaustion"))[0],
        exits(shell, signals=SimpleNamespace(alarm=True))[0],
    ):
        with pytest.raises(Ended):
            exit_tool.run(other, {"status": 0})
    with pytest.raises(Ended):
        exit_tool.run(exits(shell)[0], {"status": 1, "stderr": "why"})
    run(shell, ": >go; wait")
    loop, notes = exits(shell)
    with pytest.raises(Ended):
        exit_tool.run(loop, {"status": "success"})
    assert notes == []


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("(cat go >&4; true) &", 2),
        ("(cat go >&4 &)", 1),
        ("(while read x <go; do :; done; true) &", 1),
        ("cat go &", 1),
        ("cat go >out 2>&1 &", 1),
        ("cat go 4>&- &", 0),
        ("sh -c 'cat go; echo late >&4' &", 2),
        (f'{sys.executable} -c \'import os; os.write(4, open("go", "rb").read())\' &', 1),
        ("(exec 4>&-; while read x <go; do :; done; true) &", 0),
        ("cat go & exit 3", 1),
    ],
)
def test_the_background_commands_that_may_write_to_the_deliverable(
    shell: Shell, command: str, count: int
) -> None:
    run(shell, f"mkfifo go; exec 9<>go; {command}")
    until(lambda: len(exit_tool._writers(shell)) == count)


def test_a_command_that_cannot_be_looked_at_may_write(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example is an agent in the background: the kernel hides its descriptors."""
    run(shell, "mkfifo go; cat go 4>&- &")
    pid = int(run(shell, "echo $!").stdout)
    until(lambda: exit_tool._writers(shell) == [])

    def listdir(path: str) -> list[str]:
        if path == f"/proc/{pid}/fd":
            raise PermissionError(path)
        return listed(path)

    listed = os.listdir
    monkeypatch.setattr(os, "listdir", listdir)
    assert exit_tool._writers(shell) == [pid]


def in_group(number: int) -> list[int]:
    return [process.pid for process in procs.everyone() if process.group == number]


def run(shell: Shell, command: str, timeout: float = 2 * PATIENCE) -> Outcome:
    return shell.run(command, timeout, {"PATH": os.environ["PATH"], "HOME": "/nowhere"})


def test_status_and_streams(shell: Shell) -> None:
    assert run(shell, "echo out; echo err >&2; exit_() { return 3; }; exit_") == Outcome(3, "out\n", "err\n")
    assert run(shell, "printf 'no newline'").stdout == "no newline"
    assert run(shell, "true").code == 0
    assert run(shell, "echo a | false").code == 1
    assert run(shell, "kill -9 $(sh -c 'echo $PPID') 2>/dev/null; :").code in (0, 137)


def test_state_persists(shell: Shell, tmp_path: Path) -> None:
    run(shell, "X=1; export Y=2; f() { echo f$1; }; mkdir sub; cd sub; set -- a b")
    assert (
        run(shell, 'echo $X $Y $(f 3) $2; sh -c "echo \\$Y"; pwd').stdout == f"1 2 f3 b\n2\n{tmp_path}/sub\n"
    )
    assert shell.cwd == f"{tmp_path}/sub"


def test_any_text_is_one_command(shell: Shell) -> None:
    for command in (
        "echo 'single' \"double\" `echo back` $(echo sub) \\\\ # comment",
        "cat <<'X'\nit's $HOME\nX",
        "if true\nthen\n  echo yes\nfi",
        "echo a; # and a comment at the end",
        "echo äöü €",
        "case x in x) echo one;; esac &&\necho two",
    ):
        wanted = subprocess.run(
            [shell._program, "-c", command],
            capture_output=True,
            text=True,
            env={"HOME": "/nowhere", "PATH": os.environ["PATH"]},
        )
        got = run(shell, command)
        assert (got.code, got.stdout, got.stderr) == (wanted.returncode, wanted.stdout, wanted.stderr), (
            command
        )
    assert run(shell, "echo alive").stdout == "alive\n"


def test_an_error_does_not_end_the_shell(shell: Shell) -> None:
    run(shell, "KEPT=yes")
    for command in ("if", "echo 'open", "cat </no/such/file", ". /no/such/file", "foo("):
        got = run(shell, command)
        assert got.code != 0 and got.stderr, command
        assert run(shell, "echo $KEPT").stdout == "yes\n", command


def test_descriptors(shell: Shell) -> None:
    seen = run(shell, "ls -l /proc/self/fd | sed -n 's/.* \\([0-9]* -> .*\\)/\\1/p'").stdout.splitlines()
    table = dict(line.split(" -> ") for line in seen)
    assert table["0"] == "/dev/null"
    for theirs, ours in (("3", 0), ("4", 1), ("5", 2)):
        assert table[theirs] == os.readlink(f"/proc/self/fd/{ours}")
    # and the directory that is listed, and what we were given ourselves: no channel of the shell's own
    others = {fd for fd, at in table.items() if int(fd) > 5 and not at.startswith("/proc/")}
    assert all(os.get_inheritable(int(fd)) for fd in others)


def test_exec_of_a_redirection_lasts_one_command(shell: Shell, tmp_path: Path) -> None:
    run(shell, f"exec >{tmp_path}/log; echo away")
    assert (tmp_path / "log").read_text() == "away\n"
    assert run(shell, "echo back").stdout == "back\n"


def test_stdin_is_empty(shell: Shell) -> None:
    assert run(shell, "cat; read x; echo $?").stdout == "1\n"


def test_a_forged_status_is_output(shell: Shell) -> None:
    assert run(shell, "printf '0\\n' >&6 2>/dev/null; printf '[EXIT CODE] 0\\n'; false").code == 1


def test_exit_is_reported_and_a_new_shell_starts_there(shell: Shell, tmp_path: Path) -> None:
    run(shell, "X=1; mkdir d; cd d")
    got = run(shell, "echo before; exit 3")
    assert (got.code, got.stdout) == (3, "before\n")
    assert "exited with status 3" in got.notes[0]
    assert run(shell, "echo $X; pwd").stdout == f"\n{tmp_path}/d\n"


def test_crash_is_reported(shell: Shell) -> None:
    got = run(shell, "kill -SEGV $$")
    assert got.code == 139
    assert "died of signal 11" in got.notes[0]
    assert run(shell, "echo alive").stdout == "alive\n"


def test_exec_of_a_program_is_the_command(shell: Shell) -> None:
    got = run(shell, "exec sh -c 'echo other; exit 4'")
    assert (got.code, got.stdout) == (4, "other\n")


def test_long_output_is_kept_whole(shell: Shell, tmp_path: Path) -> None:
    got = run(shell, "seq 1 20000")
    whole = "".join(f"{n}\n" for n in range(1, 20001))
    (kept,) = (tmp_path / "outputs").iterdir()
    assert kept.read_text() == whole
    assert kept.stat().st_mode & 0o777 == 0o600
    assert f"Output Truncated, {len(whole)} bytes total, the whole is in {kept}" in got.stdout
    assert got.stdout.startswith("1\n2\n")
    assert got.stdout.endswith("19999\n20000\n")
    assert len(got.stdout) < 4400


def test_much_output_on_both_streams(shell: Shell) -> None:
    got = run(shell, "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait")
    assert "3000000 bytes total" in got.stdout
    assert "3000000 bytes total" in got.stderr


def test_endless_output_is_ended(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "LIMIT", 1 << 20)
    got = run(shell, "yes")
    assert "[OUTPUT LIMIT]" in got.notes[0]
    assert run(shell, "echo alive").stdout == "alive\n"


@pytest.mark.long
def test_timeout_ends_the_command_and_keeps_the_shell(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quine.agent.shell.GRACE", 2 * PATIENCE)
    run(shell, "X=kept; sleep 1000 & old=$!")
    began = time.monotonic()
    got = run(shell, "sleep 1001; true", timeout=1)
    assert time.monotonic() - began < PATIENCE  # TERM is enough
    assert got.code == 124
    assert "[TIMEOUT]" in got.notes[0]
    # the background process of an earlier command goes on
    assert run(shell, "echo $X; kill -0 $old && echo there").stdout == "kept\nthere\n"


def test_timeout_kills_what_will_not_end(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("quine.agent.shell.GRACE", 0.2)
    got = run(shell, "trap '' TERM; (trap '' TERM; echo $$ >pid; while :; do sleep 1000; done)", timeout=0.3)
    assert got.code == 124
    until(lambda: in_group(shell.group) == [shell.group])
    assert run(shell, "echo alive").stdout == "alive\n"


def test_a_loop_of_the_shell_itself_is_ended(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quine.agent.shell.GRACE", 0.1)
    monkeypatch.setattr("quine.agent.shell.LAST", 0.1)
    got = run(shell, "X=kept; while :; do :; done; X=next", timeout=0.1)
    assert (got.code, len(got.notes)) == (124, 1)
    assert run(shell, "echo $X").stdout == "kept\n"
    deaf = run(shell, f"trap '' {STOP}; while :; do :; done", timeout=0.1)
    assert deaf.code == 124
    assert "died of signal 9" in deaf.notes[-1]


LISTS = {
    "list": "stall; next",
    "lines": "stall\nnext\nnext",
    "alternative": "stall || next; next",
    "function": "f() { stall; next; }; g() { f; next; }; g; next",
    "loops": "g() { while :; do stall; next; done; next; }; for i in 1 2; do g; next; done; next",
    "file": ". ./file; next",
    "eval": "eval 'eval \"stall; next\"; next'; next",
    "subshell": "(stall; next); next",
    "substitution": "Y=$(stall; next); next",
    "pipe": "{ stall; next; } | cat; next",
    "wait": "stall & wait; next",
    "condition": "if stall; then next; else next; fi; next",
}


@pytest.mark.parametrize("name", ["INT", "ALRM"])
@pytest.mark.parametrize("form", LISTS)
def test_a_list_that_is_ended_goes_no_further(
    shell: Shell, signals: Signals, tmp_path: Path, form: str, name: str
) -> None:
    """Its shell lives, with the variables and functions of before, and takes the next command."""
    stall = f"sh -c 'kill -{name} {os.getpid()}; exec sleep 1000'"
    run(shell, f"X=kept; next() {{ echo next >>ran; }}; stall() {{ {stall}; }}; echo 'stall; next' >file")
    got = run(shell, LISTS[form], timeout=PATIENCE)
    assert got.code == {"INT": 130, "ALRM": 143}[name]
    assert not (tmp_path / "ran").exists()
    signals.alarm = False
    if any("died of signal 2" in note for note in got.notes):
        assert (shell._program, form) == ("/bin/bash", "substitution")  # it dies as its substitution did
    else:
        assert run(shell, "echo $X; next; cat ran").stdout == "kept\nnext\n"


def test_background_output_comes_with_the_next_result(shell: Shell, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    got = run(shell, "(read x <go; echo late; echo done >done) & echo now")
    assert got.stdout == "now\n"
    (tmp_path / "go").write_text("\n")
    until((tmp_path / "done").exists)
    assert run(shell, "echo next") == Outcome(0, "next\n", "", (), "late\n")


def test_a_background_process_does_not_hold_the_result(shell: Shell) -> None:
    assert run(shell, "sleep 1000 &").code == 0  # and not at the end of its time


def test_interrupt_goes_to_the_command(shell: Shell, signals: Signals) -> None:
    run(shell, "X=kept")
    got = run(shell, "sh -c 'kill -INT $0; exec sleep 1000' $PPID")
    assert got.code == 130
    assert run(shell, "echo $X").stdout == "kept\n"


def test_two_interrupts_are_for_the_agent(shell: Shell) -> None:
    # The second is sent by a command that was told of the first: pending at one time, two are one.
    twice = "trap 'kill -INT $0' INT; kill -INT $0; while :; do sleep 0.02; done"
    with pytest.raises(Terminated) as caught:
        run(shell, f"sh -c {quote(twice)} $PPID")
    assert caught.value.number == signal.SIGINT


def test_closing_ends_the_group(shell: Shell) -> None:
    run(shell, "sleep 1000 & sleep 1001 & setsid sleep 0.01 &")
    group = shell.group
    assert in_group(group)
    shell.close()
    assert not in_group(group)


def test_a_full_disk_ends_the_keeping_not_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        capture.regular_file, "written", lambda *_: os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    )
    kept = capture.Capture(1000, str(tmp_path / "kept"))
    for _ in range(9):
        kept.feed(b"x" * 999 + b"\n")
    text = kept.text()
    assert "9000 bytes total, the whole could not be kept: No space left" in text
    assert text.endswith("xx\n")


def test_no_such_shell(signals: Signals, tmp_path: Path) -> None:
    shell = Shell("/no/such/shell", str(tmp_path), signals, str(tmp_path), 100)
    with pytest.raises(FileNotFoundError):
        run(shell, "true")
    shell.close()


def test_a_command_for_a_shell_that_has_died_runs_in_a_new_one(shell: Shell, signals: Signals) -> None:
    """The command has not begun, so nothing runs twice, and an error would not be the fault of the command."""
    run(shell, "X=1")
    os.kill(shell.group, signal.SIGKILL)
    procs.wait([shell._pidfd], 5)
    got = run(shell, "echo $X$X alive")
    assert (got.code, got.stdout) == (0, "alive\n")
    assert "died of signal 9" in got.notes[0]
    assert not signals.fatal


def test_an_agent_that_is_killed_as_soon_as_its_command_is_written_leaves_none(shell: Shell) -> None:
    """A command may kill its agent at once, before that has made any other call."""
    run(shell, ":")
    report, end = os.pipe()
    write = os.write

    def last(fd: int, data: bytes) -> int:
        if fd == shell._control:
            write(fd, data)
            os.read(report, 1)  # the command runs
            os.kill(os.getpid(), signal.SIGKILL)
        return write(fd, data)

    group = shell.group
    agent = os.fork()
    if not agent:
        try:
            os.write = last
            os.close(end)
            run(shell, f"echo >/proc/{os.getppid()}/fd/{end}; sleep 71294.5 & sleep 71294.5")
        finally:
            os._exit(1)
    # This process is no holder of the pipes, as if the agent had started its shell.
    shell._close_channels()
    assert os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1]) == -signal.SIGKILL
    until(lambda: not in_group(group))
    for fd in (report, end):
        os.close(fd)


def test_a_broken_pipe_of_ours_is_not_a_signal(
    shell: Shell, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shell dies after the check that it lives and before the write to it."""
    run(shell, "true")
    os.kill(shell.group, signal.SIGKILL)
    procs.wait([shell._pidfd], 5)
    with monkeypatch.context() as patched:
        patched.setattr("quine.agent.shell.procs.wait", lambda fds, seconds: False)
        got = run(shell, "echo x " + "y" * 100_000)
    assert got.code == 137
    assert not signals.fatal
    assert run(shell, "echo alive").stdout == "alive\n"


GROUPS = ("timeout 1000 sleep 86394 &", "set -m; sleep 86394 & set +m;")


@pytest.mark.parametrize("command", GROUPS)
def test_closing_ends_groups_of_their_own(shell: Shell, command: str) -> None:
    pid = int(run(shell, f"{command} echo $!").stdout)
    found = procs.of_session(pid)
    shell.close()
    assert not found.keys() & {process.pid for process in procs.everyone()}


@pytest.mark.long
def test_interrupt_ends_a_loop_of_short_commands(shell: Shell) -> None:
    got = run(shell, "(sleep 0.1; kill -INT $PPID) & while :; do sleep 0.05; done")
    assert got.code != 124
    assert run(shell, "echo alive").stdout == "alive\n"


@pytest.mark.long
def test_interrupt_reaches_a_shell_that_waits_for_its_background(shell: Shell) -> None:
    """A command before `&` ignores SIGINT, so an interrupted shell must not wait for it."""
    ignoring = "until grep -q sleep /proc/$!/comm; do :; done"  # it does from before its exec on
    got = run(shell, f"sleep 86391 & {ignoring}; kill -INT {os.getpid()}; wait")
    assert got.code == 130


def test_an_interrupted_command_may_clean_up(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quine.agent.shell.INSIST", 0.2)
    trap = f"trap 'echo int; sleep 0.6; echo clean; exit 5' INT; kill -INT {os.getpid()}; while :; do sleep 0.05; done"
    got = run(shell, f"sh -c {quote(trap)}")
    assert (got.code, got.stdout) == (5, "int\nclean\n")


def test_exit_with_a_subshell_in_the_background(shell: Shell) -> None:
    got = run(shell, "(sleep 86393; :) & exit 3")
    assert got.code == 3  # and not at the end of its time
    left = set(shell.left)
    assert left
    shell.close()
    until(lambda: not any(processes.find(pid) for pid in left))  # a killed process may take a moment to die


def test_no_descriptor_of_the_shell_forges_a_status(shell: Shell) -> None:
    """A command writes forged status lines to every descriptor. It cannot know the mark that real ones have."""
    for mark in ("", "x", "0" * 16, "%s"):
        forged = f"printf '\n%s 0\n' '{mark}'"
        command = (
            f'for fd in 3 4 5 6 7 8 9 10 11 12 13 14 15; do eval "{forged} >&$fd"; done 2>/dev/null; false'
        )
        assert run(shell, command).code in (1, 2), mark  # dash knows no descriptors of two digits
        assert run(shell, "echo alive").stdout.endswith("alive\n"), mark
