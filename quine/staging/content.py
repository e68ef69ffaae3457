"""Contents of files: their digests, their form on the wire, and the messages of both ends.

Laws
1. A file is read once if possible: data read for its digest is kept, up to KEEP bytes in all, and sent from memory.
2. A file that changed while it was read is read again; after TRIES attempts, an error names it. A mixture of two
   versions never gets a digest.
3. A sparse file travels as its extents, so that its holes cost nothing and stay holes.
4. Input is bounded by its announcement: nothing is read beyond it, and a length is checked before it is used.
"""

from __future__ import annotations

import itertools
import os
import struct

from quine.staging.manifest import LARGEST, PERMISSIONS, SIZE, SPARSE, shown
from quine.staging.scan import facts_of, told_time
from transport import quickjson
from transport.lean import blake2b
from transport.spawn import encodable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    class Line(Protocol):
        """Either end of a streaming request."""

        def read(self, size: int) -> bytes: ...

        def write(self, data: bytes) -> None: ...


BLOCK = 1 << 20  # bytes read or written at a time
KEEP = 64 << 20  # bytes of contents that a process keeps from the digest until they are sent
TRIES = 3
CHANGED = "changed while it was staged"
SIZELESS = "its contents are not as long as it says, as those of /proc and /sys; a copy of it can be staged"
MOST_EXTENTS = 1 << 17  # of one file: a reader holds all of them
LONGEST_MESSAGE = 1 << 20
PATH_MAX = 4096  # bytes of a path that a process can enter by it, with the NUL behind it
LONGEST_BLOB = 1 << 28  # a manifest of some millions of files

ROUNDS = 4  # attempts, if files change or stored contents vanish
AGAIN = "again: "  # prefix of an error that another attempt may cure
KNOWN = "known: "  # prefix of an error that the caller itself reports

_EXTENT = struct.Struct("<QQ")
_PERSON = b"quine sparse"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # opening a FIFO does not block


class Changed(OSError):
    """A file changed while it was staged."""


class Broken(Exception):
    """The other end sent something else than it announced."""


class Cut(Broken):
    """Its line ended in the middle: another try may bring the rest."""


# -- messages --------------------------------------------------------------------------------------


def tell(line: Line, message: dict[str, Any], blob: bytes = b"") -> None:
    """Send one message and the bytes that belong to it."""
    text = quickjson.dumps(message).encode()
    line.write(struct.pack("<IQ", len(text), len(blob)) + text + blob)


def listed(message: dict[str, object], field: str, known: Callable[[str], bool]) -> list[str]:
    """Return the names of a field of a message that are known."""
    given = message.get(field)
    names = [name for name in given if isinstance(name, str)] if isinstance(given, list) else []
    return [name for name in dict.fromkeys(names) if known(name)]


def place_of(message: dict[str, object], field: str = "in") -> str:
    """Return the directory that a sending job tells; "" for what cannot be one."""
    place = message.get(field)
    good = isinstance(place, str) and os.path.isabs(place) and encodable(place)
    return str(place) if good and len(os.fsencode(str(place))) < PATH_MAX else ""


def text_field(message: dict[str, Any], name: str) -> str:
    """Return a field of a received message as printable text. JSON may hold lone surrogates, which UTF-8 cannot."""
    return shown(str(message.get(name) or "").encode("utf-8", "backslashreplace"))


class Feed:
    """A buffered reader of a line, which returns exactly the lengths asked for."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._left = memoryview(b"")

    def _more(self) -> None:
        data = self._line.read(BLOCK)
        if not data:
            raise Cut("the other end said no more")
        self._left = memoryview(data)

    def pieces(self, length: int) -> Iterator[memoryview]:
        while length:
            if not self._left:
                self._more()
            piece = self._left[:length]
            self._left = self._left[len(piece) :]
            length -= len(piece)
            yield piece

    def take(self, length: int) -> bytes:
        """Read exactly `length` bytes. Raises Broken."""
        if length <= len(self._left):
            piece = bytes(self._left[:length])
            self._left = self._left[length:]
            return piece
        return b"".join(self.pieces(length))

    def hear(self, most: int = 0) -> tuple[dict[str, Any], bytes]:
        """Read one message and its bytes, at most `most` of them and LONGEST_BLOB. Raises Broken."""
        size, blob = struct.unpack("<IQ", self.take(12))
        most = min(most, LONGEST_BLOB)
        if size > LONGEST_MESSAGE or blob > most:
            raise Broken(
                f"a message of {size} and {blob} bytes, and {LONGEST_MESSAGE} and {most} are possible"
            )
        try:
            message = quickjson.loads(self.take(size))
        except (ValueError, RecursionError):
            raise Broken("not a message") from None
        if not isinstance(message, dict):
            raise Broken("not a message")
        return message, self.take(blob)


class Heard:
    """The bytes that have come from a host. `value` stays the same only while this end waits for it, and none come."""

    __slots__ = ("came", "waits")

    def __init__(self) -> None:
        self.came = 0
        self.waits = True

    @property
    def value(self) -> object:
        return self.came if self.waits else object()

    def __enter__(self) -> None:
        self.waits = False  # this end is at work

    def __exit__(self, *_: object) -> None:
        self.waits = True


class CountedLine:
    """A conversation with a host, for one handler at a time."""

    __slots__ = ("_heard", "_incoming")

    def __init__(self, incoming: Line, heard: Heard) -> None:
        self._incoming, self._heard = incoming, heard

    def read(self, size: int) -> bytes:
        heard = self._heard
        heard.waits = True
        data = self._incoming.read(size)
        heard.waits = False
        heard.came += len(data)
        return data

    def write(self, data: bytes) -> None:
        self._heard.waits = True
        self._incoming.write(data)
        self._heard.waits = False


# -- reading a file --------------------------------------------------------------------------------


class File:
    """A file's digest and its facts at that time; `data` is the content if it is small, else None."""

    __slots__ = ("data", "digest", "facts", "mode", "mtime", "size")

    def __init__(self, fact: os.stat_result, digest: bytes, sparse: bool, data: bytes | None) -> None:
        self.facts = facts_of(fact)
        self.mode = (fact.st_mode & (0o170000 | PERMISSIONS)) | (SPARSE if sparse else 0)
        self.size = fact.st_size
        self.mtime = told_time(fact.st_mtime_ns)
        self.digest = digest
        self.data = data


