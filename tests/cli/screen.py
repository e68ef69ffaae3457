"""A terminal for a test: a real pty, what comes on it, and keys typed into it. Readiness by what is shown."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import termios
import time
from types import TracebackType
from typing import Any, Self

from tests.lab import Lab
from tests.lab.machine import readable


class Screen:
    """A terminal as a context manager. `seen` is all its output; `wait` searches only the part not matched yet."""

    def __init__(self, rows: int = 24, columns: int = 80) -> None:
        self.master, self.slave = pty.openpty()
        self.seen = b""
        self.resize(rows, columns)
        self.found = self.settings
        self._looked = 0
        self._made: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.slave)
        os.close(self.master)  # the processes that still use the terminal are hung up
        for process in self._made:
            try:
                process.wait(5 if kind else 60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                assert kind, "still there after the terminal hung up"

    @property
    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.slave)

    def start(self, lab: Lab, args: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """`quine ARGS…` in a session of its own, with this as its terminal and its three streams."""
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.slave) | options
        process = lab.popen(args, new_session=True, preexec=self._take, **streams)
        self._made.append(process)
        return process

    def program(self, lab: Lab, argv: list[str], **env: str) -> subprocess.Popen[bytes]:
        """Any other program in its place, `quine` on its PATH."""
        process = subprocess.Popen(
            argv,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env=lab.overlaid(env),
            cwd=lab.work,
            start_new_session=True,
            preexec_fn=self._take,
        )
        self._made.append(process)
        return process

    def shell(self, lab: Lab) -> subprocess.Popen[bytes]:
        """An interactive bash here, with job control."""
        argv = ["bash", "--norc", "--noprofile", "--noediting", "-i"]
        return self.program(lab, argv, PS1="$ ", TERM="dumb", HISTFILE="")

    def _take(self) -> None:
        fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)

    def resize(self, rows: int, columns: int) -> None:
        termios.tcsetwinsize(self.slave, (rows, columns))

    def type(self, keys: bytes) -> None:
        while keys:
            keys = keys[os.write(self.master, keys) :]

    def wait(self, text: bytes, seconds: float = 60) -> bytes:
        """Read until `text` comes; return the output before it."""
        deadline = time.monotonic() + seconds
        while (at := self.seen.find(text, self._looked)) < 0:
            left = max(0, deadline - time.monotonic())
            new = self.seen[self._looked :]
            assert readable(self.master, left), f"only {new[-2000:]!r} came"
            self.seen += os.read(self.master, 65536)
        before = self.seen[self._looked : at]
        self._looked = at + len(text)
        return before
