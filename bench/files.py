"""The files tier: a gigabyte beside scp and rsync, a long listing, one operation and many files on a long line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Row, alternate
from tests.lab import Lab

GB = 1_000_000_000
MANY = 10_000
SMALL_FILES, SMALL_SIZE = 2_000, 1024
ROOT = Path(__file__).parents[1]
CIPHER = "aes128-gcm@openssh.com"

# Run over there, as a part of a job: median milliseconds of one operation each.
OPERATIONS = """
import os, statistics, sys, time
from quine.files.select import tier_here
tier = tier_here(os.environ)

def put(number):
    with tier.create(f"ops/{number}") as writer:
        writer.write(b"x" * 100)
        writer.commit()

def get(number):
    with tier.open("ops/0") as reader:
        while reader.read(): pass

for operation in (put, get, lambda number: tier.stat("ops/0"), lambda number: list(tier.list("ops"))):
    times = []
    for number in range(12):
        begun = time.perf_counter()
        operation(number)
        times.append(time.perf_counter() - begun)
    print(1000 * statistics.median(times[2:]))
"""


@contextmanager
def memory() -> Iterator[Path]:
    """A directory in memory if there is one: the way there is measured, not the disk."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="quine-bench-", dir=place))
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def bulk(lab: Lab) -> list[Row]:
    """From h1 to here and back: `quine fs` in a job there; scp and rsync from here, over the same line."""
    rows = []
    with memory() as here:
        there, mine, theirs = here / "there", here / "mine", here / "theirs"
        env = {**lab.env, "QUINE_FS": f"origin:{here}/tier"}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": env, "check": True}
        with there.open("wb") as file:
            for _ in range(GB // 1_000_000):
                file.write(os.urandom(1_000_000))
        ssh = lab.ssh("h1", "-c", CIPHER)
        host, shell = ssh[-1], " ".join(ssh[:-1])

        def quine(*words: str) -> Callable[[], object]:
            command = [lab.quine, "run", "--on", "h1", "--", "quine", "fs", *words]
            return lambda: subprocess.run(command, **quiet)  # type: ignore[call-overload]

        def scp(*words: str, tuned: bool) -> Callable[[], object]:
            # As installed it takes chacha20 and SFTP; tuned it has our cipher, and bytes on a channel
            how = ["-O", "-S", str(here / "tuned")] if tuned else ["-S", str(here / "plain")]
            return lambda: subprocess.run(["scp", "-q", *how, *words], **quiet)  # type: ignore[call-overload]

        def rsync(*words: str) -> Callable[[], object]:
            def copy() -> None:
                for name in ("mine", "theirs"):
                    (here / name).unlink(missing_ok=True)
                subprocess.run(["rsync", "-a", "-W", "-e", shell, *words], **quiet)  # type: ignore[call-overload]

            return copy

        # scp adds options of its own, and ours must come before them
        for name, line in (("tuned", shell), ("plain", " ".join(lab.ssh("h1")[:-1]))):
            wrapper = here / name
            wrapper.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
            wrapper.chmod(0o755)
        for name, ours, peers in (
            ("put", quine("put", str(there), "big"), (f"{host}:{there}", str(theirs))),
            ("get", quine("get", "big", str(mine)), (str(there), f"{host}:{theirs}")),
        ):
            others = [scp(*peers, tuned=False), scp(*peers, tuned=True)]
            times = alternate(5, ours, *others, *([rsync(*peers)] if shutil.which("rsync") else []))
            for peer, seconds in zip(
                ("scp", "scp -O, aes128-gcm", "rsync, aes128-gcm"), times[1:], strict=False
            ):
                rows.append(_rate(f"`fs {name}` of 1 GB from a job", times[0], peer, seconds))
    return rows


def _rate(figure: str, ours: float, peer: str, theirs: float) -> Row:
    mine, other = GB / 1e6 / ours, GB / 1e6 / theirs
    return Row(figure, mine, "MB/s", peer, other, "≥ 0.7 ×", mine >= 0.7 * other)


def listing(lab: Lab) -> list[Row]:
    """`ls` of ten thousand entries, beside ls over ssh; then the cost of one operation on a line of 50 ms."""
    with memory() as here:
        (here / "tier" / "many").mkdir(parents=True)
        for number in range(MANY):
            (here / "tier" / "many" / f"file-{number:05}").write_bytes(b"x")
        env = {**lab.env, "QUINE_FS": f"origin:{here}/tier"}
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": env, "check": True}
        slow = lab.slow("h1", 0.025)
        try:
            run = [lab.quine, "run", "--on", slow, "--"]
            words = [*run, "quine", "fs", "ls", "many"]
            subprocess.run(words, **quiet)  # type: ignore[call-overload]
            nothing, ours = alternate(
                5,
                lambda: subprocess.run([*run, "true"], **quiet),  # type: ignore[call-overload]
                lambda: subprocess.run(words, **quiet),  # type: ignore[call-overload]
            )
            done = subprocess.run(
                [*run, "env", f"PYTHONPATH={ROOT}", sys.executable, "-c", OPERATIONS],
                stdin=subprocess.DEVNULL,
                env=env,
                check=True,
                capture_output=True,
            )
        finally:
            lab["h1"].proxy.delay(0)
            lab.forget_aliases()
    rows = [Row("`fs ls` of 10,000 over 50 ms, the job with it", 1000 * ours, "ms", "`true`", 1000 * nothing)]
    for name, text in zip(("put", "get", "stat", "ls"), done.stdout.split(), strict=True):
        value = float(text)
        rows.append(
            Row(f"{name} of what is small", value, "ms", "round trip", 50.0, "one round trip", value < 75)
        )
    return rows


def small(lab: Lab) -> list[Row]:
    """Many small files from h1 to here and back on a line of 50 ms: `put -r`, `get -r` and `sync`; tar over ssh."""
    with memory() as here:
        for folder in range(20):
            (here / "tree" / f"{folder:02}").mkdir(parents=True)
            for number in range(SMALL_FILES // 20):
                (here / "tree" / f"{folder:02}" / f"{number:03}").write_bytes(os.urandom(SMALL_SIZE))
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "check": True}
        fresh = iter(range(1_000_000))  # every run has directories of its own
        slow = lab.slow("h1", 0.025)
        host = lab["h1"]
        # The last words are the port's number and the host: the peer goes by the same slow line.
        words = [str(host.proxy.port) if word == str(host.port) else word for word in lab.ssh("h1")]
        ssh = " ".join([*words[:-1], words[-1].rpartition("@")[0] + "@127.0.0.1"])

        def quine(*command: str) -> Callable[[], object]:
            def call() -> None:
                place = str(next(fresh))
                env = {**lab.env, "QUINE_FS": f"origin:{here}/tier"}
                filled = [word.replace("NEW", place) for word in command]
                subprocess.run([lab.quine, "run", "--on", slow, "--", *filled], env=env, **quiet)  # type: ignore[call-overload]

            return call

        def shell(line: str) -> Callable[[], object]:
            def call() -> None:
                place = here / f"tar-{next(fresh)}"
                place.mkdir()
                subprocess.run(["sh", "-c", line.replace("NEW", str(place))], env=lab.env, **quiet)  # type: ignore[call-overload]

            return call

        tree = f"{here}/tree"
        try:
            quine("quine", "fs", "put", "-r", "-T", tree, "tree")()
            nothing, put, get, sync, there, back = alternate(
                3,
                quine("true"),
                quine("quine", "fs", "put", "-r", tree, "NEW"),
                quine("quine", "fs", "get", "-r", "tree", f"{here}/got-NEW"),
                quine("quine", "fs", "sync", tree, "tier:sync-NEW"),
                shell(f"{ssh} tar -C {tree} -c . | tar -C NEW -x"),
                shell(f"tar -C {tree} -c . | {ssh} tar -C NEW -x"),
            )
        finally:
            host.proxy.delay(0)
            lab.forget_aliases()
    rows = []
    for name, seconds, peer, other in (
        ("fs put -r", put, "tar over ssh", there),
        ("fs get -r", get, "tar over ssh", back),
        ("fs sync", sync, "tar over ssh", there),
    ):
        figure = f"`{name}` of {SMALL_FILES} files of 1 KB over 50 ms, the job with it"
        rows.append(Row(figure, 1000 * seconds, "ms", peer, 1000 * other))
        one = 1000 * (seconds - nothing) / 50
        aim = SMALL_FILES / 8 / 3
        rows.append(
            Row(
                "its round trips, had it only waited",
                one,
                "",
                "eight at a time",
                SMALL_FILES / 8,
                "≤ 1/3",
                one <= aim,
            )
        )
    return rows


def run(lab: Lab) -> list[Row]:
    return [*bulk(lab), *listing(lab), *small(lab)]
