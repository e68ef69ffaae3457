"""Verbs that read files of a data directory in which a named pipe has taken the place of one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from quine.base.cli_options import RunOptions
from quine.base.errors import Failure
from quine.base.sessions import new_session
from quine.jobs import attach_logs
from quine.tape import index, registry, verify


def test_it_is_named_and_not_waited_for(tmp_path: Path) -> None:
    """A command may make one; whoever opened it would wait for a writer without an end."""
    for name in ("stdout", "job"):
        os.mkfifo(tmp_path / name)
    agent: Any = SimpleNamespace(
        id="x", directory=str(tmp_path), kept=False, verdict=lambda: SimpleNamespace(state="exited")
    )
    with pytest.raises(Failure, match="stdout of x: no regular file"):
        attach_logs.logs(agent, RunOptions())
    assert registry.record(str(tmp_path)) == {}
    tape = tmp_path / f"{new_session()}.jsonl"
    os.mkfifo(tape)
    (fault,) = verify.verify(tape).faults
    assert fault.what == "cannot be read: no regular file"
    assert index.ends(str(tape)) == index.Ends({}, {})
