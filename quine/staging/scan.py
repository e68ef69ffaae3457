"""Scans of directories, and the record of a scan that spares the next staging from reading files.

Laws
1. A scan lists each directory once and stats each entry once, 3 µs a file; it opens no file. If its hash equals the
   record's, nothing has changed, and the recorded contents are valid.
2. As with git, a file changed within one clock tick before the scan may change again and look the same. Such a scan is
   repeated until it is older than a tick, or is not recorded.
3. A record is only an aid: a torn, foreign or old one counts as none.
4. Everything named for sending must be there: a missing name is an error, also a name that an earlier scan found.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time

from quine.base import dirs
from quine.files import exclusions
from quine.staging.manifest import SIZE, BadManifest, Manifest, parse
from transport.address import boot_id, user_directory
from transport.lean import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

TICK = 20_000_000  # ns; file timestamps advance in steps of 1 to 10 ms
PATIENCE = 3  # scans of a tree that keeps changing
KEPT = 200  # records of a user on a machine
ONCE = "once"  # key of a directory that is staged once: no record is kept
ASIDE = exclusions.ASIDE.encode()
# The file in a directory that says which one it is: see `shared_directory`.
PLACE = exclusions.ASIDE + "place"
IDENTITY = 32  # hexadecimal digits in it
MACHINE_ID = "/etc/machine-id"
LONGEST = 1 << 20  # bytes of a record's first line
GONE = "vanished before it was sent"
_HEADER = "quine-seen-1"

FACTS = struct.Struct("<QQqqI")  # inode, size, mtime and ctime in ns, mode
LAST = (1 << 63) - 1  # ns, in the year 2262


def facts_of(fact: os.stat_result) -> bytes:
    times = told_time(fact.st_mtime_ns), told_time(fact.st_ctime_ns)
    return FACTS.pack(fact.st_ino, fact.st_size, *times, fact.st_mode)


def told_time(ns: int) -> int:
    """Return a time of a file as it is told: one before 1677 or after 2262 as the first or the last that fits."""
    return min(max(ns, -LAST), LAST)


def new_aside() -> bytes:
    """Return a name for a private directory, marked as of this machine: others may share the directory around it."""
    return b"-".join([ASIDE + os.urandom(8).hex().encode(), *_marks()])


def is_elsewhere(name: bytes) -> bool:
    """Return whether a private directory is of another machine, whose locks may not be seen here.

    One of an earlier boot of this machine is not: its owner has ended. Earlier builds gave no marks.
    """
    marks = name[len(ASIDE) :].split(b"-")[1:]
    return len(marks) == 2 and not any(mark[:8] == own[:8] for mark, own in zip(marks, _marks()))


def is_renamed(name: bytes) -> bool:
    """Return whether a private directory that is elsewhere has this machine's id: only the host name differs."""
    return name.rpartition(b"-")[2][8:] == _marks()[1][8:] != b""


def _marks() -> tuple[bytes, bytes]:
    """Return the mark of this boot, and that of this machine: with its host name, as copied images have one machine id.

    That of the machine id alone follows it.
    """
    boot = key_of("boot", boot_id())[:8].encode()
    try:
        with open(MACHINE_ID, "rb") as file:
            machine = file.read(64).strip()
    except OSError:
        machine = b""
    if not machine:
        return boot, boot
    named = key_of("machine", machine, os.uname().nodename)[:8]
    return boot, (named + key_of("machine", machine)[:8]).encode()


def is_identity(word: object) -> bool:
    """Return whether this may be the identity of a directory, as a host tells it."""
    return isinstance(word, str) and len(word) == IDENTITY and set(word) <= set("0123456789abcdef")


def is_private(folder: bytes, name: bytes) -> bool:
    """Return whether a name in the base is one of staging alone, which a scan of it leaves out."""
    if not name.startswith(ASIDE):
        return False
    if name == PLACE.encode():
        return True
    path = os.path.join(folder, name)
    return not os.path.islink(path) and (os.path.isdir(path) or not os.path.lexists(path))


class Scan:
    """One scan: its start time, and for each directory its name, the names in it and the facts of each.

    `hash` covers all of it. Names and facts are split only on demand: for ten thousand entries that takes 10 ms.
    """

    __slots__ = ("_folders", "began", "hash")

    def __init__(self, folders: list[tuple[bytes, bytes, bytes]], began: int) -> None:
        self._folders = folders  # (name and a slash, names with a zero byte after each, packed facts)
        self.began = began
        digest = blake2b(digest_size=SIZE)
        for prefix, names, facts in folders:
            digest.update(prefix + b"\0" + names + b"\0")
            digest.update(facts)
        self.hash = digest.hexdigest()

    @property
    def names(self) -> list[bytes]:
        """Names relative to the base, a directory before its contents."""
        return [prefix + name for prefix, names, _ in self._folders for name in names.split(b"\0")[:-1]]

    @property
    def facts(self) -> list[bytes]:
        """Facts in the order of `names`."""
        size = FACTS.size
        return [facts[at : at + size] for _, _, facts in self._folders for at in range(0, len(facts), size)]

    @property
    def newest(self) -> int:
        """The latest ctime of all entries except directories, ns; it may lie in the future."""
        found = (fact for _, _, facts in self._folders for fact in FACTS.iter_unpack(facts))
        return max((ctime for _, _, _, ctime, mode in found if not stat.S_ISDIR(mode)), default=0)

    def by_name(self) -> dict[bytes, bytes]:
        return dict(zip(self.names, self.facts))


