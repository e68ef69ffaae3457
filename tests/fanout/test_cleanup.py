"""Decisions of --cleanup: results that are not here stay, and very many are removed in pieces. Without a job."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.errors import Failure
from quine.fanout.files import cleanup as cleanup_module
from quine.fanout.files.cleanup import Cleanup
from quine.fanout.files.files import Files
from quine.fanout.files.uses import placed
from quine.fanout.joblog import Entry
from quine.fanout.journal import Journal, Sent
from quine.fanout.outcome import Unreturned
from quine.fanout.tasks import Task
from quine.staging import shared_directory, spec
from quine.staging.caller_side import Staging
from quine.staging.scan import PLACE
from transport.spawn import Spawn
from transport.status import Status

SHARED = "data"
DONE = Status("exited", 0, host="h1")


class There:
    """The jobs that remove files; each ends as soon as `end` is called."""

    def __init__(self) -> None:
        self.jobs: list[tuple[Spawn, Callable[[Status], None]]] = []
        self.ended = 0

    def start(self, spawn: Spawn, on_exit: Callable[[Status], None]) -> Any:
        self.jobs.append((spawn, on_exit))
        return SimpleNamespace(abandon=lambda: None, limit=lambda seconds: None)

    def end(self, status: Status = DONE) -> None:
        """End those that run."""
        for _ in range(len(self.jobs) - self.ended):
            self.ended += 1
            self.jobs[self.ended - 1][1](status)

    @property
    def removed(self) -> list[tuple[str, str]]:
        """Hosts and names, in their order; without the identity of the directory, which goes with the last of them."""
        found = []
        for spawn, _ in self.jobs:
            names = spawn.argv[5 : 5 + int(spawn.argv[3])]
            assert PLACE not in names[:-1]
            found += [(spawn.where, name) for name in names if name != PLACE]
        return found


def a_task(id: str, *own: str) -> Task:
    task = Task(SimpleNamespace(number=1, slot=0, own=list(own)), Entry(1, "hash"))  # type: ignore[arg-type]
    task.begin()
    task.entry.id = task.entry.fetched = id
    return task


def filed(there: There, **notes: dict[str, Any]) -> Files:
    """The files of a batch with a log."""
    work: Any = SimpleNamespace(placed=lambda item, shared: [SHARED] if shared else item.own)
    files = Files(there, work, print, cleanup=True, quiet=True)  # type: ignore[arg-type]
    files.at = lambda when, call: call()
    journal: Any = SimpleNamespace(names={}, sent={}, unreturned={}, brought={}, places={}, overwritten={})
    journal.locate = journal.places.__setitem__
    vars(journal).update(notes)
    files.record(journal, print)
    return files


def end(files: Files, task: Task, *, again: bool = False) -> list[str]:
    """Have the job of an item end whose results are here by a note of the journal. Return what was called."""
    calls: list[str] = []
    files.ended(task, Spawn(["x"]), Status("exited", 0, host="h1"), lambda: calls.append("over"), again)
    return calls


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize(("first", "second"), [("1*.out", "10.out"), ("d", "d/x")])
@pytest.mark.parametrize("sent", [True, False])
def test_results_of_items_that_are_still_to_be_read_stay(
    first: str, second: str, sent: bool, read: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are on their host from the run before, and the names of their files are not known yet."""
    there, note = There(), Unreturned(1, 0, "", "h1", "")
    before: dict[str, Any] = (
        {"sent": {"ten": Sent("hash", 1, 0.0)}} if sent else {"unreturned": {"ten": note}}
    )
    files = filed(there, brought={"one": 0}, **before)
    one, ten = a_task("one", first), a_task("ten", second)
    ten.sent = "ten" if sent else ""
    assert files.journal
    files.hold(one, Staging([], [first], "/"))
    assert end(files, one) == ["over"] and not there.jobs
    if read:
        files.hold(ten, Staging([], [second], "/"))
        files.journal.brought["ten"] = 0
        end(files, ten)
        there.end()
        assert there.removed == [("h1", second)]
    assert files.finish(lambda: None) == 1
    assert there.removed[1:] == ([("h1", SHARED), ("h1", first)] if read else [])
    said = "quine: h1: --cleanup: 2 files are left there, as results are\n"
    assert capsys.readouterr().out == ("" if read else f"{said}\n")


