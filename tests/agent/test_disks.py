"""An agent and the disk below its data directory: one that is read-only, and the modes of what it writes."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from quine.agent import ending, main
from tests.lab.machine import UNSHARE
from tests.support.agents import OK, call, says, sh
from tests.support.places import Shell, needs_mounts


@pytest.fixture
def place(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@needs_mounts
def test_a_read_only_data_directory(place: Shell) -> None:
    place.script(says(sh("echo no >&4")), says(OK))
    place.data.mkdir()
    mount = "mount -t tmpfs -o ro,mode=700 none data && exec quine work"
    done = subprocess.run(
        [*UNSHARE, "-m", "sh", "-c", mount], cwd=place.directory, env=place.env, capture_output=True
    )
    assert (done.returncode, done.stdout) == (2, b"")
    words = f"quine: error: QUINE_DATA_DIR {place.data} cannot be written: read-only file system\n"
    assert done.stderr.startswith(words.encode())
    assert done.stderr.endswith(b"quine: hint: name another directory with QUINE_DATA_DIR\n")


@pytest.mark.parametrize("umask", ["000", "077"])
def test_umasks(place: Shell, umask: str) -> None:
    """Files of quine are private under every umask. Files of the commands have the modes that the umask gives."""
    place.script(
        says(
            sh("umask >&4; touch made; mkdir dir; head -c 99999 /dev/zero"),
            call("fork", intent="child"),
            match="^work",
        ),
        says(sh("quine nested >nested 2>&1"), match="^work"),
        says(OK),
    )
    done = place.sh(f"umask {umask}; quine --report report work")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"0{umask}\n".encode(), b"")
    mask = int(umask, 8)
    assert mode(place.directory / "made") == 0o666 & ~mask
    assert mode(place.directory / "dir") == 0o777 & ~mask
    ours = [place.data, *place.data.rglob("*")]
    assert len(list(place.data.glob("*.jsonl"))) == 3 and len(ours) > 8
    loose = {str(path): oct(mode(path)) for path in ours if mode(path) & 0o077}
    assert loose == {}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_data_directory_of_agents_elsewhere_goes_with_the_last_of_them(tmp_path: Path) -> None:
    """They share it, with their tree's folder. One found it removed by another just after it had made it."""
    path = tmp_path / "folder" / ".quine"
    first, second = (main._make_data_dir(str(path), shared=True) for _ in range(2))
    assert path.stat().st_mode & 0o777 == 0o700
    (path / "outputs").mkdir()
    ending.tidy(str(path), first)
    assert (path / "outputs").is_dir()
    ending.tidy(str(path), second)
    assert not path.exists()
    third = main._make_data_dir(str(path), shared=True)
    (path / "log").touch()
    ending.tidy(str(path), third)
    assert path.is_dir()
    assert main._make_data_dir(str(path), shared=False) == -1


def test_agents_that_come_and_go_together_all_find_their_data_directory(tmp_path: Path) -> None:
    """None starts without it, and it is nobody else's at any moment."""
    script = """
import os, sys, time
from quine.agent import ending, main
path, until = sys.argv[1], time.monotonic() + 0.2
while time.monotonic() < until:
    held = main._make_data_dir(path, shared=True)
    assert os.stat(path).st_mode & 0o777 == 0o700
    ending.tidy(path, held)
"""
    words = [sys.executable, "-c", script, str(tmp_path / "folder" / ".quine")]
    together = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(4)]
    assert [each.communicate(timeout=120)[1] for each in together] == [b""] * 4
