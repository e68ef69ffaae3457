"""Files laid aside, and the right to clear them away. Returns are as announced, and sent files are as seen."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from quine.files.stores.local import dirfd
from quine.staging import apply, content, remote_main, renames, returns_receiver, scan, store
from quine.staging.apply import Layout
from quine.staging.caller_side import Staging
from quine.staging.content import Changed, measure
from quine.staging.manifest import Manifest
from quine.staging.scan import ASIDE
from quine.staging.source import Tree
from tests.staging.wired import Relay, bring, inside, killed_before_b, sealed, three
from tests.staging.wired import cache as cache
from tests.staging.wired import here as here
from tests.staging.wired import there as there
from tests.support.waiting import until

LINES = int(os.environ.get("QUINE_TEST_LINES", 4))  # from one line to the next at which a signal comes


@pytest.fixture
def layout(here: Path) -> Iterator[Layout]:
    made = Layout(os.fsencode(here), Manifest(), {}, {})
    yield made
    made.close()
    assert list(here.iterdir()) == []


def test_what_somebody_holds_is_not_cleared_away(here: Path, layout: Layout) -> None:
    layout.open()
    renames.recover(os.fsencode(here))
    assert len(list(here.iterdir())) == 1


@pytest.mark.parametrize("step", ["mkdir", "open", "flock"])
def test_what_is_cleared_away_before_it_is_locked_is_made_anew(
    here: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Another process clears away after this step; and once it is locked, nobody does."""
    module: Any = fcntl if step == "flock" else os
    call, times = getattr(module, step), [0]

    def called(*args: Any, **more: Any) -> Any:
        done = call(*args, **more)
        if step != "open" or "dir_fd" in more:
            times[0] += 1
            if times[0] < 4:
                monkeypatch.setattr(module, step, call)
                renames.recover(os.fsencode(here))
                monkeypatch.setattr(module, step, called)
        return done

    monkeypatch.setattr(module, step, called)
    layout.open()
    monkeypatch.undo()
    assert (times[0] > 3) == (step != "flock")
    (top,) = here.iterdir()
    assert sorted(path.name[:5] for path in top.iterdir()) == ["begun", "new", "old", "seal-"]


