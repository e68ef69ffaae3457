"""Laying out of a manifest: entries are created in a private directory, and renamed into place when all are there.

Laws
1. Nothing appears under its final name before everything has arrived and is verified. A reader sees the old or the new
   version of each file, never a part. A missing directory appears with all its contents, by one rename.
2. No write follows a symlink, and no name above the base is used.
3. With `undo`, either everything appears or nothing. Replaced entries are kept until the last rename, and a journal
   lets the next process finish renames that a crash interrupted (`recover`). If it is `lasting`, a loss of power is a
   crash, too: contents are on the disk before the first rename, and the renames before the journal is removed.
4. The owner of the private directory holds a lock on it that dies with the owner. An unlocked directory is removed,
   if it has the seal that its owner has made (`renames`), or if nothing is in it. So one may be removed between its
   mkdir and its lock, and its owner makes another one.
5. An entry that is `left` may be a result that another job is writing: it is neither replaced nor touched. A missing
   directory is not left if anything in it is not: each entry that is not left appears.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from quine.files.stores.local.dirfd import FOLDER
from quine.staging.content import measure
from quine.staging.filling import Filling
from quine.staging.manifest import IMPLIED, PERMISSIONS, Manifest
from quine.staging.renames import Conflict, Met, Parents, keep_old, move, remove, seal
from quine.staging.scan import FACTS, facts_of, new_aside
from quine.staging.source import set_bits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from quine.staging.content import Feed
    from quine.staging.scan import Scan
    from quine.staging.store import Objects, Pack

_NOTHING = bytes(FACTS.size)
LEFT = "left"  # in place of the hash of a scan
_TRIES = 100  # to make a private directory: others clear one away in the microseconds before it is locked


class Layout:
    """One manifest being laid out in `base`. `here` is what a scan found there; `known` is what a record says."""

    def __init__(
        self,
        base: bytes,
        manifest: Manifest,
        here: dict[bytes, bytes],
        known: dict[bytes, tuple[bytes, bytes]],
        exact: bool = False,
    ) -> None:
        self._manifest = manifest
        self._path = base
        self._base = -1
        self._here = here
        self._known = known
        self.lasting = False
        self._exact = exact  # the umask is 0: a file gets its mode when it is created
        self._name = b""
        self._top = -1  # the private directory, which holds `new` and `old`
        self._new = -1
        # Path of each entry below `new`; "" if the entry is in place already.
        self._spots: list[bytes] = [b""] * len(manifest)
        # The same for directories, by name.
        self._folders: dict[bytes, bytes] = {b"": b""}
        self.needs: list[int] = []  # indices of the files to create
        self._moves: list[int] = []  # indices of the entries to rename
        self._made: dict[int, tuple[int, ...]] = {}  # inode, size, mtime, mode at creation
        self.left: set[int] = set()  # indices of the entries that stay as they are
        self._plan()  # before any descriptor is opened: it may raise

    # -- plan --------------------------------------------------------------------------------------

    def _plan(self) -> None:
        manifest = self._manifest
        for index, name in enumerate(manifest.names):
            above, _, last = name.rpartition(b"/")
            home = self._folders[above]
            fact = self._here.get(name) if not home else None
            if not home and fact is None and manifest.modes[index] & IMPLIED:
                with contextlib.suppress(FileNotFoundError):  # the scan did not cover it
                    fact = facts_of(os.lstat(os.path.join(self._path, name)))
            if home:
                spot = home + b"/" + last
            elif fact is not None and self._is_there(index, fact):
                spot = b""
            else:
                spot = b"%d" % index
                self._moves.append(index)
            self._spots[index] = spot
            if manifest.is_directory(index):
                self._folders[name] = spot
            elif spot and manifest.is_file(index):
                self.needs.append(index)

    def _is_there(self, index: int, facts: bytes) -> bool:
        """Return whether the existing entry is right. Raises Conflict if it can neither stay nor be replaced."""
        manifest = self._manifest
        name, mode = manifest.names[index], manifest.modes[index]
        _, size, _, _, found = FACTS.unpack(facts)
        if stat.S_ISDIR(found) != stat.S_ISDIR(mode & 0xFFFF):
            what = "a directory" if stat.S_ISDIR(found) else "no directory"
            raise Conflict(errno.EEXIST, f"{what} stands where it should go", name)
        if stat.S_ISDIR(found):
            return True
        if stat.S_IFMT(found) != stat.S_IFMT(mode & 0xFFFF):
            return False
        path = os.path.join(self._path, name)
        if stat.S_ISLNK(found):
            return os.readlink(path) == manifest.marks[index]
        if size != manifest.sizes[index]:
            return False
        known = self._known.get(name)
        if known and known[0] == facts:
            return known[1] == manifest.marks[index]
        with contextlib.suppress(OSError):
            return measure(path).digest == manifest.marks[index]
        return False

    def wanted(self, here: Objects | None = None) -> dict[bytes, int]:
        """Return {digest: first entry with it} of the contents that are needed and not in the store `here`."""
        marks, sizes = self._manifest.marks, self._manifest.sizes
        first = {marks[index]: index for index in reversed(self.needs) if sizes[index]}
        there = here.among(set(first)) if here else frozenset[bytes]()
        return {mark: index for mark, index in first.items() if mark not in there}

    # -- create ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Create the private directory, and in it the new directories and symlinks."""
        self._base = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        if not any(self._make_private() for _ in range(_TRIES)):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), os.path.abspath(self._path))
        seal(self._top)
        for name in ("new", "old"):
            os.mkdir(name, 0o700, dir_fd=self._top)
        self._new = os.open("new", FOLDER, dir_fd=self._top)
        for index, spot in enumerate(self._spots):
            if spot and not self._manifest.is_file(index):
                if self._manifest.is_directory(index):
                    os.mkdir(spot, 0o700, dir_fd=self._new)
                else:
                    os.symlink(self._manifest.marks[index], spot, dir_fd=self._new)
                    self._touch_link(index, spot)

    def _make_private(self) -> bool:
        """Make the private directory, and lock it. Return False if it was removed in between: see `recover`."""
        # set before mkdir: a signal between the two would leave the directory behind
        self._name = new_aside()
        try:
            os.mkdir(self._name, 0o700, dir_fd=self._base)
        except OSError as error:  # report the base: the private name means nothing to users
            self._name = b""
            raise OSError(error.errno, error.strerror, os.path.abspath(self._path)) from None
        try:
            self._top = os.open(self._name, FOLDER, dir_fd=self._base)
            fcntl.flock(self._top, fcntl.LOCK_EX | fcntl.LOCK_NB)
            there = os.stat(self._name, dir_fd=self._base, follow_symlinks=False)
            if os.path.samestat(there, os.fstat(self._top)):
                return True
        except (FileNotFoundError, BlockingIOError):
            pass
        top, self._top = self._top, -1
        if top >= 0:
            os.close(top)
        return False

    def _touch_link(self, index: int, spot: bytes) -> None:
        mtime = self._manifest.mtimes[index]
        with contextlib.suppress(OSError):
            os.utime(spot, ns=(mtime, mtime), dir_fd=self._new, follow_symlinks=False)

    def fill(self, feed: Feed, wanted: set[bytes], objects: Objects | None, pack: Pack | None) -> None:
        """Create the files: contents in `wanted` from `feed`, others from `objects`. Raises OSError, Broken."""
        here = self._manifest, self._new, self._spots, self._exact
        filling = Filling(*here, feed, wanted, objects, pack, self.lasting)
        self._made = filling.create(self.needs)

    def arrivals(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (name, path where it lies now) of all that is about to appear or to be replaced."""
        for name, spot in zip(self._manifest.names, self._spots):
            if spot:
                yield name, os.path.join(self._path, self._name, b"new", spot)

    def changes(self, but: Container[bytes]) -> bool:
        """Return whether the commit makes, replaces or touches a file or link that has none of these names."""
        return any(
            not (name in but or self._manifest.is_directory(index))
            and (self._spots[index] or not self._as_it_should(index))
            for index, name in enumerate(self._manifest.names)
        )

    def let_be(self, blob: bytes) -> None:
        """Leave entries as they are, and others if they are there: the two halves of `blob` are their bits."""
        names, half = self._manifest.names, (len(self._manifest) + 7) // 8
        entries, others = (set_bits(part, len(names)) for part in (blob[:half], blob[half:]))
        there = (each for each in others if os.path.lexists(os.path.join(self._path, names[each])))
        self.left.update(entries, there)
        self.left.difference_update(self._missing_above())
        self._moves = [index for index in self._moves if index not in self.left]
        for index in sorted(self.left, reverse=True):  # directories behind their contents
            spot, self._spots[index] = self._spots[index], b""
            if b"/" in spot:  # in a directory that is moved as a whole
                (os.rmdir if self._manifest.is_directory(index) else os.unlink)(spot, dir_fd=self._new)
        moved = {self._spots[index] for index in self._moves}
        for name, spot in zip(names, self._spots):
            if spot and spot.partition(b"/")[0] not in moved:
                raise Conflict(errno.EBUSY, "would not appear: its directory is left to another job", name)

    def _missing_above(self) -> list[int]:
        """Return the missing directories that hold entries which are not left."""
        above = set[bytes]()
        for index, name in enumerate(self._manifest.names):
            while self._spots[index] and index not in self.left and b"/" in name:
                name = name.rpartition(b"/")[0]
                if name in above:
                    break
                above.add(name)
        return [each for each in self.left if self._spots[each] and self._manifest.names[each] in above]

    # -- move into place ---------------------------------------------------------------------------

    def commit(self, undo: bool = False) -> None:
        """Rename everything into place. Raises OSError; with `undo`, everything is then as before."""
        manifest = self._manifest
        # Inner directories first: a change inside a directory changes its mtime.
        for index in range(len(manifest) - 1, -1, -1):
            spot = self._spots[index]
            if spot and manifest.is_directory(index) and (b"/" in spot or manifest.modes[index] & 0o200):
                self._finish(index, spot, self._new)
        with Parents(self._base) as parents:
            while True:
                try:
                    self._rename(parents, undo)
                    break
                except Met as met:  # each pass has one directory fewer to rename
                    if undo:
                        remove(b"old", self._top)
                        os.mkdir("old", 0o700, dir_fd=self._top)
                    else:
                        del self._moves[: met.done]
                    self._open_up(met.name)
            for index in range(len(manifest) - 1, -1, -1):
                if b"/" not in self._spots[index] and index not in self.left:
                    self._settle(index, parents)
        if undo:
            if self.lasting:
                os.fsync(self._base)
            os.unlink("journal", dir_fd=self._top)

    def _rename(self, parents: Parents, undo: bool) -> None:
        manifest = self._manifest
        moves = [(self._spots[index], manifest.names[index]) for index in self._moves]
        folders = frozenset(self._spots[index] for index in self._moves if manifest.is_directory(index))
        if undo:
            keep_old(self._top, moves, parents, folders)
        move(self._new, moves, parents, self._top if undo else -1, folders)

    def _open_up(self, name: bytes) -> None:
        """Rename the contents of a directory one by one, because another job has created it meanwhile."""
        manifest = self._manifest
        places = {each: index for index, each in enumerate(manifest.names)}
        at = places[name]
        spot = self._spots[at]
        self._moves.remove(at)
        self._spots[at] = b""
        with contextlib.suppress(OSError):
            self._here[name] = facts_of(os.lstat(os.path.join(self._path, name)))
        for each, index in places.items():
            if index in self.left or not each.startswith(name + b"/"):
                continue
            first, slash, rest = each[len(name) + 1 :].partition(b"/")
            if slash:  # moves with its directory
                self._spots[index] = self._spots[places[name + b"/" + first]] + b"/" + rest
                continue
            if manifest.is_directory(index):
                os.chmod(spot + b"/" + first, 0o700, dir_fd=self._new)  # rename() needs a writable directory
            self._spots[index] = b"%d" % index
            os.rename(spot + b"/" + first, self._spots[index], src_dir_fd=self._new, dst_dir_fd=self._new)
            self._moves.append(index)

    @property
    def place(self) -> bytes:
        """The name of the private directory."""
        return self._name

    def is_journalled(self) -> bool:
        """Return whether the journal is written, so that `recover` finishes the renames."""
        return os.access("journal", os.F_OK, dir_fd=self._top)

    def _settle(self, index: int, parents: Parents) -> None:
        """Set mode and mtime of the entry that is in place now."""
        mode, name = self._manifest.modes[index], self._manifest.names[index]
        if stat.S_ISLNK(mode & 0xFFFF) or (self._spots[index] and not stat.S_ISDIR(mode & 0xFFFF)):
            return  # set before the rename
        if self._spots[index] or not self._as_it_should(index):
            with contextlib.suppress(OSError):  # another user's: only mode or time may be wrong
                folder, last = parents.of(name)
                self._finish(index, last, folder)

    def _as_it_should(self, index: int) -> bool:
        facts = self._here.get(self._manifest.names[index])
        if facts is None or self._manifest.modes[index] & IMPLIED:
            return True
        _, _, mtime, _, mode = FACTS.unpack(facts)
        same_mode = mode & PERMISSIONS == self._manifest.modes[index] & PERMISSIONS
        return bool(same_mode and mtime == self._manifest.mtimes[index] and not stat.S_ISDIR(mode))

    def _finish(self, index: int, name: bytes, folder: int) -> None:
        mtime, mode = self._manifest.mtimes[index], self._manifest.modes[index]
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        flags |= os.O_DIRECTORY if self._manifest.is_directory(index) else 0
        try:
            fd = os.open(name, flags, dir_fd=folder)
        except PermissionError:
            self._finish_unread(index, name, folder)
            return
        try:
            if not mode & IMPLIED:
                os.utime(fd, ns=(mtime, mtime))
            os.fchmod(fd, mode & PERMISSIONS | _kept(os.fstat(fd)))
        finally:
            os.close(fd)

    def _finish_unread(self, index: int, name: bytes, folder: int) -> None:
        """Do the same for an unreadable entry, by descriptor: by name, a symlink swapped in would be followed."""
        mtime, mode = self._manifest.mtimes[index], self._manifest.modes[index]
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            facts = os.fstat(fd)
            if stat.S_IFMT(facts.st_mode) != stat.S_IFMT(mode & 0xFFFF):
                return  # replaced meanwhile
            os.chmod(f"/proc/self/fd/{fd}", mode & PERMISSIONS | _kept(facts))
            if not mode & IMPLIED:
                os.utime(f"/proc/self/fd/{fd}", ns=(mtime, mtime))
        finally:
            os.close(fd)

    def stands(self, found: dict[bytes, bytes]) -> bool:
        """Return whether every entry is still as laid out, or as it was before; `found` is a scan after the commit.

        An entry that others have changed since is theirs. No record may claim that it is the staged one.
        """
        manifest = self._manifest
        for index, name in enumerate(manifest.names):
            if manifest.modes[index] & IMPLIED or index in self.left:
                continue  # not scanned, or not ours
            mode = manifest.modes[index] & 0xFFFF
            inode, size, mtime, _, has = FACTS.unpack(found.get(name) or _NOTHING)
            if stat.S_IFMT(has) != stat.S_IFMT(mode):
                return False
            if stat.S_ISLNK(mode) and os.readlink(os.path.join(self._path, name)) != manifest.marks[index]:
                return False
            if not stat.S_ISREG(mode):
                continue
            if made := self._made.get(index):
                same = (inode, size, mtime, has) == made
            else:
                was = FACTS.unpack(self._here[name])
                settled = manifest.mtimes[index], mode & PERMISSIONS
                same = (inode, size) == was[:2]
                same = same and mtime in (was[2], settled[0])
                same = same and has & PERMISSIONS in (was[4] & PERMISSIONS, settled[1])
            if not same:
                return False
        return True

    def facts(self, found: Scan) -> list[bytes]:
        """Return the facts of the entries for the record. Where some were left, no scan equals that of the record."""
        if self.left:
            found.hash = LEFT
        by_name, names = found.by_name(), self._manifest.names
        return [_NOTHING if at in self.left else by_name.get(name, _NOTHING) for at, name in enumerate(names)]

    def close(self) -> None:
        """Remove entries that were created and not renamed, unless the renames could be neither done nor undone.

        It may be called again after an interruption.
        """
        if self._name and not (self._top >= 0 and self.is_journalled()):
            remove(self._name, self._base)
        self.leave()

    def leave(self) -> None:
        """Close the descriptors, and leave the created entries to `recover`."""
        held = [fd for fd in (self._new, self._top, self._base) if fd >= 0]
        self._name = b""
        self._top = self._new = self._base = -1
        for fd in held:
            os.close(fd)


def _kept(facts: os.stat_result) -> int:
    """Return the setgid and sticky bits of a directory, its own or inherited, which stay."""
    return facts.st_mode & (stat.S_ISGID | stat.S_ISVTX) if stat.S_ISDIR(facts.st_mode) else 0
