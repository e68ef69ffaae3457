"""Verbs that ask about jobs bring nothing to a host that has nothing of quine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy import probe
from deploy.build import Binary
from quine.base.sessions import new_session
from tests.deploy.test_probe import binary as binary
from tests.lab import Lab
from tests.lab.host import Host


@pytest.fixture
def fresh(odd_host: Callable[..., Host]) -> Host:
    return odd_host("fresh")


def files(host: Host) -> set[Path]:
    """Of quine: a login may write others."""
    return {
        path
        for top in (host.home, host.tmp)
        for path in top.rglob("*")
        if "quine" in str(path.relative_to(top))
    }


def test_it_is_left_so_until_the_next_job_brings_the_build(lab: Lab, fresh: Host) -> None:
    """That it has nothing is an answer."""
    id = new_session()
    assert files(fresh) == set()
    for verb in ("ps", "top"):
        done = lab.run([verb, "--on", "fresh", "--json"])
        assert (done.returncode, done.stderr) == (0, b""), done
        assert not any(json.loads(line).get("host") == "fresh" for line in done.stdout.splitlines()), verb
    for verb in ("wait", "logs", "attach", "kill"):
        done = lab.run([verb, "--on", "fresh", id])
        assert done.returncode == 2 and b"no such" in done.stderr, done
    assert files(fresh) == set()
    assert lab.run(["run", "--on", "fresh", "--", "echo", "x"], check=True).stdout == b"x\n"
    assert lab.run(["ps", "--on", "fresh"]).returncode == 0


def test_a_host_with_a_trace_of_quine_gets_this_build(lab: Lab, fresh: Host) -> None:
    """There may be jobs of another build: they are told of."""
    (fresh.home / ".local/state/quine/jobs").mkdir(parents=True)
    done = lab.run(["ps", "--on", "fresh", "--json"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert list((fresh.home / ".cache" / "quine").glob("*/lib"))


def test_each_trace_of_quine_is_one(binary: Binary, tmp_path: Path) -> None:
    command = probe.command(binary, probe.Place(), "marker", "ask")
    for trace in (".cache/quine", ".local/state/quine/jobs", ".quine", ""):
        home = tmp_path / f"home{trace.replace('/', '-')}"
        (home / trace).mkdir(parents=True)
        env = {"HOME": str(home), "PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path)}
        done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, stdin=subprocess.DEVNULL)
        assert (b"marker need " in done.stdout, b"marker nothing" in done.stdout) == (bool(trace), not trace)
