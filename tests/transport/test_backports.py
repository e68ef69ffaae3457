"""Each substitute beside the call of this Python that it stands for: the same effect, the same errors."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from transport import backports
from transport.backports import files, processes
from transport.carrier.timeouts import Timeout

BOTH = pytest.mark.parametrize("own", [False, True], ids=["python's", "ours"])


def pick(own: bool, real: Any, substitute: Any) -> Any:
    return substitute if own else real


@pytest.fixture
def child() -> Iterator[int]:
    """A process that waits to be killed."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    yield pid
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def same_error(real: Callable[[], object], substitute: Callable[[], object]) -> None:
    """Both raise the same class, with the same errno."""
    with pytest.raises(Exception) as first:
        real()
    with pytest.raises(type(first.value)) as second:
        substitute()
    assert getattr(second.value, "errno", 0) == getattr(first.value, "errno", 0)


@BOTH
def test_pidfds(own: bool, child: int) -> None:
    fd = pick(own, os.pidfd_open, processes.pidfd_open)(child)
    try:
        assert not os.get_inheritable(fd)
        pick(own, signal.pidfd_send_signal, processes.pidfd_send_signal)(fd, signal.SIGTERM)
        wait = pick(own, os.waitid, processes.waitid)
        found = wait(os.P_PIDFD, fd, os.WEXITED)
        assert (found.si_pid, found.si_status, found.si_code) == (child, signal.SIGTERM, os.CLD_KILLED)
        assert (found.si_signo, found.si_uid) == (signal.SIGCHLD, os.getuid())
    finally:
        os.close(fd)


def test_errors_of_pidfds() -> None:
    same_error(lambda: os.pidfd_open(-1), lambda: processes.pidfd_open(-1))
    same_error(lambda: os.pidfd_open(1 << 22), lambda: processes.pidfd_open(1 << 22))
    same_error(lambda: signal.pidfd_send_signal(0, 1), lambda: processes.pidfd_send_signal(0, 1))


@BOTH
def test_waitid_without_an_end(own: bool, child: int) -> None:
    wait = pick(own, os.waitid, processes.waitid)
    assert wait(os.P_PID, child, os.WEXITED | os.WNOHANG) is None
    os.kill(child, signal.SIGSTOP)
    found = wait(os.P_PID, child, os.WSTOPPED)
    assert (found.si_code, found.si_status) == (os.CLD_STOPPED, signal.SIGSTOP)
    os.kill(child, signal.SIGKILL)
    assert wait(os.P_PID, child, os.WEXITED | os.WNOWAIT).si_status == signal.SIGKILL
    assert wait(os.P_PID, child, os.WEXITED).si_status == signal.SIGKILL
    with pytest.raises(ChildProcessError):
        wait(os.P_PID, child, os.WEXITED)


TELL = """
import os, signal
print(os.getpgid(0) == os.getpid(), os.getsid(0) == os.getpid(), sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
      signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN, os.environ.get("NAME"), os.read(0, 99), flush=True)
os.write(9, b"to nine")
"""


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"setpgroup": 0},
        {"setsid": True},
        {"setsigmask": [signal.SIGTERM, signal.SIGUSR2]},
        {"setsigmask": []},
        {"setsigdef": [signal.SIGUSR1]},
        {"resetids": True},
    ],
    ids=str,
)
def test_spawned_processes(tmp_path: Path, options: dict[str, Any]) -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        outputs = []
        for spawn in (os.posix_spawn, processes.posix_spawn):
            (tmp_path / "in").write_text("material")
            out, nine = os.pipe(), os.pipe()
            actions = [
                (os.POSIX_SPAWN_OPEN, 0, str(tmp_path / "in"), os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out[1], 1),
                (os.POSIX_SPAWN_DUP2, nine[1], 9),
                (os.POSIX_SPAWN_CLOSE, out[1]),
            ]
            argv = [sys.executable, "-c", TELL]
            pid = spawn(sys.executable, argv, {"NAME": "värde"}, file_actions=actions, **options)
            for pipe in (out, nine):
                os.close(pipe[1])
            with open(out[0], "rb") as first, open(nine[0], "rb") as second:
                outputs.append((first.read(), second.read()))
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert outputs[0] == outputs[1] and outputs[0][1] == b"to nine"


def test_errors_of_spawning(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for path in (str(tmp_path / "none"), str(tmp_path / "text"), str(tmp_path)):
        same_error(
            lambda p=path: os.posix_spawn(p, ["x"], {}), lambda p=path: processes.posix_spawn(p, ["x"], {})
        )
    for argv in ([], ["a\0b"]):
        same_error(
            lambda a=argv: os.posix_spawn("/bin/true", a, {}),
            lambda a=argv: processes.posix_spawn("/bin/true", a, {}),
        )
    pid = processes.posix_spawnp("true", ["true"], dict(os.environ))
    assert os.waitpid(pid, 0)[1] == 0


@BOTH
def test_sigtimedwait(own: bool) -> None:
    wait = pick(own, signal.sigtimedwait, processes.sigtimedwait)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        assert wait([signal.SIGUSR2], 0) is None
        began = time.monotonic()
        assert wait([signal.SIGUSR2], 0.05) is None and time.monotonic() - began >= 0.05
        # to this thread: another one of the test's process does not block it, and the process would end
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)
        found = wait([signal.SIGUSR2, signal.SIGUSR1], 5)
        assert (found.si_signo, found.si_pid, found.si_uid) == (signal.SIGUSR2, os.getpid(), os.getuid())
        with pytest.raises(ValueError, match="non-negative"):
            wait([signal.SIGUSR2], -1)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@BOTH
