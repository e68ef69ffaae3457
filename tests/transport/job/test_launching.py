"""The launcher beside a node: a file system that does not answer, a launcher that is killed, many endings at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine.mount import mounts
from tests.lab import Lab, processes
from tests.mount.mounting import needs_fuse
from tests.support.clients import Clients, output
from tests.support.launchers import Started, Told, beside, close, comes, is_up, order, released
from tests.support.launchers import started as started
from transport import address
from transport.job import launched_job, launcher_client
from transport.job.launcher_client import Launching
from transport.launcher import termination
from transport.launcher.sessions import LAST, TICK, Session, Sessions
from transport.node import rendezvous


@pytest.fixture
def dead(tmp_path: Path) -> Iterator[Path]:
    """A mount whose server never answers; whatever waits for it is let go at the end."""
    path = tmp_path / "dead"
    path.mkdir()
    server = mounts.mount(str(path), "quine-test")
    try:
        yield path
    finally:
        os.close(server)
        mounts.unmount(str(path))


@needs_fuse
def test_a_node_serves_others_while_a_job_starts_on_a_dead_mount(
    own_lab: Callable[..., Lab], dead: Path
) -> None:
    lab = own_lab([])
    lab.run(["run", "--on", "local", "--", "true"], check=True)
    clients = Clients(lab)

    def stuck() -> int:
        facts = rendezvous.status(str(clients.path))
        assert facts
        return len(facts["running"])

    try:
        for _ in range(10):
            clients.start("local", ["true"], cwd=str(dead))
        clients.until(lambda: stuck() == 10)
        assert output(lab, "local", "echo", "healthy") == b"healthy\n"
        assert stuck() == 10
    finally:
        clients.close()


@pytest.mark.long
@needs_fuse
@pytest.mark.parametrize("at", ["directory", "folder", "program", "limited program"])
def test_a_start_that_hangs_is_given_up_and_never_runs(
    started: Started, dead: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    orders = {
        "directory": order("true", cwd=str(dead)),
        "folder": order("true", cwd=f"{dead}/f", folder=f"{dead}/f"),
        "program": order(f"{dead}/program"),
        "limited program": order(f"{dead}/program", limits=[(7, 64)]),
    }

    async def main(launcher: Launching) -> None:
        first, stuck, other = Told(), Told(), Told()
        close_later = launcher.start(order("true"), first)
        await first.expect("started")
        await first.expect("exited")  # the launcher is up
        close(close_later)
        with monkeypatch.context() as short:
            short.setattr(launched_job, "DEADLINE", 1.0)
            launcher.start(orders[at], stuck)
        healthy = launcher.start(order("true"), other)
        await other.expect("started")
        status = await stuck.expect("not started")
        assert status.state == "unreachable", status
        assert "no answer" in status.detail
        status = await other.expect("exited")
        assert status.code == 0
        await comes(released(launcher))  # it is killed, whatever it hangs in
        assert stuck.news.empty()
        close(healthy)

    started.run(main)


@pytest.mark.long
@needs_fuse
def test_of_starts_that_hang_together_each_is_given_up_and_none_stays(
    started: Started, dead: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that stays would run when the mount answers, and was said to have never started."""
    monkeypatch.setattr(launched_job, "DEADLINE", 2.0)

    async def main(launcher: Launching) -> None:
        stuck = [Told() for _ in range(20)]
        for each in stuck:
            launcher.start(order(f"{dead}/program"), each)
        for each in stuck:
            status = await each.expect("not started")
            assert status.state == "unreachable", status
        await comes(released(launcher))

    started.run(main)


@needs_fuse
def test_a_start_that_hangs_keeps_no_stream_of_another_job_open(started: Started, dead: Path) -> None:
    async def main(launcher: Launching) -> None:
        stuck, other = Told(), Told()
        cat = launcher.start(order("cat"), other)
        await other.expect("started")
        hung = launcher.start(order(f"{dead}/program"), stuck)
        await comes(lambda: hung.made)
        os.close(cat.stdin)
        status = await asyncio.wait_for(other.expect("exited"), launched_job.DEADLINE / 2)
        assert status.code == 0
        os.kill(hung.made, signal.SIGKILL)
        await stuck.expect("started")
        await stuck.expect("exited")
        for fd in (cat.stdout, cat.stderr):
            os.close(fd)
        close(hung)

    started.run(main)


