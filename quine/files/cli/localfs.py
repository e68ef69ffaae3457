"""The local side of transfers: files that are read for `put`, and directories in which `get` makes files (`part.py`).

Laws
1. Below the directory that was named no symbolic link is followed. Each step is taken by descriptor. So neither a name
   in the store nor a directory that is swapped for a link leads out of it.
2. The umask holds: a mode in the tier gives no user a right that the umask takes away.
3. Only regular files are read. Anything else is refused before reading it could block or consume data.
"""

from __future__ import annotations

import errno
import os
import stat

from quine.base import procs
from quine.files.api import SMALL, error
from quine.files.cli.part import PIECE, Pace, Part
from quine.files.paths import join
from quine.files.stores.local import dirfd
from quine.files.stores.local.holes import runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Self

    from quine.files.api import Reader, Writer

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
PERMISSIONS = 0o777  # bits of a mode that are kept: a store must not bring in setuid programs


def bits() -> int:
    """Return the bits of a mode of the tier that a file gets here."""
    return PERMISSIONS & ~(procs.umask() or 0)


class Source:
    """A regular file open for reading. Raises OSError: EISDIR, ELOOP for a link, EINVAL for any other kind."""

    def __init__(self, path: str, found: str = "") -> None:
        """`found` is the end of `path` below the directory that was named; no link is followed in it."""
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
        """Write the content to `writer`, holes as holes. Raises OSError if the file became shorter meanwhile."""
        size, pace = self.stat.st_size, Pace()
        if not size:  # files in /proc have content and size 0
            while took := writer.take(self.fd, PIECE):
                tick(took)
        for hole, at, end in runs(self.fd, 0, size):
            if at > hole:
                writer.hole(at - hole)
            os.lseek(self.fd, at, os.SEEK_SET)
            while at < end:
                took = writer.take(self.fd, min(pace.piece, end - at))
                tick(took)
                pace.look()
                at += took
                if not took:
                    raise self._shorter()

    def small(self) -> bytes | None:
        """The whole content if it is at most SMALL bytes and has no hole, else None. Raises OSError as `feed`."""
        size = self.stat.st_size
        if size > SMALL or (size and next(runs(self.fd, 0, size)) != (0, 0, size)):
            return None
        content = os.pread(self.fd, size or 1, 0)
        if len(content) < size:
            raise self._shorter()
        return (
            content if size or not content else None
        )  # None: a file in /proc, of which the size is not known

    def _shorter(self) -> OSError:
        return OSError(errno.EIO, "became shorter while it was read", self.path)

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Found:
    """An entry found below a directory: `kind` is file, directory, link or special; `path` is relative to it."""

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
    """A local directory, below which files and directories are made and removed. A context manager."""

    def __init__(self, path: str, follow: bool = True) -> None:
        self.path = path
        self.fd = os.open(path, DIRECTORY if follow else dirfd.FOLDER)

    def shown(self, relative: str) -> str:
        return os.path.join(self.path, relative) if relative else self.path

    def enter(self, relative: str, make: bool = True) -> int:
        """Return a descriptor of a directory below, which the caller closes. Raises OSError: ENOTDIR, ENOENT."""
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
            return os.open(name, dirfd.FOLDER, dir_fd=fd)
        except OSError as refused:
            if refused.errno in (errno.ELOOP, errno.ENOTDIR):
                raise OSError(
                    errno.ENOTDIR, "a file or a link, not a directory", self.shown(relative)
                ) from None
            raise OSError(refused.errno, refused.strerror, self.shown(relative)) from None

    def fill(
        self,
        relative: str,
        reader: Reader,
        tick: Callable[[int], None],
        if_absent: bool = False,
        tree: bool = False,
    ) -> None:
        """Write a file of the tier to `relative`, with mode and time; replace an existing one whole or not at all.

        `tree`: it is one of a tree, and not named itself.
        """
        above, _, name = relative.rpartition("/")
        fd = self.enter(above)
        try:
            with Part(fd, name, self.shown(relative), keep=not (tree or if_absent)) as part:
                try:
                    part.fill(reader, tick)
                except OSError as refused:
                    if refused.errno in (errno.ENOSPC, errno.EFBIG):  # the local side is full
                        raise OSError(refused.errno, refused.strerror, self.shown(relative)) from None
                    raise
                part.commit(reader.entry.mode & bits(), reader.entry.mtime, if_absent, sure=not tree)
        finally:
            os.close(fd)

    def make(self, relative: str) -> None:
        os.close(self.enter(relative))

    def open(self, relative: str, flags: int) -> int:
        """Open a file below the directory. Raises OSError: ELOOP for a link, ENOTDIR for a link above it."""
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
            os.fchmod(fd, mode & bits())
        finally:
            os.close(fd)

    def remove(self, relative: str) -> None:
        """Remove a file, a link, or a directory with its contents."""
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
    """All entries below a directory, each directory before its contents, in the order of the names' bytes.

    `follow`: yield the targets of links in their place. `failed` is called for a link to a directory above itself, and
    for each entry that cannot be read. `leave_out`: paths relative to `top` to skip.
    """
    todo: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]  # each with the directories above it
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
