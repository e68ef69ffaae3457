"""Starting and ending processes: limits, descriptors, everything a job started."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transport import rlimits
from transport.errors import ProtocolError
from transport.job import process
from transport.launcher import child as starting
from transport.launcher import termination
from transport.status import Status


def finish(child: process.Child) -> tuple[Status, bytes]:
    out = b""
    while data := os.read(child.stdout, 65536):
        out += data
    poll = select.poll()
    poll.register(child.pidfd, select.POLLIN)
    assert poll.poll(20_000)
    for fd in (child.stdin, child.stdout, child.stderr, child.pidfd):
        os.close(fd)
    return child.reap(), out


def start(argv: list[str], **limits: str) -> process.Child:
    child = process.launch(argv, dict(os.environ), "/", rlimits.parse(limits))
    assert isinstance(child, process.Child)
    return child


def refused(argv: list[str], cwd: str, why: str) -> None:
    """It is not started, which is not the fault of the command."""
    status = process.launch(argv, {}, cwd, [])
    assert isinstance(status, Status) and (status.state, status.code) == ("unreachable", 69)
    assert re.fullmatch(why, status.detail), status


def test_a_child_has_its_pipes_and_nothing_else_of_ours() -> None:
    status, out = finish(start(["ls", "/proc/self/fd"]))
    assert status.code == 0 and out.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls's own


def test_signals_are_as_a_login_has_them() -> None:
    _, out = finish(start(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]))
    ours = ~(0b11 << 31)  # 32 and 33 are the C library's own
    assert {int(line.split()[1], 16) & ours for line in out.splitlines()} == {0}


def test_nothing_is_executed_while_its_parent_holds_the_report() -> None:
    """An open report says that nothing ran: it tells a start that is given up from one that came through."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    poll = select.poll()
    poll.register(near, select.POLLIN)
    early: list[list[tuple[int, int]]] = []

    class Slow(socket.socket):
        def close(self) -> None:
            if not early:
                early.append(poll.poll(200))
            super().close()

    ours, theirs = process.pipes()
    with near, Slow(fileno=far.detach()) as report:
        pid = starting.fork(starting.Start(["true"], {"PATH": os.environ["PATH"]}, "/", theirs), report)
        assert early == [[]] and poll.poll(20_000)
    for fd in (*ours, *theirs):
        os.close(fd)
    assert os.waitpid(pid, 0)[0] == pid


@pytest.mark.parametrize(
    ("argv", "code"), [(["/no/such"], 127), (["no-such-command"], 127), (["/etc/passwd"], 126)]
)
def test_what_cannot_be_started_says_why(argv: list[str], code: int) -> None:
    status = process.launch(argv, dict(os.environ), "/", [])
    assert isinstance(status, Status) and (status.state, status.code) == ("exited", code)
    refused(["true"], "/no/such", "no such directory: /no/such")


def test_a_directory_that_cannot_be_entered_is_not_the_commands_fault() -> None:
    refused(["true"], "/" + "x" * 300, "cannot start in /x+: file name too long")


