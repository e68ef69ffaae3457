"""A folder that jobs share: never removed under one of them, never left behind empty."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from transport.launcher import child, workdir


def test_the_last_one_removes_it_if_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "work" / "tree"
    first, second = workdir.enter(str(path)), workdir.enter(str(path))
    assert path.stat().st_mode & 0o777 == path.parent.stat().st_mode & 0o777 == 0o700
    workdir.leave(str(path), first)
    workdir.leave(str(path))  # a guard, which held nothing
    assert path.is_dir()
    workdir.leave(str(path), second)
    assert not path.exists() and path.parent.is_dir()
    held = workdir.enter(str(path))
    (path / "result").touch()
    workdir.leave(str(path), held)
    assert (path / "result").exists()
    workdir.leave(str(tmp_path / "none"))
    with pytest.raises(FileExistsError):
        workdir.enter(str(path / "result"))


def test_nobody_loses_it_while_others_come_and_go(tmp_path: Path) -> None:
    """Each process holds the directory that is there under its name, as a job that starts in it needs."""
    code = """
import os, sys
from transport.launcher import workdir
path = sys.argv[1]
for _ in range(400):
    fd = workdir.enter(path)
    assert os.path.samestat(os.stat(path), os.fstat(fd))
    workdir.leave(path, fd)
    workdir.leave(path)
"""
    path = str(tmp_path / "tree")
    several = [subprocess.Popen([sys.executable, "-c", code, path], stderr=subprocess.PIPE) for _ in range(3)]
    for process in several:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
    assert not os.path.exists(path)


def test_a_successor_is_not_removed_for_what_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the open for removal one process removes the directory, and another makes it anew."""
    path = tmp_path / "tree"
    path.mkdir()
    lock = fcntl.flock

    def late(fd: int, how: int) -> None:
        path.rmdir()
        path.mkdir()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    workdir.leave(str(path))
    assert path.is_dir()


@pytest.mark.parametrize("cwd", ["", "/", "/d", "//d/"])
def test_a_job_starts_in_the_folder_that_was_judged_though_another_has_its_name(
    tmp_path: Path, cwd: str
) -> None:
    """The owner of a directory above renames it in between. The default ends in a slash, and was entered by path."""
    path, judged = tmp_path / "tree", tmp_path / "judged"
    (path / "d").mkdir(parents=True)

    class Renamed(socket.socket):
        def sendmsg(self, *args: Any) -> int:
            path.rename(judged)
            (path / "d").mkdir(parents=True)
            return super().sendmsg(*args)

    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    null = os.open(os.devnull, os.O_RDWR)
    report = child.Report(near)
    start = child.Start(["touch", "here"], {"PATH": os.defpath}, f"{path}{cwd}", [null] * 3, folder=str(path))
    try:
        pid = child.fork(start, Renamed(fileno=far.detach()))
        while not report.over:
            report.read()
        assert report.status is None and os.waitpid(pid, 0)[1] == 0
        assert os.path.samestat(os.fstat(report.folder), judged.stat())
    finally:
        near.close()
        os.close(null)
        if report.folder >= 0:
            os.close(report.folder)
    assert [each.name for each in judged.rglob("*") if each.is_file()] == ["here"]
    assert (judged / cwd.strip("/") / "here").exists()
