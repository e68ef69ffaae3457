"""stdout that takes bulk, written by the node: the same bytes, whatever it is, and whatever ends first."""

from __future__ import annotations

import array
import fcntl
import hashlib
import os
import resource
import select
import signal
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pytest

from tests.lab import Lab
from tests.lab.machine import readable
from tests.support.agents import PATIENCE, until
from tests.support.machine import nodes, only_node
from tests.system import breaks
from tests.system.breaks import MiB

pytestmark = pytest.mark.timeout(300)
SIZE = 16 * MiB
TRIES = 5
# Bytes of which each has its place: the numbers of their lines.
BULK = f"seq 100000000 | head -c {SIZE}"


@pytest.fixture(scope="module")
def bulk() -> bytes:
    return subprocess.run(["sh", "-c", BULK], capture_output=True, check=True).stdout


def of_the_node(lab: Lab, fd: int) -> bool:
    """True if the node of this machine has the file of this descriptor open to write."""
    mine = os.fstat(fd)
    for process in nodes(lab.processes()):
        folder = f"/proc/{process.pid}/fd"
        for number in os.listdir(folder):
            try:
                facts = os.stat(f"{folder}/{number}")
            except OSError:
                continue
            if os.path.samestat(facts, mine):
                return True
    return False


def flooded(lab: Lab, rest: str, **more: Any) -> tuple[subprocess.Popen[bytes], int]:
    """A client whose stdout the node writes, after 4 MiB of bulk; then `rest` runs. Returns it, and the end to read.

    A window that is slow to grow shows the client no bulk, on a busy machine: then another client is made.
    """
    for _ in range(TRIES):
        read, write = os.pipe()
        client = lab.popen(
            ["run", "--on", "h1", "--", "sh", "-c", f"head -c {4 * MiB} /dev/zero; {rest}"],
            stdin=subprocess.PIPE,
            stdout=write,
            stderr=subprocess.PIPE,
            **more,
        )
        os.close(write)
        left = 4 * MiB
        while left:
            left -= len(os.read(read, left))
        try:
            until(lambda: of_the_node(lab, read), seconds=30)  # noqa: B023
        except AssertionError:
            os.close(read)
            client.kill()
            client.communicate()
        else:
            return client, read
    pytest.fail("no client has lent its stdout")


@pytest.mark.parametrize("to", ["pipe", "file", "appended", "fifo", "socket"])
def test_the_same_bytes(lab: Lab, tmp_path: Path, bulk: bytes, to: str) -> None:
    """Between other writers to the same file, and whatever the file is."""
    path = tmp_path / "out"
    run = f'quine run --on h1 -- sh -c "{BULK}"'
    script = {
        "pipe": f"(echo before; {run}; echo $?) | cat >{path}",
        "file": f"(echo before; {run}; echo $?) >{path}",
        "appended": f"echo before >{path}; {run} >>{path}; echo $? >>{path}",
        "fifo": f"mkfifo {path}.f; cat {path}.f >{path} & exec 3>{path}.f; echo before >&3; {run} >&3; "
        "echo $? >&3; exec 3>&-; wait",
        "socket": "python3 -c 'import socket, subprocess, sys, threading\n"
        "ours, theirs = socket.socketpair()\n"
        'theirs.send(b"before\\n")\n'
        "done = subprocess.Popen(sys.argv[1:], stdout=theirs)\n"
        "theirs.close()\n"
        f'with open("{path}", "wb") as out:\n'
        "    while data := ours.recv(1 << 16): out.write(data)\n"
        f'    out.write(b"%d\\n" % done.wait())\' {run}',
    }[to]
    ended = lab.sh(script, timeout=200)
    assert ended.returncode == 0, ended.stderr
    got = path.read_bytes()
    assert len(got) == SIZE + len(b"before\n0\n")
    assert got == b"before\n" + bulk + b"0\n"


def test_bytes_over_cuts(lab: Lab, through: Callable[..., str], bulk: bytes) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    done = proxy.cuts()
    proxy.cut_after(*breaks.plan(12, 3, SIZE))
    ended = lab.sh(f"quine run --on {host} -- sh -c '{BULK}' | sha256sum", timeout=200)
    assert (ended.returncode, ended.stdout.split()[0].decode()) == (0, hashlib.sha256(bulk).hexdigest())
    assert proxy.cuts() > done


