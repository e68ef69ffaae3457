"""`quine fs get X NAME`: where the file comes to when the name is a link, a pipe or a device."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.files.cli import part
from tests.files.commands import Shelf
from transport.backports import libc


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path)
    shelf.ok("put", "-", "a", input=b"content")
    return shelf


def test_a_link_that_was_named_is_followed(shelf: Shelf) -> None:
    here = shelf.directory
    (here / "real").write_bytes(b"old")
    (here / "link").symlink_to("real")
    (here / "second").symlink_to("link")
    shelf.ok("get", "a", "second")
    assert (here / "link").is_symlink() and (here / "second").is_symlink()
    assert (here / "real").read_bytes() == b"content"
    (here / "dangling").symlink_to("made")
    shelf.ok("get", "a", "dangling")
    assert (here / "dangling").is_symlink() and (here / "made").read_bytes() == b"content"


def test_a_link_that_was_named_stays_where_nothing_shall_be_replaced(shelf: Shelf) -> None:
    (shelf.directory / "dangling").symlink_to("made")
    assert "dangling: file exists" in shelf.fails("get", "-n", "a", "dangling")
    assert not (shelf.directory / "made").exists()


def test_what_is_no_file_is_written_and_not_replaced(shelf: Shelf) -> None:
    pipe = shelf.directory / "pipe"
    os.mkfifo(pipe)
    (shelf.directory / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        came: list[bytes] = []
        reader = threading.Thread(target=lambda came=came: came.append(pipe.read_bytes()))  # type: ignore[misc]
        reader.start()
        shelf.ok("get", "a", name)
        reader.join(60)
        assert came == [b"content"] and pipe.is_fifo()
    (shelf.directory / "null").symlink_to("/dev/null")
    shelf.ok("get", "a", "null")
    assert (shelf.directory / "null").is_symlink() and Path("/dev/null").is_char_device()


def test_a_descriptor_is_written_where_it_stands(shelf: Shelf) -> None:
    """By a link of this test's: where links are replaced, root would lose the machine's /dev/stdout."""
    (shelf.directory / "out").symlink_to("/proc/self/fd/1")
    with shelf.popen("get", "a", "out", stdout=subprocess.PIPE) as process:
        assert process.communicate(timeout=120) == (b"content", b"")


def test_the_umask_holds_and_a_sync_is_done_with_that(shelf: Shelf) -> None:
    shelf.ok("put", "--mode", "777", "-", "d/open", input=b"content")
    got, synced = shelf.directory / "got", shelf.directory / "synced"
    before = os.umask(0o027)
    try:
        shelf.ok("get", "d/open", "got")
        shelf.ok("sync", "tier:d", "synced")
        assert [path.stat().st_mode & 0o777 for path in (got, synced / "open")] == [0o750, 0o750]
        assert shelf.ok("sync", "-n", "tier:d", "synced") == b""
        (synced / "open").chmod(0o777)
        shelf.ok("sync", "tier:d", "synced")
        assert (synced / "open").stat().st_mode & 0o777 == 0o750, "a mode that has changed alone"
    finally:
        os.umask(before)


def test_a_file_that_was_named_keeps_its_other_names_and_its_owner(shelf: Shelf) -> None:
    """As after `>`. One of a tree is replaced, as by rsync: its other names may be a snapshot."""
    got, other = shelf.directory / "got", shelf.directory / "other"
    got.write_bytes(b"much older content")
    os.link(got, other)
    shelf.ok("get", "a", "got")
    assert got.samefile(other) and other.read_bytes() == b"content"
    assert got.stat().st_mtime == (shelf.tier / "a").stat().st_mtime
    shelf.ok("put", "-", "t/got", input=b"newer")
    shelf.ok("get", "-r", "-T", "t", ".")
    assert (got.read_bytes(), other.read_bytes()) == (b"newer", b"content")
    if os.geteuid() == 0:
        got.chmod(0o444)
        os.chown(got, 1234, 1235)
        shelf.ok("get", "a", "got")
        facts = got.stat()
        assert (facts.st_uid, facts.st_gid, got.read_bytes()) == (1234, 1235, b"content")


@pytest.mark.parametrize("closed", [False, True], ids=["other names", "closed directory"])
def test_a_file_that_is_copied_into_is_whole_or_as_before(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    got, other, real, write = shelf.directory / "got", shelf.directory / "other", os.open, os.write
    got.write_bytes(b"much older content")
    os.link(got, other)
    number = got.stat().st_ino
    files = sorted(os.listdir(shelf.directory))

    def opened(path: Any, flags: int, *more: Any, dir_fd: int | None = None) -> int:
        if closed and dir_fd is not None and flags & os.O_TMPFILE == os.O_TMPFILE:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, *more, dir_fd=dir_fd)

    def stopped(*_: object) -> None:
        raise OSError(errno.ESTALE, "was replaced while it was read", "a")

    def full(fd: int, data: bytes) -> int:
        if os.fstat(fd).st_ino == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(os, "open", opened)
    with monkeypatch.context() as patch:
        patch.setattr(part.Part, "fill", stopped)
        assert shelf.run("get", "a", "got").returncode == 1 and other.read_bytes() == b"much older content"
    with monkeypatch.context() as patch:  # a filesystem that reserves nothing, and is full
        patch.setattr(libc, "in_libc", lambda _: False)
        patch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=-1024, f_frsize=4096))
        done = shelf.run("get", "a", "got")
        assert (done.returncode, other.read_bytes()) == (1, b"much older content")
        assert b"no space left on device" in done.stderr and b"whole" not in done.stderr
    assert sorted(os.listdir(shelf.directory)) == files
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        done = shelf.run("get", "a", "got")
    kept = Path(done.stderr.decode().partition("the whole content is in ")[2].strip())
    assert done.returncode == 1 and kept.read_bytes() == b"content"
    kept.unlink()
    shelf.ok("get", "a", "got")
    assert got.samefile(other) and other.read_bytes() == b"content"
    assert sorted(os.listdir(shelf.directory)) == files


def test_a_file_is_on_the_disk_before_it_has_its_name(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a tree only one that replaces another: with a new one nothing is lost, and thousands are quicker."""
    done: list[str] = []

    def noted(name: str) -> None:
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *args, **words: (done.append(name), real(*args, **words))[1])

    shelf.ok("put", "-", "t/x", input=b"one of a tree")
    for name in ("fsync", "link", "rename"):
        noted(name)
    shelf.ok("get", "a", "got")
    assert done == ["fsync", "link"]
    done.clear()
    shelf.ok("get", "a", "got")
    assert done[0] == "fsync" and done[-1] == "rename"
    done.clear()
    shelf.ok("get", "-r", "t", "tree")
    assert "fsync" not in done
    (shelf.directory / "tree/x").write_bytes(b"other")
    done.clear()
    shelf.ok("sync", "tier:t", "tree")
    assert "fsync" in done and done.index("fsync") < done.index("rename")
