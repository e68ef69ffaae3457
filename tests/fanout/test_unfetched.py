"""Results of jobs of the run before, on hosts that may have one directory: kept apart, or their items are lost.

Without a job.
"""

from __future__ import annotations

import errno
import os
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Failure, Misconfigured
from quine.fanout.files import files as files_module
from quine.fanout.files.files import Files
from quine.fanout.files.names import Noted
from quine.fanout.files.unfetched import WRITTEN_OVER
from quine.fanout.joblog import RUNNING, UNRETURNED, Entry, Joblog
from quine.fanout.journal import Journal
from quine.fanout.outcome import Numbers, Unreturned
from quine.fanout.tasks import Task
from quine.staging.caller_side import Staging
from transport.spawn import Spawn
from transport.status import Status

KEEP = {"done", "lost"}
ONE, OTHER = "a" * 32, "b" * 32
LEFT = Unreturned(1, 0, "", "l1", "workdir/x")
DONE = Status("exited", 0, host="l1")


def a_task(id: str, hash: str = "h") -> Task:
    task = Task(SimpleNamespace(number=1, slot=0, job=0), Entry(1, hash))  # type: ignore[arg-type]
    task.sent = task.entry.id = id
    return task


def a_stage(*returns: str, varying: bool = True) -> Staging:
    stage = Staging([], [*returns], "/")
    stage.varying = stage.patterns if varying else []
    return stage


def the_files(log: Joblog, faults: list[Failure] | None = None) -> Files:
    files = Files(None, None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
    files.at = lambda when, call: None
    files.record(log.journal, [].append if faults is None else faults.append)
    return files


def resumed(log: Joblog) -> Joblog:
    """The next run, after a kill of this one."""
    log._close()
    return Joblog(log._path, KEEP)


def begins(files: Files, task: Task, host: str, place: str | None, *results: str) -> Any:
    """The command of a job begins; its host tells the identity of its directory, None: it is of an earlier build."""
    around = files._results.add(task, [*results], ())
    around.where = lambda: host
    around.begin(False)
    if place is not None:
        around.locate(place)
    around.begin(True)
    return around


def unreturned(log: Joblog, id: str, *results: str) -> None:
    """The results of a job did not come."""
    log.journal.start(id, id, 1, names=Noted([], [*results]))
    log.journal.on_host("l1", id)
    entry = Entry(1, id)
    entry.kind, entry.id, entry.unreturned = "lost", id, LEFT
    log.end(entry, 0.0)


# -- which hosts have one directory ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "here", "stays"),
    [(ONE, ONE, True), (ONE, OTHER, False), ("", "", False), (None, OTHER, True)],
)
def test_the_staging_after_a_resume_leaves_results_of_a_job_under_another_name_of_its_host(
    tmp_path: Path, told: str | None, here: str, stays: bool
) -> None:
    """A result of the run before was put back over the one that a running job had made."""
    log = Joblog(str(tmp_path / "log"))
    log.journal.start("a", "h", 1, names=Noted([], ["data/a.out"]))
    begins(the_files(log), a_task("a"), "l1", told, "data/a.out")
    log.journal.on_host("l1", "a")
    log = resumed(resumed(log))
    log.begin()
    files, b = the_files(log := resumed(log)), a_task("b", "g")
    for adopted in (False, True):
        if adopted:
            files.hold(a_task("a"), a_stage("data/a.out"), "l1")
        around = begins(files, b, "l2", here, "data/b.out")
        assert around.of_others() == (["data/a.out"] * stays, [])
        assert ("l1" in files._results.alike("l2")) is stays, "--cleanup removes no results of the other"
    log._close()


