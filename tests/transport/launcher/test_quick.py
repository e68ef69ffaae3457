"""Quick starts: a job that the launcher makes by posix_spawn is like one of a fork, and is told of as truly."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.mount import mounts
from tests.lab.machine import UNSHARE
from tests.mount.mounting import needs_fuse
from tests.support.launchers import Started, Told, beside, close, comes, order, released
from transport import file_systems
from transport.job import launched_job, launcher_client
from transport.job.launcher_client import Launching
from transport.job.launcher_process import Beside
from transport.launcher import child, quick, workdir
from transport.launcher.launcher import Launcher

# A launcher that notes each quick start in a file, and dies at one as TEST_DIES in the job's environment says.
NOTING = """
import os, signal, sys
from transport.launcher import child, launcher, quick

quick.LIFE = 1000.0
spawn, told, made = os.posix_spawn, child.send_made, quick.Marked.made

def die(job):
    # Spares have ended by then: their end was once waited for twice.
    for other in map(int, open(f"/proc/self/task/{os.getpid()}/children").read().split()):
        if other != job:
            os.kill(other, signal.SIGKILL)
            os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
    os.kill(os.getpid(), signal.SIGKILL)

def noting(program, argv, env, **more):
    global when
    when = env.get("TEST_DIES", "")
    with open(LOG, "a") as log:
        log.write(program + "\\n")
    if when == "before it is made":
        die(0)
    pid = spawn(program, argv, env, **more)
    if when == "after it has ended":
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    if when in ("after it has ended", "while it runs"):
        die(pid)
    return pid

def telling(report, pid):
    wanted = told(report, pid)
    if when == "when it is told":
        die(pid)
    return wanted

def marking(marked, pid):
    made(marked, pid)
    if when == "when it is told":
        die(pid)
    return True

os.posix_spawn, child.send_made, quick.Marked.made = noting, telling, marking
sys.exit(launcher.main(sys.argv[1:]))
"""


class Noted:
    """A launcher beside this process, and the programs that it has started quickly."""

    def __init__(self, started: Started, log: Path) -> None:
        self.started = started
        self.log = log

    def programs(self) -> list[str]:
        return self.log.read_text().splitlines()

    async def warm(self, launcher: Launching, *argv: str, **more: Any) -> list[bytes]:
        """Run a command until it is started quickly; return its outputs, the first by a fork, the last quick."""
        before, outputs = len(self.programs()), []
        while len(self.programs()) == before:
            outputs.append(await output(launcher, *argv, **more))
        assert len(outputs) > 1
        return outputs


async def output(launcher: Launching, *argv: str, **more: Any) -> bytes:
    told = Told()
    running = launcher.start(order(*argv, **more), told)
    await told.expect("started")
    status = await told.expect("exited")
    assert status.code == 0, status
    found = os.read(running.stdout, 1 << 16)
    close(running)
    if more.get("folder"):
        await told.expect("left")
    return found


@pytest.fixture
def noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Noted]:
    log = tmp_path / "log"
    log.touch()

    def command(self: Beside, far: socket.socket) -> list[str]:
        words = (self.table.fd, far.fileno(), self._files)
        return [sys.executable, "-c", f"LOG = {str(log)!r}\n{NOTING}", *map(str, words)]

    monkeypatch.setattr(Beside, "_command", command)
    with open(os.devnull) as stray:
        os.set_inheritable(stray.fileno(), True)  # whoever starts a launcher may be careless
        with beside(tmp_path, monkeypatch) as made:
            yield Noted(made, log)


@pytest.fixture(params=["report", "marks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the node of a test learns of quick starts. By marks only those after a first one: see `Launching.quick`."""
    by = str(request.param)
    monkeypatch.setattr(launcher_client, "QUICKLY", 1000.0 if by == "marks" else -1.0)
    return by


STATE = """
grep -v 'Max processes' /proc/self/limits
grep -E '^(Sig|Shd|Umask|NoNewPrivs|Seccomp|Uid|Gid|Groups|Cpus_allowed):' /proc/self/status
echo $0 $PWD; pwd -P
ls /proc/self/fd
read pid name state parent group session rest < /proc/self/stat; test $group = $$ -a $session = $$ && echo leader
env | sort
"""


