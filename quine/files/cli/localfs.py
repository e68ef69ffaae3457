"""The side of this machine: files that are put, and files and directories that are made where somebody said `get`.

Laws
1. Below the directory that was named no symbolic link is followed: each step is taken by descriptor, so that neither a
   name in the store nor somebody who swaps a directory for a link leads out of it.
2. A file is made aside without a name (O_TMPFILE, where the filesystem has it) and appears whole: who is killed leaves
   nothing. One that stands there is replaced by one rename; a directory, a device, a pipe is not.
3. Only regular files are read. What else has the name is refused before it could block or eat anything.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from quine.files.api import error, stale
from quine.files.paths import join
from quine.files.stores.local import dirfd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from quine.files.api import Reader, Writer

PIECE = 4 * 1024 * 1024  # bytes between two looks at whether to go on, at first
LARGEST = 64 * PIECE
QUICK = 0.1  # seconds; a piece that took less is followed by one of twice its size, for each has its price on a link
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
WITHIN = DIRECTORY | os.O_NOFOLLOW
PERMISSIONS = 0o777  # of a mode: a store does not make a program run as somebody else


class _Pace:
    """How much is moved between two looks at whether to go on."""

    def __init__(self) -> None:
        self.piece = PIECE
        self._since = time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        if now - self._since < QUICK:
            self.piece = min(2 * self.piece, LARGEST)
        self._since = now


class Source:
    """A regular file that is open to be read. Raises OSError: EISDIR, ELOOP for a link, EINVAL for what is no file."""

    def __init__(self, path: str, found: str = "") -> None:
        """`found`: the end of the path, below the directory that was named: there no link is followed."""
        self.path = path
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        if found:
            with Folder(path.removesuffix(found)) as folder:
                self.fd = folder.open(found, flags)
        else:
            self.fd = os.open(path, flags)
        self.stat = os.fstat(self.fd)
        if not stat.S_ISREG(self.stat.st_mode):
            self.close()
            if stat.S_ISDIR(self.stat.st_mode):
                raise error(errno.EISDIR, path)
            raise OSError(errno.EINVAL, "neither a file nor a directory", path)

    def feed(self, writer: Writer, tick: Callable[[int], None]) -> None:
        """Its bytes, holes as holes. Raises OSError where it became shorter meanwhile."""
        size, at, pace = self.stat.st_size, 0, _Pace()
        if not size:  # such as those in /proc
            while took := writer.take(self.fd, PIECE):
                tick(took)
        while at < size:
            start, end = self._data(at, size)
            if start > at:
                writer.hole(start - at)
            at = start
            while at < end:
                took = writer.take(self.fd, min(pace.piece, end - at))
                tick(took)
                pace.look()
                at += took
                if not took:
                    raise OSError(errno.EIO, "became shorter while it was read", self.path)

    def _data(self, at: int, size: int) -> tuple[int, int]:
        """The next range that is no hole; the position is at its beginning."""
        try:
            start = os.lseek(self.fd, at, os.SEEK_DATA)
            end = os.lseek(self.fd, start, os.SEEK_HOLE)
        except OSError as refused:
            start, end = (size if refused.errno == errno.ENXIO else at), size
        start, end = min(start, size), min(end, size)
        os.lseek(self.fd, start, os.SEEK_SET)
        return start, end

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Part:
    """A file that is being made in a directory. A context manager: without `commit` nothing is left."""

    def __init__(self, folder: int, name: str, shown: str) -> None:
        self.folder, self.name, self.shown = folder, name, shown
        self._aside = ""
        self.fd = -1
        try:
            if os.path.isdir("/proc/self/fd"):
                self.fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
        except OSError as refused:
            if refused.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise OSError(refused.errno, refused.strerror, shown) from None
        if self.fd < 0:
            self._aside = self._new()
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            try:
                self.fd = os.open(self._aside, flags, 0o600, dir_fd=folder)
            except OSError as refused:
                raise OSError(refused.errno, refused.strerror, shown) from None

    def fill(self, reader: Reader, tick: Callable[[int], None]) -> None:
        """All of an open file of the tier, holes as holes."""
        at, end, pace = reader.offset, reader.offset + reader.length, _Pace()
        for start, length in (*reader.holes, (end, 0)):
            while at < start:
                gave = reader.give(self.fd, min(pace.piece, start - at))
                if not gave:
                    raise stale(reader.entry.path)
                tick(gave)
                pace.look()
                at += gave
            at += length
            os.lseek(self.fd, at - reader.offset, os.SEEK_SET)
        os.ftruncate(self.fd, reader.length)

    def commit(self, mode: int, mtime: float, if_absent: bool = False) -> None:
        """Give it its name. Raises OSError: EEXIST, EISDIR, EINVAL where something stands that is no file."""
        os.fchmod(self.fd, mode & PERMISSIONS)
        os.utime(self.fd, (mtime, mtime))
        try:
            self._name(if_absent)
        except OSError as refused:
            raise OSError(refused.errno, refused.strerror, self.shown) from None

    def _name(self, if_absent: bool) -> None:
        own = f"/proc/self/fd/{self.fd}"
        try:
            if self._aside:
                os.link(self._aside, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            else:
                os.link(own, self.name, dst_dir_fd=self.folder, follow_symlinks=True)
            return
        except FileExistsError:
            if if_absent:
                raise
        except OSError as refused:
            if (
                not self._aside
                or if_absent
                or refused.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
            ):
                raise
        there = self._there()
        if there and not stat.S_ISREG(there) and not stat.S_ISLNK(there):
            raise (
                error(errno.EISDIR, self.shown)
                if stat.S_ISDIR(there)
                else OSError(errno.EINVAL, "is no file")
            )
        if not self._aside:
            aside = self._new()
            os.link(own, aside, dst_dir_fd=self.folder, follow_symlinks=True)
            self._aside = aside
        os.rename(self._aside, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
        self._aside = ""

    def _there(self) -> int:
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return 0

    def _new(self) -> str:
        return f".quine-{os.urandom(8).hex()}.part"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        if self._aside:
            try:
                os.unlink(self._aside, dir_fd=self.folder)
            except FileNotFoundError:
                pass


class Found:
    """What was found below a directory: `kind` is file, directory, link or special; `path` is relative to that."""

    __slots__ = ("kind", "path", "stat")

    def __init__(self, path: str, status: os.stat_result) -> None:
        self.path, self.stat = path, status
        mode = status.st_mode
        self.kind = (
            "file"
            if stat.S_ISREG(mode)
            else "directory"
            if stat.S_ISDIR(mode)
            else "link"
            if stat.S_ISLNK(mode)
            else "special"
        )


class Folder:
    """A directory of this machine, below which things are made and removed. A context manager."""

    def __init__(self, path: str, follow: bool = True) -> None:
        self.path = path
        self.fd = os.open(path, DIRECTORY if follow else WITHIN)

    def shown(self, relative: str) -> str:
        return os.path.join(self.path, relative) if relative else self.path

    def enter(self, relative: str, make: bool = True) -> int:
        """A descriptor of a directory below, which the caller closes. Raises OSError: ENOTDIR, ENOENT."""
        return dirfd.descend(self.fd, relative, lambda fd, name: self._step(fd, name, make, relative))

    def _step(self, fd: int, name: str, make: bool, relative: str) -> int:
        if make:
            try:
                os.mkdir(name, dir_fd=fd)
            except FileExistsError:
                pass
            except OSError as refused:
                raise OSError(refused.errno, refused.strerror, self.shown(relative)) from None
        try:
            return os.open(name, WITHIN, dir_fd=fd)
        except OSError as refused:
            if refused.errno in (errno.ELOOP, errno.ENOTDIR):
                raise OSError(
                    errno.ENOTDIR, "a file or a link, not a directory", self.shown(relative)
                ) from None
            raise OSError(refused.errno, refused.strerror, self.shown(relative)) from None

    def fill(
        self, relative: str, reader: Reader, tick: Callable[[int], None], if_absent: bool = False
    ) -> None:
        """A file below it from the tier, with mode and time; replaced whole or not at all."""
        above, _, name = relative.rpartition("/")
        fd = self.enter(above)
        try:
            with Part(fd, name, self.shown(relative)) as part:
                try:
                    part.fill(reader, tick)
                except OSError as refused:
                    if refused.errno in (errno.ENOSPC, errno.EFBIG):  # it is this side that is full
                        raise OSError(refused.errno, refused.strerror, self.shown(relative)) from None
                    raise
                part.commit(reader.entry.mode, reader.entry.mtime, if_absent)
        finally:
            os.close(fd)

    def make(self, relative: str) -> None:
        os.close(self.enter(relative))

    def open(self, relative: str, flags: int) -> int:
        """A file below it. Raises OSError: ELOOP for a link, ENOTDIR for one above it."""
        above, _, name = relative.rpartition("/")
        folder = self.enter(above, make=False)
        try:
            return os.open(name, flags | os.O_NOFOLLOW, dir_fd=folder)
        except OSError as refused:
            raise OSError(refused.errno, refused.strerror, self.shown(relative)) from None
        finally:
            os.close(folder)

    def chmod(self, relative: str, mode: int) -> None:
        fd = self.open(relative, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.fchmod(fd, mode & PERMISSIONS)
        finally:
            os.close(fd)

    def remove(self, relative: str) -> None:
        """A file, a link, or a directory with all that is in it."""
        above, _, name = relative.rpartition("/")
        folder = self.enter(above, make=False)
        try:
            _remove(folder, name)
        except OSError as refused:
            raise OSError(refused.errno, refused.strerror, self.shown(relative)) from None
        finally:
            os.close(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def _remove(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
        return
    except OSError as refused:
        if refused.errno not in (errno.EISDIR, errno.EPERM):
            raise
    dirfd.empty(folder, name)
    os.rmdir(name, dir_fd=folder)


def walk(
    top: str, follow: bool, failed: Callable[[OSError], None], leave_out: frozenset[str] = frozenset()
) -> Iterator[Found]:
    """All below a directory, each directory before what is in it, in the order of the names' bytes.

    `follow`: what links point to in their place; one that leads to a directory above itself is `failed`, as is what
    cannot be read. `leave_out`: paths relative to `top` that are passed over.
    """
    todo: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]  # and which directories are above it
    while todo:  # no recursion: a path may have two thousand names
        relative, above = todo.pop()
        here = os.path.join(top, relative) if relative else top
        try:
            one = Found(relative, os.stat(here, follow_symlinks=follow or not relative))
            itself = (one.stat.st_dev, one.stat.st_ino)
            if one.kind == "directory" and itself in above:
                raise error(errno.ELOOP, here)
            if relative:
                yield one
                if one.kind != "directory":
                    continue
            for name in sorted(os.listdir(here), key=os.fsencode, reverse=True):
                if (below := join(relative, name)) not in leave_out:
                    todo.append((below, (*above, itself)))
        except OSError as refused:
            failed(refused)
