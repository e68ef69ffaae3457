"""Which files are accepted as a binary, and which installations stay on a host after a new one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy import build
from deploy.there import installer
from tests.support.waiting import until
from transport import address, this_build
from transport.node.served import Served


def installations(base: Path, count: int) -> list[Path]:
    """So many, the oldest first, each with a Python of its own."""
    made = []
    for number in range(count):
        folder = base / f"{number:064x}"
        folder.mkdir()
        (folder / "lib").write_text("input()")
        os.utime(folder, (1000 + number, 1000 + number))
        made.append(folder)
    return made


def test_an_installation_in_use_stays_however_old_it_is(tmp_path: Path) -> None:
    made = installations(tmp_path, 6)
    program = str(made[1] / "lib")
    with subprocess.Popen([sys.executable, program], stdin=subprocess.PIPE) as running:
        try:
            until(lambda: program in installer.contents("cmdline"), "its command line is seen")
            installer.forget(tmp_path, tmp_path / ("f" * 64))
            assert [folder.exists() for folder in made] == [False, True, False, False, True, True]
        finally:
            running.communicate(b"\n")
    installer.forget(tmp_path, tmp_path / ("f" * 64))
    assert [folder.exists() for folder in made] == [False, False, False, False, True, True]


def test_an_installation_that_another_host_runs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts with one home do not see each other's processes."""
    made = installations(tmp_path, 5)
    monkeypatch.setattr(this_build, "ROOT", str(made[0] / "lib"))
    monkeypatch.setattr(this_build, "_use_noted", -this_build.NOTE_SECONDS)
    (made[0] / "lib").unlink()
    (made[0] / "lib").mkdir()
    (made[0] / "lib" / "__main__.py").touch()
    this_build.note_use()
    (note,) = made[0].glob("used-*")
    assert note.name == f"used-{os.uname().nodename}-{address.boot_id()}", "two hosts may have one name"
    os.utime(made[0], (1000, 1000))
    os.utime(note, (2000, 2000))
    this_build.note_use()
    assert note.stat().st_mtime == 2000, "not each time"
    os.utime(note)
    (made[1] / "used-other").touch()
    late = time.time() - installer.USED - 60
    os.utime(made[1] / "used-other", (late, late))
    os.utime(made[1], (1001, 1001))
    installer.forget(tmp_path, tmp_path / ("f" * 64))
    assert [folder.exists() for folder in made] == [True, False, False, True, True]


@pytest.mark.parametrize("call", ["open", "utime", "close"])
def test_a_note_that_a_server_refuses_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    (made,) = installations(tmp_path, 1)
    (made / "lib").unlink()
    (made / "lib").mkdir()
    (made / "lib" / "__main__.py").touch()
    monkeypatch.setattr(this_build, "ROOT", str(made / "lib"))
    monkeypatch.setattr(this_build, "_use_noted", -this_build.NOTE_SECONDS)
    done = getattr(os, call)

    def fails(*words: Any) -> None:
        if call != "open":
            done(*words)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        this_build.note_use()


def test_a_node_says_that_its_installation_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[bool] = []
    monkeypatch.setattr(this_build, "note_use", lambda: noted.append(True))
    Served.cut_if_removed(SimpleNamespace(links={}))  # type: ignore[arg-type]
    assert noted


def test_the_one_that_comes_and_what_is_no_installation_stay(tmp_path: Path) -> None:
    made = installations(tmp_path, 5)
    (tmp_path / "build").mkdir()
    (tmp_path / "hosts").mkdir()
    installer.forget(tmp_path, made[0])
    assert made[0].exists() and (tmp_path / "build").exists() and (tmp_path / "hosts").exists()
    assert [folder.exists() for folder in made[1:]] == [False, False, True, True]


@pytest.mark.parametrize("prefix", [".new-", ".old-", ".part-"])
def test_what_a_killed_installer_left_goes_when_it_is_stale(tmp_path: Path, prefix: str) -> None:
    stale, fresh = tmp_path / f"{prefix}a", tmp_path / f"{prefix}b"
    for path in (stale, fresh):
        (path / "sub").mkdir(parents=True)
    late = time.time() - installer.STALE - 60
    os.utime(stale, (late, late))
    installer.forget(tmp_path, tmp_path / ("f" * 64))
    assert (stale.exists(), fresh.exists()) == (False, True)


