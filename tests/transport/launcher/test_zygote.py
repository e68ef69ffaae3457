"""Zygotes: a job that is a fork of one is as the program of an exec, and its end is told of as truly."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import processes
from tests.support.launchers import Started, Told, beside, close, comes, order, released
from transport.job.launcher_client import Launching
from transport.job.launcher_process import Beside
from transport.launcher import termination, zygote, zygotes
from transport.launcher.launcher import Launcher

ROOT = Path(__file__).parents[3]

# A program whose argv is Python text, and which is a launcher and a zygote as quine is. `patch` is done in zygotes.
PROGRAM = """
import os, signal, sys
sys.path.insert(0, {root!r})
from transport import this_build
this_build.own_command = lambda: [sys.executable, "-I", {path!r}]
forked = False

def become(argv):
    status = 1
    try:
        exec(argv[0], {{"forked": forked}})
        sys.stdout.flush()
        status = 0
    except SystemExit as leaving:
        status = leaving.code
    finally:
        os._exit(status)

if sys.argv[1:3] == ["node", "--launcher"]:
    import time
    from transport.launcher import launcher, zygotes
    # Longer than any pause between two starts here, yet shorter than the clock, which begins with the machine: in its
    # first SOON seconds the first start of all is one that follows another, and may find its zygote ready.
    zygotes.SOON, zygotes.LIFE = time.monotonic() / 2, 1000.0
    for number, life in (signal.SIGUSR1, 0.0), (signal.SIGUSR2, 1000.0):
        signal.signal(number, lambda *_, life=life: setattr(zygotes, "LIFE", life))
    sys.exit(launcher.main(sys.argv[3:], forks=lambda argv: argv[0][:1] != "#"))
if sys.argv[1:3] == ["node", "--zygote"]:
    from transport.launcher import zygote
    forked = True
    exec({patch!r})
    sys.exit(zygote.main(int(sys.argv[3]), int(sys.argv[4]), become))
become(sys.argv[1:])
"""


@pytest.fixture
def program(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Started]:
    """A launcher of the program. The parameter is what is different of its zygotes."""
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(root=str(ROOT), path=str(path), patch=getattr(request, "param", "")))

    def command(self: Beside, far: socket.socket) -> list[str]:
        words = (self.table.fd, far.fileno(), self._files)
        return [sys.executable, "-I", str(path), "node", "--launcher", *map(str, words)]

    monkeypatch.setattr(Beside, "_command", command)
    with open(os.devnull) as stray:
        os.set_inheritable(stray.fileno(), True)  # whoever starts a launcher may be careless
        with beside(tmp_path, monkeypatch) as made:
            yield made


async def output(launcher: Launching, text: str, status: int = 0, **more: Any) -> str:
    """Run a job to its end; return its output."""
    told = Told()
    job = own(text, **more)
    running = launcher.start(job, told)
    await told.expect("started")
    ended = await told.expect("exited")
    assert ended.code == status, ended
    found = os.read(running.stdout, 1 << 16).decode()
    close(running)
    if job.folder:
        await told.expect("left")
    return found


def own(text: str, env: dict[str, str] | None = None, **more: Any) -> Any:
    made = order(text, own=True, **more)
    made.env = {**made.env, **(env or {})}
    return made


async def warm(launcher: Launching, text: str = "pass", **more: Any) -> list[str]:
    """Run a job until it is a fork; return its outputs, the first by an exec, the last by a fork."""
    outputs = []
    while True:
        found, _, forked = (await output(launcher, f"{text}\nprint('forked', forked)", **more)).rpartition(
            "forked "
        )
        outputs.append(found)
        if forked == "True\n":
            return outputs


def of(launcher: Launching) -> list[int]:
    """The zygotes of a launcher."""
    names = processes.children(launcher.pid)
    return [pid for pid, name in names.items() if name == zygote.NAME.decode()]


STATE = """
import gc, os, resource, signal, sys
own = os.getpid()
for name in ("limits", "status", "environ", "comm"):
    with open(f"/proc/self/{name}") as file:
        lines = file.read().replace("\\0", "\\n").splitlines()
    keep = ("SigP", "SigB", "SigI", "SigC", "Shd", "Umask", "NoNewPrivs", "Seccomp", "Uid", "Gid")
    keep = (*keep, "Groups", "Cpus_allowed", "Threads")
    for line in sorted(lines):
        if "Max processes" not in line and (name != "status" or line.startswith(keep)):
            print(line)
for fd in sorted(os.listdir("/proc/self/fd"), key=int):
    try:
        print(fd, os.readlink(f"/proc/self/fd/{fd}").partition(":")[0], os.get_inheritable(int(fd)))
    except OSError:
        pass
for name, value in sorted(os.environ.items()):
    print(name, value)
