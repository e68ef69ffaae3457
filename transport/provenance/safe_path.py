"""Paths of what quine obeys or keeps: opened by descriptor, and refused where another user may have put it there.

Sources: safe_path() of OpenSSH's misc.c (StrictModes), Debian's rule for the user's private group.

Laws
1. A name in the current directory (`found`) must not be a link. A path from the home, an option or the inventory
   (`named`) may contain links, if only root and the user can change the links and directories on the way. A directory
   with the sticky bit is safe: others cannot replace the user's files there.
2. The file is the user's or root's, and no other user can write to it. A write bit for the user's private group,
   which umask 002 is made for, is allowed.
3. The descriptor that was judged is the one that is used: a path that is checked and then opened may mean another file.
4. A directory that is missing is made with mode 0700, and so are those above it, whatever the umask is. One that is
   there keeps its mode, and is judged.
5. `Unsafe` names the path that is wrong, and a command that cures it.
6. Names that quine keeps in a directory of the user's (`below`, `inside`) are no links at any level. They belong to the
   user, to root or to the owner of the directory, who is another one only where the user has named it, to read it.
"""

from __future__ import annotations

import errno
import os
import stat

LINKS = 40  # of one path, as the kernel allows
# O_NONBLOCK: opening a pipe without a writer would block. O_NOCTTY: a terminal would become the controlling one.
FILE = os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WAY = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Unsafe(ValueError):
    """Somebody else may have put it there, or can change it. `hint` is the cure."""

    def __init__(self, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.hint = hint


def found(name: str, flags: int = FILE, directory: int | None = None) -> int:
    """Open `name` in the current directory, or in that of a descriptor. Raises Unsafe; OSError as open(2).

    `flags` is FILE or FOLDER: nothing else is opened.
    """
    try:
        fd = os.open(name, flags, dir_fd=directory)
    except OSError:  # of a link ELOOP, and ENOTDIR with O_DIRECTORY
        refuse_link(name, directory)
        raise
    return _judged(fd, name, flags)


def below(top: int, names: list[str], shown: str, flags: int = FILE, make: bool = False) -> int:
    """Open what quine keeps in the directory of a descriptor; a missing directory is made with `make`.

    `shown` is the path of that directory, for messages. Raises Unsafe; OSError as open(2).
    """
    facts, fd = os.fstat(top), os.dup(top)
    try:
        for at, name in enumerate(names):
            shown = f"{shown}/{name}"
            last = at == len(names) - 1
            if make:
                try:
                    os.mkdir(name, 0o700, dir_fd=fd)
                except FileExistsError:
                    pass
            kind = flags if last else FOLDER
            inner = os.open(name, kind, dir_fd=fd)
            os.close(fd)
            fd = inner
            _judge_inside(fd, facts, shown, kind)
    except OSError as error:
        is_link = stat.S_ISLNK(_mode(name, fd))
        os.close(fd)
        if is_link:
            raise Unsafe(f"{shown} is a symlink, which is not followed here", f"rm {shown}") from None
        raise OSError(error.errno, error.strerror, shown) from None
    except BaseException:
        os.close(fd)
        raise
    return fd


def _mode(name: str, directory: int) -> int:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _judge_inside(fd: int, top: os.stat_result, path: str, flags: int) -> None:
    facts = os.fstat(fd)
    if not flags & os.O_DIRECTORY and not stat.S_ISREG(facts.st_mode):
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise Unsafe(f"{path} is no regular file", f"look at it, then rm {path}")
    if facts.st_uid != top.st_uid:
        judge_owner(facts, path)
    if flags & os.O_DIRECTORY and others_write(facts) and not others_write(top):
        raise Unsafe(_permissions(facts, path), f"see what is in it, then: chmod go-w {path}")


def inside(path: str, names: int, flags: int = FILE, make: bool = False) -> int:
    """Open a path whose last `names` names are quine's own, as `below` does.

    Raises OSError, also for what is unsafe.
    """
    folder, own = path, list[str]()
    for _ in range(names):
        folder, name = os.path.split(folder)
        own.insert(0, name)
    top = os.open(folder or ".", FOLDER & ~os.O_NOFOLLOW)
    try:
        return below(top, own, folder or ".", flags, make)
    except Unsafe as unsafe:
        why = str(unsafe).removeprefix(f"{path} is ")
        file = "no regular file but " if why.startswith("a symlink") and not flags & os.O_DIRECTORY else ""
        raise OSError(errno.EINVAL, file + why, path) from None
    finally:
        os.close(top)


def refuse_link(name: str, directory: int | None = None) -> None:
    """Raise Unsafe if `name` is a link. A name that does not exist is none."""
    try:
        facts = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except OSError:
        return
    if stat.S_ISLNK(facts.st_mode):
        raise Unsafe(f"{name} is a symlink, which is not followed here", f"rm {name}")


def require_folder(name: str) -> None:
    """Raise Unsafe if `name` exists and is no directory: a link, a pipe, a file."""
    refuse_link(name)
    if os.path.lexists(name) and not os.path.isdir(name):
        raise Unsafe(f"{name} is no directory", f"look at it, then rm {name}")


def named(path: str, flags: int = FILE) -> int:
    """Open a path from the home, an option or the inventory. Raises Unsafe; OSError as open(2)."""
    todo = _parts(path if path.startswith("/") else os.path.join(os.getcwd(), path))
    fd, shown, links = os.open("/", _WAY), "/", 0
    try:
        while True:
            facts = os.fstat(fd)
            _judge_way(facts, shown)
            name = todo.pop() if todo else "."
            if not todo and _of_process(facts):  # /dev/fd/N: the caller has opened it
                return os.open(name, flags & ~os.O_NOFOLLOW, dir_fd=fd)
            inner = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISLNK(inner.st_mode):
                judge_owner(inner, os.path.join(shown, name))
                links += 1
                if links > LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                target = os.readlink(name, dir_fd=fd)
                todo += _parts(target)
                if not target.startswith("/"):
                    continue
                name, shown = "/", "/"
            elif not todo:
                return _judged(os.open(name, flags, dir_fd=fd), path, flags)
            else:
                shown = os.path.join(shown, name)
            below = os.open(name, _WAY, dir_fd=fd)
            os.close(fd)
            fd = below
    finally:
        os.close(fd)


def made(path: str) -> str:
    """Return the path of a directory of the user, which is made if it is missing. Raises Unsafe or OSError.

    No other user can change it or replace it, so what is below it is used by its path.
    """
    make(path)
    os.close(named(path, FOLDER))
    return path


def make(path: str) -> None:
    """Create a directory and those that are missing above it. Raises OSError."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above and above != path:
        make(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # two processes of a tree may create it at the same time
    # One that is gone again by now was removed by the last process that shared it: its next use says so.
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise


def _parts(path: str) -> list[str]:
    """Return the names of a path, the last one first."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _of_process(facts: os.stat_result) -> bool:
    """Return whether it is a directory of /proc: a name in /proc/PID/fd is an open file."""
    try:
        return facts.st_dev == os.stat("/proc/self").st_dev
    except OSError:
        return False


def _judged(fd: int, path: str, flags: int) -> int:
    """Return the descriptor; close it if what it is of cannot be trusted. Raises Unsafe."""
    try:
        facts = os.fstat(fd)
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(facts.st_mode):
            raise Unsafe(f"{path} is no regular file", f"look at it, then rm {path}")
        judge(facts, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def judge(facts: os.stat_result, path: str) -> None:
    """Raise Unsafe if other users than this one and root own the file or directory, or can write to it."""
    judge_owner(facts, path)
    if others_write(facts):
        raise Unsafe(_permissions(facts, path), f"see what is in it, then: chmod go-w {path}")


def _permissions(facts: os.stat_result, path: str) -> str:
    return f"bad permissions of {path}: others can write it (mode {facts.st_mode & 0o7777:04o})"


def judge_owner(facts: os.stat_result, path: str) -> None:
    """Raise Unsafe if the file or directory is another user's than this one's and root's."""
    root = os.stat("/").st_uid  # not 0 in a user namespace that maps no root
    if facts.st_uid not in (0, os.geteuid(), root):
        detail = f"bad owner of {path}: user id {facts.st_uid}, neither root nor you"
        raise Unsafe(detail, f"see who wrote it, then: chown {os.geteuid()} {path}")


def _judge_way(facts: os.stat_result, path: str) -> None:
    judge_owner(facts, path)
    if not facts.st_mode & stat.S_ISVTX and others_write(facts):
        raise Unsafe(_permissions(facts, path), f"chmod go-w {path}")


def others_write(facts: os.stat_result) -> bool:
    return bool(facts.st_mode & 0o002) or bool(facts.st_mode & 0o020 and not _is_private(facts.st_gid))


def _is_private(group: int) -> bool:
    """Return whether the user is the only member of a group that has his name, or of root's."""
    import grp
    import pwd

    try:
        entry = grp.getgrgid(group)
    except KeyError:
        return False
    try:
        user = pwd.getpwuid(os.geteuid())
    except KeyError:  # a container with another uid, as a rule in the group of root
        return group == 0 and not entry.gr_mem
    private = group == 0 or (group == user.pw_gid and entry.gr_name == user.pw_name)
    return private and set(entry.gr_mem) <= {user.pw_name, "root"}