@pytest.mark.parametrize("moment", range(1, 5))
def test_what_is_killed_while_it_is_sealed_is_cleared_away(
    here: Path, layout: Layout, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """A file that was to hold the seal was there, and still empty: it belonged to nobody then, for ever."""
    pid = os.fork()
    if not pid:
        try:
            calls, left = (os.open, os.close, open), [moment]

            def dying(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
                done = call(*args, **more)
                left[0] -= 1
                if not left[0]:
                    os._exit(9)
                return done

            layout._base = os.open(here, os.O_RDONLY)
            assert layout._make_private()
            os.open, os.close, renames.open = (partial(dying, call) for call in calls)  # type: ignore
            renames.seal(layout._top)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    assert renames.recover(os.fsencode(here)) == []
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("how", [fcntl.LOCK_SH, fcntl.LOCK_EX])
def test_a_lock_on_the_directory_itself_holds_up_nothing(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, how: int
) -> None:
    """A node has one while jobs are in it, and any user who may read it may have one. Renames were said to be done."""
    three(here, there)
    killed_before_b(monkeypatch)
    fd = os.open(here, os.O_RDONLY)
    try:
        fcntl.flock(fd, how)
        assert bring(here, there, "*") == ("", [])
        assert {path.name: path.read_text() for path in here.iterdir()} == dict.fromkeys("abc", "new")
    finally:
        os.close(fd)


@pytest.mark.parametrize("fault", ["a rename", "a parent"])
def test_renames_that_cannot_be_finished_are_said_to_be(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """They were taken for done, and with --cleanup the host removed what it had."""
    for folder, text in ((there, "new"), (here, "old")):
        for name in ("a", "d/b"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
    caller, rename = os.getpid(), os.rename

    def failing(source: bytes, target: bytes, **more: int) -> None:
        if target != "journal" and os.getpid() != caller:
            if fault == "a parent":
                rename(here / "d", here / "e")
            os.kill(os.getpid(), signal.SIGKILL)
        if target == b"b" and fault == "a rename":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", failing)
    failure, _ = bring(here, there, "a", "d/b")
    monkeypatch.undo()
    (top,) = here.glob(".quine-aside-*")
    assert f"not all are in place, and the others are in {top.name}" in failure
    if fault == "a parent":
        (here / "e").rename(here / "d")
    assert renames.recover(os.fsencode(here)) == []
    assert sorted(path.read_text() for path in here.rglob("*") if path.is_file()) == ["new", "new"]


def aside(here: Path, name: bytes) -> Path:
    """Left by a crash: a content on its way to `name`, below `here`."""
    top = here / f"{os.fsdecode(ASIDE)}0"
    (top / "new").mkdir(parents=True)
    (top / "new" / "0").write_text("new")
    sealed(top, [(b"0", name)])
    return top


def test_what_a_crash_left_is_finished_and_cleared_away(here: Path) -> None:
    aside(here, b"x")
    renames.recover(os.fsencode(here))
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [("x", "new")]


@pytest.mark.parametrize("was", ["there", "not there"])
@pytest.mark.parametrize("comes", [True, False])
def test_what_has_come_since_a_crash_is_not_replaced_by_what_that_left(
    here: Path, was: str, comes: bool
) -> None:
    """A folder is not looked through each time: results that came in between were put back to those before."""
    x = here / "x"
    if was == "there":
        x.write_text("old")
    top = aside(here, b"x")
    (top / "old").mkdir()
    if was == "there":
        os.link(x, top / "old" / "0")

    def newer() -> bool:
        (here / "y").write_text("newer")
        (here / "y").rename(x)
        return x.stat().st_ctime_ns > (top / "journal").stat().st_ctime_ns

    if comes:
        until(newer, "the clock of the disk goes on")
    taking = Staging([], ["a"], str(here)).taking()
    taking.begin()
    said = "quine: x left as it is, since it was written while a result for it came\n"
    assert (taking.note("h1"), taking.foreign) == (said if comes else "", [])
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [("x", "newer" if comes else "new")]


@pytest.mark.parametrize("how", ["appended", "of the same size"])
@pytest.mark.parametrize("links", [True, False])
def test_what_was_written_in_place_since_a_crash_is_not_replaced_by_what_that_left(
    here: Path, how: str, links: bool
) -> None:
    """Days may have gone by. It is the same inode, so it was replaced without a word."""
    x = here / "x"
    x.write_text("old")
    before = x.stat().st_mtime_ns
    top = aside(here, b"x")
    (top / "old").mkdir()
    if links:
        os.link(x, top / "old" / "0")

    def written() -> bool:
        if how == "appended":
            with open(x, "a") as file:
                file.write("er")
        else:
            x.write_text("own")
        return x.stat().st_mtime_ns > before

    until(written, "the clock of the disk goes on")
    text = x.read_text()
    assert renames.recover(os.fsencode(here)) == []
    assert [(path.name, path.read_text()) for path in here.iterdir()] == [("x", text)]


def test_a_folder_with_many_results_is_not_looked_through_for_each_item(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until some time has gone by, or this process has left renames itself."""
    now, taking = [1000.0], Staging([], ["a"], str(here)).taking
    monkeypatch.setattr(returns_receiver, "time", SimpleNamespace(monotonic=lambda: now[0]))
    aside(here, b"1")
    taking().begin()
    assert (here / "1").exists()
    aside(here, b"2")
    taking().begin()
    assert not (here / "2").exists()
    now[0] += returns_receiver.EVERY
    taking().begin()
    assert (here / "2").exists()
    aside(here, b"3")
    layout: Any = SimpleNamespace(
        commit=lambda undo: 1 / 0, is_journalled=lambda: True, place=b"x", close=lambda: None
    )
    assert "not all are in place" in returns_receiver._apart(layout, os.fsencode(here))
    taking().begin()
    assert (here / "3").exists()


def test_what_another_user_left_is_not_ours_to_finish(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = aside(here, b"x")
    monkeypatch.setattr(os, "getuid", lambda: top.stat().st_uid + 1)
    renames.recover(os.fsencode(here))
    assert list(here.iterdir()) == [top]


@pytest.mark.parametrize("name", [b"../x", b"d/../../x", b"./x", b"/x"])
def test_a_journal_that_leads_out_is_not_ours(here: Path, name: bytes) -> None:
    (here / "d").mkdir()
    top = aside(here, name)
    renames.recover(os.fsencode(here))
    assert sorted(here.iterdir()) == sorted([top, here / "d"])
    assert not (here.parent / "x").exists()


def test_what_comes_back_is_what_was_announced(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there / "a").write_text("x")
    init = Tree.__init__

    def lying(self: Tree, *args: Any, **more: Any) -> None:
        init(self, *args, **more)
        self.digest = "0" * 64

    monkeypatch.setattr(Tree, "__init__", lying)
    failure, _ = bring(here, there, "a")
    assert "another manifest than was announced" in failure
    assert list(here.iterdir()) == []


def test_a_file_that_changes_while_it_is_sent_is_said_to(here: Path) -> None:
    path = here / "a"
    path.write_bytes(b"1" * 100)

    class Line:
        def write(self, data: bytes) -> None:
            path.write_bytes(b"2" * 200)

    facts = measure(os.fsencode(path)).facts
    with pytest.raises(Changed):
        content.send(Line(), os.fsencode(path), facts, False)  # type: ignore[arg-type]


def test_what_is_renamed_is_renamed_by_a_process_that_no_signal_to_ours_reaches(tmp_path: Path) -> None:
    class Renaming:
        place = b"none"

        def commit(self, undo: bool) -> None:
            blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
            facts = [undo, os.getsid(0) == os.getpid(), blocked]
            (tmp_path / "facts").write_text(json.dumps(facts))

        def is_journalled(self) -> bool:
            return False

        def leave(self) -> None:
            pass

        close = leave

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert returns_receiver._apart(Renaming(), os.fsencode(tmp_path)) == ""  # type: ignore[arg-type]
    undo, apart, blocked = json.loads((tmp_path / "facts").read_text())
    assert undo and apart
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= set(blocked)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.long
@pytest.mark.timeout(900)  # a process for each of 780 lines, if it is each
@pytest.mark.parametrize(("step", "again"), [(LINES, False), pytest.param(3, True, marks=pytest.mark.whole)])
def test_a_signal_at_any_line_leaves_nothing_aside(
    here: Path, there: Path, cache: Path, step: int, again: bool
) -> None:
    """A directory of its own stayed for ever: the signal had come between the mkdir and the open of it.

    A line that is run again is one more only in the long form: each second line is one of a loop.
    """
    (here / "t" / "d").mkdir(parents=True)
    for name in ("a", "d/b"):
        (here / "t" / name).write_text(name)
    (here / "t" / "l").symlink_to("a")
    staging = Staging(["t"], [], str(here))
    ours = {module.__file__ for module in (apply, renames, dirfd, content, store, remote_main)}
    lines = 0
    while _ends_at_line(lines, again, ours, staging, there):
        assert not list(there.glob(".quine*")), lines
        for what in (there / "t", cache):
            shutil.rmtree(what, ignore_errors=True)
        lines += step
    assert lines > 100
    assert not list(there.glob(".quine*"))
    assert (there / "t" / "d" / "b").read_text() == "d/b"


def _ends_at_line(lines: int, again: bool, ours: set[str | None], staging: Staging, there: Path) -> bool:
    """Lay out in a process that gets the signal after so many lines of `ours`. Return False if it has fewer lines."""
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in ours:
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and (again or place not in seen):
            seen.add(place)
            lines -= 1
            if lines < 0:
                raise remote_main._Ended(
                    signal.SIGTERM
                )  # ends the tracing, as a first signal ends the heeding
        return trace

    if pid := os.fork():
        return {0: True, 1: False}[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])]
    status = 2
    try:
        relay = Relay(staging.giving().given)
        sys.settrace(trace)
        with inside(there):
            remote_main._staged(relay, scan.ONCE)  # type: ignore[arg-type]
        status = 1
    except remote_main._Ended:
        status = 0
    finally:
        sys.settrace(None)
        os._exit(status)
