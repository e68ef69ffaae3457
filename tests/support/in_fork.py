"""The program in a process that is forked from the tests: all that it loads is there, and only its start is left out.

A verb that people type by hand loads typer and a library of ssh, two thirds of what it costs. A test of what such a
verb says calls it here. One whose subject is the start of the program, its environment in /proc or its import calls
`Lab.run`.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from quine.cli import app
from tests.lab import Lab
from tests.lab.lab import TIMEOUT, describe
from tests.lab.machine import readable

LOADED = (
    "asyncssh", "deploy.carriers", "deploy.dial", "deploy.host_requirements", "deploy.layers", "deploy.push",
    "deploy.upkeep.interpreter", "deploy.wheels", "encodings.idna", "grp", "quine.__main__", "quine.cli.deployment",
    "quine.cli.doctor_host", "quine.cli.run", "quine.cli.visits", "transport.carrier.ssh.connect", "transport.client",
)  # fmt: skip


@functools.cache
def _loaded() -> None:
    for name in LOADED:
        importlib.import_module(name)
    with contextlib.redirect_stdout(
        io.StringIO()
    ):  # typer loads the larger part of itself for the first command
        app.main(["hosts", "--inventory", os.devnull])


def quine(
    lab: Lab,
    words: Sequence[str | Path],
    *,
    env: Mapping[str, str | None] | None = None,
    check: bool = False,
) -> subprocess.CompletedProcess[bytes]:
    """`quine WORDS…` at the origin of a lab, as `Lab.run` with no input."""
    _loaded()
    files = [os.memfd_create(name) for name in ("stdout", "stderr")]
    try:
        pid = os.fork()
        if pid == 0:
            _become([*map(str, words)], lab.overlaid(env), lab.work, files)
        status = _ended(pid, words)
        out, err = (os.pread(fd, os.fstat(fd).st_size, 0) for fd in files)
    finally:
        for fd in files:
            os.close(fd)
    if check and status != 0:
        raise AssertionError(f"{describe(words)}: status {status}, stderr {err!r}")
    return subprocess.CompletedProcess(["quine", *words], status, out, err)


def _ended(pid: int, words: Sequence[str | Path]) -> int:
    process = os.pidfd_open(pid)
    try:
        done = readable(process, TIMEOUT)
        if not done:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(process)
    assert done, f"{describe(words)}: not done in {TIMEOUT} s"
    return status


def _become(words: list[str], env: dict[str, str], directory: Path, files: list[int]) -> NoReturn:
    """Leave the tests: no descriptor, variable, handler or filter of theirs stays."""
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(files[0], 1)
        os.dup2(files[1], 2)
        os.closerange(3, 1 << 16)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(env)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        tempfile.tempdir = None
        logging.root.handlers.clear()
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        sys.stdin = io.TextIOWrapper(io.FileIO(0), "utf-8", "surrogateescape")
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w"), "utf-8", "surrogateescape")
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), "utf-8", "backslashreplace", line_buffering=True)
        sys.argv = ["quine", *words]
        importlib.import_module("quine.__main__").main()
    finally:
        os._exit(70)
