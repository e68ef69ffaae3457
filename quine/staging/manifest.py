"""The manifest of a staging: names, kinds, modes, times and the digest of each file's content, as one value.

Laws
1. It holds columns of numbers, not one object for each file: ten thousand files are half a megabyte, packed in a
   millisecond.
2. A received manifest is parsed strictly: no name leads out, a directory precedes its contents, no name occurs twice, a
   symlink stays within the staged files. `parse` is the only way in.
3. The digest of the packed form names the whole tree: equal digests are equal trees.
"""

from __future__ import annotations

import stat
import struct
import sys

from transport.lean import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from array import array
    from collections.abc import Container

SIZE = 32  # bytes of a digest
SPARSE = 1 << 31  # mode bit: the content is a list of extents, see `content`
# Mode bit: a directory above the named entries, created if missing and otherwise left alone.
IMPLIED = 1 << 30
PERMISSIONS = 0o777
MOST = 4_000_000  # entries
LONGEST_NAME = 255
LONGEST_PATH = 3800
LARGEST = 1 << 62  # bytes of a file

_MAGIC = b"quine stage 1\n"
_HEAD = struct.Struct("<14sIQQQ")  # magic, entries, bytes of digests, of names, of targets


class BadManifest(ValueError):
    """The received data is no manifest, or one that asks for something forbidden."""


class Manifest:
    """Entry i is names[i], modes[i] (with its kind), mtimes[i] in ns, sizes[i], marks[i] (a digest or a target)."""

    __slots__ = ("marks", "modes", "mtimes", "names", "sizes")

    def __init__(self) -> None:
        from array import array  # loads collections, which a client does not need before the job is sent

        self.names: list[bytes] = []
        self.modes = array("I")
        self.mtimes = array("q")
        self.sizes = array("Q")
        self.marks: list[bytes] = []

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: bytes, mode: int, mtime: int, size: int = 0, mark: bytes = b"") -> None:
        self.names.append(name)
        self.modes.append(mode)
        self.mtimes.append(mtime)
        self.sizes.append(size)
        self.marks.append(mark)

    def is_file(self, index: int) -> bool:
        return stat.S_ISREG(self.modes[index] & 0xFFFF)

    def is_directory(self, index: int) -> bool:
        return stat.S_ISDIR(self.modes[index] & 0xFFFF)

    @property
    def roots(self) -> list[bytes]:
        """The topmost entries: those whose directory is not staged itself."""
        found: list[bytes] = []
        named: set[bytes] = set()
        for index, name in enumerate(self.names):
            if self.modes[index] & IMPLIED:
                continue
            if name.rpartition(b"/")[0] not in named:
                found.append(name)
            if self.is_directory(index):
                named.add(name)
        return found

    def pack(self) -> bytes:
        digests = b"".join(mark for index, mark in enumerate(self.marks) if self.is_file(index))
        targets = b"".join(
            mark + b"\0" for index, mark in enumerate(self.marks) if stat.S_ISLNK(self.modes[index] & 0xFFFF)
        )
        names = b"".join([name + b"\0" for name in self.names])
        head = _HEAD.pack(_MAGIC, len(self.names), len(digests), len(names), len(targets))
        columns = [_little(column) for column in (self.modes, self.mtimes, self.sizes)]
        return b"".join([head, *columns, digests, names, targets])


def digest_of(packed: bytes) -> str:
    """Return the digest of a packed manifest, which names its tree."""
    return blake2b(packed, digest_size=SIZE).hexdigest()


def names_in(packed: bytes) -> int:
    """Return the number of names that a packed manifest says it has. Raises BadManifest."""
    if len(packed) < _HEAD.size:
        raise BadManifest("a manifest that is cut")
    return int(_HEAD.unpack_from(packed)[1])


