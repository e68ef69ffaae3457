"""A job's output after the job's own end, where something that it left behind holds the pipe."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios
from pathlib import Path

from tests.support import clock
from tests.support.running import Running
from transport.carrier.duplex import enlarge
from transport.job.job import HELD_GRACE

KiB = 1024


def waiting(fd: int) -> int:
    """Bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_what_a_job_left_behind_does_not_hold_its_stream_however_much_it_says() -> None:
    """Its pipe is never empty, since it writes faster than the window lets anybody read."""

    async def main() -> None:
        running = Running(["sh", "-c", "echo first; yes & exit 3"])
        running.link.session.spare = 0  # the window stays below what the pipe holds
        await running.until(lambda: running.job.ended)
        (source, _) = running.job._sources
        enlarge(
            source._fd
        )  # a window that does not grow may never have the room for a read that is large enough
        clock.skip(HELD_GRACE + 1)
        for _ in range(64):
            await running.until(lambda: source.closed or waiting(source._fd) > 100 * KiB)
            running.take(acknowledge=True)
            if source.closed:
                break
        await running.until(lambda: running.whole, acknowledge=True)
        assert running.status and running.status.code == 3 and running.out.startswith(b"first\n")
        await running.over()

    clock.run(main())


def test_what_was_in_the_pipe_at_the_end_arrives_whole_for_a_reader_that_comes_later(tmp_path: Path) -> None:
    async def main() -> None:
        holds = f"(trap '' PIPE; exec sleep 4711) & echo $! >{tmp_path}/pid"
        script = f"head -c 100000 /dev/zero; {holds}; exit 3"
        running = Running(["sh", "-c", script])
        await running.until(lambda: running.job.ended)
        clock.skip(HELD_GRACE + 1)
        await running.until(lambda: running.job._sources[0]._left > 0)
        assert not running.whole and len(running.out) < 100_000
        await running.until(lambda: running.whole, acknowledge=True)
        assert running.status and running.status.code == 3 and len(running.out) == 100_000
        await running.over()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    clock.run(main())
