"""`quine fs sync --delete`: files that it may remove, and files that it must not take for absent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.files.api import Tier
from quine.files.cli.main import Call
from quine.files.cli.sync import sync
from quine.files.layers.reserved import Unreserved
from quine.files.stores.fsspec_store import Generic
from quine.files.stores.object.store import ObjectTier
from tests.files import tiers
from tests.files.commands import Shelf, fill, snapshot


@pytest.fixture(params=tiers.makers())
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tiers.Store]:
    if server := tiers.SERVERS.get(request.param):
        request.getfixturevalue(server)
    with tiers.MAKERS[request.param](request, tmp_path) as made:
        yield made
        made.tier.close()


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory of this machine that is to become like the store."""
    here = tmp_path / "here"
    fill(here, {b"a": b"1", b"d/b": b"2"})
    return here


def run(tier: Tier, source: str, target: str, **values: object) -> int:
    return sync(Call("sync", {"delete": True, **values}, [source, target], Unreserved(tier)))


def test_a_root_that_is_not_there_removes_nothing(
    store: tiers.Store, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = snapshot(here)
    assert run(store.tier, "tier:", str(here)) == 1
    assert "tier:: is empty or is not there, so nothing is removed; --force removes" in capfd.readouterr().err
    assert run(store.tier, "tier:", str(here), dry_run=True) == 1
    assert snapshot(here) == before
    assert run(store.tier, "tier:", str(here), force=True) == 0
    assert list(here.iterdir()) == []
    assert run(store.tier, "tier:", str(here)) == 0, "there is nothing to remove"


def test_an_empty_directory_removes_nothing_from_the_tier(store: tiers.Store, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    tiers.put(store.tier, "t/a", b"1")
    assert run(store.tier, str(empty), "tier:t") == 1
    assert tiers.get(store.tier, "t/a") == b"1"
    assert run(store.tier, str(empty), "tier:t", force=True) == 0
    assert "t/a" not in [entry.path for entry in store.tier.walk("")]


def plant_odd(store: tiers.Store, root: Path) -> None:
    """Put `t/d/x`, which no listing of the store shows."""
    tier = store.tier
    if isinstance(tier, ObjectTier):
        tier.bucket.call("put_object", "", Key=f"{tier.folder('t')}d/x%41", Body=b"")
    elif isinstance(tier, Generic):
        fs, place = tier._at("t/d")
        fs.pipe_file(f"{place}/x%41", b"")  # no name has this key
    else:
        (root / "t/d/x").symlink_to("nowhere")


def roots(store: tiers.Store, tmp_path: Path) -> Path:
    """Return the directory of this machine in which the files of a store lie."""
    if own := store.tier.directory_here():
        return Path(own)
    return Path(store.url.removeprefix("origin:")) if store.url.startswith("origin:") else tmp_path / "a root"


def test_what_a_store_holds_and_does_not_show_is_not_absent(
    store: tiers.Store, here: Path, tmp_path: Path
) -> None:
    for path in ("t/a", "t/d/b"):
        tiers.put(store.tier, path, b"1")
    plant_odd(store, roots(store, tmp_path))
    name = "x%41" if isinstance(store.tier, Generic | ObjectTier) else "x"
    assert "x" not in tiers.below(store.tier, "t/d")
    fill(here, {b"d/" + name.encode(): b"mine", b"d/gone": b"", b"gone": b""})
    assert run(store.tier, "tier:t", str(here)) == 0
    assert sorted(os.listdir(here)) == ["a", "d"]
    assert sorted(os.listdir(here / "d")) == ["b", name]


def test_what_the_tier_keeps_for_itself_is_not_absent(here: Path, tmp_path: Path) -> None:
    """A tree that was copied with its `.quine`, or is another tier's."""
    with tiers.MAKERS["file"](None, tmp_path) as store:  # type: ignore[arg-type]
        tiers.put(store.tier, "a", b"1")
        fill(here, {b".quine/tape": b"", b".quine-parts/x": b"", b"gone": b""})
        assert run(store.tier, "tier:", str(here)) == 0
    assert sorted(os.listdir(here)) == [".quine", ".quine-parts", "a"]


# -- as a command ---------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    fill(shelf.tier, {b"t/kept": b"1"})
    fill(shelf.directory / "s", {b"kept": b"1", b"d/1": b"", b"d/2": b"", b"e": b"", b"f": b""})
    return shelf


def test_a_wrong_url_empties_no_directory(shelf: Shelf) -> None:
    before = snapshot(shelf.directory / "s")
    shelf.env["QUINE_FS"] = "origin:a/typo"
    said = shelf.fails("sync", "--delete", "tier:", "s")
    assert said.startswith("quine: error: tier:: is empty or is not there, so nothing is removed")
    assert snapshot(shelf.directory / "s") == before
    shelf.ok("sync", "--delete", "--force", "tier:", "s")
    assert snapshot(shelf.directory / "s") == {}


def test_no_more_is_removed_than_is_allowed(shelf: Shelf) -> None:
    """A directory counts with all that is in it, and goes as a whole or stays."""
    here = shelf.directory / "s"
    said = shelf.fails("sync", "--delete", "--max-delete", "0", "tier:t", "s")
    assert said == "quine: error: s: --max-delete 0: 5 that should go stay\n"
    assert shelf.run("sync", "-n", "--delete", "--max-delete", "2", "tier:t", "s").stdout.endswith(
        b"delete e\ndelete f\n"
    )
    assert "--max-delete 2: 3 that should go stay" in shelf.fails(
        "sync", "--delete", "--max-delete", "2", "tier:t", "s"
    )
    assert sorted(os.listdir(here)) == ["d", "kept"]
    shelf.ok("sync", "--delete", "--max-delete", "3", "tier:t", "s")
    assert sorted(os.listdir(here)) == ["kept"]


def test_what_is_replaced_by_another_kind_counts_as_removed(shelf: Shelf) -> None:
    (shelf.directory / "s/kept").unlink()
    fill(shelf.directory / "s", {b"kept/1": b"", b"kept/2": b""})
    shelf.fails("sync", "--delete", "--max-delete", "2", "tier:t", "s")
    assert (shelf.directory / "s/kept/2").exists() and not (shelf.directory / "s/e").exists()
    shelf.fails("sync", "--delete", "--max-delete", "5", "tier:t", "s")  # kept goes, as three of them
    assert sorted(os.listdir(shelf.directory / "s")) == ["d", "kept"]


@pytest.mark.parametrize("most", ["1", "2"])
def test_a_directory_in_the_place_of_a_file_goes_whole_or_stays(shelf: Shelf, most: str) -> None:
    shutil.rmtree(shelf.directory / "s")
    fill(shelf.directory / "s", {b"kept/1": b"", b"kept/2": b""})
    said = shelf.fails("sync", "--delete", "--max-delete", most, "tier:t", "s")
    assert f"--max-delete {most}: 3 that should go stay" in said
    assert sorted(os.listdir(shelf.directory / "s/kept")) == ["1", "2"]
    shelf.ok("sync", "--delete", "--max-delete", "3", "tier:t", "s")
    assert (shelf.directory / "s/kept").read_bytes() == b"1"


def test_what_is_left_out_here_stays_there(shelf: Shelf) -> None:
    """A sync leaves the data directory out. `--delete` must not take its name in the tier for absent here."""
    shutil.rmtree(shelf.tier / "t")
    fill(shelf.tier, {b"t/data/x": b"theirs", b"t/gone": b""})
    shelf.ok("sync", "--delete", ".", "tier:t")
    assert sorted(os.listdir(shelf.tier / "t")) == ["data", "s"]
