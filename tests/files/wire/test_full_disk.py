"""A disk that is full, at the origin and at the job, over a real link: ENOSPC, nothing left, and the next file fits."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine.files.api import BLOCK, Tier
from quine.files.cli import localfs
from tests.files import job_stores
from tests.files.tiers import put
from tests.lab import Lab

SIZE = 4 * BLOCK


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "small"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", place], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True, timeout=60)


def full(what: Callable[[], object]) -> None:
    with pytest.raises(OSError) as caught:
        what()
    assert caught.value.errno == errno.ENOSPC, caught.value


def sent(tier: Tier, path: str, file: Path, size: int | None) -> None:
    with localfs.Source(str(file)) as source, tier.create(path, size=size) as writer:
        source.feed(writer, lambda _: None)
        writer.commit()


def test_a_disk_that_is_full_at_the_origin(lab: Lab, small: Path, tmp_path: Path) -> None:
    """By descriptors, by blocks, and at the last byte: the file that was there stays."""
    large, fits = tmp_path / "large", tmp_path / "fits"
    large.write_bytes(os.urandom(2 * SIZE))
    fits.write_bytes(os.urandom(3 * BLOCK))
    with job_stores.opened(lab, "h1", small) as door:
        tier = door.tier()
        put(tier, "kept", b"old")
        for path in ("new", "kept"):
            full(lambda path=path: sent(tier, path, large, large.stat().st_size))  # type: ignore[misc]
            door.settled("kept")
            full(lambda path=path: put(tier, path, large.read_bytes()))  # type: ignore[misc]
            door.settled("kept")
        sent(tier, "new", fits, None)
        assert (small / "new").read_bytes() == fits.read_bytes()
        full(lambda: sent(tier, "kept", fits, 3 * BLOCK))
        door.settled("kept", "new")
        assert (small / "kept").read_bytes() == b"old"
        tier.remove("new")
        sent(tier, "kept", fits, 3 * BLOCK)
        assert (small / "kept").read_bytes() == fits.read_bytes()
        tier.close()


def test_a_disk_that_is_full_where_it_comes_to(lab: Lab, small: Path, tmp_path: Path) -> None:
    with job_stores.opened(lab, "h1", tmp_path / "fs") as door, localfs.Folder(str(small)) as folder:
        tier = door.tier()
        put(tier, "large", os.urandom(2 * SIZE))
        fits = os.urandom(3 * BLOCK)
        put(tier, "fits", fits)
        (small / "kept").write_text("old")
        for _ in range(2):
            with tier.open("large") as reader:
                full(lambda: folder.fill("kept", reader, lambda _: None))
            assert os.listdir(small) == ["kept"] and (small / "kept").read_text() == "old"
        with tier.open("fits") as reader:
            folder.fill("kept", reader, lambda _: None)
        assert (small / "kept").read_bytes() == fits
        tier.close()