@pytest.mark.parametrize(("where", "program"), [("folder", "sh"), ("directory", "script")])
def test_a_job_that_is_made_quickly_is_as_one_of_a_fork(
    noted: Noted, tmp_path: Path, where: str, program: str, way: str
) -> None:
    """Its signals, limits, descriptors, session, directory and environment."""
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\n{STATE}")
    script.chmod(0o755)
    argv = ["sh", "-c", STATE] if program == "sh" else [str(script)]
    folder = str(tmp_path / "folders" / "one")
    more = {"cwd": folder, "folder": folder} if where == "folder" else {"cwd": str(tmp_path)}

    async def main(launcher: Launching) -> None:
        first, *_, last = await noted.warm(launcher, *argv, **more)
        assert b"leader\n" in first and b"Max open files" in first
        assert last.splitlines() == first.splitlines()
        again = await output(launcher, *argv, **more)  # from now on without a report
        assert again.splitlines() == first.splitlines()
        await comes(released(launcher))
        assert not os.path.exists(folder)

    (tmp_path / "folders").mkdir()
    noted.started.run(main)


@pytest.mark.parametrize("when", ["while it runs", "after it has ended", "when it is told"])
@pytest.mark.parametrize("inherited", ["at once", "later"])
def test_a_job_whose_launcher_is_killed_as_it_makes_it_runs_once_and_ends_as_it_ends(
    noted: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, inherited: str, way: str
) -> None:
    """The report is closed before the kernel gives the job to the node, which may look for it in between."""
    # A node that looks at the marks of a launcher has heard of its death, and so has its children. One that looks after
    # that for a report has them, too; on a busy machine it has a new launcher by then.
    find, dying_ones = Launching.find, list[int]()

    def late(self: Launching, *words: Any) -> int:
        if self.pid in dying_ones:
            dying_ones.clear()
            return 0
        return find(self, *words)

    monkeypatch.setattr(Launching, "find", late)
    script = "echo run >>mark; exit 7" if when == "after it has ended" else "read x; echo run >>mark; exit 7"

    async def main(launcher: Launching) -> None:
        folder = str(tmp_path)
        await noted.warm(launcher, "sh", "-c", "true", cwd=folder)
        dying = order("sh", "-c", script, cwd=folder)
        dying.env = {**dying.env, "TEST_DIES": when}
        told, old = Told(), launcher.pid
        if way == "report" and inherited == "later":
            dying_ones.append(old)
        running = launcher.start(dying, told)
        await told.expect("started")
        await comes(lambda: launcher.pid not in (0, old))
        if when != "after it has ended":
            os.write(running.stdin, b"\n")
        status = await told.expect("exited")
        assert (status.code, status.pid) == (7, running.pid), status
        close(running)
        await comes(released(launcher))

    noted.started.run(main)
    assert (tmp_path / "mark").read_text() == "run\n"


def test_a_job_whose_launcher_is_killed_before_it_makes_it_is_lost_and_never_runs(
    noted: Noted, tmp_path: Path, way: str
) -> None:
    """The node cannot know that it was not made, and so does not order it again."""

    async def main(launcher: Launching) -> None:
        await noted.warm(launcher, "sh", "-c", "true", cwd=str(tmp_path))
        dying = order("sh", "-c", "echo run >>mark", cwd=str(tmp_path))
        dying.env = {**dying.env, "TEST_DIES": "before it is made"}
        told = Told()
        launcher.start(dying, told)
        status = await told.expect("not started")
        assert status.state == "lost" and "launcher was killed" in status.detail, status
        await comes(released(launcher))
        assert await output(launcher, "echo", "next") == b"next\n"

    noted.started.run(main)
    assert not (tmp_path / "mark").exists()