def test_installers_that_tidy_up_at_once_do_no_harm_to_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one home on many hosts: another one removes each thing after this one has seen its name."""
    mine, late = tmp_path / ("f" * 64), time.time() - installer.STALE - 60
    for name in (".new-a", ".old-a", mine.name, "layer-a", "layer-b", "e" * 64):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (late, late))
    (tmp_path / ".part-a").touch()
    os.utime(tmp_path / ".part-a", (late, late))
    (tmp_path / "note").touch()
    (mine / "layer-s3").symlink_to("../layer-a")
    real, stay = shutil.rmtree, (mine, tmp_path / "layer-a")

    def after_another(call: Callable[..., object]) -> Callable[..., object]:
        def called(path: object = ".", *args: object, **words: object) -> object:
            if isinstance(path, (str, Path)) and Path(path).parent == tmp_path and path not in stay:
                real(path, ignore_errors=True)
            return call(path, *args, **words)

        return called

    for module, name in ((shutil, "rmtree"), (os, "scandir"), (os, "listdir")):
        monkeypatch.setattr(module, name, after_another(getattr(module, name)))
    installer.forget(tmp_path, mine)
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == sorted([mine.name, "layer-a", "note"])


BINARY = random.Random(1).randbytes(3 * installer.CHUNK + 1)
DIGEST = hashlib.sha256(BINARY).hexdigest()


def receive(folder: Path, data: bytes, offset: int = 0) -> installer.Part:
    """`data` in place of the bytes of BINARY behind `offset`."""
    source = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    return installer.receive(folder, "name", DIGEST, len(BINARY), offset, source)


def test_a_binary_is_checked_as_the_file_has_it(tmp_path: Path) -> None:
    with receive(tmp_path, BINARY + b"the dial's") as part:
        assert part.path.read_bytes() == BINARY and part.path.stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.iterdir())


def test_what_came_before_a_cut_is_kept_and_not_asked_for_again(tmp_path: Path) -> None:
    for end in (1, installer.CHUNK, len(BINARY) - 1):
        kept = (tmp_path / ".part-name").stat().st_size if list(tmp_path.iterdir()) else 0
        with pytest.raises(installer.Failure) as failure:
            receive(tmp_path, BINARY[kept:end], kept)
        assert failure.value.word == "cut" and os.listdir(tmp_path) == [".part-name"]
        assert (tmp_path / ".part-name").read_bytes() == BINARY[:end]
    with receive(tmp_path, BINARY[-1:], len(BINARY) - 1) as part:
        assert part.path.read_bytes() == BINARY


@pytest.mark.parametrize("offset", [0, 1000])
def test_damaged_bytes_are_not_kept(tmp_path: Path, offset: int) -> None:
    (tmp_path / ".part-name").write_bytes(b"?" * offset)
    with pytest.raises(installer.Failure) as failure:
        receive(tmp_path, bytes([BINARY[offset] ^ 1]) + BINARY[offset + 1 :], offset)
    assert failure.value.word == "corrupt" and not list(tmp_path.iterdir())


def test_installers_of_the_same_share_the_bytes_that_came(tmp_path: Path) -> None:
    """The connection of the other one may be dead, and its installer not know it."""
    (tmp_path / ".part-name").write_bytes(BINARY[:10])
    dead = os.open(tmp_path / ".part-name", os.O_RDWR)
    os.lseek(dead, 10, os.SEEK_SET)
    with pytest.raises(installer.Failure):
        receive(tmp_path, BINARY[:100])
    os.write(dead, BINARY[10:20])
    assert (tmp_path / ".part-name").read_bytes() == BINARY[:100]
    with receive(tmp_path, BINARY[50:], 50) as part:
        os.write(dead, BINARY[20:])
        part.path.unlink()  # the other one is done
        with part.open() as file:
            assert file.read() == BINARY
    assert not list(tmp_path.iterdir())
    assert os.pread(dead, len(BINARY) + 1, 0) == BINARY
    os.close(dead)


def test_bytes_are_added_only_behind_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / ".part-name").write_bytes(BINARY[:9])
    with pytest.raises(installer.Failure) as failure:
        receive(tmp_path, BINARY[10:], 10)
    assert failure.value.word == "moved" and (tmp_path / ".part-name").read_bytes() == BINARY[:9]


def test_a_cache_that_others_may_have_made_is_not_used(tmp_path: Path) -> None:
    """A directory of the user's that links lead to is; one that anybody can write, or of somebody else, is not."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "link").symlink_to("scratch")
    own = tmp_path / "link" / "new" / "cache"
    installer.make(own)
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o1777)
    with pytest.raises(installer.Failure, match="can be written by others"):
        installer.make(own)
    own.chmod(0o775)  # as umask 002 makes it, with a group that nobody else is in
    with (
        contextlib.nullcontext()
        if installer.is_private(own.stat().st_gid)
        else pytest.raises(installer.Failure)
    ):
        installer.make(own)
    if os.geteuid() == 0:
        os.chown(own, 65534, -1)
        with pytest.raises(installer.Failure, match="belongs to user id 65534"):
            installer.make(own)


