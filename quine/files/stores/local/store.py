"""A files tier in a directory: `origin:` at the origin, `file://` on a mount that all hosts share.

Laws
1. No path leads out of the root (dirfd.py): symlinks, devices and sockets are refused, and not listed.
2. A file is written aside (temp.py), synced, and moved to its name in one step; then its directory is synced.
3. A root that does not exist yet reads as empty. The first write creates it with mode 0700.
4. A program that writes to a file in place, without the tier, bypasses these guarantees: readers see its writes. Only a
   file that is replaced whole is one version. A reader of a file that became shorter gets ESTALE.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

from quine.base import dirs
from quine.files import paths
from quine.files.api import Entry, Reader, Tier, Writer, check_range, error
from quine.files.room import Room
from quine.files.stores.local import dirfd, temp
from quine.files.stores.local.dirfd import TRIES, about
from quine.files.stores.local.io import LocalReader, Part, Preallocated, known, nanos, regular
from quine.files.stores.rename_rules import moves


class Local(Tier):
    def __init__(self, root: str, url: str = "") -> None:
        self.root = os.path.abspath(root)
        self.url = url or f"file://{self.root}"
        self._parts = temp.Parts()

    def url_of(self, path: str) -> str:
        return f"file://{self.root}/{path}" if path else f"file://{self.root}"

    def free(self) -> int | None:
        place = self.root
        while place:
            with contextlib.suppress(OSError):
                facts = os.statvfs(place)
                return facts.f_bavail * facts.f_frsize
            place = os.path.dirname(place) if place != "/" else ""
        return None

    def directory_here(self) -> str:
        return self.root

    # -- looking -----------------------------------------------------------------------------------

    def stat(self, path: str) -> Entry:
        with about(path):
            if not path:
                try:
                    with self._directory("") as directory:
                        return known("", os.fstat(directory))
                except FileNotFoundError:
                    return Entry("", "directory", mode=0o700)
            with self._place(path) as (directory, name):
                return known(path, dirfd.look(directory, name))

    def list(self, path: str) -> Iterator[Entry]:
        found: list[Entry] = []
        with about(path), contextlib.ExitStack() as stack:
            try:
                directory = stack.enter_context(self._directory(path))
            except FileNotFoundError:
                if path:
                    raise
                return iter(())
            try:
                listed = dirfd.readable(directory)
            except OSError as problem:
                raise problem if path else self._of_root(problem, path) from None
            stack.callback(os.close, listed)
            for each in stack.enter_context(os.scandir(listed)):
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    facts = each.stat(follow_symlinks=False)
                    kind = stat.S_IFMT(facts.st_mode)
                    if kind in (stat.S_IFREG, stat.S_IFDIR) and not paths.is_alias(each.name, temp.NAME):
                        found.append(known(paths.join(path, each.name), facts))
        # In one directory, paths sort as their names do.
        return iter(sorted(found, key=lambda entry: os.fsencode(entry.path)))

    def hidden(self, path: str) -> Iterator[str]:
        """Yield symlinks, devices, pipes and sockets; at the root also the directory of parts."""
        if not path:
            yield temp.NAME
        for above in (path, *(entry.path for entry in self.walk(path) if not entry.is_file)):
            with about(above), contextlib.suppress(FileNotFoundError), self._directory(above) as directory:
                odd = [
                    each.name
                    for each in dirfd.scan(directory)
                    if not each.is_dir(follow_symlinks=False) and not each.is_file(follow_symlinks=False)
                ]
                yield from (paths.join(above, name) for name in odd)

    def open(self, path: str, offset: int = 0, length: int | None = None) -> Reader:
        check_range(path, offset, length)
        with about(path):
            if not path:
                raise error(errno.EISDIR, path)
            with self._place(path) as (directory, name):
                regular(dirfd.look(directory, name), path)
                # Non-blocking: the name may be a pipe without a writer by now.
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(name, flags, dir_fd=directory)
            try:
                facts = os.fstat(fd)
                regular(facts, path)
                os.set_blocking(fd, True)
                return LocalReader(fd, known(path, facts), facts, offset, length)
            except BaseException:
                os.close(fd)
                raise

    # -- changing ----------------------------------------------------------------------------------

    def create(
        self,
        path: str,
        *,
        if_absent: bool = False,
        mode: int | None = None,
        mtime: float | None = None,
        size: int | None = None,
    ) -> Writer:
        with about(path):
            if not path:
                raise error(errno.EISDIR, path)
            with contextlib.suppress(FileNotFoundError), self._place(path) as (directory, name):
                regular(dirfd.look(directory, name), path)
                if if_absent:
                    raise error(errno.EEXIST, path)
            try:
                with self._directory("", make=True) as root:
                    part = self._parts.make(root, shared=mode is None)
            except OSError as problem:
                raise self._of_root(problem, path) from None
            return Part(path, part, mode, mtime, self._arrive(path, if_absent))

    def _arrive(self, path: str, if_absent: bool) -> Callable[[int, str], None]:
        return lambda directory, name: self._move(directory, name, path, if_absent)

    def reserve(self) -> Room:
        return Preallocated(self._nameless)

    def _nameless(self, path: str) -> int:
        """Return a descriptor of a file that ends with it, on the filesystem of the root."""
        try:
            with self._directory("", make=True) as root:
                directory, file, name = self._parts.make(root, shared=False)
        except OSError as problem:
            raise self._of_root(problem, path) from None
        try:
            os.unlink(name, dir_fd=directory)
        finally:
            os.close(directory)
        return file

    def mkdir(self, path: str, exist_ok: bool = False) -> None:
        with about(path):
            if not path:
                with self._directory("", make=True):
                    if not exist_ok:
                        raise error(errno.EEXIST, path)
                    return None
            for _ in range(TRIES):
                with (
                    contextlib.suppress(FileNotFoundError),
                    self._place(path, make=True) as (directory, name),
                ):
                    try:
                        os.mkdir(name, dir_fd=directory)
                    except FileExistsError:
                        if exist_ok and stat.S_ISDIR(dirfd.look(directory, name).st_mode):
                            return None
                        raise
                    return dirfd.sync(directory)
            raise error(errno.ENOENT, path)

    def remove(self, path: str, recursive: bool = False) -> None:
        with about(path):
            if not path:
                raise error(errno.EPERM, path)
            with self._place(path) as (directory, name):
                if not stat.S_ISDIR(dirfd.look(directory, name).st_mode):
                    os.unlink(name, dir_fd=directory)
                else:
                    if recursive:
                        dirfd.empty(directory, name)
                    _remove_directory(directory, name)
                dirfd.sync(directory)

    def rename(self, source: str, target: str, if_absent: bool = False) -> None:
        if not source:
            raise error(errno.EINVAL, source)
        with contextlib.ExitStack() as stack:
            with about(source):
                origin, old = stack.enter_context(self._place(source))
                folder = stat.S_ISDIR(dirfd.look(origin, old).st_mode)
            if not moves(source, folder, target, if_absent):
                return
            with about(target):
                if source.startswith(target + "/") and not (if_absent or folder):
                    raise error(errno.EISDIR, target)  # the kernel would answer ENOTEMPTY
                self._move(origin, old, target, if_absent, source)

    def setattr(self, path: str, *, mode: int | None = None, mtime: float | None = None) -> Entry:
        with about(path):
            if not path:
                raise error(errno.EISDIR, path)
            with self._place(path) as (directory, name):
                fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                regular(os.fstat(fd), path)
                place = f"/proc/self/fd/{fd}"  # also works for a file without read and write permission
                if mode is not None:
                    os.chmod(place, mode & 0o777)
                if mtime is not None:
                    os.utime(place, ns=(nanos(mtime), nanos(mtime)))
                return known(path, os.fstat(fd))
            finally:
                os.close(fd)

    def _aside(self) -> int:
        with self._directory("", make=True) as root:
            return self._parts.directory(root)

    def _move(self, origin: int, old: str, target: str, if_absent: bool, source: str = "") -> None:
        """Move `old` in `origin` to `target`, create the directories above, then sync both directories."""
        for _ in range(TRIES):
            try:
                with self._place(target, make=True) as (directory, new):
                    if if_absent:
                        dirfd.move_new(origin, old, directory, new, self._aside if source else None)
                    else:
                        with contextlib.suppress(FileNotFoundError):
                            dirfd.look(directory, new)
                        os.rename(old, new, src_dir_fd=origin, dst_dir_fd=directory)
                    dirfd.sync(directory)
                if source:
                    dirfd.sync(origin)
                return
            except FileNotFoundError:  # the target's directory or the source was removed
                with about(source or target):
                    dirfd.look(origin, old)
        raise error(errno.ENOENT, target)

    # -- places ------------------------------------------------------------------------------------

    def _of_root(self, problem: OSError, path: str) -> OSError:
        """Return an error about the root directory instead of the path."""
        why = (problem.strerror or "").lower()
        with contextlib.suppress(OSError):
            facts = os.stat(self.root)
            if problem.errno == errno.EACCES and facts.st_uid != os.geteuid():
                mode, owner = stat.S_IMODE(facts.st_mode), facts.st_uid
                why += f"; its mode is {mode:o}, and its owner, user {owner}, can chmod it"
                why += '; a host with fs = "relay" needs no access'
        return OSError(problem.errno, f"{self.root}: {why}", path)

    def open_root(self, make: bool) -> int:
        """Return a descriptor of the root, which is made if need be."""
        if make and not os.path.isdir(self.root):
            dirs.make(self.root)
        return dirfd.top(self.root)

    def _entered(self, make: bool) -> int:
        """Return a descriptor of the root. Without the right to look into it, each name there would be denied."""
        root = self.open_root(make)
        try:
            os.stat(".", dir_fd=root)
        except BaseException:
            os.close(root)
            raise
        return root

    @contextlib.contextmanager
    def _directory(self, path: str, make: bool = False) -> Iterator[int]:
        within = path.split("/")
        if ".." in within or any(paths.is_alias(each, temp.NAME) for each in within):
            raise PermissionError(errno.EPERM, "is a name reserved by the files tier", path)
        try:
            root = self._entered(make)
        except FileNotFoundError:
            raise
        except OSError as problem:
            raise self._of_root(problem, path) from None
        try:
            directory = dirfd.directory(root, path, make)
        finally:
            os.close(root)
        try:
            yield directory
        finally:
            os.close(directory)

    @contextlib.contextmanager
    def _place(self, path: str, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield (descriptor of the directory, name in it) of a path that is not the root."""
        name = paths.name(path)
        if name == ".." or paths.is_alias(name, temp.NAME):
            raise PermissionError(errno.EPERM, "is a name reserved by the files tier", path)
        with self._directory(paths.parent(path), make) as directory:
            yield directory, name


def _remove_directory(directory: int, name: str) -> None:
    """Remove an empty directory. A tier with its root there may have left its directory of parts."""
    try:
        os.rmdir(name, dir_fd=directory)
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        with contextlib.suppress(OSError), dirfd.within(directory, name) as below:
            os.rmdir(temp.NAME, dir_fd=below)
        os.rmdir(name, dir_fd=directory)
