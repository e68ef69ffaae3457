"""Elsewhere than on Linux: one sentence and exit 2, before any import that fails there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.build import build

ABSENT = ("fcntl", "termios", "resource", "pwd", "grp", "select")  # of Windows, and of a macOS partly
ELSEWHERE = """
import sys
for name in {absent!r}:
    sys.modules[name] = None
import os
for name in ("waitid", "pidfd_open", "memfd_create", "posix_spawn", "fork"):
    if hasattr(os, name):
        delattr(os, name)
sys.platform = {platform!r}
sys.argv[:] = {argv!r}
import runpy
{start}
"""


def started(start: str, platform: str, *argv: str) -> subprocess.CompletedProcess[str]:
    program = ELSEWHERE.format(absent=ABSENT, platform=platform, argv=["quine", *argv], start=start)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
@pytest.mark.parametrize("argv", [["--version"], ["run", "--", "true"], ["doctor"], ["a mission"]])
def test_a_sentence_and_nothing_else(platform: str, argv: list[str]) -> None:
    done = started("import quine.__main__", platform, *argv)
    assert done.stderr == f"quine: error: quine runs on Linux (and WSL2), and this is {platform}\n"
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_the_one_file_says_the_same(platform: str, tmp_path: Path) -> None:
    file = tmp_path / "quine.pyz"
    build(file)
    done = started(f"runpy.run_path({str(file)!r}, run_name='__main__')", platform, "--version")
    assert done.stderr == f"quine: error: quine runs on Linux (and WSL2), and this is {platform}\n"
    assert (done.returncode, done.stdout) == (2, "")
