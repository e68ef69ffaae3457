"""Renames into a directory: through no link, with a way back, and a way on for whoever comes after a crash.

Laws
1. A name is reached from the base, one directory below the other, each opened without following a link.
2. With a journal, what was begun is undone by who began it, or finished by who finds it; what nobody holds is removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from quine.files.stores.local import dirfd
from quine.staging.scan import ASIDE

NO_LINKS = (
    errno.EPERM,
    errno.EACCES,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
)  # why a file is not linked
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Conflict(OSError):
    """Something else stands where it should go."""


class Met(Exception):
    """Somebody has made this directory meanwhile; `done` renames were made before, and stay unless they are undone."""

    def __init__(self, name: bytes, done: int) -> None:
        super().__init__(name)
        self.name = name
        self.done = done


class Parents:
    """The directories that names stand in, each reached from the base through no link.

    One is open at a time: a tree may have more of them than a process may have descriptors.
    """

    def __init__(self, base: int) -> None:
        self._base = base
        self._path = b""
        self._fd = os.dup(base)

    def of(self, name: bytes) -> tuple[int, bytes]:
        """The descriptor of its directory, good until the next call, and its last name. Raises OSError, Conflict."""
        above, _, last = name.rpartition(b"/")
        if above != self._path:
            fd = self._folder(above)
            os.close(self._fd)
            self._path, self._fd = above, fd
        return self._fd, last

    def _folder(self, path: bytes) -> int:
        fd = os.dup(self._base)
        names = path.split(b"/") if path else []
        for count, name in enumerate(names, 1):
            try:
                below = os.open(name, FOLDER, dir_fd=fd)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    what = "is no directory, or a link to one"
                    raise Conflict(error.errno, what, b"/".join(names[:count])) from None
                raise
            finally:
                os.close(fd)
            fd = below
        return fd

    def __enter__(self) -> Parents:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)


def move(
    new: int, moves: list[tuple[bytes, bytes]], parents: Parents, top: int, folders: frozenset[bytes]
) -> None:
    """From `new` to their names; `folders` are the spots of directories, which replace nothing. OSError, Met."""
    done: list[tuple[bytes, bytes]] = []
    try:
        for spot, name in moves:
            folder, last = parents.of(name)
            if spot in folders:
                # An empty one would be replaced, and whoever has just made it would be putting something into it.
                try:
                    dirfd.move_new(new, os.fsdecode(spot), folder, os.fsdecode(last))
                except OSError as error:
                    if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                        raise
                    if not stat.S_ISDIR(os.lstat(last, dir_fd=folder).st_mode):
                        raise Conflict(errno.EEXIST, "no directory stands where it should go", name) from None
                    raise Met(name, len(done)) from None
            else:
                _replace(spot, last, new, folder, top)
            done.append((spot, name))
    except (OSError, Met):
        if top >= 0:
            _undo(new, done, parents, top)
        raise


def _replace(spot: bytes, last: bytes, new: int, folder: int, top: int) -> None:
    """Take the place of what stands there, of which there is a link in `old`, or which is moved there now."""
    moved = False
    if top >= 0 and not _is_there(b"old/" + spot, top):
        with contextlib.suppress(FileNotFoundError):
            os.rename(last, b"old/" + spot, src_dir_fd=folder, dst_dir_fd=top)
            moved = True
    try:
        os.rename(spot, last, src_dir_fd=new, dst_dir_fd=folder)
    except OSError:
        if moved:
            os.rename(b"old/" + spot, last, src_dir_fd=top, dst_dir_fd=folder)
        raise


def _is_there(name: bytes, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _undo(new: int, done: list[tuple[bytes, bytes]], parents: Parents, top: int) -> None:
    """As it was; what was brought is in `new` again, for who will try otherwise."""
    for spot, name in reversed(done):
        folder, last = parents.of(name)
        if not _is_there(b"old/" + spot, top):
            os.rename(last, spot, src_dir_fd=folder, dst_dir_fd=new)
            continue
        try:
            os.link(last, spot, src_dir_fd=folder, dst_dir_fd=new, follow_symlinks=False)
        except OSError:
            os.rename(last, spot, src_dir_fd=folder, dst_dir_fd=new)
        os.rename(b"old/" + spot, last, src_dir_fd=top, dst_dir_fd=folder)
    os.unlink("journal", dir_fd=top)


def keep_old(top: int, moves: list[tuple[bytes, bytes]], parents: Parents, folders: frozenset[bytes]) -> None:
    """A way back, in `old`, and the journal, synced; whatever would fail shall fail now.

    Where a file cannot be linked (another user's with protected_hardlinks, CIFS, exFAT) it is moved away when its
    turn comes, and its name means nothing for that moment.
    """
    device = os.fstat(top).st_dev
    for spot, name in moves:
        folder, last = parents.of(name)
        if os.fstat(folder).st_dev != device:
            raise OSError(errno.EXDEV, "is on another filesystem than the directory that it goes to", name)
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        if spot in folders:
            continue
        try:
            os.link(last, b"old/" + spot, src_dir_fd=folder, dst_dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as refused:
            if refused.errno not in NO_LINKS:
                raise
    text = b"".join(spot + b"\0" + name + b"\0" for spot, name in moves)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open("journal.new", flags, 0o600, dir_fd=top), "wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename("journal.new", "journal", src_dir_fd=top, dst_dir_fd=top)
    dirfd.sync(top)


def recover(base: bytes) -> None:
    """Finish, or clear away, what those who were killed have left in a directory."""
    with contextlib.suppress(OSError):
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            left = [name for name in os.listdir(base) if name.startswith(ASIDE)]
            if left:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for name in left:
                with contextlib.suppress(OSError):
                    _recover(name, fd)
        finally:
            os.close(fd)


def _recover(name: bytes, base: int) -> None:
    top = os.open(name, FOLDER, dir_fd=base)
    try:
        if os.fstat(top).st_uid != os.getuid():
            return
        fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError), Parents(base) as parents:
            fd = os.open("journal", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=top)
            with open(fd, "rb") as file:
                words = file.read().split(b"\0")[:-1]
            if not all(map(bytes.isdigit, words[::2])) or not all(map(_stays, words[1::2])):
                return  # not ours: an archive that was unpacked here may hold anything
            new = os.open("new", FOLDER, dir_fd=top)
            try:
                for spot, path in zip(words[::2], words[1::2], strict=True):
                    folder, last = parents.of(path)
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(spot, last, src_dir_fd=new, dst_dir_fd=folder)
            finally:
                os.close(new)
        remove(name, base)
    finally:
        os.close(top)


def _stays(path: bytes) -> bool:
    return {b"", b".", b".."}.isdisjoint(path.split(b"/"))


def remove(name: bytes, folder: int) -> None:
    """A directory and all that is in it; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        dirfd.empty(folder, os.fsdecode(name), ours=True)
        os.rmdir(name, dir_fd=folder)
