"""A launcher that is killed, stopped or cannot be had: its jobs go on, end as they end, and hear what was for them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lab import processes
from tests.support.launchers import Started, Told, close, comes, is_up, order, released
from tests.support.launchers import started as started
from transport import inherit
from transport.job import launched_job, launcher_client
from transport.job.launcher_client import Launching
from transport.launcher import termination
from transport.launcher.child import Report


@contextlib.contextmanager
def stopped(launcher: Launching) -> Iterator[None]:
    """Within the context the launcher reads none of its messages; then it dies."""
    pid = launcher.pid
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGKILL)


def test_what_a_killed_launcher_was_to_send_is_sent(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job gets a signal, one is ended, whose TERM must not be skipped, and one has ended by itself."""
    monkeypatch.setattr(termination, "PAUSE", 60.0)

    async def main(launcher: Launching) -> None:
        trap = "trap 'exit 9' TERM; echo up; while :; do sleep 61 & wait; done"
        told = [Told(), Told(), Told()]
        cat = launcher.start(order("cat"), told[0])
        shell = launcher.start(order("sh", "-c", trap), told[1])
        seven = launcher.start(order("sh", "-c", "read x; exit 7"), told[2])
        for each in told:
            await each.expect("started")
        await is_up(shell)
        with stopped(launcher):
            cat.signal(signal.SIGUSR1)
            shell.end()
        status = await told[0].expect("exited")
        assert status.signal == "USR1"
        status = await told[1].expect("exited")
        assert (status.state, status.code) == ("exited", 9), status
        os.write(seven.stdin, b"\n")
        status = await told[2].expect("exited")
        assert status.code == 7
        shell_left = termination.members(shell.pid)
        for pid in shell_left:
            os.kill(pid, signal.SIGKILL)
        for running in (cat, shell, seven):
            close(running)

    started.run(main)


