"""`memory://NAME`: a directory in a filesystem in memory, of all processes of the user and of no other user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from quine.base.errors import Misconfigured
from quine.files.stores import registry
from quine.files.stores.registry import open_store
from tests.files import tiers
from tests.files.commands import Shelf
from tests.files.tiers import get, put


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path)


@pytest.fixture
def ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of the user's stores, which is not there yet."""
    monkeypatch.setattr(registry, "SHARED_MEMORY", str(tmp_path))
    return tmp_path / f"quine-memory-{os.getuid()}"


def refusal(url: str) -> Misconfigured:
    with pytest.raises(Misconfigured) as caught:
        open_store(url, {}, "")
    assert caught.value.status == 2
    return caught.value


def test_another_process_sees_it(shelf: Shelf, tmp_path: Path) -> None:
    with tiers.MAKERS["memory"](None, tmp_path) as store:  # type: ignore[arg-type]
        assert shelf.ok("put", "--fs", store.url, "-", "d/f", input=b"scratch") == b""
        assert shelf.ok("ls", "--fs", store.url) == b"d\n"
        assert shelf.ok("cat", "--fs", store.url, "d/f") == b"scratch"
        assert get(store.tier, "d/f") == b"scratch"
        place = Path(store.tier.directory_here())
    assert not place.exists()


def test_a_store_is_a_directory_of_the_user_alone(ours: Path) -> None:
    tier = open_store("memory://shelf", {}, "")
    assert (tier.url, tier.directory_here()) == ("memory://shelf", str(ours / "shelf"))
    assert os.listdir(ours) == [], "the first write makes the root"
    put(tier, "a", b"1")
    assert [path.stat().st_mode & 0o777 for path in (ours, ours / "shelf")] == [0o700, 0o700]
    assert get(open_store("memory:shelf", {}, ""), "a") == b"1"
    put(open_store("memory://", {}, ""), "b", b"2")
    assert get(open_store("memory://default", {}, ""), "b") == b"2"
    assert sorted(os.listdir(ours)) == ["default", "shelf"]


def test_a_directory_that_another_user_made_meanwhile_is_refused(ours: Path, tmp_path: Path) -> None:
    """He can, once ours was removed: an open store must not go on in his."""
    tier = open_store("memory://shelf", {}, "")
    put(tier, "a", b"1")
    for path, other in ((ours, ours.with_name("was")), (ours / "shelf", ours / "was")):
        path.rename(other)
        path.mkdir(mode=0o777)
        path.chmod(0o777)
        for act in (lambda: put(tier, "a", b"2"), lambda: get(tier, "a"), lambda: list(tier.list(""))):
            with pytest.raises(PermissionError, match="open to others"):
                act()
        path.rmdir()
        path.symlink_to(tmp_path)
        with pytest.raises(NotADirectoryError):
            put(tier, "a", b"2")
        path.unlink()
        other.rename(path)
    assert get(tier, "a") == b"1"


@pytest.mark.parametrize("name", ["a/b", "/", "/etc", "a/", "..", ".", "../a"])
def test_a_name_is_one_component(ours: Path, name: str) -> None:
    assert "is followed by one name" in refusal(f"memory://{name}").detail
    assert not ours.exists()


@pytest.mark.parametrize("place", ["", "shelf"])
@pytest.mark.parametrize("odd", ["open", "link", "file"])
def test_a_directory_that_is_not_private_is_refused(ours: Path, tmp_path: Path, place: str, odd: str) -> None:
    path = ours / place
    (tmp_path / "else").mkdir(mode=0o700)
    if place:
        ours.mkdir(mode=0o700)
    if odd == "open":
        path.mkdir()
        path.chmod(0o750)
    elif odd == "link":
        path.symlink_to(tmp_path / "else")
    else:
        path.touch(0o600)
    error = refusal("memory://shelf")
    assert error.detail == f"{path} is not a directory of yours alone"
    assert os.listdir(tmp_path / "else") == []


@pytest.mark.parametrize("place", ["", "shelf"])
def test_a_directory_of_another_user_is_refused(
    ours: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours / "shelf").mkdir(mode=0o700, parents=True)
    ours.chmod(0o700)
    lstat = os.lstat

    def foreign(path: str) -> os.stat_result:
        facts = lstat(path)
        return (
            os.stat_result([*facts[:4], 4711, *facts[5:]]) if path.rstrip("/") == str(ours / place) else facts
        )

    monkeypatch.setattr(os, "lstat", foreign)
    error = refusal("memory://shelf")
    assert error.detail == f"{ours / place} belongs to another user"
    assert "file:///DIR" in error.hint


def test_a_directory_that_cannot_be_made_is_an_error(ours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: str, mode: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    assert refusal("memory://shelf").detail == f"cannot make {ours}: No space left on device"


def test_without_a_filesystem_in_memory_it_is_a_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SHARED_MEMORY", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    tier = open_store("memory://shelf", {}, "")
    assert tier.directory_here() == f"{tmp_path}/quine-memory-{os.getuid()}/shelf"


def test_an_error_of_a_url_is_a_message(shelf: Shelf) -> None:
    assert "memory: is followed by one name" in shelf.fails("ls", "--fs", "memory://a/b", status=2)
