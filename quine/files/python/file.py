"""Open files of the tier as Python file objects: binary reading with seeks, binary writing of whole files, and text.

Laws
1. A reader sees one version of the file: a seek that finds another version raises ESTALE.
2. A written file becomes visible when it is closed. If an exception leaves the `with` block of the file, or of an
   object that closes it, the file is discarded. So is a file that was never closed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import sys
import warnings
from typing import Any

from quine.files.api import BLOCK, Entry, Reader, Tier, Writer, stale

FIRST = 1 << 18  # bytes requested after a seek; sequential reading requests four times as many each time
MOST = 1 << 25
SKIPPED = 1 << 18  # a forward seek shorter than so many bytes is read and discarded, without a new request
CALLERS = 30  # stack frames searched for an `__exit__` with an exception


def facts(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.path,
        "size": entry.size,
        "type": entry.kind,
        "mtime": entry.mtime,
        "mode": entry.mode,
        "version": entry.version,
    }


class Reading(io.BufferedReader):
    """A file open for reading."""

    def __init__(self, tier: Tier, path: str) -> None:
        source = _Source(tier, path)
        super().__init__(source, 1 << 17)
        self.path = self.full_name = path
        self.size = source.entry.size
        self.details = facts(source.entry)

    @property
    def mode(self) -> str:
        return "rb"

    def info(self) -> dict[str, Any]:
        return self.details


class _Source(io.RawIOBase):
    """One version of a file: a store's reader, opened anew after a distant seek."""

    def __init__(self, tier: Tier, path: str) -> None:
        self._tier, self._path = tier, path
        self._reader: Reader | None = tier.open(path)
        self.entry = self._reader.entry
        self._at = 0  # position of the caller
        self._next = 0  # position of the store's reader
        self._end = self._reader.offset + self._reader.length
        self._ahead = FIRST

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.entry.size}[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "before the beginning of the file", self._path)
        self._at = at
        return at

    def readinto(self, buffer: Any) -> int:
        wanted = len(buffer)
        if self._at >= self.entry.size or not wanted:
            return 0
        reader = self._positioned(wanted)
        block = reader.read(wanted)
        if not block:
            raise stale(self._path)
        buffer[: len(block)] = block
        self._at += len(block)
        self._next = self._at
        return len(block)

    def _positioned(self, wanted: int) -> Reader:
        """A reader positioned at `_at`, opened anew if the current one cannot get there. Raises ESTALE."""
        if self._reader is not None and self._next <= self._at < min(self._end, self._next + SKIPPED):
            while self._next < self._at:
                skipped = len(self._reader.read(self._at - self._next))
                if not skipped:
                    raise stale(self._path)
                self._next += skipped
            return self._reader
        in_order = self._at == self._next == self._end
        self._ahead = min(MOST, self._ahead * 4) if in_order else FIRST
        self._drop()
        reader = self._reader = self._tier.open(self._path, self._at, max(wanted, self._ahead))
        if reader.entry.version != self.entry.version:
            raise stale(self._path)
        self._next, self._end = self._at, self._at + reader.length
        return reader

    def _drop(self) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            reader.close()

    def close(self) -> None:
        if not self.closed:
            self._drop()
        super().close()


class Writing(io.BufferedIOBase):
    """A file open for writing: visible when it is closed, or at the end of the transaction."""

    def __init__(self, writer: Writer, path: str, autocommit: bool) -> None:
        self.writer = writer
        self._waiting = bytearray()
        self._at = 0
        self._autocommit = autocommit
        self._discarded = False  # a discarded file stays discarded when its transaction ends
        self._known = _leaving()  # exceptions under way before the file was opened do not concern it
        self.path = self.full_name = path
        self.mode = "wb"

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        view = memoryview(data).cast("B")
        self._at += len(view)
        if self._waiting or len(view) < BLOCK:
            self._waiting += view
            if len(self._waiting) >= BLOCK:
                self._hand_on()
        else:
            self.writer.write(view)
        return len(view)

    def _hand_on(self) -> None:
        if self._waiting:
            block, self._waiting = self._waiting, bytearray()
            self.writer.write(block)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if _leaving() - self._known:
                self.discard()
            elif self._autocommit:
                self.commit()
            else:
                self._hand_on()
        except BaseException:
            self.writer.abort()
            raise
        finally:
            super().close()

    def commit(self) -> None:
        """Make the file visible, unless it was discarded."""
        if not self._discarded:
            self._hand_on()
            self.writer.commit()

    def discard(self) -> None:
        """Drop the content; nothing is left in the store."""
        self._discarded = True
        self._waiting = bytearray()
        self.writer.abort()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and not self.closed:
            self._autocommit = False
            self.discard()
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"{self.path} was not closed, and is discarded", ResourceWarning, stacklevel=2)
            self._autocommit = False
            self.discard()
            super().close()


class Text(io.TextIOWrapper):
    """Text over `Reading` or `Writing`; an exception that leaves its `with` block discards a written file."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and isinstance(self.buffer, Writing) and not self.buffer.closed:
            self.buffer.__exit__(kind, error, trace)
        with contextlib.suppress(*((ValueError,) if kind is not None else ())):
            self.close()


def _leaving() -> set[int]:
    """Ids of the stack frames that are an `__exit__` called with an exception.

    Libraries close their file in such an `__exit__` and do not pass the exception on to it. Without this check half a
    table would be committed as a whole one.
    """
    found: set[int] = set()
    frame = sys._getframe(1)
    for _ in range(CALLERS):
        code = frame.f_code
        if code.co_name == "__exit__":
            given = [frame.f_locals.get(name) for name in code.co_varnames[1 : code.co_argcount]]
            if code.co_flags & 0x04:  # *args
                given += frame.f_locals.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount], ())
            if any(isinstance(one, BaseException) for one in given):
                found.add(id(frame))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return found
