"""A job by itself: its early frames, its signals, what it holds when its link or its own process has ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import clock
from tests.support.running import Child, Running
from transport.job import job
from transport.wire.frames import Kind
from transport.wire.session import STDERR, STDIN, STDOUT


def test_what_comes_before_the_process_has_started_reaches_it() -> None:
    async def main() -> None:
        running = Running(["cat"])
        running.opener.data(running.number, STDIN, b"early")
        running.opener.eof(running.number, STDIN)
        running.take()
        assert not running.job.pid
        await running.until(lambda: running.whole)
        assert running.out == b"early"
        await running.over()

    clock.run(main())


def test_a_signal_that_comes_twice_is_delivered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[int] = []
    signal_ = Child.signal

    def noted(child: Child, number: int) -> None:
        got.append(number)
        signal_(child, signal.SIGCONT)

    monkeypatch.setattr(Child, "signal", noted)

    async def main() -> None:
        running = Running(["cat"])
        await running.until(lambda: running.job.pid)
        for number, name in ((1, "USR1"), (1, "USR1"), (2, "USR2"), (1, "USR1")):
            running.opener.tell(running.number, Kind.SIGNAL, {"signal": name}, number)
        running.opener.eof(running.number, STDIN)
        await running.until(lambda: running.whole)
        await running.over()

    clock.run(main())
    assert got == [signal.SIGUSR1, signal.SIGUSR2]


@pytest.mark.parametrize("name", ["TERM", "HUP"])
def test_a_job_that_was_stopped_is_let_go_on_to_take_its_end(name: str) -> None:
    async def main() -> None:
        running = Running(["sleep", "4711"])
        await running.until(lambda: running.job.pid)
        os.kill(running.job.pid, signal.SIGSTOP)
        running.opener.tell(running.number, Kind.SIGNAL, {"signal": name}, 1)
        await running.until(lambda: running.whole)
        assert running.status and (running.status.state, running.status.signal) == ("signaled", name)
        await running.over()

    clock.run(main())


def test_of_a_job_whose_link_is_lost_nothing_is_said_and_nothing_stays_open() -> None:
    async def main() -> None:
        before = set(os.listdir("/proc/self/fd"))
        # one that is not ended with the job holds the streams
        running = Running(["sh", "-c", "setsid sh -c 'echo $$; exec sleep 4711' & exec cat"])
        await running.until(lambda: running.out.endswith(b"\n"))
        try:
            running.job.on_lost("its client was killed")
            await running.over()
            assert running.status is None and not running.link.session.has_output
            assert set(os.listdir("/proc/self/fd")) <= before
        finally:
            os.kill(int(running.out), signal.SIGKILL)

    clock.run(main())


def test_a_stream_that_a_grandchild_holds_ends_soon_after_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "HELD_GRACE", 600.0)

    async def main() -> None:
        running = Running(["sh", "-c", "sleep 4711 & echo $!"])
        await running.until(lambda: running.job.ended and running.out.endswith(b"\n"))
        try:
            assert not running.whole
            clock.skip(600)
            await running.until(lambda: running.whole)
            assert running.status and running.status.code == 0
            await running.over()
        finally:
            os.kill(int(running.out), signal.SIGKILL)

    clock.run(main())


def test_the_exit_record_waits_to_know_whether_the_folder_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "LEAVING", 600.0)
    monkeypatch.setattr(Child, "leaves", False)

    async def main() -> None:
        running = Running(["true"], workdir=str(tmp_path), tree="t")
        flows = running.opener.channels[running.number].flows
        await running.until(lambda: running.job.ended and flows[STDOUT].ended and flows[STDERR].ended)
        assert running.status is None
        running.job.on_left(True)
        running.take()
        assert running.status and running.status.left == f"{tmp_path}/t"
        await running.over()

    clock.run(main())


def test_what_a_job_asks_is_given_up_when_it_is_ended() -> None:
    """It could not end in peace while it waits for an answer that cannot come."""
    why: list[str] = []

    class Asked:
        revoke = staticmethod(why.append)

    async def main() -> None:
        running = Running(["cat"])
        await running.until(lambda: running.job.pid)
        running.job.asking[Asked()] = None  # type: ignore[index]
        running.opener.abandon(running.number)
        running.take()
        await running.over()

    clock.run(main())
    assert why == ["nobody waits for it any more"]
