"""The link is down for a while: the events meanwhile, their effects later, and the moment when it is given up.

Here it goes down in all the ways that it can: reset, silent, half open, the far node or the network stopped, sshd
gone; QUINE_TEST_BREAKS=200 waits as long as the pauses of people and machines are.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lab import Lab, Proxy, Settings, processes
from tests.lab.host import Host
from tests.lab.network import can_separate
from tests.support.agents import until
from tests.support.machine import nodes
from tests.support.waiting import read_until
from tests.system import breaks
from tests.system.breaks import LONG, PYTHON, MiB, down, proxy_process

# A command that lives until it is told to end, by a file of its own: nothing has to cross the link for that.
PATIENT = "echo up; while [ ! -e {go} ]; do sleep 0.05; done; echo done; exit 7"


@contextmanager
def up(lab: Lab, host: str, script: str, *options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A command on the host that has printed `up`."""
    with proxy_process(lab, "run", *options, "--on", host, "--", "sh", "-c", script) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        yield process


def job_of(host: Host, word: object) -> processes.Process:
    """Return the shell whose argv holds the word; not its forks, which have its argv until their exec."""
    jobs = [job for job in host.jobs() if any(str(word) in text for text in job.argv)]
    (found,) = [job for job in jobs if job.ppid not in {other.pid for other in jobs}]
    return found


def alone(own_lab: Callable[..., Lab]) -> tuple[Lab, str, Proxy]:
    """A lab whose proxy carries one link: with a shared one those of other tests are counted that come back."""
    lab = own_lab(["h1"])
    proxy = lab["h1"].proxy
    host = lab.alias("h1x", "h1", proxy)
    lab.run(["run", "--on", host, "--", "true"], check=True)
    until(lambda: proxy.connections() == 1)
    return lab, host, proxy


def far_node(host: Host) -> processes.Process:
    """Wait until one node is left; return it. Forks have its argv until they exec; a replaced one goes slowly."""
    found: list[processes.Process] = []

    def single() -> bool:
        found[:] = nodes(host.processes())
        return len(found) == 1

    until(single)
    return found[0]


# -- within the lease ------------------------------------------------------------------------------


