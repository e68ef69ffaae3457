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

from transport.carrier.tail import Tail

SAID = 200  # characters that an error has of the last line on its stderr


class ProxyCommand:
    """One command that is running. `sock` is the connection through it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self.said = ""
        self._stderr: Tail | None = None
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> socket.socket:
        """Start it with the user's shell, as ssh does; return our end. Raises OSError."""
        read, write = os.pipe2(os.O_CLOEXEC)
        self._stderr = Tail(read)
        shell, ours = os.environ.get("SHELL") or "/bin/sh", None
        try:
            with open(write, "wb", buffering=0) as stderr:
                ours, theirs = socket.socketpair()
                with theirs:
                    self._process = await asyncio.create_subprocess_exec(
                        *(shell, "-c", f"exec {self._command}"),
                        stdin=theirs.fileno(),
                        stdout=theirs.fileno(),
                        stderr=stderr,
                        process_group=0,  # the node takes a child of another session for the job of a dead launcher
                    )
        except BaseException:
            if ours:
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
        if self._stderr is None:
            return
        self._stderr.drain()
        self._stderr.close()
        lines = self._stderr.text.decode("utf-8", "replace").strip().splitlines() or [""]
        self.said = "".join(each for each in lines[-1] if each.isprintable())[-SAID:]
        self._stderr = None
