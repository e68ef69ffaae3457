"""An agent where Unix puts programs: cron, timeout, nohup, xargs, pipelines, containers, odd descriptors and disks."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from quine.agent.shell import UNATTENDED
from tests.lab.machine import UNSHARE
from tests.support.agents import OK, QUINE, Started, call, left, running, says, section, sh
from tests.support.places import Shell, needs_mounts
from tests.support.waiting import wait_for

NAP = "71894"  # seconds that only a test sleeps


@pytest.fixture
def place(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


# -- who starts programs ---------------------------------------------------------------------------


def test_cron(place: Shell) -> None:
    """Its four variables, an empty pipe, one pipe for both outputs, a session without a terminal, the home directory.

    The commands of the agent find exactly that. Variables of quine are named QUINE_*, stands behind the PATH, or keeps
    programs from asking questions.
    """
    place.script(
        says(sh("env >&4; echo to-err >&5; quine nested >&4 && cat <&3 >&4"), match="^report"),
        says(sh("echo nested >&4"), match="^nested"),
        says(OK),
    )
    given = {"HOME": str(place.directory), "LOGNAME": "me", "SHELL": "/bin/sh", "PATH": "/usr/bin:/bin"}
    line = f"QUINE_API_TYPE=script QUINE_API_BASE=script.jsonl {place.quine} report"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=given, cwd=place.directory, input=b"", stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    *lines, to_err, nested = done.stdout.decode().splitlines()
    assert (to_err, nested) == ("to-err", "nested")
    seen = dict(variable.split("=", 1) for variable in lines)
    assert seen.pop("PATH").startswith(given.pop("PATH") + ":")
    of_shells = {"PWD", "OLDPWD", "SHLVL", "_"}
    ours = {name for name in seen if name.startswith("QUINE_")}
    assert {name: seen[name] for name in seen.keys() - of_shells - ours} == {**given, **UNATTENDED}
    assert len(list((place.directory / ".quine").glob("*.jsonl"))) == 2


def test_timeout(place: Shell) -> None:
    """124 is the status of timeout itself. The agent gets TERM from it and ends the processes it has started."""
    place.script(says(sh(f"touch up; sleep {NAP}1")))
    with Started(["timeout", "3600", place.quine, "work"], cwd=place.directory, env=place.env) as process:
        wait_for(place.directory / "up")
        process.send_signal(signal.SIGALRM)  # as if its time were over
        assert process.wait(120) == 124
    assert place.outcome() | {"exit_code": 143, "termination_mode": "signal"} == place.outcome()
    assert not left("sleep", f"{NAP}1")


def test_nohup(place: Shell) -> None:
    """A hang-up is ignored by the agent, its commands, its children and the life after exec."""
    hang_up = "kill -HUP $PPID; kill -HUP $$; echo on >&4"
    place.script(
        says(sh(hang_up), call("fork", intent="child", wait=True), match="^work", wisdom="^{}$"),
        says(call("exec", wisdom={"n": "2"}), match="^work", wisdom="^{}$"),
        says(sh(hang_up), match="^work", wisdom="2"),
        says(OK, match="^work", wisdom="2"),
        says(sh(f"{hang_up}; echo on"), match="^child"),
        says(OK, match="^child"),
    )
    done = place.sh("nohup quine work")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"on\non\n", b"")
    first, _, child = sorted(place.tapes(), key=lambda tape: tape[0]["data"]["born"] == "fork")
    assert section(contents(first)[1], "STDOUT") == section(contents(child)[-1], "STDOUT") == "on\n"


def contents(tape: list[dict[str, Any]]) -> list[str]:
    return [entry["data"]["content"] for entry in tape if entry["type"] == "tool_result"]


def test_nice(place: Shell) -> None:
    """Commands, forked children and nested agents are as nice as the agent."""
    place.script(
        says(sh("nice >&4; quine nested >&4"), call("fork", intent="child", wait=True), match="^work"),
        says(OK, match="^work"),
        says(sh("nice >&4"), match="^(nested|child)"),
        says(OK, match="^(nested|child)"),
    )
    done = place.sh("nice -n 7 quine work")
    nice = min(os.nice(0) + 7, 19)  # we may be nice ourselves
    assert (done.returncode, done.stdout, done.stderr) == (0, b"%d\n%d\n" % (nice, nice), b"")
    assert section(place.results()[1], "STDOUT") == f"{nice}\n"


def test_xargs(place: Shell) -> None:
    """Agents run in parallel. If one fails, xargs returns 123 and the others still finish."""
    place.script(
        says(sh("echo ${QUINE_SESSION_ID:+done} >&4"), match="^do"),
        says(OK, match="^do [^4]"),
        says(call("exit", status=9, stderr="four"), match="^do 4"),
    )
    done = place.sh("seq 4 | xargs -P 4 -I% quine 'do %'")
    assert (done.returncode, done.stdout, done.stderr) == (123, b"done\n" * 4, b"four\n")
    assert len(place.tapes()) == 4


@pytest.mark.skipif(not shutil.which("parallel"), reason="GNU parallel is not installed")
def test_parallel(place: Shell) -> None:
    """GNU parallel: its order of outputs, and the number of failures as its status."""
    place.script(
        says(sh("cat <&3 >&4"), match="^do"),
        says(OK, match="^do [^2]"),
        says(call("exit", status="failure", stderr="two"), match="^do 2"),
    )
    place.env["HOME"] = str(place.directory)
    done = place.sh("parallel --will-cite -k -j2 'echo {} | quine do {}' ::: 1 2")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"1\n2\n", b"two\n")


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "code", "out"),
    [
        ("quine good && quine good && echo yes", 0, b"good\ngood\nyes\n"),
        ("quine bad && echo no", 3, b""),
        ("quine bad || echo $?", 0, b"3\n"),
        ("if quine bad; then echo no; else echo else; fi", 0, b"else\n"),
        ("! quine bad && quine good", 0, b"good\n"),
        ("set -e; quine bad; echo no", 3, b""),
        ("quine bad | cat", 0, b""),
        ("set -o pipefail; quine bad | cat", 3, b""),
        ("set -o pipefail; quine good | quine copy | quine copy | tr o 0", 0, b"g00d\n"),
        ("quine good | quine bad | quine copy; echo ${PIPESTATUS[*]}", 0, b"0 3 0\n"),
        ("set -o pipefail; quine endless | head -n 1", 0, b"y\n"),
        ("x=$(quine good); echo \"<$x>\"", 0, b"<good>\n"),
        ("quine copy < <(quine good) > >(cat -n); wait $!", 0, b"     1\tgood\n"),
        ("quine good & wait $!; echo $?", 0, b"good\n0\n"),
        ("(quine good; quine bad) 2>/dev/null; echo $?", 0, b"good\n3\n"),
        ("seq 3 | while read n; do quine good </dev/null; done", 0, b"good\ngood\ngood\n"),
        ("seq 3 | (quine line; quine line; cat)", 0, b"1\n2\n3\n"),
        ("exec quine good", 0, b"good\n"),
    ],
)  # fmt: skip
def test_shell_grammar(place: Shell, command: str, code: int, out: bytes) -> None:
    place.script(
        says(call("exit", status=3, stderr="bad"), match="^bad"),
        says(sh("echo good >&4"), match="^good"),
        says(sh("cat <&3 >&4"), match="^copy"),
        says(sh("yes >&4; true"), match="^endless"),
        says(sh("read -r line <&3; echo $line >&4"), match="^line"),
        says(OK),
    )
    done = place.sh(command, shell="bash")
    assert (done.returncode, done.stdout) == (code, out), done.stderr
    assert done.stderr in (b"", b"bad\n")


# -- PID 1 -----------------------------------------------------------------------------------------

CONTAINER = [*UNSHARE, "--pid", "--fork", "--mount-proc", "--kill-child"]


@needs_mounts
def test_pid_1(place: Shell) -> None:
    """PID 1 inherits the orphans of its commands and reaps them: no zombie stays until the container ends."""
    orphans = "for n in 1 2 3 4 5 6 7 8 9; do (sh -c : &) ; done; echo $PPID >&4"
    count = "cat /proc/[0-9]*/stat | grep -c ') Z 1 ' >&4; true"
    place.script(
        says(sh(orphans), match="^work"),
        says(sh("quine nested >&4"), match="^work"),
        says(sh(count), match="^work"),
        says(call("exit", status=5, stderr="five"), match="^work"),
        says(OK, match="^nested"),
    )
    done = subprocess.run(
        [*CONTAINER, *QUINE, "work"], env=place.env, cwd=place.directory, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (5, b"five\n")
    assert done.stdout == b"1\n0\n"


@needs_mounts
def test_pid_1_is_ended(place: Shell) -> None:
    """For PID 1 a signal without a handler does not exist, and it cannot die of one: 128+n is its status."""
    number = signal.SIGTERM
    place.script(
        says(sh(f"readlink /proc/self/ns/pid >ns; touch up; while :; do sleep {NAP}2{int(number)}; done"))
    )
    with Started([*CONTAINER, *QUINE, "work"], env=place.env, cwd=place.directory) as process:
        wait_for(place.directory / "up")
        (pid,) = [
            pid
            for pid in running("quine", "work")
            if init_of(pid, (place.directory / "ns").read_text().strip())
        ]
        os.kill(pid, number)
        assert process.wait(120) in (128 + number, -number)
    assert place.outcome()["exit_code"] == 128 + number
    assert not left("sleep", f"{NAP}2{int(number)}")


@needs_mounts
def test_process_group_0(place: Shell) -> None:
    """As after `docker exec`: group and session have no number in this namespace, and the agent must not end them."""
    place.script(says(sh(f"(sleep {NAP}7 4>&- & :); exit 3")), says(OK))
    script = "ps -o pgid= $$; sleep 86400 & quine work; echo $?; kill $! && echo alive"
    done = subprocess.run(
        [*CONTAINER, "sh", "-c", script], env=place.env, cwd=place.directory, capture_output=True, timeout=120
    )
    assert done.stdout.split() == [b"0", b"0", b"alive"], done
    assert not left("sleep", f"{NAP}7")


def init_of(pid: int, namespace: str) -> bool:
    try:
        inside = Path(f"/proc/{pid}/status").read_text().split("NSpid:", 1)[1].split("\n", 1)[0].split()
        return len(inside) > 1 and inside[-1] == "1" and os.readlink(f"/proc/{pid}/ns/pid") == namespace
    except OSError:
        return False


# -- what is missing -------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_streams(place: Shell, closed: str) -> None:
    """Closed streams are closed for the commands too: no tape and no socket takes their numbers."""
    probe = "for fd in 0 1 2 3 4 5; do printf '%s ' $(readlink /proc/self/fd/$fd); done"
    place.script(
        says(sh(f"{probe}; cat <&3; echo x >&4; echo y >&5; echo ended"), match="^work"),
        says(call("fork", intent="child", wait=True), match="^work"),
        says(call("exit", status=4, stderr="four"), match="^work"),
        says(sh("echo child >&4"), match="^child"),
        says(OK, match="^child"),
    )
    done = place.sh(f"quine work {closed}", input=b"")
    assert done.returncode == 4
    assert done.stdout == (b"" if ">&-" in closed.replace("2>&-", "") else b"x\n")
    assert done.stderr == (b"" if "2>&-" in closed else b"y\nfour\n")
    first, second = place.results()
    assert section(first, "STDOUT").endswith("ended\n")
    assert str(place.data) not in section(first, "STDOUT")
    assert section(second, "STDOUT") == "child\n"


def test_a_directory_that_is_removed(place: Shell) -> None:
    place.script(says(sh("echo on >&4")), says(OK))
    done = place.sh("mkdir d && cd d && rmdir ../d && quine work")
    assert (done.returncode, done.stdout) == (69, b"")
    assert done.stderr.endswith(
        b"quine: error: the working directory has been removed\nquine: hint: cd to another one\n"
    )
    assert not place.data.exists()
    place.script(
        says(sh("rmdir ../d; echo $? >&4"), match="^work", wisdom="^{}$"),
        says(sh("echo still >&4"), call("fork", intent="child", wait=True), match="^work", wisdom="^{}$"),
        says(call("exec", wisdom={"n": "2"}), match="^work", wisdom="^{}$"),
        says(sh("echo again >&4; quine nested >&4; echo $? >&4"), match="^work", wisdom="2"),
        says(OK),
    )
    done = place.sh("mkdir d && cd d && quine work")
    assert (done.returncode, done.stdout) == (0, b"0\nstill\nagain\n69\n"), done.stderr


@pytest.mark.parametrize("home", [None, "", "relative"])
def test_homes(place: Shell, home: str | None) -> None:
    place.script(says(sh("echo ${HOME-unset} >&4")), says(OK))
    env = {name: value for name, value in place.env.items() if name not in ("HOME", "QUINE_DATA_DIR")}
    done = place.sh("quine work", env=env if home is None else {**env, "HOME": home})
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        f"{'unset' if home is None else home}\n".encode(),
        b"",
    )
    assert (place.directory / ".quine").is_dir()


@pytest.mark.parametrize(
    "locale",
    [{}, {"LC_ALL": "C"}, {"LC_ALL": "xx_YY.UTF-8"}],
)
def test_locales(place: Shell, locale: dict[str, str]) -> None:
    """A mission, a command, its output and a reason are UTF-8 everywhere; commands see the caller's locale."""
    words = "größer 漢字 🦊"
    place.script(
        says(sh(f"printf '{words}' >&4; env | grep -e ^LC_ -e ^LANG; echo {words}")),
        says(call("exit", status=3, stderr=words)),
    )
    env = {name: value for name, value in place.env.items() if not name.startswith(("LC_", "LANG"))}
    done = place.sh(f"quine {shlex.quote(words)}", env=env | locale)
    assert (done.returncode, done.stdout.decode(), done.stderr.decode()) == (3, words, f"{words}\n")
    (tape,) = place.tapes()
    assert tape[0]["data"]["mission"] == words
    assert section(contents(tape)[0], "STDOUT").splitlines() == [
        *(f"{k}={v}" for k, v in locale.items()),
        words,
    ]