def scan(
    sources: Iterable[tuple[bytes, bytes]],
    whole: bool = False,
    leave_out: tuple[int, int] | None = None,
    places: Iterable[str] = (),
    look: Callable[[bytes, bytes], os.stat_result] | None = None,
    left: Callable[[bytes, list[str]], list[str]] | None = None,
) -> Scan:
    """Scan (path, name) pairs; the name is "" for the base. Missing paths are left out.

    With `whole`, to send them: a named symlink is followed (one below it never is), and nothing may be missing.
    `leave_out` is the device and inode of a directory, and `places` are names; neither is left out where it is itself a
    source. `look` takes the facts of a source; `left` tells other names that are left out. Raises OSError, with a path.
    """
    began = time.time_ns()
    lacking = _by_directory([PLACE, *places])
    folders: list[tuple[bytes, bytes, bytes]] = []
    for path, name in sources:
        try:
            fact = look(path, name) if look else os.stat(path, follow_symlinks=whole)
        except (FileNotFoundError, NotADirectoryError):
            if whole:
                raise FileNotFoundError(errno.ENOENT, GONE, path) from None
            continue
        if name:
            folders.append((b"", name + b"\0", facts_of(fact)))
        first = (path, name + b"/" if name else b"", (fact.st_dev, fact.st_ino))
        todo = [first] if stat.S_ISDIR(fact.st_mode) else []
        while todo:
            folder, prefix, seen = todo.pop()
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fact = os.fstat(fd)
                if whole and (fact.st_dev, fact.st_ino) != seen:  # perhaps by a symlink to somewhere else
                    raise FileNotFoundError(errno.ENOENT, "was exchanged while it was looked at", "")
                without = [*lacking.get(prefix, ()), *(left(prefix, os.listdir(fd)) if left else ())]
                names, facts, below = _scan_into(fd, not prefix, whole, leave_out, without)
            except OSError as error:
                own = error.filename if isinstance(error.filename, str) else ""
                raise OSError(error.errno, error.strerror, os.path.join(folder, os.fsencode(own))) from None
            finally:
                os.close(fd)
            todo += [(folder + b"/" + own, prefix + own + b"/", seen) for own, seen in below]
            folders.append((prefix, names, facts))
    return Scan(folders, began)


def _by_directory(places: Iterable[str]) -> dict[bytes, list[str]]:
    """Return the last names of paths by what stands before them."""
    found: dict[bytes, list[str]] = {}
    for place in places:
        above, slash, last = place.rpartition("/")
        found.setdefault(os.fsencode(above + slash), []).append(last)
    return found


