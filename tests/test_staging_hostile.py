"""Staging against who speaks its words himself, and against what somebody has laid in its way."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from quine.staging import aside, renames, survey, tree
from quine.staging.content import Feed, tell
from quine.staging.face import Staging
from quine.staging.manifest import IMPLIED
from quine.staging.tree import Tree
from tests.wired import Relay, bring, inside, stage
from transport.errors import RequestError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("spot", "name"),
    [(b"0", b"../planted"), (b"0", b"/planted"), (b"0", b"d/../../planted"), (b"../../../kept", b"mine")],
)
def test_a_journal_leads_nowhere_else(here: Path, tmp_path: Path, spot: bytes, name: bytes) -> None:
    """It may have come with an archive that was unpacked there."""
    (here / "d").mkdir()
    top = here / ".quine-aside-0123"
    (top / "new").mkdir(parents=True)
    (top / "new" / "0").write_text("planted")
    (tmp_path / "kept").write_text("mine")
    (top / "journal").write_bytes(spot + b"\0" + name + b"\0")
    renames.recover(os.fsencode(here))
    assert not (tmp_path / "planted").exists() and not Path("/planted").exists()
    assert (tmp_path / "kept").read_text() == "mine"
    assert sorted(path.name for path in here.iterdir() if path != top) == ["d"]


def test_a_content_that_stands_twice_is_whole_twice(
    here: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write takes less than it was given where the disk is nearly full."""
    content = os.urandom(3_000_000)
    for name in ("a", "b"):
        (here / name).write_bytes(content)
    write = os.write
    monkeypatch.setattr(
        aside.os, "write", lambda fd, data: write(fd, memoryview(data)[: max(1, len(data) * 2 // 3)])
    )
    stage(here, there, "a", "b")
    assert [(there / name).read_bytes() == content for name in ("a", "b")] == [True, True]


def test_a_job_that_has_started_reads_no_more(here: Path, there: Path) -> None:
    (here / "a").write_text("as it was when it started")
    staging = Staging(["a"], [], str(here))
    giving = staging.giving()
    relay = Relay(giving.given)
    try:
        with inside(there):
            from quine.staging import there as side

            assert side._staged(relay, staging.key)  # type: ignore[arg-type]
        (here / "a").write_text("for nobody over there")
        line = relay.stream("stage")
        tell(line, {"say": "in", "has": ""})
        with pytest.raises(RequestError):
            Feed(line).hear()
        line = relay.stream("stage")
        tell(line, {"say": "failed", "why": "I never ran"})
        line.end()
        with pytest.raises(RequestError):
            line.read(1)
        assert not giving.failure
    finally:
        relay.close()


@pytest.mark.parametrize("size", [10, 3_000_000])
@pytest.mark.parametrize("moment", ["listed", "looked at"])
def test_a_directory_that_is_a_link_by_now_is_not_followed(
    here: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, size: int
) -> None:
    """Somebody exchanges it between the steps of a look, or between the look and the reading."""
    for top in (here / "t", tmp_path / "secret"):
        (top / "d").mkdir(parents=True)
        (top / "d" / "f").write_bytes(top.name[:1].encode() * size)

    def exchange() -> None:
        if not (here / "t" / "d").is_symlink():
            (here / "t" / "d").rename(tmp_path / "away")
            (here / "t" / "d").symlink_to(tmp_path / "secret" / "d")

    look, into = tree.look, survey._look_into

    def looked(*args: Any, **more: Any) -> Any:
        found = look(*args, **more)
        exchange()
        return found

    def listed(fd: int, *more: Any) -> Any:
        found = into(fd, *more)
        if any(name == b"d" for name, _ in found[2]):
            exchange()
        return found

    if moment == "listed":
        monkeypatch.setattr(survey, "_look_into", listed)
    else:
        monkeypatch.setattr(tree, "look", looked)
    monkeypatch.setattr(tree, "settled", lambda take, found: (found, True))
    with pytest.raises(RequestError):
        stage(here, there, "t")
    assert not any(path.is_file() and path.read_bytes()[:1] == b"s" for path in there.rglob("*"))


def test_a_directory_above_what_was_asked_for_keeps_its_mode(
    here: Path,
    there: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for top in (here, there):
        (top / "out").mkdir()
    (here / "out").chmod(0o750)
    (there / "out" / "a").write_text("x")
    imply = Tree._imply

    def named(self: Any) -> None:
        imply(self)
        for index, name in enumerate(self._manifest.names):
            if name == b"out":
                self._manifest.modes[index] = self._manifest.modes[index] & ~IMPLIED | 0o777

    monkeypatch.setattr(Tree, "_imply", named)
    failure, _ = bring(here, there, "out/a")
    assert "was not asked for" in failure
    assert stat.S_IMODE((here / "out").stat().st_mode) == 0o750
