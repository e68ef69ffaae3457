"""Records that outlive the process that wrote them, wherever that was killed and whatever limits were set for it."""

from __future__ import annotations

import errno
import os
import resource
import signal
from typing import Any

import pytest

from quine.budget import kept_records
from quine.budget.kept_records import KeptRecords

SIZE = 256


class Killed(Exception):
    pass


class Memory(bytearray):
    """Memory of a process that is killed in the middle of a write."""

    writes = -1  # until then; -1: never

    def __setitem__(self, at: Any, data: Any) -> None:
        if self.writes == 0:
            if isinstance(at, slice):
                half = len(data) // 2
                super().__setitem__(slice(at.start, at.start + half), data[:half])
            raise Killed
        self.writes -= 1
        super().__setitem__(at, data)


def records(memory: bytearray) -> KeptRecords:
    return KeptRecords(memory, SIZE)  # type: ignore[arg-type]


def test_a_kill_at_any_write_leaves_the_old_records_or_the_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_records, "LEAST", 64)  # so that most changes leave a half
    memory = Memory(64 + 2 * SIZE)
    wanted: dict[tuple[str, int], str] = {}
    for number in range(40):
        key, value = ("some", number % 3), "x" * (number % 7)
        for writes in range(9):
            trial = Memory(memory)
            trial.writes = writes
            try:
                before = records(trial)
                before.read()
                before.put(key, value)
                break
            except Killed:
                trial.writes = -1
                left = records(trial)
                assert left.read() == wanted
                left.put(("another", 1), 1)  # behind the line that was cut
                assert records(trial).read() == {**wanted, ("another", 1): 1}
        memory = trial
        memory.writes = -1
        wanted[key] = value
        assert records(memory).read() == wanted


def test_a_record_without_room_is_refused_and_changes_nothing() -> None:
    made = records(bytearray(64 + 2 * SIZE))
    for _ in range(20):
        made.put(("a",), 1)
    with pytest.raises(OSError, match="no room") as failed:
        made.put(("b",), "x" * SIZE)
    assert failed.value.errno == errno.ENOSPC
    with pytest.raises(ValueError):
        made.put(("c",), float("nan"))
    made.put(("d",), 2)
    made.forget(("a",))
    assert made.read() == {("a",): 1, ("d",): 2}


def test_a_tree_has_no_more_than_its_share() -> None:
    """Also in the next process, and less what it has forgotten."""
    made = records(bytearray(64 + 2 * SIZE))
    for number in range(4):
        made.put(("a", number, "tree"), "x", 0.5)
    for each in (made, records(made._memory)):  # type: ignore[arg-type]
        each.read()
        with pytest.raises(OSError, match="of this tree") as failed:
            each.put(("a", 4, "tree"), "x" * 60, 0.5)
        assert failed.value.errno == errno.ENOSPC
        each.put(("a", 3, "tree"), "y", 0.5)  # in place of one
        each.put(("a", 4, "other"), "x" * 60, 0.5)
        each.forget(("a", 4, "other"))
    for number in range(4):
        each.forget(("a", number, "tree"))
    each.put(("a", 4, "tree"), "x" * 60, 0.5)
    assert not each._sizes.keys() - {"tree"}


def test_a_limit_of_the_size_of_files_cuts_no_record() -> None:
    """As one that a command sets for the worker of a broker before it kills it."""
    made = KeptRecords()
    if not (pid := os.fork()):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        for number in range(20_000):
            made.put(("some", number % 100), [number, "x" * 100])
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    assert [value[0] for value in made.read().values()] == list(range(19_900, 20_000))
    made.close()


def test_however_many_trees_take_their_share_the_next_one_finds_room() -> None:
    """A command of each of four trees filled the room: no agent of any other tree began."""
    records, value = KeptRecords(size=1 << 16), "x" * 90
    for tree in range(8):
        taken = 0
        with pytest.raises(OSError, match="no room for more agents of this tree"):
            for number in range(1000):
                records.put(("member", number, tree), value, 0.25)
                taken += 1
        assert taken
    for number in range(taken):
        records.forget(("member", number, 7))
    records.put(("member", 0, 8), value, 0.25)
    assert len(records.read()) > taken  # also for the next worker
    records.close()