def test_little_after_much_comes_at_once(lab: Lab) -> None:
    client, read = flooded(lab, "cat")
    assert client.stdin
    for line in (b"one\n", b"two\n"):
        client.stdin.write(line)
        client.stdin.flush()
        assert os.read(read, 100) == line
    _, err = client.communicate(timeout=PATIENCE)
    assert (client.returncode, err, os.read(read, 1)) == (0, b"", b"")
    os.close(read)


def test_after_a_signal_it_is_written_as_before(lab: Lab) -> None:
    """The signal arrives, the client writes by itself, and the node takes over again with the next bulk."""
    script = f"trap 'echo caught; head -c {4 * MiB} /dev/zero; exit 4' USR1; echo ready; while :; do sleep 0.1; done"
    client, read = flooded(lab, script)
    assert os.read(read, 100) == b"ready\n"
    client.send_signal(signal.SIGUSR1)
    assert os.read(read, len(b"caught\n")) == b"caught\n"
    left = 4 * MiB
    while left:
        data = os.read(read, left)
        assert data and not any(data)
        left -= len(data)
    assert os.read(read, 1) == b"" and client.wait(PATIENCE) == 4
    os.close(read)
    client.communicate()


def test_what_follows_a_signal_is_not_held_up(lab: Lab) -> None:
    """One burst of bulk: the client lends again with nothing under way, and the node must not wait for it."""
    script = f"trap 'head -c {MiB} /dev/zero; echo' USR1; echo ready; while :; do sleep 0.05; done"
    client, read = flooded(lab, script)
    assert os.read(read, 100) == b"ready\n"
    for _ in range(8):
        client.send_signal(signal.SIGUSR1)
        data = b""
        while not data.endswith(b"\n"):
            assert readable(read, PATIENCE), "no output"
            data = os.read(read, MiB)
    client.kill()
    client.communicate()
    os.close(read)
    assert lab.wait_idle() == []


@pytest.mark.parametrize("to", ["pipe", "file"])
def test_a_client_that_is_killed_leaves_the_node_idle(lab: Lab, to: str) -> None:
    """Whatever waits to be written is dropped; and nothing is written to a file that has its next writer."""
    for _ in range(3):
        path = lab.work / "late"
        reader = None
        if to == "pipe":
            reader = subprocess.Popen(["sh", "-c", "cat >/dev/null"], stdin=subprocess.PIPE)
        with path.open("wb") as file:
            out = reader.stdin if reader else file
            client = lab.popen(
                ["run", "--on", "h1", "--", "cat", "/dev/zero"], stdout=out, stderr=subprocess.PIPE
            )
            if to == "file":
                until(lambda: path.stat().st_size > 4 * MiB)  # noqa: B023
            else:
                assert reader and reader.stdin
                until(lambda: of_the_node(lab, reader.stdin.fileno()))  # noqa: B023
            client.kill()
            client.communicate()
        path.write_bytes(b"next")
        assert lab.wait_idle() == []
        assert path.read_bytes() == b"next"
        path.unlink()
        if reader:
            reader.communicate()
    before = _processor(lab)
    lab.run(["run", "--on", "h1", "--", "sleep", "0.5"], check=True)
    assert _processor(lab) - before < 0.4 * os.sysconf("SC_CLK_TCK"), "it spins"


def _processor(lab: Lab) -> int:
    """Ticks of a processor that the node here has taken."""
    taken = 0
    for process in nodes(lab.processes()):
        words = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        taken += int(words[11]) + int(words[12])
    return taken


def test_a_reader_that_leaves_ends_the_job(lab: Lab) -> None:
    client, read = flooded(lab, "while echo more; do :; done")
    assert os.read(read, 5) == b"more\n"
    os.close(read)
    client.communicate(timeout=PATIENCE)
    assert client.returncode == -signal.SIGPIPE or client.returncode == 128 + signal.SIGPIPE
    assert lab.wait_idle() == []


def test_a_quiet_job_hears_that_its_reader_has_left(lab: Lab) -> None:
    """Before it writes again, as by the client: it meets SIGPIPE at its next write."""
    client, read = flooded(lab, "read x; echo more")
    assert client.stdin
    os.close(read)
    client.stdin.write(b"go\n")
    client.stdin.close()
    client.stdin = None
    client.communicate(timeout=PATIENCE)
    assert client.returncode != 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_client_that_ends_takes_its_pipe_along(lab: Lab, number: int) -> None:
    client, read = flooded(lab, "cat /dev/zero")
    client.send_signal(number)
    while os.read(read, MiB):  # until its end
        pass
    assert client.wait(PATIENCE) == -number
    os.close(read)
    client.communicate()
    assert lab.wait_idle() == []