def test_jobs_start_and_end_and_what_they_left_is_killed(
    started: Started, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(termination, "PAUSE", 0.3)
    script = "trap '' TERM; sh -c 'trap \"\" TERM; while :; do sleep 61; done' & echo $!; wait; sleep 61"

    async def main(launcher: Launching) -> None:
        told = Told()
        made = tmp_path / "made"
        running = launcher.start(order("sh", "-c", script, cwd=str(made), folder=str(made)), told)
        await told.expect("started")
        assert made.is_dir()
        below = int(await asyncio.to_thread(os.read, running.stdout, 20))
        running.end()
        running.end()
        await told.expect("exited")
        await told.expect("gone")
        assert processes.find(below) is None or not termination.members(running.pid)
        await comes(lambda: not made.exists() and released(launcher)())
        close(running)

    started.run(main)


def test_a_job_that_is_stopped_goes_on_to_hear_that_it_is_to_end(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(termination, "PAUSE", 60.0)

    async def main(launcher: Launching) -> None:
        told = Told()
        running = launcher.start(order("sh", "-c", "trap 'exit 9' TERM; echo up; kill -STOP $$"), told)
        await told.expect("started")
        await is_up(running)
        running.end()
        status = await told.expect("exited")
        assert status.code == 9
        await told.expect("gone")
        close(running)

    started.run(main)


def test_a_job_that_is_to_end_before_it_has_started_ends_when_it_has(started: Started) -> None:
    async def main(launcher: Launching) -> None:
        told = Told()
        running = launcher.start(order("sleep", "61"), told)
        running.end()
        await told.expect("started")
        status = await told.expect("exited")
        assert status.signal == "TERM"
        await told.expect("gone")
        close(running)

    started.run(main)


def test_a_job_whose_spare_is_killed_before_it_begins_is_ordered_again(
    started: Started, tmp_path: Path
) -> None:
    """The end of that process is not the job's."""

    async def main(launcher: Launching) -> None:
        first, told = Told(), Told()
        other = launcher.start(order("sleep", "61"), first)
        await first.expect("started")
        spares: list[int] = []
        while not spares:
            await asyncio.sleep(0)
            spares = [pid for pid, name in processes.children(launcher.pid).items() if name == "quine-spare"]
        os.kill(spares[0], signal.SIGSTOP)
        running = launcher.start(order("sh", "-c", f"echo run >>{tmp_path}/log; exit 7"), told)
        await asyncio.sleep(0)  # now it is sent
        other.signal(signal.SIGURG)
        await comes(lambda: first.signalled)  # so the launcher has handled the order
        os.kill(spares[0], signal.SIGKILL)
        await told.expect("started")
        assert (await told.expect("exited")).code == 7
        assert (tmp_path / "log").read_text() == "run\n"
        other.end()
        await first.expect("exited")
        await first.expect("gone")
        close(running)
        close(other)

    started.run(main)


@pytest.mark.parametrize("command", ["echo", "no-such-command"])
def test_the_end_of_a_job_comes_behind_its_start_whoever_holds_its_report(
    started: Started, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """A node that dials makes processes in threads: until its exec each holds all that the node had open.

    The job counted as ended before its start, and had no output.
    """
    pair, held = socket.socketpair, list[socket.socket]()

    def copied(*words: int) -> tuple[socket.socket, socket.socket]:
        near, far = pair(*words)
        held.append(far.dup())
        return near, far

    async def main(launcher: Launching) -> None:
        monkeypatch.setattr(socket, "socketpair", copied)
        told = Told()
        child = launcher.start(order(command, "same"), told)
        if command != "echo":
            assert (await told.expect("not started")).code == 127
            return
        await told.expect("started")
        assert (await told.expect("exited")).code == 0
        assert os.read(child.stdout, 100) == b"same\n"
        close(child)

    try:
        started.run(main)
        assert len(held) == 1
    finally:
        for each in held:
            each.close()


def test_an_order_of_megabytes_arrives_whole(started: Started) -> None:
    """Its messages and those of others wait for nobody."""
    words = {f"BULK_{n}": "x" * 100_000 for n in range(15)}

    async def main(launcher: Launching) -> None:
        told = [Told() for _ in range(8)]
        large = order("sh", "-c", "env | grep -c BULK_")
        large.env = {**large.env, **words}
        jobs = [launcher.start(large, each) for each in told]
        for running, each in zip(jobs, told, strict=True):
            await each.expect("started")
            assert os.read(running.stdout, 100) == b"15\n"
            status = await each.expect("exited")
            assert status.code == 0
            close(running)

    started.run(main)


def test_what_does_not_start_says_why(started: Started, tmp_path: Path) -> None:
    (loop := tmp_path / "loop").symlink_to("loop")
    large = order("true")
    large.env = {**large.env, "QUINE_TEST": "x" * 3_000_000}
    expected = [
        (order("no-such-command"), ("exited", 127, "command not found: no-such-command")),
        (order("/etc/passwd"), ("exited", 126, "cannot execute /etc/passwd: Permission denied")),
        (order("true", cwd="/no/such"), ("unreachable", 69, "no such directory: /no/such")),
        (
            order("true", folder="/etc/passwd/x", cwd="/etc/passwd/x"),
            ("unreachable", 69, "cannot make /etc/passwd/x: Not a directory"),
        ),
        (order("a\0b"), ("unreachable", 69, "cannot start a")),
        (large, ("exited", 126, "cannot execute true: Argument list too long")),
        (order(f"/{'x' * 300}"), ("exited", 126, "cannot execute /xxx")),
        (order(str(loop)), ("exited", 126, f"cannot execute {loop}: Too many levels of symbolic links")),
    ]

    async def main(launcher: Launching) -> None:
        for given, (state, code, detail) in expected:
            told = Told()
            launcher.start(given, told)
            status = await told.expect("not started")
            assert (status.state, status.code) == (state, code) and status.detail.startswith(detail), status
        await comes(released(launcher))

    started.run(main)


def test_a_folder_that_another_user_may_have_made_is_not_entered(started: Started, tmp_path: Path) -> None:
    """In a directory that all can write, such as /scratch, with a script in it that the job would run."""
    (tmp_path / "other").mkdir()
    planted = [tmp_path / "link"]
    planted[0].symlink_to("other")
    if os.getuid() == 0:
        os.chown(tmp_path / "other", 65534, -1)
        planted.append(tmp_path / "other")

    async def main(launcher: Launching) -> None:
        for folder in map(str, planted):
            for _ in range(2):  # the second one may start without a process of its own
                told = Told()
                launcher.start(order("pwd", folder=folder, cwd=folder), told)
                status = await told.expect("not started")
                assert (status.state, status.code) == ("unreachable", 69), status
                assert status.detail.startswith(f"cannot make {folder}: "), status
                assert status.hint == "set workdir in the inventory"
        await comes(released(launcher))

    started.run(main)


def test_many_jobs_raise_the_nodes_limit_and_not_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = resource.getrlimit(resource.RLIMIT_NOFILE)
    if found[1] < 1024:
        pytest.skip("the hard limit here is too low")
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, found[1]))
    with beside(tmp_path, monkeypatch) as started:

        async def main(launcher: Launching) -> None:
            told = [Told() for _ in range(70)]  # four descriptors each, and more
            jobs = [launcher.start(order("sh", "-c", "ulimit -Sn; ulimit -Hn"), each) for each in told]
            for each in told:
                await each.expect("started")
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 256
            for running in jobs:
                data = await asyncio.to_thread(os.read, running.stdout, 100)
                assert data.split() == [b"256", str(found[1]).encode()]
                close(running)

        started.run(main)
    resource.setrlimit(resource.RLIMIT_NOFILE, found)


# -- many at one time ------------------------------------------------------------------------------


def sleepers(count: int, script: str) -> list[subprocess.Popen[bytes]]:
    made = [
        subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(count)
    ]
    for each in made:
        assert each.stdout and each.stdout.readline()
        each.stdout.close()
    return made


def test_a_thousand_endings_cost_one_look_at_proc_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    left = {pid: {pid + 1} for pid in range(10_000_000, 10_002_000, 2)}

    def look(wanted: set[int]) -> dict[int, set[int]]:
        looks.append(len(wanted))
        return {pid: set(left[pid]) for pid in wanted if left.get(pid)}

    def send(pid: int, number: int) -> None:
        if number == signal.SIGKILL:
            left[pid - 1].discard(pid)

    monkeypatch.setattr(termination, "by_session", look)
    monkeypatch.setattr(termination, "send", send)
    sessions, gone = Sessions(), []  # type: ignore[var-annotated]
    for pid in left:
        session = Session(pid, 0.0, 5.0, lambda pid=pid: gone.append(pid))  # type: ignore[misc]
        sessions.end(session)
        session.reaped = True
    turns = 0
    now = 0.0
    while len(gone) < 1000:
        due = sessions.due()
        assert due is not None
        now, turns = max(now, due), turns + 1
        sessions.turn(now)
        assert len(looks) <= turns and now < 5 + LAST + 10 * TICK
    assert not any(left.values())
    assert len(looks) <= 5 / TICK + 10


def test_real_sessions_are_ended_together_with_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], termination.by_session  # type: ignore[var-annotated]

    def counted(wanted: set[int]) -> dict[int, set[int]]:
        looks.append(len(wanted))
        return look(wanted)

    monkeypatch.setattr(termination, "by_session", counted)
    made = sleepers(30, "trap '' TERM; echo up; sleep 61; :")
    sessions, gone = Sessions(), []  # type: ignore[var-annotated]
    begun = time.monotonic()
    for each in made:
        session = Session(each.pid, begun, 0.5, lambda: gone.append(0))
        sessions.end(session)
        each.session = session  # type: ignore[attr-defined]
    while len(gone) < len(made):
        due = sessions.due()
        assert due is not None and time.monotonic() < begun + 60
        time.sleep(max(0, due - time.monotonic()))
        sessions.turn(time.monotonic())
        for each in made:
            if each.returncode is None and each.poll() is not None:
                assert each.returncode == -signal.SIGKILL
                sessions.reaped(each.session, time.monotonic())  # type: ignore[attr-defined]
    assert len(looks) <= (time.monotonic() - begun) / TICK + 1


def test_a_number_that_is_somebody_elses_by_now_ends_nobody() -> None:
    """A leader that was reaped, its number given to a process that leads a session of its own."""
    (stranger,) = sleepers(1, "echo up; sleep 61; :")
    try:
        sessions, gone = Sessions(), []  # type: ignore[var-annotated]
        session = Session(stranger.pid, 0.0, 0.0, lambda: gone.append(0))
        sessions.end(session)
        session.reaped = True
        for _ in range(4):
            sessions.turn(100.0)
        assert gone == [0] and stranger.poll() is None
        assert address.start_time(stranger.pid)
        with open(f"/proc/{stranger.pid}/stat", "rb") as file:
            assert file.read().rpartition(b") ")[2][:1] not in (b"T", b"Z")  # it was not stopped either
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(stranger.pid, signal.SIGKILL)
        stranger.wait()


def test_the_children_are_read_until_two_lists_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that ends meanwhile has the kernel leave out another one, which was lost though it ran."""
    lists = iter([[1, 2], [1], [3, 1], [1, 3], [4]])
    monkeypatch.setattr(launcher_client, "_listed", lambda: next(lists))
    assert launcher_client._children() == {1, 2, 3}
    assert next(lists) == [4]
