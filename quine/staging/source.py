"""The files of the sending side: their manifest, made with as few reads as possible, and their contents on request.

Laws
1. If the hash of the scan equals the record's, no file is opened and no manifest is built: the tree's digest is known.
2. An entry that is neither a file, nor a directory, nor a symlink that stays inside is refused, by name.
3. A pattern that leads to an unreadable directory is an error: the results in it are not known to be absent.
4. Contents are kept for jobs that may wait for long, and a process may have thousands of these. So all of its trees
   have one bound.
4. The name of a source may be exchanged for a link at any time. So the descriptor from which its facts are taken is
   judged (`Sources.judge`). Contents are read from descriptors that have these facts, or are judged as well.
"""

from __future__ import annotations

import errno
import os
import stat
from _thread import RLock  # threading has 0.7 MB, and hosts load this

from quine.files import paths
from quine.files.exclusions import ASIDE, naming
from quine.staging.content import BLOCK, CHANGED, KEEP, Changed, Feed, File, as_seen, measure, send, tell
from quine.staging.manifest import (
    IMPLIED,
    MOST,
    PERMISSIONS,
    SIZE,
    SPARSE,
    Manifest,
    digest_of,
    shown,
    stays,
)
from quine.staging.renames import Parents
from quine.staging.scan import FACTS, Record, recall, remember, resolve_ambiguous
from transport.lean import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from quine.files.exclusions import Places
    from quine.staging.content import Line
    from quine.staging.scan import Scan, Sources

ROUND = 1 << 20  # bytes of small files in one write


_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def check_read(patterns: Collection[str], folder: str, places: Places | None = None) -> None:
    """Raise OSError if a directory that may hold matches of a pattern in `folder` cannot be read.

    A glob passes it over. Directories at `places` that the pattern does not name are not looked into.
    """
    from quine.staging import spec

    for pattern in patterns:
        text = spec.text_of(pattern)
        todo = [("", pattern.split("/"))] if not os.path.exists(os.path.join(folder, text)) else []
        while todo:
            above, parts = todo.pop()
            place = places.at(above) if places and above else ""
            if not place or naming(place, [text]):
                todo += _leading_on(folder, above, parts)


