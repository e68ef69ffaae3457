"""A job whose link is down for longer than its lease: the job is lost, whatever its status was."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab, processes
from tests.support import clock
from tests.support.agents import says, sh
from tests.support.machine import only_node
from tests.support.running import Running
from tests.support.waiting import read_until, until
from tests.system import breaks
from tests.system.breaks import proxy_process

LEASE = 5.0  # seconds, of a clock that the test puts forward
KiB = 1024


def printing(size: int, then: str = "") -> list[str]:
    return [sys.executable, "-c", f"import os; os.write(1, b'x' * {size}){then}"]


def test_a_stream_cut_by_the_lease_is_lost_although_the_command_had_exited_0() -> None:
    async def main() -> None:
        running = Running(printing(100 * KiB), LEASE)
        await running.until(lambda: running.job.ended)
        assert len(running.out) < 100 * KiB, "the window held it all"
        running.job.on_down("cut")
        clock.skip(LEASE + 1)
        await running.over()
        assert running.status and running.whole
        assert (running.status.state, running.status.code) == ("lost", 74), running.status
        assert "output" in running.status.detail and "lease" in running.status.detail

    clock.run(main())


def test_a_command_that_exits_0_upon_the_leases_term_is_lost() -> None:
    async def main() -> None:
        code = "import signal, sys, os\nsignal.signal(15, lambda *_: sys.exit(0))\nos.write(1, b'up')\nsignal.pause()"
        running = Running([sys.executable, "-c", code], LEASE)
        await running.until(lambda: running.out == b"up")
        running.job.on_down("cut")
        clock.skip(LEASE + 1)
        await running.until(lambda: running.job.ended)
        await running.over()
        assert running.status and running.whole
        assert (running.status.state, running.status.code) == ("lost", 74), running.status
        assert "lease of 5 s" in running.status.detail

    clock.run(main())


def test_output_that_was_whole_before_the_lease_ended_is_an_exit() -> None:
    async def main() -> None:
        running = Running(printing(100 * KiB, "; os._exit(3)"), LEASE)
        await running.until(lambda: running.job.ended)
        running.job.on_down("cut")
        running.job.on_up()
        await running.until(lambda: running.whole, acknowledge=True)
        assert running.status and len(running.out) == 100 * KiB
        assert (running.status.state, running.status.code) == ("exited", 3)
        await running.over()

    clock.run(main())


def test_an_exit_record_follows_the_last_byte_of_output() -> None:
    """Said earlier, it would have to be taken back when the output is cut."""

    async def main() -> None:
        running = Running(printing(100 * KiB), LEASE)
        await running.until(lambda: running.job.ended)
        assert running.status is None
        await running.until(lambda: running.status, acknowledge=True)
        assert len(running.out) == 100 * KiB
        await running.over()

    clock.run(main())


def test_a_link_that_came_back_ends_no_job_at_its_lease() -> None:
    async def main() -> None:
        running = Running(["sleep", "4711"], LEASE)
        await running.until(lambda: running.job.pid)
        running.job.on_down("cut")
        running.job.on_up()
        clock.skip(LEASE + 1)
        await asyncio.sleep(0.01)
        assert not running.job.orphan and running.status is None
        running.opener.abandon(running.number)
        running.take()
        await running.over()

    clock.run(main())


# -- real nodes --------------------------------------------------------------------------------------

SHORT = (10, 65 * KiB, 200 * KiB, 1024 * KiB)
LONG = tuple(range(32 * KiB, 1024 * KiB, 33 * KiB))
# A command that waits for a file, says so many bytes, and ends with 0.
LATER = """import os, sys, time
os.write(1, b'up')
while not os.path.exists(sys.argv[1]): time.sleep(0.02)
os.write(1, b'x' * int(sys.argv[2]))"""


@pytest.mark.parametrize("sizes", [LONG if breaks.LONG else SHORT], ids=["sizes"])
def test_an_origin_that_slept_through_the_lease_sees_every_byte_or_74(
    lab: Lab, through: Callable[..., str], tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    """A laptop sleeps: its node is stopped, the far node sees the link go and counts the lease by itself."""
    host, proxy = through("h1", lease=1), lab["h1"].proxy
    go, never = tmp_path / "go", tmp_path / "never"
    waits = says(sh(f"echo up >&4; until [ -e {never} ]; do sleep 1; done"))
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                proxy_process(lab, "run", "--on", host, "--", breaks.PYTHON, "-c", LATER, path, size)
            )
            for path, size in (*((go, size) for size in sizes), (never, 0))
        ]
        clients.append(
            stack.enter_context(
                proxy_process(lab, "--quiet", "--on", host, "wait there", env=lab.script([waits]))
            )
        )
        for client in clients:
            assert client.stdout
            read_until(client.stdout.fileno(), b"up")
        node = only_node(lab)
        processes.kill(node.pid, signal.SIGSTOP)
        try:
            go.touch()
            proxy.cut()
            # Its lease has ended those that wait for ever.
            until(
                lambda: not [job for job in lab["h1"].jobs() if str(never) in " ".join(job.argv)],
                "the lease is over",
            )
        finally:
            processes.kill(node.pid, signal.SIGCONT)
        for client, size in zip(clients, sizes, strict=False):
            out, err = client.communicate(timeout=120)
            assert client.returncode in (0, 74), (size, client.returncode, err)
            assert len(out) == size if client.returncode == 0 else len(out) <= size, (size, len(out))
        for client in clients[len(sizes) :]:
            _, err = client.communicate(timeout=120)
            assert client.returncode == 74, err