print([signal.getsignal(number) for number in signal.valid_signals()])
print(own == os.getsid(0) == os.getpgrp(), os.getcwd(), os.readlink("/proc/self/exe"), os.path.abspath(os.curdir))
print(gc.isenabled(), sys.flags, sys.stdin.encoding, sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering)
print(os.getpriority(os.PRIO_PROCESS, 0), os.sched_getaffinity(0), signal.getitimer(signal.ITIMER_REAL))
print(open("/proc/self/oom_score_adj").read())
os.system("grep -E '^Sig[PBIC]|^Shd' /proc/self/status; ls /proc/self/fd; env | sort")
"""


@pytest.mark.parametrize("where", ["folder", "directory"])
def test_a_job_that_is_a_fork_is_as_one_of_an_exec(program: Started, tmp_path: Path, where: str) -> None:
    """Its signals, limits, descriptors, session, directory and environment, and what Python takes from these."""
    folder = str(tmp_path / "folders" / "one")
    more = {"cwd": folder, "folder": folder} if where == "folder" else {"cwd": str(tmp_path)}

    async def main(launcher: Launching) -> None:
        first, *others, last = await warm(launcher, STATE, **more)
        assert others  # two that follow each other want a zygote, and no start waits for it
        assert "True " + more["cwd"] in first and "Max open files" in first
        assert last.splitlines() == first.splitlines()
        await comes(released(launcher))
        assert not os.path.exists(folder)

    (tmp_path / "folders").mkdir()
    program.run(main)


def test_a_zygote_has_no_secret_and_its_jobs_have_their_own(program: Started) -> None:
    async def main(launcher: Launching) -> None:
        show = "import os; print(os.environ.get('TEST_API_KEY'), os.environ['TEST_OTHER'])"
        env = {"TEST_API_KEY": "hush-one", "TEST_OTHER": "other"}
        assert (await warm(launcher, show, env=env))[-1] == "hush-one other\n"
        (found,) = of(launcher)
        environ = Path(f"/proc/{found}/environ").read_text()
        assert "TEST_OTHER=other" in environ and "hush" not in environ and "TEST_API_KEY" not in environ
        told = f"print(forked, open('/proc/self/environ').read().count('hush')); {show}"
        env["TEST_API_KEY"] = "hush-two"
        assert await output(launcher, told, env=env) == "True 0\nhush-two other\n"
        del env["TEST_API_KEY"]
        assert await output(launcher, told, env=env) == "True 0\nNone other\n"
        assert of(launcher) == [found]
        env["TEST_OTHER"] = "another"
        assert await output(launcher, told, env=env) == "False 0\nNone another\n"

    program.run(main)


def test_a_start_that_is_not_plain_is_made_in_another_way(program: Started) -> None:
    not_plain: list[dict[str, Any]] = [
        {"limits": [(resource.RLIMIT_NOFILE, 64)]},
        {"text": "print(forked)  # " + "x" * zygotes.ROOM},
        {"text": "#\nprint(forked)"},  # of another program
    ]

    async def main(launcher: Launching) -> None:
        await warm(launcher)
        for more in not_plain:
            assert await output(launcher, **{"text": "print(forked)", **more}) == "False\n", more
            assert await output(launcher, "print(forked)") == "True\n"

    program.run(main)


DIES = """
def die():
    mark = os.path.dirname(sys.argv[0]) + "/mark"
    if os.path.exists(mark):
        os.unlink(mark)
        os.kill({pid}, signal.SIGKILL)
"""
MOMENTS = {
    "before it is made": """
make = zygote._make
def dying(*words):
    die()
    make(*words)
zygote._make = dying
""",
    "before it is told": """
fork = zygote._fork_apart
def dying(work):
    made = fork(work)
    die()
    return made
zygote._fork_apart = dying
""",
    "when it is told": """
write = os.write
def dying(fd, data):
    if data == b"go":
        die()
    return write(fd, data)
