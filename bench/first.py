"""The first command on a host that has nothing of ours yet: the file is sent, unpacked and started."""

from __future__ import annotations

import os
import shutil
import subprocess
import time

from bench.measure import Row, alternate
from deploy.build import build
from tests.lab import Lab

SIZE = 1_500_000  # bytes of the peer's file


def run(lab: Lab) -> list[Row]:
    """`quine run` to a fresh host beside two cold ssh logins and an scp; the node here runs already."""
    build()
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": lab.env, "check": True}
    source = lab.work / "scp.bin"
    source.write_bytes(os.urandom(SIZE))
    first: list[float] = []

    def quine() -> None:
        # the nodes and the installation of the run before are not part of the time
        lab.stop_nodes()
        shutil.rmtree(lab["h1"].home / ".cache")
        lab.run(["run", "--on", "local", "--", "true"], check=True)
        os.sync()  # nor is the removal, which the disk would do meanwhile
        began = time.perf_counter()
        subprocess.run([lab.quine, "run", "--on", "h1", "--", "true"], **quiet)  # type: ignore[call-overload]
        first.append(time.perf_counter() - began)

    def ssh() -> None:
        subprocess.run([*lab.ssh("h1"), "true"], **quiet)  # type: ignore[call-overload]

    def copy() -> None:
        _, *options, there = lab.ssh("h1")
        options[options.index("-p")] = "-P"
        subprocess.run(["scp", *options, source, f"{there}:copy"], **quiet)  # type: ignore[call-overload]

    _, cold, copied = alternate(9, quine, ssh, copy)
    ours, peer = 1000 * sorted(first)[len(first) // 2], 1000 * (2 * cold + copied)
    return [
        Row(
            "first command on a fresh host",
            ours,
            "ms",
            "2 × ssh cold + scp of 1.5 MB",
            peer,
            "≤ 1 ×",
            ours <= peer,
        ),
        Row(
            "size of the file that is sent",
            build().size / 1e6,
            "MB",
            reach="≤ 1.5",
            met=build().size <= 1.5e6,
        ),
    ]
