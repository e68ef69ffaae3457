"""Directories below a root, by descriptors: no symlink is followed, so nothing leads out, whoever swaps what meanwhile.

Laws
1. Every name is looked up alone, relative to the descriptor of the directory that holds it, and never followed. A path
   that was checked and then opened could have become another one in between.
2. What is no regular file and no directory is refused with EPERM, wherever in a path it stands.
3. Descriptors are O_PATH: a directory that may only be searched is enough to go through it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator

MOVED = "moved-"  # begins the name of what is looked at aside
TRIES = 100  # how often a directory may be removed under who puts something into it
_LINK = "is a symlink, and none is followed in the files tier"
_OTHER = "is neither file nor directory"
_WALK = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC


@contextlib.contextmanager
def about(path: str) -> Iterator[None]:
    """Errors of the system name the tier's path, not ours."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:  # it was a file when it was looked at
            raise PermissionError(errno.EPERM, _LINK, path) from None
        if error.filename == path or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, path) from None


def look(directory: int, name: str) -> os.stat_result:
    """What a name is. ENOENT; EPERM for what is neither a file nor a directory."""
    facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
    if stat.S_ISREG(facts.st_mode) or stat.S_ISDIR(facts.st_mode):
        return facts
    raise PermissionError(errno.EPERM, _LINK if stat.S_ISLNK(facts.st_mode) else _OTHER, name)


def directory(root: int, path: str, make: bool = False) -> int:
    """A descriptor of a directory below `root`; `make`: with those above it, where they are missing.

    Raises OSError: ENOENT (with `make` only where one was removed meanwhile), ENOTDIR, EPERM for a symlink.
    """
    return descend(root, path, lambda fd, name: _step(fd, name, make))


def descend(root: int, path: str, step: Callable[[int, str], int]) -> int:
    """A descriptor of the directory that a path leads to, whose names are opened by `step`, each in the one above."""
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
            continue  # it was something else a moment ago
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=fd)
            sync(fd)


@contextlib.contextmanager
def within(root: int, path: str) -> Iterator[int]:
    """The descriptor of a directory below `root`, for a while."""
    fd = directory(root, path)
    try:
        yield fd
    finally:
        os.close(fd)


def empty(root: int, name: str, ours: bool = False) -> None:
    """Remove all that is in a directory, links themselves too; what others put there meanwhile may stay.

    `ours`: also what its modes protect. No recursion: a path may have two thousand names.
    """
    todo, order = [name], []
    while todo:
        path = todo.pop()
        order.append(path)
        with contextlib.suppress(FileNotFoundError), within(root, path) as below:
            if ours:
                os.chmod(f"/proc/self/fd/{below}", 0o700)
            listed = readable(below)
            try:
                with os.scandir(listed) as found:
                    inside = [(each.name, each.is_dir(follow_symlinks=False)) for each in found]
            finally:
                os.close(listed)
            for each, is_directory in inside:
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
    """The descriptor of a root, which its owner may have made a symlink."""
    return os.open(path, _WALK)


def readable(fd: int) -> int:
    """The same directory, to be listed or synced."""
    return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)


def sync(fd: int) -> None:
    """What was made, moved and removed in a directory is on the disk."""
    again = readable(fd)
    try:
        os.fsync(again)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some mounts by FUSE know no such thing
            raise
    finally:
        os.close(again)


def move_new(source: int, name: str, target: int, new: str, aside: Callable[[], int] | None = None) -> None:
    """Rename where nothing stands, decided by the filesystem. FileExistsError; FileNotFoundError where it is gone.

    `aside` opens a directory of the same filesystem in which nobody looks; without it nobody else knows `name`.
    """
    if _renamed_new(source, name, target, new):
        return
    if stat.S_ISDIR(look(source, name).st_mode):
        # Whoever makes it has it, and an empty directory is replaced in one step.
        os.mkdir(new, dir_fd=target)
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
        return
    file = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    try:
        facts = os.fstat(file)
        # By descriptor: what is linked is what was looked at, whatever the name means by now.
        os.link(f"/proc/self/fd/{file}", new, dst_dir_fd=target, follow_symlinks=True)
    except FileExistsError:
        # An answer of NFS that was lost: the same request again is told that it exists.
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
    except FileNotFoundError:  # another one has moved it: this link is one too many
        with contextlib.suppress(FileNotFoundError):
            _remove_link(target, new, facts, place)
        raise
    finally:
        os.close(place)


def _renamed_new(source: int, name: str, target: int, new: str) -> bool:
    """By the kernel in one step; False where the filesystem cannot. Raises OSError."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    no_replace = 1
    if rename(source, os.fsencode(name), target, os.fsencode(new), no_replace) == 0:
        return True
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):  # NFS, and some mounts by FUSE
        raise OSError(number, os.strerror(number), new)
    return False


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _remove_link(directory: int, name: str, facts: os.stat_result, aside: int) -> None:
    """Remove a name if it still is that file, of which there is another link. FileNotFoundError.

    A check and an unlink would remove what somebody has put there in between: it is moved away, and looked at then.
    """
    kept = f"{MOVED}{os.urandom(8).hex()}"
    os.rename(name, kept, src_dir_fd=directory, dst_dir_fd=aside)
    found = os.stat(kept, dir_fd=aside, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode):
        os.rename(kept, name, src_dir_fd=aside, dst_dir_fd=directory)
        return
    if not _same(found, facts):
        with contextlib.suppress(FileExistsError):  # replaced once more: that one is the newer
            os.link(kept, name, src_dir_fd=aside, dst_dir_fd=directory, follow_symlinks=False)
    os.unlink(kept, dir_fd=aside)
