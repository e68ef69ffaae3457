"""The tier of a job over a real link: what it puts is kept, what stops half-way leaves nothing, whatever stops it."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.files.tier import BLOCK, Tier
from tests import doors
from tests.doors import Door
from tests.lab import Lab

pytestmark = pytest.mark.timeout(300)


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def put(tier: Tier, path: str, data: bytes, if_absent: bool = False) -> None:
    with tier.create(path, if_absent=if_absent) as writer:
        for at in range(0, len(data), BLOCK):
            writer.write(data[at : at + BLOCK])
        writer.commit()


def get(tier: Tier, path: str) -> bytes:
    with tier.open(path) as reader:
        return b"".join(iter(reader.read, b""))


@pytest.fixture
def door(lab: Lab, tmp_path: Path) -> Iterator[Door]:
    with doors.opened(lab, "h1", tmp_path / "fs") as made:
        yield made


def test_what_a_job_puts_is_at_the_origin(door: Door) -> None:
    tier = door.tier()
    for size in (0, 1, 5000, 3 * BLOCK + 1):
        data = content(size)
        put(tier, f"d/{size}", data)
        assert (door.root / "d" / str(size)).read_bytes() == data == get(tier, f"d/{size}")
    assert [entry.path for entry in tier.list("d")] == ["d/0", "d/1", f"d/{3 * BLOCK + 1}", "d/5000"]
    tier.rename("d/0", "e/0")
    tier.remove("d", recursive=True)
    assert door.kept() == ["e/0"]
    with pytest.raises(FileNotFoundError):
        tier.stat("d")
    assert tier.url_of("e/0").startswith("file://")
    tier.close()


def test_what_is_not_committed_leaves_nothing(door: Door) -> None:
    tier = door.tier()
    with tier.create("f") as writer:
        writer.write(content(3 * BLOCK))
    door.settled()
    with pytest.raises(OSError) as caught, tier.create("../f") as writer:
        writer.write(content(3 * BLOCK))
        writer.commit()
    assert caught.value.errno == errno.EPERM
    tier.close()


def test_anothers_right_is_no_right(door: Door) -> None:
    for more in ({"capability": "0" * 32}, {"token": "0" * 32}, {"capability": ""}):
        tier = door.tier(**more)
        with pytest.raises(OSError, match=r"capability|no such job") as caught:
            put(tier, "f", b"x")
        assert caught.value.errno == errno.ENOTCONN
        tier.close()
    door.settled()
