"""The index of a repository of somebody else: whatever is in its place, git may track the path, or it does not."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import tracemalloc
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from transport.provenance import aliases, git_index
from transport.provenance.safe_path import Unsafe

HUGE = 20 << 30  # bytes, all of them a hole


def git(*words: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", *identity, *words], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose index has one file, which is not the path that is asked for."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "clone")
    monkeypatch.chdir("clone")
    Path("a").write_text("a")
    git("add", "a")
    return Path.cwd()


def refused(clone: Path, place: str) -> str:
    with pytest.raises(Unsafe, match="git may track it") as said:
        git_index.tracks(str(clone / ".quine"))
    assert str(clone / place) in str(said.value) and said.value.hint.startswith(f"look at {clone / place}")
    return str(said.value)


def replaced(path: Path, made: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
    made(path)


def hole(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


PLANTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "no regular file"),
    "directory": (os.mkdir, "directory"),
    "hole": (hole, "more than"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "no such file"),
}


@pytest.mark.parametrize("name", ["index", "config", "commondir"])
@pytest.mark.parametrize("planted", PLANTED)
def test_a_file_of_git_that_is_none(clone: Path, name: str, planted: str) -> None:
    made, why = PLANTED[planted]
    if planted == "link to nothing" and name != "index":
        pytest.skip("as if it were not there, which is allowed")
    replaced(clone / ".git" / name, made)
    assert why in refused(clone, f".git/{name}")


@pytest.mark.parametrize("planted", ["pipe", "device", "hole", "link to nothing"])
def test_something_else_in_the_place_of_the_repository(clone: Path, planted: str) -> None:
    made, why = PLANTED[planted]
    (clone / ".git").rename(clone / "git")
    made(clone / ".git")
    assert why in refused(clone, ".git")


@pytest.mark.parametrize("text", ["", "gitdir: /dev/zero", "gitdir: a\0b", "\x1b[31m\n"])
def test_a_file_that_names_no_repository(clone: Path, text: str) -> None:
    (clone / ".git").rename(clone / "git")
    (clone / ".git").write_text(text)
    refused(clone, ".git")
    (clone / ".git").write_text("gitdir: git")
    assert not git_index.tracks(str(clone / ".quine"))
    assert git_index.tracks(str(clone / "a"))


def test_one_whose_index_was_moved_may_track_all_until_git_has_made_another(clone: Path) -> None:
    git("commit", "-qm", "all")
    index = clone / ".git" / "index"
    index.write_bytes(b"junk")
    with pytest.raises(Unsafe) as said:
        git_index.tracks(str(clone / "a"))
    move, again = said.value.hint.partition(", then ")[2].split("; ")
    subprocess.run(["sh", "-ec", move], check=True)
    with pytest.raises(Unsafe, match="index is missing") as said:
        git_index.tracks(str(clone / "a"))
    assert said.value.hint.endswith(again)
    subprocess.run(["sh", "-ec", again], check=True, capture_output=True)
    assert git_index.tracks(str(clone / "a")) and not git_index.tracks(str(clone / ".quine"))


def test_a_repository_without_objects_tracks_nothing(clone: Path) -> None:
    git("init", "-q", "new")
    assert not git_index.tracks(str(clone / "new" / "a"))
    (clone / ".git").rename(clone / "git")
    (clone / ".git").write_text("gitdir: nowhere")  # of a work tree that is mounted alone in a container
    assert not git_index.tracks(str(clone / "a"))


def test_a_configuration_that_only_mentions_the_other_hash(clone: Path) -> None:
    git("remote", "add", "origin", "https://example.org/sha256-simd.git")
    git("config", "remote.extensions.objectFormat", "sha256")
    git("config", "branch.sha256.objectFormat", "sha256")
    assert git_index.tracks(str(clone / "a")) and not git_index.tracks(str(clone / ".quine"))


@pytest.mark.parametrize("spelled", [".Quine", ".QUINE", ".quine\u200c", "QUINE~1"])
def test_a_name_that_some_file_system_takes_for_the_path(clone: Path, spelled: str) -> None:
    """Checked out where case is ignored it is a directory that the repository has brought."""
    (clone / spelled / "Jobs").mkdir(parents=True)
    (clone / spelled / "Jobs" / "A.jsonl").write_text("")
    git("-c", "core.protectNTFS=false", "-c", "core.protectHFS=false", "add", "-f", ".")
    for path in (".quine", ".quine/jobs", ".quine/jobs/a.jsonl"):
        assert git_index.tracks(str(clone / path)), path
    assert not git_index.tracks(str(clone / ".quine" / "other"))
    tracked = git_index.Tracked(str(clone / ".quine" / "jobs"))
    assert "a.jsonl" in tracked and "b.jsonl" not in tracked


def test_one_without_a_configuration_tracks_what_its_index_says(clone: Path) -> None:
    (clone / ".git" / "config").unlink()
    assert git_index.tracks(str(clone / "a"))


@pytest.mark.parametrize("version", ["2", "4"])
def test_each_cut_and_each_junk_is_found(clone: Path, version: str) -> None:
    for number in range(5):
        (clone / f"b{number}").write_text("b")
    git("update-index", "--index-version", version)
    git("add", ".")
    git("commit", "-qm", "all")  # an extension, the tree, follows the entries
    path = clone / ".git" / "index"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20] + bytes(20))  # index.skipHash
    assert not git_index.tracks(str(clone / ".quine"))
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        refused(clone, ".git/index")
    later = whole[:4] + struct.pack(">I", 9) + whole[8:]
    for junk in (
        b"x" * 100,
        later,
        later[:-20] + bytes(20),
        whole + b"more",
        whole[:-22] + b"xx" + whole[-20:],
    ):
        path.write_bytes(junk)
        refused(clone, ".git/index")


def test_names_that_cost_more_than_the_file_has(clone: Path) -> None:
    """Version 4: each name is the one before and more; and a number goes on as long as its bytes say so."""
    entry = bytes(62)
    path = clone / ".git" / "index"
    for names in ([b"\0" + b"x" * 100 + b"\0"] * 100_000, [b"\xff" * (4 << 20)], [b"\x7f\0"]):
        head = b"DIRC" + struct.pack(">II", 4, len(names))
        path.write_bytes(head + b"".join(entry + name for name in names) + bytes(20))
        refused(clone, ".git/index")


def planted(clone: Path, names: Iterable[str]) -> None:
    """An index of version 4 with these names, of which each has the bytes that the one before has not."""
    entries, before = [], b""
    for name in map(str.encode, names):
        same = next((at for at, pair in enumerate(zip(before, name, strict=False)) if pair[0] != pair[1]), 0)
        entries.append(bytes(62) + number(len(before) - same) + name[same:] + b"\0")
        before = name
    head = b"DIRC" + struct.pack(">II", 4, len(entries))
    (clone / ".git" / "index").write_bytes(head + b"".join(entries) + bytes(20))


def number(value: int) -> bytes:
    """A number of variable length: seven bits in each byte, and one added for each further byte."""
    found = bytes([value & 0x7F])
    while value := value >> 7:
        value -= 1
        found = bytes([0x80 | value & 0x7F]) + found
    return found


@pytest.mark.parametrize("letter", ["x", "\u00e9", pytest.param("\ufdfa", marks=pytest.mark.long)])
def test_what_an_index_costs_has_a_bound(clone: Path, letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of it are a million names of 4 KB each: they took gigabytes and an hour."""
    monkeypatch.setattr(git_index, "_FOLDED", 100_000)
    planted(clone, (letter * (4000 // len(letter.encode())) + f"{number:05}" for number in range(2000)))
    tracemalloc.start()
    try:
        assert not git_index.tracks(str(clone / ".quine"))
        assert "a" not in git_index.Tracked(str(clone))
        assert tracemalloc.get_traced_memory()[1] < 2 << 20  # of names that have 8
    finally:
        tracemalloc.stop()
    folded = Counter[str]()
    real = unicodedata.normalize
    monkeypatch.setattr(
        unicodedata, "normalize", lambda form, text: folded.update(all=len(text)) or real(form, text)
    )
    planted(clone, (letter * 200 + f"{number:05}/x" for number in range(1000)))
    if letter == "x":
        assert not git_index.tracks(str(clone / ".quine"))
    else:
        assert "too many names that are not ASCII" in refused(clone, ".git/index")
        with pytest.raises(Unsafe, match="too many names"):
            git_index.Tracked(str(clone))
    assert folded["all"] <= 2 * 100_000


def test_a_name_that_is_too_long_for_any_file_is_none(clone: Path) -> None:
    planted(clone, [".quine", ".quine" + "\u200c" * 249, ".quine" + "\u200c" * 250])
    assert git_index.tracks(str(clone / ".quine"))
    planted(clone, [".quine" + "\u200c" * 249])
    assert git_index.tracks(str(clone / ".quine"))
    planted(clone, [".quine" + "\u200c" * 250])
    assert not git_index.tracks(str(clone / ".quine"))


def test_all_characters_of_format_are_ignored() -> None:
    """As this Python knows them: a newer one may know more."""
    every = "".join(map(chr, range(sys.maxunicode + 1)))
    known = [each for each in every if unicodedata.category(each) == "Cf"]
    assert [f"{ord(each):x}" for each in known if aliases.plain(f"a{each}") != "a"] == []


def test_a_split_index_is_one_index(clone: Path) -> None:
    (clone / ".quine").mkdir()
    (clone / ".quine" / "b").write_text("b")
    git("add", "-f", ".quine/b")
    git("config", "splitIndex.maxPercentChange", "100")
    git("update-index", "--split-index")
    (clone / "late").write_text("late")
    git("add", "late")
    (shared,) = (clone / ".git").glob("sharedindex.*")
    assert git_index.tracks(str(clone / "late")) == str(clone / ".git" / "index")
    assert git_index.tracks(str(clone / ".quine")) == str(shared)
    (clone / "a").write_text("changed")
    git("add", "a")  # its entry has no name here
    assert "late" in git_index.Tracked(str(clone)) and "other" not in git_index.Tracked(str(clone))
    git("rm", "-rq", "--cached", ".quine")
    assert git_index.tracks(str(clone / ".quine")) == str(shared)
    for made, why in PLANTED.values():
        kept = shared.rename(clone / "kept")
        made(shared)
        assert why in refused(clone, f".git/{shared.name}")
        shared.rmdir() if shared.is_dir() else shared.unlink()
        kept.rename(shared)
    git("update-index", "--no-split-index")
    assert not git_index.tracks(str(clone / ".quine"))


def test_a_directory_of_a_sparse_index_holds_what_is_below_it(clone: Path) -> None:
    name = b".quine/"
    entry = bytes(60) + struct.pack(">H", len(name)) + name
    data = b"DIRC" + struct.pack(">II", 2, 1) + entry + bytes(8 - len(entry) % 8) + bytes(20)
    (clone / ".git" / "index").write_bytes(data)
    assert git_index.tracks(str(clone / ".quine")) and git_index.tracks(str(clone / ".quine" / "fs"))
    assert not git_index.tracks(str(clone / ".quine-not"))
    assert "any" in git_index.Tracked(str(clone / ".quine")) and "a" not in git_index.Tracked(str(clone))
