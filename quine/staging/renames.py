"""Renames into a directory: no symlink is followed, a failure is undone, and an interrupted set is finished later.

Laws
1. A name is reached from the base, one directory at a time, each opened without following a symlink.
2. With a journal, the process that began the renames undoes them on failure, and the next process finishes them after
   a crash, also one in the middle of the undoing. A private directory that no process holds is removed; one whose
   renames cannot be finished stays. That may be late: a file that has come to one of the names since, or was written
   in place, is newer, and stays; the caller names it. The facts in the journal tell it from the file before. A link in
   `old` cannot: it shows the same inode after a write in place, and an undo has taken it away.
3. An archive, a repository or an agent elsewhere can bring such a directory. Nothing in it is obeyed, and it is not
   removed, without the seal of the user: over inode and ctime of a file in it, which no copy has and nobody can set,
   and over the bytes of the journal. That of the directory is the name of an empty file: a file that is written may
   be found empty after a kill, and after a loss of power.
4. Only private directories are locked. Anybody who may read the directory around them can lock that one, for as long
   as he likes, and a node does while jobs are in it.
5. On NFS the lock of a directory is known to one machine alone. So a private directory of another machine, by its
   name, is left alone: its owner may be at work. It is named once it is DAY seconds old. If only the host name of that
   machine differs from this one's, and not its id, it is finished then, or at once on a file system of this machine,
   which shows the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from functools import partial

from quine.base import data_directory
from quine.files.stores.local import dirfd
from quine.files.stores.local.dirfd import FOLDER
from quine.staging.notes import Left, OfAnotherMachine, OfAnotherVersion
from quine.staging.scan import ASIDE, is_elsewhere, is_renamed
from transport.file_systems import is_local_device

NO_LINKS = (
    errno.EPERM,
    errno.EACCES,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
)  # errors of link() that mean: this file cannot be linked
BEGUN, SEAL = "begun", "seal-"  # in a private directory; the latter is a prefix
LONGEST = 256 << 20  # bytes of a journal: a million names and more
DAY = 86400.0
NONE = b"-"  # in place of facts: nothing is there
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Conflict(OSError):
    """An existing entry of another kind is in the way."""


class Met(Exception):
    """Another process has created this directory meanwhile. The `done` earlier renames stay, unless they are undone."""

    def __init__(self, name: bytes, done: int) -> None:
        super().__init__(name)
        self.name = name
        self.done = done


class Parents:
    """The parent directories of names, each reached from the base without following a symlink.

    Only one is open at a time: a tree may have more directories than a process may have descriptors.
    """

    def __init__(self, base: int) -> None:
        self._base = base
        self._path = b""
        self._fd = os.dup(base)

    def of(self, name: bytes) -> tuple[int, bytes]:
        """Return the parent's descriptor, valid until the next call, and the last name. Raises OSError, Conflict."""
        above, _, last = name.rpartition(b"/")
        if above != self._path:
            fd = self._folder(above)
            os.close(self._fd)
            self._path, self._fd = above, fd
        return self._fd, last

    def _folder(self, path: bytes) -> int:
        reached: list[str] = []

        def step(fd: int, name: str) -> int:
            reached.append(name)
            try:
                return os.open(name, FOLDER, dir_fd=fd)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    what = "is no directory, or a link to one"
                    raise Conflict(error.errno, what, os.fsencode("/".join(reached))) from None
                raise

        return dirfd.descend(self._base, os.fsdecode(path), step)

    def __enter__(self) -> Parents:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._fd)


