"""Staging without a network: manifests, contents, layouts, what users say, and who comes after a crash."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.fanout.files import uses
from quine.files.exclusions import Places
from quine.staging import (
    apply,
    filling,
    remote_main,
    renames,
    scan,
    shared_directory,
    source,
    spec,
    store,
)
from quine.staging.caller_side import Staging
from quine.staging.content import BLOCK, Broken, Changed, Feed, measure, parse_head, tell
from quine.staging.files_sender import Meant, covered
from quine.staging.manifest import IMPLIED, SIZE, BadManifest, Manifest, digest_of, parse, stays
from quine.staging.notes import Claim
from quine.staging.source import Tree, bits, set_bits
from tests.lab.machine import readable
from tests.staging.wired import Relay, bring, inside, refused_link, stage
from tests.staging.wired import cache as cache
from tests.staging.wired import here as here
from tests.staging.wired import there as there
from tests.support.trees import facts
from transport.errors import RequestError
from transport.status import Status

ODD = [
    b"a b",
    b"new\nline",
    b"\xff\xfe",
    b"-rf",
    "é".encode(),
    "e\u0301".encode(),
    b"n" * 255,
    b"*?[",
    b"a:b",
    b"\\",
]


def plant(top: Path) -> None:
    """Everything that a tree may hold."""
    for number, name in enumerate(ODD):
        folder = os.fsencode(top) + b"/d" + str(number).encode()
        os.mkdir(folder)
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(os.urandom(number * 1000))
    (top / "big").write_bytes(os.urandom(3_000_000))
    (top / "same").write_bytes((top / "big").read_bytes())
    with open(top / "sparse", "wb") as file:
        file.truncate(50_000_000)
        file.seek(10_000_000)
        file.write(b"x" * 10_000)
    with open(top / "hole", "wb") as file:
        file.truncate(1 << 30)
    (top / "empty").write_bytes(b"")
    (top / "nothing" / "below").mkdir(parents=True)
    (top / "link").symlink_to("d0/a b")
    (top / "dangling").symlink_to("d0/not there")
    (top / "run").write_text("#!/bin/sh\n")
    (top / "run").chmod(0o711)
    (top / "shut").mkdir()
    (top / "shut" / "file").write_text("x")
    (top / "shut" / "file").chmod(0o400)
    (top / "shut").chmod(0o500)
    os.utime(top / "run", ns=(0, 5))
    os.utime(top / "nothing", ns=(0, 1_500_000_000_123_456_789))


def open_up(top: Path) -> None:
    for path in top.rglob("shut"):
        path.chmod(0o700)


# ------------------------------------------------------------------------------------------ there and back


def test_everything_arrives_as_it_is_and_is_not_sent_again(here: Path, there: Path) -> None:
    (here / "t").mkdir()
    plant(here / "t")
    assert stage(here, there, "t") > 3_000_000
    assert facts(there) == facts(here)
    assert (there / "t" / "sparse").stat().st_blocks * 512 < 1_000_000, "holes are holes"
    assert (there / "t" / "hole").stat().st_blocks * 512 < 1_000_000
    assert stage(here, there, "t") < 200, "nothing but the digest of the tree"
    open_up(here.parent)


def test_what_a_host_has_seen_is_not_sent_to_another_place_on_it(here: Path, tmp_path: Path) -> None:
    (here / "t").mkdir()
    plant(here / "t")
    first = stage(here, _new(tmp_path / "1"), "t")
    assert stage(here, _new(tmp_path / "2"), "t") < first / 100
    assert facts(tmp_path / "2") == facts(here)
    open_up(tmp_path)


def test_contents_that_wait_to_be_sent_have_one_bound(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the jobs that waited for a slot kept 64 MiB."""
    monkeypatch.setattr(source.Kept, "room", 10)

    def kept(name: str) -> Tree:
        path = os.fsencode(here / name)
        (here / name).write_text(f"text {name}")
        return Tree(scan.Sources([(path, os.fsencode(name))], None, []), name)

    trees = [kept(name) for name in "abc"]
    assert [len(tree._kept._contents) for tree in trees] == [1, 0, 0]
    del trees[:]
    assert source.Kept.room == 10
    assert len(kept("d")._kept._contents) == 1


def _new(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.mark.parametrize("size", [9, BLOCK + 1], ids=["small", "large"])
def test_a_content_that_is_another_one_is_refused(there: Path, size: int) -> None:
    manifest, data = Manifest(), bytes(size)
    manifest.add(b"a", stat.S_IFREG | 0o644, 0, len(data), hashlib.blake2b(data, digest_size=SIZE).digest())

    class Line:
        def read(self, size: int) -> bytes:
            return (b"forged!!!" * 1000)[:size]  # again and again

    layout = apply.Layout(os.fsencode(there), manifest, {}, {})
    layout.open()
    try:
        with pytest.raises(Broken, match="a came with another content"):
            layout.fill(Feed(Line()), set(layout.wanted()), None, None)  # type: ignore[arg-type]
    finally:
        layout.close()
    assert list(there.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        "rm -r t",
        "rm t/d/a",
        "printf 2 > t/d/a",
        "chmod 600 t/d/a",
        "ln -sfn c t/l",
        "cp -p t/d/a x; mv x t/d/a",
    ],
)
def test_what_is_changed_right_after_it_was_laid_out_is_laid_out_again(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """A record describes the files as laid out: it must not describe a later change by another process."""
    (here / "t/d").mkdir(parents=True)
    (here / "t/d/a").write_text("1")
    (here / "t/l").symlink_to("d")
    commit = apply.Layout.commit

    def changed(self: apply.Layout, undo: bool = False) -> None:
        commit(self, undo)
        monkeypatch.setattr(apply.Layout, "commit", commit)
        subprocess.run(["sh", "-c", change], cwd=there, check=True)

    monkeypatch.setattr(apply.Layout, "commit", changed)
    stage(here, there, "t")
    stage(here, there, "t")
    assert facts(there) == facts(here)
    assert stage(here, there, "t") < 200, "and is then known"


def test_one_file_that_changed_is_all_that_is_sent(here: Path, there: Path) -> None:
    (here / "t").mkdir()
    for number in range(50):
        (here / "t" / str(number)).write_bytes(os.urandom(10_000))
    stage(here, there, "t")
    (here / "t" / "7").write_bytes(os.urandom(10_000))
    assert 10_000 < stage(here, there, "t") < 20_000
    assert facts(there) == facts(here)


class Around:
    """Other jobs with results: some have begun, and the others are still getting their files."""

    def __init__(self, begun: list[str], told: list[str], own: list[bytes]) -> None:
        self.own, self._patterns, self.asked = own, (begun, told), 0

    def begin(self, begun: bool) -> None: ...

    def locate(self, place: str) -> None:
        self.place = place

    def of_others(self) -> tuple[list[str], list[str]]:
        self.asked += 1
        return self._patterns


@pytest.mark.parametrize("new", [True, False], ids=["into a new directory", "over what is there"])
def test_results_of_other_jobs_are_left_as_they_are(here: Path, there: Path, new: bool) -> None:
    for name in ("t/d/begun", "t/told", "t/own", "t/out/x", "t/out/y", "t/other"):
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text("old")
    if not new:
        stage(here, there, "t")
        for name in ("t/d/begun", "t/told", "t/own", "t/out/x", "t/other"):
            (there / name).write_text("result")
        (there / "t/out/y").unlink()
        (there / "t/told").chmod(0o700)
    around = Around(["t/d/begun", "t/out", "t/[o]wn", "*"], ["t/told"], [b"t/own", b"t"])
    stage(here, there, "t", around=around)
    found = {name: (there / name).read_text() for name in ("t/told", "t/own", "t/other")}
    if new:
        assert found == dict.fromkeys(found, "old")
        assert sorted(path.name for path in (there / "t").iterdir()) == ["d", "other", "own", "told"]
        assert not [*(there / "t/d").iterdir()]
    else:
        assert found == {"t/told": "result", "t/own": "old", "t/other": "old"}
        assert (there / "t/told").stat().st_mode & 0o777 == 0o700
        assert (there / "t/d/begun").read_text() == (there / "t/out/x").read_text() == "result"
        assert not (there / "t/out/y").exists()
    stage(here, there, "t")
    (there / scan.PLACE).unlink()
    assert facts(there) == facts(here), "no record says that they are as they should be"
    assert around.asked == 1


@pytest.mark.parametrize("pattern", ["src", ".", "*", "src/*", "src/in", "src/in/*"])
@pytest.mark.parametrize("name", ["src/mine", "src/in/mine"])
def test_a_file_of_this_job_alone_is_laid_out_though_its_directory_is_a_result_of_another(
    here: Path, there: Path, pattern: str, name: str
) -> None:
    """It was left out without a word where its directory was not there yet."""
    (here / "src/in").mkdir(parents=True)
    for each in (name, "src/in/other"):
        (here / each).write_text("old")
    around = Around([pattern], [], [name.encode()])
    stage(here, there, "src", around=around)
    assert [str(path.relative_to(there)) for path in (there / "src").rglob("*") if path.is_file()] == [name]
    stage(here, there, "src", around=around)
    assert (there / name).read_text() == "old" and [*there.glob(".quine*")] == [there / scan.PLACE]


def test_an_entry_that_no_rename_would_bring_is_no_success(here: Path) -> None:
    manifest = Manifest()
    manifest.add(b"d", stat.S_IFDIR | 0o755, 0)
    manifest.add(b"d/a", stat.S_IFLNK | 0o777, 0, mark=b"b")
    layout = apply.Layout(os.fsencode(here), manifest, {}, {})
    try:
        layout.open()
        layout._moves.clear()
        with pytest.raises(OSError, match="would not appear"):
            layout.let_be(b"\0\0")
    finally:
        layout.close()


@pytest.mark.parametrize(
    ("patterns", "own", "found"),
    [
        (["d/a"], [], ["d/a"]),
        (["d"], [], ["d", "d/a", "d/b"]),
        (["d"], ["d/a"], ["d", "d/b"]),
        (["d/*"], ["d"], ["d/a", "d/b"]),
        (["*"], ["d"], ["i/x"]),
        (["*/x", "d/a[*]", "no", "e"], [], ["i/x"]),
        (["."], [], ["d", "d/a", "d/b", "i/x"]),
        (["."], ["d"], ["i/x"]),
        (["i"], [], ["i/x"]),
        ([], [], []),
    ],
)
def test_entries_that_are_results_of_others(patterns: list[str], own: list[str], found: list[str]) -> None:
    """Above what was named there are directories that are made if they are missing."""
    manifest = Manifest()
    manifest.add(b"i", stat.S_IFDIR | 0o755 | IMPLIED, 0)
    for name in ("d", "d/a", "d/b", "i/x"):
        manifest.add(name.encode(), (stat.S_IFDIR if name == "d" else stat.S_IFREG) | 0o644, 0)
    indices = covered(manifest, patterns, [*map(str.encode, own)])
    assert [manifest.names[index].decode() for index in indices] == found


PART = st.text("ab.", min_size=1, max_size=3).filter(lambda text: text not in (".", ".."))
WORD = st.one_of(
    st.just("**"), st.text("ab.*?", min_size=1, max_size=4), st.sampled_from(["[ab]", "a[??]", "[*]"])
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(WORD, min_size=1, max_size=4).map("/".join), max_size=4),
    st.lists(st.lists(PART, min_size=1, max_size=4).map("/".join), min_size=1, max_size=8),
)
def test_the_names_that_patterns_mean(patterns: list[str], names: list[str]) -> None:
    meant = Meant(patterns)
    for name in map(os.fsencode, names):
        assert meant.has(name) == spec.allowed(name, patterns)


