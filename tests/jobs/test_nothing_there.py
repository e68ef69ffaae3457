"""Verbs that ask about jobs bring nothing to a host that has nothing of quine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from quine.base.sessions import new_session
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


@pytest.mark.parametrize("verb", ["ps", "top", "wait", "logs", "attach", "kill"])
def test_it_is_left_so_and_is_an_answer(lab: Lab, fresh: Host, verb: str) -> None:
    before, id = files(fresh), new_session()
    words = {"ps": ["ps", "--on", "fresh", "--json"], "top": ["top", "--on", "fresh", "--json"]}
    done = lab.run(words.get(verb, [verb, "--on", "fresh", id]))
    if verb in words:
        assert (done.returncode, done.stderr) == (0, b""), done
        assert not any(json.loads(line).get("host") == "fresh" for line in done.stdout.splitlines())
    else:
        assert done.returncode == 2 and b"no such" in done.stderr, done
    assert files(fresh) == before == set()


@pytest.mark.parametrize(
    "trace", [".cache/quine", ".local/state/quine/jobs", ".quine"], ids=["a build", "a record", "a tape"]
)
def test_a_host_with_a_trace_of_quine_gets_this_build(lab: Lab, fresh: Host, trace: str) -> None:
    """There may be jobs of another build: they are told of."""
    (fresh.home / trace).mkdir(parents=True)
    done = lab.run(["ps", "--on", "fresh", "--json"])
    assert (done.returncode, done.stderr) == (0, b"")
    assert list((fresh.home / ".cache" / "quine").glob("*/lib"))


def test_the_next_job_brings_it(lab: Lab, fresh: Host) -> None:
    assert lab.run(["ps", "--on", "fresh"]).returncode == 0
    assert files(fresh) == set()
    assert lab.run(["run", "--on", "fresh", "--", "echo", "x"], check=True).stdout == b"x\n"
    assert lab.run(["ps", "--on", "fresh"]).returncode == 0
