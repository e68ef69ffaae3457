"""A process that gets no more descriptors: nothing leaks, nothing is forgotten, and the failure is said."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.agent import child_start
from quine.agent.children import Job, Jobs
from quine.agent.shell import Shell
from quine.agent.signals import Signals
from quine.base import procs
from quine.base.errors import Failure
from quine.jobs import job_files
from quine.remote import tape_receiver
from tests.support.agents import OK, Agents, call, says
from transport.errors import RequestError

ROOT = Path(__file__).parents[3]
CALLS = ((os, "pipe2"), (fcntl, "fcntl"), (os, "pidfd_open"), (os, "open"), (os, "fork"))


@contextmanager
def scarce(number: int) -> Iterator[list[str]]:
    """The so-maniest call that makes a descriptor (or a process) fails, once."""
    left, failed = [number], []

    def guarded(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            if name != "fcntl" or args[1] == fcntl.F_DUPFD_CLOEXEC:
                left[0] -= 1
                if left[0] == 0:
                    failed.append(name)
                    raise OSError(errno.EMFILE, "Too many open files")
            return real(*args, **more)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for module, name in CALLS:
            patch.setattr(module, name, guarded(name, getattr(module, name)))
        yield failed


def held() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def children() -> set[int]:
    return {int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}


@pytest.fixture
def signals() -> Iterator[Signals]:
    ours = Signals()
    ours.install()
    yield ours
    ours.remove()


def test_a_shell_that_cannot_be_started_leaves_nothing(tmp_path: Path, signals: Signals) -> None:
    environ = {"PATH": os.environ["PATH"]}
    number, before = 0, (held(), children())
    while True:
        number += 1
        shell = Shell("sh", str(tmp_path), signals, str(tmp_path / "out"), 4000)
        with scarce(number) as failed:
            try:
                shell.run("true", 30, environ)
            except OSError as error:
                assert error.errno == errno.EMFILE
        if failed:  # and a second try, with what there is then
            assert shell.run("echo x", 30, environ).stdout == "x\n"
        shell.close()
        assert held() == before[0] and children() <= before[1], failed
        if not failed:
            break
    assert number > 10


def give(tmp_path: Path, signals: Signals, session: str, background: bool) -> tuple[Any, Job]:
    directory = str(tmp_path / "jobs" / session) if background else ""
    limits = SimpleNamespace(truncate=1000)
    loop = SimpleNamespace(
        outputs=str(tmp_path),
        spec=SimpleNamespace(limits=limits, session="p"),
        signals=signals,
        jobs=Jobs(),
        slots=[],
    )
    return loop, Job(session, "intent", "local", directory)


def reap(jobs: Jobs) -> None:
    while jobs.running:
        procs.wait([job.pidfd for job in jobs.running], 60)
        jobs.finished()


@pytest.mark.long
@pytest.mark.parametrize("background", [False, True], ids=["waited", "background"])
def test_a_child_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch, background: bool
) -> None:
    monkeypatch.setattr(child_start, "_be_child", lambda *_: os._exit(0))
    null = os.open(os.devnull, os.O_RDONLY)
    number, before = 0, (held(), children())
    while True:
        number += 1
        loop, job = give(tmp_path, signals, f"s{number}", background)
        with scarce(number) as failed:
            try:
                given = child_start.Given(loop.spec, None, null, [], -1, "", frozenset(), {})
                child_start.fork_child(loop, given, job, set())
            except OSError as error:
                assert error.errno == errno.EMFILE
        if not failed:
            break
        if job in loop.jobs.running:
            reap(loop.jobs)
            continue
        assert held() == before[0] and children() <= before[1], failed
    assert number > 3
    reap(loop.jobs)
    os.close(null)


def test_a_child_from_before_an_exec_is_kept_until_it_can_be_waited_for() -> None:
    pid = os.fork()
    if not pid:
        signal.pause()
    jobs = Jobs()
    with scarce(1):
        jobs.adopt([{"session": "s", "intent": "i", "host": "local", "directory": "", "pid": pid}])
    (job,) = jobs.running
    assert jobs.finished() == []
    job.hurry()
    while not (ended := jobs.finished()):
        procs.wait([job.pidfd], 1)
    assert ended == [job] and job.status and job.status.signal == "TERM" and not jobs.running


def test_a_child_that_was_never_ours_is_not_adopted() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    jobs = Jobs()
    jobs.adopt([{"session": "s", "intent": "i", "host": "local", "directory": "", "pid": gone.pid}])
    assert jobs.running == []


def test_bytes_of_tapes_that_come_at_one_time_are_all_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tapes of one job come in several threads: together they must not pass its bound."""
    refused: list[str] = []

    def take(put: Callable[[list[bytes]], None], line: bytes) -> None:
        tape: Any = tape_receiver._Arriving(SimpleNamespace(put=put, close=lambda: None), 0, False, "")  # type: ignore[arg-type]
        try:
            both._take("s", tape, [SimpleNamespace(seq=0, prev="", type="meta")], [line])  # type: ignore[list-item]
        except RequestError as error:
            refused.append(str(error))

    def full(_: list[bytes]) -> None:
        raise Failure(74, "no space left on device")

    monkeypatch.setattr(tape_receiver, "MAX_TAPES", 100)
    both = tape_receiver.Arrivals(SimpleNamespace(session="s"), lambda _: None)  # type: ignore[arg-type, return-value]
    take(full, b"x" * 59)
    take(lambda _: take(lambda _: None, b"y" * 59), b"x" * 59)  # the second comes while the first is written
    assert refused == ["tape: no space left on device", "tape: more than 100 bytes of one job"]
    assert both._size == 60


def test_a_lock_that_is_not_to_be_had_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it two processes would lay out files for one id at the same time."""
    monkeypatch.setattr(job_files, "state_directory", lambda: str(tmp_path))

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", none)
    with pytest.raises(Failure, match=r"no lock for job 0123456789abcdef .*: no locks available") as told:
        job_files.alone("0123456789abcdef")
    assert told.value.status == 69


UNBORN = """
import os, sys
from quine.agent import main
from quine.base.cli_options import RunOptions
real, ours = main.Tape, os.getpid()
def tape(*args):
    if os.getpid() != ours:
        raise OSError(24, "Too many open files")
    return real(*args)
main.Tape = tape
try:
    status = main.start("work", RunOptions())
finally:
    with open("left", "a") as file:
        file.write("left by %s\\n" % ("the parent" if os.getpid() == ours else "a child"))
os._exit(status)
"""


@pytest.mark.parametrize("wait", [True, False], ids=["waited", "background"])
def test_a_child_that_cannot_begin_never_runs_its_parents_code(tmp_path: Path, wait: bool) -> None:
    agents = Agents(tmp_path)
    until = "" if wait else f"while [ ! -s {agents.data}/jobs/*/status ]; do sleep 0.05; done"
    agents.script(
        says(call("fork", intent="child", wait=wait), call("sh", command=until or ":"), match="^work"),
        says(OK, match="^work"),
    )
    done = subprocess.run(
        [sys.executable, "-c", UNBORN], env=agents.env | {"PYTHONPATH": str(ROOT)}, cwd=tmp_path, check=False,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "left").read_text() == "left by the parent\n"
    if wait:
        assert "[EXIT CODE] 70" in agents.results()[0]
        assert "quine: error: cannot begin: too many open files" in agents.results()[0]
    else:
        (record,) = agents.data.glob("jobs/*/status")
        assert json.loads(record.read_text())["code"] == 70
