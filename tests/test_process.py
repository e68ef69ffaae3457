"""Starting and ending processes: limits, descriptors, everything a job started."""

from __future__ import annotations

import os
import resource
import select
import subprocess
import sys
import time

import pytest

from transport import ending, process
from transport.errors import ProtocolError, Refused
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
    child = process.launch(argv, dict(os.environ), "/", process.parse_limits(limits))
    assert isinstance(child, process.Child)
    return child


def test_a_child_has_its_pipes_and_nothing_else_of_ours() -> None:
    status, out = finish(start(["ls", "/proc/self/fd"]))
    assert status.code == 0 and out.split() == [b"0", b"1", b"2", b"3"]  # 3 is ls's own


def test_signals_are_as_a_login_has_them() -> None:
    _, out = finish(start(["grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"]))
    ours = ~(0b11 << 31)  # 32 and 33 are the C library's own
    assert {int(line.split()[1], 16) & ours for line in out.splitlines()} == {0}


@pytest.mark.parametrize(
    ("argv", "code"), [(["/no/such"], 127), (["no-such-command"], 127), (["/etc/passwd"], 126)]
)
def test_what_cannot_be_started_says_why(argv: list[str], code: int) -> None:
    status = process.launch(argv, dict(os.environ), "/", [])
    assert isinstance(status, Status) and (status.state, status.code) == ("exited", code)
    with pytest.raises(Refused, match="no such directory"):
        process.launch(["true"], {}, "/no/such", [])


def test_limits() -> None:
    _, out = finish(start(["sh", "-c", "ulimit -n; ulimit -f"], nofile="77", fsize="1M"))
    assert out == b"77\n2048\n"
    for limits in ({"nofile": "many"}, {"nope": "1"}, {"mem": "1G"}, {"as": "-1"}, {"as": ""}):
        with pytest.raises(ProtocolError):
            process.parse_limits(limits)


def test_out_of_descriptors_nothing_is_left_open() -> None:
    """At every point of a start where the next descriptor may be refused."""
    code = """
import os, resource
from transport import process
from transport.status import Status
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
before = os.listdir('/proc/self/fd')
refused = 0
process._stock = process._room = 1 << 20  # no room is made
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


def test_many_jobs_raise_the_nodes_limit_and_not_the_jobs() -> None:
    code = """
import os, resource
from transport import process
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
process._stock = process._room = 128
children = [process.launch(['sh', '-c', 'ulimit -Sn; ulimit -Hn'], dict(os.environ), '/', []) for _ in range(60)]
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 128
for child in children:
    assert os.read(child.stdout, 100).split()[0] == b'128'
    os.waitpid(child.pid, 0)
"""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1024:
        pytest.skip("the hard limit here is too low")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_kill_session_finds_groups_of_their_own() -> None:
    child = start(["bash", "-mc", "sleep 61 & sleep 62 & echo up; wait"])
    assert os.read(child.stdout, 10) == b"up\n"
    assert len(ending.members(child.pid)) == 3
    ending.kill_session(child.pid)
    status, _ = finish(child)
    assert status.signal == "KILL"
    deadline = time.monotonic() + 30
    while ending.members(child.pid):
        assert time.monotonic() < deadline