def test_a_directory_of_somebody_else(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may do everything")
    (tmp_path / "theirs").mkdir(0o600)
    refused(["true"], str(tmp_path / "theirs"), f"cannot start in {tmp_path}/theirs: permission denied")


def test_limits() -> None:
    _, out = finish(start(["sh", "-c", "ulimit -n; ulimit -f"], nofile="77", fsize="1M"))
    assert out == b"77\n2048\n"
    for limits in ({"nofile": "many"}, {"nope": "1"}, {"mem": "1G"}, {"as": "-1"}, {"as": ""}):
        with pytest.raises(ProtocolError):
            rlimits.parse(limits)


def test_out_of_descriptors_nothing_is_left_open() -> None:
    """At every point of a start where the next descriptor may be refused."""
    code = """
import os, resource
from transport.job import process
from transport.status import Status
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before = os.listdir('/proc/self/fd')
refused = 0
for soft in range(len(before), len(before) + 16):
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        got = process.launch(['true'], {}, '/', [])
    except OSError:
        got = None
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    if isinstance(got, process.Child):
        os.waitpid(got.pid, 0)
        for fd in (got.stdin, got.stdout, got.stderr, got.pidfd):
            os.close(fd)
    else:
        refused += 1
    assert os.listdir('/proc/self/fd') == before, (soft, os.listdir('/proc/self/fd'))
    try:
        os.waitpid(-1, os.WNOHANG)
        raise SystemExit('a child was left')
    except ChildProcessError:
        pass
assert 3 < refused < 16, refused
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


INSIDE = """
import asyncio, os, select, signal, sys
from transport.job import process
from transport.launcher import child as starting
from transport.status import restore_signals

from tests.lab.machine import readable
make = starting.Start
def become(*argv):
    def run():
        restore_signals()
        os.execvp(argv[0], argv)
    return run
def ended(child):
    out = b''
    while data := os.read(child.stdout, 65536):
        out += data
    readable(child.pidfd, 60)
    return child.reap(), out
def start(inside, cwd='/', keep=(), limits=()):
    starting.Start = lambda *words, **more: make(*words, **more, inside=inside)
    return process.launch(['/no/such'], {'PATH': os.environ['PATH'], 'SAID': 'yes'}, cwd, list(limits), keep)
async def main():
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, os._exit, 99)  # as a node has them
"""


def inside(code: str) -> None:
    """Run a coroutine's body in a loop, with signals of its own: a copy has nothing of that."""
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    done = subprocess.run(
        [sys.executable, "-c", f"{INSIDE}{body}asyncio.run(main())"], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_a_copy_has_its_pipes_and_what_it_is_given_and_nothing_else_of_ours() -> None:
    inside("""
memo = os.memfd_create('memo', os.MFD_CLOEXEC)
def held():
    os.write(1, ' '.join(os.listdir('/proc/self/fd')).encode())
    os._exit(0)
for run in (held, become('ls', '/proc/self/fd')):
    status, out = ended(start(run, keep=(memo,)))
    assert status.code == 0 and set(map(int, out.split())) == {0, 1, 2, 3, memo}, out  # one is that of the list
status, out = ended(start(become('sh', '-c', 'pwd; env | grep -v PWD | sort'), '/usr'))
assert out == f"/usr\\nPATH={os.environ['PATH']}\\nSAID=yes\\n".encode(), out
assert os.environ.get('SAID') is None and os.getcwd() != '/usr'
""")


def test_a_copy_has_the_signals_of_a_login_and_those_sent_to_it_are_not_ours() -> None:
    inside("""
status, out = ended(start(become('grep', '-E', '^Sig(Ign|Blk)', '/proc/self/status')))
ours = ~(0b11 << 31)  # 32 and 33 are the C library's own
assert {int(line.split()[1], 16) & ours for line in out.splitlines()} == {0}, out
assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])
for number in (signal.SIGTERM, signal.SIGKILL):
    child = start(lambda: signal.pause())
    os.killpg(child.pid, number)  # it leads its group and its session from the first moment
    assert ended(child)[0].signal == number.name[3:]
await asyncio.sleep(0)  # where a handler of ours would run
""")


def test_a_copy_that_cannot_be_started_says_why_and_one_that_fails_never_comes_back() -> None:
    inside("""
def part(*args):
    raise PermissionError(13, 'no')
there, starting._part = starting._part, part
status = start(become('true'))
assert (status.state, status.code) == ('unreachable', 69) and 'defect' in status.detail, status
starting._part = there
status = start(become('true'), '/no/such')
assert (status.state, status.code) == ('unreachable', 69) and 'no such directory' in status.detail, status
before = os.listdir('/proc/self/fd')
def fail():
    raise ValueError
status, _ = ended(child := start(fail))
assert status.code == 69, status
for fd in (child.stdin, child.stdout, child.stderr, child.pidfd):
    os.close(fd)
assert os.listdir('/proc/self/fd') == before
assert ended(start(become('sh', '-c', 'ulimit -n'), limits=[(7, 77)]))[1] == b'77\\n'
""")


def test_kill_session_finds_groups_of_their_own() -> None:
    child = start(["bash", "-mc", "sleep 61 & sleep 62 & echo up; wait"])
    assert os.read(child.stdout, 10) == b"up\n"
    assert len(termination.members(child.pid)) == 3
    termination.kill_session(child.pid)
    status, _ = finish(child)
    assert status.signal == "KILL"
    deadline = time.monotonic() + 60
    while termination.members(child.pid):
        assert time.monotonic() < deadline