def _leading_on(folder: str, above: str, parts: list[str]) -> list[tuple[str, list[str]]]:
    """Return the directories in which a part of a pattern goes on, and its parts there. Raises as `check_read`."""
    from quine.staging import spec

    path = os.path.join(folder, above) if above else folder
    name = spec.name_of(parts[0])
    try:
        if name is not None:
            _check_entered(path, name)
            return [(paths.join(above, name), parts[1:])] if parts[1:] else []
        with os.scandir(path) as listed:
            found = [each for each in listed if spec.is_like(each.name, parts[0])]
        found = [each for each in found if not _is_apart(each.name)]
        if found:
            _check_entered(path, ".")
        down = parts if parts[0] == "**" else parts[1:]  # a link may lead upwards
        inner = [each.name for each in found if down and each.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno in _ABSENT:
            return []
        raise
    below = [(paths.join(above, each), down) for each in inner]
    return [*below, *([(above, parts[1:])] if down is parts and parts[1:] else [])]


def _check_entered(folder: str, name: str) -> None:
    try:
        os.stat(os.path.join(folder, name))
    except PermissionError as error:
        raise PermissionError(error.errno, error.strerror, folder) from None


def _is_apart(name: str) -> bool:
    """Whether no job puts results into a directory: one of staging, or what file systems have for root alone."""
    return name.startswith(ASIDE) or name == "lost+found"


class LeadsOut(OSError):
    """A symlink that would have another target on the other side, or none."""

    cure = "a link that is named is followed: name what is in its directory, as in --files 'DIR/*'"


class Kept:
    """Contents of one tree by their digests, until it goes. Those of all trees have at most KEEP bytes."""

    _lock = RLock()
    room = KEEP

    def __init__(self) -> None:
        self._contents: dict[bytes, bytes] = {}
        self._size = 0

    def add(self, digest: bytes, data: bytes) -> None:
        """Keep a content if there is room."""
        with self._lock:
            if digest not in self._contents and len(data) <= Kept.room:
                Kept.room -= len(data)
                self._size += len(data)
                self._contents[digest] = data

    def get(self, digest: bytes) -> bytes | None:
        return self._contents.get(digest)

    def __del__(self) -> None:
        with self._lock:
            Kept.room += self._size

    @classmethod
    def unlock(cls) -> None:
        """In a child process: the thread that had the lock is not there."""
        cls._lock = RLock()


os.register_at_fork(after_in_child=Kept.unlock)


class Tree:
    """The files and directories to send. Raises OSError that names an entry that cannot be staged."""

    def __init__(self, sources: Sources, key: str) -> None:
        self._sources = sources.paths
        self.path, self._judge = sources.path, sources.judge
        self._record = record = recall(key)
        self._packed = b""
        self._manifest: Manifest | None = None
        self._facts: list[bytes] = []
        self._kept = Kept()

        first = sources.take()
        if first.hash == record.hash:
            self.digest = record.digest
            return
        found, calm = resolve_ambiguous(sources.take, first)
        calm = self._build(found, record) and calm
        self._packed = self.manifest.pack()
        self.digest = digest_of(self._packed)
        if calm:
            remember(key, self.digest, found, self.manifest.roots, self._packed, self._facts)

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            self.packed  # noqa: B018 - reads the record
        assert self._manifest is not None
        return self._manifest

    @property
    def packed(self) -> bytes:
        if not self._packed:
            whole = self._record.read()
            if whole is None or digest_of(whole[0]) != self.digest:
                raise Changed(0, "the record of the scanned files is gone", None)
            self._packed, self._manifest, self._facts = whole
        return self._packed

    def _build(self, found: Scan, record: Record) -> bool:
        """Build the manifest of a scan; return False if a file has changed since."""
        names = found.names
        if len(names) > MOST:
            raise OSError(0, f"more than {MOST} files")
        known: dict[bytes, tuple[bytes, bytes, int]] = {}
        if before := record.read():
            _, old, facts = before
            known = {
                name: (fact, mark, mode)
                for name, fact, mark, mode in zip(old.names, facts, old.marks, old.modes)
            }
        manifest = self._manifest = Manifest()
        self._imply()
        calm = True
        folder, base = b"/", b""  # no name begins with a slash
        for name, fact in zip(names, found.facts):
            _, size, mtime, _, mode = FACTS.unpack(fact)
            kind = mode & 0o170000
            if kind == stat.S_IFREG:
                was = known.get(name)
                if was and was[0] == fact:
                    manifest.add(name, mode & (0o170000 | PERMISSIONS) | was[2] & SPARSE, mtime, size, was[1])
                else:
                    above, _, last = name.rpartition(b"/")
                    if above != folder or name in self._sources:
                        folder, base = above, os.path.dirname(self._source(name)) + b"/"
                        last = os.path.basename(self._source(name))
                    seen = self._add_file(name, base + last, fact, size)
                    calm, fact = calm and seen == fact, seen
            elif kind == stat.S_IFDIR:
                manifest.add(name, mode & (0o170000 | PERMISSIONS), mtime)
            elif kind == stat.S_IFLNK:
                self._add_link(name, mtime)
            else:
                raise OSError(0, "neither a file nor a directory nor a link", self.path(name))
            self._facts.append(fact)
        self._check_links()
        return calm

    def _imply(self) -> None:
        """Add the directories above the named entries."""
        assert self._manifest is not None
        done: set[bytes] = set()
        for name in self._sources:
            parts = name.split(b"/")[:-1]
            for count in range(1, len(parts) + 1):
                above = b"/".join(parts[:count])
                if above not in done and above not in self._sources:
                    done.add(above)
                    self._manifest.add(above, stat.S_IFDIR | 0o755 | IMPLIED, 0)
                    self._facts.append(bytes(FACTS.size))

    def _add_file(self, name: bytes, path: bytes, fact: bytes, size: int) -> bytes:
        """Read a file for its digest, and keep the content if there is room. Return its facts at that time."""
        assert self._manifest is not None
        data = as_seen(path, fact, size) if size <= BLOCK else None
        if data is not None:
            _, _, mtime, _, mode = FACTS.unpack(fact)
            digest = blake2b(data, digest_size=SIZE).digest()
            self._manifest.add(name, mode & (0o170000 | PERMISSIONS), mtime, size, digest)
        else:
            file = self._measured(name, path)
            data, digest, fact = file.data, file.digest, file.facts
            self._manifest.add(name, file.mode, file.mtime, file.size, digest)
        if data is not None:
            self._kept.add(digest, data)
        return fact

    def _measured(self, name: bytes, path: bytes) -> File:
        """Measure a file by way of its named directory. One between them may be a symlink by now; none is followed.

        A match of a pattern, file or directory, may itself have become one: its descriptor is judged.
        """
        above = name
        while above not in self._sources:
            above = above.rpartition(b"/")[0]
        if above == name:
            return measure(path, judge=lambda fd: self._judge(name, fd))
        base = os.open(self._source(above), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._judge(above, base)
            with Parents(base) as parents:
                folder, _ = parents.of(name[len(above) :].lstrip(b"/"))
                return measure(path, folder)
        finally:
            os.close(base)

    def _add_link(self, name: bytes, mtime: int) -> None:
        assert self._manifest is not None
        target = os.readlink(self.path(name))
        self._manifest.add(name, stat.S_IFLNK | 0o777, mtime, 0, target)

    def _check_links(self) -> None:
        manifest = self.manifest
        roots = {b""} if b"" in self._sources else set(manifest.roots)
        for name, mode, mark in zip(manifest.names, manifest.modes, manifest.marks):
            if mode & 0o170000 == stat.S_IFLNK and not stays(name, mark, roots):
                text = f"a link that leads out of what is staged, to {shown(mark)}"
                raise LeadsOut(0, text, self.path(name))

    # -- contents ----------------------------------------------------------------------------------

    def serve(self, line: Line, feed: Feed) -> dict[str, object]:
        """Answer the receiver's requests until it sends another message, and return that message."""
        while True:
            message, blob = feed.hear((len(self.manifest) + 7) // 8)
            if message.get("say") == "manifest":
                tell(line, {}, self.packed)
            elif message.get("say") == "want":
                self._send(line, blob)
            else:
                return message

    def _send(self, line: Line, wanted: bytes) -> None:
        """Send the contents of the entries whose bits are set, in order."""
        manifest = self.manifest
        waiting: list[bytes] = []
        size = 0
        for index in set_bits(wanted, len(manifest)):
            if not manifest.is_file(index):
                continue
            data = self._kept.get(manifest.marks[index])
            if data is not None:
                waiting.append(data)
                size += len(data)
            elif manifest.sizes[index] <= ROUND and not manifest.modes[index] & SPARSE:
                file = measure(self._source(manifest.names[index]))
                if file.digest != manifest.marks[index] or file.data is None:
                    raise Changed(0, CHANGED, self.path(manifest.names[index]))
                waiting.append(file.data)
                size += len(file.data)
            else:
                line.write(b"".join(waiting))
                waiting, size = [], 0
                path = self._source(manifest.names[index])
                send(line, path, self._facts[index], bool(manifest.modes[index] & SPARSE))
            if size >= ROUND:
                line.write(b"".join(waiting))
                waiting, size = [], 0
        if waiting:
            line.write(b"".join(waiting))

    def _source(self, name: bytes) -> bytes:
        return os.path.realpath(self.path(name)) if name in self._sources else self.path(name)


def set_bits(blob: bytes, count: int) -> list[int]:
    """Return the numbers below `count` whose bits are set in `blob`."""
    return [
        index
        for at, byte in enumerate(blob)
        if byte
        for index in range(8 * at, 8 * at + 8)
        if byte >> (index & 7) & 1 and index < count
    ]


def bits(indices: list[int], count: int) -> bytes:
    found = bytearray((count + 7) // 8)
    for index in indices:
        found[index >> 3] |= 1 << (index & 7)
    return bytes(found)
