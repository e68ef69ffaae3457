"""The interface of a store: the classes `Tier`, `Reader` and `Writer` that every store implements.

Laws
1. A file is replaced whole or not at all. Content given to a Writer is invisible before `commit`; each later open sees
   it (close-to-open). A Reader that is already open goes on with the version that it opened, or gets ESTALE.
2. The store decides `if_absent` in one step: of many writers one wins, and the others get FileExistsError.
3. A file for which `commit` has returned is durable as the store can make it: a local store has synced the file and
   its directory.
4. Directories come into being with the files put below them. A directory that was made stays when it is empty.
5. An error is the OSError that a local filesystem would raise, with the tier's path as its filename.
   Errors: ENOENT EEXIST EISDIR ENOTDIR ENOTEMPTY EACCES EPERM ENAMETOOLONG EINVAL ENOSPC EDQUOT ESTALE EIO.
6. A Tier may be used by many threads; a Reader or a Writer by one at a time.
7. All paths given to a store are clean (`paths.clean`); the root is "".
"""

from __future__ import annotations

import abc
import contextlib
import errno
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Literal, NamedTuple

from quine.files import paths as names
from quine.files.room import Room
from transport.writes import write_all

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755  # for stores that keep no modes
BLOCK = 1024 * 1024  # bytes that a copy reads or writes at once
SMALL = 64 * 1024  # bytes of a file, up to which it goes with others through a Pipeline
Range = tuple[int, int]  # offset and length in bytes
Kind = Literal["file", "directory"]


class Entry(NamedTuple):
    """The attributes of a file or directory."""

    path: str  # clean, from the root of the tier; "" is the root
    kind: Kind
    size: int = 0  # bytes; 0 of a directory
    mtime: float = 0.0  # seconds since the epoch
    mode: int = FILE_MODE  # permission bits
    version: str = ""  # differs when the content does; "" of a directory

    @property
    def is_file(self) -> bool:
        return self.kind == "file"


class OutcomeUnknown(OSError):
    """The connection to the store broke between a change and its answer: whether it was done is not known."""

    TEXT = "whether it was done is not known"


class Reader(abc.ABC):
    """An open file: one version of it, from `offset` on. A context manager.

    `holes` are ranges that are known to be zeros, in order, within the range that is read. Their offsets count from
    the beginning of the file. `data` leaves holes out, `read` fills them.
    """

    holes: tuple[Range, ...] = ()

    def __init__(self, entry: Entry, offset: int, length: int | None) -> None:
        rest = max(0, entry.size - offset)
        self.entry = entry
        self.offset = offset  # where reading begins
        self.length = rest if length is None else min(length, rest)  # bytes to read from there
        self._at = offset  # position of `read`

    @abc.abstractmethod
    def data(self, size: int) -> bytes:
        """The next bytes outside of holes, at most `size`; b"" at the end. A short result is not the end.

        Raises OSError; ESTALE if the version that was opened is gone.
        """

    @abc.abstractmethod
    def close(self) -> None: ...

    def fileno(self) -> int:
        """A descriptor from which the rest can be read, positioned where `data` is; -1 if there is none."""
        return -1

    def give(self, fd: int, size: int) -> int:
        """As `data`, but write the bytes to `fd` at its position. Return how many; 0 at the end."""
        block = self.data(min(size, BLOCK))
        write_all(fd, block)
        return len(block)

    def read(self, size: int = BLOCK) -> bytes:
        """The next bytes, at most `size`, holes as zeros; b"" at the end."""
        for start, length in self.holes:
            if start <= self._at < start + length:
                zeros = bytes(min(size, start + length - self._at))
                self._at += len(zeros)
                return zeros
            if start > self._at:
                size = min(size, start - self._at)
                break
        block = self.data(size)
        self._at += len(block)
        return block

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Writer(abc.ABC):
    """A file that is being written. A context manager: on exit without `commit` it leaves nothing behind."""

    @abc.abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append. Raises OSError: ENOSPC, EDQUOT, and errors of the store."""

    def take(self, fd: int, length: int) -> int:
        """Append `length` bytes read from `fd` at its position, fewer if it ends sooner. Return how many."""
        left = length
        while left and (block := os.read(fd, min(left, BLOCK))):
            self.write(block)
            left -= len(block)
        return length - left

    def hole(self, length: int) -> None:
        """Append `length` zeros; a store that supports holes keeps none of them."""
        zeros = bytes(min(length, BLOCK))
        while length:
            self.write(zeros[: min(length, BLOCK)])
            length -= min(length, BLOCK)

    @abc.abstractmethod
    def commit(self) -> Entry:
        """Make the file visible. Raises OSError, FileExistsError with `if_absent`; then nothing is left."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Discard the file; no effect after `commit` or a second time."""

    def fileno(self) -> int:
        """A descriptor at the end of the written bytes, to which the rest may be written; -1 if there is none."""
        return -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class Request(NamedTuple):
    """One operation on a store as a value; the fields are those of the method of that name."""

    op: str
    path: str = ""
    target: str = ""
    offset: int = 0
    length: int | None = None
    size: int | None = None  # of a get: the size in the listing, if it is known
    mode: int | None = None
    mtime: float | None = None
    if_absent: bool = False
    exist_ok: bool = False
    recursive: bool = False
    content: bytes = b""  # of a put


