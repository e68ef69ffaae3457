"""The output of one job, kept until it is passed on: in memory, and from a size on in a file.

Laws
1. Bytes come out as they came in, in their order. Nothing is added at the end of a job, and no byte is special.
2. The file has no name, unless it was given one: then its bytes are found again after a death of this process.
3. A spool whose output is shown as a value keeps as many bytes as are shown (`most`), so that a host which sends more
   fills no disk. One that is found again has all of them: the next process goes on behind the last of them.
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
    """Chunks of two streams. `size` is the number of their bytes, `sizes` that of each.

    `most` bytes of each are kept, 0 = all; the others are counted.
    """

    __slots__ = ("_end", "_file", "_held", "most", "path", "size", "sizes")

    def __init__(self) -> None:
        self.size = 0
        self.sizes = [0, 0, 0]
        self.most = 0
        self.path = ""  # of the file, if it is to be found again
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
        self.sizes[stream] += len(data)
        if self.most and not self.path and (beyond := self.sizes[stream] - self.most) > 0:
            data = data[: max(0, len(data) - beyond)]
            if not data:
                return
        if self._file is None and self.size > MEMORY:
            self._file = self._opened("w+b")
            for held in self._held:
                self._store(*held)
            self._held.clear()
        if self._file is None:
            self._held.append((stream, bytes(data)))
        else:
            self._store(stream, data)

    def _opened(self, mode: str) -> IO[bytes]:
        """Open the file; chunks() or drop() closes it. Not buffered: a full disk has to be seen in `write`."""
        if self.path:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            return open(self.path, mode, buffering=0)
        import tempfile

        return tempfile.TemporaryFile(prefix="quine-xargs-", buffering=0)

    def restore(self) -> Iterator[tuple[int, bytes]]:
        """Go on with the file of a process that has died, and yield what is in it. A chunk that was torn is cut off."""
        try:
            file = self._opened("r+b")
        except FileNotFoundError:
            return
        fd = file.fileno()
        while len(head := os.pread(fd, HEAD.size, self._end)) == HEAD.size:
            stream, length = HEAD.unpack(head)
            data = os.pread(fd, length, self._end + HEAD.size)
            if len(data) < length:
                break
            self.sizes[stream] += length
            self.size += length
            self._end += HEAD.size + length
            yield stream, data
        os.ftruncate(fd, self._end)
        self._file = file

    def forget(self) -> None:
        """The output was passed on, and that is on record: the file is not needed any more."""
        if self.path:
            try:
                os.unlink(self.path)
            except FileNotFoundError:
                pass  # it fitted into memory

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
            yield from self._stored(file.fileno())

    def of(self, stream: int, most: int = 0) -> Iterator[bytes]:
        """Yield what one stream has, each time anew; at most `most` bytes from its beginning, 0 = all.

        The file stays open, for `leave`.
        """
        left = min(self.sizes[stream], most or self.sizes[stream])
        for each, data in self._stored(self._file.fileno(), stream) if self._file else self._held:
            if not left:
                return
            if each == stream:
                yield data[:left]
                left -= min(left, len(data))

    def _stored(self, fd: int, only: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield what the file has, of one stream or of both."""
        at = 0
        while at < self._end:
            stream, left = HEAD.unpack(os.pread(fd, HEAD.size, at))
            at += HEAD.size
            if only not in (0, stream):
                at += left
                continue
            while left:
                data = os.pread(fd, min(left, CHUNK), at)
                if not data:
                    raise OSError("the spool of an output is shorter than it was")
                left -= len(data)
                at += len(data)
                yield stream, data

    def drop(self) -> None:
        """Forget all of it."""
        self._held.clear()
        self.size = 0
        self.sizes = [0, 0, 0]
        self.forget()
        self.leave()

    def leave(self) -> None:
        """Close the file, which stays for the next process that finds it."""
        if self._file:
            self._file.close()
            self._file = None
