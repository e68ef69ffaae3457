"""Whether git tracks a path: read from the index file itself, so that nothing which a repository configures is run.

Source: gitformat-index(5), versions 2 to 4, with the extension `link` of a split index.

Laws
1. The repository is foreign: each file of it is read by regular_file.py, up to a bound.
2. A repository that is not there, or has neither an index nor objects, tracks nothing. An index that cannot be read
   from its first to its last byte, or that is missing, may track the path: that is Unsafe, and never "not tracked".
3. All entries of a shared index count, also those that the split index deletes: `git update-index --no-split-index`
   takes them away.
4. Names of a foreign index may be long, many and written to be slow: none is kept, and letters that are not ASCII are
   looked at up to a bound. An index with more of them may track the path.
5. An entry is the path if some file system takes its name for that: `.Quine` comes out as `.quine` where case is
   ignored.
6. Git tracks a file where it is, not by a name that a link gives it, so the links of a path are followed first.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct

from transport.provenance import aliases, regular_file
from transport.provenance.safe_path import Unsafe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    Seen = TypeVar("Seen")

MOST = 64 << 20  # bytes of an index: half a million files
_SMALL = 1 << 20  # bytes of another file of git that is read here
_HEAD = 12  # bytes of an index before its entries
_LONGEST = 4096  # bytes of a name: more than PATH_MAX allows
_FOLDED = 4 << 20  # letters of names that are not ASCII and may be the path: a hundred thousand names
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
    """Return the index by which the repository around `path` tracks it, or anything in it; "" if none does.

    Raises Unsafe.
    """
    path = os.path.realpath(path)
    git, names = _repository(os.path.dirname(path))
    way = _Way([*names, os.path.basename(path)])
    return next((index for index, rest in _entries(git, way.rest) if rest is not None), "")


class Tracked:
    """The names that git tracks in a directory; its index is read once. Raises Unsafe."""

    def __init__(self, directory: str) -> None:
        git, names = _repository(os.path.realpath(directory))
        way, forms, self._all = _Way(names), _Forms(), False

        def look(entry: bytes) -> tuple[bytes, str] | None:
            rest = way.rest(entry)
            return None if rest is None else ((name := rest.partition(b"/")[0]), forms.plain(name))

        # Hashes: of plain names, and of the forms that short ones stand for. Two that are equal may be the same name.
        self._found: set[int] = set()
        for _, seen in _entries(git, look):
            if seen:
                name, form = seen
                self._all = self._all or not name
                self._found.update((hash(form), hash(aliases.short(form) if "~" in form else form)))

    def __contains__(self, name: str) -> bool:
        found = aliases.plain(name)
        return self._all or not self._found.isdisjoint((hash(found), hash(aliases.shortened(found))))


def _repository(directory: str) -> tuple[str, list[str]]:
    """Return the `.git` of the repository around a directory, and the names on the way from there; "" without one."""
    names: list[str] = []
    while not os.path.lexists(git := os.path.join(directory, ".git")):
        directory, name = os.path.split(directory)
        if not name:
            return "", []
        names.insert(0, name)
    return git, names


class _Forms:
    """Names of an index in the form of `aliases.plain`. They are sorted there: each is looked at while it repeats."""

    def __init__(self) -> None:
        self._name, self._form = b"", ""
        self._left = _FOLDED

    def plain(self, name: bytes) -> str:
        """Raises _Damaged for more letters than an index is believed to have."""
        if name != self._name:
            text = os.fsdecode(name)
            if not text.isascii() and len(text) <= aliases.LONGEST:
                self._left -= len(text)
                if self._left < 0:
                    raise _Damaged("it has too many names that are not ASCII")
            self._name, self._form = name, aliases.plain(text)
        return self._form


class _Way:
    """The names of a path, from its repository on."""

    def __init__(self, names: list[str]) -> None:
        self._names = [(aliases.plain(name), os.fsencode(name), _Forms()) for name in names]

    def rest(self, entry: bytes) -> bytes | None:
        """Return what an entry names in this path: b"" for all of it, None for nothing.

        A sparse index has directories, too, which end in a slash.
        """
        if not entry:
            return None  # replaced by one of a split index
        names = entry.split(b"/", len(self._names))
        rest = names.pop() if len(names) > len(self._names) or not names[-1] else b""
        below = len(names) == len(self._names) or (not rest and entry.endswith(b"/"))
        return rest if below and all(map(self._is, range(len(names)), names)) else None

    def _is(self, at: int, name: bytes) -> bool:
        wanted, itself, forms = self._names[at]
        return name == itself or aliases.stands_for(forms.plain(name), wanted)


def _entries(git: str, look: Callable[[bytes], Seen]) -> Iterator[tuple[str, Seen]]:
    """Yield (file of the index, what `look` sees in the path) of all entries of a repository. Raises Unsafe.

    Those of a shared index are among them.
    """
    read = git
    index = ""
    try:
        if not git:
            return
        directory = _directory(git)
        read = index = os.path.join(directory, "index")
        try:
            os.lstat(read)
        except FileNotFoundError:
            if _has_objects(directory):
                why = f"git may track it, because {read} is missing"
                raise Unsafe(why, f"look at {directory}, then git reset") from None
            return
        main = _Index(regular_file.content(read, MOST), _digest_size(directory))
        yield from ((read, look(name)) for name in main.names())
        if shared := main.shared():
            read = os.path.join(directory, SHARED + shared)
            part = _Index(regular_file.content(read, MOST), main.digest)
            yield from ((read, look(name)) for name in part.names())
    except Unsafe:
        raise
    except (OSError, ValueError, IndexError, struct.error) as error:
        raise _may_track(read, index, error) from None


def _may_track(read: str, index: str, error: Exception) -> Unsafe:
    why = str(error if isinstance(error, _Damaged) else _Damaged())
    if isinstance(error, OSError):
        read, why = str(error.filename or read), (error.strerror or str(error)).lower()
    # Without its index a repository would show nothing of what it tracks. Git makes a new one of the last commit.
    ours = index and read.startswith((index, os.path.join(os.path.dirname(index), SHARED)))
    again = ours and getattr(error, "errno", 0) != errno.EFBIG
    hint = f"look at {read}" + f", then mv {index} {index}.aside; git reset" * bool(again)
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


def _common(directory: str) -> str:
    """Return the directory of configuration and objects; for a linked work tree it is that of the main one."""
    try:
        main = regular_file.content(os.path.join(directory, "commondir"), _SMALL)
    except FileNotFoundError:
        return directory
    return os.path.join(directory, os.fsdecode(main.strip()))


def _has_objects(directory: str) -> bool:
    """Return whether there may be a commit: `git init` makes a directory for objects that is empty but for two."""
    objects = os.path.join(_common(directory), "objects")
    for each in (objects, os.path.join(objects, "info"), os.path.join(objects, "pack")):
        try:
            if set(os.listdir(each)) - ({"info", "pack"} if each == objects else set()):
                return True
        except FileNotFoundError:
            pass
    return False


def _digest_size(directory: str) -> int:
    """Return the bytes of an object name."""
    try:
        config = regular_file.content(os.path.join(_common(directory), "config"), _SMALL)
    except FileNotFoundError:
        return 20
    return 32 if _object_format(config) == b"sha256" else 20


def _object_format(config: bytes) -> bytes:
    """Return the value of `extensions.objectFormat`; b"" without one. See git-config(1)."""
    section, found = b"", b""
    for line in config.splitlines():
        line = line.strip()
        if line.startswith(b"["):
            name, _, line = line[1:].partition(b"]")
            section = name.strip().lower()
        key, _, value = line.partition(b"=")
        if section == b"extensions" and key.strip().lower() == b"objectformat":
            found = value.partition(b"#")[0].partition(b";")[0].strip().strip(b'"')
    return found


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