def as_seen(path: bytes, facts: bytes, size: int) -> bytes | None:
    """Read a small file. Return None if it is sparse or differs from the facts of the scan."""
    fd = os.open(path, _READ)
    try:
        data = os.read(fd, size + 1)
        fact = os.fstat(fd)
    finally:
        os.close(fd)
    same = len(data) == size and fact.st_blocks * 512 >= size and facts_of(fact) == facts
    return data if same else None


def measure(path: bytes, folder: int | None = None, judge: Callable[[int], None] | None = None) -> File:
    """Read a file for its digest; with `folder`, open it by its last name there. Raises OSError, Changed.

    `judge` gets the descriptor, and may refuse to have it read.
    """
    name = path if folder is None else os.path.basename(path)
    for left in reversed(range(TRIES)):
        fd = os.open(name, _READ, dir_fd=folder)
        try:
            if judge:
                judge(fd)
            return _measured(fd, path)
        except Changed:
            if not left:
                raise
        finally:
            os.close(fd)
    raise AssertionError("unreachable")


def _measured(fd: int, path: bytes) -> File:
    fact = os.fstat(fd)
    size, data = fact.st_size, None
    whole = [(0, size)]
    found = extents(fd, size) if fact.st_blocks * 512 < size else whole
    if found == whole and size <= BLOCK:
        data = os.pread(fd, size + 1, 0)
        if len(data) != size:
            _expect(fd, facts_of(fact), path)
            raise OSError(0, SIZELESS, path)
        digest = blake2b(data, digest_size=SIZE)
    else:
        digest = blake2b(digest_size=SIZE) if found == whole else blank(size, found)
        for _, piece in blocks(fd, found, path):
            digest.update(piece)
    file = File(fact, digest.digest(), found != whole, data)
    _expect(fd, file.facts, path)
    return file


def blocks(fd: int, found: list[tuple[int, int]], path: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, data) of these ranges of a file. Raises Changed if it ends sooner."""
    for at, length in found:
        while length:
            data = os.pread(fd, min(BLOCK, length), at)
            if not data:
                raise Changed(0, CHANGED, path)
            yield at, data
            at += len(data)
            length -= len(data)


def _expect(fd: int, facts: bytes, path: bytes) -> None:
    """Raise Changed unless the file still has these facts."""
    if facts_of(os.fstat(fd)) != facts:
        raise Changed(0, CHANGED, path)


def extents(fd: int, size: int) -> list[tuple[int, int]]:
    """Return the (start, length) ranges that hold data.

    A file with too many ranges, or a filesystem that cannot tell, gives one range for the whole file.
    """
    from quine.files.stores.local.holes import runs  # here: few files are sparse

    first = itertools.islice(runs(fd, 0, size), MOST_EXTENTS + 1)
    found = [(start, end - start) for _, start, end in first if end > start]
    return found if len(found) <= MOST_EXTENTS else [(0, size)]


def blank(size: int, found: list[tuple[int, int]]) -> Any:
    """Return the hash of a sparse file, before its data is added."""
    return blake2b(size.to_bytes(8, "little") + head(found), digest_size=SIZE, person=_PERSON)


def head(found: list[tuple[int, int]]) -> bytes:
    """Return the extents of a sparse file in the form that precedes its data on the wire."""
    return len(found).to_bytes(4, "little") + b"".join(_EXTENT.pack(*extent) for extent in found)


def parse_head(take: Any, size: int) -> list[tuple[int, int]]:
    """Read extents, which must be ordered, disjoint and within `size`. Raises Broken."""
    count = int.from_bytes(take(4), "little")
    if count > MOST_EXTENTS:
        raise Broken("too many extents")
    table, found, end = take(count * _EXTENT.size), [], 0
    for start, length in _EXTENT.iter_unpack(table):
        if start < end or not length or length > LARGEST or start + length > size:
            raise Broken("extents that are none")
        end = start + length
        found.append((start, length))
    return found


def send(line: Line, path: bytes, facts: bytes, sparse: bool) -> None:
    """Send a file's content, which must not have changed since it was measured. Raises Changed, OSError."""
    fd = os.open(path, _READ)
    try:
        _expect(fd, facts, path)
        size = os.fstat(fd).st_size
        found = extents(fd, size) if sparse else [(0, size)]
        if sparse:
            line.write(head(found))
        for _, data in blocks(fd, found, path):
            line.write(data)
        _expect(fd, facts, path)
    finally:
        os.close(fd)


def error_text(error: OSError) -> str:
    """Return the text of an OSError, beginning with its file."""
    name = error.filename
    what = (error.strerror or str(error)).lower()
    return f"{shown(os.fsencode(name))}: {what}" if isinstance(name, (str, bytes)) else what
