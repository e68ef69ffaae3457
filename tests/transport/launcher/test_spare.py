"""Spares: each becomes one job, leaves folders until then, and is gone with its launcher."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transport.launcher import child, spare, workdir
from transport.launcher.spare import Spares


@pytest.fixture
def spares() -> Iterator[Spares]:
    """Spares whose orders are an argv, words separated by NUL, and three streams."""
    made: list[int] = []

    def prepared(data: bytes, fds: list[int]) -> child.Start:
        return child.Start(data.decode().split("\0"), {"PATH": os.defpath}, "/", fds[:3])

    found = Spares(prepared)
    fork = os.fork

    def counted() -> int:
        pid = fork()
        made.append(pid)
        return pid

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fork", counted)
        yield found
    found.close()
    for fd in found.out:
        found.done(fd)
    found.close()
    for pid in filter(None, made):
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass  # the test has reaped it


class Order:
    """An order to start, with the reading ends of its report and its stdout."""

    def __init__(self, *argv: str) -> None:
        near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        near.settimeout(60)
        self.report = child.Report(near)
        self.out, self.theirs = os.pipe()
        self.message = "\0".join(argv).encode()

    def start(self, spares: Spares) -> int:
        """Give it to a spare, as the launcher does: it closes what it does not hand over."""
        fds = [self.theirs, self.theirs, self.theirs, self.far.detach(), self.theirs]
        pid = spares.start(self.message, fds)
        for fd in set(fds):
            os.close(fd)
        return pid

    def read(self) -> bytes:
        while not self.report.over:
            self.report.read()
        self.report.socket.close()
        with os.fdopen(self.out, "rb") as file:
            return file.read()


def idle(spares: Spares) -> spare.Spare:
    spares.make()
    assert spares._idle
    return spares._idle


def test_a_spare_becomes_the_job(spares: Spares) -> None:
    pid = idle(spares).pid
    order = Order("sh", "-c", "echo $$; ls /proc/self/fd | wc -l")
    assert order.start(spares) == pid
    # 0, 1, 2 and the listing itself: neither the socket of its orders nor a second copy of a stream
    assert order.read().split() == [b"%d" % pid, b"4"]
    assert (order.report.pid, order.report.parent) == (pid, os.getpid())
    assert os.waitpid(pid, 0)[1] == 0
    assert spares.due() is None  # it can be used once


def test_the_report_is_closed_before_a_spare_may_run(spares: Spares) -> None:
    """An open report means that the program was not executed. The launcher may be slow, or stopped, after its order."""
    one, order = idle(spares), Order("true")
    inode = os.fstat(order.far.fileno()).st_ino
    seen: list[bool] = []

    class Watched:
        def __init__(self, real: socket.socket) -> None:
            self.sendmsg, self._real = real.sendmsg, real

        def close(self) -> None:
            seen.append(inode in {os.stat(f"/proc/self/fd/{fd}").st_ino for fd in held()})
            self._real.close()

    one.socket = Watched(one.socket)  # type: ignore[assignment]
    order.start(spares)
    assert order.read() == b""
    assert seen == [False] and not order.report.status


def held() -> list[str]:
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")]


@pytest.mark.parametrize("use", ["start", "leave"])
def test_a_spare_that_was_killed_is_replaced(spares: Spares, tmp_path: Path, use: str) -> None:
    one = idle(spares)
    os.kill(one.pid, signal.SIGKILL)
    os.waitpid(one.pid, 0)
    if use == "start":
        order = Order("true")
        assert order.start(spares) == 0  # the launcher forks then
        assert order.read() == b""
    else:
        spares.leave(7, str(tmp_path / "none"), [])
        (fd,) = spares.out
        assert spares.done(fd) == (7, workdir.GONE)


def test_a_folder_that_does_not_answer_holds_up_no_other(spares: Spares, tmp_path: Path) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    (full / "file").touch()
    slow = idle(spares)
    os.kill(slow.pid, signal.SIGSTOP)
    spares.leave(1, str(full), [])
    (first,) = spares.out
    held = os.open(empty, os.O_RDONLY)
    spares.leave(2, str(empty), [held])
    os.close(held)
    (second,) = set(spares.out) - {first}
    assert spares.done(second) == (2, workdir.GONE) and not empty.exists()
    other = idle(spares)
    assert other.pid != slow.pid  # idle again, and used for the next order
    os.kill(slow.pid, signal.SIGCONT)
    assert spares.done(first) == (1, workdir.KEPT)
    assert idle(spares) is other
    os.waitpid(slow.pid, 0)  # one idle spare is enough


def test_a_folder_whose_spare_is_killed_counts_as_gone(spares: Spares, tmp_path: Path) -> None:
    one = idle(spares)
    os.kill(one.pid, signal.SIGSTOP)
    spares.leave(5, str(tmp_path), [])
    os.kill(one.pid, signal.SIGKILL)
    (fd,) = spares.out
    assert spares.done(fd) == (5, workdir.GONE)


def test_an_idle_spare_goes_after_its_time(spares: Spares) -> None:
    """The age of a job's process is not much more than the job's."""
    one = idle(spares)
    due = spares.due()
    assert due == one.born + spare.LIFE
    spares.dismiss(due - 0.001)
    assert spares.due() == due
    spares.dismiss(due)
    assert spares.due() is None
    os.waitpid(one.pid, 0)


def test_a_spare_has_nothing_of_its_launcher(spares: Spares) -> None:
    reader, writer = os.pipe()
    handler: Callable[[int, Any], None] = lambda *_: None  # noqa: E731
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        one = idle(spares)
    finally:
        signal.signal(signal.SIGUSR1, before)
    os.close(writer)
    assert os.read(reader, 1) == b""  # it has closed its copy of the other end
    os.close(reader)
    order = Order("sh", "-c", "cat /proc/$$/comm; kill -USR1 $$")
    order.start(spares)
    assert order.read() == b"sh\n"
    assert os.waitpid(one.pid, 0)[1] == signal.SIGUSR1
