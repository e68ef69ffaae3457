"""Broken links: a stream and a batch of commands while a proxy cuts their connection, beside the same uncut."""

from __future__ import annotations

import hashlib
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.measure import Row, timed
from tests.lab import Lab, Proxy
from tests.system.breaks import MiB, dial_seconds, plan

SIZE = 64 * MiB
COMMANDS = 60
CUTS = 12
ROUNDS = 3


def run(lab: Lab) -> list[Row]:
    proxy = lab["h1"].proxy
    host = lab.alias("h1-cut", "h1", proxy, lease=60)
    try:
        dial = dial_seconds(lab, host, proxy)
        with tempfile.TemporaryDirectory() as name:
            material = Path(name, "material")
            material.write_bytes(b"".join(random.Random(n).randbytes(MiB) for n in range(SIZE // MiB)))
            rows = _beside(f"{SIZE // MiB} MiB both ways", proxy, dial, lambda: _cat(lab, host, material))
            return rows + _beside(
                f"{COMMANDS} commands, 4 at one time", proxy, dial, lambda: _batch(lab, host)
            )
    finally:
        lab.forget_aliases()


def _beside(what: str, proxy: Proxy, dial: float, work: Callable[[], None]) -> list[Row]:
    """Measure uncut and cut in turn, so that a noisy neighbour disturbs both alike."""
    uncut, cut, done = [], [], 0
    for seed in range(ROUNDS):
        before = proxy.carried(), proxy.cuts()
        uncut.append(timed(work))
        proxy.cut_after(*plan(seed, CUTS, proxy.carried() - before[0]))
        cut.append(timed(work))
        proxy.cut_after()
        done += proxy.cuts() - before[1]
    mine, peer, dials = statistics.median(cut), statistics.median(uncut), done / ROUNDS * dial
    return [
        Row(
            f"{what}, cut {done // ROUNDS} times",
            1000 * mine,
            "ms",
            "uncut",
            1000 * peer,
            f"≤ 1.3 × and {done // ROUNDS} dials of {1000 * dial:.0f} ms",
            mine <= 1.3 * peer + dials,
        )
    ]


def _cat(lab: Lab, host: str, material: Path) -> None:
    with material.open("rb") as file:
        process = lab.popen(["run", "--on", host, "--", "cat"], stdin=file, stdout=subprocess.PIPE)
        with process:
            assert process.stdout
            got = hashlib.file_digest(process.stdout, "sha256").digest()
        file.seek(0)
        if process.returncode or got != hashlib.file_digest(file, "sha256").digest():
            raise AssertionError(f"the stream was changed; status {process.returncode}")


def _batch(lab: Lab, host: str) -> None:
    """Each command prints some kilobytes: with less, a plan would cut little but the handshakes after cuts."""
    one = f"quine run --on {host} -- seq % 3000 | tail -1"
    done = lab.sh(f"seq {COMMANDS} | xargs -P 4 -I% sh -c '{one}'", timeout=600)
    if done.stdout.split() != [b"3000"] * COMMANDS or done.stderr:
        raise AssertionError(done.stderr.decode(errors="replace"))
