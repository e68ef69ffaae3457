"""Directories below a root, by descriptor: no symlink is followed, so no path leads out, even if names are swapped.

Laws
1. Every name is looked up alone, relative to the descriptor of its directory, and never followed. A whole path that is
   checked and then opened could mean another file by then.
2. Anything but a regular file or a directory is refused with EPERM, at every place of a path.
3. Descriptors are O_PATH: search permission on a directory is enough to pass through it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

MOVED = "moved-"  # prefix of the name of a file that was moved aside for a check
TRIES = 100  # tries of an operation whose target directory is removed meanwhile
_LINK = "is a symlink; the files tier does not follow symlinks"
_OTHER = "is neither file nor directory"
_WALK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# Flags to open a directory that is listed, too. Unlike _WALK they need read permission.
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """Make system errors name `path`, the tier's, in place of the path on disk."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:  # it was a file when it was looked at
            raise PermissionError(errno.EPERM, _LINK, path) from None
        if error.filename == path or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from None


def look(directory: int, name: str) -> os.stat_result:
    """Return the lstat of a name in a directory. Raises ENOENT; EPERM for anything but a regular file or directory."""
    facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode):
        return facts
    raise PermissionError(errno.EPERM, _LINK if stat.S_ISLNK(facts.st_mode) else _OTHER, name)


def directory(root: int, path: str, make: bool = False) -> int:
    """Return a descriptor of a directory below `root`. `make`: create it and its missing parents.

    Raises OSError: ENOENT (with `make` only if one was removed meanwhile), ENOTDIR, EPERM for a symlink.
    """
    return descend(root, path, lambda fd, name: _step(fd, name, make))


def descend(root: int, path: str, step: Callable[[int, str], int]) -> int:
    """Return a descriptor of the directory at `path`. `step` opens each name of the path in the directory above it."""
    fd = os.dup(root)
    for name in path.split("/") if path else ():
        try:
            below = step(fd, name)
        finally:
            os.close(fd)
        fd = below
    return fd


def _step(fd: int, name: str, make: bool) -> int:
    while True:
        try:
            return os.open(name, _WALK | os.O_NOFOLLOW, dir_fd=fd)
        except FileNotFoundError:
            if not make:
                raise
        except NotADirectoryError:
            if stat.S_ISREG(look(fd, name).st_mode):
                raise
            continue  # another process replaced it between open and look
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=fd)
            sync(fd)


@contextlib.contextmanager
def within(root: int, path: str) -> Iterator[int]:
    """Open a directory below `root` for the duration of a `with` block."""
    fd = directory(root, path)
    try:
        yield fd
    finally:
        os.close(fd)


def empty(root: int, name: str, ours: bool = False) -> None:
    """Remove the content of a directory; of a link, the link itself. Entries that are added meanwhile may stay.

    `ours`: set each directory to mode 0700 first. There is no recursion: a path may have two thousand names.
    """
    todo, order = [name], []
    while todo:
        path = todo.pop()
        order.append(path)
        with contextlib.suppress(FileNotFoundError), within(root, path) as below:
            if ours:
                os.chmod(f"/proc/self/fd/{below}", 0o700)
            for each, is_directory in [(one.name, one.is_dir(follow_symlinks=False)) for one in scan(below)]:
                if is_directory:
                    todo.append(f"{path}/{each}")
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(each, dir_fd=below)
    for path in reversed(order[1:]):
        above, _, last = path.rpartition("/")
        with contextlib.suppress(FileNotFoundError), within(root, above) as fd:
            os.rmdir(last, dir_fd=fd)


def top(path: str) -> int:
    """Return a descriptor of a root. The root itself may be a symlink."""
    return os.open(path, _WALK)


def readable(fd: int) -> int:
    """Open the directory of an O_PATH descriptor for listing or fsync."""
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)


def scan(fd: int) -> Iterator[os.DirEntry[str]]:
    """Yield what is in the directory of an O_PATH descriptor. An entry is to be asked while the scan is open."""
    listed = readable(fd)
    try:
        with os.scandir(listed) as found:
            yield from found
    finally:
        os.close(listed)


def sync(fd: int) -> None:
    """Flush a directory to disk: names that were created, moved or removed in it."""
    again = readable(fd)
    try:
        os.fsync(again)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some FUSE mounts do not support it
            raise
    finally:
        os.close(again)


def move_new(source: int, name: str, target: int, new: str, aside: Callable[[], int] | None = None) -> None:
    """Rename `name` to `new` unless `new` exists; the filesystem decides. FileExistsError, FileNotFoundError.

    `aside` opens a hidden directory of the same filesystem. Without it, only the caller may know `name`.
    """
    if _renamed_new(source, name, target, new):
        return
    if stat.S_ISDIR(look(source, name).st_mode):
        # mkdir decides between callers, and rename replaces an empty directory in one step.
        os.mkdir(new, dir_fd=target)
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
        return
    file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    try:
        facts = os.fstat(file)
        # By descriptor: this links the checked file even if the name was replaced since.
        os.link(f"/proc/self/fd/{file}", new, dst_dir_fd=target, follow_symlinks=True)
    except FileExistsError:
        # NFS repeats a request if the answer was lost, and then gets EEXIST for its own link.
        if not _same(facts, look(target, new)):
            raise
    finally:
        os.close(file)
    if aside is None:
        os.unlink(name, dir_fd=source)
        return
    place = aside()
    try:
        _remove_link(source, name, facts, place)
    except FileNotFoundError:  # another process has moved the file: undo the link
        with contextlib.suppress(FileNotFoundError):
            _remove_link(target, new, facts, place)
        raise
    finally:
        os.close(place)


def _renamed_new(source: int, name: str, target: int, new: str) -> bool:
    """Rename by renameat2 in one step; False if the filesystem does not support it. Raises OSError."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    no_replace = 1
    if rename(source, os.fsencode(name), target, os.fsencode(new), no_replace) == 0:
        return True
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # NFS, and some FUSE mounts
        raise OSError(number, os.strerror(number), new)
    return False


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _remove_link(directory: int, name: str, facts: os.stat_result, aside: int) -> None:
    """Remove a name if it still is the file of `facts`, which has another link. Raises FileNotFoundError.

    A check and then an unlink could remove a file that was put there in between. So the name is moved to `aside` first
    and checked there.
    """
    kept = f"{MOVED}{os.urandom(8).hex()}"
    os.rename(name, kept, src_dir_fd=directory, dst_dir_fd=aside)
    found = os.stat(kept, dir_fd=aside, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        os.rename(kept, name, src_dir_fd=aside, dst_dir_fd=directory)
        return
    if not _same(found, facts):
        with contextlib.suppress(FileExistsError):  # replaced once more: the file there now is newer
            os.link(kept, name, src_dir_fd=aside, dst_dir_fd=directory, follow_symlinks=False)
    os.unlink(kept, dir_fd=aside)
