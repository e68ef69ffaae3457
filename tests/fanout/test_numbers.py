"""The values of {#} and {%} of a job in the next run, whose list may be another one. Without a job."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.errors import Misconfigured
from quine.fanout import main
from quine.fanout.input.items import Item
from quine.fanout.input.rows import Row
from quine.fanout.joblog import Joblog
from quine.fanout.options import parse
from quine.fanout.outcome import Unreturned
from quine.fanout.run import Run
from quine.fanout.starter import Starter
from quine.fanout.tasks import Task, Work
from quine.fanout.timers import Timers
from quine.fanout.under_way import UnderWay
from quine.jobs.adoption import Orphans
from tests.lab import Lab
from transport.spawn import Spawn

KEEP = {"done", "lost"}


@pytest.fixture(autouse=True)
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in "abcd":
        (tmp_path / name).write_text(name)


def a_work(*words: str) -> Work:
    options, _, _ = parse(["--on", "h1", "--joblog", "log", *words])
    return Work(options, main.template(options, ["true"]), ["true"])


def a_run(work: Work, log: Joblog) -> Any:
    """A run of which nothing is there but what starts and adopts."""
    run: Any = object.__new__(Run)
    starter: Any = object.__new__(Starter)
    starter._journal, starter._work, starter._note_hosts = log.journal, work, lambda: None
    run._log, run._starter, run._ending = log, starter, False
    run._progress = SimpleNamespace(read=0, stopped=lambda host: None)
    run._report = SimpleNamespace(name=lambda task: None)
    run._messages = SimpleNamespace(note=None)
    run._orphans = Orphans(run, None, starter, log.journal)  # type: ignore[arg-type]
    timeout: Any = SimpleNamespace(ended=lambda task: None)
    run._under_way = UnderWay(starter, run._progress, timeout, run._messages, Timers().at)
    run._under_way.held = lambda: log.journal.slots(run._orphans.elsewhere)
    return run


def sent(run: Any, name: str, number: int) -> Task:
    """A job is sent for an item."""
    task: Task = run._starter._work.task(Item(Row((name,)), number))
    run._under_way.take(task)
    task.begin()
    spawn = Spawn(["true"], id=f"id-of-{name}")
    task.entry.id = spawn.id
    run._starter._note_sent(task, spawn, names(run, task))
    return task


def names(run: Any, task: Task) -> Any:
    return run._starter._work.stage(task.item)


def found(run: Any) -> None:
    """The jobs of the run before are found on their hosts."""
    adopted = lambda id: SimpleNamespace(job=SimpleNamespace(spawn=Spawn(["-"], id=id)))  # noqa: E731
    run._orphans.unread = {id: adopted(id) for id in run._log.journal.sent}


WORDS = ["--files", "{}:{%}.in", "--returns", "out/{#}", "--returns", "{%}"]


def test_a_job_that_is_taken_over_keeps_its_number_and_its_slot() -> None:
    """Another item's file was laid out under a command that ran, and results of another item were asked for."""
    work = a_work(*WORDS)
    run = a_run(work, log := Joblog("log"))
    for number, name in enumerate("abc", 1):
        sent(run, name, number)
    run._under_way.give(next(iter(run._under_way)))  # the last one, in slot 3, has its end
    log._close()
    run = a_run(work, Joblog("log", KEEP))
    found(run)
    kept: list[Task] = []
    run._starter.adopt = lambda task, *_: kept.append(task) or True
    first = sent(run, "d", 1)
    assert (first.item.slot, [name for _, name in names(run, first).sources]) == (4, [b"4.in"])
    tasks = [work.task(Item(Row((name,)), number)) for number, name in enumerate("cba", 2)]
    assert all(map(run._leaves_out, tasks)) and kept == tasks
    assert [task.item.slot for task in tasks] == [3, 2, 1]
    assert [names(run, task).patterns for task in tasks] == [["out/3", "3"], ["out/2", "2"], ["out/1", "1"]]
    assert [task.item.number for task in tasks] == [2, 3, 4], "in messages, and in the order of outputs"
    run._under_way.give(tasks[2])
    run._under_way.take(tasks[2])  # it is tried again, as a job of this run
    assert (tasks[2].item.slot, names(run, tasks[2]).patterns) == (1, ["out/4", "1"])
    run._log._close()


@pytest.mark.parametrize("noted", [True, False])
def test_results_that_did_not_come_are_asked_for_under_the_names_that_they_have(noted: bool) -> None:
    """With another list those of another item were asked for. An earlier build did not note the numbers."""
    work = a_work(*WORDS)
    run = a_run(work, log := Joblog("log"))
    sent(run, "a", 1)
    task = sent(run, "b", 2)
    task.entry.unreturned = Unreturned(1, 0, "", "h1", "/some where", task.numbers)
    log.end(task.entry, 0.0)
    log._close()
    journal = Path("log.started")
    if not noted:
        journal.write_text(journal.read_text().replace(" 1:2:2 ", " 1 ").replace(" 1:1:1 ", " 1 "))
    fetched: list[Task] = []
    for _ in range(2):  # and where it was written anew
        run = a_run(work, Joblog("log", KEEP))
        run._starter.fetch = lambda task, *_: fetched.append(task)
        assert run._leaves_out(work.task(Item(Row(("b",)), 1)))
        assert names(run, fetched[-1]).patterns == (["out/2", "2"] if noted else ["out/1", "1"])
        run._log._close()


