"""The tape: its durability beside a bare write and fsync, the memory of a long conversation, and the time that listing
and showing sessions take where there are many.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.measure import Row, alternate
from quine.base.messages import Message, ToolResult
from quine.tape.writer import FileSink, Tape
from tests.lab import Lab
from tests.support.agents import OK, QUINE, Agents, says, sh
from tests.support.sessions import write_sessions

ENTRIES = 1000
TEXT = "the output of a command, " * 40  # about a kilobyte, as results have
MEGABYTE = 1 << 20
RESULTS = 10
SESSIONS = 10_000


def rate(lab: Lab) -> list[Row]:
    """The time of entries that are each on the disk before the next one begins."""
    with tempfile.TemporaryDirectory() as directory:
        numbers = iter(range(1 << 20))

        def ours() -> str:
            path = os.path.join(directory, f"{next(numbers)}.jsonl")
            tape = Tape(FileSink(path), ["a-secret-of-some-length"])
            for number in range(ENTRIES):
                tape.message(Message("tool", result=ToolResult(f"call_{number}", "sh", TEXT)))
                tape.sync()
            tape.close()
            return path

        lines = Path(ours()).read_bytes().splitlines(keepends=True)

        def bare() -> None:
            fd = os.open(
                os.path.join(directory, f"{next(numbers)}.bare"),
                os.O_WRONLY | os.O_CREAT | os.O_APPEND,
                0o600,
            )
            for line in lines:
                os.write(fd, line)
                os.fsync(fd)
            os.close(fd)

        took, peer = (1000 * t for t in alternate(5, ours, bare))
    figure = f"{ENTRIES} tape entries of a kilobyte, each fsynced"
    return [Row(figure, took, "ms", "bare write + fsync", peer, "≤ 2 ×", took <= 2 * peer)]


def memory(lab: Lab) -> list[Row]:
    """The peak memory of an agent with a conversation of fifty megabytes, less that of the same with a tiny one."""
    with tempfile.TemporaryDirectory() as name:
        agents = Agents(Path(name))
        limits = {
            "QUINE_OUTPUT_TRUNCATE": str(100 * MEGABYTE),
            "QUINE_CONTEXT_WINDOW": "0",
            "QUINE_MAX_TURNS": "0",
        }

        def peak(size: int) -> float:
            """Return the peak memory of an agent with results of `size` bytes, in megabytes."""
            command = f"head -c {size} /dev/zero | tr '\\0' x"
            measure = sh("grep VmHWM /proc/$PPID/status >&4")
            done = agents.run(*([says(sh(command))] * RESULTS), says(measure), says(OK), env=limits)
            assert done.returncode == 0, done.stderr
            return int(done.stdout.split()[1]) / 1024

        total = 50
        more = peak(total * MEGABYTE // RESULTS) - peak(1)
    figure = f"memory of an agent with a conversation of {total} MB, beyond that of an empty one"
    return [Row(figure, more, "MB", "the conversation", total, "≤ 3 ×", more <= 3 * total)]


def seeing(lab: Lab) -> list[Row]:
    """`quine ps` and `tape show` over many sessions, a tenth of them lives of one process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "data")
        ids = write_sessions(folder, SESSIONS, lives=SESSIONS // 10, turns=20)
        env = {**Agents(Path(name)).env, "QUINE_DATA_DIR": str(folder)}

        def quine(*words: str) -> Callable[[], object]:
            return lambda: subprocess.run([*QUINE, *words], env=env, check=True, capture_output=True)

        def ends() -> None:
            """The peer: the first and the last line of each file, by the tools for that, in one pass."""
            script = (
                "find . -name '*.jsonl' -exec head -qn1 {} + ; find . -name '*.jsonl' -exec tail -qn1 {} +"
            )
            subprocess.run(["sh", "-c", script], cwd=folder, check=True, capture_output=True)

        ps, peer = (1000 * t for t in alternate(5, quine("ps"), ends))
        one = ids[SESSIONS // 20]
        single = Path(name, "single")
        (only,) = write_sessions(single, 1, turns=20)
        shows = quine("tape", "show", one), quine("tape", "show", "--data-dir", str(single), only)
        show, alone = (1000 * t for t in alternate(5, *shows))
    return [
        Row(
            f"quine ps over {SESSIONS} sessions",
            ps,
            "ms",
            "head and tail of each",
            peer,
            "≤ 3 ×",
            ps <= 3 * peer,
        ),
        Row(
            "quine tape show of one of them",
            show,
            "ms",
            "the same of a directory with one",
            alone,
            "≤ 2 ×",
            show <= 2 * alone,
        ),
    ]
