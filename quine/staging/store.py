"""The store of a host: contents by digest, so that each crosses a link once for all jobs there.

Laws
1. Contents lie in packs. A pack is one file with all contents of one staging, and an index beside it, sorted by digest.
   Ten thousand small files are two files here. Small packs are merged, so many small stagings are few files too.
2. A pack is complete when its index exists. Contents read from it are verified, and a corrupt pack is deleted.
3. A pack may vanish at any time, and the disk may fill at any time; then the origin is asked again. The store is
   private (0700) and holds at most BOUND bytes; the most recently used packs stay.
4. A lock that was taken on a file which has been removed meanwhile is none. So files of locks can be removed by a
   process that has their lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import time
from bisect import bisect_left

from quine.base import dirs
from quine.staging.manifest import SIZE
from quine.staging.scan import cache
from transport.text import harmless
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Late = Callable[[str, float], None]

BOUND = 4 << 30  # bytes of all packs
MOST_PACKS = 512
SMALL = 1 << 20  # bytes; packs up to this size are merged
MANY = 32  # small packs that make a merge: a look-up reads each index
LARGEST = 256 << 20  # bytes; a larger content is not kept
PATIENCE = 60.0  # seconds to wait for another job that fetches the same
HOLDER = 80  # bytes in the file of a lock about its holder
COMMIT = "commit-"  # name of the lock of a directory; a prefix
UNUSED = 86400.0  # seconds after which such a file is removed
FLUSH = 1 << 20

_ENTRY = struct.Struct("<32sQQ")  # digest, offset, length


class Objects:
    """The contents in the store."""

    def __init__(self) -> None:
        self.folder = cache("objects")
        self._found: dict[bytes, tuple[str, int, int]] = {}
        self._open: dict[str, int] = {}

    def among(self, digests: set[bytes]) -> set[bytes]:
        """Return the digests that are stored. Their packs stay open, so they can be read even if deleted meanwhile."""
        for _ in range(2):
            found = self._search(digests)
            gone = {name for name in {place[0] for place in found.values()} if self._descriptor(name) < 0}
            if not gone:
                break  # else a pack was merged or deleted after it was listed
        self._found = {digest: place for digest, place in found.items() if place[0] not in gone}
        return set(self._found)

    def _search(self, digests: set[bytes]) -> dict[bytes, tuple[str, int, int]]:
        """Return {digest: (pack, offset, length)}."""
        found: dict[bytes, tuple[str, int, int]] = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self.folder) if digests else ():
                if name.endswith(".index"):
                    base = name.removesuffix(".index")
                    with contextlib.suppress(OSError), _opened(f"{self.folder}/{name}") as table:
                        for digest, at, length in _rows(table, digests):
                            found[digest] = (base, at, length)
        return found

    def _descriptor(self, name: str) -> int:
        if self._open.get(name, -1) < 0:
            try:
                self._open[name] = os.open(f"{self.folder}/{name}.pack", os.O_RDONLY | os.O_CLOEXEC)
                os.utime(self._open[name])  # marks it as recently used
            except OSError:
                self._open[name] = -1
        return self._open[name]

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """Yield a stored content in its wire form; it is short if the pack is."""
        name, at, length = self._found[digest]
        fd = self._descriptor(name)
        while length > 0 and (data := os.pread(fd, min(FLUSH, length), at)):
            at += len(data)
            length -= len(data)
            yield data

    def drop(self, digest: bytes) -> None:
        """Delete the corrupt pack that holds this content."""
        _drop(self.folder, self._found[digest][0])

    @contextlib.contextmanager
    def turn(self, what: str, name: str) -> Iterator[None]:
        """Let one job at a time do `what` for `name`; a later job finds the result of an earlier one.

        After PATIENCE seconds, or where no lock can be had, the work goes on without the lock.
        """
        fd = self.lock(f"{what}-{name[:2]}")
        try:
            yield
        finally:
            if fd >= 0:
                os.close(fd)

    def lock(self, name: str, late: Late | None = None) -> int:
        """See `lock`, of a file in the store."""
        with contextlib.suppress(OSError):
            dirs.make(self.folder)
        return lock(f"{self.folder}/{name}", True, late)

    def close(self) -> None:
        for fd in self._open.values():
            if fd >= 0:
                os.close(fd)
        self._open.clear()


def lock(path: str, make: bool, late: Late | None = None, at: int = 0) -> int:
    """Wait for the lock of a file; return a descriptor that has it, or -1 without it. It ends with its holder.

    The holder writes its pid there, `at`. After PATIENCE seconds -1 is returned; or `late` is called, with the holder
    and the seconds for which that has been the holder, again and again. It may raise.
    """
    holder, since = "", time.monotonic()
    due = since + PATIENCE
    while (fd := _try_lock(path, make)) is None:
        if (now := time.monotonic()) >= due:
            if late is None:
                return -1
            due = now + PATIENCE
            if (found := _holder(path, at)) != holder:  # thousands that take turns are no fault
                holder, since = found, now - PATIENCE
            late(holder, now - since)
        time.sleep(0.02)
    if fd >= 0:
        with contextlib.suppress(OSError):  # a full disk: those that wait are told no pid
            os.pwrite(fd, f"{os.getpid()} {os.uname().nodename}".encode()[:HOLDER].ljust(HOLDER), at)
    return fd


def _try_lock(path: str, make: bool) -> int | None:
    """Return a descriptor with the lock, -1 if it cannot be had; None if it is held, or its file was just removed."""
    try:
        made = os.O_CREAT | os.O_NOFOLLOW if make else os.O_NOFOLLOW
        fd = os.open(path, os.O_RDWR | made | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError:
        return -1
    found: int | None = -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = fd if os.path.samestat(os.fstat(fd), os.lstat(path)) else None
    except (BlockingIOError, FileNotFoundError):
        found = None
    except OSError:
        pass
    finally:
        if found != fd:
            os.close(fd)
    return found


def _holder(path: str, at: int) -> str:
    """Return the pid of the holder of a lock and the name of its machine, "" if they are not known."""
    with contextlib.suppress(OSError, ValueError), open(path, "rb") as file:
        file.seek(at)
        pid, _, node = file.read(HOLDER).decode().strip().partition(" ")
        return f"{int(pid)} on {harmless(node)}"
    return ""


class Pack:
    """A pack that is written while contents arrive. A full disk ends the pack, not the staging."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._name = f"{time.time_ns():x}-{os.getpid()}"
        self._fd = -1
        self._buffer = bytearray()
        self._index: list[bytes] = []
        self._at = self._begun = 0
        self._skip = False
        with contextlib.suppress(OSError):
            dirs.make(folder)
            path = f"{folder}/{self._name}.part"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # in use: `clean` keeps it

    def begin(self, size: int) -> None:
        """Begin a content of about `size` bytes."""
        self._begun = self._at
        self._skip = self._fd < 0 or size > LARGEST

    def put(self, data: bytes | memoryview) -> None:
        if not self._skip:
            self._buffer += data
            self._at += len(data)
            if len(self._buffer) >= FLUSH:
                self._flush()

    def end(self, digest: bytes) -> None:
        """Index the content, which is complete and verified."""
        if not self._skip:
            self._index.append(_ENTRY.pack(digest, self._begun, self._at - self._begun))

    def add(self, digest: bytes, data: bytes) -> None:
        """Add a content that is in memory as a whole."""
        if self._fd >= 0:
            self._buffer += data
            self._index.append(_ENTRY.pack(digest, self._at, len(data)))
            self._at += len(data)
            if len(self._buffer) >= FLUSH:
                self._flush()

    def _flush(self) -> None:
        try:
            write_all(self._fd, self._buffer)
            self._buffer.clear()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        self._buffer.clear()
        self._skip = True
        self._index.clear()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                os.unlink(f"{self._folder}/{self._name}.part")

    def close(self) -> bool:
        """Complete the pack; return False if nothing is kept."""
        if self._index:
            self._flush()
        if not self._index or self._fd < 0:
            self._give_up()
            return False
        base = f"{self._folder}/{self._name}"
        try:
            fd = os.open(f"{base}.new", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as file:
                file.write(b"".join(sorted(self._index)))
            os.rename(f"{base}.part", f"{base}.pack")
            os.rename(f"{base}.new", f"{base}.index")
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(f"{base}.new")
            self._give_up()
            return False
        os.close(self._fd)
        self._fd = -1
        clean(self._folder)
        return True


@contextlib.contextmanager
def _opened(path: str) -> Iterator[memoryview]:
    """Map an index into memory, without an incomplete entry at its end. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size // _ENTRY.size * _ENTRY.size
        if not size:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as whole, memoryview(whole) as table:
            yield table


class _Keys:
    """The digests of an index, as a sequence: the key of bisect is of 3.10."""

    def __init__(self, table: memoryview) -> None:
        self._table = table

    def __len__(self) -> int:
        return len(self._table) // _ENTRY.size

    def __getitem__(self, at: int) -> bytes:
        return bytes(self._table[at * _ENTRY.size : at * _ENTRY.size + SIZE])


def _rows(table: memoryview, digests: set[bytes]) -> Iterator[tuple[bytes, int, int]]:
    """Yield the index entries of `digests`: by binary search for few, by a full read for many."""
    count = len(table) // _ENTRY.size
    if len(digests) * 64 > count:
        yield from (row for row in _ENTRY.iter_unpack(table) if row[0] in digests)
        return
    keys = _Keys(table)
    for digest in digests:
        index = bisect_left(keys, digest)
        row = _ENTRY.unpack_from(table, index * _ENTRY.size) if index < count else (b"", 0, 0)
        if row[0] == digest:
            yield row


def clean(folder: str, bound: int = BOUND) -> None:
    """Delete the packs unused for longest, and partial files of dead processes. One process cleans at a time."""
    with contextlib.suppress(OSError):
        fd = os.open(f"{folder}/cleaner", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clean(folder, bound)
        finally:
            os.close(fd)


def _clean(folder: str, bound: int) -> None:
    packs: list[tuple[float, int, str]] = []
    for name in os.listdir(folder):
        path, (base, _, end) = f"{folder}/{name}", name.rpartition(".")
        with contextlib.suppress(OSError):
            if end == "pack":
                fact = os.stat(path)
                packs.append((fact.st_mtime, fact.st_size, base))
            elif (end == "index" and not os.path.exists(f"{folder}/{base}.pack")) or (
                end in ("part", "new") and _is_nobodys(path)
            ):
                os.unlink(path)
            elif name.startswith(COMMIT) and os.stat(path).st_mtime < time.time() - UNUSED:
                remove_lock(path)
    packs.sort(reverse=True)
    total = 0
    for count, (_, size, base) in enumerate(packs):
        total += size
        if total > bound or count >= MOST_PACKS:
            _drop(folder, base)
    small = [base for _, size, base in packs[:MOST_PACKS] if size <= SMALL]
    if len(small) >= MANY:
        _merge(folder, small)


def remove_lock(path: str, stays: Callable[[int], bool] = lambda fd: False) -> None:
    """Remove the file of a lock, unless a process has the lock, or it `stays`, which gets a descriptor of it."""
    fd = _try_lock(path, False)
    if fd is not None and fd >= 0:
        try:
            if not stays(fd):
                os.unlink(path)
        finally:
            os.close(fd)


def _merge(folder: str, bases: list[str]) -> None:
    """Merge packs into one. A reader that searched before finds its pack gone, and searches again."""
    pack, kept = Pack(folder), set[bytes]()
    for base in bases:
        with (
            contextlib.suppress(OSError),
            _opened(f"{folder}/{base}.index") as table,
            open(f"{folder}/{base}.pack", "rb") as file,
        ):
            data = file.read(SMALL)
            for digest, at, length in _ENTRY.iter_unpack(table):
                if digest not in kept and at + length <= len(data):
                    kept.add(digest)
                    pack.add(digest, data[at : at + length])
    if pack.close():
        for base in bases:
            _drop(folder, base)


def _drop(folder: str, base: str) -> None:
    for end in ("index", "pack"):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}/{base}.{end}")


def _is_nobodys(path: str) -> bool:
    if path.endswith(".new"):
        return os.stat(path).st_mtime < time.time() - 3600
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False
    finally:
        os.close(fd)


assert _ENTRY.size == SIZE + 16
