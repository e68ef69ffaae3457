"""Words and patterns of `quine fs`, read as common tools read them; and the end of its workers where stores fail."""

from __future__ import annotations

import errno
import glob
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Failure, Misconfigured
from quine.files.api import Entry, Writer, error
from quine.files.cli import glob as globs
from quine.files.cli import ls_find, pool
from quine.files.cli.main import Call
from quine.files.cli.options import COMMANDS, OPTIONS, number, parse
from quine.files.cli.pool import Crew, Stopped
from quine.files.cli.put import put
from quine.files.stores.local.store import Local
from tests.files.commands import fill

WORDS = st.one_of(
    st.sampled_from(
        ["-", "--", "-l", "-rv", "-j", "-j3", "--json", "--mode=7", "--jobs", "", "--=", "-0x", "-print0"]
    ),
    st.sampled_from([f"--{row[0]}" for row in OPTIONS]),
    st.text(max_size=5),
)


@given(command=st.sampled_from(sorted(COMMANDS)), words=st.lists(WORDS, max_size=6))
def test_any_words_are_parsed_or_refused(command: str, words: list[str]) -> None:
    try:
        values, paths = parse(command, words)
    except Misconfigured:
        return
    known = {row[0].replace("-", "_"): row for row in OPTIONS if command in row[3].split()}
    assert set(values) <= set(known)
    assert all(
        value is True if not known[name][2] else value and isinstance(value, str)
        for name, value in values.items()
    )
    rest = iter(words)
    assert all(path in rest for path in paths), "in their order, none made up"


@given(text=st.text(max_size=25), least=st.integers(0, 3))
def test_numbers(text: str, least: int) -> None:
    try:
        value = number({"jobs": text}, "jobs", least)
    except Misconfigured:
        return
    assert value is not None and value >= least and text.lstrip("0") in (str(value), "")


# -- patterns -------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "ab", ".h", "a.c", "x*", "é", "[a]"])
TREES = st.sets(st.lists(NAMES, min_size=1, max_size=3).map("/".join), max_size=8)
PARTS = st.sampled_from(["*", "a*", "?", "[ab]", "[!a]*", "**", ".*", "*.c", "a", "b", "*é", "[[]*"])
PATTERNS = st.lists(PARTS, min_size=1, max_size=3).map("/".join).filter(globs.is_pattern)


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="globs-") as folder:
        yield folder


@settings(deadline=None, max_examples=90)
@given(tree=TREES, pattern=PATTERNS, directories=st.booleans())
def test_patterns_are_those_of_python_and_shells(
    place: str, tree: set[str], pattern: str, directories: bool
) -> None:
    top = tempfile.mkdtemp(dir=place)
    for path in sorted(tree):
        whole = os.path.join(top, path)
        if not os.path.lexists(whole):
            try:
                os.makedirs(os.path.dirname(whole), exist_ok=True)
                open(whole, "x").close()
            except (NotADirectoryError, FileExistsError):
                continue
    # the directory itself is one of those below it for Python, and is not for us: `rm -r "a/**"` empties a
    own = pattern.endswith("**")
    pattern += "/" if directories and not own else ""
    listed = glob.glob(pattern, root_dir=top, recursive=True)
    wanted = {found.rstrip("/") for found in listed if not (own and found.endswith("/"))} - {""}
    try:
        found = globs.expand(Local(top), pattern)
    except globs.NoMatch:
        found = []
    assert set(found) == wanted
    assert found == sorted(set(found), key=os.fsencode)
    shutil.rmtree(top)


# -- a crew ---------------------------------------------------------------------------------------------


class Failing(Local):
    """A store that fails with an errno from a point on."""

    def __init__(self, root: Path, number: int, after: int = 0) -> None:
        super().__init__(str(root))
        self.number, self.after, self.made = number, after, 0

    def create(self, path: str, **more: Any) -> Writer:
        self.made += 1
        if self.made > self.after:
            raise error(self.number, path)
        return super().create(path, **more)

    def list(self, path: str) -> Iterator[Entry]:
        raise error(self.number, path)


def test_an_origin_that_is_gone_is_69(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        ls_find.ls(Call("ls", {}, ["a", "b"], Failing(tmp_path, errno.ENOTCONN)))
    assert caught.value.status == 69 and "a: " in caught.value.detail


@pytest.mark.parametrize(
    ("number", "goes_on"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EACCES, True)]
)
@pytest.mark.parametrize("jobs", ["1", "4"])
def test_what_concerns_all_ends_all(
    tmp_path: Any, capfd: pytest.CaptureFixture[str], number: int, goes_on: bool, jobs: str
) -> None:
    fill(tmp_path / "s", {b"%03d" % each: b"x" for each in range(200)})
    tier = Failing(tmp_path / "store", number, 5)
    call = Call("put", {"recursive": True, "jobs": jobs}, [str(tmp_path / "s"), "t"], tier)
    if goes_on:
        assert put(call) == 1 and tier.made == 200
        assert capfd.readouterr().err.endswith("error: 185 more went wrong\n")
        return
    with pytest.raises(Failure) as caught:
        put(call)
    assert caught.value.status == 1 and tier.made < 40
    assert capfd.readouterr().err == ""


def test_a_defect_in_a_worker_comes_out() -> None:
    def work(each: int) -> None:
        if each == 7:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), Crew(3) as crew:
        for each in range(1000):
            crew.do(work, each)
        crew.finish()


def test_what_is_under_way_is_given_up_when_the_process_ends() -> None:
    begun, ended = threading.Event(), []

    def work() -> None:
        begun.set()
        try:
            while True:
                crew.tick(1)
        except Stopped:
            ended.append(True)
            raise

    with pytest.raises(KeyboardInterrupt), Crew(2) as crew:
        for _ in range(4):
            crew.do(work)
        begun.wait(120)
        raise KeyboardInterrupt
    assert 1 <= len(ended) <= 2, "nothing new was begun"
    assert not crew._workers


class Interrupting:
    """Raises KeyboardInterrupt in this thread at its step `number`: before a line or at a return, of any module."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, _: object) -> Interrupting:
        if event in ("line", "return"):
            self.left -= 1
            if self.left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> None:
        sys.settrace(self)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


@pytest.mark.long
def test_a_signal_at_any_step_of_the_caller_ends_the_crew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside of a Condition it became "release unlocked lock", thus a defect, or left a lock that is held for ever."""
    monkeypatch.setattr(
        pool, "LET_GO", 0.3
    )  # at some steps nobody knows of a worker, and it is waited for in vain

    def run(number: int) -> bool:
        with Crew(2) as crew:
            with Interrupting(number):
                for _ in range(12):
                    crew.do(lambda: sum(range(3000)) and None)
                crew.wait()
            return True

    number = 0
    while number < 5000:
        try:
            if run(number):
                break
        except KeyboardInterrupt:
            number += 1
    assert 100 < number < 5000