def parse(packed: bytes, whole: bool = False) -> Manifest:
    """Parse the packed form; with `whole`, symlinks may lead anywhere below the directory. Raises BadManifest."""
    names_in(packed)
    magic, count, digests, names, targets = _HEAD.unpack_from(packed)
    columns = _HEAD.size + count * 20
    if magic != _MAGIC or count > MOST or columns + digests + names + targets != len(packed):
        raise BadManifest("no manifest")
    found = Manifest()
    at = _HEAD.size
    for column in (found.modes, found.mtimes, found.sizes):
        end = at + count * column.itemsize
        column.frombytes(packed[at:end])
        if sys.byteorder == "big":
            column.byteswap()
        at = end
    names_at, targets_at = columns + digests, columns + digests + names
    found.names = _texts(packed[names_at:targets_at])
    links = _texts(packed[targets_at:])
    if len(found.names) != count:
        raise BadManifest("a manifest with a wrong number of names")
    _give_marks(found, packed[columns:names_at], links)
    _check(found, whole)
    return found


def _texts(blob: bytes) -> list[bytes]:
    texts = blob.split(b"\0")
    if texts.pop():
        raise BadManifest("a manifest that is cut in a name")
    return texts


def _give_marks(found: Manifest, digests: bytes, links: list[bytes]) -> None:
    at, link = 0, iter(links)
    for index, mode in enumerate(found.modes):
        kind = stat.S_IFMT(mode & 0xFFFF)
        if mode & ~(0o170000 | PERMISSIONS | SPARSE | IMPLIED):
            raise BadManifest("a mode that is none")
        if kind == stat.S_IFREG and not mode & IMPLIED:
            if found.sizes[index] > LARGEST:
                raise BadManifest("a size that is none")
            mark = digests[at : at + SIZE]
            at += SIZE
            if len(mark) != SIZE:
                raise BadManifest("a manifest with too few digests")
        elif kind == stat.S_IFDIR and not mode & SPARSE:
            mark = b""
        elif kind == stat.S_IFLNK and not mode & (SPARSE | IMPLIED):
            mark = next(link, b"")
        else:
            raise BadManifest("neither a file nor a directory nor a link")
        found.marks.append(mark)
    if at != len(digests) or next(link, None) is not None:
        raise BadManifest("a manifest with too many digests or links")


def _check(found: Manifest, whole: bool) -> None:
    """Raise BadManifest unless names stay inside, directories come first, and symlinks stay inside."""
    directories: set[bytes] = {b""}
    seen: set[bytes] = set()
    for index, name in enumerate(found.names):
        above, slash, last = name.rpartition(b"/")
        if last in (b"", b".", b"..") or len(last) > LONGEST_NAME or len(name) > LONGEST_PATH:
            raise BadManifest(f"a bad name: {shown(name)}")
        if above not in directories or (slash and not above) or name in seen:
            raise BadManifest(f"a name out of its place: {shown(name)}")
        seen.add(name)
        if found.is_directory(index):
            directories.add(name)
    roots = {b""} if whole else set(found.roots)
    for index, name in enumerate(found.names):
        if stat.S_ISLNK(found.modes[index] & 0xFFFF) and not stays(name, found.marks[index], roots):
            raise BadManifest(f"a link that leads out: {shown(name)}")


def stays(name: bytes, target: bytes, roots: Container[bytes]) -> bool:
    """Return whether a symlink `name` leads to something staged; the root b"" is everything.

    `..` may stand only at the beginning: behind another symlink it would lead elsewhere than it seems to.
    """
    if not target or target.startswith(b"/") or len(target) > LONGEST_PATH:
        return False
    parts = [part for part in target.split(b"/") if part not in (b"", b".")]
    here = name.split(b"/")[:-1]
    ups = 0
    while ups < len(parts) and parts[ups] == b"..":
        ups += 1
    if ups > len(here) or b".." in parts[ups:]:
        return False
    whole = b"/".join([*here[: len(here) - ups], *parts[ups:]])
    while whole and whole not in roots:
        whole = whole.rpartition(b"/")[0]
    return whole in roots


def shown(name: bytes) -> str:
    """Return a name for a message: shortened, and without characters that control a terminal."""
    from transport.text import harmless

    return harmless(name[-200:].decode("utf-8", "backslashreplace"))


def _little(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
