"""stdin that is a pipe with bulk in it, lent to the node: the same bytes, whatever ends first."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.support.agents import PATIENCE, until
from tests.support.machine import nodes, only_node
from tests.system import breaks
from tests.system.breaks import MiB

pytestmark = pytest.mark.timeout(300)
SIZE = 16 * MiB
TRIES = 5


@pytest.fixture
def bulk(tmp_path: Path) -> Path:
    path = tmp_path / "bulk"
    path.write_bytes(os.urandom(SIZE))
    return path


def digest(path: Path) -> bytes:
    return hashlib.sha256(path.read_bytes()).hexdigest().encode() + b"  -\n"


def lent(lab: Lab) -> set[str]:
    """Pipes that the node of this machine reads for clients: they have opened them anew, without blocking."""
    found = set()
    for process in nodes(lab.processes()):
        folder = f"/proc/{process.pid}"
        for number in os.listdir(f"{folder}/fd"):
            try:
                flags = int(Path(f"{folder}/fdinfo/{number}").read_text().split()[3], 8)
                link = os.readlink(f"{folder}/fd/{number}")
            except OSError:
                continue
            if link.startswith("pipe:") and flags & os.O_NONBLOCK and flags & os.O_ACCMODE == os.O_RDONLY:
                found.add(link)
    return found


def feeding(lab: Lab, words: list[str], size: int = 2 * MiB) -> tuple[subprocess.Popen[bytes], int]:
    """A client whose stdin has carried so much; returns it, and the end of the pipe for more.

    A window that is slow to grow shows the client no bulk, on a busy machine: then another client is made.
    """
    before = lent(lab)
    for _ in range(TRIES):
        read, write = os.pipe()
        data = memoryview(os.urandom(size))
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, MiB)
        data = data[
            os.write(write, data[:MiB]) :
        ]  # a client that reads faster than we write sees no bulk, either
        client = lab.popen(words, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(read)
        while data:
            data = data[os.write(write, data) :]
        try:
            until(lambda: lent(lab) - before, seconds=30)
        except AssertionError:
            os.close(write)
            client.kill()
            client.communicate()
        else:
            return client, write
    pytest.fail("no client has lent its stdin")


def test_bytes_over_cuts(lab: Lab, through: Callable[..., str], bulk: Path) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    done = proxy.cuts()
    proxy.cut_after(*breaks.plan(11, 3, SIZE))
    ended = lab.sh(f"cat {bulk} | quine run --on {host} -- sha256sum", timeout=200)
    assert (ended.returncode, ended.stdout) == (0, digest(bulk)), ended.stderr
    assert proxy.cuts() == done + 3


def test_little_after_much_comes_at_once(lab: Lab) -> None:
    """And the end of it: the node sees it, and the client hears of it."""
    client, write = feeding(
        lab, ["run", "--on", "h1", "--", "sh", "-c", f"head -c {2 * MiB} >/dev/null; cat"]
    )
    assert client.stdout
    for line in (b"one\n", b"two\n"):
        os.write(write, line)
        assert os.read(client.stdout.fileno(), 100) == line
    os.write(write, b"the last")
    os.close(write)
    out, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, out, err) == (0, b"the last", b"")


def test_a_job_that_ends_before_its_stdin(lab: Lab) -> None:
    before = lent(lab)
    client, write = feeding(
        lab, ["run", "--on", "h1", "--", "sh", "-c", f"head -c {2 * MiB} >/dev/null; read x; exit 3"]
    )
    os.write(write, b"go\n")
    assert client.wait(PATIENCE) == 3
    until(lambda: lent(lab) == before)
    with pytest.raises(BrokenPipeError):  # its writer hears that nobody reads any more
        while True:
            os.write(write, bytes(4096))
    os.close(write)
    client.communicate()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_ends_takes_its_pipe_along(lab: Lab, number: int) -> None:
    before = lent(lab)
    client, write = feeding(lab, ["run", "--on", "h1", "--", "sh", "-c", "cat >/dev/null; echo not seen"])
    client.send_signal(number)
    assert client.wait(PATIENCE) == -number
    until(lambda: lent(lab) == before)
    os.close(write)
    client.communicate()
    assert lab.wait_idle() == []


def test_a_command_that_stops_reading_stops_its_writer(lab: Lab) -> None:
    """No more is read than a window and the pipes between hold."""
    client, write = feeding(
        lab, ["run", "--on", "h1", "--", "sh", "-c", f"head -c {2 * MiB} >/dev/null; sleep 600"]
    )
    os.set_blocking(write, False)
    sent, data = 0, bytes(1 << 16)
    try:
        while sent < 200 * MiB:
            try:
                sent += os.write(write, data)
            except BlockingIOError:
                if not _grows(write):
                    break
        assert sent < 100 * MiB
    finally:
        client.terminate()
        client.wait(PATIENCE)
        os.close(write)
        client.communicate()


def _grows(write: int) -> bool:
    """Is there room within a second?"""
    import select

    return bool(select.select([], [write], [], 1.0)[1])


def test_the_node_is_killed_meanwhile(lab: Lab) -> None:
    client, write = feeding(lab, ["run", "--on", "h1", "--", "sh", "-c", "cat >/dev/null"])
    os.kill(only_node(lab).pid, signal.SIGKILL)
    _, err = client.communicate(timeout=PATIENCE)
    assert client.returncode == 74 and b"its outcome is not known" in err
    os.close(write)