def test_how_a_job_ended_is_heard_of_a_launcher_that_died_with_something_unread(started: Started) -> None:
    """The kernel first answers with a reset, then with the last messages of the dead launcher."""

    async def main(launcher: Launching) -> None:
        told = Told()
        running = launcher.start(order("cat"), told)
        await told.expect("started")
        # nobody reads here what the launcher says, nor does it what it is told then
        loop = asyncio.get_running_loop()
        channel = launcher.channel._socket
        assert channel
        loop.remove_reader(channel)
        os.kill(running.pid, signal.SIGTERM)
        assert await asyncio.to_thread(select.select, [channel], [], [], 60)
        await comes(lambda: not processes.find(running.pid) and not os.path.exists(f"/proc/{running.pid}"))
        with stopped(launcher):
            running.signal(signal.SIGCONT)
        status = await told.expect("exited")
        assert status.signal == "TERM", status
        close(running)

    started.run(main)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_start_that_comes_through_as_it_is_given_up_runs_only_if_that_is_said(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    """The launcher was stopped, and goes on at the moment at which its silence is noticed."""
    mark, refuse, kill = tmp_path / "mark", Report.refuse, signal.pidfd_send_signal

    def go_on(report: Report) -> None:
        poll = select.poll()
        if when == "after":
            refuse(report)
        os.kill(pid, signal.SIGCONT)
        poll.register(report.socket, select.POLLIN if when == "before" else 0)
        assert poll.poll(60_000)  # it has come, or its end of the report is closed
        if when == "before":
            refuse(report)

    def spare(fd: int, number: int) -> None:
        """Not the launcher, which must not be what keeps it from running."""
        if fd != started.beside.pidfd:
            kill(fd, number)

    async def main(launcher: Launching) -> None:
        nonlocal pid
        told, pid = Told(), launcher.pid
        os.kill(pid, signal.SIGSTOP)
        child = launcher.start(order("touch", str(mark)), told)
        what, _ = await told.news.get()
        await comes(lambda: not processes.children(pid))
        assert mark.exists() == (what == "started")
        assert when == "before" or what == "not started"
        await comes(released(launcher))
        if what == "started":
            close(child)

    pid = 0
    monkeypatch.setattr(launched_job, "DEADLINE", 0.2)
    monkeypatch.setattr(Report, "refuse", go_on)
    monkeypatch.setattr(signal, "pidfd_send_signal", spare)
    started.run(main)


def test_a_start_without_a_report_that_is_given_up_never_runs(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its launcher is stopped, and killed whatever its age: nothing else keeps it from running later."""
    mark = tmp_path / "mark"
    monkeypatch.setattr(launcher_client, "QUICKLY", 1000.0)

    async def main(launcher: Launching) -> None:
        while not launcher.quick(order("true")):
            first = Told()
            running = launcher.start(order("true"), first)
            await first.expect("started")
            await first.expect("exited")
            close(running)
        told, other, old = Told(), Told(), launcher.pid
        before = len(os.listdir("/proc/self/fd"))
        os.kill(old, signal.SIGSTOP)
        with monkeypatch.context() as short:
            short.setattr(launched_job, "DEADLINE", 0.2)
            launcher.start(order("touch", str(mark)), told)
            status = await told.expect("not started")
        assert status.state == "unreachable" and "does not answer" in status.detail, status
        await comes(lambda: launcher.pid not in (0, old))
        await comes(released(launcher))
        assert len(os.listdir("/proc/self/fd")) <= before
        running = launcher.start(order("true"), other)
        await other.expect("started")
        await other.expect("exited")
        close(running)
        assert not mark.exists()

    started.run(main)


def test_starts_without_a_report_that_a_killed_launcher_had_not_read_run_once_each(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launcher_client, "QUICKLY", 1000.0)
    marks = tmp_path / "marks"

    async def main(launcher: Launching) -> None:
        while not launcher.quick(order("true")):
            first = Told()
            running = launcher.start(order("true"), first)
            await first.expect("started")
            await first.expect("exited")
            close(running)
        with stopped(launcher):
            told = [Told() for _ in range(12)]
            jobs = []
            for n, each in enumerate(told):
                jobs.append(launcher.start(order("sh", "-c", f"echo {n} >>{marks}; exit {n}"), each))
                await asyncio.sleep(0)
        for n, (running, each) in enumerate(zip(jobs, told, strict=True)):
            await each.expect("started")
            assert (await each.expect("exited")).code == n
            close(running)
        await comes(released(launcher))

    started.run(main)
    assert sorted(map(int, marks.read_text().split())) == list(range(12))


def test_starts_that_nobody_takes_leave_no_descriptor(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launched_job, "DEADLINE", 0.5)

    async def main(launcher: Launching) -> None:
        before = len(os.listdir("/proc/self/fd"))
        os.kill(launcher.pid, signal.SIGSTOP)
        told = [Told() for _ in range(200)]
        jobs = [launcher.start(order("true"), each) for each in told]
        for each, running in zip(told, jobs, strict=True):
            if (await each.news.get())[0] == "started":
                close(running)
        await comes(released(launcher))
        await comes(lambda: len(os.listdir("/proc/self/fd")) <= before + 20)

    started.run(main)


def test_a_slot_of_the_table_is_freed_once(started: Started) -> None:
    """A slot freed twice would belong to two jobs, and one of them would be in no table."""

    async def main(launcher: Launching) -> None:
        told, table = Told(), launcher.table

        def full(*_: object) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with pytest.MonkeyPatch.context() as patch:
            with stopped(launcher):
                launcher.start(order("true"), told)
                await asyncio.sleep(0)  # its order is sent,
                await asyncio.sleep(0)
                patch.setattr(table, "expect", full)  # and will have to be sent again
            await told.expect("not started")
        assert len(set(table._free)) == len(table._free)

    started.run(main)


def test_a_folder_that_cannot_be_asked_to_be_removed_is_let_go_of(started: Started, tmp_path: Path) -> None:
    async def main(launcher: Launching) -> None:
        kept: list[bool] = []
        fd = os.open(tmp_path, os.O_RDONLY | os.O_CLOEXEC)
        launcher.join(str(tmp_path))
        launcher.enter(str(tmp_path), fd, True)

        def refuse(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "dup", refuse)
            launcher.leave(str(tmp_path), kept.append)
        await comes(lambda: kept)
        assert kept == [False] and not launcher._left
        with pytest.raises(OSError):
            os.fstat(fd)

    started.run(main)


def test_a_launcher_that_cannot_be_watched_ends_no_jobs(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = os.pidfd_open
    refusals = [OSError(errno.EMFILE, os.strerror(errno.EMFILE))]

    def refuse(pid: int, flags: int = 0) -> int:
        if refusals:
            raise refusals.pop()
        return open_(pid, flags)

    async def main(launcher: Launching) -> None:
        told = Told()
        running = launcher.start(order("cat"), told)
        await told.expect("started")
        old = launcher.pid
        monkeypatch.setattr(os, "pidfd_open", refuse)
        os.kill(old, signal.SIGKILL)
        await comes(lambda: launcher.pid not in (0, old))
        assert not refusals and os.path.exists(started.beside.table.path)
        os.close(running.stdin)
        status = await told.expect("exited")
        assert status.code == 0
        os.close(running.stdout)
        os.close(running.stderr)

    started.run(main)


def test_what_a_command_of_the_nodes_own_left_behind_is_reaped(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Orphans of a proxy command, for example, become children of the node. An awaited child keeps its status."""
    monkeypatch.setattr(launcher_client, "UNCLAIMED", 0.2)

    async def main(launcher: Launching) -> None:
        shell = await asyncio.create_subprocess_shell("sleep 0.1 >&- 2>&- & echo $!; exit 5", stdout=-1)
        out, _ = await shell.communicate()
        assert shell.returncode == 5
        while os.path.exists(f"/proc/{int(out)}"):  # however many others end meanwhile
            assert await (await asyncio.create_subprocess_exec("true")).wait() == 0

    started.run(main)


def test_jobs_of_a_killed_launcher_go_on_and_end_as_they_end(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Those that end by themselves, and one that is ended, by the next launcher."""
    monkeypatch.setattr(termination, "PAUSE", 0.3)

    async def main(launcher: Launching) -> None:
        made, told, stubborn = tmp_path / "made", Told(), Told()
        reads = order("sh", "-c", "read line; exit $line", cwd=str(made), folder=str(made))
        running = launcher.start(reads, told)
        script = "trap '' TERM; echo up; while :; do sleep 61; done"
        other = launcher.start(order("sh", "-c", script), stubborn)
        await told.expect("started")
        await stubborn.expect("started")
        await is_up(other)
        old = launcher.pid
        os.kill(old, signal.SIGKILL)
        await comes(lambda: launcher.pid not in (0, old))
        os.write(running.stdin, b"7\n")
        status = await told.expect("exited")
        assert (status.code, status.pid) == (7, running.pid) and status.rusage
        other.end()
        status = await stubborn.expect("exited")
        assert status.signal == "KILL"
        await stubborn.expect("gone")
        await comes(lambda: not made.exists() and released(launcher)())
        close(running)
        close(other)

    started.run(main)


def test_what_a_killed_launcher_was_to_end_is_ended_by_the_next(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "PAUSE", 0.5)

    async def main(launcher: Launching) -> None:
        told = Told()
        running = launcher.start(order("sh", "-c", "trap '' TERM; echo up; while :; do sleep 61; done"), told)
        await told.expect("started")
        await is_up(running)
        running.end()
        os.kill(launcher.pid, signal.SIGKILL)
        status = await told.expect("exited")
        assert status.signal == "KILL"
        await told.expect("gone")
        await comes(released(launcher))
        close(running)

    started.run(main)


def test_a_folder_that_a_killed_launcher_was_to_remove_is_removed_by_the_next(
    started: Started, tmp_path: Path
) -> None:
    async def main(launcher: Launching) -> None:
        made, kept = tmp_path / "made", []
        made.mkdir()
        old = launcher.pid
        os.kill(old, signal.SIGSTOP)
        launcher.join(str(made))
        launcher.enter(str(made), os.open(made, os.O_RDONLY | os.O_CLOEXEC), True)
        launcher.leave(str(made), kept.append)
        os.kill(old, signal.SIGKILL)
        await comes(lambda: kept)
        assert kept == [False] and not made.exists()

    started.run(main)


@pytest.mark.long
def test_jobs_that_start_while_launchers_are_killed_run_once_each(started: Started, tmp_path: Path) -> None:
    marks = tmp_path / "marks"

    async def main(launcher: Launching) -> None:
        for round_ in range(4):
            told = [Told() for _ in range(12)]
            jobs = []
            for n, each in enumerate(told):
                script = f"echo {round_}.{n} >>{marks}; exit {n}"
                jobs.append(launcher.start(order("sh", "-c", script), each))
            for _ in range(round_):
                await asyncio.sleep(0)  # the orders are on their way, or have come
            old = launcher.pid
            os.kill(old, signal.SIGKILL)
            for n, (running, each) in enumerate(zip(jobs, told, strict=True)):
                await each.expect("started")
                status = await each.expect("exited")
                assert status.code == n, status
                close(running)
            await comes(lambda old=old: launcher.pid not in (0, old))  # type: ignore[misc]
        await comes(released(launcher))

    started.run(main)
    assert sorted(marks.read_text().split()) == sorted(f"{r}.{n}" for r in range(4) for n in range(12))


def test_what_jobs_leave_after_their_launcher_was_killed_is_reaped(started: Started) -> None:
    async def main(launcher: Launching) -> None:
        told = Told()
        script = "(sleep 0.1 & echo $!); read line"
        running = launcher.start(order("sh", "-c", script), told)
        await told.expect("started")
        os.kill(launcher.pid, signal.SIGKILL)
        below = int(await asyncio.to_thread(os.read, running.stdout, 20))
        await comes(lambda: not os.path.exists(f"/proc/{below}"))
        os.close(running.stdin)
        running.stdin = os.open(os.devnull, os.O_RDONLY)
        await told.expect("exited")
        close(running)

    started.run(main)


def test_a_process_is_found_before_it_has_a_session_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher was killed in posix_spawn. An orphan of the job, in another session, is not taken for the job."""
    launching: Any = object.__new__(Launching)
    memo = inherit.write({})
    launching.table = SimpleNamespace(entry=lambda slot: SimpleNamespace(memo=os.fstat(memo).st_ino))
    launching._children = {}
    orphan = "sleep 1000 & echo $!; exec sleep 1000"
    with (
        subprocess.Popen(["sleep", "1000"], pass_fds=[memo]) as early,
        subprocess.Popen(
            ["sh", "-c", orphan], pass_fds=[memo], start_new_session=True, stdout=subprocess.PIPE
        ) as leader,
    ):
        assert leader.stdout
        below = int(leader.stdout.readline())
        try:
            for children, found in (
                ([early.pid], early.pid),
                ([below], 0),
                ([below, leader.pid], leader.pid),
            ):
                monkeypatch.setattr(launcher_client, "_children", lambda children=children: set(children))
                assert launching.find(1, "other", 0.0) == found
        finally:
            os.killpg(leader.pid, signal.SIGKILL)
            early.kill()
    os.close(memo)
