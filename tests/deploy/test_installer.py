"""Which files are accepted as a binary, and which installations stay on a host after a new one."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deploy import installer
from tests.support.waiting import until


def installations(base: Path, count: int) -> list[Path]:
    """So many, the oldest first, each with a Python of its own."""
    made = []
    for number in range(count):
        folder = base / f"{number:064x}"
        (folder / "venv" / "bin").mkdir(parents=True)
        (folder / "venv" / "bin" / "python").symlink_to(sys.executable)
        os.utime(folder, (1000 + number, 1000 + number))
        made.append(folder)
    return made


def test_an_installation_in_use_stays_however_old_it_is(tmp_path: Path) -> None:
    made = installations(tmp_path, 6)
    python = str(made[1] / "venv" / "bin" / "python")
    with subprocess.Popen([python, "-c", "input()"], stdin=subprocess.PIPE) as running:
        try:
            until(lambda: python in installer.commands(), "its command line is seen")
            installer.forget(tmp_path, tmp_path / ("f" * 64))
            assert [folder.exists() for folder in made] == [False, True, False, False, True, True]
        finally:
            running.communicate(b"\n")
    installer.forget(tmp_path, tmp_path / ("f" * 64))
    assert [folder.exists() for folder in made] == [False, False, False, False, True, True]


def test_the_one_that_comes_and_what_is_no_installation_stay(tmp_path: Path) -> None:
    made = installations(tmp_path, 5)
    (tmp_path / "build").mkdir()
    (tmp_path / "hosts").mkdir()
    installer.forget(tmp_path, made[0])
    assert made[0].exists() and (tmp_path / "build").exists() and (tmp_path / "hosts").exists()
    assert [folder.exists() for folder in made[1:]] == [False, False, True, True]


@pytest.mark.parametrize("prefix", [".new-", ".old-"])
def test_what_a_killed_installer_left_goes_when_it_is_stale(tmp_path: Path, prefix: str) -> None:
    stale, fresh = tmp_path / f"{prefix}a", tmp_path / f"{prefix}b"
    for path in (stale, fresh):
        (path / "sub").mkdir(parents=True)
    late = time.time() - installer.STALE - 60
    os.utime(stale, (late, late))
    installer.forget(tmp_path, tmp_path / ("f" * 64))
    assert (stale.exists(), fresh.exists()) == (False, True)


BINARY = os.urandom(3 * installer.CHUNK + 1)


def receive(path: Path, data: bytes) -> None:
    """`data` in place of BINARY."""
    digest = hashlib.sha256(BINARY).hexdigest()
    installer.receive(path, digest, len(BINARY), io.BufferedReader(io.BytesIO(data)))  # type: ignore[arg-type]


def test_a_binary_is_on_the_disk_before_it_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the check would be of the page cache, and a crash could leave a name without its content."""
    path, synced = tmp_path / "quine.pex", []

    def sync(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(os, "fsync", sync)
    receive(path, BINARY + b"the dial's")
    assert synced == [len(BINARY)]
    assert path.read_bytes() == BINARY and path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("data", "word"), [(BINARY[:-1], "cut"), (BINARY[:-1] + bytes([BINARY[-1] ^ 1]), "corrupt")]
)
def test_a_binary_that_is_another_one_is_refused(tmp_path: Path, data: bytes, word: str) -> None:
    with pytest.raises(installer.Failure) as failure:
        receive(tmp_path / "quine.pex", data)
    assert failure.value.word == word


@pytest.mark.parametrize(("age", "stays"), [(-60, True), (60, False)], ids=["meanwhile", "before"])
def test_what_another_installer_made_meanwhile_stays_and_what_was_there_before_goes(
    tmp_path: Path, age: int, stays: bool
) -> None:
    work, target = tmp_path / "work", tmp_path / "target"
    for folder in (work, target):
        folder.mkdir()
        (folder / folder.name).touch()
    began = time.time()
    os.utime(target, (began - age, began - age))
    installer.put(work, target, began)
    assert (target / "target").exists() == stays
    assert (target / "work").exists() != stays
    assert not list(tmp_path.glob(".old-*"))


@pytest.mark.parametrize("build", ["this", "another"])
def test_only_the_build_that_was_sent_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: str
) -> None:
    monkeypatch.setattr(installer, "run", lambda command, env, word: f"{build}\n")
    if build == "this":
        installer.unpack(tmp_path, tmp_path / "target", "this")
        return
    with pytest.raises(installer.Failure, match="another build"):
        installer.unpack(tmp_path, tmp_path / "target", "this")


def test_the_dial_has_the_umask_of_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its node's jobs inherit it."""
    masks: list[int] = []

    def run(*_: object) -> None:
        masks.append(os.umask(0))
        os.umask(masks[-1])

    monkeypatch.setattr(installer, "install", run)
    monkeypatch.setattr(installer.signal, "signal", lambda *_: None)
    monkeypatch.setattr(installer, "say", lambda *_: None)
    monkeypatch.setattr(os, "execv", run)
    monkeypatch.setenv("PATH", os.environ["PATH"])  # which it changes
    before = os.umask(0o027)
    try:
        installer.main("", "0" * 64, 0, "", "dial", io.BufferedReader(io.BytesIO()))  # type: ignore[arg-type]
    finally:
        os.umask(before)
    assert masks == [0o077, 0o027]
