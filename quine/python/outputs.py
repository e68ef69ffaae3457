"""The outputs of a job: captured, passed on to a descriptor, or dropped.

Laws
1. Captured output is bytes: in memory up to MEMORY bytes a stream, and above that in a file that is removed with the
   last reference to it. No descriptor is held between two uses.
2. An output that cannot be kept ends its stream: the job gets SIGPIPE, and is no success.
"""

from __future__ import annotations

import io
import locale
import os
import subprocess
import tempfile
import weakref
from typing import Any, BinaryIO, NamedTuple

from transport.writes import is_one_file, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Sink = Callable[[memoryview], object]

MEMORY = 256 << 10  # bytes of a stream


class Decoding(NamedTuple):
    """How bytes become text, as `subprocess` does it."""

    encoding: str
    errors: str

    @classmethod
    def of(cls, text: bool | None, encoding: str | None, errors: str | None) -> Decoding | None:
        if not (text or encoding or errors):
            return None
        return cls(encoding or locale.getpreferredencoding(False), errors or "strict")

    def text(self, data: bytes) -> str:
        return data.decode(self.encoding, self.errors).replace("\r\n", "\n").replace("\r", "\n")


class Captured:
    """The bytes of one stream."""

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray()
        self._path = ""
        self._remove: Callable[[], object] = lambda: None
        self.write(memoryview(data))

    def write(self, data: memoryview) -> None:
        """Raises OSError if they do not fit on the disk."""
        if not self._path:
            if len(self._data) + len(data) <= MEMORY:
                self._data += data
                return
            fd, self._path = tempfile.mkstemp(prefix="quine-output-")
            self._remove = weakref.finalize(self, _remove, self._path, os.getpid())
            with open(fd, "wb") as file:
                file.write(self._data)
            self._data.clear()
        with open(self._path, "ab", buffering=0) as file:
            while data:
                data = data[file.write(data) :]

    def __reduce__(self) -> tuple[Any, ...]:
        return Captured, (self.read(),)

    def open(self) -> BinaryIO:
        """Return all of it as a file."""
        return open(self._path, "rb") if self._path else io.BytesIO(bytes(self._data))

    def read(self) -> bytes:
        with self.open() as file:
            return file.read()

    def drop(self) -> None:
        """Forget all of it."""
        self._data.clear()
        self._remove()
        self._path = ""


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid:  # the file of a forked process is its parent's
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


class Outputs:
    """stdout and stderr of one job. `captured` has those that are kept."""

    def __init__(self, stdout: Any = subprocess.PIPE, stderr: Any = subprocess.PIPE) -> None:
        """Takes what `subprocess.run` takes for them. Raises ValueError."""
        first = Captured() if stdout == subprocess.PIPE else None
        second = Captured() if stderr == subprocess.PIPE else None
        self.captured = (first, second)
        out = first.write if first else _sink(stdout, 1)
        same = stderr == subprocess.STDOUT
        err = second.write if second else out if same else _sink(stderr, 2)
        self._sinks = (out, err)
        # Both go to one place: a command has them as one pipe, and the order of its writes is kept.
        self.merged = same or (isinstance(out, _Sink) and isinstance(err, _Sink) and out.is_one_with(err))
        self.fault = ""  # the error of an output that could not be kept

    def write(self, stream: int, data: memoryview) -> bool:
        """Return False if the stream takes no more."""
        sink = self._sinks[stream - 1]
        if sink is None:
            return True
        try:
            sink(data)
        except OSError as error:
            self.fault = (error.strerror or str(error)).lower()
            return False
        return True

    @property
    def incomplete(self) -> bool:
        """Whether bytes are missing in what is kept."""
        return bool(self.fault) and self.captured != (None, None)

    def drop(self) -> None:
        for captured in self.captured:
            if captured:
                captured.drop()


def _sink(target: Any, fd: int) -> _Sink | None:
    if target == subprocess.DEVNULL:
        return None
    if target is None:
        number = fd
    elif isinstance(target, int):
        if target < 0:
            raise ValueError(f"no such kind of output: {target}")
        number = target
    else:
        target.flush()
        number = target.fileno()
    return _Sink(number)


class _Sink:
    """Writes to a descriptor."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __call__(self, data: memoryview) -> None:
        write_all(self._fd, data)

    def is_one_with(self, other: _Sink) -> bool:
        return is_one_file(self._fd, other._fd)