@pytest.mark.parametrize("host", ["h1", ""])
def test_a_job_that_no_host_tells_of_keeps_its_files(host: str) -> None:
    there = There()
    files = filed(there)
    seven = a_task("seven", "d/7.in", "d/7.out")
    seven.sent = "seven"
    assert files.journal and files._cleanup
    files.hold(seven, Staging([], ["d/7.out"], "/"))
    files.journal.sent["seven"] = Sent("hash", 1, 0.0, host)
    files.missed(seven)
    files.give(seven)
    for where in ("h1", "h2"):
        files._cleanup.remove(["d", "d/7.out", "8.out"], Spawn(["x"]), where, lambda: None)
        there.end()
    kept = {"h1"} if host else {"h1", "h2"}
    assert there.removed == [
        (where, name)
        for where in ("h1", "h2")
        for name in ("d", "d/7.out", "8.out")
        if name == "8.out" or where not in kept
    ]
    del there.jobs[:]
    files.finish(lambda: None)
    assert there.removed == [("h2", SHARED)] * (not kept - {"h1"})


@pytest.mark.parametrize(("begins", "gone"), [("h2", True), ("h1", False), ("", False)])
def test_a_try_in_place_that_is_repeated_elsewhere_leaves_no_files(
    begins: str, gone: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Until the next one has begun its results are those of its item, also for the end of another item."""
    there = There()
    files = filed(there)
    task = a_task("one", "in/a")
    stage: Any = SimpleNamespace(
        sources=[],
        alone=[],
        varying=[],
        patterns=[],
        returns=True,
        brings=lambda status: True,
        is_in_place=True,
    )
    files.hold(task, stage)
    assert end(files, task, again=True) == ["over"]
    assert files._cleanup
    files._cleanup.remove(["in"], Spawn(["x"]), "h1", lambda: None)
    if begins:
        task.begin()
        files.hold(task, stage)
        files.started(task, begins)
        files.give(task)
    else:
        task.entry.unreturned = Unreturned(1, 0, "", "h1", "")
        files.final(task)
    assert not there.jobs
    files.finish(lambda: None)
    assert (("h1", "in/a") in there.removed) == gone
    assert (("h1", "in") in there.removed) == (("h1", SHARED) in there.removed) == bool(begins)
    assert ("files are left there, as results are" in capsys.readouterr().out) == (not begins)


@pytest.mark.parametrize("cleanup", [True, False])
def test_a_note_of_results_is_on_the_disk_before_they_are_removed_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cleanup: bool
) -> None:
    """After a loss of power they were asked for, and were not there: the item had failed."""
    files, journal, synced = filed(There()), Journal(str(tmp_path / "log")), list[bytes]()
    journal.begin()
    path = tmp_path / "log.started"
    files.journal, files._cleanup = journal, files._cleanup if cleanup else None
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_bytes()))
    assert files._note_arrival(a_task("one"), SimpleNamespace(is_in_place=True), 3)  # type: ignore[arg-type]
    assert path.read_bytes().endswith(b"brought one 3\n")
    assert synced == [path.read_bytes()] * cleanup
    journal.leave()


def test_a_note_of_results_that_cannot_be_synced_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    files, journal = filed(There()), Journal(str(tmp_path / "log"))
    journal.begin()
    faults: list[Failure] = []
    files.journal, files.fail = journal, faults.append
    before = (tmp_path / "log.started").read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    assert not files._note_arrival(a_task("one"), SimpleNamespace(is_in_place=True), 3)  # type: ignore[arg-type]
    assert len(faults) == 1 and (tmp_path / "log.started").read_bytes() == before and not journal.brought
    journal.leave()


@pytest.mark.parametrize("same", [True, False])
def test_results_that_were_left_stay_under_another_name_of_their_host(
    same: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Login nodes share a home: results that had not come from one of them were removed through the other."""
    there = There()
    files = filed(there)
    assert files._cleanup and files.journal
    lost, ended = a_task("lost", "d/1.in", "d/1.out"), a_task("ended", "d", "2.out")
    files.hold(lost, Staging([], ["d/1.out"], "/"))
    files.journal.sent["lost"] = Sent("hash", 1, 0.0, "h2")
    lost.sent = "lost"
    files.missed(lost)
    files.give(lost)
    files._results.locate("h1", "a" * 32)
    files._results.locate("h2", ("a" if same else "b") * 32)
    files.hold(ended, Staging([], ["2.out"], "/"))
    files.journal.brought["ended"] = 0
    end(files, ended)
    there.end()
    assert there.removed == [("h1", name) for name in ("d", "2.out") if name != "d" or not same]
    files.finish(lambda: None)
    assert there.removed[2 - same :] == ([] if same else [("h1", SHARED)])
    assert (PLACE in there.jobs[-1][0].argv) != same
    left = "quine: h1: --cleanup: 2 files are left there, as results are\n\n"
    assert capsys.readouterr().out == (left if same else "")


def test_an_item_whose_results_were_lost_and_came_at_the_next_try_leaves_no_files() -> None:
    there = There()
    files = filed(there)
    task = a_task("one", "a.out")
    assert files._cleanup and files.journal
    files.hold(task, Staging([], ["a.out"], "/"))
    files.missed(task)
    files.give(task)
    task.begin()
    files.hold(task, Staging([], ["a.out"], "/"))
    files.journal.brought["one"] = 0
    end(files, task)
    assert there.removed == [("h1", "a.out")]


def test_very_many_results_are_compared_and_removed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between them the loop serves others; each name is compared with the patterns that begin so."""
    compared, turns, there = [0], list[Callable[[], None]](), There()
    overlap = spec.overlap

    def counted(pattern: str, other: str) -> bool:
        compared[0] += 1
        return overlap(pattern, other)

    monkeypatch.setattr(spec, "overlap", counted)
    cleanup, over = Cleanup(there, None, print), list[str]()  # type: ignore[arg-type]
    cleanup.at = lambda when, call: turns.append(call)
    cleanup.begin([*(f"{number}*.out" for number in range(1000)), "*.x", "used"])
    names = [f"r{number:x}" for number in range(20_000)] + ["used/x"] * 5000
    removal = cleanup.remove(iter(names), Spawn(["x"]), "h1", lambda: over.append("over"))
    assert removal
    most = 0
    while not over:
        most, compared[0] = max(most, compared[0]), 0
        if turns:
            turns.pop(0)()
        else:
            assert there.ended == len(there.jobs) - 1
            there.end()
    assert most <= cleanup_module.COMPARED and not turns and removal.over
    assert there.removed == [("h1", name) for name in names[:20_000]]
    lengths = [sum(map(len, spawn.argv)) for spawn, _ in there.jobs]
    assert max(lengths) < cleanup_module.BYTES + 4096
    assert sum(uses.compared for uses in (cleanup._used, cleanup._going)) == 20_000  # with *.x alone
    assert not cleanup._going._names


@pytest.mark.parametrize("files", ["src", "."])
@pytest.mark.parametrize("when", ["item", "item, in pieces", "used meanwhile", "batch"])
def test_of_a_directory_that_was_brought_nothing_else_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, files: str
) -> None:
    """With --cwd it is a directory of the user over there, which has files of its own."""
    here, over_there = tmp_path / "here", tmp_path / "there"
    for place in (here, over_there):
        (place / "src" / ".git" / "deep").mkdir(parents=True)
        (place / "src" / "a[*").mkdir()
        for name in ("x", "a[*/y*", ".git/deep/z"):
            (place / "src" / name).touch()
        (place / "src" / "to").symlink_to("x")
        (place / "src" / "a[*" / "up").symlink_to("../x")
    kept = ["src/.git/commits", "src/weights", "src/yy", "other"]
    for name in kept:
        (over_there / name).touch()
    (over_there / "src" / "empty").mkdir()
    there = There()
    work: Any = SimpleNamespace(placed=lambda item, shared: placed([files], [], str(here)))
    cleanup = Cleanup(there, work, print)  # type: ignore[arg-type]
    monkeypatch.setattr(cleanup_module, "BYTES", 8 if "pieces" in when else 1 << 16)
    monkeypatch.chdir(over_there)
    names = work.placed(None, False)
    assert names == ["src"]
    used = ["src/x"] if when == "used meanwhile" else []
    cleanup.begin(used)
    cleanup.remove([] if when == "batch" else names, Spawn(["x"]), "h1", lambda: None)

    def play() -> None:
        while there.ended < len(there.jobs):
            _, _, _, count, _, *words = there.jobs[there.ended][0].argv
            assert shared_directory.clean(words[: int(count)], words[int(count) :]) == 0
            there.end()

    play()
    cleanup.give(used)
    if when in ("batch", "used meanwhile"):
        cleanup.finish(lambda: None)
        play()
    left = sorted(str(path.relative_to(over_there)) for path in over_there.rglob("*"))
    assert left == sorted([*kept, "src", "src/.git", "src/empty"])


@pytest.mark.parametrize(
    ("shared", "own", "at_once", "at_the_end"),
    [
        ("pages", "pages/a", [], ["pages/a", "pages/b", "pages/sub/c"]),
        ("pages", "pages/sub", [], ["pages/a", "pages/b", "pages/sub/c"]),
        ("pages/a", "pages", [], ["pages/a", "pages/b", "pages/sub/c"]),
        ("pages/a", "pages/a", [], ["pages/a"]),
        ("pages:other", "pages/a:other/a", [], ["other/a", "other/b", "other/sub/c"]),
        ("pages:other", "pages/a:other/new", ["other/new"], ["other/a", "other/b", "other/sub/c"]),
        ("pages", "pages/a:x", ["x"], ["pages/a", "pages/b", "pages/sub/c"]),
    ],
)
def test_a_file_that_all_items_have_stays_until_the_batch_ends(
    tmp_path: Path, shared: str, own: str, at_once: list[str], at_the_end: list[str]
) -> None:
    """Also if an item names it for itself: the end of that item removed it under the others."""
    (tmp_path / "pages" / "sub").mkdir(parents=True)
    for name in ("a", "b", "sub/c"):
        (tmp_path / "pages" / name).touch()
    there = There()
    words = {True: shared, False: own}
    work: Any = SimpleNamespace(placed=lambda item, shared: placed([words[shared]], [], str(tmp_path)))
    cleanup = Cleanup(there, work, print)  # type: ignore[arg-type]
    names = cleanup.names(a_task("one"))
    cleanup.begin(names)
    cleanup.give(names)
    cleanup.remove(names, Spawn(["x"]), "h1", lambda: None)
    there.end()
    assert sorted(name for _, name in there.removed) == at_once
    del there.jobs[:]
    there.ended = 0
    cleanup.finish(lambda: None)
    assert sorted({name for _, name in there.removed}) == at_the_end


@pytest.mark.parametrize("how", ["its host is lost", "it is given up", "it is given up between two pieces"])
def test_a_removal_that_cannot_go_on_ends(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleanup_module, "LOOKED_AT", 3)
    said, there, turns, over = list[str](), There(), list[Callable[[], None]](), list[str]()
    cleanup = Cleanup(there, None, said.append)  # type: ignore[arg-type]
    cleanup.at = lambda when, call: turns.append(call)
    cleanup.begin(["used"])
    names = ["a", "b", "c", *["used"] * 3, "d"]
    removal = cleanup.remove(names, Spawn(["x"]), "h1", lambda: over.append("over"))
    assert removal and there.removed == [("h1", name) for name in "abc"]
    if how.endswith("pieces"):
        there.end()
        removal.abandon()
        turns.pop()()
        assert not said
    else:
        if how.endswith("up"):
            removal.abandon()
        there.end(Status("lost", 74, detail="the link is lost"))
        assert said == ["quine: h1: --cleanup: files are left there: the link is lost\n"]
    assert over == ["over"] and removal.over and len(there.jobs) == 1 and not turns


def test_files_for_the_end_are_removed_in_pieces_and_those_that_are_too_many_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cleanup_module, "LATER", 10)
    monkeypatch.setattr(cleanup_module, "BYTES", 8)
    monkeypatch.setattr(cleanup_module, "DIRECTORIES", 1)
    said, there, ends = list[str](), There(), list[str]()
    work: Any = SimpleNamespace(placed=lambda item, shared: [])
    cleanup = Cleanup(there, work, said.append)  # type: ignore[arg-type]
    names = [f"d/{number:02}" for number in range(25)]
    cleanup.begin(["d", "e/f"])
    for each in (names, names[:9]):
        assert cleanup.remove(["e/f", *each], Spawn(["x"]), "h1", lambda: None) is None
    cleanup.give(["d", "e/f"])
    assert cleanup.finish(lambda: ends.append("over")) == 1
    while not ends:
        assert len(there.jobs) == there.ended + 1
        there.end()
    assert there.removed == [("h1", name) for name in ["e/f", *names[:9]]]
    sizes = [sum(len(word) for word in spawn.argv[5:] if word != PLACE) for spawn, _ in there.jobs]
    assert max(sizes) <= 2 * 8
    assert said == [
        "quine: h1: --cleanup: 16 files are left there: no more than 10 names are remembered for the end\n",
        "quine: --cleanup: directories may be left empty: more than 1 had files\n",
    ]
