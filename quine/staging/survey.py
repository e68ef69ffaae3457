"""What stands in a directory: one look at every file, and the record that makes the next look enough.

Laws
1. A look is one scandir and one stat for each entry, 4 µs a file; nothing is opened. Its hash is the same as that of
   the record: nothing has changed, and what the record says of contents is true.
2. As with git, a file that was changed within a tick of the clock before the look may change again and look the same:
   such a look is waited for until it is older than a tick, or is not recorded.
3. A record is a help and never a truth: one that is torn, foreign or old is as none.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time

from quine import private
from quine.staging.manifest import SIZE, BadManifest, Manifest, blake2b, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TICK = 20_000_000  # ns; the clock of a file's times goes on in steps of 1 to 10 ms
PATIENCE = 3  # looks at what is being changed
KEPT = 200  # records of a user on a machine
ASIDE = b".quine-aside-"  # what a directory's name begins with that is ours, for a moment
LONGEST = 1 << 20  # bytes of a record's first line
_HEADER = "quine-seen-1"

FACTS = struct.Struct("<QQqqI")  # inode, size, mtime and ctime in ns, mode


class Look:
    """One look: names relative to the base, the facts of each, a hash over both, when it began."""

    __slots__ = ("began", "facts", "hash", "names")

    def __init__(self, names: list[bytes], facts: list[bytes], began: int) -> None:
        self.names = names
        self.facts = facts
        self.began = began
        digest = blake2b(b"\0".join(names), digest_size=SIZE)
        digest.update(b"".join(facts))
        self.hash = digest.hexdigest()

    @property
    def newest(self) -> int:
        """The latest ctime of what has a content, ns; what stands in the future is told of as it is."""
        return max(
            (ctime for _, _, _, ctime, mode in map(FACTS.unpack, self.facts) if not stat.S_ISDIR(mode)),
            default=0,
        )

    def by_name(self) -> dict[bytes, bytes]:
        return dict(zip(self.names, self.facts, strict=True))


def look(
    sources: Iterable[tuple[bytes, bytes]], follow: bool = False, leave_out: tuple[int, int] | None = None
) -> Look:
    """Everything that these name: (path to look at, name it has; "" where it is the base). What is missing is left out.

    `follow` a link that was named; one below it is never followed. `leave_out` is the device and inode of a directory.
    Raises OSError with the path, for a directory that cannot be read.
    """
    began = time.time_ns()
    names: list[bytes] = []
    facts: list[bytes] = []
    pack = FACTS.pack
    for path, name in sources:
        try:
            fact = os.stat(path, follow_symlinks=follow)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if name:
            names.append(name)
            facts.append(pack(fact.st_ino, fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, fact.st_mode))
        todo = [(path, name + b"/" if name else b"")] if stat.S_ISDIR(fact.st_mode) else []
        while todo:
            folder, prefix = todo.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    try:
                        fact = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    mode, own = fact.st_mode, entry.name
                    if mode & 0o170000 == 0o040000:
                        if (fact.st_dev, fact.st_ino) == leave_out or (not prefix and own.startswith(ASIDE)):
                            continue
                        todo.append((folder + b"/" + own, prefix + own + b"/"))
                    names.append(prefix + own)
                    facts.append(pack(fact.st_ino, fact.st_size, fact.st_mtime_ns, fact.st_ctime_ns, mode))
    return Look(names, facts, began)


def settled(take: Callable[[], Look], found: Look) -> tuple[Look, bool]:
    """A look that is older than a tick of the clock, waited for; False where there was none in PATIENCE looks."""
    for _ in range(PATIENCE):
        ahead = found.newest + TICK - found.began
        if ahead <= 0:
            return found, True
        if ahead > 2 * TICK:
            break  # a clock that was put back, or another machine's
        time.sleep(ahead / 1e9)
        found = take()
    return found, False


class Record:
    """What was found of a tree when it was last staged: its manifest, and the facts of each entry, in its order."""

    __slots__ = ("_body", "digest", "hash", "roots")

    def __init__(self, digest: str, hash: str, roots: list[bytes], body: tuple[str, int] | None) -> None:
        self.digest = digest  # of the manifest
        self.hash = hash  # of the look that found it
        self.roots = roots  # of the manifest
        self._body = body  # path, where the manifest begins

    def read(self) -> tuple[bytes, Manifest, list[bytes]] | None:
        """The packed manifest, the manifest, the facts; None where the record is not what it was."""
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
    """The record of a place; NOTHING where there is none."""
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
    key: str, digest: str, found: Look, roots: list[bytes], packed: bytes, facts: list[bytes]
) -> None:
    """Keep what was found. What cannot be kept is found again."""
    named = b"".join(root + b"\0" for root in roots).hex()
    if len(named) > LONGEST // 2:
        return
    folder = cache("seen")
    path = os.path.join(folder, key)
    aside = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        private.make(folder)
        with open(aside, "wb", opener=_private) as file:
            file.write(f"{_HEADER} {digest} {found.hash} -{named}\n".encode())
            file.write(len(packed).to_bytes(8, "little"))
            file.write(packed)
            file.write(b"".join(facts))
        os.rename(aside, path)
        _prune(folder)


def identity(path: str) -> tuple[int, int] | None:
    """Device and inode of what is there; None where nothing is."""
    try:
        fact = os.stat(path)
    except OSError:
        return None
    return fact.st_dev, fact.st_ino


def forget(key: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(cache("seen"), key))


def _prune(folder: str) -> None:
    names = os.listdir(folder)
    if len(names) > KEPT:
        times = sorted((os.stat(os.path.join(folder, name)).st_mtime, name) for name in names)
        for _, name in times[: len(names) - KEPT]:
            os.unlink(os.path.join(folder, name))


def cache(name: str) -> str:
    """Where a user's records and objects are on a machine."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(base, "quine", "staging", name)


def key_of(*parts: str | bytes) -> str:
    """The name of a record."""
    whole = b"\0".join(os.fsencode(part) for part in parts)
    return blake2b(whole, digest_size=16).hexdigest()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
