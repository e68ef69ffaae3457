"""Streaming requests of jobs on other machines, over real sshd: whole, and over cuts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.system import breaks
from tests.system.breaks import CUTS, LONG, MiB
from tests.transport.rpc import streaming

pytestmark = pytest.mark.timeout(300 + 15 * CUTS)


def asked(lab: Lab, *words: object) -> str:
    """Return the output of a job that makes this request; proxy and job must end well and print nothing else."""
    argv, more = streaming.command(lab, *map(str, words))
    done = subprocess.run(argv, capture_output=True, timeout=120 + 20 * CUTS, check=False, **more)
    assert (done.returncode, done.stderr) == (0, b""), done
    return done.stdout.decode().rstrip("\n")


def test_streams_of_a_job_elsewhere(lab: Lab) -> None:
    """One job asks for all kinds: another job would take the same way."""
    size = 3_000_001
    # whichever comes first: the answer, or the end of a body that nobody reads; the reason is told by both
    refused = ("RequestError / enough of that", "BrokenPipeError / enough of that")
    cases: dict[str, Callable[[str], bool]] = {
        f"put {size}": "same".__eq__,
        f"get {size}": "same".__eq__,
        f"both {size}": "same".__eq__,
        f"files {size}": f"{size} {size} same".__eq__,
        f"refused {size}": lambda said: said.endswith(refused),
        "many 200 70000": "same".__eq__,  # at one time, of each kind
        # a handler that does not read holds a window, and no more
        f"held {100 * MiB}": lambda said: int(said) <= 2 * (1 << 16),
        "forked": "0 after".__eq__,  # a child asks on its own
        "mixed 100": "cba same".__eq__,  # so many that wait hold up nobody
    }
    said = asked(lab, "h1", *" -- ".join(cases).split()).splitlines()
    assert len(said) == len(cases), said
    for (case, holds), line in zip(cases.items(), said, strict=True):
        assert holds(line), (case, line)


@pytest.mark.long
@pytest.mark.parametrize("threads", [1, 16])
def test_short_ones_use_few_connections(lab: Lab, threads: int) -> None:
    count = 10_000 if LONG else 500
    assert int(asked(lab, "h1", "short", count, threads)) <= threads + 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "end"), [("closed", "abandoned"), ("killed", "abandoned"), ("ended", "whole")]
)
def test_only_the_end_is_an_end(lab: Lab, tmp_path: Path, how: str, end: str) -> None:
    """A handler knows of an asker that gives up or is killed before the end; after the end the body counts."""
    argv, more = streaming.command(lab, "h1", "die", 60_000, how)
    noted = tmp_path / "noted"
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False, **{**more, "cwd": tmp_path})
    said = noted.read_text() if noted.exists() else ""
    if how == "closed":  # it waits until the handler has said so
        assert (done.returncode, done.stdout.decode(), done.stderr) == (0, f"{said}\n", b"") and said
    if said:  # a proxy that leaves with its job waits for no handler, which may be about to say it
        size = int(said.split()[1])
        assert said == f"{end} {size}\n" and (end == "abandoned" or size == 60_000)


def test_a_proxy_leaves_with_its_job_whoever_waits_in_it(lab: Lab) -> None:
    argv, more = streaming.command(lab, "h1", "leave")
    done = subprocess.run(argv, capture_output=True, timeout=120, check=False, **more)
    assert (done.returncode, done.stdout, done.stderr) == (7, b"", b"")


@pytest.mark.long
@pytest.mark.parametrize("verb", ["put", "get", "both"])
def test_over_cuts(lab: Lab, through: Callable[..., str], verb: str) -> None:
    host, proxy = through("h1", lease=120), lab["h1"].proxy
    size, cuts = (1024 * MiB, CUTS) if LONG else (16 * MiB, 6)
    assert asked(lab, host, "put", 1) == "same"  # the link is there
    done, seed = proxy.cuts(), os.getpid()
    proxy.cut_after(*breaks.plan(seed, cuts, size))
    assert asked(lab, host, verb, size) == "same", seed
    assert proxy.cuts() - done == cuts, seed
