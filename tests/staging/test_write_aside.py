"""Files written aside and renamed: a name means what a redirection of the shell means by it, and readers see wholes."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from transport import atomic
from transport.backports import libc
from transport.writes import write_all, write_at

ROOT = Path(__file__).parents[2]


def left(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_a_file_is_made_and_replaced_whole(tmp_path: Path) -> None:
    target = tmp_path / "r"
    atomic.write(str(target), b"one", 0o640)
    assert target.read_bytes() == b"one" and stat.S_IMODE(target.stat().st_mode) == 0o640
    with open(target, "rb") as before:
        atomic.write(str(target), b"two")
        assert before.read() == b"one" and target.read_bytes() == b"two"
    assert left(tmp_path) == ["r"]


def test_a_file_that_is_replaced_keeps_its_mode(tmp_path: Path) -> None:
    target = tmp_path / "r"
    target.write_bytes(b"")
    target.chmod(0o604)
    atomic.write(str(target), b"x", 0o640)
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_a_file_that_is_replaced_keeps_its_owner_and_its_other_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, other = tmp_path / "r", tmp_path / "other"
    target.write_bytes(b"something longer")
    os.link(target, other)
    atomic.write(str(target), b"x")
    assert other.read_bytes() == target.read_bytes() == b"x" and target.samefile(other)
    other.unlink()
    if not os.getuid():
        os.chown(target, 1234, 1235)
        atomic.write(str(target), b"y")
        assert (target.stat().st_uid, target.stat().st_gid, target.read_bytes()) == (1234, 1235, b"y")

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    number, facts = target.stat().st_ino, os.stat_result((0o100644, 0, 0, 1, 4321, 4321, *[0] * 4))
    monkeypatch.setattr(os, "fchown", refuse)
    monkeypatch.setattr(os, "fstat", lambda fd: facts)  # a new file would be another user's
    atomic.write(str(target), b"zz")
    assert target.stat().st_ino == number and target.read_bytes() == b"zz" and left(tmp_path) == ["r"]


def test_a_file_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, name=name, real=real: (calls.append(name), real(*given)))
    atomic.write(str(tmp_path / "r"), b"x")
    atomic.write_aside(str(tmp_path / "own"), {})
    assert calls == ["fsync", "rename"] * 2


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, real = tmp_path / "r", os.open
    target.write_bytes(b"as it was")

    def closed(path: str, flags: int, mode: int = 0o777) -> int:
        if path == str(target) and flags & os.O_ACCMODE:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", closed)  # as a read-only file is for anybody but root
    with pytest.raises(PermissionError):
        atomic.write(str(target), b"x")
    assert target.read_bytes() == b"as it was" and left(tmp_path) == ["r"]


def test_what_is_not_committed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"as it was")
    with pytest.raises(ZeroDivisionError), atomic.Aside(str(tmp_path / "r")) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert left(tmp_path) == ["r"] and (tmp_path / "r").read_bytes() == b"as it was"


@pytest.mark.parametrize("there", [True, False], ids=["there", "dangling"])
def test_a_link_stays_and_the_file_behind_it_is_replaced(tmp_path: Path, there: bool) -> None:
    (tmp_path / "data").mkdir()
    if there:
        (tmp_path / "data" / "r").write_bytes(b"old")
    (tmp_path / "second").symlink_to("data/r")
    (tmp_path / "link").symlink_to(tmp_path / "second")
    atomic.write(str(tmp_path / "link"), b"new")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "second").is_symlink()
    assert (tmp_path / "data" / "r").read_bytes() == b"new" and left(tmp_path / "data") == ["r"]


def test_a_relative_link_in_a_linked_directory_leads_where_the_kernel_goes(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "short").symlink_to("a/b")
    (tmp_path / "a" / "b" / "link").symlink_to("../r")
    atomic.write(str(tmp_path / "short" / "link"), b"x")
    assert (tmp_path / "a" / "r").read_bytes() == b"x"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match="symbolic links"):
        atomic.write(str(tmp_path / "a"), b"x")


@pytest.mark.parametrize("linked", [False, True], ids=["named", "linked"])
def test_a_device_is_written_and_stays(tmp_path: Path, linked: bool) -> None:
    """By a node of its own: a rename over it, by root, takes it from the whole machine."""
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        device.write_bytes(b"")
    except PermissionError:
        pytest.skip("devices cannot be made or opened here")
    (tmp_path / "link").symlink_to("null")
    atomic.write(str(tmp_path / ("link" if linked else "null")), b"x")
    assert stat.S_ISCHR(device.lstat().st_mode) and (tmp_path / "link").is_symlink()
    assert left(tmp_path) == ["link", "null"]


def test_a_pipe_is_written_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to("pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    atomic.write(str(tmp_path / "link"), b"x" * 100_000)
    reader.join()
    assert got == [b"x" * 100_000] and stat.S_ISFIFO(pipe.lstat().st_mode)


WRITE = "import sys; from transport import atomic; atomic.write(sys.argv[1], b'report')"


@pytest.mark.parametrize("name", ["/dev/stderr", "/dev/fd/2", "/proc/self/fd/2", "LINK"])
def test_a_descriptor_of_ours_is_written_where_it_stands(tmp_path: Path, name: str) -> None:
    """And nothing of what is in its file is lost, for others write there, too."""
    log = tmp_path / "log"
    (tmp_path / "err").symlink_to("/dev/stderr")  # our own link: where it is replaced, only that is gone
    path = str(tmp_path / "err") if name == "LINK" else name
    if not name.startswith("/proc") and not os.path.islink("/dev/stderr" if name == "LINK" else name):
        pytest.skip("no such links on this machine")
    with open(log, "wb") as file:
        file.write(b"before ")
        file.flush()
        subprocess.run([sys.executable, "-c", WRITE, path], stderr=file, cwd=ROOT, check=True)
        file.seek(0, os.SEEK_END)
        file.write(b" after")
    assert log.read_bytes() == b"before report after"
    assert (tmp_path / "err").is_symlink() and left(tmp_path) == ["err", "log"]


def test_a_file_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In somebody else's directory, or mounted by itself, as a file of a container is."""
    target = tmp_path / "r"
    target.write_bytes(b"something longer")
    number = target.stat().st_ino

    def busy(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "rename", busy)
    atomic.write(str(target), b"x")
    assert target.read_bytes() == b"x" and target.stat().st_ino == number and left(tmp_path) == ["r"]
    monkeypatch.undo()

    real = os.open

    def closed(path: str, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL:
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", closed)
    with atomic.Aside(str(target)) as file:
        file.write(b"not committed")
    assert target.read_bytes() == b"x"
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "write_all", busy)
        with pytest.raises(OSError, match="resource busy"):
            atomic.write(str(target), b"x")
    assert target.read_bytes() == b"x"
    atomic.write(str(target), b"yz")
    assert target.read_bytes() == b"yz" and target.stat().st_ino == number
    with pytest.raises(PermissionError):
        atomic.write(str(tmp_path / "new"), b"x")


