"""What a detached job leaves on disk: its two outputs, and small records that are there whole or not at all.

Laws
1. The offset in the file is the offset in the stream: whoever knows an offset needs nobody to find its byte.
2. What was read of a pipe is written, or held until it can be: a full disk stops the job, it loses nothing.
3. The room of a record that must not fail is taken beforehand, while failing is still allowed.
"""

from __future__ import annotations

import fcntl
import os

from transport.wire import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CHUNK = 1 << 20  # what a pipe may hold, where the kernel lets it, and so what is read of it at once
F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)
STREAMS = ("stdout", "stderr")


class Spool:
    """One output of the job: from its pipe into its file. `read` is what somebody has taken of it elsewhere."""

    def __init__(self, name: str, pipe: int) -> None:
        self.pipe = pipe  # -1 once it is at its end
        self.size = 0
        self.read = 0
        self._pending = b""
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.set_blocking(pipe, False)
        try:
            fcntl.fcntl(pipe, F_SETPIPE_SZ, CHUNK)
        except OSError:
            pass  # more than a user's share of pipe memory

    @property
    def full(self) -> bool:
        """The disk did not take what we have read."""
        return bool(self._pending)

    def copy(self, room: int = CHUNK) -> None:
        """What the pipe holds now, once; OSError where the disk does not take it, which is then tried again."""
        if not self._pending:
            try:
                self._pending = os.read(self.pipe, min(room, CHUNK))
            except BlockingIOError:
                return
            if not self._pending:
                self.close()
                return
        self.write()

    def write(self) -> None:
        while self._pending:
            sent = os.write(self._file, self._pending)
            self.size += sent
            self._pending = self._pending[sent:]

    def drain(self) -> None:
        """Its job has ended and somebody holds the pipe open: take what is in it, and close it."""
        at_most = self.size + 2 * CHUNK  # whoever holds it may still write
        while self.pipe >= 0 and self.size < at_most:
            before = self.size
            self.copy()
            if self.size == before:
                break
        self.close()

    def close(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def settle(self) -> None:
        """On the disk, before anybody is told how the job ended."""
        os.fdatasync(self._file)


def reserve(name: str, room: int) -> None:
    """Take the room that a record of at most `room` bytes will need. OSError where there is none."""
    with open(
        os.open(f"{name}.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
    ) as file:
        file.write(b" " * room)
        file.flush()
        os.fsync(file.fileno())


def record(name: str, value: dict[str, Any]) -> None:
    """The record, whole and on the disk when this returns."""
    data = quickjson.dumps(value).encode()
    fd = os.open(f"{name}.part", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], written)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(f"{name}.part", name)
    settle(os.path.dirname(name) or ".")


def settle(directory: str) -> None:
    """The names in a directory are on the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
