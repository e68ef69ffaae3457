"""A folder that jobs share: never removed under one of them, never left behind empty."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import Lab
from transport.launcher import workdir


def test_the_last_one_removes_it_if_it_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "work" / "tree"
    first, second = workdir.enter(str(path)), workdir.enter(str(path))
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
    """The directory of each process stays under its name, as a job that starts in it needs. Nothing is left."""
    code = """
import os, sys
from transport.launcher import workdir
path = sys.argv[1]
for _ in range(400):
    fd = workdir.enter(path)
    inode = os.stat(path).st_ino
    os.sched_yield()
    assert os.stat(path).st_ino == inode
    workdir.leave(path, fd)
    workdir.leave(path)
"""
    path = str(tmp_path / "tree")
    several = [subprocess.Popen([sys.executable, "-c", code, path], stderr=subprocess.PIPE) for _ in range(3)]
    for process in several:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err.decode()
    assert os.listdir(tmp_path) == []


def test_a_job_may_lock_its_own_directory(tmp_path: Path) -> None:
    """Others enter and leave meanwhile."""
    path = tmp_path / "tree"
    first = workdir.enter(str(path))
    own = os.open(path, os.O_RDONLY)
    fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second = workdir.enter(str(path))
    assert workdir.leave(str(path), second) == workdir.HELD
    assert workdir.leave(str(path), first) == workdir.HELD and path.is_dir(), "something of the job is left"
    again = workdir.enter(str(path))
    os.close(own)
    assert workdir.leave(str(path), again) == workdir.GONE
    assert os.listdir(tmp_path) == []


def earlier_leave(path: Path, fd: int) -> bool:
    """As builds before did that locked the directory itself; whether it was removed."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.rmdir()
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


@pytest.mark.parametrize("first", ["earlier", "later"])
def test_a_directory_in_which_an_earlier_build_has_jobs(tmp_path: Path, first: str) -> None:
    """Neither is it removed under its jobs, nor by it under ours."""
    path = tmp_path / "tree"
    path.mkdir()
    earlier = os.open(path, os.O_RDONLY)
    fcntl.flock(earlier, fcntl.LOCK_SH | fcntl.LOCK_NB)
    ours = [workdir.enter(str(path)) for _ in range(2)]
    if first == "earlier":
        assert not earlier_leave(path, earlier)
    else:
        assert workdir.leave(str(path), ours.pop()) == workdir.HELD
        assert workdir.leave(str(path), ours.pop()) == workdir.HELD
        assert earlier_leave(path, earlier)
    while ours:
        fate = workdir.leave(str(path), ours.pop())
        assert fate == (workdir.HELD if ours else workdir.GONE)
    assert os.listdir(tmp_path) == []


def test_a_directory_beside_which_no_file_can_be(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 252)
    first, second = workdir.enter(str(path)), workdir.enter(str(path))
    assert workdir.leave(str(path), first) == workdir.HELD
    assert workdir.leave(str(path), second) == workdir.GONE and not path.exists()


def test_a_lock_that_a_killed_process_has_left(tmp_path: Path) -> None:
    path = tmp_path / "tree"
    os.close(workdir.enter(str(path)))
    assert os.listdir(tmp_path) != ["tree"]
    assert workdir.leave(str(path)) == workdir.GONE
    assert os.listdir(tmp_path) == []
    os.close(workdir.enter(str(path)))
    path.rmdir()
    assert workdir.leave(str(path)) == workdir.GONE
    assert os.listdir(tmp_path) == []


def test_jobs_may_lock_the_directory_that_they_share(lab: Lab) -> None:
    words = ["xargs", "-P3", "--on", "h1", "--", "flock", ".", "echo", ":::", *"123456"]
    done = lab.run(words)
    assert (done.returncode, sorted(done.stdout.split())) == (0, [b"%d" % item for item in range(1, 7)])


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