def test_the_way_to_a_cache_is_judged_from_the_home_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory where others can rename names, one of them could put another cache there."""
    scratch, home = tmp_path / "scratch", tmp_path / "homes" / "me"
    (scratch / "cache").mkdir(parents=True, mode=0o700)
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (scratch / "up").symlink_to("../scratch/./cache")
    (home / ".cache").symlink_to(scratch / "up")
    ways = [home / ".cache" / "quine", scratch / "up" / "quine", scratch / "cache" / "quine"]
    for mode, sound in ((0o755, True), (0o777, False), (0o1777, True), (0o2775, None)):
        scratch.chmod(mode)
        for way in ways:
            if sound or (sound is None and installer.is_private(scratch.stat().st_gid)):
                installer.make(way)
            else:
                with pytest.raises(installer.Failure, match=f"{scratch}, on the way to .*, can be written"):
                    installer.make(way)
    scratch.chmod(0o755)
    home.parent.chmod(0o777)  # the login is judged by others, and what is above a home by nobody
    (home / "own").mkdir(mode=0o700)
    installer.make(home / "own" / "quine")
    (home / "round").symlink_to("round/x")
    with pytest.raises(OSError, match="Too many levels"):
        installer.judge_way(str(home / "round" / "quine"), str(home))
    if os.geteuid() == 0:
        os.lchown(scratch / "up", 65534, -1)
        with pytest.raises(installer.Failure, match=r"up, on the way to .*, belongs to user id 65534"):
            installer.make(ways[0])


def test_a_link_in_the_place_of_the_bytes_that_came_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"mine")
    (tmp_path / ".part-name").symlink_to("precious")
    with pytest.raises(OSError, match="symbolic links"):
        receive(tmp_path, BINARY)
    assert (tmp_path / "precious").read_bytes() == b"mine"


def install(folder: Path, main: str, target: Path) -> float:
    """Return the inode of the installation that is there afterwards."""
    with packed(folder / "file", main) as part:
        installer.install(part, target)
    assert os.listdir(folder) == [target.name]
    return target.stat().st_ino


def test_an_equal_installation_stays_whenever_it_was_made(tmp_path: Path) -> None:
    """Another installer may have made it, and started it already."""
    target = tmp_path / "name"
    first = install(tmp_path, "main", target)
    os.utime(target, (1000, 1000))
    (target / "lib" / "__pycache__").mkdir()
    assert install(tmp_path, "main", target) == first
    assert not (target / "lib" / "__pycache__").exists(), "its Python makes them anew if they were damaged"


@pytest.mark.parametrize("file", ["lib/__main__.py", "quine", "quine.pyz"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 1), Path.touch])
def test_a_damaged_installation_is_replaced(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    target = tmp_path / "name"
    first = install(tmp_path, "main", target)
    damage(target / file)
    assert (install(tmp_path, "main", target) == first) == (damage is Path.touch)
    assert (target / "lib" / "__main__.py").read_text() == "main"


def packed(path: Path, main: str) -> installer.Part:
    build.write_zip(content := io.BytesIO(), [("__main__.py", main.encode())])
    with path.open("wb") as file:
        build.write_zip(file, [(installer.CONTENT, content.getvalue())])
    part = installer.Part(path, os.open(path, os.O_RDONLY))
    part.keep = False
    return part


def test_an_installation_starts_by_its_launcher_and_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a cache").mkdir()
    target = tmp_path / "a cache" / "name"
    main = "import sys; print(sys.argv[1:], sys.flags.isolated, sys.flags.no_site, open('/dev/stdin').read())"
    with packed(tmp_path / "file", main) as part:
        installer.install(part, target, setup="echo set up >&2\n")
    assert not (tmp_path / "file").exists()
    assert sorted(os.listdir(target)) == ["lib", "quine", "quine.pyz"]
    assert (target / "quine").stat().st_mtime > (target / "quine.pyz").stat().st_mtime
    done = subprocess.run([target / "quine", "a b", "c"], input=b"in", capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"['a b', 'c'] 1 1 in\n", b"set up\n")
    assert os.listdir(tmp_path / "a cache") == ["name"]


def test_an_installation_that_does_not_start_is_reported(tmp_path: Path) -> None:
    with packed(tmp_path / "file", "raise SystemExit('no good')") as part:
        installer.install(part, tmp_path / "name")
    with pytest.raises(installer.Failure, match="no good") as failure:
        installer.try_out(tmp_path / "name")
    assert failure.value.word == "start"


def test_a_file_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"no zip")
    part = installer.Part(tmp_path / "file", os.open(tmp_path / "file", os.O_RDONLY))
    with part, pytest.raises(installer.Failure) as failure:
        installer.install(part, tmp_path / "name")
    assert failure.value.word == "unpack" and os.listdir(tmp_path) == ["file"]


def test_the_dial_has_the_umask_of_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node's jobs inherit it."""
    masks: list[int] = []

    def run(*_: object) -> None:
        masks.append(os.umask(0))
        os.umask(masks[-1])

    monkeypatch.setattr(installer, "install", run)
    monkeypatch.setattr(installer, "receive", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(installer.signal, "signal", lambda *_: None)
    monkeypatch.setattr(installer, "say", lambda *_: None)
    monkeypatch.setattr(os, "execv", run)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which it changes
    source = io.BufferedReader(io.BytesIO())  # type: ignore[arg-type]
    before = os.umask(0o027)
    try:
        installer.main("", str(tmp_path), "0" * 64, "", 0, 0, "", "dial", source)
    finally:
        os.umask(before)
    assert masks == [0o077, 0o027]