def test_many_patterns_are_not_compared_with_each_of_many_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which took five seconds, while other jobs waited for their turn."""
    compared = []
    original = spec.is_like
    monkeypatch.setattr(spec, "is_like", lambda *pair: compared.append(pair) or original(*pair))
    manifest, patterns = Manifest(), [f"data/*.{number}.csv" for number in range(64)]
    for number in range(2000):
        manifest.add(b"data/x.%d.csv" % number, stat.S_IFREG | 0o644, 0)
    assert covered(manifest, patterns, [b"data/x.7.csv"]) == [*range(7), *range(8, 64)]
    assert len(compared) < 4 * len(manifest)


@pytest.mark.parametrize("changes", [True, False])
def test_no_job_asks_for_results_of_others_as_another_one_lays_out_its_files(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, changes: bool
) -> None:
    """After a minute it went on: over a result of a job that had been told of its files meanwhile."""
    (here / "a").write_text("a")
    around = Around([], [], [] if changes else [b"a"])
    with inside(there):
        place = shared_directory.identity()
        held, said = shared_directory.alone(store.Objects(), place), []
        held.__enter__()

    def say(text: str) -> None:
        said.append((text, around.asked, list(there.glob("a"))))
        held.__exit__(None, None, None)

    monkeypatch.setattr(store, "PATIENCE", 0.0)
    monkeypatch.setattr(shared_directory, "say", say)
    stage(here, there, "a", around=around)
    (there / scan.PLACE).unlink()
    ((text, asked, found),) = said
    me = f"pid {os.getpid()} on {os.uname().nodename}"
    assert f"another job ({me}) is laying out its files in {there}" in text
    assert (asked, len(found)) == (0, not changes) and facts(there) == facts(here)
    assert around.place == place


def test_a_job_does_not_ask_for_results_of_others_if_nothing_changes_there_but_its_own_file(
    here: Path, there: Path
) -> None:
    (here / "lib").write_text("lib")
    around = Around([], [], [b"a", b"b"])
    for name in ("a", "b"):
        (here / name).write_text(name)
        stage(here, there, name, "lib", around=around)
    (there / scan.PLACE).unlink()
    assert around.asked == 1 and facts(there) == facts(here)


def test_a_change_that_keeps_size_and_time_is_seen(here: Path, there: Path) -> None:
    (here / "a").write_bytes(b"old")
    facts_before = (here / "a").stat()
    stage(here, there, "a")
    (here / "a").write_bytes(b"new")
    os.utime(here / "a", ns=(facts_before.st_atime_ns, facts_before.st_mtime_ns))
    stage(here, there, "a")
    assert (there / "a").read_bytes() == b"new"


def test_fewer_blocks_than_bytes_are_no_holes(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZFS counts compressed blocks, and does not yet count blocks just written."""
    fstat = os.fstat

    class Packed:
        def __init__(self, fd: int) -> None:
            self._fact = fstat(fd)

        def __getattr__(self, name: str) -> Any:
            return 1 if name == "st_blocks" else getattr(self._fact, name)

    monkeypatch.setattr(os, "fstat", Packed)
    for number in range(3):
        (here / str(number)).write_bytes(os.urandom(1000 << 5 * number))
    stage(here, there, "0", "1", "2")
    assert facts(there) == facts(here)


@pytest.mark.long
def test_files_that_change_right_after_they_were_written_are_seen(here: Path, there: Path) -> None:
    """Within one tick of the clock the facts of a changed file may stay the same."""
    for number in range(30):
        (here / "a").write_bytes(b"%04d" % number)
        stage(here, there, "a")
        assert (there / "a").read_bytes() == b"%04d" % number


def test_what_was_there_by_itself_is_compared_and_not_sent(here: Path, there: Path) -> None:
    data = os.urandom(500_000)
    for top in (here, there):
        (top / "a").write_bytes(data)
    assert stage(here, there, "a") < 2000
    assert facts(there) == facts(here), "its time is set all the same"


def test_other_files_in_a_directory_are_left_alone(here: Path, there: Path) -> None:
    (here / "d").mkdir()
    (here / "d" / "a").write_text("a")
    (there / "d").mkdir()
    (there / "d" / "mine").write_text("mine")
    stage(here, there, "d")
    assert {path.name: path.read_text() for path in (there / "d").iterdir()} == {"a": "a", "mine": "mine"}


def test_a_directory_above_a_named_file_is_made_and_its_own_facts_are_not_sent(
    here: Path, there: Path
) -> None:
    (here / "x" / "y").mkdir(parents=True)
    (here / "x" / "y" / "z").write_text("z")
    (there / "x").mkdir(mode=0o701)
    stage(here, there, "x/y/z")
    assert (there / "x" / "y" / "z").read_text() == "z"
    assert stat.S_IMODE((there / "x").stat().st_mode) == 0o701
    assert stage(here, there, "x/y/z") < 200
    before = time.time() - 60
    assert bring(there, here / "x", "y/?") == ("", [])
    assert all(made.stat().st_mtime > before for made in (there / "x/y", there / "y")), (
        "the time of its making"
    )


def test_a_directory_of_a_group_stays_one(here: Path, there: Path) -> None:
    """An existing directory keeps its set-group-ID, and new directories in it inherit theirs."""
    (here / "t" / "new").mkdir(parents=True)
    (there / "t").mkdir()
    for folder, mode in ((there, 0o2755), (there / "t", 0o3775)):
        folder.chmod(mode)
    stage(here, there, "t")
    assert stat.S_IMODE((there / "t").stat().st_mode) == 0o3755
    assert stat.S_IMODE((there / "t" / "new").stat().st_mode) == 0o2755
    assert stage(here, there, "t") < 200, "and is as it should be"