def test_long_missions(place: Shell) -> None:
    """Longer than one word of argv can be: from a file or from stdin, through fork and exec, and not in `ps`."""
    mission = "work " + "ä" * 100_000
    (place.directory / "mission").write_text(mission)
    place.script(
        says(sh("tr '\\0' ' ' </proc/$PPID/cmdline >&4"), wisdom="^{}$"),
        says(call("exec", wisdom={"n": "2"}), wisdom="^{}$"),
        says(sh("tr '\\0' ' ' </proc/$PPID/cmdline >&4"), wisdom="2"),
        says(OK),
    )
    for command in ("quine -f mission", "quine -f - <mission"):
        done = place.sh(command)
        assert (done.returncode, done.stderr) == (0, b"")
        assert "ä".encode() not in done.stdout and len(done.stdout) < 1000
        first, second = place.tapes()
        assert first[0]["data"]["mission"] == second[0]["data"]["mission"] == mission
        shutil.rmtree(place.data)
    done = place.sh('quine "$(cat mission)"', shell="sh")
    assert done.returncode in (126, 127, 2)  # the kernel's limit, told by the shell
    assert not place.data.exists()


@needs_mounts
def test_a_disk_that_becomes_full(place: Shell) -> None:
    """A tape that cannot record any more ends the agent and all its processes."""
    place.script(
        says(call("fork", intent="child"), match="^work"),
        says(sh(f"sleep {NAP}3 & echo begun >&4"), match="^work"),
        says(sh("cat </dev/zero >data/fill; echo full >&4; seq 9999"), match="^work"),
        says(sh("echo never >&4"), match="^work"),
        says(sh(f"sleep {NAP}4"), match="^child"),
    )
    place.data.mkdir()
    mount = "mount -t tmpfs -o size=512k,mode=700 none data"
    mount += " && quine work; echo $?; tail -n 1 data/*.jsonl | cut -c 1-30"
    done = subprocess.run(
        [*UNSHARE, "-m", "sh", "-c", mount],
        cwd=place.directory,
        env=place.env,
        capture_output=True,
        timeout=120,
    )
    assert done.stdout.startswith(b"begun\nfull\n74\n"), done
    assert b"never" not in done.stdout
    assert b"cannot be written: No space left on device" in done.stderr
    assert not left("sleep", f"{NAP}3") and not left("sleep", f"{NAP}4")
