"""What a files tier is: the face that every store has, whatever lies behind it.

Laws
1. A file is replaced whole or not at all: what a Writer was given is seen by nobody before `commit`, and after it by
   everybody who opens the file then (close-to-open). Who has it open reads on in what he opened, or is told ESTALE.
2. `if_absent` is decided by the store in one step: of many who try, one wins, and the others get FileExistsError.
3. What `commit` has returned is kept as the store keeps things: a local one has synced the file and its directory.
4. Directories come into being with what is put below them, and a directory that was made stays when it is empty.
5. What is wrong is said as the OSError that a local filesystem would raise, with the tier's path as its filename.
   Errors: ENOENT EEXIST EISDIR ENOTDIR ENOTEMPTY EACCES EPERM ENAMETOOLONG EINVAL ENOSPC EDQUOT ESTALE EIO.
6. A Tier may be used by many threads; a Reader or a Writer by one at a time.
7. Paths are clean ones (`names.clean`) everywhere below this line; the root is "".
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

FILE_MODE, DIRECTORY_MODE = 0o644, 0o755  # where a store keeps none
BLOCK = 1024 * 1024  # bytes that are read or written at once by who copies
Range = tuple[int, int]  # offset and length in bytes
Kind = Literal["file", "directory"]


class Entry(NamedTuple):
    """What is known of a file or directory."""

    path: str  # clean, from the root of the tier; "" is the root
    kind: Kind
    size: int = 0  # bytes; 0 of a directory
    mtime: float = 0.0  # seconds since the epoch
    mode: int = FILE_MODE  # permission bits
    version: str = ""  # differs when the content does; "" of a directory

    @property
    def is_file(self) -> bool:
        return self.kind == "file"


class Unsure(OSError):
    """The way to the store was lost between a change and its answer: whether it was done is not known."""


class Reader(abc.ABC):
    """An open file: one version of it, from `offset` on. A context manager.

    `holes` are ranges of the whole file, in order, which are known to be zeros and within what is read. `data` leaves
    them out, `read` fills them.
    """

    holes: tuple[Range, ...] = ()

    def __init__(self, entry: Entry, offset: int, length: int | None) -> None:
        rest = max(0, entry.size - offset)
        self.entry = entry
        self.offset = offset  # where reading began
        self.length = rest if length is None else min(length, rest)  # how much there is to read from there
        self._at = offset  # where `read` is

    @abc.abstractmethod
    def data(self, size: int) -> bytes:
        """The next bytes, at most `size`, not those of holes; b"" at the end. Shorter than asked is not the end.

        Raises OSError; ESTALE where the version that was opened is gone.
        """

    @abc.abstractmethod
    def close(self) -> None: ...

    def fileno(self) -> int:
        """A descriptor, its position where `data` is, from which the rest can be read; -1 where there is none."""
        return -1

    def give(self, fd: int, size: int) -> int:
        """As `data`, but written to a descriptor at its position: how many bytes, 0 at the end."""
        block = self.data(min(size, BLOCK))
        left = memoryview(block)
        while left:
            left = left[os.write(fd, left) :]
        return len(block)

    def read(self, size: int = BLOCK) -> bytes:
        """The next bytes with holes as zeros, at most `size`; b"" at the end."""
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
    """A file that is being made. Left as a context manager without `commit`, it leaves nothing behind."""

    @abc.abstractmethod
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append. Raises OSError: ENOSPC, EDQUOT and what the store says."""

    def take(self, fd: int, length: int) -> int:
        """Append so many bytes of a descriptor, from its position; less where that ends sooner. How many it were."""
        left = length
        while left and (block := os.read(fd, min(left, BLOCK))):
            self.write(block)
            left -= len(block)
        return length - left

    def hole(self, length: int) -> None:
        """Append so many zeros; a store that can keeps none of them."""
        zeros = bytes(min(length, BLOCK))
        while length:
            self.write(zeros[: min(length, BLOCK)])
            length -= min(length, BLOCK)

    @abc.abstractmethod
    def commit(self) -> Entry:
        """Let everybody see it. Raises OSError, FileExistsError with `if_absent`; then nothing was left."""

    @abc.abstractmethod
    def abort(self) -> None:
        """Leave nothing; harmless after commit, and twice."""

    def fileno(self) -> int:
        """A descriptor at the end of what was written, where the rest may be written to it; -1 where there is none."""
        return -1

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class Tier(abc.ABC):
    """A tree of files and directories, nothing else: no links, no owners. `url` is how it is shown, without secrets."""

    url: str
    most = 0  # bytes that a file can have at most, as far as that is known before it is put; 0 is no bound
    copies = False  # does the store copy a file by itself, whose bytes then do not come by here?

    @abc.abstractmethod
    def stat(self, path: str) -> Entry:
        """ENOENT, ENOTDIR."""

    @abc.abstractmethod
    def list(self, path: str) -> Iterator[Entry]:
        """What is directly in a directory, in the order of the names' bytes. ENOENT, ENOTDIR (also for a file)."""

    @abc.abstractmethod
    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        """Read from `offset`, at most `length` bytes; beyond the end there is nothing. ENOENT, EISDIR, ENOTDIR."""

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
        """Make or replace a file. `size`, where known, lets a store or a quota refuse at once, and is no promise.

        EISDIR where a directory stands there, ENOTDIR where a file stands above it, EEXIST at once or at commit.
        """

    @abc.abstractmethod
    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        """Make a directory and those above it. EEXIST (a file always; a directory unless `exist_ok`), ENOTDIR."""

    @abc.abstractmethod
    def remove(self, path: str, recursive: bool = False) -> None:
        """A file, an empty directory, or with `recursive` all of it. ENOENT, ENOTEMPTY; EPERM for the root."""

    @abc.abstractmethod
    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        """A file or a directory; a file replaces a file. In one step where it can: docs/reference/shared-files.md.

        ENOENT, EISDIR, ENOTDIR, ENOTEMPTY, EINVAL (a directory into itself), EEXIST.
        """

    def move(self, source: str, target: str, if_absent: bool = False) -> str:
        """Rename as `mv` does: where `target` is a directory, to a name in it. The path that it has then.

        As `rename`; EINVAL where both are the same file.
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
        """The mode or time of a file, whose content stays as it is; nothing where the store keeps none.

        ENOENT, EISDIR, ENOTDIR.
        """

    def copy(self, source: str, target: str, if_absent: bool = False) -> Entry:
        """A file; the target is replaced whole."""
        with self.open(source) as reader:
            entry = reader.entry
            with self.create(
                target, if_absent=if_absent, mode=entry.mode, mtime=entry.mtime, size=entry.size
            ) as writer:
                pour(reader, writer)
                return writer.commit()

    def walk(self, path: str) -> Iterator[Entry]:
        """Everything below a directory, each directory before what is in it."""
        return walked(self, path)

    def hidden(self, path: str) -> Iterator[str]:
        """Paths below a directory under which the store holds what no listing shows: a symlink, a key that is no name.

        ENOENT, ENOTDIR.
        """
        return iter(())

    def url_of(self, path: str) -> str:
        """How somebody who may reach the store by himself names this file; without secrets."""
        return f"{self.url.rstrip('/')}/{path}" if path else self.url

    def directory_here(self) -> str:
        """The directory of this machine that it is; "" where it is none."""
        return ""

    def close(self) -> None:
        """Let go of connections."""
        return


def walked(tier: Tier, path: str, levels: int | None = None) -> Iterator[Entry]:
    """What is below a directory, at most so many levels down, by a listing of each directory."""
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
    """All that is left of a reader into a writer, holes as holes; how many bytes."""
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
    """The version that was opened is gone, or is not what it was."""
    return OSError(errno.ESTALE, "was replaced while it was read", path)


def error(number: int, path: str) -> OSError:
    """The OSError of an errno, in the words of the system."""
    return OSError(number, os.strerror(number), path)


def is_unreached(fault: BaseException | None) -> bool:
    """Has a driver not come through to its store? By the names of its errors and of the system's."""
    names = {"ConnectionError", "TimeoutError", "gaierror", "HTTPClientError", "ClientError"}
    names |= {"ServiceRequestError", "ServiceResponseError", "TransportError"}  # Azure's, Google's
    return not names.isdisjoint(kind.__name__ for kind in type(fault).__mro__)


def check_range(path: str, offset: int, length: int | None) -> None:
    """Of what `open` is asked for. EINVAL."""
    if offset < 0 or (length is not None and length < 0):
        raise error(errno.EINVAL, path)
