"""`quine fs sync`: after it both sides are alike, and a second one moves nothing."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.files.api import Entry, Reader, Request, Tier, Writer
from quine.files.cli.compare import same_time
from quine.files.cli.main import Call
from quine.files.cli.sync import sync
from quine.files.exclusions import obeyed, own
from quine.files.layers.reserved import Unreserved
from quine.files.stores.local.store import Local
from quine.files.wire.pipeline import RequestPipeline
from tests.files import tiers
from tests.files.commands import Shelf, fill, snapshot

NAMES = st.sampled_from(["a", "b", "c d", "é", "\udcff", ".h", "-x", "*"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
TREES = st.dictionaries(PATHS, st.none() | st.binary(max_size=3), max_size=8)


class Counted(Local):
    """A store that notes its changes and its reads."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.changes: list[str] = []
        self.reads: list[str] = []

    def create(self, path: str, **more: Any) -> Writer:
        self.changes.append(f"put {path}")
        return super().create(path, **more)

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        self.changes.append(f"mkdir {path}")
        super().mkdir(path, exist_ok)

    def remove(self, path: str, recursive: bool = False) -> None:
        self.changes.append(f"remove {path}")
        super().remove(path, recursive)

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        self.reads.append(path)
        return super().open(path, offset, length)


def plant(top: str, tree: dict[str, bytes | None]) -> None:
    """Make files and directories (None). Paths below a file are left out. A file's time depends on its content."""
    os.makedirs(top, exist_ok=True)
    for path, content in sorted(tree.items(), key=lambda item: os.fsencode(item[0])):
        whole = os.path.join(top, path)
        try:
            os.makedirs(whole if content is None else os.path.dirname(whole), exist_ok=True)
            if content is not None and not os.path.isdir(whole):
                with open(whole, "wb") as file:
                    file.write(content)
                os.utime(whole, (0, zlib.crc32(content) + 0.5))
        except (FileExistsError, NotADirectoryError):
            continue


def here(top: str) -> dict[str, object]:
    return {
        os.fsdecode(path): value if isinstance(value, str) else (value[0], value[2])  # type: ignore[index]
        for path, value in snapshot(Path(top)).items()
    }


def there(tier: Tier, top: str) -> dict[str, object]:
    def value(entry: Entry) -> object:
        if not entry.is_file:
            return "directory"
        with tier.open(entry.path) as reader:
            return b"".join(iter(reader.read, b"")), round(entry.mtime, 3)

    return {entry.path[len(top) + 1 :]: value(entry) for entry in tier.walk(top)}


def run(tier: Tier, source: str, target: str, **values: object) -> int:
    return sync(Call("sync", {"delete": True, "force": True, **values}, [source, target], tier))


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="sync-") as folder:
        yield folder


@pytest.mark.long
@settings(deadline=None, max_examples=60)
@given(source=TREES, before=TREES, checksum=st.booleans(), jobs=st.sampled_from(["1", "3"]))
def test_both_sides_are_alike_and_a_second_time_nothing_moves(
    place: str, source: dict[str, bytes | None], before: dict[str, bytes | None], checksum: bool, jobs: str
) -> None:
    top = tempfile.mkdtemp(dir=place)
    local, other = f"{top}/source", f"{top}/other"
    more = {"checksum": checksum, "jobs": jobs}
    tier = Counted(f"{top}/store")
    plant(local, source)
    plant(other, before)
    assert run(tier, other, "tier:t", **more) == 0
    assert there(tier, "t") == here(other), "into nothing"
    assert run(tier, local, "tier:t", **more) == 0
    assert contents(there(tier, "t"), checksum) == contents(here(local), checksum), "over another tree"
    tier.changes.clear()
    assert run(tier, local, "tier:t", **more) == 0
    assert tier.changes == [], "nothing to do"
    assert run(tier, "tier:t", other, **more) == 0
    assert contents(here(other), checksum) == contents(there(tier, "t"), checksum), "and back"
    tier.reads.clear()
    assert run(tier, "tier:t", other) == 0
    assert checksum or tier.reads == []
    assert tier.changes == []
    shutil.rmtree(top)


def contents(tree: dict[str, object], only: bool) -> dict[str, object]:
    """Where contents are compared, a time alone is no reason to send."""
    return {path: value[0] if only and isinstance(value, tuple) else value for path, value in tree.items()}


