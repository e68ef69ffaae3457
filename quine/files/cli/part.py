"""A file of this machine that comes from the tier: written aside, then given its name.

Laws
1. A file is made aside and appears whole. It has no name at first (O_TMPFILE) if the filesystem supports that; then a
   process that is killed while it writes leaves nothing. An existing file is replaced by one rename; a directory, a
   device or a pipe is not replaced.
2. One file of a tree replaces another, whose other names keep their content, as with rsync: they may be a snapshot, or
   the cache of a package manager. A file that was named itself keeps its other names, its owner and its group, as in
   law 2 of `transport/atomic.py`: the whole content is copied into it, once room for it is reserved. Meanwhile the new
   content has a name, which the error says if the copying fails. A file of this user that is read-only is replaced:
   `get` itself may have made it so.
3. The content is on the disk before it replaces another one, and before a file that was named has its name. New files
   of a tree are not synced one by one: nothing is lost with them, and they are sent again.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from quine.files.api import error, stale
from quine.files.stores.spool import expect_room, keep, spool
from transport.atomic import IN_PLACE, overwrite, reserve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from quine.files.api import Reader

PIECE = 4 * 1024 * 1024  # bytes between two checks for the end of the command, at first
LARGEST = 64 * PIECE
QUICK = 0.1  # seconds; after a faster piece the next is twice as large: each piece has a cost on a link


class Pace:
    """The number of bytes to move between two checks for the end of the command."""

    def __init__(self) -> None:
        self.piece = PIECE
        self._since = time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        if now - self._since < QUICK:
            self.piece = min(2 * self.piece, LARGEST)
        self._since = now


class Part:
    """A file that is being written in a directory. A context manager: without `commit` nothing is left."""

    def __init__(self, folder: int, name: str, shown: str, keep: bool = True) -> None:
        """`keep`: the file that is there keeps its other names, its owner and its group."""
        self.folder, self.name, self.shown, self._keep = folder, name, shown, keep
        self._aside = ""
        self.fd = -1
        self._place = -1  # the existing file, open for writing; -1 if a new file takes its name
        self._spooled = False  # the new content is in another directory, as this one takes no new file
        try:
            self._open()
        except OSError as refused:
            if keep and refused.errno in IN_PLACE:
                self._place = self._existing()
            if self._place < 0:
                raise OSError(refused.errno, refused.strerror, shown) from None
            self.fd = spool()
            self._spooled = True

    def _open(self) -> None:
        try:
            if os.path.isdir("/proc/self/fd"):
                self.fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=self.folder)
        except OSError as refused:
            if refused.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
                raise
        if self.fd < 0:
            aside, flags = self._new(), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self.fd = os.open(aside, flags, 0o600, dir_fd=self.folder)
            self._aside = aside

    def fill(self, reader: Reader, tick: Callable[[int], None]) -> None:
        """Copy an open file of the tier into it, holes as holes."""
        at, end, pace = reader.offset, reader.offset + reader.length, Pace()
        if self._spooled:
            expect_room(self.fd, 0, reader.length, self.shown)
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

    def commit(self, mode: int, mtime: float, if_absent: bool = False, sure: bool = True) -> None:
        """Set mode and time and give the file its name. Raises OSError: EEXIST, EISDIR, EINVAL for another non-file.

        `sure`: it is on the disk then, also if it replaces nothing.
        """
        try:
            os.fchmod(self.fd, mode)
            os.utime(self.fd, (mtime, mtime))
            if sure:
                os.fsync(self.fd)
            if self._spooled:
                self._copy()
            else:
                self._name(if_absent, sure)
        except OSError as refused:
            raise OSError(refused.errno, refused.strerror, self.shown) from None

    def _name(self, if_absent: bool, sure: bool) -> None:
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
        if there and not stat.S_ISREG(there.st_mode) and not stat.S_ISLNK(there.st_mode):
            folder = stat.S_ISDIR(there.st_mode)
            raise error(errno.EISDIR, self.shown) if folder else OSError(errno.EINVAL, "is no file")
        if there and self._keep:
            self._place = self._existing()
            if self._place >= 0 and (there.st_nlink > 1 or not self._give(there)):
                self._copy()
                return
        if not sure:
            os.fsync(self.fd)
        if not self._aside:
            aside = self._new()
            os.link(own, aside, dst_dir_fd=self.folder, follow_symlinks=True)
            self._aside = aside
        try:
            os.rename(self._aside, self.name, src_dir_fd=self.folder, dst_dir_fd=self.folder)
            self._aside = ""
        except OSError as refused:
            if refused.errno != errno.EBUSY or self._place < 0:
                raise
            self._copy()  # it is a mount point

    def _there(self) -> os.stat_result | None:
        try:
            return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _existing(self) -> int:
        """Open the file that is there for writing; return -1 if none is, or it is this user's and can't be written."""
        there = self._there()
        if not there or not stat.S_ISREG(there.st_mode):
            return -1
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            return os.open(self.name, flags, dir_fd=self.folder)
        except OSError as refused:
            if there.st_uid != os.geteuid():
                raise OSError(refused.errno, refused.strerror, self.shown) from None
            return -1

    def _give(self, there: os.stat_result) -> bool:
        """Give the new file the owner and the group of the other one; return False if this process may not."""
        made = os.fstat(self.fd)
        if (made.st_uid, made.st_gid) != (there.st_uid, there.st_gid):
            try:
                os.fchown(self.fd, there.st_uid, there.st_gid)
            except OSError:
                return False
        return True

    def _copy(self) -> None:
        """Copy the content into the file that is there, and keep it if that fails."""
        made = os.fstat(self.fd)
        reserve(self._place, made.st_size)
        whole = self._whole()
        aside, self._aside = self._aside, ""
        try:
            overwrite(self._place, self.fd)
            self._settle(stat.S_IMODE(made.st_mode), made.st_mtime)
        except OSError as refused:
            text = f"the whole content is in {whole}" if whole else "its content is incomplete"
            raise OSError(refused.errno, f"{refused.strerror}; {text}", self.shown) from None
        self._aside = aside
        if whole and not aside:
            os.unlink(whole)

    def _whole(self) -> str:
        """Return a name of the new content; "" if its filesystem gives it none."""
        if self._aside:
            return os.path.join(os.path.dirname(self.shown), self._aside)
        try:
            return keep(self.fd, self.name)
        except OSError:
            return ""

    def _settle(self, mode: int, mtime: float) -> None:
        try:
            os.fchmod(self._place, mode)
            os.utime(self._place, (mtime, mtime))
        except PermissionError:  # of another user, who lets this one write
            pass
        os.fsync(self._place)

    def _new(self) -> str:
        return f".quine-{os.urandom(8).hex()}.part"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)
        if self._place >= 0:
            os.close(self._place)
        if self._aside:
            try:
                os.unlink(self._aside, dir_fd=self.folder)
            except FileNotFoundError:
                pass