def move(
    new: int, moves: list[tuple[bytes, bytes]], parents: Parents, top: int, folders: frozenset[bytes]
) -> None:
    """Rename (spot, name) pairs from `new` into place; all are undone on failure if `top` >= 0. Raises OSError, Met.

    `folders` are the spots of directories, which replace nothing.
    """
    done: list[tuple[bytes, bytes]] = []
    try:
        for spot, name in moves:
            folder, last = parents.of(name)
            if spot in folders:
                # rename() would replace an empty directory, which its creator may just be filling.
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
    """Rename over an existing entry, which has a link in `old`, or is moved there now."""
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
    """Restore the old entries, and move the new ones back into `new` for another attempt."""
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
    """Link the old entries into `old`, and write the journal, synced. Foreseeable failures occur here, before renames.

    A file that cannot be linked (another user's with protected_hardlinks, CIFS, exFAT) is moved away just before it is
    replaced; for that moment its name does not exist.
    """
    device = os.fstat(top).st_dev
    noted: list[tuple[bytes, bytes, bytes]] = []
    for spot, name in moves:
        folder, last = parents.of(name)
        if os.fstat(folder).st_dev != device:
            raise OSError(errno.EXDEV, "is on another filesystem than the directory that it goes to", name)
        if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        noted.append((spot, name, NONE if spot in folders else facts_at(last, folder)))
        if spot in folders:
            continue
        try:
            os.link(last, b"old/" + spot, src_dir_fd=folder, dst_dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            continue
        except OSError as refused:
            if refused.errno not in NO_LINKS:
                raise
    write_journal(top, noted)


def facts_at(last: bytes, folder: int) -> bytes:
    """Return what tells the file at a name from others that come there, and from its later versions. Raises OSError."""
    try:
        return _facts(os.stat(last, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return NONE


def _facts(there: os.stat_result) -> bytes:
    """Return what neither a rename nor a link changes, as both change the ctime."""
    return b"%d %d %d" % (there.st_ino, there.st_size, there.st_mtime_ns)


def write_journal(top: int, moves: list[tuple[bytes, bytes, bytes]]) -> None:
    """Write the journal of a private directory, synced: a line with its seal, then (spot, name, facts before)."""
    text = b"".join(b"%b %b\0%b\0" % (spot, facts, name) for spot, name, facts in moves)
    with open(os.open("journal.new", NEW, 0o600, dir_fd=top), "wb") as file:
        file.write(data_directory.seal(_sealed(top, text)).encode() + b"\n" + text)
        file.flush()
        os.fsync(file.fileno())
    os.rename("journal.new", "journal", src_dir_fd=top, dst_dir_fd=top)
    dirfd.sync(top)


def seal(top: int) -> None:
    """Make a private directory the user's: `recover` may remove it. Raises OSError."""
    os.close(os.open(BEGUN, NEW, 0o600, dir_fd=top))
    os.close(os.open(SEAL + data_directory.seal(_sealed(top)), NEW, 0o600, dir_fd=top))


def _sealed(top: int, journal: bytes = b"") -> bytes:
    """Return what is sealed: a private directory, as one that is no copy, and its journal. Raises OSError."""
    facts = os.stat(BEGUN, dir_fd=top, follow_symlinks=False)
    return b"aside %d %d\0%b" % (facts.st_ino, facts.st_ctime_ns, journal)


def _is_sealed(top: int, digest: str, journal: bytes = b"") -> bool:
    try:
        return data_directory.is_sealed(_sealed(top, journal), digest)
    except OSError:
        return False


def recover(base: bytes, late: list[tuple[bytes, bytes]] | None = None) -> list[str]:
    """Finish the renames, or remove the private directories, that killed processes left in `base`.

    Return the names of those that are left alone. Those that cannot be finished or removed now are left to the next
    call: see `is_unfinished`. `late` gets pairs of a private directory and the name of a file that did not come from
    it, since a newer one is there.
    """
    foreign: list[str] = []
    late = [] if late is None else late
    with contextlib.suppress(OSError):
        fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in os.listdir(base):
                with contextlib.suppress(OSError):
                    if name.startswith(ASIDE) and (why := _recover(name, fd, late)):
                        foreign.append(why(os.fsdecode(name)))
        finally:
            os.close(fd)
    return foreign


def is_unfinished(base: bytes, name: bytes) -> bool:
    """Return whether a private directory still has its journal, so that not all of its renames may be done."""
    try:
        os.lstat(os.path.join(base, name, b"journal"))
    except FileNotFoundError:
        return False
    except OSError:
        pass  # nobody knows
    return True


def _recover(name: bytes, base: int, late: list[tuple[bytes, bytes]]) -> type[Left] | None:
    """Return the reason for which a directory is left alone and named, if it is."""
    top = os.open(name, FOLDER, dir_fd=base)
    try:
        if os.fstat(top).st_uid != os.getuid():
            return None
        if is_elsewhere(name):
            facts = os.fstat(top)
            old = facts.st_mtime < time.time() - DAY
            if not (is_renamed(name) and (old or is_local_device(facts.st_dev))):
                return OfAnotherMachine if old else None
        fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if (text := _read("journal", top)) is not None:
            digest, _, text = text.partition(b"\n")
            if not _is_sealed(top, digest.decode("ascii", "replace"), text):
                return Left
            words = text.split(b"\0")[:-1]
            if len(words) % 2 or not all(map(_is_spot, words[::2])) or not all(map(_stays, words[1::2])):
                return OfAnotherVersion
            late += [(name, path) for path in _finish(words, base, top)]
        elif not any(map(partial(_is_sealed, top), _seals(top))) and not _is_bare(top):
            return Left
        remove(name, base)
        return None
    finally:
        os.close(top)


def _is_bare(top: int) -> bool:
    """Return whether nothing is in it: its owner was killed before it was sealed, or at the end of its removal."""
    for name in os.listdir(top):
        facts = os.stat(name, dir_fd=top, follow_symlinks=False)
        if facts.st_size or not stat.S_ISREG(facts.st_mode) or not (name == BEGUN or name.startswith(SEAL)):
            return False
    return True


def _seals(top: int) -> list[str]:
    return [name[len(SEAL) :] for name in os.listdir(top) if name.startswith(SEAL)]


def _finish(words: list[bytes], base: int, top: int) -> list[bytes]:
    """Do the renames that were not done. Return the names of files that stay, as they are newer.

    Raises OSError if one cannot be done: then all that is left stays where it is.
    """
    late: list[bytes] = []
    try:
        new = os.open("new", FOLDER, dir_fd=top)
    except FileNotFoundError:
        return late  # all were done, and it was killed while it removed the rest
    try:
        with Parents(base) as parents:
            for word, path in zip(words[::2], words[1::2]):
                spot, _, before = word.partition(b" ")
                if _is_there(spot, new):
                    folder, last = parents.of(path)
                    ours = os.stat(spot, dir_fd=new, follow_symlinks=False)
                    if _is_newer(last, folder, before, ours):
                        late.append(path)
                    else:
                        os.rename(spot, last, src_dir_fd=new, dst_dir_fd=folder)
    finally:
        os.close(new)
    return late


def _is_newer(last: bytes, folder: int, before: bytes, ours: os.stat_result) -> bool:
    """Return whether a file other than `ours` has come to this name, or was written there, since the journal.

    Where an undo was killed ours may be there, and have a second name.
    """
    try:
        there = os.stat(last, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    known = os.path.samestat(there, ours) or _facts(there) == before
    return not (known or stat.S_ISDIR(there.st_mode))


def _read(name: str, top: int) -> bytes | None:
    """Return the bytes of a file in a private directory, b"" for what quine cannot have written; None without it."""
    try:
        fd = os.open(name, READ, dir_fd=top)
    except FileNotFoundError:
        return None
    except OSError:
        return b""
    with open(fd, "rb") as file:
        facts = os.fstat(fd)
        return file.read() if stat.S_ISREG(facts.st_mode) and facts.st_size <= LONGEST else b""


def _is_spot(word: bytes) -> bool:
    spot, _, before = word.partition(b" ")
    return spot.isdigit() and bool(before)


def _stays(path: bytes) -> bool:
    return {b"", b".", b".."}.isdisjoint(path.split(b"/"))


def remove(name: bytes, folder: int) -> None:
    """Remove a directory and its contents, as far as possible: the seals behind all that they vouch for."""
    with contextlib.suppress(OSError):
        for inner in (name + b"/new", name + b"/old"):
            with contextlib.suppress(OSError):
                dirfd.empty(folder, os.fsdecode(inner), ours=True)
                os.rmdir(inner, dir_fd=folder)
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(os.fsdecode(name), "journal"), dir_fd=folder)
        dirfd.empty(folder, os.fsdecode(name), ours=True)
        os.rmdir(name, dir_fd=folder)
