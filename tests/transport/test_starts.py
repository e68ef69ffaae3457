"""Starts that fail in the middle: a process that was made is never called unreachable, and never left."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from transport.job import job, process
from transport.job.interface import Order
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import STDIN

PRELUDE = """
import os, signal, sys
from transport.job import process; from transport.detached import start, supervisor
"""


def test_a_process_that_cannot_be_watched_is_lost_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was executed: a caller that may try again must not start it a second time."""
    reading, writing = os.pipe()

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    got = process.launch(["sleep", "60"], dict(os.environ), "/", [], (writing,))
    os.close(writing)
    assert isinstance(got, Status) and got.state == "lost" and got.pid
    assert os.read(reading, 1) == b""  # nobody holds its other end any more
    os.close(reading)


def test_a_job_whose_supervisor_is_killed_as_it_starts_is_ended(tmp_path: Path) -> None:
    """At the earliest moment at which there is a job: before the supervisor hears that it runs."""
    code = f"""{PRELUDE}
from transport.detached.order import Order
launch = process.launch
def launched(*words, **more):
    child = launch(*words, **more)
    os.kill(os.getpid(), signal.SIGKILL)
supervisor.process.launch = launched
held = int(sys.argv[2])
order = Order(["sleep", "60"], dict(os.environ), "/", [], {{}}, keep=(held,))
start.start(sys.argv[1], order)
"""
    reading, writing = os.pipe()
    home = tmp_path / "job"
    home.mkdir()
    subprocess.run([sys.executable, "-c", code, str(home), str(writing)], pass_fds=[writing], check=True)
    os.close(writing)
    poll = select.poll()
    poll.register(reading, 0)
    ended = bool(poll.poll(20_000))
    os.close(reading)
    assert ended, "the job goes on, and nobody knows of it"


class Scripted:
    """A launcher and its one process, a link and its session: as much of each as a job asks for."""

    remote, name, dead, credit = False, "client", False, 0

    def __init__(self) -> None:
        self.pid, self.ended, self.told = 0, False, []  # type: ignore[var-annotated]
        self.theirs: list[int] = []
        self.signals: list[int] = []
        self.session = self
        self.channels: dict[int, object] = {}

    def start(self, order: Order, owner: object) -> Scripted:
        return self

    def begin(self) -> None:
        (ours, self.theirs), self.pid = process.pipes(), 4711
        self.stdin, self.stdout, self.stderr = ours

    def signal(self, number: int) -> None:
        self.signals.append(number)

    def end(self, hung_up: bool = False) -> None:
        self.ended = True

    def tell(self, number: int, kind: Kind, body: dict[str, object]) -> None:
        self.told.append((kind, body.get("state")))

    def eof(self, number: int, stream: int) -> None:
        pass

    def flow(self, number: int, stream: int) -> Scripted:
        return self

    def wake(self) -> None:
        pass


def test_a_job_whose_streams_cannot_be_carried_is_lost_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a fault of the test")

    async def main() -> None:
        script, gone = Scripted(), []  # type: ignore[var-annotated]
        made = job.Job(script, 1, Spawn(["x"]), {}, "/s", gone.append, script)  # type: ignore[arg-type]
        made.start()
        script.begin()
        made.on_started()
        assert script.ended
        made.on_exited(Status("signaled", 143, "TERM", pid=4711))
        assert script.told == [(Kind.ATTACH, None), (Kind.EXIT, "lost")]
        made.on_gone()
        assert gone == [made]
        with pytest.raises(BrokenPipeError):
            os.write(script.theirs[1], b"x")
        for fd in script.theirs:
            os.close(fd)

    monkeypatch.setattr(job, "Source", fail)
    asyncio.run(main())


def test_a_signal_and_then_the_end_of_stdin_arrive_in_this_order() -> None:
    """The launcher sends the one, the node closes the other: cat would exit 0 where it was interrupted before."""

    async def main() -> None:
        script = Scripted()
        made = job.Job(script, 1, Spawn(["x"]), {}, "/s", lambda _: None, script)  # type: ignore[arg-type]
        made.start()
        script.begin()
        made.on_started()
        os.set_blocking(script.theirs[0], False)
        for offset, name in enumerate(("USR1", "INT"), 1):
            body = json.dumps({"signal": name}).encode()
            made.on_frame(Frame(Kind.SIGNAL, 1, payload=body, offset=offset))
        made.on_frame(Frame(Kind.DATA, 1, STDIN, payload=b"more"))
        made.on_frame(Frame(Kind.EOF, 1, STDIN, offset=4))
        with pytest.raises(BlockingIOError):
            os.read(script.theirs[0], 9)
        assert script.signals == [signal.SIGUSR1, signal.SIGINT]
        made.on_signalled()
        assert (os.read(script.theirs[0], 9), os.read(script.theirs[0], 9)) == (b"more", b"")
        made.on_exited(Status("signaled", 130, "INT", pid=4711))
        for fd in script.theirs:
            os.close(fd)
        for source in made._sources:
            source.discard()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["its client gave it up", "its client died"])
def test_a_job_that_starts_when_its_client_is_gone_sees_no_end_of_its_stdin(how: str) -> None:
    """It would take the part that came, which is nothing, for the whole."""

    async def main() -> None:
        script = Scripted()
        made = job.Job(script, 1, Spawn(["x"]), {}, "/s", lambda _: None, script)  # type: ignore[arg-type]
        made.start()
        if how == "its client died":
            made.on_lost("it was killed")
        else:
            made.on_frame(Frame(Kind.STOP, 1, LIFE))
        script.begin()
        made.on_started()
        assert script.ended
        os.set_blocking(script.theirs[0], False)
        with pytest.raises(BlockingIOError):
            os.read(script.theirs[0], 1)
        made.on_exited(Status("signaled", 143, "TERM", pid=4711))
        assert os.read(script.theirs[0], 1) == b""
        made.on_gone()
        for fd in script.theirs:
            os.close(fd)

    asyncio.run(main())