def _scan_into(
    fd: int, is_base: bool, whole: bool, leave_out: tuple[int, int] | None, lacking: Collection[str]
) -> tuple[bytes, bytes, list[tuple[bytes, tuple[int, int]]]]:
    """Return the names in a directory, the facts of each, and its subdirectories with their device and inode.

    Names are resolved below the descriptor, which spares the kernel the full path ten thousand times. It is one loop:
    for ten thousand entries, one more generator or tuple in it costs one millisecond.
    """
    names: list[str] = []
    facts: list[bytes] = []
    below: list[tuple[bytes, tuple[int, int]]] = []
    pack, stat_of = FACTS.pack, os.stat
    listed = os.listdir(fd)
    for name in [name for name in listed if name not in lacking] if lacking else listed:
        try:
            fact = stat_of(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            if whole and not (is_base and os.fsencode(name).startswith(ASIDE)):
                raise FileNotFoundError(errno.ENOENT, GONE, name) from None
            continue
        mode = fact.st_mode
        if mode & 0o170000 == 0o040000:
            own = os.fsencode(name)
            if (seen := (fact.st_dev, fact.st_ino)) == leave_out or (is_base and own.startswith(ASIDE)):
                continue
            below.append((own, seen))
        names.append(name)
        try:
            facts.append(pack(fact.st_ino, fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, mode))
        except struct.error:
            facts.append(facts_of(fact))
    return os.fsencode("\0".join([*names, ""])), b"".join(facts), below


class Sources:
    """The (path, name) pairs named for sending, and the scans of them. All others as for `scan`."""

    __slots__ = ("_last", "_leave_out", "_left", "_places", "paths")

    def __init__(
        self,
        named: Iterable[tuple[bytes, bytes]],
        leave_out: tuple[int, int] | None,
        places: Iterable[str] = (),
        left: Callable[[bytes, list[str]], list[str]] | None = None,
    ) -> None:
        self.paths = {name: path for path, name in named}
        self._leave_out, self._places, self._left = leave_out, places, left
        self._last: Scan | None = None

    def take(self) -> Scan:
        """Take one scan. Raises OSError; FileNotFoundError for a name that an earlier scan found and this one not."""
        named = [(path, name) for name, path in self.paths.items()]
        found = scan(
            named, whole=True, leave_out=self._leave_out, places=self._places, look=self.look, left=self._left
        )
        if self._last and self._last.hash != found.hash:
            names = set(found.names)
            for name in self._last.names:
                if name not in names:
                    raise FileNotFoundError(errno.ENOENT, GONE, self.path(name))
        self._last = found
        return found

    def look(self, path: bytes, name: bytes) -> os.stat_result:
        """Return the facts of a named entry; a link is followed. Raises OSError."""
        return os.stat(path)

    def judge(self, name: bytes, fd: int) -> None:
        """Raise OSError if a named entry may not be read as it was opened."""

    def path(self, name: bytes) -> bytes:
        """Return the local path of an entry."""
        above = name
        while above not in self.paths:
            above = above.rpartition(b"/")[0]
        rest = name[len(above) :].lstrip(b"/")
        return os.path.join(self.paths[above], rest) if rest else self.paths[above]


def resolve_ambiguous(take: Callable[[], Scan], found: Scan) -> tuple[Scan, bool]:
    """Wait until a scan is older than a clock tick, and return it; with False if PATIENCE scans gave none."""
    for left in reversed(range(PATIENCE)):
        ahead = found.newest + TICK - found.began
        if ahead <= 0:
            return found, True
        # The clock was set back, or is another machine's; or no scan is left.
        if ahead > 2 * TICK or not left:
            break
        time.sleep(ahead / 1e9)
        found = take()
    return found, False


class Record:
    """The result of a tree's last staging: its manifest, and the facts of each entry in the same order."""

    __slots__ = ("_body", "digest", "hash", "roots")

    def __init__(self, digest: str, hash: str, roots: list[bytes], body: tuple[str, int] | None) -> None:
        self.digest = digest  # of the manifest
        self.hash = hash  # of its scan
        self.roots = roots  # of the manifest
        self._body = body  # path, offset of the manifest

    def read(self) -> tuple[bytes, Manifest, list[bytes]] | None:
        """Return the packed manifest, the manifest and the facts; None if the record is damaged."""
        if self._body is None:
            return None
        path, at = self._body
        try:
            with open(path, "rb") as file:
                file.seek(at)
                length = int.from_bytes(file.read(8), "little")
                packed = file.read(length)
                table = file.read()
            manifest = parse(packed, whole=True)
        except (OSError, BadManifest, OverflowError, MemoryError):
            return None
        if len(table) != FACTS.size * len(manifest):
            return None
        facts = [table[index : index + FACTS.size] for index in range(0, len(table), FACTS.size)]
        return packed, manifest, facts


NOTHING = Record("", "", [], None)


def recall(key: str) -> Record:
    """Return the record of a key, or NOTHING."""
    path = os.path.join(cache("seen"), key)
    try:
        with open(path, "rb") as file:
            line = file.readline(LONGEST)
        fields = line.decode().split()
        if len(fields) == 4 and fields[0] == _HEADER and line.endswith(b"\n"):
            roots = bytes.fromhex(fields[3][1:]).split(b"\0")[:-1]
            return Record(fields[1], fields[2], roots, (path, len(line)))
    except (OSError, ValueError):
        pass
    return NOTHING


def remember(
    key: str, digest: str, found: Scan, roots: list[bytes], packed: bytes, facts: list[bytes]
) -> None:
    """Write a record. Errors are ignored: without it, the next staging reads the files again."""
    named = b"".join(root + b"\0" for root in roots).hex()
    if len(named) > LONGEST // 2:
        return
    from transport.atomic import Aside  # here: every client loads this module

    folder = cache("seen")
    try:
        dirs.make(folder)
        with Aside(os.path.join(folder, key), 0o600, own=True) as file:
            file.write(f"{_HEADER} {digest} {found.hash} -{named}\n".encode())
            file.write(len(packed).to_bytes(8, "little"))
            file.write(packed)
            file.write(b"".join(facts))
            file.commit()
        _prune(folder)
    except OSError:
        pass


def identity(path: str) -> tuple[int, int] | None:
    """Return the device and inode of `path`, or None if it cannot be examined."""
    try:
        fact = os.stat(path)
    except OSError:
        return None
    return fact.st_dev, fact.st_ino


def forget(key: str) -> None:
    try:
        os.unlink(os.path.join(cache("seen"), key))
    except OSError:
        pass


def _prune(folder: str) -> None:
    names = os.listdir(folder)
    if len(names) > KEPT:
        times = sorted((os.stat(os.path.join(folder, name)).st_mtime, name) for name in names)
        for _, name in times[: len(names) - KEPT]:
            os.unlink(os.path.join(folder, name))


def cache(name: str) -> str:
    """Return the directory of a user's records or objects on this machine."""
    return os.path.join(user_directory("cache"), "quine", "staging", name)


def key_of(*parts: str | bytes) -> str:
    """Return the key of a record, a digest of the parts."""
    whole = b"\0".join(os.fsencode(part) for part in parts)
    return blake2b(whole, digest_size=16).hexdigest()
