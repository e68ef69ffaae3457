"""The files that a detached job leaves: its two outputs, and small records that are there whole or not at all.

Laws
1. The offset in the file is the offset in the stream: an offset alone is enough to find its byte.
2. Bytes read from a pipe are written, or held until they can be: a full disk stops the job and loses nothing
   unless they are abandoned. A job of which output is lost has not ended with 0.
3. The room of a record that must not fail is taken beforehand, while failing is still allowed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import termios
from array import array

from transport import quickjson
from transport.status import LOST
from transport.writes import write_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from transport.status import Status

FULL = "make room for ~/.local/state, or set XDG_STATE_HOME"
UNLIMITED = "start it where `ulimit -H -f` is higher"
CHUNK = 1 << 20  # size asked for each pipe, and the most that is read at once
F_SETPIPE_SZ = getattr(fcntl, "F_SETPIPE_SZ", 1031)


class Spool:
    """One output of the job, from its pipe into its file. `read` is how far readers elsewhere have come in it."""

    def __init__(self, name: str) -> None:
        """Raises OSError."""
        self.pipe = -1  # before `attach`, and once it is at its end
        self.size = 0
        self.read = 0
        self.beyond = False  # it was longer than a file may be
        self._pending = b""
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def attach(self, pipe: int) -> None:
        """The job has started. Nothing here fails."""
        self.pipe = pipe
        os.set_blocking(pipe, False)
        try:
            fcntl.fcntl(pipe, F_SETPIPE_SZ, CHUNK)
        except OSError:
            pass  # more than a user's share of pipe memory

    @property
    def full(self) -> bool:
        """Whether the disk has not taken all that was read."""
        return bool(self._pending)

    def copy(self, room: int = CHUNK) -> None:
        """Copy once, at most `room` bytes. Raises OSError if the disk does not take them; the next call tries again."""
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
            try:
                sent = os.write(self._file, self._pending)
            except OSError as error:
                if error.errno != errno.EFBIG:
                    raise
                self.beyond = True  # no room will be made, so its writer is told: it has no reader any more
                self.abandon()
                return
            self.size += sent
            self._pending = self._pending[sent:]

    def drain(self) -> None:
        """Take what is in the pipe and close it: the job has ended, and another process holds the pipe open."""
        at_most = self.size + 2 * CHUNK  # its holder may still write
        while self.pipe >= 0 and self.size < at_most:
            before = self.size
            self.copy()
            if self.size == before:
                break
        self.close()

    def abandon(self) -> int:
        """Close the pipe and drop all that the file has not taken. Return how many bytes that is."""
        lost, self._pending = len(self._pending), b""
        if self.pipe >= 0:
            waiting = array("i", [0])
            fcntl.ioctl(self.pipe, termios.FIONREAD, waiting)
            lost += waiting[0]
        self.close()
        return lost

    def close(self) -> None:
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

    def settle(self) -> None:
        """Sync the file to the disk, before the end of the job is reported."""
        os.fdatasync(self._file)


def reserve(name: str, room: int) -> None:
    """Take the room that a record of at most `room` bytes will need. Raises OSError if there is none."""
    with open(
        os.open(f"{name}.part", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_TRUNC | os.O_CLOEXEC, 0o600),
        "wb",
    ) as file:
        file.write(b" " * room)
        file.flush()
        os.fsync(file.fileno())


def record(name: str, value: dict[str, Any]) -> None:
    """Write a record; it is whole and on the disk when this returns."""
    data = quickjson.dumps(value).encode()
    fd = os.open(f"{name}.part", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_at(fd, data, 0)
        os.ftruncate(fd, len(data))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(f"{name}.part", name)
    settle(os.path.dirname(name) or ".")


def settle(directory: str) -> None:
    """Sync the names in a directory to the disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def drop(spools: Sequence[Spool], status: Status) -> None:
    """Drop what a full disk has not taken, and say so in the status."""
    if lost := sum(each.abandon() for each in spools):
        _lose(status, f"the disk was full: the last {lost} bytes of its output are lost", FULL)


def settle_output(each: Spool, status: Status, given_up: bool) -> None:
    """Have the output on the disk. `given_up`: if it cannot be, the status says so. Raises OSError."""
    if each.beyond:
        _lose(
            status, f"its output is cut after {each.size} bytes: the limit of file size is lower", UNLIMITED
        )
    try:
        each.settle()
    except OSError as error:  # a file system that finds only now that there is no room
        if not given_up:
            raise
        _lose(status, f"a part of its output may be lost: {(error.strerror or '').lower()}", FULL)


def _lose(status: Status, detail: str, hint: str) -> None:
    """Say in the status that output is lost. A success becomes a loss."""
    status.detail, status.hint = detail, hint
    if not status.code:
        status.state, status.code = "lost", LOST
