"""`quine fs` on directories of this machine in which somebody exchanges a directory for a link at the worst moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.files.cli import localfs
from quine.files.cli.get import get
from quine.files.cli.main import Call
from quine.files.cli.put import put
from quine.files.cli.sync import sync
from quine.files.stores.local.store import Local
from tests.files.tiers import below
from tests.files.tiers import get as content
from tests.files.tiers import put as keep


@pytest.fixture
def tier(tmp_path: Path) -> Local:
    return Local(str(tmp_path / "store"))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for top, text in (("tree", "ours"), ("secret", "mine")):
        (tmp_path / top / "d").mkdir(parents=True)
        (tmp_path / top / "d" / "f").write_text(text)
    return tmp_path / "tree"


def exchanged(tree: Path, what: str) -> None:
    (tree / what).rename(tree.parent / f"away-{os.urandom(4).hex()}")
    (tree / what).symlink_to(tree.parent / "secret" / what)


@pytest.mark.parametrize("what", ["d", "d/f"])
@pytest.mark.parametrize("how", ["put", "sync", "checksum"])
def test_what_was_found_and_is_a_link_now_is_not_put(
    tier: Local, tree: Path, how: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = localfs.walk

    def swapping(*args: Any, **more: Any) -> Iterator[localfs.Found]:
        for found in walk(*args, **more):
            if found.path == "d/f":
                exchanged(tree, what)
            yield found

    if how == "checksum":
        keep(tier, "t/d/f", b"four", mtime=1.0)
    monkeypatch.setattr(localfs, "walk", swapping)
    if how == "put":
        status = put(Call("put", {"recursive": True, "jobs": "1"}, [str(tree), "t"], tier))
    else:
        values = {"jobs": "1", "checksum": how == "checksum"}
        status = sync(Call("sync", values, [str(tree), "tier:t"], tier))
    assert status == 1
    assert all(content(tier, entry.path) != b"mine" for entry in tier.walk("") if entry.is_file)


def test_what_is_named_may_be_a_link(tier: Local, tree: Path) -> None:
    (tree / "link").symlink_to("d")
    (tree / "d" / "g").symlink_to("f")
    assert put(Call("put", {"recursive": True, "follow": True}, [str(tree / "link"), "t"], tier)) == 0
    assert put(Call("put", {}, [str(tree / "d" / "g"), "one"], tier)) == 0
    assert below(tier) == ["one", "t"] and below(tier, "t") == ["f", "g"]


def test_a_directory_that_is_a_link_now_is_not_filled(
    tier: Local, tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was made, or stood there, when it was looked at."""
    keep(tier, "d/f", b"theirs")
    exchanged(tree, "d")
    monkeypatch.setattr(os.path, "islink", lambda path: False)
    status = get(Call("get", {"recursive": True, "jobs": "1"}, ["d", str(tree)], tier))
    assert status == 1
    assert (tree.parent / "secret" / "d" / "f").read_text() == "mine"


@pytest.mark.parametrize("left", [0, 10])
def test_a_file_that_is_truncated_before_it_is_read_is_no_file_of_zeros(
    tier: Local, tmp_path: Path, left: int
) -> None:
    """The kernel answers alike beyond the end of a file and in the hole at its end."""
    path = tmp_path / "log"
    path.write_bytes(b"x" * 4096)
    os.truncate(path, 1 << 20)
    with localfs.Source(str(path)) as source, tier.create("log") as writer:
        os.truncate(path, left)
        with pytest.raises(OSError, match="became shorter"):
            source.feed(writer, lambda took: None)
    with localfs.Source(str(path)) as source:
        os.truncate(path, 0)
        if left:
            with pytest.raises(OSError, match="became shorter"):
                source.small()