def test_slots_of_jobs_that_run_are_left_and_none_is_larger_than_the_option_has_it() -> None:
    under_way = UnderWay(None, None, None, None, Timers().at)  # type: ignore[arg-type]
    tasks = [a_work().task(Item(Row((name,)), 1)) for name in "abcd"]
    under_way.most, under_way.held = 2, lambda: {1, 2}
    for task in tasks[:2]:
        under_way.take(task)
    assert [task.item.slot for task in tasks[:2]] == [1, 2], "all of them are held"
    under_way.held = set
    tasks[2].item.slot = 5
    under_way.go_on(tasks[2])
    under_way._places.give(1)
    under_way.take(tasks[3])
    assert [task.item.slot for task in tasks] == [1, 2, 5, 1]
    under_way.most = 0
    under_way._places.give(5)
    for slot in (3, 4, 5, 6):
        under_way.take(tasks[0])
        assert tasks[0].item.slot == slot


@pytest.mark.parametrize("word", ["{}:{#}.txt", "{}:x/{#}"])
def test_the_number_of_an_item_is_no_part_of_its_name(word: str) -> None:
    """With another order of the list all items ran again."""
    work = a_work("--files", word)
    first, second = (work.task(Item(Row(("a",)), number)).entry.hash for number in (1, 2))
    assert first == second
    assert work.task(Item(Row(("b",)), 1)).entry.hash != first
    Path("a").write_text("other")
    assert work.task(Item(Row(("a",)), 1)).entry.hash != first


def test_the_files_of_a_directory_by_number_count_with_their_names() -> None:
    work = a_work("--files", "d{#}/*")
    for place, files in (("d1", "xy"), ("d2", "xy"), ("d3", "xz"), ("d4", "x")):
        os.mkdir(place)
        for name in files:
            Path(place, name).touch()
    hashes = [work.task(Item(Row(("a",)), number)).entry.hash for number in (1, 2, 3, 4)]
    assert hashes[0] == hashes[1] and len(set(hashes)) == 3


def test_an_item_that_an_earlier_build_has_named_by_its_number_is_done() -> None:
    work = a_work("--files", "{}:{#}.txt")
    log = Joblog("log")
    task = work.task(Item(Row(("a",)), 2))
    task.entry.hash, task.entry.kind = "6aa5ecad997f253ce2237bac588100f4", "done"
    log.end(task.entry, 0.0)
    log.close()
    work.knows = (again := Joblog("log", KEEP)).knows
    assert again.found(work.task(Item(Row(("a",)), 2)).entry) == ("done", "")
    again._close()


def refused(run: Any, name: str, number: int) -> str:
    task = run._starter._work.task(Item(Row((name,)), number))
    try:
        run._starter._work.check(task)
    except Misconfigured as error:
        return error.detail
    return ""


@pytest.mark.parametrize("unreturned", [False, True])
def test_no_item_has_the_number_of_another_one_of_a_run_before_for_its_result(unreturned: bool) -> None:
    """There were two that were done, and one result."""
    work = a_work("--returns", "out.{#}")
    run = a_run(work, log := Joblog("log"))
    for number, name in enumerate("ab", 1):
        sent(run, name, number).item.job = 0

    def end(task: Task, returned: bool = True) -> None:
        task.entry.kind, task.entry.id = "done" if returned else "lost", f"id-of-{task.item.args[0]}"
        task.entry.unreturned = None if returned else Unreturned(1, 0, "", "h1", "", task.numbers)
        log.end(task.entry, 0.0)

    a, b = run._under_way._tasks
    end(a)
    if unreturned:
        end(b, returned=False)
    log._close()
    run = a_run(work, log := Joblog("log", KEEP))
    work.taken = log.taken
    found(run)
    kept: list[Task] = []
    run._starter.adopt = lambda task, *_: kept.append(task) or True
    run._starter.fetch = lambda task, *_: kept.append(task)
    assert run._leaves_out(work.task(Item(Row(("b",)), 1))), "it has the number 2"
    why = "--returns out.2: another item of a run before has this result, as its number is 2"
    assert [refused(run, "c", number) == why for number in (2, 3)] == [True, False]
    assert refused(run, "d", 1).startswith("--returns out.1") and not refused(run, "a", 1)
    assert not refused(run, "b", 2), "it is tried again"
    (b,) = kept
    end(b)
    log.close()
    assert Path("log").read_text().splitlines()[-1].split("\t")[11] == "1#2" or unreturned
    work.taken = (log := Joblog("log", KEEP)).taken
    assert [bool(refused(run, "c", number)) for number in (1, 2, 3)] == [True, True, False]
    log._close()
    plain = a_work("--returns", "{}.out")
    plain.taken = lambda hash, number: True
    run._starter._work = plain
    assert not refused(run, "c", 1), "its result has no number"


def test_an_item_that_is_refused_for_its_number_leaves_the_result(lab: Lab, tmp_path: Path) -> None:
    words = [
        "xargs",
        "--joblog",
        "log",
        "--returns",
        "out.{#}",
        "--",
        "sh",
        "-c",
        'echo "$0" >"out.$1"',
        "{}",
    ]
    assert lab.run([*words, "{#}"], input=b"a\n", cwd=tmp_path).returncode == 0
    done = lab.run([words[0], "--resume", *words[1:], "{#}"], input=b"b\n", cwd=tmp_path)
    assert done.returncode == 69 and b"--returns out.1: another item of a run before has" in done.stderr
    assert Path("out.1").read_text() == "a\n"
