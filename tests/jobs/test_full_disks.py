"""Output of a detached job that the disk, or the limit of file size, does not take: it waits, or its end says so."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from quine.base import procs
from quine.base.sessions import new_session
from quine.jobs.attach_logs import send_signal
from quine.tape import registry
from tests.lab import Lab
from tests.support.detached import folder
from tests.support.waiting import until
from transport.detached import spool
from transport.detached.order import Order
from transport.detached.start import start
from transport.detached.supervisor import AGAIN, Supervisor
from transport.job.deadline import NEVER, Deadline
from transport.status import Status

SIZE = 50_000  # bytes of output: a pipe holds them


class Disk:
    """Jobs whose spools are on a disk that is full as long as the file `full` is there."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.full = path / "full"
        self.full.touch()
        write = spool.Spool.write

        def writes(each: spool.Spool) -> None:
            if self.full.exists():
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(each)

        monkeypatch.setattr(spool.Spool, "write", writes)

    def started(self, script: str) -> registry.Agent:
        job = new_session()
        (self.path / "jobs" / job).mkdir(parents=True)
        argv = ["sh", "-c", script]
        assert (
            start(str(self.path / "jobs" / job), Order(argv, dict(os.environ), str(self.path), [], {}))
            is None
        )
        (agent,) = registry.find(job, str(self.path))
        return agent


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def ended(agent: registry.Agent) -> Status:
    held = agent.holds()
    procs.wait(held, 60)
    for fd in held:
        os.close(fd)
    return agent.end()


@pytest.mark.parametrize("how", ["quine kill", "shutdown"])
def test_a_success_whose_output_is_dropped_is_lost(disk: Disk, how: str) -> None:
    """By `quine kill`, or by the TERM that a machine sends to all processes when it goes down."""
    agent = disk.started(f"head -c {SIZE} /dev/zero; exit 0")
    until(lambda: agent.process is None, "its supervisor knows that it has ended")
    if how == "quine kill":
        send_signal(agent, signal.SIGTERM)
    else:
        os.kill(agent.supervisor, signal.SIGTERM)
    end = ended(agent)
    assert (end.state, end.code) == ("lost", 74)
    assert end.detail == f"the disk was full: the last {SIZE} bytes of its output are lost"


def test_a_job_that_went_on_after_a_hangup_waits_for_room(disk: Disk) -> None:
    """Programs take HUP as a word to read their settings again."""
    wait = "while ! [ -e heard ]; do sleep 0.01; done"
    agent = disk.started(f"trap '>heard' HUP; >ready; {wait}; head -c {SIZE} /dev/zero; exit 1")
    until((disk.path / "ready").exists, "it has set its trap")
    send_signal(agent, signal.SIGHUP)
    until(lambda: agent.process is None, "its supervisor knows that it has ended")
    disk.full.unlink()
    assert (ended(agent).code, ended(agent).detail) == (1, "")
    assert os.path.getsize(f"{agent.directory}/stdout") == SIZE


def test_a_full_disk_is_tried_again_after_a_pause() -> None:
    """Also when the time has passed in which others may hold its pipes open: no busy loop until there is room."""
    supervisor = object.__new__(Supervisor)
    supervisor._time, supervisor._patience = Deadline(0, 0), time.monotonic() - 5
    assert supervisor._time.due == NEVER
    for again, pause in ((True, AGAIN * 1000), (False, 0)):
        supervisor._again = again
        assert supervisor._pause() in (pause, pause + 1)


@pytest.mark.parametrize("kind", ["-S", "-H"])
def test_a_limit_of_file_size(lab: Lab, kind: str) -> None:
    """It is for files of the job, as before it was detached. A spool has no limit but a hard one, which cuts it."""
    size = 60_000
    limited = f"ulimit -S -f 50; ulimit {kind} -f 50"  # blocks of 1024 bytes in bash
    command = f"head -c {size} /dev/zero; ulimit -S -f >&2; exit 0"
    script = f"{limited}; quine run --detach -- bash -c '{command}'"
    done = subprocess.run(["bash", "-c", script], env=lab.env, capture_output=True, timeout=60, check=True)
    job = done.stdout.decode().strip()
    waited = lab.run(["wait", job])
    out, err = (folder(job, lab.home) / name for name in ("stdout", "stderr"))
    if kind == "-S":
        assert (waited.returncode, out.stat().st_size, err.read_bytes()) == (0, size, b"50\n"), waited
    else:
        assert (waited.returncode, out.stat().st_size) == (74, 50 * 1024), waited
        assert b"its output is cut after 51200 bytes: the limit of file size is lower" in waited.stderr
