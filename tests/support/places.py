"""Scripted agents in a shell, as users start them; and what a test needs of this machine."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.lab.machine import can_mount
from tests.support.agents import QUINE, Agents

needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs namespaces")


class Shell(Agents):
    """Scripted agents as a user starts them: `quine` is a command of a shell."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.quine = directory / "bin" / "quine"
        self.quine.parent.mkdir()
        self.quine.write_text(f'#!/bin/sh\nexec {shlex.join(QUINE)} "$@"\n')
        self.quine.chmod(0o755)
        self.env["PATH"] = f"{self.quine.parent}:{os.environ['PATH']}"

    def sh(self, command: str, shell: str = "sh", **more: Any) -> subprocess.CompletedProcess[bytes]:
        more.setdefault("env", self.env)
        more.setdefault("cwd", self.directory)
        return subprocess.run([shell, "-c", command], capture_output=True, timeout=120, **more)