def test_a_signal_with_a_handler_does_not_end_sigtimedwait(own: bool) -> None:
    wait = pick(own, signal.sigtimedwait, processes.sigtimedwait)
    came: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert wait([signal.SIGUSR2], 0.2) is None
        assert came == [signal.SIGALRM]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGALRM, before)


@BOTH
def test_memory_files(own: bool) -> None:
    fd = pick(own, os.memfd_create, files.memfd_create)("name", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.write(fd, b"content")
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
        with pytest.raises(PermissionError):
            os.write(fd, b"x")
        assert not os.get_inheritable(fd) and os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:name")
    finally:
        os.close(fd)


@BOTH
def test_copies_in_the_kernel(own: bool, tmp_path: Path) -> None:
    copy = pick(own, os.copy_file_range, files.copy_file_range)
    (tmp_path / "a").write_bytes(b"0123456789")
    with open(tmp_path / "a", "rb") as source, open(tmp_path / "b", "w+b") as target:
        assert copy(source.fileno(), target.fileno(), 4, offset_src=3) == 4
        assert copy(source.fileno(), target.fileno(), 2) == 2
        assert copy(source.fileno(), target.fileno(), 1, offset_src=9, offset_dst=8) == 1
        assert copy(source.fileno(), target.fileno(), 9, offset_src=10) == 0
    assert (tmp_path / "b").read_bytes() == b"345601\0\0" + b"9"
    same_error(lambda: os.copy_file_range(-1, 0, 1), lambda: files.copy_file_range(-1, 0, 1))
    same_error(lambda: os.copy_file_range(0, 1, -1), lambda: files.copy_file_range(0, 1, -1))


def test_scattered_bytes(tmp_path: Path) -> None:
    for write, read, pread in ((os.writev, os.readv, os.preadv), (files.writev, files.readv, files.preadv)):
        with open(tmp_path / "f", "w+b", buffering=0) as file:
            assert write(file.fileno(), [b"abc", b"", memoryview(b"defg")]) == 7
            file.seek(1)
            one, other = bytearray(2), bytearray(9)
            assert read(file.fileno(), [one, memoryview(other)]) == 6
            assert (one, other) == (b"bc", b"defg" + bytes(5))
            assert pread(file.fileno(), [one], 5) == 2 and one == b"fg"
            assert read(file.fileno(), [one]) == 0


@BOTH
def test_links(own: bool, tmp_path: Path) -> None:
    link = pick(own, os.link, files.link)
    (tmp_path / "file").touch()
    (tmp_path / "soft").symlink_to("file")
    link(tmp_path / "soft", tmp_path / "a")
    assert (tmp_path / "a").is_symlink(), "as Python's does, whatever follow_symlinks says"
    link(tmp_path / "soft", tmp_path / "b", follow_symlinks=False)
    assert (tmp_path / "b").is_symlink()
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        link("soft", "c", src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
        assert not (tmp_path / "c").is_symlink() and (tmp_path / "c").samefile(tmp_path / "file")
        link("soft", "d", src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        assert (tmp_path / "d").is_symlink()
    finally:
        os.close(folder)
    with pytest.raises(FileExistsError) as caught:
        link(tmp_path / "soft", tmp_path / "a")
    assert caught.value.filename == str(tmp_path / "soft") or caught.value.filename == tmp_path / "soft"


@BOTH
def test_sizes_of_terminals(own: bool) -> None:
    get, put = (
        pick(own, *pair)
        for pair in ((termios.tcgetwinsize, files.tcgetwinsize), (termios.tcsetwinsize, files.tcsetwinsize))
    )
    master, slave = os.openpty()
    try:
        put(slave, (24, 80))
        assert get(master) == (24, 80) == termios.tcgetwinsize(slave)
    finally:
        os.close(master)
        os.close(slave)
    read, write = os.pipe()
    with pytest.raises(termios.error) as caught:
        get(read)
    assert caught.value.args[0] == errno.ENOTTY
    os.close(read)
    os.close(write)


def test_the_numbers_are_those_of_this_python() -> None:
    tables = (
        (os, backports._OF_OS),
        (fcntl, backports._OF_FCNTL),
        (socket, backports._OF_SOCKET),
        (termios, backports._OF_TERMIOS),
    )
    for module, numbers in tables:
        for name, number in numbers.items():
            assert getattr(module, name, number) == number, name


def test_nothing_is_replaced_where_nothing_lacks() -> None:
    before = {name: getattr(os, name) for name in ("pidfd_open", "waitid", "posix_spawn", "link", "writev")}
    backports.add_missing()
    assert {name: getattr(os, name) for name in before} == before


def test_a_time_limit_of_a_task() -> None:
    import asyncio

    async def main() -> list[object]:
        seen: list[object] = []
        async with Timeout(60) as limit:
            seen.append(limit.when() is not None)
        try:
            async with Timeout(None) as limit:
                limit.reschedule(asyncio.get_running_loop().time())
                await asyncio.sleep(60)
        except TimeoutError:
            seen.append("over")
        try:
            async with Timeout(60):
                raise KeyError
        except KeyError:
            seen.append("raised")
        task = asyncio.ensure_future(inner())
        await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            seen.append("cancelled")
        return seen

    async def inner() -> None:
        async with Timeout(60):
            await asyncio.sleep(60)

    assert asyncio.run(main()) == [True, "over", "raised", "cancelled"]
