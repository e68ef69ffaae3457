"""A directory as a tier where the machine runs out of something, or a clock or an offset is odd."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine.files.layers.reserved import Unreserved
from quine.files.python.filesystem import QuineFileSystem
from quine.files.stores.local import temp
from quine.files.stores.local.store import Local
from tests.files.tiers import below, get, put


@pytest.fixture
def tier(tmp_path: Path) -> Local:
    return Local(str(tmp_path / "store"))


@contextlib.contextmanager
def room(more: int) -> Iterator[None]:
    """For so many descriptors, and no more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = os.dup(0)
    taken = [os.dup(0) for _ in range(more)]
    highest = max([low, *taken])
    for fd in (low, *taken):
        os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("more", range(2, 6))
@pytest.mark.parametrize("what", ["put", "move", "make", "remove"])
def test_what_has_no_descriptor_left_is_done_or_it_is_not(tier: Local, what: str, more: int) -> None:
    """A failed operation leaves everything as it was. A lock without an owner would stay for ever."""
    put(tier, "d/a", b"old")
    put(tier, "d/b", b"old")
    writer = tier.create("d/lock", if_absent=True)
    writer.write(b"mine")
    before = [(entry.path, entry.version) for entry in tier.walk("")]
    fails = False
    with room(more):
        try:
            match what:
                case "put":
                    writer.commit()
                case "move":
                    tier.rename("d/a", "e", if_absent=True)
                case "make":
                    tier.mkdir("new")
                case "remove":
                    tier.remove("d/a")
        except OSError as problem:
            assert problem.errno == errno.EMFILE
            fails = True
    writer.abort()
    assert ([(entry.path, entry.version) for entry in tier.walk("")] == before) == fails
    assert below(tier) == ["d"] or not fails


def test_a_part_that_bears_an_old_time_is_not_left_over(
    tier: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a writer on another machine, whose lock is not seen here: a file of last year, while it is synced."""
    monkeypatch.setattr(temp, "_machine", lambda: "another00000")
    writer = tier.create("a", mtime=1e9)
    writer.write(b"x")
    monkeypatch.setattr(temp, "_machine", lambda: "ours00000000")
    monkeypatch.setattr(temp.fcntl, "flock", lambda fd, how: None)
    sync = os.fsync

    def swept(fd: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        put(Local(tier.root), "b", b"y")
        sync(fd)

    monkeypatch.setattr(os, "fsync", swept)
    writer.commit()
    assert get(tier, "a") == b"x" and tier.stat("a").mtime == 1e9
    left = tmp_path / "store" / temp.NAME / "another00000-dead"
    left.write_bytes(b"")
    os.utime(left, (time.time() - 2 * temp.OLD,) * 2)
    put(Local(tier.root), "b", b"y")
    assert not left.exists()


def test_far_beyond_the_end_there_is_nothing(tier: Local) -> None:
    put(tier, "a", b"x")
    for offset in (2, 1 << 50, 1 << 62):
        with tier.open("a", offset) as reader:
            assert (reader.read(), reader.length) == (b"", 0)


def test_a_file_that_python_gets_follows_no_link_of_another(tier: Local, tmp_path: Path) -> None:
    """Other users write to the directory and can guess the name of the temporary file."""
    put(tier, "a", b"new")
    (tmp_path / "victim").write_text("mine")
    for name in (f"out.{os.getpid()}.part", "out"):
        (tmp_path / name).symlink_to(tmp_path / "victim")
    fs = QuineFileSystem(tier, skip_instance_cache=True)
    fs.get("a", str(tmp_path / "out"))
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "out").read_bytes() == b"new" and not (tmp_path / "out").is_symlink()


# -- names that are kept ---------------------------------------------------------------------------

ALIASES = [
    ".quine",
    ".QUINE",
    ".Quine",
    ".quine.",
    ".quine ",
    ".quine:x",
    "quine~1",
    "QUINE~12",
    ".qu\u200dine",
]


@pytest.mark.parametrize("name", ALIASES)
def test_a_name_that_a_filesystem_takes_for_a_reserved_one_is_reserved(name: str, tmp_path: Path) -> None:
    """On a mount that knows no case `.QUINE/sessions` is the record of trees."""
    store = Local(str(tmp_path))
    tier = Unreserved(store)
    put(store, f"{name}/sessions", b"record")
    assert below(tier) == [] and list(tier.walk("")) == []
    for act in (
        lambda: put(tier, f"{name}/sessions", b"forged"),
        lambda: tier.remove(name, recursive=True),
        lambda: tier.rename(name, "mine"),
        lambda: tier.stat(f"{name}/sessions"),
    ):
        with pytest.raises(OSError) as caught:
            act()
        assert caught.value.errno in (errno.EPERM, errno.ENOENT)
    assert get(store, f"{name}/sessions") == b"record"


@pytest.mark.parametrize("name", [".quine-parts", ".QUINE-parts", ".quine-parts.", "quine-~1"])
def test_the_place_of_parts_has_no_other_name(name: str, tmp_path: Path) -> None:
    tier = Local(str(tmp_path))
    for path in (name, f"{name}/x", f"d/{name}/x"):
        with pytest.raises(PermissionError):
            put(tier, path)


@pytest.mark.parametrize(
    "name", ["quine", ".quine2", "a.quine", ".quin", "quine~", "~1", "quine~a", ".quine-part"]
)
def test_other_names_are_everybodys(name: str, tmp_path: Path) -> None:
    tier = Unreserved(Local(str(tmp_path)))
    put(tier, name, b"1")
    assert below(tier) == [name]


@pytest.mark.parametrize("path", ["..", "../x", "a/../../x", "a/..", "a/../x"])
def test_the_store_itself_lets_nothing_lead_out(path: str, tmp_path: Path) -> None:
    """Callers check a path before, but the store does not rely on that."""
    (tmp_path / "x").write_bytes(b"outside")
    tier = Local(str(tmp_path / "root"))
    put(tier, "a/b", b"1")
    acts: list[Callable[[], object]] = [
        lambda: put(tier, path),
        lambda: tier.open(path),
        lambda: tier.stat(path),
        lambda: list(tier.list(path)),
        lambda: tier.mkdir(path, exist_ok=True),
        lambda: tier.remove(path, recursive=True),
        lambda: tier.rename("a/b", path),
    ]
    for act in acts:
        with pytest.raises(PermissionError):
            act()
    assert (tmp_path / "x").read_bytes() == b"outside" and get(tier, "a/b") == b"1"
