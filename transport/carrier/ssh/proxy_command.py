"""A ProxyCommand as a socket: the command has one end of it as its stdin and stdout.

Laws
1. Nothing that the command prints on stderr comes among the bytes (asyncssh would mix them); the end of it is kept for
   the error.
2. The command ends with the connection: it gets SIGHUP as ssh sends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import tempfile

SAID = 200  # bytes kept of its stderr


class ProxyCommand:
    """One command that is running. `sock` is the connection through it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self.said = ""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> socket.socket:
        """Start it with the user's shell, as ssh does; return our end. Raises OSError."""
        ours, theirs = socket.socketpair()
        shell = os.environ.get("SHELL") or "/bin/sh"
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *(shell, "-c", f"exec {self._command}"),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._stderr,
                    process_group=0,  # the node takes a child of another session for the job of a dead launcher
                )
        except BaseException:
            ours.close()
            self.end()
            raise
        ours.setblocking(False)
        return ours

    def end(self) -> None:
        """End it if it still runs, and keep the last line that it printed on stderr in `said`."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGHUP)
        if self._stderr.closed:
            return
        with self._stderr as stderr:
            size = stderr.seek(0, os.SEEK_END)
            stderr.seek(max(0, size - SAID))
            lines = stderr.read().decode("utf-8", "replace").strip().splitlines() or [""]
            self.said = "".join(each for each in lines[-1] if each.isprintable())
