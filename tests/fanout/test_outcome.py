"""Kinds of ends, the exit status, --halt, hosts set aside: the rules, without a process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.fanout.messages import SHOWN, Messages
from quine.fanout.outcome import ASIDE, KINDS, NEVER, Halt, Hosts, Tally, kind_of
from quine.fanout.output.sinks import Sink
from transport.status import Status


@pytest.mark.parametrize(
    ("status", "timed_out", "kind"),
    [
        (Status("exited", 0), False, "done"),
        (Status("exited", 3), False, "failed"),
        (Status("signaled", 137, "KILL"), False, "killed"),
        (Status("signaled", 143, "TERM"), True, "timeout"),
        (Status("exited", 0), True, "timeout"),  # it handled TERM: that it was done in time is not known
        (Status("lost", 74), True, "lost"),
        (Status("unreachable", 69), False, "never started"),
        (Status("denied", 77), False, "denied"),
    ],
)
def test_kinds(status: Status, timed_out: bool, kind: str) -> None:
    assert kind_of(status, timed_out) == kind


@pytest.mark.parametrize(
    ("kinds", "status", "count"),
    [
        ([], 0, 0),
        (["done"] * 3, 0, 0),
        (["done", "failed"], 123, 1),
        (["killed", "timeout"], 123, 2),
        (["done", "never started"], 123, 1),
        (["never started"] * 2, 69, 2),
        (["failed", "denied"], 77, 2),
        (["failed", "denied", "lost"], 74, 3),
        (["failed"] * 300, 123, 101),
    ],
)
def test_the_exit_status(kinds: list[str], status: int, count: int) -> None:
    tally = Tally()
    for kind in kinds:
        tally.add(kind)
    assert (tally.exit_status(), tally.exit_status(count=True)) == (status, count)


def test_a_wrong_inventory_is_a_wrong_use_if_nothing_was_started_for_that() -> None:
    tally = Tally()
    tally.add(NEVER, 2)
    assert tally.exit_status() == 2
    tally.add(NEVER, 69)
    assert tally.exit_status() == 69
    tally.add("done", 0)
    assert tally.exit_status() == 123


def halted_after(text: str, kinds: list[str]) -> int:
    """Number of the end after which the batch halts; 0 if it does not."""
    halt, tally = Halt(text), Tally()
    for at, kind in enumerate(kinds, 1):
        tally.add(kind)
        if halt.reached(tally):
            return at
    return 0


@pytest.mark.parametrize(
    ("text", "kinds", "after"),
    [
        ("", ["failed"] * 9, 0),
        ("never", ["failed"] * 9, 0),
        ("now,fail=1", ["done", "lost", "done"], 2),
        ("soon,fail=2", ["failed", "done", "never started", "failed"], 3),
        ("now,success=2", ["done", "failed", "done"], 3),
        ("soon,done=2", ["failed", "done"], 2),
        ("now,fail=50%", ["failed", "failed", "done", "done", "done", "failed"], 6),  # three count
        ("now,fail=50%", ["done"] * 4 + ["failed"] * 4, 8),
        ("now,fail=100%", ["failed"] * 3, 3),
    ],
)
def test_halt(text: str, kinds: list[str], after: int) -> None:
    assert halted_after(text, kinds) == after


@given(st.integers(1, 9), st.lists(st.sampled_from(KINDS), max_size=30))
def test_halt_counts_what_is_not_done(limit: int, kinds: list[str]) -> None:
    failures = [at for at, kind in enumerate(kinds, 1) if kind != "done"]
    assert halted_after(f"now,fail={limit}", kinds) == (failures[limit - 1] if len(failures) >= limit else 0)


@pytest.mark.parametrize(
    "text", ["now", "fail=1", "now,fail=0", "later,fail=1", "now,fail=1,", "now,fail=x", "now,fail=101%"]
)
def test_a_wrong_halt_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match=r"--halt .* or ,done=N"):
        Halt(text)


def test_a_host_is_set_aside_for_a_while_after_three_failed_starts_in_a_row() -> None:
    hosts = Hosts()
    ends = [("h1", NEVER), ("h1", NEVER), ("h1", "failed"), ("h2", NEVER), ("h1", NEVER), ("h1", NEVER)]
    assert not any(hosts.ended(host, kind, 0.0) for host, kind in ends)
    assert hosts.ended("h1", NEVER, 10.0) and hosts.aside(10.0) == ["h1"]
    assert not hosts.ended("h1", NEVER, 10.0)  # told once
    assert hosts.aside(10.0 + ASIDE) == []
    assert hosts.ended("h1", NEVER, 100.0), "one more failure, and it is set aside again"
    hosts.ended("h1", "done", 101.0)
    assert hosts.aside(101.0) == []
    assert not hosts.ended("", NEVER, 0.0)


def test_reasons_beyond_those_that_are_shown_are_announced_once() -> None:
    said: list[str] = []
    messages = Messages(cast(Sink, SimpleNamespace(say=said.append)), quiet=True)
    for number in range(SHOWN + 3):
        for _ in range(2):
            messages.fault(number, "h1", f"reason {number}")
    assert [line.count("error: ") for line in said] == [1] * SHOWN + [0]
    assert said[-1].startswith("quine: and more items, for other reasons, which are not shown")
