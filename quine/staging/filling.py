"""Creation of the files of a manifest, aside: contents that arrive, that this host has kept, or of a file just created.

Laws
1. No content is taken whose digest is not the one in the manifest.
2. `lasting`: contents are on the disk before they are put in place, since the copy that they come from is to go.
"""

from __future__ import annotations

import os

from quine.files.stores.local.dirfd import FOLDER
from quine.staging.content import BLOCK, Broken, Feed, blank, blocks, extents, head, parse_head
from quine.staging.manifest import PERMISSIONS, SIZE, SPARSE, Manifest, shown
from quine.staging.scan import told_time
from transport.lean import blake2b
from transport.writes import write_all, write_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.staging.store import Objects, Pack

FEW = 64  # files that are synced one by one; of more, their file system is
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Filling:
    """`new` is the descriptor of the private directory, `spots` the paths below it; `exact`: the umask is 0.

    Contents in `wanted` come from `feed`, in the order of the manifest, and go into `pack` too; others from `objects`.
    """

    def __init__(
        self,
        manifest: Manifest,
        new: int,
        spots: list[bytes],
        exact: bool,
        feed: Feed,
        wanted: set[bytes],
        objects: Objects | None,
        pack: Pack | None,
        lasting: bool = False,
    ) -> None:
        self._lasting = lasting
        self._manifest = manifest
        self._new = new
        self._spots = spots
        self._exact = exact
        self._feed = feed
        self._wanted = wanted
        self._objects = objects
        self._pack = pack

    def create(self, needs: list[int]) -> dict[int, tuple[int, ...]]:
        """Create the files; return inode, size, mtime and mode of each by its index. Raises OSError, Broken."""
        found: dict[int, tuple[int, ...]] = {}
        made: dict[bytes, int] = {}
        manifest, folder, above = self._manifest, self._new, b""
        try:
            for index in needs:
                spot, digest = self._spots[index], manifest.marks[index]
                parent, _, last = spot.rpartition(b"/")
                if parent != above:
                    done, folder, above = folder, self._new, parent
                    if done != self._new:
                        os.close(done)
                    if parent:
                        folder = os.open(parent, FOLDER, dir_fd=self._new)
                mode = manifest.modes[index]
                fd = os.open(last, _NEW, mode & PERMISSIONS if self._exact else 0o600, dir_fd=folder)
                try:
                    if not self._exact:
                        os.fchmod(fd, mode & PERMISSIONS)
                    if digest in made:
                        self._copy(made[digest], fd)
                    elif 0 < manifest.sizes[index] <= BLOCK and digest in self._wanted and not mode & SPARSE:
                        self._put(index, fd, self._feed.take(manifest.sizes[index]))
                        made[digest] = index
                    elif manifest.sizes[index] or mode & SPARSE:
                        self._pour(index, fd)
                        made[digest] = index
                    os.utime(fd, ns=(manifest.mtimes[index], manifest.mtimes[index]))
                    if self._lasting and len(needs) <= FEW:
                        os.fsync(fd)
                    facts = os.fstat(fd)
                    found[index] = (facts.st_ino, facts.st_size, told_time(facts.st_mtime_ns), facts.st_mode)
                finally:
                    os.close(fd)
        finally:
            if folder != self._new:
                os.close(folder)
        if self._lasting and len(needs) > FEW:
            sync_all(self._new)
        return found

    def _put(self, index: int, fd: int, data: bytes) -> None:
        """Write a small content that arrived. Most contents are small, so this path has few steps."""
        digest = self._manifest.marks[index]
        if blake2b(data, digest_size=SIZE).digest() != digest:
            raise Broken(f"{shown(self._manifest.names[index])} came with another content")
        if self._pack:
            self._pack.add(digest, data)
        write_all(fd, data)

    def _pour(self, index: int, fd: int) -> None:
        digest, pack = self._manifest.marks[index], self._pack
        if digest in self._wanted:
            if pack:
                pack.begin(self._manifest.sizes[index])
            found = self._content(index, fd, self._feed, pack.put if pack else None)
            if found != digest:
                raise Broken(f"{shown(self._manifest.names[index])} came with another content")
            if pack:
                pack.end(digest)
            return
        assert self._objects
        try:
            found = self._content(index, fd, Feed(_Stored(self._objects.pieces(digest))), None)
        except Broken:
            found = b""
        if found != digest:
            self._objects.drop(digest)
            raise Broken("a content that was kept here is not what it was")

    def _content(
        self, index: int, fd: int, feed: Feed, keep: Callable[[bytes | memoryview], None] | None
    ) -> bytes:
        """Write one content as it arrives, and return its digest."""
        size, sparse = self._manifest.sizes[index], self._manifest.modes[index] & SPARSE
        if not sparse and size <= BLOCK:
            data = feed.take(size)
            write_all(fd, data)
            return blake2b(data, digest_size=SIZE).digest()
        found = parse_head(feed.take, size) if sparse else [(0, size)]
        digest = blank(size, found) if sparse else blake2b(digest_size=SIZE)
        if sparse:
            if keep:
                keep(head(found))
            os.ftruncate(fd, size)
        for start, length in found:
            os.lseek(fd, start, os.SEEK_SET)
            for piece in feed.pieces(length):
                digest.update(piece)
                if keep:
                    keep(piece)
                write_all(fd, piece)
        whole: bytes = digest.digest()
        return whole

    def _copy(self, first: int, fd: int) -> None:
        """Copy the content of the entry `first`, which was created before."""
        size = self._manifest.sizes[first]
        source = self._reopened(first)
        try:
            os.ftruncate(fd, size)
            for start, data in blocks(source, extents(source, size), self._manifest.names[first]):
                write_at(fd, data, start)
        finally:
            os.close(source)

    def _reopened(self, index: int) -> int:
        """Open an entry that was created before, whatever its mode."""
        spot, flags = self._spots[index], os.O_RDONLY | os.O_CLOEXEC
        try:
            return os.open(spot, flags, dir_fd=self._new)
        except PermissionError:
            os.chmod(spot, 0o600, dir_fd=self._new)
            try:
                return os.open(spot, flags, dir_fd=self._new)
            finally:
                os.chmod(spot, self._manifest.modes[index] & PERMISSIONS, dir_fd=self._new)


def sync_all(folder: int) -> None:
    """Have all that was written to the file system of a directory on the disk. Raises OSError."""
    from transport.backports.libc import INT, call, function, in_libc  # here: ctypes, for few processes

    if in_libc("syncfs"):
        call(function("syncfs", INT, INT), folder)
    else:
        os.sync()


class _Stored:
    """A content in this host's store, with the interface of `Line`."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, size: int) -> bytes:
        return next(self._pieces, b"")

    def write(self, data: bytes) -> None:
        raise AssertionError("nobody listens")