def test_what_ends_meanwhile_has_its_whole_record(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    host, proxy = through("h1"), lab["h1"].proxy
    go, report = tmp_path / "go", tmp_path / "report"
    work = PATIENT.format(go=go).replace("echo done", "seq 200000 | sort -n | tail -1")
    with up(lab, host, work, "--report", report) as process:
        job = job_of(lab["h1"], go)
        with down(proxy):
            go.touch()
            assert processes.wait_gone([job], 60) == []
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (7, b"200000\n", b"")
    told = json.loads(report.read_text())
    assert (told["state"], told["code"], told["host"], told["pid"]) == ("exited", 7, host, job.pid)
    assert told["rusage"]["maxrss"] > 0 and told["seconds"] > 0


def test_signals_sent_meanwhile_arrive_once(lab: Lab, through: Callable[..., str]) -> None:
    """Each is another one, because pending ones of a kind are one to the kernel."""
    host, proxy = through("h1"), lab["h1"].proxy
    names = ("USR1", "USR2", "ALRM", "HUP")
    far = "import signal, sys\nfor name in sys.argv[1:]:\n"
    far += " signal.signal(getattr(signal, 'SIG' + name), lambda n, _: print(signal.Signals(n).name, flush=True))\n"
    far += "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nprint('up', flush=True)\nwhile True: signal.pause()"
    with proxy_process(lab, "run", "--on", host, "--", PYTHON, "-c", far, *names) as process:
        assert process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        for name in names:
            with down(proxy):
                process.send_signal(getattr(signal, f"SIG{name}"))
            assert read_until(process.stdout.fileno(), b"\n", 60) == f"SIG{name}\n".encode()
        with down(proxy):
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (9, b"", b"")


def test_a_pause_holds_the_producers_and_loses_nothing(lab: Lab, through: Callable[..., str]) -> None:
    """Silence at first, as a pulled cable: both ends go on writing until their windows are full."""
    host, proxy = through("h1"), lab["h1"].proxy
    size = (64 if LONG else 10) * MiB  # more than the windows hold
    with proxy_process(lab, "run", "--on", host, "--", "cat") as process:

        def heal() -> None:
            proxy.cut()
            proxy.heal()

        later = threading.Timer(5 if LONG else 1, heal)

        def between(number: int) -> None:
            if number == 16:
                proxy.blackhole()
                later.start()

        result = breaks.carried(process, 5, 5, size, between)
        later.join()
    assert result == ("", 0, b"")


def test_a_command_sent_meanwhile_runs_once(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    """The link is there when the node writes to it: only the new connection tells which bytes arrived."""
    host, proxy = through("h1"), lab["h1"].proxy
    ran = tmp_path / "ran"
    with up(lab, host, PATIENT.format(go=tmp_path / "go")) as first:
        proxy.half_open()
        with proxy_process(
            lab, "run", "--on", host, "--", "sh", "-c", f"echo ran >>{ran}; echo ran"
        ) as second:
            proxy.cut()
            out, err = second.communicate(timeout=120)
            assert (second.returncode, out, err) == (0, b"ran\n", b"")
        (tmp_path / "go").touch()
        assert first.communicate(timeout=120) == (b"done\n", b"")
    assert breaks.lines(ran) == ["ran"]


# -- every way to go down --------------------------------------------------------------------------


def survives(lab: Lab, host: str, go: Path, broken: Callable[[], None]) -> None:
    """Both streams and the record of a job survive `broken`, and so does the next command."""
    with proxy_process(
        lab, "run", "--on", host, "--", "sh", "-c", f"echo up; cat; {PATIENT.format(go=go)}"
    ) as process:
        assert process.stdin and process.stdout
        read_until(process.stdout.fileno(), b"up\n")
        process.stdin.write(b"before\n")
        process.stdin.flush()
        read_until(process.stdout.fileno(), b"before\n")
        broken()
        process.stdin.write(b"after\n")
        process.stdin.flush()
        read_until(process.stdout.fileno(), b"after\n", 60)
        process.stdin.close()
        read_until(process.stdout.fileno(), b"up\n")
        go.touch()
        assert (process.wait(120), process.stdout.read()) == (7, b"done\n")
        assert process.stderr and process.stderr.read() == b""
    assert lab.run(["run", "--on", host, "--", "echo", "next"]).stdout == b"next\n"


@pytest.mark.long
def test_a_half_open_connection(own_lab: Callable[..., Lab], tmp_path: Path) -> None:
    """Packets vanish without notice: the silence ends the connection. It wakes up late, and its bytes are ignored."""
    lab, host, proxy = alone(own_lab)
    accepted = proxy.accepted()

    def half_open() -> None:
        assert proxy.half_open() == 1

    survives(lab, host, tmp_path / "go", half_open)
    assert proxy.accepted() == accepted + 1
    proxy.heal()
    assert lab.run(["run", "--on", host, "--", "echo", "next"]).stdout == b"next\n"
    assert proxy.accepted() == accepted + 1


@pytest.mark.long
def test_a_half_open_connection_that_wakes_up_too_late(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    """The new connection has sent again all bytes that the old one still carries."""
    host, proxy = through("h1"), lab["h1"].proxy
    size = 8 * MiB
    with proxy_process(lab, "run", "--on", host, "--", "cat") as process:

        def between(number: int) -> None:
            if number == 16:
                proxy.half_open()
            elif number in (64, 66, 68):  # the link is up again
                proxy.heal()
                lab.run(["run", "--on", host, "--", "true"], check=True)

        result = breaks.carried(process, 6, 6, size, between)
    assert result == ("", 0, b"")


@pytest.mark.long
def test_the_far_node_is_stopped_for_a_while(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    host = through("h1")

    def stop() -> None:
        node = far_node(lab["h1"])
        processes.kill(node.pid, signal.SIGSTOP)
        try:
            time.sleep(10 if LONG else 2)
        finally:
            processes.kill(node.pid, signal.SIGCONT)

    survives(lab, host, tmp_path / "go", stop)


@pytest.mark.long
def test_sshd_is_restarted(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    host = through("h1")

    def restart() -> None:
        lab["h1"].stop()
        time.sleep(10 if LONG else 1)
        lab["h1"].start()

    survives(lab, host, tmp_path / "go", restart)


@pytest.mark.long
@pytest.mark.skipif(not can_separate(), reason="needs root, iproute2 and network namespaces")
def test_the_network_of_a_host_is_down_for_a_while(own_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab = own_lab([], lease=60)
    network = lab.add("far", Settings(network=True)).network
    assert network is not None
    lab.run(["run", "--on", "far", "--", "true"], check=True)

    def vanish() -> None:
        network.down()
        time.sleep(20 if LONG else 3)
        network.up()

    survives(lab, "far", tmp_path / "go", vanish)


# -- beyond the lease, and other ends --------------------------------------------------------------


@pytest.mark.long
def test_beyond_the_lease_it_is_lost_here_and_ended_there(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    host, proxy = through("h1", lease=1), lab["h1"].proxy
    script = f"trap 'echo TERM >{tmp_path}/died; exit' TERM; echo up; while :; do sleep 0.02; done"
    with up(lab, host, script) as process:
        begun = time.monotonic()  # before it is down: from then on the lease runs
        with down(proxy):
            _, err = process.communicate(timeout=120)
            took = time.monotonic() - begun
            assert process.returncode == 74
            assert lab.wait_idle() == []
    assert err.startswith(f"quine: {host}: error: connection lost: ".encode())
    assert b"was started (pid " in err and b"its outcome is not known" in err
    assert breaks.lines(tmp_path / "died") == ["TERM"]
    assert 0.9 < took < 60
    assert lab.run(["run", "--on", host, "--", "echo", "again"]).stdout == b"again\n"


@pytest.mark.long
def test_two_leases_on_one_link(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    """Each job has its own: the short one is given up, the long one goes on over the same line."""
    short, long, proxy = through("h1", lease=1), through("h1"), lab["h1"].proxy
    with (
        up(lab, short, "echo up; exec sleep 60") as first,
        up(lab, long, PATIENT.format(go=tmp_path / "go")) as second,
    ):
        with down(proxy):
            first.communicate(timeout=120)
            assert first.returncode == 74
        (tmp_path / "go").touch()
        assert second.communicate(timeout=120) == (b"done\n", b"")
        assert second.returncode == 7
    assert lab.wait_idle() == []


@pytest.mark.parametrize("back", [True, False], ids=["link back", "lease over"])
def test_the_client_is_killed_meanwhile(
    lab: Lab, through: Callable[..., str], tmp_path: Path, back: bool
) -> None:
    host, proxy = through("h1", lease=60 if back else 1), lab["h1"].proxy
    with up(lab, host, PATIENT.format(go=tmp_path / "go")) as process:
        job = job_of(lab["h1"], tmp_path / "go")
        with down(proxy):
            process.kill()
            process.communicate()
            if not back:
                assert processes.wait_gone([job], 60) == []
        assert processes.wait_gone([job], 60) == []


def test_a_node_that_is_stopped_is_not_waited_for(lab: Lab, tmp_path: Path) -> None:
    """It tells the other ends, so the job on the host ends at once and not when its lease is over."""
    host = lab.alias("h1x", "h1", lease=600)
    with up(
        lab, host, f"trap 'echo TERM >{tmp_path}/died; exit' TERM; echo up; while :; do sleep 0.02; done"
    ):
        job = job_of(lab["h1"], "died")
        lab.run(["node", "--stop", "--force"], check=True)
        assert processes.wait_gone([job], 60) == []
    assert breaks.lines(tmp_path / "died") == ["TERM"]


def test_the_far_node_is_killed_meanwhile(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    """The one that comes after it does not know the link: the job is lost at once, not after the lease."""
    host, proxy = through("h1"), lab["h1"].proxy
    with up(lab, host, "echo up; exec sleep 61") as process:
        node = far_node(lab["h1"])
        with down(proxy):
            os.kill(node.pid, signal.SIGKILL)
            assert processes.wait_gone([node], 60) == []
        _, err = process.communicate(timeout=120)
    assert process.returncode == 74
    assert err.startswith(f"quine: {host}: error: ".encode()) and b"was started (pid " in err
    assert b"its outcome is not known" in err and err.count(b"\n") <= 2
    assert lab.run(["run", "--on", host, "--", "echo", "again"]).stdout == b"again\n"
    for job in lab["h1"].jobs():  # another test is about the end of what a killed node leaves
        processes.kill(job.pid)


@pytest.mark.long
def test_an_idle_link_that_breaks_is_dialled_by_the_next_command(own_lab: Callable[..., Lab]) -> None:
    """The command prints nothing about the break."""
    lab, host, proxy = alone(own_lab)
    accepted = proxy.accepted()
    assert proxy.cut() == 1
    time.sleep(1)  # the door is open: whoever dials is counted
    assert proxy.accepted() == accepted
    done = lab.run(["run", "--on", host, "--", "echo", "next"])
    assert (done.returncode, done.stdout, done.stderr) == (0, b"next\n", b"")
    assert proxy.accepted() == accepted + 1