def test_without_files_no_host_tells_its_directory_and_each_has_its_own(tmp_path: Path) -> None:
    log = Joblog(str(tmp_path / "log"))
    log.journal.start("a", "h", 1, names=Noted([], ["a.out"]))
    log.journal.on_host("l1", "a")
    files = Files(None, None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
    files.record(log.journal, print, tell=False)
    assert files._results.alike("l1") == {"l1"}
    log._close()


@pytest.mark.parametrize("line", ["place l1", "place l1 x", f"place l1 {ONE} x"])
def test_a_note_of_a_directory_that_is_damaged_is_refused(tmp_path: Path, line: str) -> None:
    log = Joblog(str(tmp_path / "log"))
    log.journal.start("id", "h", 1)
    log._close()
    with open(f"{log._path}.started", "a") as file:
        file.write(f"{line}\n")
    with pytest.raises(Misconfigured, match="damaged"):
        Joblog(log._path, KEEP)


@pytest.mark.parametrize(
    ("there", "here", "over"),
    [(ONE, ONE, True), (ONE, OTHER, False), (None, OTHER, True), ("", "", False)],
)
def test_a_job_on_another_host_of_the_directory_writes_over_results_that_did_not_come(
    tmp_path: Path, there: str | None, here: str, over: bool
) -> None:
    """Only names of hosts were compared: the result of another item was fetched."""
    log = Joblog(str(tmp_path / "log"))
    begins(the_files(log), a_task("x"), "l1", there, "r.out")
    unreturned(log, "x", "r.out")
    log = resumed(log)
    log.begin()
    files = the_files(log)
    log.journal.start("y", "g", 1, names=Noted([], ["r.out"]))
    files.started(y := a_task("y", "g"), "l2")
    assert not log.journal.overwritten, "which directory it has is told while its files are laid out"
    begins(files, y, "l2", here, "r.out")
    assert ("overwritten x\n" in Path(f"{log._path}.started").read_text()) is over, (
        "before the command begins"
    )
    assert log.before("x") == (("lost", "") if over else (UNRETURNED, "x"))
    log._close()


def test_a_job_does_not_begin_where_that_cannot_be_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, faults = Joblog(str(tmp_path / "log")), list[Failure]()
    files = the_files(log, faults)
    fault = Failure(74, "no space left on device")

    def full(*_: object) -> None:
        raise fault

    monkeypatch.setattr(log.journal, "_write", full)
    with pytest.raises(OSError, match="no space left") as refused:
        begins(files, a_task("x"), "l1", ONE, "r.out")
    assert refused.value.errno == errno.EIO and faults == [fault] and not log.journal.places
    log._close()


def test_a_job_that_runs_on_has_written_over_results_before_any_are_asked_for(tmp_path: Path) -> None:
    """The batch was killed before it noted that; and then its item came behind the one whose results did not come."""
    log = Joblog(str(tmp_path / "log"))
    unreturned(log, "x", "r.out")
    log.journal.start("y", "g", 1, names=Noted([], ["r.out"]))
    log.journal.on_host("l1", "y")
    log = resumed(log)
    log.begin()
    the_files(log)
    assert log.before("x") == ("lost", "") and log.before("g") == (RUNNING, "y")
    log._close()


# -- results that are on their way -----------------------------------------------------------------


class Arriving:
    """The results of jobs; they come when `end` is called."""

    made: list[Arriving]

    def __init__(
        self, batch: Any, stage: Staging, spawn: Spawn, status: Status, held: Any, *more: Any
    ) -> None:
        self.stage, self.status, self.held, self.over = stage, status, held, more[-1]

    def begin(self) -> None:
        self.made.append(self)

    def end(self) -> None:
        assert self.stage.on_put
        failure = self.stage.on_put(iter(()))
        taking: Any = SimpleNamespace(
            stopped="",
            failure=failure, fault=failure, came=[], missing=[], beaten=False, signal="", place="/there",
            is_too_much=False,
        )  # fmt: skip
        self.stage.brought(taking, self.status)
        if self.status.state == "lost":
            self.held.lost("/there")
        self.over()


@pytest.fixture(autouse=True)
def arriving(monkeypatch: pytest.MonkeyPatch) -> list[Arriving]:
    Arriving.made = []
    monkeypatch.setattr(files_module, "Bringing", Arriving)
    return Arriving.made


def fetched(files: Files, id: str, stage: Staging) -> tuple[Task, Status, list[str]]:
    """The results of an item are asked for, whose job has ended in the run before."""
    task, status, ends = a_task("", id), Status("exited", 0, host="l1"), list[str]()
    task.entry.id = task.entry.fetched = id
    files.hold(task, stage, "l1")
    files._work = SimpleNamespace(contents=SimpleNamespace(replace=lambda *_: None))  # type: ignore[assignment]
    files.ended(task, Spawn(["-"]), status, partial(ends.append, "over"))
    return task, status, ends


@pytest.mark.parametrize("read", [True, False])
def test_results_of_a_job_that_was_not_heard_of_are_not_asked_for_once_they_are_written_over(
    tmp_path: Path, read: bool
) -> None:
    """Its host did not answer, and then had the job of an item with the same result. The run behind asks for both."""
    log = Joblog(str(tmp_path / "log"))
    log.journal.start("x", "h", 1, names=Noted([], ["r.out"]))
    log.journal.on_host("l1", "x")
    log = resumed(log)
    log.begin()
    files = the_files(log)
    if read:
        files.missed(a_task("x"))
        files.give(a_task("x"))
    else:
        files.gone("x", never=False)
    log.journal.start("y", "g", 1, names=Noted([], ["r.out"]))
    files.started(a_task("y", "g"), "l2")
    assert not log.journal.overwritten
    files.started(a_task("y", "g"), "l1")
    log = resumed(log)
    assert [*log.journal.overwritten] == ["x"]
    log._close()


@pytest.mark.parametrize("first", ["x", "y"])
def test_an_item_waits_for_results_that_it_would_write_over(
    tmp_path: Path, first: str, arriving: list[Arriving]
) -> None:
    """It put its own in the place of those that were being fetched."""
    log = Joblog(str(tmp_path / "log"))
    unreturned(log, "x", "r.out")
    log = resumed(log)
    log.begin()
    files, did = the_files(log), list[str]()
    stages = {name: a_stage(name) for name in ("r.out", "other", "r.*")}

    def begin() -> None:
        for name, stage in (*stages.items(), ("same for all", a_stage("r.out", varying=False))):
            files.begin(a_task(name), stage, partial(did.append, name), did.append)

    if first == "y":
        begin()
    _, status, ends = fetched(files, "x", a_stage("r.out"))
    if first == "x":
        begin()
    assert did == ["other", "r.*", "same for all"] and not ends
    arriving[0].end()
    assert (ends, status.state, did[3:]) == (["over"], "exited", ["r.out"])
    log._close()


def test_results_that_were_written_over_on_their_way_are_not_put_in_place(
    tmp_path: Path, arriving: list[Arriving]
) -> None:
    log = Joblog(str(tmp_path / "log"))
    unreturned(log, "x", "r.out")
    log = resumed(log)
    log.begin()
    files = the_files(log)
    task, status, ends = fetched(files, "x", a_stage("r.out"))
    log.journal.start("y", "g", 1, names=Noted([], ["r.out"]))
    files.started(a_task("y"), "l1")
    arriving[0].end()
    assert (ends, status.state, status.code, status.hint) == (["over"], "lost", 74, "")
    assert WRITTEN_OVER in status.detail and task.unreturned is None, "they are not asked for again"
    log._close()


@pytest.mark.parametrize("end", ["it is found", "it is found elsewhere", "it never began", "no host has it"])
def test_results_are_not_asked_for_as_long_as_a_job_may_have_written_over_them(
    tmp_path: Path, end: str, arriving: list[Arriving]
) -> None:
    log = Joblog(str(tmp_path / "log"))
    log.journal.locate("l1", ONE)
    log.journal.locate("l2", OTHER)
    unreturned(log, "x", "r.out")
    log.journal.start("y", "g", 1, names=Noted([], ["r.out"]))
    log = resumed(log)
    log.begin()
    files = the_files(log)
    _, status, ends = fetched(files, "x", a_stage("r.out"))
    assert not arriving and not ends, "its host is not known"
    if end.startswith("it is found"):
        files.placed("y", "l2" if end.endswith("elsewhere") else "l1")
    else:
        files.gone("y", end == "it never began")
    if end in ("it is found", "no host has it"):
        assert (ends, status.state, arriving) == (["over"], "lost", [])
    else:
        arriving[0].end()
        assert (ends, status.state) == (["over"], "exited")
    log._close()


# -- notes over the runs ---------------------------------------------------------------------------


def test_results_that_are_written_over_are_not_asked_for_though_their_item_has_no_line(
    tmp_path: Path, arriving: list[Arriving]
) -> None:
    """With -k its line waited for an item before it, and the batch was killed."""
    log = Joblog(str(tmp_path / "log"))
    files, x = the_files(log), a_task("x")
    log.journal.start("x", "h", 1, names=Noted([], ["r.out"]))
    log.journal.on_host("l1", "x")
    x.entry.unreturned = LEFT
    files.final(x)
    log.journal.start("y", "g", 1, names=Noted([], ["r.out"]))
    files.started(a_task("y"), "l1")
    log = resumed(log)
    log.begin()
    log = resumed(log)
    files, x, status = the_files(log), a_task("x"), Status("exited", 0, host="l1")
    assert log.before("h") == (RUNNING, "x")
    files.hold(x, a_stage("r.out"), "l1")
    ends: list[str] = []
    files.ended(x, Spawn(["-"]), status, partial(ends.append, "over"))
    assert (ends, status.state, status.code, x.unreturned, arriving) == (["over"], "lost", 74, None, [])
    assert WRITTEN_OVER in status.detail
    log._close()


IDS = st.sampled_from("abcd")
STEPS = st.one_of(
    st.tuples(st.just("start"), IDS, st.booleans()),
    st.tuples(st.just("on_host"), IDS, st.sampled_from(["l1", "local"])),
    st.tuples(st.sampled_from(["halt", "begin_agent", "overwrite", "withdrawn"]), IDS),
    st.tuples(st.just("bring"), IDS, st.sampled_from([0, 3])),
    st.tuples(st.just("locate"), st.sampled_from(["l1", ""]), st.sampled_from([ONE, OTHER, ""])),
    st.tuples(st.just("end"), IDS, st.booleans()),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(STEPS, max_size=20))
def test_each_note_of_a_job_is_there_in_the_next_run_and_the_one_behind(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        check_notes(tmp_path_factory.mktemp("notes"), steps)


def check_notes(path: Path, steps: list[tuple[Any, ...]]) -> None:
    """Read a journal that these steps have made, again and again."""
    journal = Journal(str(path / "log"))
    journal.begin()
    started: list[str] = []
    for number, (word, id, *rest) in enumerate(steps):
        if word == "start":
            note = Noted([(b"/a", b"in")], ["r"]) if rest[0] else None
            started.append(f"{id}{number}")
            journal.start(
                started[-1], id, 1, renews="failed" * rest[0], names=note, numbers=Numbers(number, 1)
            )
        elif word == "locate":
            journal.locate(id, rest[0])
        elif found := [each for each in started if each.startswith(id) and each in journal.sent]:
            if word == "end":
                if rest[0]:
                    journal.no_returns(found[-1], LEFT)
                journal.ended(found[-1], returned=not rest[0])
            elif word == "on_host":
                journal.on_host(rest[0], found[-1])
            else:
                getattr(journal, word)(found[-1], *rest)

    def notes(journal: Journal) -> dict[str, object]:
        sent = {id: each._replace(when=0.0) for id, each in journal.sent.items()}
        of_jobs = {
            name: dict(getattr(journal, name)) for name in ("unreturned", "brought", "places", "hosts")
        }
        words = {
            name: [id for id in getattr(journal, name) if id in sent]
            for name in ("halted", "begun", "overwritten")
        }
        names = {id: note for id, note in journal.names.items() if id in sent or id in journal.unreturned}
        return {"sent": sent, "names": names, **of_jobs, **words}

    before = notes(journal)
    for _ in range(3):
        journal.leave()
        journal = Journal(journal._log)
        journal.read()
        # `ended` is told by the log, which is read by its own reader.
        for id in [id for id in journal.sent if id not in before["sent"]]:  # type: ignore[operator]
            journal.ended(id, returned=id not in journal.unreturned)
        assert notes(journal) == before
        journal.begin()
    journal.leave()


def test_notes_of_threads_wait_for_a_journal_that_is_written_anew(tmp_path: Path) -> None:
    """They were written to the old one, and lost."""
    journal = Journal(str(tmp_path / "log"))
    journal.begin()
    text, free = journal._text, list[bool]()

    def asked() -> str:
        thread = threading.Thread(target=lambda: free.append(journal._lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        return text()

    journal._text = asked  # type: ignore[method-assign]
    journal.begin()
    assert free == [False]
    journal.begin_agent("id")
    journal.leave()