def test_the_whole_directory(here: Path, there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(here)
    (here / ".quine").mkdir()
    (here / ".quine" / "tape").write_text("not for others")
    staging = Staging(["."], [], str(here), ".quine")
    from tests.staging.wired import inside

    relay = Relay(staging.giving().given)
    with inside(there):
        assert remote_main._staged(relay, staging.key)  # type: ignore[arg-type]
    relay.close()
    wanted = {name: fact for name, fact in facts(here).items() if not name.startswith(".quine")}
    assert facts(there) == wanted
    open_up(here.parent)


@pytest.mark.long
def test_there_may_be_more_directories_than_descriptors(here: Path, there: Path) -> None:
    names = [f"d{number}" for number in range(200)]
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (150, before[1]))
    try:
        for content in ("first", "changed"):  # a directory that is there is not replaced as a whole
            for name in names:
                (here / "t" / name).mkdir(parents=True, exist_ok=True)
                (here / "t" / name / "file").write_text(content)
            stage(here, there, "t")
            assert facts(there) == facts(here)
        for name in names:
            (there / "t" / name / "file").write_text("made")
        assert bring(here, there, "t") == ("", [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert facts(there) == facts(here)


@pytest.mark.parametrize("make", ["fifo", "out", "up", "behind"])
def test_what_cannot_be_staged_is_refused_by_name(here: Path, there: Path, make: str) -> None:
    (here / "t").mkdir()
    (here / "t" / "d").symlink_to(".")
    if make == "fifo":
        os.mkfifo(here / "t" / "bad")
    else:
        (here / "t" / "bad").symlink_to({"out": "/etc", "up": "../other", "behind": "d/../../.."}[make])
    with pytest.raises(RequestError, match="t/bad: "):
        stage(here, there, "t")
    assert list(there.iterdir()) == []


@pytest.mark.parametrize("limit", [0, 5, 300, 5_000, 700_000])
def test_a_line_that_is_cut_leaves_nothing(here: Path, there: Path, limit: int) -> None:
    (here / "t").mkdir()
    for number in range(100):
        (here / "t" / str(number)).write_bytes(os.urandom(10_000))
    with pytest.raises((RequestError, Broken)):
        stage(here, there, "t", limit=limit)
    assert list(there.iterdir()) == []
    stage(here, there, "t")
    assert facts(there) == facts(here)


def test_a_cut_leaves_nothing_of_a_deep_tree_either(here: Path, there: Path) -> None:
    deep = here / "t" / "/".join(["d"] * 300)
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(os.urandom(1_000_000))
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(250)
    try:
        with pytest.raises((RequestError, Broken)):
            stage(here, there, "t", limit=500_000)
    finally:
        sys.setrecursionlimit(before)
    assert list(there.iterdir()) == []


def test_what_came_before_a_cut_is_not_sent_again(here: Path, there: Path) -> None:
    (here / "t").mkdir()
    for number in range(100):
        (here / "t" / str(number)).write_bytes(os.urandom(100_000))
    with pytest.raises((RequestError, Broken)):
        stage(here, there, "t", limit=8_000_000)
    assert stage(here, there, "t") < 4_500_000


# ------------------------------------------------------------------------------------------ what comes back


def test_what_comes_back_is_as_it_was(here: Path, there: Path) -> None:
    plant(there)
    (there / "dangling").unlink()
    assert bring(here, there, "*") == ("", [])
    wanted = facts(there)
    assert (here / "link").read_bytes() == (there / "link").read_bytes(), (
        "a link that is named stands for its target"
    )
    (here / "link").unlink()
    (here / "link").symlink_to("d0/a b")
    assert facts(here) == wanted
    assert bring(here, there, "d0", "none", "x*") == ("", ["none", "x*"])
    assert facts(here) == wanted
    open_up(here.parent)


def test_a_result_in_a_directory_that_may_not_be_read_is_not_known_to_be_absent(
    there: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut = {"q": 0, "deep/in/s": 0, "listed": 0o400, "entered": 0o100, "lost+found": 0, ".git": 0}
    for name in [*shut, "g"]:
        (there / name).mkdir(parents=True)
        (there / name / "y").write_text("y")
    (there / "g/link").symlink_to("..")
    (there / "g/loop").symlink_to("loop")
    places = Places(("y", ".git"))
    with inside(there):
        source.check_read(["**/y", ".*/y", "*/*"], str(there), places)
        for name, mode in shut.items():
            (there / name).chmod(mode)
        if root := os.geteuid() == 0:
            there.chmod(0o755)
            for name in shut:
                os.chown(name, 65534, -1)
            os.seteuid(65534)
        try:
            for pattern, wrong in {
                "q/y": "q", "[q]/y": "q", "[q]/*": "q", "q/y/*": "q", "[q]/?/x": "q", "**/y": "q", "deep/**/y": "s",
                "deep/*/s/**": "s", "liste?/y": "listed", "listed/[y]": "listed", "listed/*": "listed",
                "entered/*": "entered", "entered/y/": "", "g/**": "", "g/*/*/z": "", "no/*": "", "g/y/*": "",
                "[q]": "", "q": "", "listed/[z]": "", "lost*/y": "", ".*/y": "", ".git/*": ".git",
            }.items():  # fmt: skip
                with contextlib.nullcontext() if not wrong else pytest.raises(PermissionError) as error:
                    source.check_read([pattern], ".", places)
                if wrong and pattern != "**/y":
                    assert os.path.basename(str(error.value.filename)) == wrong, pattern  # type: ignore[union-attr]
        finally:
            if root:
                os.seteuid(0)
            for name in shut:
                os.chmod(name, 0o700)
    monkeypatch.setattr(source.os, "scandir", lambda path: refused(path))
    failure, missing = bring(here, there, "*/y")
    assert failure.endswith(f"{there}: permission denied") and not missing
    status = Staging([], ["*/y"], str(here)).in_place([]).judged(Status("exited", 0))
    assert (status.code, status.detail) == (74, f"--returns */y: {here}: permission denied")
    assert not os.listdir(here)


def refused(path: str) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", path)


def test_the_umask_holds_for_what_comes_back(here: Path, there: Path) -> None:
    (there / "d").mkdir()
    (there / "d" / "f").write_text("")
    for path, mode in ((there / "d" / "f", 0o777), (there / "d", 0o770)):
        path.chmod(mode)
    before = os.umask(0o027)
    try:
        for _ in range(2):  # the second time it is there
            assert bring(here, there, "d") == ("", [])
            assert [stat.S_IMODE((here / name).stat().st_mode) for name in ("d", "d/f")] == [0o750, 0o750]
    finally:
        os.umask(before)


@pytest.mark.parametrize("year", [1900, 2400])
def test_a_time_that_is_far_away_is_no_hindrance(here: Path, there: Path, year: int) -> None:
    """A disk keeps times to 2446 and further, and nanoseconds of 64 bits end in 2262."""
    for name in ("small", "large"):
        (here / name).write_bytes(b"x" * (10 if name == "small" else 2 * BLOCK))
        subprocess.run(["touch", "-d", f"{year}-01-01T00:00:00Z", here / name], check=True, timeout=60)
    stage(here, there, "small", "large")
    assert stage(here, there, "small", "large") < 2000  # it is known
    assert bring(here, there, "small", "large") == ("", [])
    for top in (here, there):
        assert (top / "large").read_bytes() == b"x" * 2 * BLOCK and (top / "small").read_bytes() == b"x" * 10


def test_a_content_is_copied_from_a_file_that_nobody_may_read(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def closed(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None and flags & os.O_ACCMODE == os.O_RDONLY:
            with contextlib.suppress(FileNotFoundError):
                if not os.stat(path, dir_fd=dir_fd).st_mode & 0o400:
                    raise PermissionError(errno.EACCES, "Permission denied")  # as for anybody but root
        return real(path, flags, mode, dir_fd=dir_fd)

    for name in ("a", "b"):
        (here / name).write_bytes(b"the same")
    (here / "a").chmod(0)
    wanted = facts(here)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", closed)
        stage(here, there, "a", "b")
    assert facts(there) == wanted


def test_nothing_comes_back_where_one_thing_cannot(here: Path, there: Path) -> None:
    for name in ("a", "b", "c"):
        (there / name).write_text("new")
        (here / name).write_text("old")
    (here / "b").unlink()
    (here / "b").mkdir()
    failure, _ = bring(here, there, "a", "b", "c")
    assert "b: a directory stands where it should go" in failure
    assert (here / "a").read_text() == (here / "c").read_text() == "old"
    assert sorted(path.name for path in here.iterdir()) == ["a", "b", "c"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_files_come_back_where_there_are_no_hard_links(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """With protected_hardlinks another user's file is not linked; CIFS and exFAT have none at all."""
    for name in ("a", "b"):
        (there / name).write_text("new")
        (here / name).write_text("old")

    def link(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", link)
    assert bring(here, there, "a", "b") == ("", [])
    assert [(here / name).read_text() for name in ("a", "b")] == ["new", "new"]
    assert sorted(os.listdir(here)) == ["a", "b"]


def test_the_journal_is_synced_before_the_first_rename(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (there / "a").write_text("new")
    (here / "a").write_text("old")
    done: list[str] = []
    fsync, rename, commit = os.fsync, os.rename, apply.Layout.commit

    def synced(fd: int) -> None:
        done.append("sync " + os.path.basename(os.readlink(f"/proc/self/fd/{fd}")).partition("-aside-")[0])
        fsync(fd)

    def renamed(source: Any, target: Any, **more: int) -> None:
        done.append(f"rename {os.fsdecode(target)}")
        rename(source, target, **more)

    def watched(self: apply.Layout, undo: bool = False) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", synced)
            patch.setattr(os, "rename", renamed)
            commit(self, undo)
        (here.parent / "done").write_text("\n".join(done))  # of a process of its own

    monkeypatch.setattr(apply.Layout, "commit", watched)
    assert bring(here, there, "a") == ("", [])
    said = (here.parent / "done").read_text().split("\n")
    assert said == ["sync journal.new", "rename journal", "sync .quine", "rename a"]


@pytest.mark.parametrize("few", [0, 2])
def test_results_whose_copy_is_to_go_are_on_the_disk_first(
    here: Path, there: Path, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contents before the journal, the journal before the renames, and those before it is removed."""
    (there / "d").mkdir()
    for name in ("a", "d/b"):
        (there / name).write_text("new")
    events = here.parent / "events"  # of two processes
    fsync, unlink = os.fsync, os.unlink

    def noted(text: str) -> None:
        with open(events, "a") as file:
            file.write(f"{text}\n")

    def synced(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if path.endswith("/journal.new"):
            noted("journal")
        elif "/new/" in path:
            noted("content" if Path(path).read_text() == "new" else "a part")
        elif os.path.samestat(os.fstat(fd), os.stat(here)):
            noted("renames" if (here / "a").exists() and (here / "d/b").exists() else "nothing")
        fsync(fd)

    def unlinked(path: Any, **more: Any) -> None:
        unlink(path, **more)
        if path == "journal":
            noted("removed")

    monkeypatch.setattr(filling, "FEW", few)
    monkeypatch.setattr(filling, "sync_all", lambda folder: noted("content, by its file system"))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "unlink", unlinked)
    assert bring(here, there, "a", "d", lasting=True) == ("", [])
    contents = ["content"] * 2 if few else ["content, by its file system"]
    assert events.read_text().split("\n")[:-1] == [*contents, "journal", "renames", "removed"]
    events.unlink()
    for name in ("a", "d/b"):
        (there / name).write_text("newer")
    assert bring(here, there, "a", "d") == ("", [])
    assert events.read_text().split("\n")[:-1] == ["journal", "removed"]


def test_a_file_system_is_synced_by_one_of_its_directories(here: Path) -> None:
    fd = os.open(here, os.O_RDONLY)
    try:
        filling.sync_all(fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="descriptor"):
        filling.sync_all(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a file that it may not open is simulated")
def test_a_mode_is_not_given_through_a_link_that_is_swapped_in(
    here: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link replaces an unreadable file, between the attempt to open it and the change of its mode."""
    (here / "a").write_text("1")
    (here / "a").chmod(0o600)
    outside = tmp_path / "outside"
    outside.write_text("private")
    outside.chmod(0o400)
    stage(here, there, "a")
    (here / "a").chmod(0o666)
    finish, opened = apply.Layout._finish, os.open

    def swapped(self: apply.Layout, index: int, name: bytes, folder: int) -> None:
        def unreadable(path: Any, flags: int, *more: Any, **given: Any) -> int:
            if path == name and not flags & os.O_PATH:
                (there / "a").unlink()
                (there / "a").symlink_to(outside)
                raise PermissionError(errno.EACCES, "not for you")
            return opened(path, flags, *more, **given)

        with monkeypatch.context() as patch:
            patch.setattr(os, "open", unreadable)
            finish(self, index, name, folder)

    monkeypatch.setattr(apply.Layout, "_finish", swapped)
    stage(here, there, "a")
    assert stat.S_IMODE(outside.stat().st_mode) == 0o400


@pytest.mark.parametrize("links", [True, False])
def test_a_rename_that_fails_takes_the_others_back(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", refused_link)
    for name in ("a", "b", "c", "n"):
        (there / name).write_text("new")
        (here / name).write_text("old")
    (here / "n").unlink()
    before = facts(here)
    rename, count = os.rename, [0]

    def failing(source: str, target: bytes, **more: int) -> None:
        count[0] += target in (b"a", b"b", b"c", b"n")
        if count[0] == 4:
            count[0] += 1
            raise OSError(5, "Input/output error", target)
        rename(source, target, **more)

    monkeypatch.setattr(os, "rename", failing)
    failure, _ = bring(here, there, "n", "a", "b", "c")
    assert "input/output error" in failure
    monkeypatch.undo()
    assert facts(here) == before


@pytest.fixture
def meets(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Another process makes the same directories between the look and the renames, as jobs of one directory do."""
    commit = apply.Layout.commit

    def arrange(base: Path) -> None:
        def rival(layout: apply.Layout, undo: bool = False) -> None:
            (base / "out" / "deep").mkdir(parents=True)
            (base / "out" / "deep" / "other").write_text("theirs")
            (base / "out" / "b").write_text("old")
            commit(layout, undo)

        monkeypatch.setattr(apply.Layout, "commit", rival)

    return arrange


def spread(top: Path) -> None:
    (top / "out" / "deep" / "most").mkdir(parents=True)
    for name in ("a", "out/b", "out/deep/c", "out/deep/most/d", "z"):
        (top / name).write_text(name)
    (top / "out" / "deep" / "most").chmod(0o500)
    (top / "out" / "deep").chmod(0o750)


@pytest.mark.parametrize("way", ["stage", "bring"])
def test_of_many_who_make_one_directory_each_has_its_files_there(
    here: Path, there: Path, meets: Callable[[Path], None], way: str
) -> None:
    spread(here if way == "stage" else there)
    meets(there if way == "stage" else here)
    if way == "stage":
        stage(here, there, "a", "out", "z")
    else:
        assert bring(here, there, "a", "out", "z") == ("", [])
    other = (there if way == "stage" else here) / "out" / "deep" / "other"
    assert other.read_text() == "theirs"
    other.unlink()
    whole = {name: fact for name, fact in facts(here).items() if name != "out/deep"}  # whose time is theirs
    assert whole == {name: fact for name, fact in facts(there).items() if name != "out/deep"}
    assert stat.S_IMODE((here / "out" / "deep").stat().st_mode) == 0o750
    assert sorted(os.listdir(here)) == sorted(os.listdir(there)) == ["a", "out", "z"]
    open_up(here.parent)


def test_what_somebody_has_made_meanwhile_is_as_it_was_where_a_part_cannot_come(
    here: Path, there: Path, meets: Callable[[Path], None]
) -> None:
    spread(there)
    (there / "out" / "b").unlink()
    (there / "out" / "b").mkdir()  # where the other has a file
    meets(here)
    (here / "a").write_text("old")
    assert "out/b: " in bring(here, there, "a", "out", "z")[0]
    left = {name: fact[2] for name, fact in facts(here).items() if fact[2] is not None}
    assert left == {"a": b"old", "out/b": b"old", "out/deep/other": b"theirs"}
    assert sorted(os.listdir(here)) == ["a", "out"]
    open_up(here.parent)


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("moment", range(1, 8))
def test_who_comes_after_a_crash_finds_old_or_finishes(
    here: Path, there: Path, tmp_path: Path, moment: int, links: bool
) -> None:
    """A process dies at one rename after the other; then another process recovers."""
    for name in ("a", "b", "c"):
        (there / name).write_text("new")
        (here / name).write_text("old")
    (there / "d").mkdir()
    (there / "d" / "e").write_text("new")
    pid = os.fork()
    if not pid:
        rename, left = os.rename, [moment]

        def dying(*args: object, **more: object) -> None:
            left[0] -= 1
            if not left[0]:
                os._exit(9)
            rename(*args, **more)  # type: ignore[arg-type]

        status = 3
        try:
            from quine.staging import returns_receiver

            returns_receiver._apart = lambda layout, folder: layout.commit(undo=True)  # type: ignore[assignment, func-returns-value]
            os.environ["XDG_CACHE_HOME"] = str(tmp_path / "none\0"[:-1])
            returns_receiver.os.rename = dying  # type: ignore[assignment]
            if not links:
                returns_receiver.os.link = refused_link  # type: ignore[assignment]
            status = 3 if any(bring(here, there, "a", "b", "c", "d")) else 0
        finally:
            os._exit(status)
    ended = os.pidfd_open(pid)
    try:
        if not readable(ended, 100):
            os.kill(pid, signal.SIGKILL)
    finally:
        os.close(ended)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 9)
    renames.recover(os.fsencode(here))
    found = {path.name: path.read_text() for path in here.rglob("*") if path.is_file()}
    new = {"a": "new", "b": "new", "c": "new", "e": "new"}
    assert found in ([new] if status == 0 else [new, {"a": "old", "b": "old", "c": "old"}])
    assert sorted(path.name for path in here.iterdir()) == ["a", "b", "c"] + (["d"] if found == new else [])


def test_of_those_in_a_race_one_puts_its_result_in_place(here: Path, there: Path, tmp_path: Path) -> None:
    (there / "out").write_text("x")
    claims = [Claim(str(tmp_path / "race"), name) for name in ("one", "two")]
    (here / "out").mkdir()
    assert "a directory stands" in bring(here, there, "out", claim=claims[0])[0]
    (here / "out").rmdir()
    assert bring(here, there, "out", "none", claim=claims[0])[0] == spec.not_there(["none"])
    assert not list(here.iterdir())
    assert bring(here, there, "out", claim=claims[1]) == ("", [])
    (there / "out").write_text("y")
    assert bring(here, there, "out", claim=claims[0]) == ("another has won the race", [])
    assert (here / "out").read_text() == "x"
    assert [claim.take() for claim in claims] == [False, True]


def test_a_hostile_manifest_brings_nothing_that_was_not_asked_for(here: Path, there: Path) -> None:
    (there / "a").write_text("x")
    (there / "b").write_text("x")
    original = spec.matching
    try:
        spec.matching = lambda patterns, folder, places: original(["a", "b"], folder)
        failure, _ = bring(here, there, "a")
    finally:
        spec.matching = original
    assert "b was not asked for" in failure
    assert list(here.iterdir()) == []


OBEYED = [".git", ".quine", "inventory.toml", "personas"]
BELOW = ["d/inventory.toml", "d/personas"]


def plant_obeyed(there: Path) -> None:
    """Names that a guest may leave for its user to obey, here or once the user goes into a directory."""
    for name in (".git/hooks/post-commit", ".quine/x", "personas/me.md", "d/inventory.toml", "d/personas/x"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("x")
    (there / "inventory.toml").write_text("[hosts.h1]")


@pytest.mark.parametrize(
    ("patterns", "comes", "left"),
    [
        (["."], set(), [*OBEYED, *BELOW]),
        (["*", ".*"], set(), [*OBEYED, *BELOW]),
        (["*.toml"], set(), ["inventory.toml"]),
        (["*/*"], set(), [*BELOW, "personas"]),
        (["d"], set(), BELOW),
        (["d", "d/personas"], {"d/personas/x"}, BELOW[:1]),
        (["d/*", "d/personas/x"], {"d/personas/x"}, BELOW),
        (
            [".", "personas/*.md", "inventory.toml"],
            {"personas/me.md", "inventory.toml"},
            [".git", ".quine", "personas", *BELOW],
        ),
        ([".git", "*.toml"], {".git/hooks/post-commit"}, ["inventory.toml"]),
        ([".quine/x"], {".quine/x"}, []),
    ],
)
def test_names_that_are_obeyed_here_come_back_only_if_they_are_named(
    here: Path, there: Path, patterns: list[str], comes: set[str], left: list[str]
) -> None:
    plant_obeyed(there)
    assert bring(here, there, *patterns, left=left) == ("", [])
    assert {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()} == comes


def test_a_clone_that_comes_lacks_its_repository_at_any_level(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`core.fsmonitor` of `src/.git/config` is a command that git runs here."""
    for name in ("src/.git/config", "src/a/b/.Git/config", "src/a/.quine/x", "src/.github/x", "src/f"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("x")
    (here / "src/.git").mkdir(parents=True)
    left = ["src/.git", "src/a/.quine", "src/a/b/.Git"]
    taking = Staging([], ["src"], str(here)).taking()
    taking.left_out = left
    assert taking.note("h1").endswith("--returns src/a/b/.Git, or a file that tar makes there\n")
    for patterns in (["."], ["src"], ["s*"]):
        assert bring(here, there, *patterns, left=left) == ("", [])
    came = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    assert came == {"src/.github/x", "src/f"} and not list((here / "src/.git").iterdir())
    # From a host that sends it nevertheless.
    with monkeypatch.context() as patched:
        patched.setattr(Places, "below", lambda *_: [])
        assert "was not asked for" in bring(here, there, "src")[0]
    monkeypatch.chdir(there)
    assert shared_directory.clean(["src"], [], keeps=True) == 0
    assert {str(path.relative_to(there)) for path in there.rglob("*") if path.is_file()} == {
        "src/.git/config",
        "src/a/b/.Git/config",
        "src/a/.quine/x",
    }
    assert shared_directory.clean(["src"], []) == 0
    assert not (there / "src").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_name_that_is_obeyed_is_left_out_whatever_it_is(here: Path, there: Path, kind: str) -> None:
    """A file `.git` names a repository, and a link may lead into what has come."""
    (there / "d").mkdir()
    for name in OBEYED:
        (there / name).symlink_to("d/e") if kind == "link" else (there / name).write_text("gitdir: d")
    assert bring(here, there, ".", left=OBEYED) == ("", [])
    assert [path.name for path in here.iterdir()] == ["d"]


def test_a_host_cannot_send_what_was_to_be_left_out(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_obeyed(there)
    shutil.rmtree(there / "d")
    original = spec.matching
    monkeypatch.setattr(spec, "matching", lambda patterns, folder, places: original(["*"], folder))
    monkeypatch.setattr(scan, "_by_directory", lambda places: {})
    monkeypatch.setattr(Places, "below", lambda *_: [])
    failure, _ = bring(here, there, "*")
    assert "inventory.toml was not asked for" in failure
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [".GIT", "GIT~1", ".git.", ".g\u200cit", "Inventory.toml", "INVENT~1.TOM", "PERSON~1", "personas:x"],
)
def test_a_name_that_a_file_system_takes_for_one_that_is_obeyed_is_left_out(
    here: Path, there: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a mount that knows no case `.GIT/hooks` is that of the repository here."""
    (there / name).mkdir()
    (there / name / "x").write_text("x")
    (there / "d" / name).mkdir(parents=True)
    for patterns in (["."], ["*", ".*"], ["*/x", ".*/x"]):
        below = [f"d/{name}"] * (patterns[0] != "*/x")
        assert bring(here, there, *patterns, left=[name, *below])[0] == ""
    assert [path.name for path in here.rglob("*")] == ["d"]
    (here / name).mkdir()
    assert uses.placed(["."], ["."], str(here)) == ["d", "."]
    monkeypatch.chdir(there)
    assert shared_directory.clean(["*", ".*"], []) == 0
    assert [path.name for path in there.iterdir()] == [name]
    for pattern in (f"{spec.literal(name)}/x", spec.literal(name)):
        shutil.rmtree(here / name)
        assert bring(here, there, ".", pattern, left=[name] * pattern.endswith("/x")) == ("", [])
        assert (here / name / "x").read_text() == "x", "it was named"
    shutil.rmtree(here / name)
    original = spec.matching
    monkeypatch.setattr(spec, "matching", lambda patterns, folder, places: original(["*", ".*"], folder))
    monkeypatch.setattr(scan, "_by_directory", lambda places: {})
    monkeypatch.setattr(Places, "below", lambda *_: [])
    assert "was not asked for" in bring(here, there, "*", ".*")[0]
    assert not (here / name).exists()


def test_a_data_directory_elsewhere_is_left_out_too(here: Path, there: Path) -> None:
    (there / "state" / "q").mkdir(parents=True)
    (there / "state" / "q" / "tape").write_text("x")
    (there / "state" / "mine").write_text("x")
    assert bring(here, there, "state", left=["state/q"], data_dir="state/q") == ("", [])
    assert [path.name for path in (here / "state").iterdir()] == ["mine"]


def test_what_was_left_out_is_not_removed_there_either(
    there: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--cleanup removes what came; --files brought .git, and a pattern has left it there."""
    plant_obeyed(there)
    (there / "extra").write_text("x")
    for name in (".git", "extra"):
        (here / name).touch()
    monkeypatch.chdir(there)
    assert shared_directory.clean(uses.placed(["."], ["."], str(here)), []) == 0
    assert {path.name for path in there.iterdir()} == {*OBEYED, "d"}
    assert shared_directory.clean(["*", ".*"], []) == 0
    assert {path.name for path in there.iterdir()} == set(OBEYED)
    assert shared_directory.clean(uses.placed([".git"], ["personas"], str(here)), []) == 0
    assert {path.name for path in there.iterdir()} == {".quine", "inventory.toml"}


@settings(deadline=None, max_examples=35)
@given(data=st.data())
def test_whatever_comes_is_refused_or_taken_whole(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A job sends arbitrary messages in place of its files."""
    here = tmp_path_factory.mktemp("here")
    (here / "old").write_text("old")
    taking = Staging([], ["d", "g", "old"], str(here)).taking()
    relay = Relay(taking.taken)
    packed = bytearray(sample().pack())
    if data.draw(st.booleans()):
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    message = {
        "tree": digest_of(bytes(packed)),
        "missing": data.draw(st.sampled_from([[], ["g"], "g", 7, None])),
    }
    line = relay.stream("stage")
    try:
        tell(line, {"say": "out"})
        tell(line, message, bytes(packed))
        line.write(data.draw(st.binary(max_size=300)))
        line.end()
    finally:
        relay.close()
        if taking.layout:
            taking.layout.close()
    assert taking.failure
    assert {path.name for path in here.rglob("*")} == {"old"}


def test_nothing_is_written_through_a_link_of_the_callers(here: Path, there: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (here / "out").symlink_to(tmp_path / "elsewhere")
    (there / "out").mkdir()
    (there / "out" / "a").write_text("x")
    failure, _ = bring(here, there, "out/a")
    assert "link" in failure or "no directory" in failure
    assert list((tmp_path / "elsewhere").iterdir()) == []


# ------------------------------------------------------------------------------------------ manifests

names = st.lists(
    st.binary(min_size=1, max_size=6).filter(lambda b: b"/" not in b and b"\0" not in b), max_size=4
)


def sample() -> Manifest:
    manifest = Manifest()
    manifest.add(b"d", stat.S_IFDIR | 0o755, 5)
    manifest.add(b"d/f", stat.S_IFREG | 0o644, -7, 100, bytes(32))
    manifest.add(b"d/l", stat.S_IFLNK | 0o777, 0, 0, b"f")
    manifest.add(b"g", stat.S_IFREG | 0o600, 1 << 60, 1 << 40, b"x" * 32)
    return manifest


def test_a_manifest_is_what_it_was() -> None:
    packed = sample().pack()
    again = parse(packed)
    assert again.pack() == packed
    assert (again.names, list(again.mtimes), list(again.sizes), again.marks) == (
        sample().names,
        [5, -7, 0, 1 << 60],
        [0, 100, 0, 1 << 40],
        [b"", bytes(32), b"f", b"x" * 32],
    )
    assert again.roots == [b"d", b"g"]


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_a_broken_manifest_is_refused_or_harmless(data: st.DataObject) -> None:
    packed = bytearray(sample().pack())
    for _ in range(data.draw(st.integers(1, 4))):
        kind = data.draw(st.sampled_from(["flip", "cut", "insert"]))
        at = data.draw(st.integers(0, max(0, len(packed) - 1)))
        if kind == "flip" and packed:
            packed[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del packed[at : at + data.draw(st.integers(1, 9))]
        else:
            packed[at:at] = data.draw(st.binary(max_size=9))
    try:
        found = parse(bytes(packed))
    except BadManifest:
        return
    for name in found.names:
        assert not name.startswith(b"/") and b".." not in name.split(b"/") and b"\0" not in name


@pytest.mark.parametrize(
    "name",
    [b"/a", b"..", b"../a", b"a/../b", b".", b"", b"a//b", b"a/", b"d/f/x", b"no/parent", b"d", b"n" * 256],
)
def test_a_name_that_leads_elsewhere_is_refused(name: bytes) -> None:
    manifest = sample()
    manifest.add(name, stat.S_IFREG | 0o644, 0, 0, bytes(32))
    with pytest.raises(BadManifest):
        parse(manifest.pack())


def test_modes_and_kinds_that_are_not_ours_are_refused() -> None:
    for mode in (
        stat.S_IFIFO | 0o644,
        stat.S_IFREG | 0o4755,
        stat.S_IFCHR | 0o600,
        0o644,
        stat.S_IFDIR | 1 << 31,
    ):
        manifest = Manifest()
        manifest.add(b"a", mode, 0, 0, bytes(32))
        with pytest.raises(BadManifest):
            parse(manifest.pack())


@pytest.mark.parametrize(
    ("name", "target", "fine"),
    [
        (b"d/l", b"f", True),
        (b"d/l", b"./x/../f", False),
        (b"d/l", b"../d/f", True),
        (b"d/l", b"../e", False),
        (b"d/l", b"../../d", False),
        (b"d/l", b"/d/f", False),
        (b"d/l", b"", False),
        (b"d/e/l", b"../f", True),
        (b"l", b"d", True),
    ],
)
def test_where_links_may_lead(name: bytes, target: bytes, fine: bool) -> None:
    assert stays(name, target, [b"d"]) is fine


@given(st.sets(st.integers(0, 199)))
def test_bits(numbers: set[int]) -> None:
    assert set_bits(bits(sorted(numbers), 200), 200) == sorted(numbers)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_extents_that_come_are_checked(data: bytes) -> None:
    class Line:
        def __init__(self) -> None:
            self.left = [data]

        def read(self, size: int) -> bytes:
            return self.left.pop() if self.left else b""

        def write(self, data: bytes) -> None: ...

    try:
        found = parse_head(Feed(Line()).take, 1 << 20)
    except Broken:
        return
    end = 0
    for start, length in found:
        assert start >= end and length > 0
        end = start + length
    assert end <= 1 << 20


# ------------------------------------------------------------------------------------------ what a host keeps


def test_a_content_that_was_spoilt_is_asked_for_again(here: Path, cache: Path, tmp_path: Path) -> None:
    (here / "a").write_bytes(os.urandom(100_000))
    stage(here, _new(tmp_path / "1"), "a")
    (pack,) = (cache / "quine" / "staging" / "objects").glob("*.pack")
    with open(pack, "r+b") as file:
        file.seek(50_000)
        file.write(b"spoilt")
    assert stage(here, _new(tmp_path / "2"), "a") > 100_000
    assert facts(tmp_path / "2") == facts(here)


def test_what_a_host_keeps_is_bounded_and_ours_alone(here: Path, cache: Path, tmp_path: Path) -> None:
    for number in range(4):
        (here / "a").write_bytes(os.urandom(100_000))
        stage(here, _new(tmp_path / str(number)), "a")
    folder = cache / "quine" / "staging" / "objects"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for number, pack in enumerate(sorted(folder.glob("*.pack"))):
        os.utime(pack, (time.time() - 100 + number,) * 2)
    newest = max(folder.glob("*.pack"), key=lambda path: path.stat().st_mtime)
    (folder / "dead.part").write_bytes(b"x")
    store.clean(str(folder), 150_000)
    assert [path.stem for path in folder.glob("*.pack")] == [newest.stem]
    assert [path.stem for path in folder.glob("*.index")] == [newest.stem]
    assert not (folder / "dead.part").exists()


@pytest.mark.long
def test_small_packs_are_made_one_and_all_of_it_is_still_here(
    here: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand jobs with a file each would be ten thousand indexes to be read by the next."""
    monkeypatch.setattr(store, "MANY", 10)
    (here / "large").write_bytes(os.urandom(2 * store.SMALL))
    stage(here, _new(tmp_path / "first"), "large")
    for number in range(2 * store.MANY):
        (here / "a").write_bytes(b"%d" % number * 5000)
        stage(here, _new(tmp_path / str(number)), "a")
    folder = cache / "quine" / "staging" / "objects"
    packs = list(folder.glob("*.pack"))
    assert len(packs) < store.MANY + 2 and len(packs) == len(list(folder.glob("*.index")))
    for number in range(2 * store.MANY):
        (here / "a").write_bytes(b"%d" % number * 5000)
        assert stage(here, _new(tmp_path / f"again-{number}"), "a", "large") < 2000
        assert (tmp_path / f"again-{number}" / "a").read_bytes() == b"%d" % number * 5000


def test_who_has_looked_before_a_merge_finds_it_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    digests = [hashlib.blake2b(b"%d" % number, digest_size=32).digest() for number in range(store.MANY)]
    known = store.Objects()
    for number, digest in enumerate(digests[:-1]):
        pack = store.Pack(known.folder)
        pack.add(digest, b"%d" % number)
        pack.close()
    search = known._search

    def merged_meanwhile(wanted: set[bytes]) -> dict[bytes, tuple[str, int, int]]:
        found = search(wanted)
        last = store.Pack(known.folder)
        last.add(digests[-1], b"last")
        last.close()
        monkeypatch.setattr(known, "_search", search)
        return found

    monkeypatch.setattr(known, "_search", merged_meanwhile)
    assert known.among({*digests[:-1]}) == {*digests[:-1]}
    assert len(os.listdir(known.folder)) == 3, "one pack, its index, and the lock of who cleans"
    for number, digest in enumerate(digests[:-1]):
        assert b"".join(known.pieces(digest)) == b"%d" % number
    known.close()


@pytest.mark.long
@given(st.sets(st.binary(min_size=32, max_size=32), max_size=200), st.data())
def test_few_are_searched_for_and_many_are_read(there_: set[bytes], data: st.DataObject) -> None:
    table = memoryview(b"".join(store._ENTRY.pack(each, 1, 2) for each in sorted(there_)))
    wanted = data.draw(st.sets(st.binary(min_size=32, max_size=32), max_size=3))
    if there_:
        wanted |= data.draw(st.sets(st.sampled_from(sorted(there_)), max_size=3))
    assert {row[0] for row in store._rows(table, wanted)} == wanted & there_


@pytest.mark.parametrize("spoil", [b"", b"x", b"quine-seen-1 a b -zz\n", b"\xff" * 100])
def test_a_record_that_is_torn_is_as_none(here: Path, there: Path, cache: Path, spoil: bytes) -> None:
    (here / "a").write_bytes(b"x" * 1000)
    stage(here, there, "a")
    for path in (cache / "quine" / "staging" / "seen").iterdir():
        path.write_bytes(spoil)
    stage(here, there, "a")
    for path in (cache / "quine" / "staging" / "seen").iterdir():
        path.write_bytes(path.read_bytes()[:-40])
    (here / "b").write_bytes(b"y")
    stage(here, there, "a")
    assert (there / "a").read_bytes() == b"x" * 1000


def test_a_record_that_there_is_no_room_for_leaves_nothing(here: Path, cache: Path) -> None:
    """A limit on the size of a file fails a write as a full disk does."""
    found = scan.scan([(os.fsencode(here), b"")])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, before[1]))
    try:
        scan.remember("key", "digest", found, [], bytes(1000), [])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((cache / "quine" / "staging" / "seen").iterdir()) == []


def test_a_file_that_is_written_all_the_time_is_named(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = here / "log"
    path.write_bytes(b"x" * 3_000_000)
    read = os.pread

    def growing(fd: int, size: int, at: int) -> bytes:
        with open(path, "ab") as file:
            file.write(b"y")
        return read(fd, size, at)

    monkeypatch.setattr(os, "pread", growing)
    with pytest.raises(Changed) as caught:
        measure(os.fsencode(path))
    assert caught.value.filename == os.fsencode(path)


def test_a_file_of_the_kernel_is_not_said_to_change() -> None:
    with pytest.raises(OSError, match="not as long as it says") as raised:
        measure(b"/proc/self/status")
    assert not isinstance(raised.value, Changed), "another try would not help"


def test_a_file_that_changes_between_its_digest_and_its_way_is_read_again(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = here / "a"
    path.write_bytes(b"1" * 3_000_000)
    send, times = Tree._send, [0]

    def changing(tree: Tree, line: object, wanted: bytes) -> None:
        times[0] += 1
        if times[0] == 1:
            path.write_bytes(b"2" * 3_000_000)
        send(tree, line, wanted)  # type: ignore[arg-type]

    monkeypatch.setattr(Tree, "_send", changing)
    stage(here, there, "a")
    assert (there / "a").read_bytes() == b"2" * 3_000_000


def test_a_scan_waits_for_the_tick_of_the_clock(here: Path) -> None:
    (here / "a").write_text("x")
    sources = [(os.fsencode(here / "a"), b"a")]
    found, calm = scan.resolve_ambiguous(lambda: scan.scan(sources), scan.scan(sources))
    assert calm and found.newest + scan.TICK <= found.began


def test_a_tree_that_keeps_changing_is_scanned_no_more_often_than_its_scans_are_used(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tick that no busy machine takes between a change and its scan, and nobody waits for.
    monkeypatch.setattr(scan, "TICK", 3600 * 10**9)
    monkeypatch.setattr(scan.time, "sleep", lambda seconds: None)
    path = here / "a"
    path.write_text("x")
    taken: list[scan.Scan] = []

    def changed() -> scan.Scan:
        path.write_text("y")
        taken.append(scan.scan([(os.fsencode(path), b"a")]))
        return taken[-1]

    found, calm = scan.resolve_ambiguous(changed, changed())
    assert not calm and found is taken[-1] and len(taken) == scan.PATIENCE


def slowly(top: Path) -> dict[bytes, bytes]:
    """Return the facts that a scan should have found."""
    found = {}
    for folder, folders, files in os.walk(os.fsencode(top)):
        for name in folders + files:
            fact = os.lstat(os.path.join(folder, name))
            row = (fact.st_ino, fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, fact.st_mode)
            found[os.path.relpath(os.path.join(folder, name), os.fsencode(top))] = scan.FACTS.pack(*row)
    return found


def change(top: Path, what: str, name: str, data: bytes) -> None:
    """Something that happens to files between two stagings."""
    path = top / name
    if what == "write":
        path.write_bytes(data)
    elif what == "new":
        (top / "d" / f"new-{name.replace('/', '-')}").write_bytes(data)
    elif what == "mode":
        path.chmod(0o600 + data[0] % 64)
    elif what == "replace":
        path.with_name("aside").write_bytes(data)
        path.with_name("aside").rename(path)
    elif what == "hide":  # as a program that is after us would: size and time are what they were
        before = path.stat()
        path.write_bytes(data * 3)
        os.truncate(path, before.st_size)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES = st.tuples(
    st.booleans(),
    st.sampled_from(["write", "new", "mode", "replace", "hide"]),
    st.sampled_from(["a", "d/b", "d/e/c"]),
    st.binary(min_size=1, max_size=9),
)


@pytest.mark.long
@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(CHANGES, max_size=3), min_size=1, max_size=4))
def test_whatever_has_changed_on_either_side_is_seen_and_nothing_else_is_sent(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[tuple[bool, str, str, bytes]]]
) -> None:
    """The quick comparison finds the same changes as the slow one."""
    here, there = tmp_path_factory.mktemp("here"), tmp_path_factory.mktemp("there")
    (here / "t" / "d" / "e").mkdir(parents=True)
    for name in ("a", "d/b", "d/e/c"):
        (here / "t" / name).write_bytes(b"first")
    stage(here, there, "t")
    for changes in rounds:
        before = [scan.scan([(os.fsencode(top / "t"), b"")]) for top in (here, there)]
        for is_here, what, name, data in changes:
            change((here if is_here else there) / "t", what, name, data)
        for earlier, top in zip(before, (here, there), strict=True):
            now = scan.scan([(os.fsencode(top / "t"), b"")])
            assert now.by_name() == slowly(top / "t")
            assert (now.hash == earlier.hash) == (now.by_name() == earlier.by_name())
        sent = stage(here, there, "t")
        if not changes:
            assert sent < 200
        for name, fact in facts(here).items():
            if not (here / name).is_dir():
                assert facts(there)[name] == fact


def test_a_scan_says_where_it_failed_and_leaves_out_what_is_gone(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "d").mkdir()
    for name in ("d/a", "d/b"):
        (here / name).write_text("x")
    stat_of = os.stat

    def gone(name: object, **more: object) -> os.stat_result:
        if name == "a":
            raise FileNotFoundError(errno.ENOENT, "gone", name)
        return stat_of(name, **more)  # type: ignore[arg-type, no-any-return, call-overload]

    monkeypatch.setattr(os, "stat", gone)
    assert scan.scan([(os.fsencode(here), b"")]).names == [b"d", b"d/b"]

    def broken(name: object, **more: object) -> os.stat_result:
        if name == "b":
            raise OSError(errno.EIO, "broken", name)
        return stat_of(name, **more)  # type: ignore[arg-type, no-any-return, call-overload]

    monkeypatch.setattr(os, "stat", broken)
    with pytest.raises(OSError, match="broken") as caught:
        scan.scan([(os.fsencode(here), b"")])
    assert caught.value.filename == os.fsencode(here / "d" / "b")


# ------------------------------------------------------------------------------------------ what users say


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("a/b", "a/b"),
        ("./a//b/", "a/b"),
        ("a/../a/b", "a/b"),
        ("{top}/a/b", "b"),
        ("../here/a", "a"),
        ("{top}/./a/b", "a/b"),
        ("a/./b", "b"),
        ("a/b:x/y", "x/y"),
        ("a/b:x/", "x/b"),
        ("c:d", "c:d"),
        ("c:d:e", "e"),
        ("c:d:.", "c:d"),
        ("c:d:./", "c:d"),
        ("a/b:.", ""),
        (".", ""),
        ("*", "a"),
    ],
)
def test_names_over_there(here: Path, said: str, name: str) -> None:
    (here / "a" / "b").mkdir(parents=True)
    (here / "c:d").write_text("")
    found = spec.sources([said.format(top=here)], str(here))
    assert name in [os.fsdecode(pair[1]) for pair in found]
    assert all(os.path.exists(path) for path, _ in found)


def test_a_name_that_is_literal_means_itself(here: Path) -> None:
    for name in ("a", "b", "~", "*", "a:b", "[a]", "?"):
        (here / name).write_text(name)
        assert spec.sources([spec.literal(name)], str(here)) == [(os.fsencode(here / name), name.encode())]
    assert spec.sources(["~"], str(here)) == [(os.fsencode(here / "~"), b"~")]  # typed, and it exists
    for name in ("none:x", "n*", "[n]"):
        with pytest.raises(Misconfigured) as refused:
            spec.sources([spec.literal(name)], str(here))
        assert refused.value.detail == f"--files {name}: no such file or directory"


TWINS = [
    "a?",
    "a[?]",
    "a[??]",
    "a[[]?]",
    "a[[[]??]",
    "a*",
    "a[**]",
    "b:c",
    "b[:]c",
    "b[::]c",
    "[",
    "[[]",
    "[[[]",
    "[:[",
]


@pytest.mark.parametrize("item", TWINS)
def test_an_item_is_not_another_one_whose_name_is_its_quoted_form(
    here: Path, there: Path, item: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of the other one came back in its place, with the status 0."""
    for name in {*TWINS} - {item}:
        (here / name).write_text(name)
        (there / f"{name}.out").write_text(name)
    word = spec.literal(item)
    assert spec.name_of(word) == spec.text_of(word) == item
    with pytest.raises(Misconfigured) as refused:
        spec.sources([word], str(here))
    assert refused.value.detail == f"--files {item}: no such file or directory"
    assert bring(here, there, f"{word}.out") == ("", [f"{word}.out"])
    assert not any(spec.allowed(f"{name}.out".encode(), [f"{word}.out"]) for name in {*TWINS} - {item})
    monkeypatch.chdir(there)
    assert shared_directory.clean([f"{word}.out"], []) == 0
    assert len(list(there.iterdir())) == len({*TWINS}) - 1
    (here / item).write_text(item)
    (there / f"{item}.out").write_text("made there")
    assert spec.sources([f"{word}:{word}.in"], str(here)) == [
        (os.fsencode(here / item), os.fsencode(f"{item}.in"))
    ]
    assert spec.sources([word], str(here)) == [(os.fsencode(here / item), os.fsencode(item))]
    assert bring(here, there, f"{word}.out") == ("", [])
    assert (here / f"{item}.out").read_text() == "made there"


def test_what_is_typed_means_the_file_of_this_name_and_else_the_pattern(here: Path, there: Path) -> None:
    for name in ("a?", "b[?]", "b?"):
        (here / name).touch()
        (there / name).touch()
    assert [name for _, name in spec.sources(["a[?]", "b[?]"], str(here))] == [b"a?", b"b[?]"]
    assert [name for _, name in spec.matching(["a[?]", "b[?]"], str(there))[0]] == [b"a?", b"b[?]"]
    assert spec.allowed(b"b[?]", ["b[?]"]) and spec.allowed(b"b?", ["b[?]"])


@pytest.mark.parametrize("pattern", ["*", "a/*", "**", "../here/*", "{top}/*", "a/./*"])
def test_a_pattern_does_not_lead_out_of_the_tree(here: Path, tmp_path: Path, pattern: str) -> None:
    """A file of the tree that is a link to a key outside would go to the host, and nobody has named it."""
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("")
    (here / "a").mkdir()
    (here / "a" / "file").write_text("")
    (here / "inside").symlink_to("a/file")
    (here / "a" / "inside").symlink_to("../inside")
    said = pattern.format(top=here)
    assert spec.sources([said], str(here))
    place = here / "a" if pattern.startswith("a/") else here
    for target in (tmp_path / "secret", tmp_path / "secret" / "key"):
        (place / "link").symlink_to(target)
        with pytest.raises(Misconfigured, match=f"link is a link that leads out, to {target}"):
            spec.sources([said], str(here))
        (name,) = spec.sources([str(place / "link")], str(here))
        assert name == (os.fsencode(place / "link"), b"link")
        (place / "link").unlink()


def test_a_match_that_is_no_link_any_more_as_it_is_followed_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "f").touch()
    (here / "link").symlink_to("f")
    read = os.readlink

    def late(path: Any, **more: Any) -> Any:
        if (here / "link").is_symlink():
            (here / "link").unlink()
            (here / "f").rename(here / "link")
        return read(path, **more)

    monkeypatch.setattr(os, "readlink", late)
    with pytest.raises(Misconfigured, match=f"--files \\*: {here}/link: Invalid argument"):
        spec.sources(["*"], str(here))


@pytest.mark.parametrize("victim", ["in/f", "in/d"])
@pytest.mark.parametrize("seam", ["__init__", "_build"], ids=["before the scan", "after the scan"])
def test_a_match_that_becomes_a_link_is_not_sent(
    here: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, seam: str
) -> None:
    """Another user of its directory exchanges it for a link, after the names of the matches were judged."""
    secret = tmp_path / "secret"
    for path in (here / "in" / "d" / "f", here / "in" / "f", secret / "f"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(path))
    (here / "in" / "inside").symlink_to("d/f")
    target = secret / "f" if victim == "in/f" else secret
    step = getattr(Tree, seam)

    def swapping(*args: object) -> object:
        if not (here / victim).is_symlink():
            (here / victim).rename(here / "aside")
            (here / victim).symlink_to(target)
        return step(*args)

    with (
        monkeypatch.context() as patch,
        pytest.raises(RequestError, match=f"{victim}: .*out of .* to {target}"),
    ):
        patch.setattr(Tree, seam, swapping)
        stage(here, there, "in/*")
    assert list(there.iterdir()) == []
    (here / victim).unlink()
    (here / "aside").rename(here / victim)
    stage(here, there, "in/*")
    assert (there / "in" / "inside").read_text() == (there / "in" / "d" / "f").read_text()


@pytest.mark.parametrize("said", ["", "none", "a:/x", "a:../x", "a:..", "/", "n*", "none:x"])
def test_what_is_refused(here: Path, said: str) -> None:
    (here / "a").mkdir()
    with pytest.raises(Misconfigured):
        spec.sources([said], str(here))


def test_two_files_for_one_name_are_refused_and_one_named_twice_is_not(here: Path) -> None:
    (here / "a").mkdir()
    (here / "a" / "x").write_text("")
    (here / "b").mkdir()
    (here / "b" / "x").write_text("")
    assert [name for _, name in spec.sources(["a/x", "a", "a"], str(here))] == [b"a"]
    for said in (["a/x", "b/x:a/x"], ["a", "b/x:a/x"]):
        with pytest.raises(Misconfigured, match="two files"):
            spec.sources(said, str(here))


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../b", "..", ""])
def test_returns_stay_below(pattern: str) -> None:
    with pytest.raises(Misconfigured):
        spec.returns([pattern])


@pytest.mark.parametrize("pattern", ["link/x", "out/link/*", "plain/x"])
def test_results_that_would_go_through_a_link_are_refused_before_the_job(
    pattern: str, tmp_path: Path
) -> None:
    """They were refused after it, and hours of work had to be fetched from the host."""
    (tmp_path / "out").mkdir()
    (tmp_path / "plain").touch()
    for link in ("link", "out/link"):
        (tmp_path / link).symlink_to("/var")
    with pytest.raises(Misconfigured, match="is no directory, or a link to one"):
        Staging([], ["out/x", pattern], str(tmp_path)).moving()
    Staging([], ["out/x", "new/dir/x", "out/*/x", "link"], str(tmp_path)).moving()
    Staging([], [pattern], str(tmp_path)).in_place([])  # nothing is written


@pytest.mark.parametrize("item", ["sub[x]", "a*", "what?", "10:30"])
def test_the_name_of_an_item_is_known_though_it_has_characters_of_patterns(item: str, tmp_path: Path) -> None:
    """As the directory of results, as that in which a pattern of files begins, and before a colon."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "f").touch()
    here = tmp_path / "here"
    here.mkdir()
    (here / item).symlink_to(elsewhere)
    with pytest.raises(Misconfigured, match="is no directory, or a link to one"):
        Staging([], [f"{spec.literal(item)}/x"], str(here)).moving()
    assert spec.sources([f"{spec.literal(item)}/*"], str(here)) == [
        (os.fsencode(here / item / "f"), os.fsencode(f"{item}/f"))
    ]
    with pytest.raises(Misconfigured, match="the file has its own name"):
        spec.check_names([f"{spec.literal(item)}:name"], str(here))


@pytest.mark.parametrize(
    ("name", "pattern", "fine"),
    [
        ("a", "a", True),
        ("a/b/c", "a", True),
        ("a/b/c", "a/*", True),
        ("ab", "a", False),
        ("a/.h", "a/*", False),
        ("a/b/c.log", "**/*.log", True),
        ("c.log", "**/*.log", True),
        ("a/c.txt", "**/*.log", False),
        ("x/y", "x*", True),
        ("x", "x/y", False),
        ("[", "[", True),
    ],
)
def test_what_may_come_back(name: str, pattern: str, fine: bool) -> None:
    assert spec.allowed(name.encode(), [pattern]) is fine


@settings(deadline=None, max_examples=60)
@given(names, st.sampled_from(["*", "**", "a*", "?", "**/a", "*/*", "[!a]*"]))
def test_what_a_pattern_finds_may_come_back(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], pattern: str
) -> None:
    if not parts or any(part in (b".", b"..") for part in parts):
        return
    top = tmp_path_factory.mktemp("glob")
    path = os.path.join(os.fsencode(top), *parts)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    Path(os.fsdecode(path)).write_bytes(b"")
    found = spec.matching([pattern], str(top))[0]
    assert all(spec.allowed(name, [pattern]) for _, name in found)
