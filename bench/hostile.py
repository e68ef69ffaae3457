"""A hostile node that opens as many requests as it may, with large bodies: the cost for a command on another host."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measure import Row, timed
from tests.lab import Host, Lab, Settings
from tests.transport.node.hostile_hosts import Stage

ROUNDS = 5
COMMANDS = 5  # of one round, without the flood and with it
BEATS = 100
FEW = 10  # frames that heartbeats alone make
LONGEST = 60.0  # seconds within which the flood must begin or end
LOOK = 0.05  # seconds between two counts of the frames of the hostile node
COMMAND = "`run --on h1 -- true`"  # the bound is about this; a line's round trip is for comparison
REQUEST = {"kind": "REQUEST", "channel": [2, 2], "json": {"name": "life", "job": "JOB"}}
BODY = [
    {"kind": "DATA", "channel": [2, 2], "offset": 60_000 * n, "payload": "x", "times": 60_000}
    for n in range(4)
]
TAKEN_BACK = {"kind": "STOP", "stream": "life", "channel": [2, 2]}
FLOODS: dict[str, list[dict[str, Any]]] = {
    "requests with bodies of 240 kB": [REQUEST, *BODY, TAKEN_BACK],
    "requests without a body": [REQUEST, TAKEN_BACK],
}


def run(lab: Lab) -> list[Row]:
    return [row for name, flood in FLOODS.items() for row in _beside(lab, name, flood)]


def _beside(lab: Lab, name: str, flood: list[dict[str, Any]]) -> list[Row]:
    """Measure without the flood and with it in turn, so that a noisy neighbour disturbs both alike."""
    commands: tuple[list[float], list[float]] = [], []
    beats: tuple[list[float], list[float]] = [], []
    bad = lab.add(f"bad{len(flood)}", Settings(bare=True))  # a new name: the node still dials the one before
    try:
        stage = Stage(lab)
        stage.give(bad, [["greet", {}], ["await", "SPAWN"], ["attach"], ["flood", *flood, 1 << 40]])
        with _client(stage, bad) as node:
            os.setpriority(os.PRIO_PROCESS, node, 19)  # a real host has processors of its own
            for _ in range(ROUNDS):
                for flooded, kept in enumerate(commands):
                    os.kill(node, signal.SIGCONT if flooded else signal.SIGSTOP)
                    deadline = time.monotonic() + LONGEST
                    while _handles(stage, bad) != bool(flooded):
                        assert time.monotonic() < deadline, stage.log()
                    kept += [timed(lambda: _true(lab)) for _ in range(COMMANDS)]
                    beats[flooded].extend(stage.beats(BEATS))
        grown = stage.grown() / 1e6
        stage.close()
    finally:
        lab.drop(bad.name)
    rows = [
        Row(f"memory of the origin's node beside {name}: growth", grown, "MB", reach="< 200", met=grown < 200)
    ]
    for what, (without, beside) in ((COMMAND, commands), ("round trip of a line", beats)):
        peer, value = 1000 * statistics.median(without), 1000 * statistics.median(beside)
        reach, met = ("≤ 2 ×", value <= 2 * peer) if what == COMMAND else ("", None)
        rows.append(Row(f"{what} beside {name}", value, "ms", "alone", peer, reach, met))
    return rows


@contextmanager
def _client(stage: Stage, bad: Host) -> Iterator[int]:
    """Run a job on the hostile node; yield the pid of that node on this machine."""
    client = stage.lab.popen(["run", "-v", "--on", bad.name, "--", "cat"], stderr=subprocess.PIPE)
    try:
        assert client.stderr and b"started" in client.stderr.readline()
        yield next(
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if b"hostile_program.py" in _read(path) and str(bad.home).encode() in _read(path)
        )
        assert client.poll() is None and "link ended" not in stage.log(), stage.log()
    finally:
        client.kill()
        client.communicate()


def _handles(stage: Stage, bad: Host) -> bool:
    """Return whether the origin's node handles frames of the hostile one; received ones keep it busy for a while."""

    def count() -> int:
        status = json.loads(stage.lab.run(["node", "--status", "--json"], check=True).stdout)
        lines = [line["frames_in"] for line in status["lines"] if line["name"] == bad.name]
        assert lines, stage.log()
        return int(lines[0])

    before = count()
    time.sleep(LOOK)
    return count() - before > FEW


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _true(lab: Lab) -> None:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
