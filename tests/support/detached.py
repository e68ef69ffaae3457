"""Detached jobs of a lab: starting them, their directory, their record."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.tape import places
from tests.lab import Lab


def detach(lab: Lab, *words: str | Path, **more: Any) -> str:
    """`quine run --detach WORDS…`; the id."""
    done = lab.run(["run", "--detach", *words], **more)
    assert (done.returncode, done.stderr) == (0, b"")
    (line,) = done.stdout.decode().splitlines()
    return line


def forget(lab: Lab) -> None:
    """Remove the note of what was started here, as if another machine had started it."""
    (lab.home / ".local" / "state" / "quine" / places.HOSTS).unlink()


def folder(job: str, home: Path) -> Path:
    return home / ".local" / "state" / "quine" / "jobs" / job


def record(job: str, home: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((folder(job, home) / "job").read_text())
    return data


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """A fifo that a job waits at; whoever is left at the end goes on."""
    path = tmp_path / "go"
    os.mkfifo(path)
    fd = os.open(path, os.O_RDWR)
    yield path
    os.write(fd, b"\n" * 64)
    os.close(fd)
