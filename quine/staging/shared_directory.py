"""A directory of a host in which jobs of a batch are: which one it is, turns in it, and the removal of names from it.

Laws
1. Login nodes share a home, and one host may have two names in an inventory. So a directory has an identity, the same
   under all its names: random bytes in the file PLACE, made whole by the first job of a batch with results there. Marks
   of the directory follow them, so a copy of that file counts as none, and is made anew: the inode of the directory,
   which is the same on all clients of NFS; and the boot, which the copy of a whole machine does not have, for a file
   system of this machine. Others of its clients, which read the first mark alone, go by what that machine has made.
2. The lock of a directory is that of PLACE: a lock on a regular file holds for all machines that have the file, while
   NFS keeps one on a directory to a single machine. Without PLACE it is a file of the user's cache, by the inode.
3. A wait for one holder of that lock has an end: a process that was stopped would hold up all others. The error names
   its pid. Many that take turns are waited for.
4. Nothing outside of the directory is removed, and PLACE only as the last name, while no process has its lock.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from quine.base.errors import complain, say
from quine.staging.content import error_text
from quine.staging.scan import IDENTITY, PLACE, is_identity, key_of
from quine.staging.store import COMMIT, PATIENCE, lock, remove_lock
from transport.address import boot_id
from transport.file_systems import is_local, kinds_of
from transport.text import harmless

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.files.exclusions import Places
    from quine.staging.store import Objects

LONGEST = 5 * PATIENCE  # seconds of a wait for the renames of one other job
RANDOM, MARK = 16, 8  # digits of an identity: random ones, and two marks
STEADY = {"nfs", "nfs4", "lustre", "gpfs", "ceph", "beegfs"}  # a directory has one inode on all machines


class Occupied(OSError):
    """Another job has the directory for too long: `holder` is its pid and machine. `cure` is the hint."""

    def __init__(self, here: str, holder: str, seconds: float) -> None:
        what = f"another job{_named(holder)} has been laying out its files there for {seconds:.0f} s"
        super().__init__(errno.EBUSY, what, here)
        end = f"if it is stopped, end it (kill {holder.partition(' ')[0]}), or " if holder else ""
        self.cure = f"{end}choose another directory with --cwd"


def _named(holder: str) -> str:
    return f" (pid {holder})" if holder else ""


def identity() -> str:
    """Return the identity of the current directory, which is made if it has none; "" if it cannot have one."""
    for _ in range(3):
        with contextlib.suppress(OSError):
            return _identity()
        with contextlib.suppress(OSError):
            _make()
    return ""


def _identity() -> str:
    """Return the identity. "" for a file of another user, or one that quine has not made. Raises OSError.

    A copy is removed, and is a FileNotFoundError.
    """
    fd = os.open(PLACE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        facts = os.fstat(fd)
        found = _word(fd)
    finally:
        os.close(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_uid != os.geteuid() or not is_identity(found):
        return ""
    if not _is_of_here(found):
        remove_lock(PLACE, lambda fd: _is_of_here(_word(fd)))
        raise FileNotFoundError(errno.ENOENT, "it came as a copy", PLACE)
    return found


def _word(fd: int) -> str:
    return os.pread(fd, IDENTITY, 0).decode("ascii", "replace")


def _is_of_here(word: str) -> bool:
    """Return whether an identity has the marks of the current directory, as far as its file system has steady ones."""
    is_own = is_local([os.getcwd()])
    if not is_own and kinds_of(os.stat(".").st_dev).isdisjoint(STEADY):
        return True
    count = IDENTITY if is_own else RANDOM + MARK
    return word[:count] == _marked(word[:RANDOM])[:count]


def _marked(word: str) -> str:
    """Return a whole identity: with the mark of this directory, and that of its file system since this boot."""
    here = os.stat(".")
    marks = key_of(word, str(here.st_ino))[:MARK], key_of(word, str(here.st_dev), boot_id())[:MARK]
    return "".join([word, *marks])


def _make() -> None:
    """Make PLACE with its content, unless another process is faster. Raises OSError."""
    aside = f"{PLACE}-{os.urandom(8).hex()}"
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{_marked(os.urandom(RANDOM // 2).hex())}\n".encode())
        os.link(aside, PLACE)
    finally:
        os.close(fd)
        os.unlink(aside)


@contextlib.contextmanager
def alone(objects: Objects, place: str) -> Iterator[None]:
    """Let one job at a time ask for results of others in this directory, and put its files there. Raises Occupied.

    `place` is the identity of the directory.
    """
    here, told = os.getcwd(), list[str]()

    def late(holder: str, seconds: float) -> None:
        if seconds >= LONGEST:
            raise Occupied(here, holder, seconds)
        if not told:
            what = f"another job{_named(holder)} is laying out its files in {harmless(here)}; this one waits for it"
            told.append(what)
            say(f"quine: {os.environ.get('QUINE_NODE_NAME', '')}: {what}\n")

    fd = lock(PLACE, False, late, IDENTITY + 1) if place else -1
    if fd < 0:
        facts = os.stat(".")
        fd = objects.lock(COMMIT + key_of(f"{facts.st_dev} {facts.st_ino}"), late)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def clean(names: list[str], directories: list[str], keeps: bool = False) -> int:
    """Remove what was staged and sent. Return 1, and print why, if something could not be removed.

    `keeps`: results were brought, from which names at any level were left out. Those stay.
    """
    import shutil

    from quine.files.exclusions import OBEYED, Places
    from quine.staging import spec

    places = Places((), deep=True)
    here, status = os.path.realpath(os.getcwd()), 0
    found = spec.matching([name for name in names if name != "."], here, Places(OBEYED))[0]
    exact = [os.fsencode(os.path.join(here, spec.text_of(name))) for name in names]
    for path in [*(path for path, _ in found), *filter(os.path.islink, exact)]:  # some links lead nowhere now
        if not _inside(path, here):
            continue  # through a symbolic link that leads out of this directory
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                if not (keeps and _thinned(os.fsdecode(path), here, places)):
                    shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            complain(f"--cleanup: {error_text(error)}", "", os.environ.get("QUINE_NODE_NAME", ""))
            status = 1
    for name in sorted(directories, key=len, reverse=True):
        try:
            while name and _inside(os.fsencode(os.path.join(here, name)), here):
                os.rmdir(os.path.join(here, name))
                name = os.path.dirname(name)
        except OSError:
            pass  # it is not empty, or has gone
    if PLACE in names:
        with contextlib.suppress(OSError):
            remove_lock(PLACE)
    return status


def _thinned(top: str, here: str, places: Places) -> bool:
    """Remove the files of a tree except for names that were left out of the results; False if it has no such name."""
    stays = {
        os.path.join(folder, name)
        for folder, folders, files in os.walk(top)
        for name in places.below(os.path.relpath(folder, here), folders + files)
    }
    for folder, folders, files in os.walk(top) if stays else ():
        folders[:] = [name for name in folders if os.path.join(folder, name) not in stays]
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for path in (os.path.join(folder, name) for name in files + links):
            if path not in stays:
                os.unlink(path)
    return bool(stays)


def _inside(path: bytes, here: str) -> bool:
    """Whether an entry is below a directory by its real path, and not that directory."""
    folder, top = os.path.realpath(os.path.dirname(path)), os.fsencode(here)
    return path != top and (folder == top or folder.startswith(top + b"/"))
