"""The output of one job, kept until it is passed on: in memory, and from a size on in an unlinked file.

Law: bytes come out as they came in, in their order. Nothing is added at the end of a job, and no byte is special.
"""

from __future__ import annotations

import os
import struct

from transport.writes import write_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO

MEMORY = 32 << 10  # bytes kept in memory
CHUNK = 1 << 16
HEAD = struct.Struct("<BI")  # stream, length


class Spool:
    """Chunks of two streams. `size` is the number of their bytes."""

    __slots__ = ("_end", "_file", "_held", "size")

    def __init__(self) -> None:
        self.size = 0
        self._end = 0  # of the file
        self._held: list[tuple[int, bytes]] = []
        self._file: IO[bytes] | None = None

    @property
    def in_memory(self) -> int:
        return 0 if self._file else self.size

    @property
    def has_file(self) -> bool:
        return self._file is not None

    def write(self, stream: int, data: bytes | memoryview) -> None:
        self.size += len(data)
        if self._file is None and self.size > MEMORY:
            import tempfile

            # Not buffered: a full disk has to be seen in `write`, when the job can still be told.
            self._file = tempfile.TemporaryFile(prefix="quine-xargs-", buffering=0)  # noqa: SIM115 - chunks() or drop()
            for held in self._held:
                self._store(*held)
            self._held.clear()
        if self._file is None:
            self._held.append((stream, bytes(data)))
        else:
            self._store(stream, data)

    def _store(self, stream: int, data: bytes | memoryview) -> None:
        assert self._file
        # At a position: a chunk that does not fit on the disk is not there at all.
        write_at(self._file.fileno(), HEAD.pack(stream, len(data)) + data, self._end)
        self._end += HEAD.size + len(data)

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield what was written, once; the file is closed at the end."""
        if self._file is None:
            held, self._held = self._held, []
            yield from held
            return
        with self._file as file:
            at = 0
            while at < self._end:
                stream, left = HEAD.unpack(os.pread(file.fileno(), HEAD.size, at))
                at += HEAD.size
                while left:
                    data = os.pread(file.fileno(), min(left, CHUNK), at)
                    if not data:
                        raise OSError("the spool of an output is shorter than it was")
                    left -= len(data)
                    at += len(data)
                    yield stream, data

    def drop(self) -> None:
        """Forget all of it."""
        self._held.clear()
        self.size = 0
        if self._file:
            self._file.close()
            self._file = None
