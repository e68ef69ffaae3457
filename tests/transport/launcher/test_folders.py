"""The folders of a launcher: the word on one whose job has ended, with processes of it that have not."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from transport.launcher import workdir
from transport.launcher.folders import DYING, LOOK, Folders


@pytest.fixture
def folders() -> Iterator[Folders]:
    made = Folders()
    yield made
    made.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, as one that a job has left."""
    with subprocess.Popen(["sleep", "71499"], process_group=0) as made:
        yield made
        made.kill()


def entered(folders: Folders, path: Path) -> str:
    folders.join(str(path))
    folders.enter(str(path))
    return str(path)


def test_a_process_that_stays_keeps_its_folder(
    folders: Folders, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    path = entered(folders, tmp_path / "tree")
    assert folders.ended(path, process.pid, removes=True, told=False) == workdir.KEPT
    assert folders.is_used(path) and not folders.waits(1, path, -1)
    process.kill()
    process.wait()
    assert folders.turn(time.monotonic() + LOOK) == [(0, path, [])]


def test_the_answer_waits_for_the_processes_of_a_job_that_was_told_to_end(
    folders: Folders, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    """They had the signal, too, and had not died of it yet when their job was reaped."""
    path = entered(folders, tmp_path / "tree")
    assert folders.ended(path, process.pid, removes=False, told=True) == -1
    fd = os.open(path, os.O_RDONLY)
    assert folders.waits(7, path, fd)
    process.kill()
    process.wait()
    assert folders.turn(time.monotonic() + LOOK) == [(7, path, [fd])]
    assert not folders.is_used(path)
    os.close(fd)


def test_it_does_not_wait_for_one_that_does_not_die(
    folders: Folders, process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    path = entered(folders, tmp_path / "tree")
    folders.ended(path, process.pid, removes=False, told=True)
    assert folders.waits(7, path, -1)
    assert folders.turn(time.monotonic() + DYING + LOOK) == [(7, path, [-1])]
    assert folders.is_used(path) and not folders.waits(8, path, -1)


def test_a_process_that_has_ended_and_is_not_reaped_is_none(folders: Folders, tmp_path: Path) -> None:
    """Orphans of a job come to the launcher, and for the kernel their group lives until they are reaped."""
    path = entered(folders, tmp_path / "tree")
    child = os.fork()
    if not child:
        os._exit(0)
    os.setpgid(child, child)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert folders.ended(path, child, removes=True, told=False) == workdir.GONE
    assert not os.path.exists(path)
    assert folders.turn(time.monotonic() + LOOK) == []  # closes its descriptor
