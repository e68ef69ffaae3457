"""An agent and the disk below its data directory: read-only, full, and what the modes of its files are."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from tests.agents import OK, call, running, says, sh
from tests.places import Shell, needs_mounts

NAP = "86392"  # seconds that only a test sleeps


@pytest.fixture
def place(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@needs_mounts
def test_a_read_only_data_directory(place: Shell) -> None:
    place.script(says(sh("echo no >&4")), says(OK))
    place.data.mkdir()
    mount = "mount -t tmpfs -o ro none data && exec quine work"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount], cwd=place.directory, env=place.env, capture_output=True
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(f"quine: error: QUINE_DATA_DIR {place.data} cannot be written: ".encode())
    assert done.stderr.endswith(b"quine: hint: see --data-dir\n")


@needs_mounts
def test_a_disk_that_becomes_full(place: Shell) -> None:
    """The tape can no longer say what happens: nothing more may happen, and nothing stays."""
    place.script(
        says(call("fork", intent="child"), match="^work"),
        says(sh(f"sleep {NAP}3 & echo begun >&4"), match="^work"),
        says(sh("cat </dev/zero >data/fill; echo full >&4; seq 9999"), match="^work"),
        says(sh("echo never >&4"), match="^work"),
        says(sh(f"sleep {NAP}4"), match="^child"),
    )
    place.data.mkdir()
    mount = (
        "mount -t tmpfs -o size=512k none data && quine work; echo $?; tail -n 1 data/*.jsonl | cut -c 1-30"
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", mount],
        cwd=place.directory,
        env=place.env,
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.startswith(b"begun\nfull\n74\n"), done
    assert b"never" not in done.stdout
    assert b"cannot be written: No space left on device" in done.stderr
    assert not running("sleep", f"{NAP}3") and not running("sleep", f"{NAP}4")


@pytest.mark.parametrize("umask", ["000", "022", "077"])
def test_umasks(place: Shell, umask: str) -> None:
    """What is ours is ours alone; what the commands make is as the user wants it."""
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