@pytest.mark.long
@needs_fuse
def test_a_launcher_that_a_new_mount_holds_up_is_replaced(
    noted: Noted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The directory was found to be local, and then a server that does not answer was mounted on it."""
    directory = tmp_path / "directory"
    directory.mkdir()

    async def main(launcher: Launching) -> None:
        await noted.warm(launcher, "true", cwd=str(directory))
        server, told, old = mounts.mount(str(directory), "quine-test"), Told(), launcher.pid
        try:
            with monkeypatch.context() as short:
                short.setattr(launched_job, "DEADLINE", 1.0)
                launcher.start(order("true", cwd=str(directory)), told)
                status = await told.expect("not started")
            assert status.state == "unreachable", status
            await comes(lambda: launcher.pid not in (0, old))
            assert await output(launcher, "echo", "next") == b"next\n"
        finally:
            os.close(server)
            mounts.unmount(str(directory))
        await comes(released(launcher))

    noted.started.run(main)


def test_short_jobs_in_a_row_are_told_of_once_each(noted: Noted, tmp_path: Path, way: str) -> None:
    """Start and end of a job that reads nothing come together, and the folder is left by then."""
    folder = str(tmp_path / "folders" / "one")
    told, heard = [Told() for _ in range(8)], []
    hear = Launching._hear

    def listen(self: Launching, words: Any, fds: list[int]) -> None:
        heard.append(words[0])
        hear(self, words, fds)

    async def main(launcher: Launching) -> None:
        await noted.warm(launcher, "true", cwd=folder, folder=folder)
        heard.clear()
        for each in told:
            short = order("true", cwd=folder, folder=folder)
            short.hurry = False
            running = launcher.start(short, each)
            for kind in ("started", "exited", "left"):
                await each.expect(kind)
            assert not os.path.exists(folder)
            close(running)
        if way == "marks":
            assert heard == ["started", "exited"] * len(told)
        await comes(released(launcher))

    (tmp_path / "folders").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launching, "_hear", listen)
        noted.started.launching.channel._hear = noted.started.launching._hear
        noted.started.run(main)


def test_jobs_that_share_a_folder_keep_it_until_the_last_has_left(
    noted: Noted, tmp_path: Path, way: str
) -> None:
    """One by a fork, which the launcher did not enter for, is in it too."""
    folder = str(tmp_path / "folders" / "one")

    async def main(launcher: Launching) -> None:
        await noted.warm(launcher, "cat", os.devnull, cwd=folder, folder=folder)
        told = [Told() for _ in range(3)]
        orders = [order("cat", cwd=folder, folder=folder) for _ in told]
        orders[1].limits = [(7, 64)]
        jobs = []
        for each, given in zip(told, orders, strict=True):
            jobs.append(launcher.start(given, each))
            await each.expect("started")
        for at in (2, 0, 1):
            os.close(jobs[at].stdin)
            jobs[at].stdin = os.open(os.devnull, os.O_RDONLY)
            await told[at].expect("exited")
            await told[at].expect("left")
            assert os.path.exists(folder) == (at != 1)
            if at == 0:  # the lock is still held, for a fork that the launcher has not entered the folder for
                fd = os.open(folder, os.O_RDONLY)
                assert not workdir.is_last(fd)
                os.close(fd)
        for running in jobs:
            close(running)
        await comes(released(launcher))

    (tmp_path / "folders").mkdir()
    noted.started.run(main)


def test_a_folder_in_which_something_is_left_is_kept_and_that_is_said(
    noted: Noted, tmp_path: Path, way: str
) -> None:
    folder = str(tmp_path / "folders" / "one")

    async def main(launcher: Launching) -> None:
        await noted.warm(launcher, "sh", "-c", "true", cwd=folder, folder=folder)
        for script, left in (("true", "left"), ("touch file", "kept"), ("rm file", "left")):
            told = Told()
            running = launcher.start(order("sh", "-c", script, cwd=folder, folder=folder), told)
            for kind in ("started", "exited", left):
                await told.expect(kind)
            close(running)
        await comes(lambda: not os.path.exists(folder))
        await comes(released(launcher))

    (tmp_path / "folders").mkdir()
    noted.started.run(main)


# -- in this process -------------------------------------------------------------------------------


class Starting:
    """A launcher in this process, the starts of its forks, and the node's end of a report."""

    def __init__(self, channel: socket.socket) -> None:
        self.launcher = Launcher(channel, 1024, lambda words: None)
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.report = child.Report(self.near)
        self.forked: list[child.Start] = []
        self.quick = self.launcher._quick

    def start(self, **order: Any) -> None:
        """Have a job started as the launcher does when the node's message has come."""
        words = {
            "argv": ["true"],
            "env": {"PATH": os.environ["PATH"]},
            "cwd": "/",
            "folder": "",
            "limits": [],
        }
        words |= {"own": False, "terminal": False, "umask": -1, **order}
        data = json.dumps(["start", 4, words]).encode()
        null = os.open(os.devnull, os.O_RDWR)
        fds = [null, os.dup(null), os.dup(null), os.dup(self.far.fileno()), os.dup(null)]
        self.far.close()
        try:
            self.launcher._do(data, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def told(self) -> list[bytes]:
        """The kinds of the messages of the report, and its end."""
        kinds = []
        while data := self.near.recv(1 << 16):
            kinds.append(data[:1])
        return kinds


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Starting]:
    monkeypatch.chdir("/")  # as a launcher; and it goes back there itself
    handler = signal.getsignal(signal.SIGCHLD)
    node, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made = Starting(channel)
    made.near.settimeout(60)

    def fork(start: child.Start, report: socket.socket) -> int:
        made.forked.append(start)
        report.close()
        return 0

    monkeypatch.setattr(child, "fork", fork)
    with node, channel, made.near, made.far:
        yield made
        for fd in (signal.set_wakeup_fd(-1), made.launcher._wake, made.quick._mounts.fd):
            os.close(fd)
        signal.signal(signal.SIGCHLD, handler)
        for pid in made.launcher._made:
            os.waitpid(pid, 0)


TRUE = ("/", "true", os.environ["PATH"])
WAY = quick.Reported(-1)


def test_what_was_found_is_started_quickly(starting: Starting) -> None:
    starting.quick.learn(TRUE, quick.find(TRUE))
    starting.start()
    assert starting.told() == [child.BEGUN, child.PID] and not starting.forked
    assert not starting.launcher._slow  # nothing is forked for the next


@pytest.mark.parametrize(
    "order",
    [
        {"limits": [(7, 64)]},
        {"terminal": True},
        {"own": True},
        {"folder": "/tmp/f", "cwd": "/tmp/f/below"},
        {"argv": ["false"]},
        {"cwd": "/tmp"},
        {"env": {"PATH": "/bin"}},
        {"argv": ["true", "a\0b"]},
        {"argv": ["true"], "env": {"PATH": TRUE[2], "A": "\0"}},
    ],
)
def test_a_start_that_is_not_plain_or_not_known_is_made_by_a_fork(
    starting: Starting, order: dict[str, Any]
) -> None:
    starting.quick.learn(TRUE, quick.find(TRUE))
    starting.start(**order)
    assert len(starting.forked) == 1 and child.PID not in starting.told()
    assert starting.launcher._slow


def test_a_program_put_before_the_known_one_is_not_passed_over(starting: Starting, tmp_path: Path) -> None:
    key = ("/", "true", f"{tmp_path}:{os.environ['PATH']}")
    starting.quick.learn(key, quick.find(key))
    (tmp_path / "true").symlink_to("/nowhere")
    starting.start(env={"PATH": key[2]})
    assert len(starting.forked) == 1


def test_a_finding_is_used_for_its_time_and_renewed_before(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(quick.time, "monotonic", lambda: now[0])
    found = starting.quick
    assert found.is_due(TRUE) and not found.is_due(None)
    found.learn(TRUE, quick.find(TRUE))
    assert not found.is_due(TRUE) and found.is_local("/folder") and not found.is_local("/other/folder")
    now[0] += quick.LIFE * 0.6
    assert found.is_due(TRUE)
    now[0] += quick.LIFE * 0.6
    assert not found.is_local("/folder")
    assert not found.start(
        {"argv": ["true"], "env": {"PATH": TRUE[2]}, "folder": "", "cwd": "/"}, TRUE, [], WAY
    )


def test_findings_are_a_bounded_number(starting: Starting) -> None:
    for number in range(10_000):
        starting.quick.learn((f"/{number}", "true", "/bin"), 1)
    assert len(starting.quick._found) <= quick.MOST and len(starting.quick._directories) <= quick.MOST


def test_a_start_that_the_node_has_given_up_executes_nothing(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(os, "posix_spawn", lambda *words, **more: made.append(words))
    starting.quick.learn(TRUE, quick.find(TRUE))
    starting.report.refuse()
    starting.start()
    assert not made


def test_a_process_made_as_the_node_gives_it_up_is_killed(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node has heard that it was begun, so it says that the job is lost, not that it never started."""
    spawn, made = os.posix_spawn, []

    def late(*words: Any, **more: Any) -> int:
        starting.report.refuse()
        made.append(spawn(*words, **more))
        return made[0]

    key = ("/", "sleep", TRUE[2])
    monkeypatch.setattr(os, "posix_spawn", late)
    starting.quick.learn(key, quick.find(key))
    starting.start(argv=["sleep", "61"])
    assert starting.report.read() and starting.report.begun and starting.report.parent == os.getpid()
    starting.launcher._made.clear()
    assert os.waitstatus_to_exitcode(os.waitpid(made[0], 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("error", [OSError(11, "no process"), NotImplementedError("no sessions")])
def test_what_cannot_be_made_quickly_is_taken_back_and_forked(
    starting: Starting, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: Any, **__: Any) -> int:
        raise error

    monkeypatch.setattr(os, "posix_spawn", refuse)
    starting.quick.learn(TRUE, quick.find(TRUE))
    starting.start()
    assert len(starting.forked) == 1
    while not starting.report.over:
        starting.report.read()
    assert (starting.report.begun, starting.report.pid, starting.report.parent) == (False, 0, 0)
    assert starting.quick.is_due(("/", "other", "/bin")) == isinstance(error, OSError)


@pytest.mark.parametrize("how", ["symlink", "mount"])
def test_a_folder_that_leads_elsewhere_is_entered_by_a_process_of_its_own(
    starting: Starting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Its directory is local; of the folder itself, which differs from job to job, nothing was asked."""
    folder, key = tmp_path / "folder", (str(tmp_path), *TRUE[1:])
    starting.quick.learn(key, quick.find(key))
    assert starting.quick.is_local(str(folder))
    if how == "symlink":
        folder.symlink_to("/sys")
    else:
        monkeypatch.setattr(starting.quick._mounts, "_points", {str(folder): "nfs"})
    assert not starting.quick.is_local(str(folder))
    starting.start(cwd=str(folder), folder=str(folder))
    assert len(starting.forked) == 1 and not (how == "mount" and folder.exists())


@pytest.mark.skipif(not UNSHARE, reason="needs mount namespaces")
def test_a_mount_that_comes_later_is_seen(tmp_path: Path) -> None:
    script = f"""
import os, subprocess
from transport.file_systems import Mounts
found, path = Mounts(), {str(tmp_path)!r}
assert not found.leads_elsewhere(path)
subprocess.run(["mount", "-t", "tmpfs", "none", path], check=True)
assert found.leads_elsewhere(path) and found.leads_elsewhere(path)
subprocess.run(["umount", path], check=True)
assert not found.leads_elsewhere(path)
"""
    subprocess.run([*UNSHARE, "-m", sys.executable, "-c", script], check=True, timeout=60)


# -- what is local ---------------------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that the table of mounts calls another machine's; its name has a space."""
    table, found = tmp_path / "mountinfo", tmp_path / "a place"
    found.mkdir()
    lines = [
        "22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw",
        "23 22 0:21 / /tmp rw - tmpfs tmpfs rw",
        f"24 22 0:50 / {str(found).replace(' ', chr(92) + '040')} rw - nfs4 server:/x rw,vers=4.2",
        "25 22 0:51 / /over rw - nfs server:/y rw",
        "26 22 0:52 / /over rw - tmpfs tmpfs rw",
        "27 22 0:6 / /dev rw - devtmpfs udev rw",
        "28 27 0:23 / /dev/shm rw - tmpfs tmpfs rw",
    ]
    table.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(file_systems, "MOUNTS", str(table))
    return found


def test_paths_below_a_mount_of_another_machine_are_not_local(remote: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(remote)
    for path in (remote, remote / "below", tmp_path / "link", tmp_path / "link" / "x", Path("relative")):
        assert not file_systems.is_local(["/", str(path)]), path
    for path in (tmp_path, Path(f"{remote} 2"), Path("/over/x"), Path("/dev/shm/x"), Path("/")):
        assert file_systems.is_local([str(path)]), path


@pytest.mark.parametrize("table", ["", "broken\n", "1 2 3 4 / rw - \n", None])
def test_where_the_kernel_does_not_tell_nothing_is_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str | None
) -> None:
    if table is not None:
        (tmp_path / "mountinfo").write_text(table)
    monkeypatch.setattr(file_systems, "MOUNTS", str(tmp_path / "mountinfo"))
    assert not file_systems.is_local(["/"])


def program(path: Path, text: bytes = b"#!/bin/sh\n") -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text)
    path.chmod(0o755)
    return str(path)


def test_a_program_is_found_where_all_that_its_start_touches_is_local(remote: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", remote
    program(here / "one")
    program(there / "one")
    program(here / "far", b"#! " + program(tmp_path / "far-sh").encode() + b" -x\n")
    os.unlink(tmp_path / "far-sh")
    (tmp_path / "far-sh").symlink_to(program(there / "sh"))
    (here / "data").write_text("no program\n")
    path = f"{tmp_path}/none:{here}:/bin"
    assert quick.find((str(tmp_path), "one", path)) == 2
    assert quick.find((str(tmp_path), f"{here}/one", "")) == 1
    os.mkfifo(here / "fifo")
    (here / "fifo").chmod(0o755)
    for directory, command, words in (
        (str(tmp_path), "far", path),  # its interpreter is another machine's
        (str(tmp_path), "one", f"{there}/none:{here}"),  # and here what stands before it in PATH
        (str(tmp_path), "one", f"{there}:{here}"),
        (str(tmp_path), "one", f":{here}"),
        (str(there), "one", path),
        (f"{tmp_path}/none", "one", path),
        (str(tmp_path), "data", path),
        (str(tmp_path), "fifo", path),  # without waiting for a writer
        (str(tmp_path), "none", path),
        (str(tmp_path), "here/one", path),
        (str(tmp_path), str(here), path),
    ):
        assert quick.find((directory, command, words)) == 0, (directory, command, words)