def test_a_file_with_other_names_is_whole_or_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "r"
    target.write_bytes(b"something longer")
    os.link(target, tmp_path / "s")

    def full(fd: int, data: bytes) -> None:
        if os.fstat(fd).st_nlink > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_all(fd, data)

    with monkeypatch.context() as patch:  # a filesystem that reserves nothing, and is full
        patch.setattr(libc, "in_libc", lambda _: False)
        patch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_bavail=-1024, f_frsize=4096))
        with pytest.raises(OSError, match="No space left on device"):
            atomic.write(str(target), b"new")
    assert target.read_bytes() == b"something longer" and left(tmp_path) == ["r", "s"]
    monkeypatch.setattr(atomic, "write_all", full)
    with pytest.raises(OSError, match="No space left on device; the whole content is in ") as raised:
        atomic.write(str(target), b"new")
    assert Path(str(raised.value.strerror).rpartition(" ")[2]).read_bytes() == b"new"


def test_errors_name_the_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "r", tmp_path):
        with pytest.raises(OSError) as raised:
            atomic.write(str(path), b"x")
        assert raised.value.filename == str(path)
    assert left(tmp_path) == []


def test_a_mode_that_cannot_be_set_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(OSError) as raised:
        atomic.write(str(tmp_path / "r"), b"x", own=True)
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, str(tmp_path / "r"))
    assert left(tmp_path) == [] and os.listdir("/proc/self/fd") == before


def test_two_at_a_time_each_leave_a_whole(tmp_path: Path) -> None:
    target = str(tmp_path / "r")
    bodies = [bytes([65 + n]) * 50_000 for n in range(8)]
    threads = [threading.Thread(target=atomic.write, args=(target, body)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Path(target).read_bytes() in bodies and left(tmp_path) == ["r"]


def test_a_file_of_our_own_replaces_a_link_and_has_its_mode(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "link").symlink_to("other")
    atomic.write(str(tmp_path / "link"), b"x", 0o700, own=True)
    assert not (tmp_path / "link").is_symlink() and stat.S_IMODE((tmp_path / "link").stat().st_mode) == 0o700
    assert (tmp_path / "other").read_bytes() == b""
    atomic.write(str(tmp_path / "link"), b"y", 0o600, own=True)
    assert stat.S_IMODE((tmp_path / "link").stat().st_mode) == 0o600


@pytest.mark.parametrize("write", [write_all, lambda fd, data: write_at(fd, data, 0)], ids=["all", "at"])
def test_a_write_that_fails_lets_go_of_its_data(
    tmp_path: Path, write: Callable[[int, bytearray], None]
) -> None:
    data = bytearray(b"x")
    with open(os.devnull, "rb") as file, pytest.raises(OSError) as raised:
        write(file.fileno(), data)
    assert raised.value.__traceback__
    data.clear()  # a BufferError while the traceback holds a view of it
