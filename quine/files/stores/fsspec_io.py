"""Readers and writers of files of an fsspec filesystem, and driver failures as OSError."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from quine.files.api import (
    BLOCK,
    DIRECTORY_MODE,
    FILE_MODE,
    Entry,
    Reader,
    Writer,
    error,
    is_unreached,
    stale,
)
from quine.files.stores.spool import expect_room

_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "modify", "created")
_VERSIONS = ("generation", "ETag", "etag", "md5Hash", "content_hash", "CRC")


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """Turn any exception of a driver into an OSError about `path`, a path of the tier."""
    try:
        yield
    except OSError as fault:
        if fault.filename == path and fault.errno is not None:
            raise
        raise OSError(_number(fault), fault.strerror or _text(fault), path) from None
    except Exception as fault:
        raise OSError(_number(fault), _text(fault), path) from None


def _number(fault: Exception) -> int:
    known = {
        FileNotFoundError: errno.ENOENT,
        FileExistsError: errno.EEXIST,
        IsADirectoryError: errno.EISDIR,
        NotADirectoryError: errno.ENOTDIR,
        PermissionError: errno.EACCES,
        NotImplementedError: errno.ENOTSUP,
    }
    if isinstance(fault, OSError) and (fault.errno or 0) > 0:
        return int(fault.errno or 0)
    if number := next((number for kind, number in known.items() if isinstance(fault, kind)), 0):
        return number
    if is_unreached(fault) or is_unreached(fault.__cause__):
        return errno.EHOSTUNREACH
    return errno.EACCES if _is_refused(fault) or _is_refused(fault.__cause__) else errno.EIO


def _is_refused(fault: BaseException | None) -> bool:
    """Return whether the store refuses the keys or they are malformed, as the drivers of Azure and Google say."""
    answer = getattr(fault, "status_code", None) or getattr(fault, "code", None)
    unsigned = type(fault).__name__ == "AzureSigningError"
    return unsigned or str(answer) in ("401", "403") or str(fault).startswith("Forbidden: ")


def _text(fault: Exception) -> str:
    """Describe a fault by its kind alone: a message of a driver may hold a whole URL with its secrets."""
    number, name = _number(fault), type(fault).__name__
    if number == errno.EHOSTUNREACH:
        return f"the store cannot be reached: {name}"
    if number == errno.EACCES:
        return f"the store refuses these keys: {name}"
    return f"the store fails: {name}" if number == errno.EIO else os.strerror(number)


def known(path: str, found: dict[str, Any]) -> Entry:
    if found.get("type") == "directory":
        return Entry(path, "directory", mtime=_mtime(found), mode=DIRECTORY_MODE)
    size, mtime = int(found.get("size") or 0), _mtime(found)
    version = next((str(found[name]).strip('"') for name in _VERSIONS if found.get(name)), "")
    return Entry(
        path, "file", size, mtime, FILE_MODE, version or f"{found.get('ino', '')}-{mtime!r}-{size:x}"
    )


def _mtime(found: dict[str, Any]) -> float:
    for name in _TIMES:
        value = found.get(name)
        if isinstance(value, (int, float)):
            return float(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                return datetime.fromisoformat(value).timestamp()
    return 0.0


class SteadyReader(Reader):
    """Checks the file again at its end, so that a complete read is one version; otherwise it raises ESTALE."""

    def __init__(
        self,
        file: Any,
        entry: Entry,
        offset: int,
        length: int | None,
        again: Callable[[], Entry | None],
    ) -> None:
        super().__init__(entry, offset, length)
        self._file, self._again = file, again
        self._left = self.length
        if offset and self.length:
            with about(entry.path):
                file.seek(offset)

    def data(self, size: int) -> bytes:
        path = self.entry.path
        size = min(size, BLOCK, self._left)
        if size <= 0:
            return b""
        try:
            with about(path):
                block: bytes = self._file.read(size)
        except OSError:
            now = self._again()  # a driver pinned to a version has its own error if it is gone
            if now is None or now.version != self.entry.version:
                raise stale(path) from None
            raise
        if not block:
            raise stale(path)
        self._left -= len(block)
        if not self._left:
            now = self._again()
            if now is None or now.version != self.entry.version:
                raise stale(path)
        return block

    def close(self) -> None:
        with about(self.entry.path):
            self._file.close()


class SpoolWriter(Writer):
    """Writes to a hidden file. A commit calls `arrive` before it closes a `spool`, and after it closes another file."""

    def __init__(
        self, path: str, file: Any, arrive: Callable[[], Entry], drop: Callable[[], None], spool: bool
    ) -> None:
        self._path, self._file, self._arrive, self._drop, self._spool = path, file, arrive, drop, spool
        self._done = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._spool:
            expect_room(self._file.fileno(), self._file.tell(), len(data), self._path)
        with about(self._path):
            self._file.write(bytes(data) if isinstance(data, memoryview) else data)

    def commit(self) -> Entry:
        if self._done:
            raise error(errno.EINVAL, self._path)
        try:
            with about(self._path):
                self._file.flush()
                if self._spool:
                    entry = self._arrive()
                    self._file.close()
                else:
                    self._file.close()
                    entry = self._arrive()
            self._done = True
            return entry
        finally:
            self.abort()

    def abort(self) -> None:
        if self._done:
            return
        self._done = True
        with contextlib.suppress(Exception):  # an error about bytes that are discarded
            self._file.close()
        self._drop()
