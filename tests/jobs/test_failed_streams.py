"""The verbs on jobs where a stream of this process fails: the status says so, and says nothing false of the job."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.cli_options import RunOptions
from quine.jobs import attach_logs
from transport.client import output
from transport.status import Status


@pytest.fixture
def full() -> Iterator[int]:
    fd = os.open("/dev/full", os.O_WRONLY)
    yield fd
    os.close(fd)


def attached(directory: Path, stderr: int, end: Status, monkeypatch: pytest.MonkeyPatch) -> Status:
    """Attach to a job that has ended after a word on stderr."""
    (directory / "stdout").touch()
    (directory / "stderr").write_text("a word\n")
    agent: Any = SimpleNamespace(id="x", directory=str(directory), supervisor=1, holds=list, end=lambda: end)
    monkeypatch.setattr(attach_logs, "Output", lambda fd: output.Output(stderr if fd == 2 else fd))
    return attach_logs.attach(agent, RunOptions())


@pytest.mark.parametrize(("code", "told"), [(0, 74), (141, 74), (3, 3)])
def test_an_attach_whose_stderr_fails_is_no_success(
    tmp_path: Path, full: int, monkeypatch: pytest.MonkeyPatch, code: int, told: int
) -> None:
    """As with `run`: a part of the output is missing."""
    status = attached(tmp_path, full, Status("exited", code), monkeypatch)
    assert status.code == told and status.detail == "cannot write stderr: no space left on device"
    assert status.state == ("lost" if told == 74 else "exited")


def test_an_attach_whose_reader_of_stderr_left_ends_as_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        status = attached(tmp_path, writer, Status("exited", 0), monkeypatch)
    finally:
        os.close(writer)
    assert (status.state, status.code, status.detail) == ("exited", 0, "")
