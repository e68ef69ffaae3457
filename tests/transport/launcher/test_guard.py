"""The launcher of a node as its guard: it ends all that a killed node leaves, in any order of deaths, and no more."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, Process, processes
from tests.support.agents import QUINE, running, until
from tests.support.machine import CONTAINER, containers, only_node
from transport import inherit
from transport.launcher import termination
from transport.launcher.table import HEADER, NUMBER, SLOT, Entry, Table, clear

# its stderr is a pipe without a reader by then, on which the shell would say "Terminated"
POLITE = "exec 2>/dev/null; trap 'echo 1 >ended; exit' TERM; echo up; while :; do sleep 73910; done"
# A job that takes no TERM, a process in a group of its own, and one that has left the session on purpose.
# It says that it is up when they are: the substitution ends with the redirection within the new session.
STUBBORN = """trap '' TERM; set -m; sleep {0}.1 & set +m; : $(setsid sh -c 'exec sleep {0}.2 >/dev/null' &)
setsid sh -c 'sleep {0}.3 &'
echo up; while :; do sleep {0}.4; done"""


def only(found: list[Process]) -> Process:
    (process,) = found
    return process


def guards(lab: Lab) -> list[Process]:
    return [process for process in lab.processes() if process.guard]


def tables(lab: Lab) -> list[Path]:
    return list(Path(lab.env["XDG_RUNTIME_DIR"]).glob("quine-*/*.jobs*"))


def start(lab: Lab, where: str, *argv: str, stdin: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    command = ["run", "--on", where, "--", *argv]
    job = lab.popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert job.stdout and job.stdout.readline() == b"up\n"
    return job


def gone(*found: Process) -> None:
    assert processes.wait_gone(found, 90) == []


def ended(*words: str) -> None:
    """Wait for their end: a killed process may take a moment to die, on a busy machine."""
    until(lambda: not running(*words))


@pytest.fixture
def left(lab: Lab) -> Iterator[None]:
    """Processes that the jobs of a test leave on purpose: the fixture ends them."""
    yield
    for process in lab.jobs():
        if process.argv[:1] == ("sleep",):
            processes.kill(process.pid)


@pytest.mark.long
def test_a_killed_node_leaves_no_job(lab: Lab, left: None) -> None:
    polite = start(lab, "local", "sh", "-c", POLITE)
    stubborn = start(lab, "local", "bash", "-c", STUBBORN.format(73911))
    victim, watch = only_node(lab), only(guards(lab))
    os.kill(victim.pid, signal.SIGKILL)
    for job in (polite, stubborn):
        job.communicate(timeout=120)
        assert job.returncode == 74
    gone(watch)  # it goes when its work is done
    assert (lab.work / "ended").read_text() == "1\n"
    for number in ("73910", "73911.1", "73911.4"):
        ended("sleep", number)
    assert running("sleep", "73911.2") and running("sleep", "73911.3")  # a session of their own
    assert not tables(lab) and not list(Path(lab.env["XDG_RUNTIME_DIR"]).glob("quine-*/*.sock"))
    lab.run(["run", "--on", "local", "--", "true"], check=True)


def test_what_an_ended_job_left_running_is_left(lab: Lab, left: None) -> None:
    """As it is while the node lives."""
    script = "sleep 73915 >/dev/null 2>&1 </dev/null &"
    lab.run(["run", "--on", "local", "--", "sh", "-c", script], check=True)
    watch = only(guards(lab))
    os.kill(only_node(lab).pid, signal.SIGKILL)
    gone(watch)
    assert running("sleep", "73915")


@pytest.mark.long
def test_a_successor_does_not_wait_for_the_guard_and_is_not_harmed(lab: Lab) -> None:
    """The jobs of the dead have their time; the next command runs at once, in a node that keeps its socket."""
    stubborn = start(lab, "local", "sh", "-c", "trap '' TERM; echo up; while :; do sleep 73920; done")
    watch = only(guards(lab))
    os.kill(watch.pid, signal.SIGSTOP)  # so that it takes longer than the next command, whatever that takes
    try:
        os.kill(only_node(lab).pid, signal.SIGKILL)
        lab.run(["run", "--on", "local", "--", "true"], check=True)
        assert running("sleep", "73920")
        next_one = only_node(lab)
    finally:
        os.kill(watch.pid, signal.SIGCONT)
    gone(watch)
    ended("sleep", "73920")
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    assert only_node(lab) == next_one and len(tables(lab)) == 1
    stubborn.communicate(timeout=120)


def test_over_there_the_folder_of_a_dead_job_goes_too(lab: Lab) -> None:
    workdir = lab["h1"].home / "quine"
    before = set(workdir.iterdir()) if workdir.exists() else set()
    makes = ("touch made;", "", "")  # the later ones without a report, the first with one
    jobs = [start(lab, "h1", "sh", "-c", f"{make} echo up; sleep 73930") for make in makes]
    assert len(set(workdir.iterdir()) - before) == len(makes)
    victim = only([p for p in lab["h1"].processes() if p.daemon and "--dial" not in p.argv])
    os.kill(victim.pid, signal.SIGKILL)
    gone(*(p for p in lab["h1"].processes() if p.guard))
    assert processes.wait_none(lab["h1"].jobs, 90) == []  # the shell of the next login may pass
    (folder,) = set(workdir.iterdir()) - before  # the others were left empty
    assert [path.name for path in folder.iterdir()] == ["made"]
    for job in jobs:
        job.communicate(timeout=120)


def test_a_killed_guard_is_replaced_and_no_job_notices(lab: Lab) -> None:
    script = "echo up; read line; echo $line; sleep 73940"
    job = start(lab, "local", "sh", "-c", script, stdin=subprocess.PIPE)
    keeper = only_node(lab)
    for _ in range(2):
        old = only(guards(lab))
        os.kill(old.pid, signal.SIGKILL)
        until(lambda old=old: [process for process in guards(lab) if process != old])
    fresh = only(guards(lab))
    assert only_node(lab).pid == keeper.pid == fresh.ppid
    assert job.stdin and job.stdout
    job.stdin.write(b"still here\n")
    job.stdin.flush()
    assert job.stdout.readline() == b"still here\n"
    os.kill(keeper.pid, signal.SIGKILL)
    job.communicate(timeout=120)
    gone(fresh)
    ended("sleep", "73940")
    assert not tables(lab)


def test_both_killed_at_once_are_made_good_by_the_next(lab: Lab) -> None:
    job = start(lab, "local", "sh", "-c", "echo up; sleep 73950; true")
    node = only_node(lab).pid
    os.kill(node, signal.SIGSTOP)  # so that it starts no other
    os.kill(only(guards(lab)).pid, signal.SIGKILL)
    os.kill(node, signal.SIGKILL)
    job.communicate(timeout=120)
    assert running("sleep", "73950")
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    until(lambda: not running("sleep", "73950") and len(tables(lab)) == 1)


def test_when_a_node_ends_so_does_its_guard(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab([])
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    lab.run(["node", "--stop", "--force"], check=True)
    gone(*guards(lab))
    assert tables(lab) == []
    lab.run(["run", "--on", "local", "--", "true"], env={"QUINE_NODE_IDLE": "0.2"}, check=True)
    gone(*guards(lab))


@pytest.mark.long
def test_a_stop_does_not_cut_a_pause_short_and_forgets_nobody(own_lab: Callable[..., Lab]) -> None:
    """Its client was killed, the leader took its TERM, another one of the session does not."""
    lab = own_lab([])
    script = "sh -c 'trap \"\" TERM; echo up; while :; do sleep 73965; done' & wait"
    client = start(lab, "local", "sh", "-c", script)
    client.kill()
    client.communicate(timeout=120)
    until(lambda: running("sleep", "73965") and not running("sh", "-c", "73965", "& wait"))
    lab.run(["node", "--stop", "--force"], check=True)
    assert lab.wait_idle() == [] and not running("sleep", "73965")


def test_a_node_in_the_foreground_is_guarded_too(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab([])
    process = lab.popen(["node"])
    until(lambda: guards(lab) and list(Path(lab.env["XDG_RUNTIME_DIR"]).glob("quine-*/*.sock")))
    assert json.loads(lab.run(["node", "--status", "--json"]).stdout)["pid"] == process.pid
    job = start(lab, "local", "sh", "-c", "echo up; sleep 73960")
    process.kill()
    process.wait()
    job.communicate(timeout=120)
    gone(*guards(lab))
    ended("sleep", "73960")


@containers
def test_where_process_1_reaps_nobody() -> None:
    """Orphans of jobs, a killed node and its jobs: no zombie but those of the node and of its launcher."""
    script = f"""
