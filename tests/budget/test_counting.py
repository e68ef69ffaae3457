"""Slots are counted by the ranges of their locks: one process can lock all of them, and keeps nobody by that."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator

import pytest

from quine.budget.shared_counters import AGENT, Numbers, SharedCounters, release

CALLS = 64


@pytest.fixture
def book() -> Iterator[SharedCounters]:
    made = SharedCounters.create(Numbers(0, 0, 0, 0, 0.0, 0.0))
    yield made
    os.close(made.fd)


@pytest.mark.parametrize(
    ("ranges", "most", "count"),
    [
        ([], 0, 0),
        ([(0, AGENT.most)], 0, AGENT.most),
        ([(AGENT.most - 1, 1)], 0, 1),
        ([(0, 0)], 0, AGENT.most),  # to the end of the file
        ([(7, 1), (0, 1), (3, 2), (4, 3)], 0, 6),  # as the kernel does not sort them
        ([(2, 1), (4, 1), (6, 1)], 2, 2),
    ],
)
def test_held_slots_are_counted_in_few_calls(
    book: SharedCounters,
    monkeypatch: pytest.MonkeyPatch,
    ranges: list[tuple[int, int]],
    most: int,
    count: int,
) -> None:
    held, calls, true = [], 0, fcntl.fcntl
    for at, size in ranges:
        held.append(book.again())
        lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, AGENT.first + at, size, 0)
        fcntl.fcntl(held[-1], fcntl.F_OFD_SETLK, lock)

    def counted(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        return true(*arguments)  # type: ignore[call-overload]

    monkeypatch.setattr(fcntl, "fcntl", counted)
    assert book.count(AGENT, most) == count and calls < CALLS
    release(held)
