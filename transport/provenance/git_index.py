"""Whether git tracks a path: read from the index file itself, so that nothing which a repository configures is run.

Source: gitformat-index(5), versions 2 to 4, with the extension `link` of a split index.

Laws
1. The repository is foreign: each file of it is read by regular_file.py, up to a bound.
2. A repository that is not there, or has no index and so no commits, tracks nothing. An index that cannot be read from
   its first to its last byte may track the path: that is Unsafe, and never "not tracked".
3. All entries of a shared index count, also those that the split index deletes: `git update-index --no-split-index`
   takes them away.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct

from transport.provenance import regular_file
from transport.provenance.safe_path import Unsafe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MOST = 64 << 20  # bytes of an index: half a million files
_SMALL = 1 << 20  # bytes of another file of git that is read here
_HEAD = 12  # bytes of an index before its entries
_LONGEST = 4096  # bytes of a name: more than PATH_MAX allows
_FACTS = 62  # bytes of an entry before its name, with an object name of SHA-1; the last two are flags
_EXTENDED = 0x4000
_HASHES = {20: "sha1", 32: "sha256"}
_POINTER = b"gitdir:"
SHARED = "sharedindex."  # how the name of a shared index begins


class _Damaged(ValueError):
    """A file that git would not have written."""

    def __init__(self, why: str = "it is damaged") -> None:
        super().__init__(why)


def tracks(path: str) -> str:
    """Return the index by which the repository around `path` (absolute) tracks it, or anything in it; "" if none does.

    Raises Unsafe.
    """
    above = os.path.dirname(path)
    while True:
        git = os.path.join(above, ".git")
        if os.path.lexists(git):
            wanted = os.fsencode(os.path.relpath(path, above))
            return next((index for index, name in _entries(git) if _covers(name, wanted)), "")
        if above == os.path.dirname(above):
            return ""
        above = os.path.dirname(above)


def _covers(entry: bytes, wanted: bytes) -> bool:
    """Return whether an entry is the path, or in it, or a directory around it: a sparse index has those, too."""
    inside = entry == wanted or entry.startswith(wanted + b"/")
    return inside or (entry[-1:] == b"/" and wanted.startswith(entry))


def _entries(git: str) -> Iterator[tuple[str, bytes]]:
    """Yield (file of the index, path) of all entries of a repository, with those of a shared index. Raises Unsafe."""
    read = git
    try:
        directory = _directory(git)
        read = os.path.join(directory, "index")
        try:
            os.lstat(read)
        except FileNotFoundError:
            return
        index = _Index(regular_file.content(read, MOST), _digest_size(directory))
        yield from ((read, name) for name in index.names())
        if shared := index.shared():
            read = os.path.join(directory, SHARED + shared)
            index = _Index(regular_file.content(read, MOST), index.digest)
            yield from ((read, name) for name in index.names())
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise _may_track(read, error) from None


def _may_track(read: str, error: Exception) -> Unsafe:
    why = str(error if isinstance(error, _Damaged) else _Damaged())
    if isinstance(error, OSError):
        read, why = str(error.filename or read), (error.strerror or str(error)).lower()
    useful = (
        read.endswith("/.git") if isinstance(error, _Damaged) else getattr(error, "errno", 0) == errno.EFBIG
    )
    hint = f"look at {read}" if useful else f"look at {read}, then rm {read}"  # git reset makes a new index
    return Unsafe(f"git may track it, because {read} cannot be read: {why}", hint)


def _directory(git: str) -> str:
    """Return the directory that has the index; of a submodule and of a linked work tree a file names it."""
    if os.path.isdir(git):
        return git
    head = regular_file.content(git, _SMALL)
    if not head.startswith(_POINTER):
        raise _Damaged("it names no directory of git")
    named = os.fsdecode(head.removeprefix(_POINTER).strip())
    directory = os.path.join(os.path.dirname(git), named)
    if "\0" in named or (os.path.lexists(directory) and not os.path.isdir(directory)):
        raise _Damaged("it names no directory")
    return directory  # it may not be there: a work tree that is mounted alone in a container


def _digest_size(directory: str) -> int:
    """Return the bytes of an object name. The configuration of a linked work tree is that of the main one."""
    try:
        main = regular_file.content(os.path.join(directory, "commondir"), _SMALL)
        directory = os.path.join(directory, os.fsdecode(main.strip()))
    except FileNotFoundError:
        pass
    try:
        return 32 if b"sha256" in regular_file.content(os.path.join(directory, "config"), _SMALL) else 20
    except FileNotFoundError:
        return 20


class _Index:
    """The bytes of an index: a head, the entries, extensions, a digest."""

    def __init__(self, data: bytes, digest: int) -> None:
        if data[:4] != b"DIRC":
            raise _Damaged("it is no index")
        kept = data[-digest:]
        if any(kept) and kept != hashlib.new(_HASHES[digest], data[:-digest], usedforsecurity=False).digest():
            raise _Damaged  # zeros: a repository with index.skipHash
        self.digest = digest
        self._data = data
        self._version, self._number = struct.unpack_from(">II", data, 4)
        if not 2 <= self._version <= 4:
            raise _Damaged(f"version {self._version} of an index is not known")
        self._behind = _HEAD  # where the extensions begin, once all names were read

    def names(self) -> Iterator[bytes]:
        """Yield the paths of the entries; of one that a split index replaces that is empty."""
        data, at, name = self._data, _HEAD, b""
        for _ in range(self._number):
            begin, at = at, at + _FACTS - 20 + self.digest
            (flags,) = struct.unpack_from(">H", data, at - 2)
            at += 2 if self._version >= 3 and flags & _EXTENDED else 0
            if self._version == 4:
                drop, at = _number(data, at)
                end = data.index(b"\0", at)
                if drop > len(name):
                    raise _Damaged
                name, at = name[: len(name) - drop] + data[at:end], end + 1
            else:
                end = data.index(b"\0", at)
                name, at = data[at:end], begin + (end - begin + 8) // 8 * 8
            if len(name) > _LONGEST:
                raise _Damaged
            yield name
        self._behind = at

    def shared(self) -> str:
        """Return the object name of the shared index, "" if this index is not split. To be called after `names`."""
        found, at, end = "", self._behind, len(self._data) - self.digest
        while at < end:
            kind, size = struct.unpack_from(">4sI", self._data, at)
            if kind == b"link":
                found = self._data[at + 8 : at + 8 + self.digest].hex()
            at += 8 + size
        if at != end:
            raise _Damaged
        return found if found.strip("0") else ""


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, as packs have it, and the place behind it."""
    value, begin = data[at] & 0x7F, at
    while data[at] & 0x80:
        at += 1
        if at - begin > 8:
            raise _Damaged
        value = ((value + 1) << 7) | (data[at] & 0x7F)
    return value, at + 1