os.write = dying
""",
}


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(DIES.format(pid=pid) + patch, id=f"{who} {when}")
        for who, pid in (("zygote", "os.getpid()"), ("launcher", "os.getppid()"))
        for when, patch in MOMENTS.items()
    ],
    indirect=True,
)
def test_a_job_whose_zygote_or_launcher_is_killed_as_it_is_made_runs_once(
    program: Started, tmp_path: Path
) -> None:
    text = (
        f"import sys\nopen({str(tmp_path / 'runs')!r}, 'a').write('run ')\nsys.stdin.readline()\nsys.exit(7)"
    )

    async def main(launcher: Launching) -> None:
        await warm(launcher)
        (tmp_path / "mark").touch()
        told = Told()
        running = launcher.start(own(text), told)
        await told.expect("started")
        assert not (tmp_path / "mark").exists()
        os.write(running.stdin, b"\n")
        status = await told.expect("exited")
        assert (status.code, status.pid) == (7, running.pid), status
        close(running)
        await comes(released(launcher))

    program.run(main)
    assert (tmp_path / "runs").read_text() == "run "


@pytest.mark.parametrize("who", ["zygote", "launcher"])
def test_jobs_go_on_and_are_told_of_after_a_kill(program: Started, who: str) -> None:
    async def main(launcher: Launching) -> None:
        await warm(launcher)
        told = [Told() for _ in range(3)]
        jobs = [launcher.start(own("print(forked, flush=True)\nexit(int(input()))"), each) for each in told]
        for each, job in zip(told, jobs, strict=True):
            await each.expect("started")
            assert await asyncio.to_thread(os.read, job.stdout, 20) == b"True\n"
        os.kill(of(launcher)[0] if who == "zygote" else launcher.pid, signal.SIGKILL)
        jobs[0].signal(signal.SIGTERM)
        for number, job in enumerate(jobs[1:], 1):
            os.write(job.stdin, b"%d\n" % number)
        ends = [await each.expect("exited") for each in told]
        assert [end.code for end in ends] == [128 + signal.SIGTERM, 1, 2]
        for job in jobs:
            close(job)
        await comes(released(launcher))
        assert await output(launcher, "print('next')") == "next\n"

    program.run(main)


def test_a_zygote_that_is_not_used_any_more_goes(program: Started) -> None:
    async def main(launcher: Launching) -> None:
        await warm(launcher)
        os.kill(launcher.pid, signal.SIGUSR1)  # the lives of zygotes are over
        await comes(lambda: not of(launcher))
        os.kill(launcher.pid, signal.SIGUSR2)
        await warm(launcher)

    program.run(main)


NEVER = """
with open(os.path.dirname(sys.argv[0]) + "/made", "a") as file:
    file.write("made ")
zygote._is_left_to = lambda launcher: False
"""


@pytest.mark.parametrize("program", [NEVER], indirect=True)
def test_where_a_fork_would_not_be_the_launchers_none_is_used(program: Started, tmp_path: Path) -> None:
    async def main(launcher: Launching) -> None:
        made, more = tmp_path / "made", 5  # starts, after the last that makes one
        while more:
            assert await output(launcher, "print(forked)") == "False\n"
            more -= made.exists() and made.read_text().count("made") >= zygotes.FAILURES

    program.run(main)
    assert (tmp_path / "made").read_text().count("made") == zygotes.FAILURES


FULL = """
fork = os.fork
def full():
    if os.path.exists(os.path.dirname(sys.argv[0]) + "/mark"):
        raise BlockingIOError(11, "no room")
    return fork()
os.fork = full
"""


@pytest.mark.parametrize("program", [FULL], indirect=True)
def test_a_start_for_which_there_is_no_room_is_refused(program: Started, tmp_path: Path) -> None:
    async def main(launcher: Launching) -> None:
        await warm(launcher)
        (tmp_path / "mark").touch()
        told = Told()
        launcher.start(own("print(forked)"), told)
        status = await told.expect("not started")
        assert (status.state, status.detail) == ("unreachable", "cannot start: no room")
        (tmp_path / "mark").unlink()
        assert await output(launcher, "print(forked)") == "True\n"

    program.run(main)


def test_the_launcher_knows_a_job_before_it_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The zygote has told it before the job began; the node's signal, and the job's end, may be read first."""
    handler = signal.getsignal(signal.SIGCHLD)
    node, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = Launcher(channel, 64, lambda words: None)
    told: list[tuple[int, int]] = []
    sent: list[tuple[int, int]] = []

    def hear() -> list[tuple[int, int]]:
        found = list(told)
        told.clear()
        return found

    monkeypatch.setattr(launcher._zygotes, "hear", hear)
    monkeypatch.setattr(termination, "signal_group", lambda *words: sent.append(words))
    waitid = os.waitid
    try:
        told.append((4, 4711))
        launcher._do(b'["signal",4,15]', [])
        assert sent == [(4711, 15)]
        told.append((5, 4712))
        launcher._do(b'["end",5,4712,60.0,false]', [])
        assert not launcher._ending[5].reaped
        pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], os.environ)
        waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        # Other children of this process are not the launcher's.
        monkeypatch.setattr(os, "waitid", lambda kind, number, flags: waitid(os.P_PID, pid, flags))
        told.append((6, pid))
        launcher.reap()
        heard = []
        while len(heard) < 3:
            heard.append(json.loads(node.recv(1 << 16, socket.MSG_DONTWAIT))[:3])
        assert heard == [["signalled", 4], ["ended", 6, 7 << 8], ["exited", 6, 7 << 8]]
    finally:
        for fd in (signal.set_wakeup_fd(-1), launcher._wake, launcher._quick._mounts.fd):
            os.close(fd)
        signal.signal(signal.SIGCHLD, handler)
        node.close()
        channel.close()
