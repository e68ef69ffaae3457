"""The watch of conftest.py sees what a test leaves behind, each kind by its name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LEAVERS = """
import os, subprocess, sys, tempfile, threading

def test_child(lab):
    test_child.kept = subprocess.Popen(["sleep", "1000"])

def test_job(lab):
    lab.sh("setsid sleep 1000 >/dev/null 2>&1 &")

def test_descriptor():
    os.open("/dev/null", os.O_RDONLY)

def test_socket():
    os.socketpair = __import__("socket").socketpair()

def test_thread():
    threading.Thread(target=threading.Event().wait, daemon=True).start()

def test_orphan():
    subprocess.run(["sh", "-c", "setsid sleep 1001 >/dev/null 2>&1 &"])

def test_file():
    tempfile.mkstemp()[0]

def test_environment():
    os.environ["LEFT"] = "1"

def test_directory():
    os.chdir("/")

def test_nothing(lab):
    assert lab.sh("cat", input="x").stdout == b"x"
"""

SEEN = {
    "child": "child process",
    "job": "process of the lab",
    "descriptor": "descriptor",
    "socket": "descriptor",
    "thread": "thread",
    "file": "temporary file",
    "environment": "a changed environment",
    "directory": "another working directory",
}


@pytest.mark.long
def test_the_watch_sees_everything(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "test_leavers.py").write_text(LEAVERS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-rA"]
    done = subprocess.run(
        [*command, f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=120,
        env={"PATH": "/usr/bin:/bin", "LAB_STRAGGLERS": "0.5", "COLUMNS": "1000", "PYTHONPATH": str(root)},
    )
    for name, word in SEEN.items():
        found = [
            text
            for text in done.stdout.splitlines()
            if text.startswith("ERROR ") and f"::test_{name} " in text
        ]
        assert any(word in text for text in found), (name, done.stdout[-6000:])
    assert "left behind" in done.stdout and "sleep 1001" in done.stdout  # said of the last test of the file
    assert done.stdout.count("\nERROR ") == len(SEEN) + 1
