"""Bulk: a gigabyte down and up beside ssh with the same cipher, and the effect of bulk on a small command."""

from __future__ import annotations

import subprocess
import time

from bench.measure import Row, alternate
from tests.lab import Lab

GB = 1_000_000_000
CIPHER = ("-c", "aes128-gcm@openssh.com")


def both_ways(lab: Lab) -> list[Row]:
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    ssh = lab.ssh("h1", *CIPHER)
    quine = [lab.quine, "run", "--on", "h1", "--"]
    rows = []
    for way in ("down", "up"):

        def pump(command: list[str], way: str = way) -> None:
            if way == "down":
                remote = ["head", "-c", str(GB), "/dev/zero"]
                subprocess.run(
                    [*command, *remote],
                    stdout=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                    env=lab.env,
                    check=True,
                )
            else:
                source = subprocess.Popen(["head", "-c", str(GB), "/dev/zero"], stdout=subprocess.PIPE)
                subprocess.run(
                    [*command, "cat", ">/dev/null"]
                    if command is ssh
                    else [*command, "sh", "-c", "cat >/dev/null"],
                    stdin=source.stdout,
                    env=lab.env,
                    check=True,
                )
                source.stdout.close()  # type: ignore[union-attr]
                source.wait()

        ours, theirs = alternate(5, lambda: pump(quine), lambda: pump(ssh))
        mine, peer = GB / 1e6 / ours, GB / 1e6 / theirs
        rows.append(
            Row(f"1 GB {way}, aes128-gcm", mine, "MB/s", "ssh", peer, "≥ 0.8 ×, aim 1", mine >= 0.8 * peer)
        )
    return rows


def fairness(lab: Lab) -> list[Row]:
    """Median latency of a small command alone, and beside ninety-nine streams of which one is bulk."""
    from bench.client import serial_spawn

    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    alone = serial_spawn(lab, "h1", 100)
    quiet = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    idle = [lab.popen(["run", "--on", "h1", "--", "sh", "-c", "echo up; cat"], **quiet) for _ in range(98)]  # type: ignore[arg-type]
    bulk = None
    try:
        for process in idle:
            assert process.stdout and process.stdout.readline() == b"up\n"
        bulk = lab.popen(["run", "--on", "h1", "--", "cat", "/dev/zero"])
        time.sleep(0.5)  # until it runs at full speed
        beside = serial_spawn(lab, "h1", 100)
    finally:
        for process in [*idle, *([bulk] if bulk else [])]:
            process.terminate()
        for process in [*idle, *([bulk] if bulk else [])]:
            process.communicate()
    return [
        Row(
            "small command beside 99 streams, one of them bulk",
            1000 * beside,
            "ms",
            "alone",
            1000 * alone,
            "≤ 5 ×",
            beside <= 5 * alone,
        )
    ]
