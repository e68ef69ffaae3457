"""Children that their parent does not wait for infer also after its end; docs/reference/jobs.md promises that."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.budget.purse import Cap
from tests.broker.admitting import Registers
from tests.broker.serving import BYE, FIRST, Served, said
from tests.lab import Lab
from tests.support.agents import OK, call, sh
from tests.support.detached import go as go
from tests.support.waiting import until
from tests.vendors.server import Said


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


def fork(**more: object) -> dict[str, object]:
    return call("fork", children=[{"intent": "inner-errand", **more}], context="none", wait=False)


def ended(data: Path) -> tuple[object, str, str]:
    """Wait for the end of the child; return its exit code and the content of its streams."""
    (directory,) = (data / "jobs").iterdir()
    until((directory / "status").exists, "the child has ended")
    code = json.loads((directory / "status").read_text())["code"]
    return code, (directory / "stdout").read_text(), (directory / "stderr").read_text()


@pytest.mark.parametrize("narrow", [{}, {"tokens": 90_000}], ids=["as its parent", "narrower"])
def test_a_child_in_its_second_inference(served: Served, go: Path, narrow: dict[str, object]) -> None:
    there = served.directory / "there"
    served.plan[FIRST] = [
        Said(calls=(fork(**narrow), sh(f"while ! [ -e {there} ]; do sleep 0.02; done"))),
        BYE,
    ]
    served.plan["inner-errand"] = [said(f"touch {there}; read x <{go}"), said("echo inner >&4"), BYE]
    done = served.run(mission=FIRST)
    assert done.returncode == 0, done.stderr
    go.write_text("\n")
    assert ended(served.data) == (0, "inner\n", "")


def test_a_child_whose_parent_ends_at_once(served: Served) -> None:
    served.plan[FIRST] = [Said(calls=(fork(), OK))]
    done = served.run(mission=FIRST)
    assert done.returncode == 0, done.stderr
    assert ended(served.data) == (0, "inner\n", "")


def test_a_child_on_a_host(served: Served, lab: Lab, go: Path) -> None:
    """The local process that stands for it asks the broker."""
    there = served.directory / "there"
    served.plan[FIRST] = [
        Said(calls=(fork(host="h1"), sh(f"while ! [ -e {there} ]; do sleep 0.02; done"))),
        BYE,
    ]
    served.plan["inner-errand"] = [said(f"touch {there}; read x <{go}"), said("echo inner >&4"), BYE]
    lab.run(["run", "--on", "h1", "true"], check=True)
    names = ("QUINE_API_TYPE", "QUINE_API_BASE", "QUINE_API_KEY", "QUINE_MODEL_ID", "QUINE_DATA_DIR")
    env = {name: served.env[name] for name in (*names, served.mark.partition("=")[0])}
    done = lab.run([FIRST], env=env)
    assert done.returncode == 0, done.stderr
    go.write_text("\n")
    assert ended(served.data) == (0, "inner\n", "")


def test_a_child_that_has_greeted_before_its_parent_vouches_keeps_its_cap() -> None:
    """Also for the next worker, and after the end of its parent."""
    with Registers() as registers:
        register = registers.next()
        agent, child = map(registers.pinned, (registers.agent.pid, registers.command))
        inode, _ = register.book(os.dup(registers.book.fd))
        register.admit(agent, inode, Cap(90), True)
        _, purses = register.admit(child, inode, Cap(50), False, [os.dup(registers.purse)])
        assert register.detach(agent, child.pid)
        for each in (register, registers.next()):
            each._gone(each.members[agent.pid])
            member = each.members[child.pid]
            assert (member.caps, member.purses) == ({inode: Cap(50)}, {inode: purses})