@pytest.mark.long
def test_after_term_nobody_waits_for_a_reader_that_takes_nothing(lab: Lab) -> None:
    client, read = flooded(lab, "cat /dev/zero")
    client.terminate()
    assert client.wait(PATIENCE) == -signal.SIGTERM
    os.close(read)
    client.communicate()


@pytest.mark.long
@pytest.mark.parametrize("stalls", [False, True])
def test_after_term_the_rest_is_written_as_long_as_it_is_taken(lab: Lab, stalls: bool) -> None:
    """A slow reader gets all of it; one that takes nothing is left after five seconds."""
    more = (64 if stalls else 12) * MiB
    client, read = flooded(
        lab, f"trap 'head -c {more} /dev/zero; exit 0' TERM; echo; while :; do sleep 0.05; done"
    )
    assert os.read(read, 1) == b"\n"
    client.terminate()
    if stalls:
        os.read(read, MiB)
        assert client.wait(PATIENCE) == -signal.SIGTERM
    else:
        got = 0
        while data := os.read(read, 256 * 1024):
            got += len(data)
            select.select(
                [], [], [], 0.13
            )  # 2 MB/s: longer than a client waits for a reader that takes nothing
        assert (got, client.wait(PATIENCE)) == (more, 0)
    os.close(read)
    client.communicate()
    assert lab.wait_idle() == []


def test_a_node_that_may_not_write_so_much_leaves_it_to_the_client(lab: Lab) -> None:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    node, path = only_node(lab).pid, lab.work / "much"
    usual = resource.prlimit(
        node, resource.RLIMIT_FSIZE, (5 * MiB, resource.getrlimit(resource.RLIMIT_FSIZE)[1])
    )
    try:
        with path.open("wb") as out:
            ended = lab.popen(["run", "--on", "h1", "--", "sh", "-c", BULK], stdout=out)
            assert ended.wait(PATIENCE) == 0
    finally:
        resource.prlimit(node, resource.RLIMIT_FSIZE, usual)
    assert path.stat().st_size == SIZE
    path.unlink()


def test_a_reader_that_sleeps_stops_the_job(lab: Lab) -> None:
    """No more comes than a window and the pipes between hold, and the node goes on for others."""
    client, read = flooded(lab, f"while head -c {MiB} /dev/zero; do echo >&2; done")
    assert client.stderr
    counts: list[int] = []

    def still() -> bool:
        lab.run(["run", "--on", "h1", "--", "true"], check=True)
        counts.append(_waiting(client.stderr))
        return len(counts) > 2 and counts[-1] == counts[-2] == counts[-3]

    until(still)
    assert counts[-1] < 100
    client.kill()
    client.communicate()
    os.close(read)
    assert lab.wait_idle() == []


def _waiting(pipe: IO[bytes]) -> int:
    """Bytes that nobody has read."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, count)
    return count[0]


def test_the_node_is_killed_meanwhile(lab: Lab) -> None:
    client, read = flooded(lab, "cat /dev/zero")
    os.kill(only_node(lab).pid, signal.SIGKILL)
    while os.read(read, MiB):
        pass
    _, err = client.communicate(timeout=PATIENCE)
    assert client.returncode == 74 and b"its outcome is not known" in err
    os.close(read)


def test_a_full_disk_is_said_as_by_the_client(lab: Lab) -> None:
    """A file that may not grow: the limit is the client's own, so it writes by itself."""

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6 * MiB, 6 * MiB))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    path = lab.work / "full"
    with path.open("wb") as out:
        ended = lab.popen(
            ["run", "--on", "h1", "--", "sh", "-c", BULK],
            stdout=out,
            stderr=subprocess.PIPE,
            preexec=small,
        )
        _, err = ended.communicate(timeout=PATIENCE)
    assert ended.returncode == 74 and b"cannot write stdout: file too large" in err
    assert path.stat().st_size == 6 * MiB
    path.unlink()


def test_no_descriptor_of_the_caller_is_made_non_blocking(lab: Lab) -> None:
    client, read = flooded(lab, "read x")
    assert not fcntl.fcntl(read, fcntl.F_GETFL) & os.O_NONBLOCK
    assert client.stdin
    client.stdin.write(b"go\n")
    client.communicate(timeout=PATIENCE)
    assert client.returncode == 0
    os.close(read)