class Pipeline(abc.ABC):
    """Requests sent one behind the other, each without waiting for the answers before it. For one thread."""

    @abc.abstractmethod
    def full(self, request: Request) -> bool:
        """Return whether an answer has to be read before `request` is sent."""

    @abc.abstractmethod
    def send(self, request: Request) -> None:
        """Send a request. Raises OSError if the store cannot be reached any more."""

    @abc.abstractmethod
    def answer(self) -> Entry | Reader | None:
        """The result of the oldest request without an answer. Raises what it raised there."""

    @abc.abstractmethod
    def end(self) -> None:
        """End a pipeline of which all answers were read."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give up the requests without an answer: each of them was done whole, or not at all."""


class Tier(abc.ABC):
    """A tree of files and directories, nothing else: no links, no owners. `url` is its name, without secrets."""

    url: str
    most = 0  # largest size of a file in bytes, as far as known beforehand; 0: no limit
    copies = False  # the store copies a file by itself, so its bytes do not pass through this process

    @abc.abstractmethod
    def stat(self, path: str) -> Entry:
        """The entry at `path`. Raises ENOENT, ENOTDIR."""

    @abc.abstractmethod
    def list(self, path: str) -> Iterator[Entry]:
        """The entries of a directory, in the order of the names' bytes. Raises ENOENT, ENOTDIR (also for a file)."""

    @abc.abstractmethod
    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        """Open a file to read at most `length` bytes from `offset`, none beyond its end. ENOENT, EISDIR, ENOTDIR."""

    @abc.abstractmethod
    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        """Make or replace a file. `size`, if known, lets a store or a quota refuse at once; it is no promise.

        Raises EISDIR if `path` is a directory, ENOTDIR if a file is above it, EEXIST at once or at commit.
        """

    def reserve(self) -> Room:
        """Return room for files that will be created, of which none is held yet."""
        return Room()

    @abc.abstractmethod
    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and its parents. Raises ENOTDIR, EEXIST (for a directory only without `exist_ok`)."""

    @abc.abstractmethod
    def remove(self, path: str, recursive: bool = False) -> None:
        """Remove a file, an empty directory, or with `recursive` a whole tree. ENOENT, ENOTEMPTY; EPERM: the root."""

    @abc.abstractmethod
    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        """Rename a file or a directory; a file replaces a file. One step or not: docs/reference/shared-files.md.

        Raises ENOENT, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL (a directory into itself), EEXIST.
        """

    def move(self, source: str, target: str, if_absent: bool = False) -> str:
        """Rename as `mv` does: if `target` is a directory, into it. Return the new path.

        Raises as `rename`; EINVAL if both are the same file.
        """
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not self.stat(target).is_file:
                target = names.join(target, names.name(source))
        if source == target and not if_absent:
            self.stat(source)
            raise OSError(errno.EINVAL, "source and target are the same file", source)
        self.rename(source, target, if_absent)
        return target

    @abc.abstractmethod
    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        """Set mode or time of a file, not its content; no effect on an attribute that the store does not keep.

        Raises ENOENT, EISDIR, ENOTDIR.
        """

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        """Copy a file; the target is replaced whole."""
        with self.open(source) as reader:
            entry = reader.entry
            with self.create(
                target, if_absent=if_absent, mode=entry.mode, mtime=entry.mtime, size=entry.size
            ) as writer:
                pour(reader, writer)
                return writer.commit()

    def perform(self, request: Request) -> Entry | Reader | None:
        """Do a request: stat, get, put, mkdir or remove. Returns and raises as the method does; a get opens."""
        path = request.path
        if request.op == "stat":
            return self.stat(path)
        if request.op == "get":
            return self.open(path, request.offset, request.length)
        if request.op == "mkdir":
            self.mkdir(path, request.exist_ok)
            return None
        if request.op == "remove":
            self.remove(path, request.recursive)
            return None
        assert request.op == "put", request.op
        facts = {"mode": request.mode, "mtime": request.mtime, "size": request.size}
        with self.create(path, if_absent=request.if_absent, **facts) as writer:  # type: ignore[arg-type]
            writer.write(request.content)
            return writer.commit()

    def pipeline(self) -> Pipeline | None:
        """A new pipeline to this store; None if its operations need no round trip to the origin."""
        return None

    def walk(self, path: str) -> Iterator[Entry]:
        """All entries below a directory, each directory before its contents."""
        return walked(self, path)

    def hidden(self, path: str) -> Iterator[str]:
        """Paths below a directory at which the store holds things that no listing shows: symlinks, unusable keys.

        Raises ENOENT, ENOTDIR.
        """
        return iter(())

    def url_of(self, path: str) -> str:
        """The URL of this file for a program with its own access to the store; without secrets."""
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def free(self) -> int | None:
        """Bytes that may still be put there; None where the store does not tell."""
        return None

    def directory_here(self) -> str:
        """The local directory that is the root of this store; "" if there is none."""
        return ""

    def close(self) -> None:
        """Close connections."""
        return


def walked(tier: Tier, path: str, levels: int | None = None) -> Iterator[Entry]:
    """All entries below a directory, at most `levels` deep, by a listing of each directory."""
    todo = [tier.list(path)] if levels != 0 else []  # no recursion: a path may have two thousand names
    while todo:
        entry = next(todo[-1], None)
        if entry is None:
            todo.pop()
            continue
        yield entry
        if not entry.is_file and len(todo) != levels:
            try:
                todo.append(tier.list(entry.path))
            except FileNotFoundError:
                continue  # removed meanwhile


def pour(reader: Reader, writer: Writer) -> int:
    """Copy a whole reader into a writer, holes as holes; return the number of bytes. Raises ESTALE."""
    at, end = reader.offset, reader.offset + reader.length
    if not reader.holes and (fd := reader.fileno()) >= 0:
        if writer.take(fd, reader.length) < reader.length:
            raise stale(reader.entry.path)
        return reader.length
    for start, length in (*reader.holes, (end, 0)):
        while at < start:
            block = reader.data(min(BLOCK, start - at))
            if not block:
                raise stale(reader.entry.path)
            writer.write(block)
            at += len(block)
        if length:
            writer.hole(length)
            at += length
    return at - reader.offset


def stale(path: str) -> OSError:
    """The ESTALE error: the version that was opened is gone, or has changed."""
    return OSError(errno.ESTALE, "was replaced while it was read", path)


def error(number: int, path: str) -> OSError:
    """The OSError of an errno, with the system's text."""
    return OSError(number, os.strerror(number), path)


def is_unreached(fault: BaseException | None) -> bool:
    """Return whether a driver's error means that it did not reach its store, judged by the names of its classes."""
    names = {"ConnectionError", "TimeoutError", "gaierror", "HTTPClientError", "ClientError"}
    names |= {"ServiceRequestError", "ServiceResponseError", "TransportError"}  # Azure's, Google's
    return not names.isdisjoint(kind.__name__ for kind in type(fault).__mro__)


def check_range(path: str, offset: int, length: int | None) -> None:
    """Check the arguments of `open`. Raises EINVAL."""
    if offset < 0 or (length is not None and length < 0):
        raise error(errno.EINVAL, path)