@given(seconds=st.floats(0, 4e9), unit=st.sampled_from([1, 1000]), later=st.floats(1.0, 1e6))
def test_times_are_compared_as_far_as_both_sides_keep_them(seconds: float, unit: int, later: float) -> None:
    assert same_time(seconds, seconds)
    assert same_time(seconds, int(seconds * unit) / unit)
    assert not same_time(seconds, seconds + later + 1e-3)


# -- whatever the store ---------------------------------------------------------------------------------


@pytest.fixture(params=tiers.makers())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tiers.Store]:
    if server := tiers.SERVERS.get(request.param):
        request.getfixturevalue(server)
    with tiers.MAKERS[request.param](request, tmp_path) as made:
        yield made
        made.tier.close()


@pytest.mark.timeout(300)
def test_a_second_sync_sends_nothing_whatever_the_store(
    store: tiers.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing of some stores knows neither the time nor the mode that a file was given."""
    store.needs("mtime")
    sent: list[str] = []
    create = store.tier.create

    def noted(path: str, **more: Any) -> Writer:
        sent.append(path)
        return create(path, **more)

    send = RequestPipeline.send

    def noted_far(pipeline: RequestPipeline, request: Request) -> None:
        if request.op == "put":
            sent.append(request.path)
        send(pipeline, request)

    store.tier.create = noted  # type: ignore[method-assign]
    monkeypatch.setattr(RequestPipeline, "send", noted_far)
    source, back = tmp_path / "source", tmp_path / "back"
    fill(source, {b"a": b"1", b"run": b"2", b"d/b c": b"3", b"d/\xc3\xa9": b"", b"d/e/f": b"x" * 100_000})
    (source / "run").chmod(0o755)
    for number, path in enumerate([source / "a", source / "d/b c"]):
        os.utime(path, (0, 1_600_000_000.25 + number))
    target = "tier:some/where"
    assert run(store.tier, str(source), target) == 0 and len(sent) == 5
    assert run(store.tier, str(source), target) == 0 and len(sent) == 5
    (source / "a").write_bytes(b"9")
    (source / "run").chmod(0o700)
    assert run(store.tier, str(source), target) == 0 and sorted(sent[5:]) == [
        "some/where/a",
        "some/where/run",
    ]
    assert run(store.tier, target, str(back)) == 0
    assert whole_seconds(snapshot(back)) == whole_seconds(snapshot(source))
    before = {path: os.lstat(path).st_ino for path in back.rglob("*")}
    assert run(store.tier, target, str(back)) == 0
    assert {path: os.lstat(path).st_ino for path in back.rglob("*")} == before, "nothing was fetched again"
    (source / "d/e/f").unlink()
    assert run(store.tier, str(source), target) == 0
    with pytest.raises(FileNotFoundError):
        store.tier.stat("some/where/d/e/f")


def whole_seconds(tree: dict[bytes, object]) -> dict[bytes, object]:
    return {
        path: (value[0], value[1], int(value[2])) if isinstance(value, tuple) else value
        for path, value in tree.items()
    }


# -- as a command ---------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    fill(tmp_path / "s", {b"same": b"same", b"new": b"new", b"d/changed": b"2", b"d/e/": b""})
    fill(shelf.tier / "t", {b"same": b"same", b"extra/x/y": b"", b"d/changed": b"1", b"old": b""})
    for path in (tmp_path / "s/same", shelf.tier / "t/same"):
        os.utime(path, (5, 5))
    os.utime(shelf.tier / "t/d/changed", (6, 6))  # of the same size, and perhaps written in the same tick
    return shelf


def test_a_dry_run_says_it_and_does_nothing(shelf: Shelf) -> None:
    before = snapshot(shelf.tier)
    assert shelf.ok("sync", "-n", "s", "tier:t") == b"put d/changed\nmkdir d/e\nput new\n"
    assert shelf.ok("sync", "--dry-run", "--delete", "s", "tier:t").endswith(
        b"put new\ndelete extra\ndelete old\n"
    )
    assert snapshot(shelf.tier) == before
    assert shelf.ok("sync", "-n", "tier:t", "none") == b"get d/changed\nget extra/x/y\nget old\nget same\n"
    assert not (shelf.directory / "none").exists()


def test_what_is_more_stays_unless_it_shall_go(shelf: Shelf) -> None:
    shelf.ok("sync", "s", "tier:t")
    assert (shelf.tier / "t/extra/x/y").exists() and (shelf.tier / "t/d/changed").read_bytes() == b"2"
    done = shelf.run("sync", "-v", "--delete", "s", "tier:t")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"delete extra\ndelete old\n")
    assert snapshot(shelf.tier / "t") == snapshot(shelf.directory / "s")
    (shelf.directory / "s/same").chmod(0o600)
    shelf.ok("sync", "--delete", "tier:t", "s")
    assert (shelf.directory / "s/same").stat().st_mode & 0o777 == 0o644, "a mode is mended without sending"


def test_a_directory_where_a_file_was(shelf: Shelf) -> None:
    fill(shelf.directory / "s", {b"old/now/a": b"directory"})
    shutil.rmtree(shelf.tier / "t/d/")
    fill(shelf.tier / "t", {b"new/was/a": b"directory"})
    error = shelf.fails("sync", "s", "tier:t")
    assert "t/new: is a directory there, and a file in the source; --delete replaces it" in error
    assert "t/old: is a file there, and a directory in the source" in error
    assert (shelf.tier / "t/d/changed").read_bytes() == b"2", "the rest is done"
    shelf.ok("sync", "--delete", "s", "tier:t")
    assert snapshot(shelf.tier / "t") == snapshot(shelf.directory / "s")


def test_nothing_is_removed_where_the_source_was_not_seen_whole(shelf: Shelf) -> None:
    (shelf.directory / "s/broken").symlink_to("nowhere")
    error = shelf.fails("sync", "-L", "--delete", "s", "tier:t")
    assert "s/broken: no such file" in error and "nothing is removed" in error
    assert (shelf.tier / "t/old").exists() and (shelf.tier / "t/new").exists()


def test_what_is_behind_a_link_that_was_refused_stays(shelf: Shelf) -> None:
    """A link replaces a directory that was moved to another disk. `--delete` must not remove the copy in the tier."""
    shelf.ok("sync", "s", "tier:t")
    (shelf.directory / "s/d").rename(shelf.directory / "elsewhere")
    (shelf.directory / "s/d").symlink_to("../elsewhere")
    assert "s/d: a symbolic link" in shelf.fails("sync", "--delete", "s", "tier:t")
    assert (shelf.tier / "t/d/changed").read_bytes() == b"2" and (shelf.tier / "t/d/e").is_dir()
    assert not (shelf.tier / "t/extra").exists(), "entries that the source lacks are removed"
    shelf.ok("sync", "-L", "--delete", "s", "tier:t")
    assert (shelf.tier / "t/d/changed").read_bytes() == b"2"


def test_a_link_here_is_no_way_out(shelf: Shelf) -> None:
    outside = shelf.directory / "outside"
    outside.mkdir()
    out = shelf.directory / "out"
    out.mkdir()
    (out / "d").symlink_to(outside)
    assert "out/d: is a link there, and a directory in the source" in shelf.fails("sync", "tier:t", "out")
    shelf.ok("sync", "--delete", "tier:t", "out")
    assert snapshot(out) == snapshot(shelf.tier / "t")
    assert not list(outside.iterdir())


def test_what_is_quines_own_is_no_part_of_a_tree(shelf: Shelf) -> None:
    """Trees that users work in often contain the data directory, and a tier that is a directory."""
    tape = shelf.directory / "data/a.jsonl"
    tape.write_bytes(b"a tape")
    fill(shelf.tier / "t", {b"data/fs/t/old": b"of another tree", b"data/b": b""})
    shelf.ok("put", "-r", ".", "p")
    assert sorted(os.listdir(shelf.tier / "p")) == ["s"]
    shelf.ok("sync", ".", "tier:q")
    assert sorted(os.listdir(shelf.tier / "q")) == ["s"]
    before = snapshot(shelf.tier)
    shelf.ok("sync", "--delete", "tier:t", ".")
    assert snapshot(shelf.tier) == before and tape.read_bytes() == b"a tape"
    assert sorted(os.listdir(shelf.directory)) == ["d", "data", "extra", "old", "same"], "all else is as told"

    shelf.env["QUINE_FS"] = f"file://{shelf.directory}/extra/store"
    fill(shelf.directory / "extra/store/u", {b"new": b"new"})
    shelf.ok("sync", "--delete", "tier:u", ".")
    assert sorted(os.listdir(shelf.directory)) == ["data", "extra", "new"]
    assert sorted(os.listdir(shelf.directory / "extra")) == ["store"]
    fill(shelf.directory / "extra/store/v", {b"extra": b"a file where the store is"})
    assert "the tier, is in it" in shelf.fails("sync", "--delete", "tier:v", ".")
    assert (shelf.directory / "extra/store/u/new").exists()
    shelf.ok("put", "-r", "data/fs/t", "/")
    assert (shelf.directory / "extra/store/t/data/b").exists(), "a path in the data directory can be named"


def test_a_tree_that_is_got_does_not_come_into_what_is_quines_own(shelf: Shelf) -> None:
    shelf.env |= {"QUINE_DATA_DIR": ".quine", "QUINE_FS": "origin:store"}
    (shelf.directory / ".quine").mkdir()
    (shelf.directory / ".quine" / "tape.jsonl").write_text("mine")
    names = {
        b".quine/tape.jsonl": b"forged",
        b"store/t/a": b"forged",
        b"store/new": b"forged",
        b"b/.quine/x": b"2",
    }
    fill(shelf.directory / "store" / "t", {b"a": b"1", **names})
    assert shelf.run("get", "-r", "-T", "t", ".").returncode == 0
    assert (shelf.directory / ".quine" / "tape.jsonl").read_text() == "mine"
    assert (shelf.directory / "store" / "t" / "a").read_text() == "1"
    assert not (shelf.directory / "store" / "new").exists()
    assert (shelf.directory / "a").read_text() == "1"
    assert (shelf.directory / "b" / ".quine" / "x").read_text() == "2", "only our own"


def test_a_tree_that_comes_lacks_the_names_that_are_obeyed_here(shelf: Shelf) -> None:
    """An agent has put them; those of this machine stay. A path that names one brings it."""
    planted = [b".git/hooks/post-commit", b".quine-aside-0/journal", b"inventory.toml", b"personas/me.md"]
    fill(shelf.tier / "t", {b"a": b"1", b"b/inventory.toml": b"2", **dict.fromkeys(planted, b"forged")})
    mine = {b".git/HEAD": b"mine", b"personas/me.md": b"mine", b".quine-aside-1/journal": b"mine"}
    fill(shelf.directory / "w", mine)
    ways = {
        ("sync", "--delete", "tier:t", "w"): "quine fs sync tier:t/.git w/.git",
        ("sync", "-n", "tier:t", "none"): "quine fs sync tier:t/.git none/.git",
        ("get", "-r", "-T", "t", "w"): "quine fs get -r t/.git",
        ("get", "-r", "t", "."): "quine fs get -r t/.git",
    }
    for words, cure in ways.items():
        done = shelf.run(*words)
        names, more, cures = done.stderr.decode().partition(
            " left out, names that quine or git obeys; to have it: "
        )
        assert (done.returncode, more, cures.split(", ")[0]) == (0, more, cure)
        named = [name.rpartition("/")[2] for name in names.split(", ")][1:]
        assert named == [".quine-aside-0", "inventory.toml", "personas"]
        assert b"inventory.toml" not in done.stdout.replace(b"b/inventory.toml", b"")
    for top in ("w", "t"):
        assert (shelf.directory / top / "b/inventory.toml").read_text() == "2"
        assert not (shelf.directory / top / "inventory.toml").exists()
    assert all((shelf.directory / "w" / name.decode()).read_text() == "mine" for name in mine)
    assert not (shelf.directory / "w/.quine-aside-0").exists()
    assert not (shelf.directory / "t/.git").exists()

    (shelf.directory / "w/hosts").write_text("mine")
    shelf.env["QUINE_INVENTORY"] = str(shelf.directory / "w/hosts")
    fill(shelf.tier / "t", {b"hosts": b"forged"})
    for words in (("sync", "--delete", "tier:t", "w"), ("get", "-r", "-T", "t", "w"), ("get", "t/*s", "w/")):
        assert b"hosts" in shelf.run(*words).stderr
        assert (shelf.directory / "w/hosts").read_text() == "mine"
    del shelf.env["QUINE_INVENTORY"]

    done = shelf.run("get", "t/*.toml", "w/")
    assert done.stderr.startswith(b"quine: t/inventory.toml left out, a name ") and done.returncode == 0
    shelf.ok("get", "t/inventory.toml", "w/")
    shelf.ok("get", "t/inv*", "mine.toml")
    shelf.ok("sync", "tier:t/personas", "w/personas")
    for name in ("w/inventory.toml", "mine.toml", "w/personas/me.md"):
        assert (shelf.directory / name).read_text() == "forged"


OTHERS = [
    ".GIT",
    "git~1",
    ".git.",
    "Inventory.TOML",
    "INVENT~1.TOM",
    "inventory.toml ",
    "PERSON~1",
    "personas:x",
]


@pytest.mark.parametrize("name", OTHERS)
def test_a_name_that_a_filesystem_takes_for_one_that_is_obeyed_does_not_come(shelf: Shelf, name: str) -> None:
    """On a mount that knows no case `.GIT/hooks` is that of the repository."""
    assert obeyed(name)
    fill(shelf.tier / "t", {b"a": b"1", f"{name}/x".encode(): b"forged", f"b/{name}/x".encode(): b"2"})
    fill(shelf.directory / "w", {f"{name}/y".encode(): b"mine"})
    for words in (("sync", "--delete", "tier:t", "w"), ("get", "-r", "-T", "t", "w")):
        done = shelf.run(*words)
        assert done.returncode == 0 and f"{name} left out, a name that" in done.stderr.decode()
    assert (shelf.directory / "w" / name / "y").read_text() == "mine"
    assert not (shelf.directory / "w" / name / "x").exists()
    assert (shelf.directory / "w/b" / name / "x").read_text() == "2"
    shelf.ok("get", "-r", f"t/{name}", "w/")
    assert (shelf.directory / "w" / name / "x").read_text() == "forged", "it was named"


# first and last of each range of Default_Ignorable_Code_Point, in DerivedCoreProperties.txt of Unicode 16
IGNORED = """
    00AD 034F 061C 115F 1160 17B4 17B5 180B 180D 180E 180F 200B 200F 202A 202E 2060 2064 2065 2066 206F 3164 FE00 FE0F
    FEFF FFA0 FFF0 FFF8 1BCA0 1BCA3 1D173 1D17A E0000 E0001 E0002 E001F E0020 E007F E0080 E00FF E0100 E01EF E01F0 E0FFF
"""


def test_a_name_with_characters_that_show_nothing_is_that_without_them() -> None:
    assert [code for code in IGNORED.split() if not obeyed(f".g{chr(int(code, 16))}it")] == []
    assert [name for name in (".g\u180ait", ".g\ufff9\u00e9it", ".git\u0301") if obeyed(name)] == []


@pytest.mark.parametrize(
    "name", ["git", ".gitignore", "inventory.json", "INVENT~1.TXT", "PERSON~1.A", "person"]
)
def test_names_that_are_like_those_that_are_obeyed_come(name: str) -> None:
    assert not obeyed(name)


class Elsewhere(Local):
    """The tier of a job: a directory of its origin, of that name."""

    def directory_here(self) -> str:
        return ""


def test_a_directory_of_the_origin_is_none_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUINE_DATA_DIR", "/var/data")
    assert own(Elsewhere("/srv/work"), "/srv") == frozenset()
    assert own(Local("/srv/work"), "/srv") == {"work"} == own(Unreserved(Local("/srv/work")), "/srv")
    assert own(Local("/srv/work"), "/var") == {"data"}


def test_contents_are_compared_when_asked(shelf: Shelf) -> None:
    fill(shelf.directory / "s", {b"same": b"sane"})
    os.utime(shelf.directory / "s/same", (5, 5))
    shelf.ok("sync", "s", "tier:t")
    assert (shelf.tier / "t/same").read_bytes() == b"same", "size and time are those of the source"
    assert shelf.ok("sync", "-nc", "s", "tier:t") == b"put same\n"
    shelf.ok("sync", "-c", "s", "tier:t")
    assert (shelf.tier / "t/same").read_bytes() == b"sane"


def test_what_has_to_be_a_directory(shelf: Shelf) -> None:
    assert "s/new: not a directory" in shelf.fails("sync", "s/new", "tier:t")
    assert "t/same: not a directory" in shelf.fails("sync", "tier:t/same", "x")
    assert "nothing: no such file" in shelf.fails("sync", "nothing", "tier:t")
    assert "none: no such file" in shelf.fails("sync", "tier:none", "x")
    assert "t/same: not a directory" in shelf.fails("sync", "s", "tier:t/same")
