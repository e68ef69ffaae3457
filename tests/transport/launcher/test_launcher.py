"""The launcher by itself, in this process: the order of what it says and does."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from transport import quickjson
from transport.launcher import child, outgoing, termination, workdir
from transport.launcher.launcher import Launcher, Made


@pytest.fixture
def ends() -> Iterator[tuple[Launcher, socket.socket]]:
    """A launcher, and the node's end of its channel."""
    before = signal.getsignal(signal.SIGCHLD)
    node, channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = Launcher(channel, 1024, lambda words: None)
    try:
        yield launcher, node
    finally:
        for fd in (signal.set_wakeup_fd(-1), launcher._wake, launcher._quick._mounts.fd):
            os.close(fd)
        signal.signal(signal.SIGCHLD, before)
        node.close()
        channel.close()


def send(node: socket.socket, words: list[Any], fds: list[int] | None = None) -> None:
    socket.send_fds(node, [json.dumps(words).encode()], fds or [])


def test_how_a_job_has_ended_is_told_before_it_is_reaped(
    ends: tuple[Launcher, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launcher that is killed between the two would take the status with it."""
    launcher, node = ends
    pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 7"], os.environ)
    launcher._made[pid], launcher._pids[4] = Made(4, ""), pid
    waitid, wait4 = os.waitid, os.wait4
    told: list[Any] = []

    def reaped(number: int, flags: int) -> Any:
        told.append(json.loads(node.recv(1 << 16, socket.MSG_DONTWAIT)))
        return wait4(number, flags)

    waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    # Other children of this process are not the launcher's.
    monkeypatch.setattr(os, "waitid", lambda kind, number, flags: waitid(os.P_PID, pid, flags))
    monkeypatch.setattr(os, "wait4", reaped)
    launcher.reap()
    assert told == [["ended", 4, 7 << 8]]
    assert json.loads(node.recv(1 << 16, socket.MSG_DONTWAIT))[:3] == ["exited", 4, 7 << 8]
    # Its number may be another process's by now.
    sent: list[int] = []
    monkeypatch.setattr(termination, "signal_group", lambda pid, number: sent.append(pid))
    send(node, ["signal", 4, signal.SIGTERM])
    assert launcher._hear() and not sent


def test_what_is_to_be_signalled_is_and_that_is_said(
    ends: tuple[Launcher, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher, node = ends
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(termination, "signal_group", lambda pid, number: sent.append((pid, number)))
    launcher._pids[4] = 4711
    for words in (["signal", 4, 15], ["signal", 4, 18], ["signal", 5, 15], ["end", 4, 4711, 60.0, False]):
        send(node, words)
    assert launcher._hear()
    assert sent == [(4711, signal.SIGTERM), (4711, signal.SIGCONT)]
    # of one that has ended, too: whoever waits for it must not wait for ever
    assert [quickjson.loads(node.recv(100)) for _ in range(3)] == [["signalled", n] for n in (4, 4, 5)]


def test_a_second_end_changes_nothing(ends: tuple[Launcher, socket.socket]) -> None:
    launcher, node = ends
    launcher._pids[4] = 4711
    send(node, ["end", 4, 4711, 60.0, False])
    assert launcher._hear()
    due = launcher._sessions.due()
    send(node, ["end", 4, 4711, 600.0, False])
    assert launcher._hear()
    assert launcher._sessions.due() == due


def test_what_a_dead_node_had_said_is_done_though_it_had_not_read_all(
    ends: tuple[Launcher, socket.socket], tmp_path: Path
) -> None:
    """A folder to remove, say, that stands in no table any more."""
    launcher, node = ends
    folder = tmp_path / "folder"
    folder.mkdir()
    launcher._tell("exited", 3, 0, 0.0, 0.0, 0)
    send(node, ["leave", 4, str(folder)])
    node.close()
    assert not launcher._hear()
    (fd,) = launcher._spares.out
    assert launcher._spares.done(fd) == (4, workdir.GONE)
    assert not folder.exists()
    launcher._spares.dismiss(math.inf)
    os.wait()


ORDER = {
    **dict.fromkeys(("cwd", "folder"), "/"),
    **{"argv": ["true"], "env": {}, "limits": [], "own": False, "terminal": False, "umask": -1},
}


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> list[child.Start]:
    """Return the starts that were asked for; nothing is started."""
    found: list[child.Start] = []

    def fork(start: child.Start, report: socket.socket) -> int:
        found.append(start)
        return 4711

    monkeypatch.setattr(child, "fork", fork)
    return found


@pytest.mark.parametrize("room", [5, 4])
def test_of_an_order_nothing_stays_open_and_one_that_lost_a_descriptor_is_not_carried_out(
    ends: tuple[Launcher, socket.socket], forked: list[child.Start], room: int
) -> None:
    launcher, node = ends
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near:
        with far, open(os.devnull) as null:
            fd = null.fileno()
            send(node, ["start", 4, ORDER], [fd, fd, fd, far.fileno(), fd][:room])
        before = set(os.listdir("/proc/self/fd"))
        assert launcher._hear()
        assert set(os.listdir("/proc/self/fd")) <= before
        assert len(forked) == (room == 5)
        assert near.recv(1 << 16, socket.MSG_DONTWAIT) == b""  # closed, without a word


def test_a_report_is_not_open_in_the_launcher_once_the_program_may_run(
    ends: tuple[Launcher, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An open report means that the program was not executed. The launcher may be slow, or stopped, after its fork."""
    launcher, node = ends
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    report, fork, closed = child.Report(near), child.fork, []

    def slow(start: child.Start, end: socket.socket) -> int:
        pid = fork(start, end)
        near.settimeout(60)
        while not report.over:
            report.read()
        closed.append(os.waitpid(pid, 0)[1])
        return pid

    monkeypatch.setattr(child, "fork", slow)
    order = {**ORDER, "folder": ""}
    with open(os.devnull) as null, near, far:
        send(node, ["start", 1, order], [null.fileno()] * 3 + [far.fileno(), null.fileno()])
        far.close()
        assert launcher._hear()
    assert closed == [0] and report.pid and not report.status


def test_what_a_node_that_is_busy_does_not_take_waits_for_it(ends: tuple[Launcher, socket.socket]) -> None:
    launcher, node = ends
    node.setblocking(False)
    for number in range(2000):
        launcher._tell("left", number, 0)
    assert launcher._out.waits
    got: list[int] = []
    while len(got) < 2000:
        words = json.loads(node.recv(1 << 16))
        got += [each[1] for each in (words if isinstance(words[0], list) else [words])]
        launcher._out.flush()
    assert got == list(range(2000))


@pytest.mark.parametrize("number", [errno.ETOOMANYREFS, errno.ENOBUFS], ids=errno.errorcode.__getitem__)
def test_what_the_kernel_refuses_though_there_is_room_is_sent_after_a_pause(
    ends: tuple[Launcher, socket.socket], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The channel is writable: a launcher that waited for that used up a processor."""
    launcher, node = ends
    channel = mock.Mock(sendmsg=mock.Mock(side_effect=OSError(number, os.strerror(number))))
    begun = time.monotonic()
    with monkeypatch.context() as refuses:
        refuses.setattr(launcher._out, "_channel", channel)
        for at in (1, 2):
            launcher._tell("left", at, 0)
    assert not launcher._out.waits and launcher._out.due
    assert launcher._out.due >= begun + outgoing.AGAIN
    launcher._out.turn(launcher._out.due)
    assert json.loads(node.recv(1 << 16, socket.MSG_DONTWAIT)) == [["left", 1, 0], ["left", 2, 0]]
