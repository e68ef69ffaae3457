"""Data on its way to a store: its memory is bounded, whatever a job says and however much it sends at once."""

from __future__ import annotations

import errno
import os
import threading
import zlib
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quine.files.stores import spool
from quine.files.stores.fsspec_io import SpoolWriter
from quine.files.stores.object.io import MODE, MTIME, PART, TOLD_PART, ObjectWriter
from quine.files.stores.spool import MEMORY, MOST, Budget
from quine.mount.writeback import Draft
from tests.support.acts import refused
from tests.support.agents import until

META = {MODE: "644", MTIME: "0.0"}


class Slow:
    """A bucket that takes parts and answers when it is `let`."""

    name = "slow"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waiting: list[tuple[Future[Any], int]] = []
        self.held = self.peak = self.parts = 0
        self.let = threading.Event()
        self.sums: dict[str, int] = {}

    def begin(self, method: str, **call: Any) -> Future[Any]:
        future: Future[Any] = Future()
        size = len(call["Body"])
        with self.lock:
            self.sums[call["Key"]] = zlib.crc32(call["Body"], self.sums.get(call["Key"], 0))
            self.parts += 1
            self.held += size
            self.peak = max(self.peak, self.held)
            self.waiting.append((future, size))
        if self.let.is_set():
            self.answer()
        return future

    def answer(self) -> None:
        with self.lock:
            waiting, self.waiting = self.waiting, []
            self.held -= sum(size for _, size in waiting)
        for future, _ in waiting:
            future.set_result({"ETag": '"e"'})

    def done(self, future: Future[Any], path: str) -> Any:
        return future.result(60)

    def call(self, method: str, path: str, **call: Any) -> Any:
        return {"UploadId": "u", "ETag": '"e"'}


def test_a_size_that_is_only_told_makes_no_larger_buffer() -> None:
    bucket = Slow()
    bucket.let.set()
    with ObjectWriter(bucket, "k", "k", META, False, 1 << 62, lambda: None) as writer:  # type: ignore[arg-type]
        for _ in range(2 * TOLD_PART // PART + 1):
            writer.write(bytes(PART))
        assert bucket.parts == 2 and bucket.peak <= TOLD_PART
        writer.commit()


@pytest.mark.long
def test_many_writers_share_one_budget() -> None:
    bucket, count = Slow(), 4 * MOST // (3 * PART)
    data = {str(number): os.urandom(64) * (2 * PART // 64) for number in range(8)}

    def send(number: int) -> None:
        content = data[str(number % 8)]
        writer = ObjectWriter(bucket, f"k{number}", "k", META, False, 0, lambda: None)  # type: ignore[arg-type]
        with writer:
            for at in range(0, len(content), PART // 3):
                writer.write(content[at : at + PART // 3])
            writer.commit()

    threads = [threading.Thread(target=send, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    until(lambda: bucket.held == MOST)
    bucket.let.set()
    bucket.answer()
    for thread in threads:
        thread.join(120)
    assert bucket.peak <= MOST
    assert MEMORY._held == 0
    assert all(bucket.sums[f"k{number}"] == zlib.crc32(data[str(number % 8)]) for number in range(count))


def test_what_is_larger_than_the_budget_goes_alone() -> None:
    budget = Budget(10)
    budget.take(100)
    other = threading.Thread(target=budget.take, args=(1,))
    other.start()
    assert budget.is_full and other.is_alive()
    budget.give(100)
    other.join(60)
    assert budget._held == 1


def test_a_spool_lies_on_a_disk_and_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    disk.mkdir()
    memory.mkdir()
    monkeypatch.setenv("TMPDIR", str(memory))
    monkeypatch.setenv("QUINE_DATA_DIR", str(disk))
    monkeypatch.setattr(spool, "_device", lambda folder: "in memory" if folder == str(memory) else "disk")
    monkeypatch.setattr(spool, "_in_memory", lambda: {"in memory"})
    spool._folders.cache_clear()
    fd = spool.spool()
    try:
        assert os.readlink(f"/proc/self/fd/{fd}").startswith(f"{disk}/")
        assert list(disk.iterdir()) == []
        os.write(fd, b"content")
        path = spool.keep(fd, "name")
        assert Path(path).parent == disk and Path(path).read_bytes() == b"content"
    finally:
        os.close(fd)
        spool._folders.cache_clear()


def test_a_large_spool_leaves_some_of_its_disk_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spool leaves half of memory to others, and a tenth or 1 GiB of a disk. Small files are never refused."""
    block, large = 4096, spool.UNASKED + 1
    for whole, in_memory, spare in (
        (1 << 40, False, 1 << 30),
        (1 << 30, False, (1 << 30) // 10),
        (1 << 32, True, 1 << 31),
    ):
        monkeypatch.setattr(spool, "_is_in_memory", lambda device, told=in_memory: told)
        left = (spare + large) // block + 1
        with (tmp_path / "file").open("wb") as file:
            for free in (left, left - 2):
                facts = os.statvfs_result((block, block, whole // block, free, free, 0, 0, 0, 0, 255))
                monkeypatch.setattr("os.fstatvfs", lambda fd, told=facts: told)
                spool.expect_room(file.fileno(), 0, spool.UNASKED, "a")
                if free == left:
                    spool.expect_room(file.fileno(), 0, large, "a")
                else:
                    refused(errno.ENOSPC, partial(spool.expect_room, file.fileno(), 0, large, "a"))


def test_all_that_is_spooled_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "UNASKED", 1 << 20)
    monkeypatch.setattr(spool, "SPARE", 1 << 60)
    monkeypatch.setattr("os.fstatvfs", lambda fd: os.statvfs_result((1, 1, 1 << 40, 1, 1, 0, 0, 0, 0, 255)))
    draft = Draft("a", None)
    draft.begin()
    draft.write(bytes(1 << 20), 0)
    refused(errno.ENOSPC, lambda: draft.write(b"x", 1 << 20))
    refused(errno.EDQUOT, lambda: draft.write(b"xx", 9, most=10))
    draft.close()
    file = os.fdopen(spool.spool(), "w+b")
    with SpoolWriter("a", file, pytest.fail, lambda: None, True) as writer:
        writer.write(bytes(1 << 20))
        refused(errno.ENOSPC, lambda: writer.write(b"x"))
