"""The notes of a batch about returns, over the runs of it. Without a job."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.fanout.files.files import Files
from quine.fanout.files.names import LONGEST, Names, Noted
from quine.fanout.joblog import RUNNING, UNRETURNED, Entry, Joblog, files_of
from quine.fanout.journal import Sent, hash_of
from quine.fanout.outcome import Unreturned
from quine.fanout.starter import Starter
from quine.fanout.tasks import Task

KEEP = {"done", "lost"}
NOTE = Unreturned(1, 0, "", "h1", "workdir/x")


def ended(log: Joblog, id: str, hash: str, unreturned: Unreturned | None = None) -> None:
    """The job `id` of an item has its line."""
    entry = Entry(1, hash)
    entry.kind, entry.id, entry.unreturned = "lost" if unreturned else "done", id, unreturned
    log.end(entry, 0.0)


def unreturned(path: Path) -> Joblog:
    """The log of a batch with one item, whose returns did not come; and then they did."""
    log = Joblog(str(path))
    log.journal.start("id", "h", 1)
    ended(log, "id", "h", NOTE)
    log.close()
    return Joblog(str(path), KEEP)


def test_returns_that_came_at_last_are_not_asked_for_again_if_that_is_not_in_the_log_yet(
    tmp_path: Path,
) -> None:
    """They are not there any more: the client was killed as it removed them."""
    path = tmp_path / "log"
    log = unreturned(path)
    log.journal.bring("id", 1)
    log._close()
    for _ in range(2):  # and the next client, too
        log = Joblog(str(path), KEEP)
        assert log.journal.brought == {"id": 1}
        log._close()
    log = Joblog(str(path), KEEP)
    assert log.before("h") == (UNRETURNED, "id")
    ended(log, "id", "h")
    log.close()
    assert [each.name for each in tmp_path.iterdir()] == ["log"]


def test_a_host_cannot_compute_the_id_of_a_job_from_what_it_sees(tmp_path: Path) -> None:
    """It sees the number of the batch, as the name of a directory, and knows its own item, of a template."""
    log = Joblog(str(tmp_path / "log"))
    seen = [f"{part}".encode() for part in (log.journal.batch, 1, "hash", 1, 1)]
    assert log.journal.id_of("hash", 1, 1) != hash_of(seen)
    log.close()


def test_the_host_on_which_a_job_has_started_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Joblog(str(path))
    for id in ("a", "b", "c"):
        log.journal.start(id, "h", 1)
    for id, host in (("a", "h1"), ("b", "h2"), ("c", "h1"), ("a", "h1")):
        log.journal.on_host(host, id)
    log.journal.start("d", "h", 1)
    ended(log, "c", "h")
    assert (tmp_path / "log.started").read_text().count("host ") == 3
    log._close()
    for _ in range(2):  # and where it was written anew
        log = Joblog(str(path), KEEP)
        assert {id: sent.host for id, sent in log.journal.sent.items()} == {"a": "h1", "b": "h2", "d": ""}
        assert list(log.journal.hosts) == ["h1", "h2"]
        log._close()


def test_the_journal_of_an_earlier_build_has_no_hosts_of_jobs(tmp_path: Path) -> None:
    (tmp_path / "log.started").write_text(
        f"quine batch {'b' * 32} 1 {'e' * 32} boot\nhost h1\ntime 5.0\nid hash 2 -\n"
    )
    log = Joblog(str(tmp_path / "log"), KEEP)
    assert log.journal.sent == {"id": Sent("hash", 2, float("-inf"))} and list(log.journal.hosts) == ["h1"]
    log._close()


def test_a_note_of_returns_goes_with_the_line_of_their_item(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = unreturned(path)
    log.journal.bring("id", 1)
    ended(log, "id", "h")
    log.journal.start("other", "g", 1)  # so that the journal stays
    log._close()
    log = Joblog(str(path), KEEP)
    assert not log.journal.brought
    log.close()


def test_each_file_that_a_log_makes_is_one_of_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result with the name of one that is being written, a directory perhaps, ended the batch and each later one."""
    made: set[str] = set()
    opened = os.open

    def opening(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if flags & os.O_CREAT:
            made.add(str(path))
        return opened(path, flags, *rest, **more)

    path = str(tmp_path / "log")
    monkeypatch.setattr(os, "open", opening)
    Joblog(path, KEEP).close()
    Joblog(path, KEEP).close()
    assert f"{path}.started.quine-new" in made and made <= set(files_of(path))


def test_equal_items_that_are_done_are_so_many_in_each_run(tmp_path: Path) -> None:
    """The first of them failed, and has the line of the second when it is resumed; the second has the same number."""
    path = str(tmp_path / "log")

    def run(keep: set[str] | None, *kinds: str) -> list[str]:
        """The kinds that two equal items had before. Those without get these."""
        log, ends = Joblog(path, keep), list(kinds)
        before = [log.before("h")[0] for _ in range(2)]
        for number, kind in enumerate(before, 1):
            if not kind:
                entry = Entry(number, "h")
                entry.kind, entry.id = ends.pop(0), f"{number}"
                log.end(entry, 0.0)
        log.close()
        return before

    run(None, "failed", "done")
    assert run({"done"}, "done") == ["done", ""]
    assert run({"done"}) == run({"done", "failed"}) == ["done"] * 2


def test_an_old_line_that_a_killed_run_has_not_removed_counts_no_more(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    for kind in ("failed", "done"):
        log = Joblog(path, {"done"})
        entry = Entry(1, "h")
        entry.kind, entry.id = kind, kind
        log.end(entry, 0.0)
        log._close()
    log = Joblog(path, {"done"})
    assert [log.before("h")[0] for _ in range(2)] == ["done", ""]
    log.close()


Keep = frozenset[str]
RETRIES = Keep({"done", "lost"}), Keep({"done", "lost", "failed"}), Keep({"done"})
a_run = st.tuples(
    st.sampled_from(RETRIES),
    st.lists(st.sampled_from(["done", "failed", "lost", "killed before its line"]), min_size=4, max_size=4),
    st.integers(0, 4),  # items that are read
    st.booleans(),  # whether it is killed before its end
)


@settings(deadline=None, max_examples=150)
@given(st.lists(a_run, min_size=2, max_size=5))
def test_equal_items_have_as_many_ends_as_they_had(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[Keep, list[str], int, bool]]
) -> None:
    """Each run may count other ends than the one before, which may have been killed at any point."""
    path = tmp_path_factory.mktemp("log") / "log"
    ends: list[str] = []  # of items
    sent: dict[str, tuple[str, str]] = {}  # jobs: the State of the line that each renews, and its end
    for at, (keep, kinds, read, killed) in enumerate(runs):
        log = Joblog(str(path), keep)
        renewed = [renews for renews, _ in sent.values()]
        counting = [kind for kind in ends if kind in keep]
        for kind in renewed:
            counting.remove(kind) if kind in counting else None
        found, old = 0, list(ends)
        for number, outcome in enumerate(kinds[:read], 1):
            entry = Entry(number, "h")
            kind, id = log.found(entry)
            if kind == RUNNING:
                renews, entry.kind = sent.pop(id)
                assert found == len(counting) and entry.renews == renews
            elif kind:
                found += 1
                counting.index(kind)
                continue
            else:
                assert found == len(counting) and not sent
                id, renews, entry.kind = f"{at}-{number}", entry.renews or "", outcome
                assert bool(renews) == any(each not in keep for each in old)
                log.journal.start(id, "h", 1, "", renews)
            if renews:
                old.remove(renews)
            if entry.kind == "killed before its line":
                sent[id] = renews, "done"
                killed = True
                break
            entry.id = id
            log.end(entry, 0.0)
            ends += [entry.kind]
            if renews:
                ends.remove(renews)
        if killed:
            log._close()
        else:
            log.close()
            lines = [line.split("\t") for line in path.read_text().splitlines()[1:]]
            assert sorted(columns[-2] for columns in lines) == sorted(ends)
            assert {columns[-3] for columns in lines} <= {"0"}


@pytest.mark.parametrize(("kind", "first"), [("failed", RETRIES[0]), ("lost", RETRIES[2])])
@pytest.mark.parametrize("killed", [False, True])
def test_an_end_counts_no_more_once_its_item_has_run_again(
    tmp_path: Path, kind: str, first: Keep, killed: bool
) -> None:
    """The second of two equal items was taken to have it, and never ran. `killed`: before the line of the first."""
    path = str(tmp_path / "log")
    for keep, outcome in (({"done"}, kind), (first, "done")):
        log = Joblog(path, keep)
        entry = Entry(1, "h")
        assert log.found(entry)[0] == ""
        log.journal.start(outcome, "h", 1, "", entry.renews or "")
        entry.kind, entry.id = outcome, outcome
        if not killed or outcome == kind:
            log.end(entry, 0.0)
        log._close()
    log = Joblog(path, {"done", "lost", "failed"})
    assert [log.found(Entry(number, "h"))[0] for number in (1, 2)] == [RUNNING if killed else "done", ""]
    log._close()


@pytest.mark.parametrize(
    ("words", "code"), [("", 0), (" 1", 1), (" 255", 255), (" -", 0), (f" {'12' * 16}", 0)]
)
def test_a_note_of_returns_has_the_exit_status_with_them(tmp_path: Path, words: str, code: int) -> None:
    """Notes of earlier builds have none."""
    path = tmp_path / "log"
    log = unreturned(path)
    log._close()
    with open(f"{path}.started", "a") as file:
        file.write(f"brought id{words}\n")
    log = Joblog(str(path), KEEP)
    assert log.journal.brought == {"id": code}
    log._close()


def test_a_note_of_returns_goes_with_the_next_try(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Joblog(str(path))
    log.journal.start("id", "h", 1)
    log.journal.bring("id", 1)
    log.journal.start("next", "h", 2, "id")
    assert not log.journal.brought
    log._close()
    log = Joblog(str(path), KEEP)
    assert not log.journal.brought and list(log.journal.sent) == ["next"]
    log.close()


def test_the_files_of_a_batch_stay_where_its_first_run_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent has begun it, and another goes on with it: its jobs there are in the directories of the first one."""
    path = tmp_path / "log"
    places = []
    for root in ("first", "second", ""):
        monkeypatch.setenv("QUINE_ROOT_SESSION", root)
        log = Joblog(str(path), KEEP)
        log.journal.start("id", "h", 1)
        places.append((log.journal.tree, log.journal.folder))
        log.close()
    assert places == [("first", log.journal.batch)] * 3
    journal = Path(f"{path}.started")
    text = journal.read_text()
    head = text.split("\n")[0]
    journal.write_text(text.replace(head, head.rpartition(" ")[0], 1))
    log = Joblog(str(path), KEEP)
    assert (log.journal.tree, log.journal.folder) == ("first", ""), "of a build that had none"
    log.close()
    log = Joblog(str(path), KEEP)
    assert (log.journal.tree, log.journal.folder) == ("first", "")
    log.close()
    journal.write_text(text.replace(head, f"{head}/../x", 1))
    with pytest.raises(Misconfigured, match="line 1 of"):
        Joblog(str(path), KEEP)
    monkeypatch.setenv("QUINE_ROOT_SESSION", "no session")
    log = Joblog(str(path))
    assert log.journal.tree == log.journal.batch == log.journal.folder
    log.close()


def test_the_names_of_a_job_are_noted_as_long_as_the_job_or_its_results_may_be_there(tmp_path: Path) -> None:
    path, odd = tmp_path / "log", Noted([(b"/a \n\xff", b"in \xff")], ["*.out", "b  c"])
    log = Joblog(str(path))
    for id in ("one", "two", "three", "four"):
        log.journal.start(id, "h", 1, names=odd)
    log.journal.start("more", "h", 1, names=Noted([(b"/a", b"x" * LONGEST)], ["r"]))
    log.journal.start("none", "h", 1)
    log.journal.start("again", "h", 2, before="four", names=Noted([], ["r"]))
    log.journal.withdrawn("three")
    ended(log, "one", "h")
    ended(log, "two", "h", NOTE)
    log._close()
    for _ in range(2):  # and where it was written anew
        log = Joblog(str(path), KEEP)
        assert log.journal.names == {
            "two": odd,
            "more": Noted([(b"", b"")], ["r"]),
            "again": Noted([], ["r"]),
        }
        log._close()
    for text in ("[[], 5]", "[1]", "7", '[["a"], [3]]', "{}", "x"):
        with open(f"{path}.started", "a") as file:
            file.write(f"names two {text}\n")
        with pytest.raises(Misconfigured, match="damaged"):
            Joblog(str(path), KEEP)
        lines = Path(f"{path}.started").read_text().splitlines(keepends=True)
        Path(f"{path}.started").write_text("".join(lines[:-1]))


def test_a_try_that_stays_the_end_of_its_item_keeps_its_names(tmp_path: Path) -> None:
    """The next one never began, and had dropped them."""
    log, names = Joblog(str(tmp_path / "log")), Noted([(b"/a", b"in")], ["out"])
    for item, second in (("stays", "two"), ("ends", "four")):
        log.journal.start(item, item, 1, names=names)
        log.journal.start(second, item, 2, before=item, names=names)
    log.journal.withdrawn("two")
    ended(log, "stays", "stays", NOTE)
    ended(log, "four", "ends")
    assert log.journal.names == {"stays": names}
    log._close()
    for _ in range(2):  # and where it was written anew
        log = Joblog(str(tmp_path / "log"), KEEP)
        assert log.journal.names == {"stays": names}
        log._close()


@pytest.mark.parametrize(
    ("host", "own", "results", "over"),
    [
        ("h1", b"in", ["out", "a*"], True),
        ("h2", b"in", ["out", "a*"], False),
        ("h1", b"in", ["*", "a*"], False),
        ("h1", b"other", ["*"], False),
        ("h1", b"in", ["*"], True),
    ],
)
@pytest.mark.parametrize("how", ["it has begun", "no host tells of it"])
def test_results_that_another_job_has_written_over_are_not_asked_for(
    tmp_path: Path, host: str, own: bytes, results: list[str], over: bool, how: str
) -> None:
    """The file of an item was edited, and then changed back: it got the results of the other contents."""
    path = str(tmp_path / "log")
    log = Joblog(path)
    patterns = results if len(results) == 1 else ["out", "sub/x"]
    log.journal.start("old", "h", 1, names=Noted([(b"/a", b"in")], patterns))
    ended(log, "old", "h", NOTE)
    log.close()
    log = Joblog(path, KEEP)
    files = Files(None, None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
    files.record(log.journal, print)
    log.journal.start("new", "g", 1, names=Noted([(b"/a", own)], results))
    task = Task(SimpleNamespace(number=1, slot=0), Entry(1, "g"))  # type: ignore[arg-type]
    task.sent = "new"
    if how == "it has begun":
        files.started(task, host)
    else:
        log.journal.on_host(host, "new")
        files.missed(task)
    assert log.before("h") == (("lost", "") if over else (UNRETURNED, "old"))
    ended(log, "new", "g")
    log.close()
    for keep in (KEEP, KEEP - {"lost"}):
        log = Joblog(path, keep)
        found = log.found(Entry(1, "h"))
        assert found == (("lost" if "lost" in keep else "", "") if over else (UNRETURNED, "old"))
        log._close()


def test_results_that_are_written_over_before_their_item_has_its_line_are_not_asked_for(
    tmp_path: Path,
) -> None:
    log, files = Joblog(str(tmp_path / "log")), Files(None, None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
    files.record(log.journal, print)
    for id in ("old", "new"):
        task = Task(SimpleNamespace(number=1, slot=0), Entry(1, id))  # type: ignore[arg-type]
        log.journal.start(id, id, 1, names=Noted([], ["out"]))
        log.journal.on_host("h1", id)
        task.sent = task.entry.id = id
        files.started(task, "h1")
        task.entry.unreturned = NOTE
        files.final(task)
    ended(log, "old", "old", NOTE)
    ended(log, "new", "new", NOTE)
    log.close()
    log = Joblog(str(tmp_path / "log"), KEEP)
    assert [log.before("old"), log.before("new")] == [("lost", ""), (UNRETURNED, "new")]
    log._close()


@pytest.mark.parametrize("end", ["its task has them", "no host has it", "its item is not there"])
@pytest.mark.parametrize(
    ("own", "results", "waits"),
    [
        ([(b"/b", b"in")], [], ["sent"]),
        ([], ["in"], ["sent"]),
        ([(b"/b", b"out")], [], ["sent", "unreturned"]),
        ([(b"/b", b"other")], ["out"], []),
    ],
)
def test_a_job_of_the_run_before_has_its_names_from_the_beginning_on(
    end: str, own: list[tuple[bytes, bytes]], results: list[str], waits: list[str]
) -> None:
    for note in ("sent", "unreturned", "brought"):
        names = {"id": Noted([(b"/a", b"in")], ["out"])}
        journal: Any = SimpleNamespace(
            sent={}, unreturned={}, brought={}, names=names, places={}, overwritten={}
        )
        (journal.unreturned if note == "unreturned" else journal.sent)["id"] = Sent("hash", 1, 0.0, "h1")
        if note == "brought":
            journal.brought["id"] = 0
        files = Files(None, None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
        files.record(journal, print)
        assert files._results.of_others("x", "h1") == (["out"] * (note != "brought"), [])
        did: list[str] = []
        tasks = [Task(SimpleNamespace(number=1, slot=0), Entry(1, "hash")) for _ in "ab"]  # type: ignore[arg-type]
        stage: Any = SimpleNamespace(sources=own, alone=own, varying=[], patterns=results)
        files.begin(tasks[0], stage, lambda: did.append("sent"), did.append)  # noqa: B023
        assert did == ["sent"] * (note not in waits)
        del did[:]
        if end.startswith("its task"):
            tasks[1].sent = tasks[1].entry.fetched = "id"
            files.hold(tasks[1], SimpleNamespace(sources=[], alone=[], varying=[], patterns=[]))  # type: ignore[arg-type]
        elif end.startswith("no host"):
            files.before.release("id")
        else:
            files.before.stay(["id"])
            files.before.release("id")
            assert [("of the run before" in why) for why in did[:1]] == [True] * (note in waits)
            continue
        assert did == ["sent"] * (note in waits) and not files.before
        assert files._results.of_others("x", "h1") == ([], [])


@pytest.mark.parametrize("found", [True, False])
def test_an_item_whose_files_may_be_results_waits_until_the_host_of_that_job_is_known(found: bool) -> None:
    """A job that never began was taken for one that had begun on each host, and files that were changed stayed old."""
    names = {"one": Noted([], ["*.out"]), "two": Noted([], ["sub/x"])}
    journal: Any = SimpleNamespace(
        sent=dict.fromkeys(names, Sent("hash", 1, 0.0)),
        unreturned={},
        brought={},
        places={},
        overwritten={},
        names=names,
        capability=lambda id: "secret",
    )
    starter: Any = object.__new__(Starter)
    starter.files = files = Files(None, None, print, cleanup=False, quiet=True)  # type: ignore[arg-type]
    starter._batch = SimpleNamespace(start=lambda *_, **more: SimpleNamespace(hold=lambda: None))
    starter._journal, starter.tree, starter._context, starter._environ = journal, "tree", {}, {}
    files.record(journal, print)
    assert files._results.of_others("x", "h1") == ([], ["*.out", "sub/x"])
    did: list[str] = []
    for name in (b"", b"sub", b"a.out", b"a.in"):
        task = Task(SimpleNamespace(number=1, slot=0), Entry(1, "hash"))  # type: ignore[arg-type]
        stage: Any = SimpleNamespace(
            sources=[(b"/w/" + name if name else b"/w", name)], alone=[], varying=[], patterns=[]
        )
        files.begin(task, stage, lambda name=name: did.append(name.decode()))  # type: ignore[misc]
    assert did == ["a.in"]
    starter.gone("two")
    assert did == ["a.in"]
    if found:
        starter.attach("one", "h2")
    else:
        starter.gone("one")
    assert sorted(did) == ["", "a.in", "a.out", "sub"]
    assert files._results.of_others("x", "h1") == ([], [])
    assert files._results.of_others("x", "h2") == (["*.out"] if found else [], [])


def test_a_job_with_very_many_files_has_their_directories_before_its_item_is_read() -> None:
    """It had each name on its host, and items with other files were refused."""
    own = [(b"/w/frames/A/%d" % number, b"frames/A/%d" % number) for number in range(LONGEST)]
    own += [(b"/w/cfg", b"cfg"), (b"/w/frames/B", b"other")]
    noted = Noted.parsed(Noted(own, ["r"]).line("id").split(" ", 2)[2])
    assert noted.own == [(b"/w/frames/A", b"frames/A"), (b"/w/cfg", b"cfg"), (b"/w/frames/B", b"other")]
    names = Names(lambda text: None)
    names.hold(noted.own, noted.uses)
    for path, name, clashes in (
        (b"/w/frames/B/1", b"frames/B/1", False),
        (b"/w/frames/A/1", b"frames/A/1", False),
        (b"/w/B/1", b"frames/A/1", True),
        (b"/w/x", b"other", True),
    ):
        assert (names.clash([(path, name)], []) != (None, None)) is clashes
    deep = [(b"/w/%d/a" % number, b"%d/a" % number) for number in range(LONGEST)]
    assert Noted.parsed(Noted(deep, []).line("id").split(" ", 2)[2]).own == [(b"/w", b"")]
    renamed = [(b"/w/%d" % number, b"x%d" % number) for number in range(LONGEST)]
    assert Noted.parsed(Noted(renamed, []).line("id").split(" ", 2)[2]).own == [(b"", b"")]