import json, os, subprocess, sys, time
quine = [{sys.executable!r}, "-P", "-m", "quine"]
def zombies():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            text = open("/proc/" + pid + "/stat").read()
        except OSError:
            continue
        if text.rpartition(")")[2].split()[0] == "Z":
            found.append(text)
    return found
def wait(holds):
    deadline = time.monotonic() + 90
    while not holds():
        assert time.monotonic() < deadline, zombies()
subprocess.run([*quine, "run", "--on", "local", "--", "sh", "-c", "(sleep 0 &); (sleep 0 &); true"], check=True)
wait(lambda: not [z for z in zombies() if "(sleep)" in z])
jobs = [subprocess.Popen([*quine, "run", "--on", "local", "--", "sh", "-c", "echo up; sleep 73970; true"],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(2)]
for job in jobs:
    assert job.stdout.readline() == b"up\\n"
facts = json.loads(subprocess.run([*quine, "node", "--status", "--json"], capture_output=True, check=True).stdout)
os.kill(facts["pid"], 9)
for job in jobs:
    assert job.wait() == 74
wait(lambda: open("/proc/%d/stat" % facts["launcher"]).read().rpartition(")")[2].split()[0] == "Z")
assert {{int(z.split()[0]) for z in zombies()}} <= {{facts["pid"], facts["launcher"]}}, zombies()
assert not subprocess.run(["pgrep", "sleep"], capture_output=True).stdout
"""
    with tempfile.TemporaryDirectory() as home:  # a short name, for the socket
        env = {"PATH": os.environ["PATH"], "HOME": home, "XDG_RUNTIME_DIR": home}
        argv = [*CONTAINER, sys.executable, "-c", script]
        done = subprocess.run(argv, env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()


# -- the table -------------------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    made = Table.create()
    yield made
    os.close(made.fd)


def test_a_table_that_cannot_be_made_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    before = os.listdir("/proc/self/fd")
    for step in ("posix_fallocate", "rename"):
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
            patch.setattr(os, step, refuse)
            Table.create()
        assert not list(tmp_path.rglob("*.jobs*"))
    assert os.listdir("/proc/self/fd") == before


class Sleeper:
    """A session of its own, with a memo, as a node starts one."""

    def __init__(self) -> None:
        self.memo = inherit.write({"token": "t"})
        self.process = subprocess.Popen(["sleep", "73980"], pass_fds=[self.memo], start_new_session=True)
        self._open = True

    @property
    def pid(self) -> int:
        return self.process.pid

    def alone(self) -> None:
        """As if we were dead."""
        os.close(self.memo)
        self._open = False

    def ended(self) -> int:
        """By which signal."""
        return -self.process.wait(120)

    def __enter__(self) -> Sleeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        if self._open:
            os.close(self.memo)


def test_slots_are_used_again_and_folders_are_kept(table: Table) -> None:
    with Sleeper() as sleeper:
        slots = [table.expect(sleeper.memo, f"/f{n}") for n in range(3)]
        table.started(slots[1], sleeper.pid)
        table.forget(slots[0])
        assert [(entry.pid, entry.folder) for entry in table.entries()] == [
            (sleeper.pid, b"/f1"),
            (0, b"/f2"),
        ]
        assert table.expect(sleeper.memo, "/" + "x" * 300) == slots[0]
        assert table.entries()[0].folder == b""
        odd = "/a b\nc\udcff"
        table.expect(sleeper.memo, odd)
        assert os.fsdecode(table.entries()[-1].folder) == odd
        assert {entry.memo for entry in table.entries()} == {os.fstat(sleeper.memo).st_ino}


def test_a_job_whose_number_was_not_noted_is_found_by_its_memo(table: Table) -> None:
    with Sleeper() as noted, Sleeper() as unnoted, Sleeper() as stranger:
        table.started(table.expect(noted.memo), noted.pid)
        table.expect(unnoted.memo)
        unnoted.alone()
        clear(table)
        assert (noted.ended(), unnoted.ended()) == (signal.SIGTERM, signal.SIGTERM)
        assert stranger.process.poll() is None


def test_a_number_that_is_somebody_elses_by_now_is_left_alone(table: Table) -> None:
    with Sleeper() as sleeper:
        slot = table.expect(sleeper.memo)
        table.started(slot, sleeper.pid)
        line = os.pread(table.fd, SLOT, slot * SLOT)
        os.pwrite(table.fd, NUMBER % (sleeper.pid, Entry(line).start - 1), slot * SLOT)
        clear(table)
        assert sleeper.process.poll() is None


@pytest.mark.parametrize("abandoned", [False, True])
def test_what_a_dead_leader_left(table: Table, abandoned: bool) -> None:
    """It ends with its node: a later node could not tell from the table whose process it is."""
    with Sleeper() as sleeper:
        script = "sleep 73981 & echo $!"
        leader = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
        assert leader.stdout
        pid = int(leader.stdout.readline())
        slot = table.expect(sleeper.memo)
        table.started(slot, leader.pid)
        leader.wait()
        leader.stdout.close()
        clear(table, abandoned)
        until(lambda: bool(termination.members(leader.pid)) == abandoned)
        processes.kill(pid)


def test_the_number_of_a_job_that_was_reaped_may_be_somebody_elses(table: Table) -> None:
    """A short job whose start time there was no time to note: none is taken later."""
    with Sleeper() as sleeper, open(os.devnull) as memo:
        slot = table.expect(memo.fileno())
        table.made(slot, sleeper.pid)
        table.mark(slot, True, 0)
        clear(table)
        assert sleeper.process.poll() is None


def test_only_abandoned_tables_are_taken(table: Table) -> None:
    directory = os.path.dirname(table.path)
    assert list(Table.abandoned(directory)) == []  # ours is held
    Path(directory, "x.1.jobs").write_bytes(b"")
    Path(directory, "y.1.jobs").write_bytes(os.urandom(5000))
    Path(directory, "z.1.jobs").symlink_to(table.path)
    found = []
    for other in Table.abandoned(directory):
        found.append(Path(other.path).name)
        clear(other, abandoned=True)
    assert sorted(found) == ["x.1.jobs", "y.1.jobs"]
    assert sorted(path.name for path in Path(directory).glob("*.jobs")) == [Path(table.path).name, "z.1.jobs"]


def test_a_guard_whose_directory_is_gone_ends_the_jobs(table: Table, tmp_path: Path) -> None:
    """One that was slow to start used to fail there with a traceback, and its jobs went on."""
    with Sleeper() as sleeper:
        table.started(table.expect(sleeper.memo), sleeper.pid)
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.close()
        shutil.rmtree(os.path.dirname(table.path))
        held = [table.fd, far.fileno()]
        argv = [*QUINE, "node", "--launcher", *map(str, held), "1024"]
        done = subprocess.run(
            argv, pass_fds=held, capture_output=True, timeout=120, cwd=tmp_path, check=False
        )
        far.close()
        assert sleeper.ended() == signal.SIGTERM
        assert done.returncode == 0 and b"1 jobs are ended" in done.stderr, done.stderr


def test_of_another_boot_there_is_nothing_to_end(table: Table) -> None:
    with Sleeper() as sleeper:
        table.started(table.expect(sleeper.memo), sleeper.pid)
        os.pwrite(table.fd, (HEADER + b" another").ljust(80, b"\0"), 0)
        assert table.entries() == []


@pytest.mark.long
def test_many_at_once_are_ended_in_one_pause() -> None:
    """Not one after the other, and with fewer descriptors than there are of them."""
    script = "trap '' TERM; echo; sleep 73990; :"
    jobs = [
        subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(20)
    ]
    for job in jobs:
        assert job.stdout and job.stdout.readline()
        job.stdout.close()
    begun, pause = time.monotonic(), 2.0
    termination.end(lambda: [job.pid for job in jobs], pause=pause)
    assert {job.wait() for job in jobs} == {-signal.SIGKILL}
    assert time.monotonic() - begun < pause * len(jobs) / 2
