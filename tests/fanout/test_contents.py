"""The contents that an item is told apart by: those that its user has written, whatever results have replaced."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.fanout.files.contents import Contents
from quine.fanout.files.replaced import Replaced
from quine.fanout.files.results import Results
from quine.fanout.input.items import Item
from quine.fanout.input.rows import Row
from quine.fanout.journal import hash_of
from quine.fanout.main import template
from quine.fanout.options import parse
from quine.fanout.tasks import Work

NAMES = ("a", "d/b", "d/e/c")


class Batch:
    """The directory `here` of a batch, and `pure`: the same, without its results."""

    def __init__(self, base: Path) -> None:
        self.here, self.pure, self.log = base / "here", base / "pure", str(base / "log")
        for place in (self.here, self.pure):
            (place / "d").mkdir(parents=True)
        self._texts = itertools.count()
        self.contents = Contents()
        self.contents.replaced = Replaced(self.log)

    def parts(self, contents: Contents, place: Path) -> list[bytes]:
        return list(contents.parts([(str(place), b"")], shared=True))

    def user(self, name: str) -> None:
        """The user writes, or removes what is there."""
        text = f"user {next(self._texts)}"
        for place in (self.here, self.pure):
            (place / name).parent.mkdir(exist_ok=True, parents=True)
            (place / name).write_text(text)

    def result(self, name: str, text: str, cut: bool) -> None:
        """A result comes; `cut`: the process is killed before it is put in place."""
        lies = self.here.parent / "aside"
        shutil.rmtree(lies, ignore_errors=True)
        (lies / name).parent.mkdir(exist_ok=True, parents=True)
        (lies / name).write_text(text)
        tops = [name, *(str(above) for above in Path(name).parents if str(above) != ".")]
        arrivals = [(os.fsencode(self.here / top), os.fsencode(lies / top)) for top in tops]
        self.contents.replace((pair for pair in arrivals), [os.fsencode(self.here)])
        if not cut:
            (self.here / name).parent.mkdir(exist_ok=True, parents=True)
            os.replace(lies / name, self.here / name)

    def resume(self) -> None:
        assert self.contents.replaced
        self.contents.replaced.close()
        self.contents = Contents()
        self.contents.replaced = Replaced(self.log)
        self.contents.replaced.read()

    def check(self) -> None:
        assert self.parts(self.contents, self.here) == self.parts(Contents(), self.pure)


steps = st.one_of(
    st.tuples(st.just("user"), st.sampled_from(NAMES)),
    st.tuples(
        st.just("result"), st.sampled_from(NAMES), st.sampled_from(["one", "two", "three"]), st.booleans()
    ),
    st.tuples(st.just("resume")),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=12))
def test_results_change_no_item_and_every_change_of_the_user_does(some: list[tuple[str, ...]]) -> None:
    with TemporaryDirectory() as base:
        batch = Batch(Path(base).resolve())
        for what, *rest in some:
            getattr(batch, what)(*rest)
            batch.check()
        assert batch.contents.replaced
        batch.contents.replaced.close()


@pytest.mark.parametrize(
    ("words", "item", "recorded"),
    [
        (["--files", "{}"], "d/b", True),
        (["--files", "d/{}"], "b", True),
        (["--stdin", "d/{}"], "b", True),
        (["--files", "d/{}:in"], "b", True),
        (["--files", "other/{}"], "x", False),
        (["--files", "{}"], "d/new", False),
    ],
)
def test_a_result_that_replaces_the_file_of_another_item_changes_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], item: str, recorded: bool
) -> None:
    """That one was done, and ran again. A file that is new, or that no item can name, needs no record."""
    monkeypatch.chdir(tmp_path)
    batch = Batch(tmp_path)
    monkeypatch.chdir(batch.here)
    (batch.here / "other").mkdir()
    for name in ("a", "d/b", "other/x"):
        (batch.here / name).write_text(name)
    options, _, _ = parse(["--on", "h1", "--joblog", batch.log, *words])
    work = Work(options, template(options, ["true"]), ["true"])
    work.contents.replaced = replaced = Replaced(batch.log)
    before = work.task(Item(Row((item,)), 1)).entry.hash
    result = "d/new" if item == "d/new" else "d/b"
    (tmp_path / "comes").write_text("result")
    arrivals = [(result.encode(), os.fsencode(tmp_path / "comes"))]
    work.contents.replace(arrivals, [os.fsencode(batch.here / "a")])
    os.replace(tmp_path / "comes", batch.here / result)
    assert os.path.exists(f"{batch.log}.replaced") == recorded
    if recorded:
        assert work.task(Item(Row((item,)), 1)).entry.hash == before
        (batch.here / result).write_text("by the user")
        assert work.task(Item(Row((item,)), 1)).entry.hash != before
    replaced.close()


def with_a_link(folder: Path) -> tuple[Contents, Replaced, list[bytes]]:
    """Make `file`, `link` to it, and the result `comes`; return contents with a record, and the parts of the link."""
    (folder / "file").write_text("text")
    (folder / "link").symlink_to("file")
    contents = Contents()
    contents.replaced = replaced = Replaced(str(folder / "log"))
    before = list(contents.parts([(str(folder / "link"), b"link")]))
    (folder / "comes").write_text("result")
    return contents, replaced, before


def test_a_link_that_was_named_counts_as_its_file_until_a_result_replaces_it(tmp_path: Path) -> None:
    contents, replaced, before = with_a_link(tmp_path)
    link = os.fsencode(tmp_path / "link")
    contents.replace([(link, os.fsencode(tmp_path / "comes"))], [link])
    os.replace(tmp_path / "comes", link)
    assert list(contents.parts([(str(tmp_path / "link"), b"link")])) == before
    replaced.close()


def test_a_result_that_replaces_the_target_of_a_link_that_was_named_is_on_record(tmp_path: Path) -> None:
    contents, replaced, before = with_a_link(tmp_path)
    pair = os.fsencode(tmp_path / "file"), os.fsencode(tmp_path / "comes")
    contents.replace([pair], [os.fsencode(tmp_path / "link")])
    os.replace(tmp_path / "comes", tmp_path / "file")
    assert list(contents.parts([(str(tmp_path / "link"), b"link")])) == before
    replaced.close()


def test_a_replacement_is_on_the_disk_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result and the line of its item are: without the record the item ran again, on its own result."""
    synced: list[bytes] = []
    folders: list[str] = []

    def sync(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            folders.append(str(path))
        else:
            synced.append(path.read_bytes())

    monkeypatch.setattr(os, "fsync", sync)
    replaced = Replaced(str(tmp_path / "log"))
    for count in range(1, 4):
        replaced.add([(b"a%d" % count, "1", "2"), (b"b%d" % count, "1", "2")])
        assert len(synced) == count, "once for a set of results"
        assert synced[-1] == (tmp_path / "log.replaced").read_bytes()
        assert folders == [str(tmp_path)], "its name, too"
    replaced.add([(b"a1", "2", "1")])
    assert len(synced) == 3, "that is not new"
    replaced.close()


def test_a_damaged_record_is_an_error_and_a_cut_line_is_none(tmp_path: Path) -> None:
    (tmp_path / "log.replaced").write_text("- d /x\n- d")
    Replaced(str(tmp_path / "log")).read()
    (tmp_path / "log.replaced").write_text("- d\n")
    with pytest.raises(Misconfigured):
        Replaced(str(tmp_path / "log")).forget()
    assert (tmp_path / "log.replaced").exists(), "it may be a file of the user"
    with pytest.raises(Misconfigured, match=r"line 1 of .*log\.replaced is damaged"):
        Replaced(str(tmp_path / "log")).read()


def hashed(top: Path) -> str:
    return hash_of(Contents().parts([(str(top), b"d")]))


def test_a_file_that_is_moved_into_another_directory_is_a_change(tmp_path: Path) -> None:
    top = tmp_path / "d"
    (top / "e").mkdir(parents=True)
    (top / "e" / "f").write_text("x")
    (top / "e" / "g").write_text("y")
    before = hashed(top)
    (top / "e" / "g").rename(top / "g")
    assert hashed(top) != before
    (top / "g").rename(top / "e" / "g")
    assert hashed(top) == before
    (top / "h").mkdir()
    assert hashed(top) != before, "an empty directory counts"


def test_results_on_their_way_are_no_contents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch was killed while they came; a file of that name, and what lies elsewhere, is the user's."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "f").write_text("x")
    before = hashed(tmp_path)
    aside = tmp_path / ".quine-aside-0"
    (aside / "new").mkdir(parents=True)
    (aside / "new" / "0").write_text("half of a result")
    assert hashed(tmp_path) == before
    shutil.rmtree(aside)
    for place in (aside, tmp_path / "d" / aside.name):
        place.write_text("x")
        assert hashed(tmp_path) != before
        place.unlink()
    (tmp_path / "d" / aside.name).mkdir()
    assert hashed(tmp_path) != before


def test_the_results_of_a_try_are_left_until_the_next_one_is_told_of_its_files() -> None:
    """Also if that does not come so far: the next run asks for them."""
    results, patterns = Results(), ["out"]
    first = results.add("job", patterns, [])
    first.where = lambda: "h1"
    assert results.of_others("x", "h1") == ([], [])
    first.begin(False)
    assert (results.of_others("x", "h1"), results.of_others("x", "h2")) == (([], patterns), ([], []))
    first.begin(True)
    for _ in range(2):
        second = results.add("job", patterns, [])
        second.where = lambda: "h2"
        assert results.of_others("x", "h1") == results.of_others("x", None) == (patterns, [])
        results.drop("job")
        assert results.of_others("x", "h1") == (patterns, [])
    second = results.add("job", patterns, [])
    second.where = lambda: "h2"
    second.begin(True)
    assert (results.of_others("x", "h1"), results.of_others("x", "h2")) == (([], []), (patterns, []))
    assert results.of_others("job", "h2") == ([], [])
    results.drop("job")
    second.begin(True)  # by a thread that was late
    assert results.of_others("x", "h2") == ([], [])
