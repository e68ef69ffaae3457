"""A key that is in no environment: the broker alone reads QUINE_API_KEY_FILE, or runs QUINE_API_KEY_COMMAND.

Laws
1. The key of a command is kept for some minutes, as a command may ask a person or a server, and so is its failure for
   some seconds. A file is read for each client that comes, and is a regular one.
2. The output of a command is a socket. Any process of the user can open a pipe of another one by its name in /proc.
"""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time

from quine.base.errors import Misconfigured
from quine.broker.credentials import COMMAND, FILE
from quine.providers.choice import KEYS
from transport.provenance import regular_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FRESH = 300.0  # seconds that the key of a command is kept
AGAIN = 5.0  # seconds after which a command that failed is run again
PATIENCE = 60.0  # seconds that the command may take
LONGEST = 1 << 16  # bytes


class Given:
    """`environ` is that of the process that made the broker."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._file = environ.get(FILE, "")
        self._command = environ.get(COMMAND, "")
        self._environ = {name: value for name, value in environ.items() if name not in KEYS}
        self._lock = threading.Lock()
        self._last: tuple[float, str] | None = None
        self._failed: tuple[float, Misconfigured] | None = None

    def key(self) -> str:
        """Return the key, "" if there is no source. Raises Misconfigured."""
        if self._file:
            return self._read()
        if not self._command:
            return ""
        with self._lock:
            now = time.monotonic()
            if self._last is not None and now < self._last[0] + FRESH:
                return self._last[1]
            if self._failed is not None and now < self._failed[0] + AGAIN:
                raise self._failed[1]
            try:
                key = self._run()
            except Misconfigured as failure:
                self._failed = (time.monotonic(), failure)
                raise
            self._last = (time.monotonic(), key)
            return key

    def _read(self) -> str:
        try:
            # One thread reads for all: a pipe in the place of the file would hold up every client.
            return _checked(FILE, regular_file.content(os.path.expanduser(self._file), LONGEST))
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise Misconfigured(f"{FILE} {self._file} cannot be read: {why}") from None

    def _run(self) -> str:
        over = time.monotonic() + PATIENCE
        words = ["/bin/sh", "-c", self._command]
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                process = subprocess.Popen(
                    words,
                    stdin=subprocess.DEVNULL,
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=self._environ,
                )
            except OSError as error:
                raise Misconfigured(f"{COMMAND} cannot be run: {(error.strerror or '').lower()}") from None
            with process:
                theirs.close()
                try:
                    text = _received(ours, over)
                    ours.close()
                    process.wait(max(0, over - time.monotonic()))
                except (OSError, subprocess.TimeoutExpired):
                    process.kill()
                    raise Misconfigured(f"{COMMAND} has printed no key within {PATIENCE:.0f} s") from None
        if process.returncode:
            raise Misconfigured(f"{COMMAND} failed with status {process.returncode}", "run it in a shell")
        return _checked(COMMAND, text)


def _received(line: socket.socket, over: float) -> bytes:
    """Return the text that comes until its end, of one that is too long the beginning. Raises OSError."""
    got = bytearray()
    while True:
        line.settimeout(max(0.001, over - time.monotonic()))
        data = line.recv(LONGEST)
        if not data:
            return bytes(got)
        if len(got) < LONGEST:
            got += data


def _checked(name: str, text: bytes) -> str:
    """Return the one line of `text`. Its content is in no message."""
    try:
        key = text.decode("ascii").strip()
    except UnicodeDecodeError:
        key = ""
    if not key or not key.isprintable() or len(text) >= LONGEST:
        raise Misconfigured(f"{name} gives no key: one line of printable characters is wanted")
    return key
