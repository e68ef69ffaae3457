"""sync: make one directory like another, one way, by what differs.

Laws
1. What has the same size and time on both sides is not sent. Where a store keeps whole seconds, those are compared.
2. What the target has more is removed only with --delete, after everything else, and not at all where a part of the
   source could not be read: what was not seen is not what is not there.
3. A dry run prints what would be done, in the order in which it would be begun, and changes nothing.
"""

from __future__ import annotations

import errno
import os

from quine.exits import Misconfigured
from quine.files import disk, names, targets
from quine.files.getting import get_file
from quine.files.grammar import PREFIX
from quine.files.putting import put_file, refused
from quine.files.shown import escaped, path_bytes
from quine.files.tier import BLOCK, FILE_MODE, error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.files.commands import Call
    from quine.files.crew import Crew
    from quine.files.tier import Entry, Tier

CLOSE = 2e-6  # seconds: what is lost of a time on its way through a float
UNITS = (1, 1000)  # parts of a second that stores keep, where they do not keep all


class Item:
    """What there is under a name, on either side."""

    __slots__ = ("kind", "mode", "mtime", "path", "size")

    def __init__(self, path: str, kind: str, size: int, mtime: float, mode: int) -> None:
        self.path, self.kind, self.size, self.mtime, self.mode = path, kind, size, mtime, mode


def of_disk(found: disk.Found) -> Item:
    status = found.stat
    return Item(found.path, found.kind, status.st_size, status.st_mtime, status.st_mode & disk.PERMISSIONS)


def of_tier(entry: Entry, top: str) -> Item:
    return Item(targets.below(entry, top), entry.kind, entry.size, entry.mtime, entry.mode & disk.PERMISSIONS)


def same_time(one: float, other: float) -> bool:
    """Is it the same moment, as far as both can say?"""
    if abs(one - other) < CLOSE:
        return True
    for unit in UNITS:
        for exact, rough in ((one * unit, other * unit), (other * unit, one * unit)):
            if abs(rough - round(rough)) < CLOSE * unit and abs(exact - round(rough)) < 1:
                return True
    return False


def sync(call: Call) -> int:
    if len(call.paths) != 2:
        raise Misconfigured(
            "sync takes two paths: SOURCE TARGET", "quine fs sync DIR tier:PATH, or the other way"
        )
    source, target = call.paths
    if source.startswith(PREFIX) == target.startswith(PREFIX):
        hint = f"quine fs sync {PREFIX}PATH DIR, or the other way" + (
            "; quine fs cp -r" if source.startswith(PREFIX) else ""
        )
        raise Misconfigured(f"one of the two paths should be in the tier, written {PREFIX}PATH", hint)
    with targets.crew_of(call.values) as crew:
        if source.startswith(PREFIX):
            top = names.clean(source.removeprefix(PREFIX))
            if call.tier.stat(top).is_file:
                raise error(errno.ENOTDIR, top)
            job: _Sync = _Down(call, crew, top, target)
        else:
            if not os.path.isdir(source):
                raise error(errno.ENOTDIR if os.path.exists(source) else errno.ENOENT, source)
            job = _Up(call, crew, source, names.clean(target.removeprefix(PREFIX)))
        try:
            job.run()
            crew.progress.found_all = True
            crew.wait()
            job.remove()
            return crew.finish() or call.end()
        finally:
            job.close()


class _Sync:
    """What both directions have in common."""

    verb = ""

    def __init__(self, call: Call, crew: Crew, source: str, target: str) -> None:
        self.call, self.crew, self.source, self.target = call, crew, source, target
        self.dry = bool(call.values.get("dry_run"))
        self.checksum = bool(call.values.get("checksum"))
        self.delete = bool(call.values.get("delete"))
        self.whole = True  # all of the source could be read
        self.there: dict[str, Item] = {}  # what the target has
        self.seen: set[str] = set()  # what the source has

    def unread(self, problem: OSError) -> None:
        self.whole = False
        self.crew.failed(problem)

    def run(self) -> None:
        self.there = {item.path: item for item in self.theirs()}
        for item in targets.needed(self.noted()):
            there = self.there.get(item.path)
            if item.kind not in ("file", "directory"):
                self.crew.failed(self.odd(item))
            elif item.kind == "directory":
                if not there:
                    self.begin("mkdir", item.path, self.make, item.path)
            elif there and there.size == item.size and not self.differs(item, there):
                self.unchanged(item, there)
            else:
                self.crew.progress.expect(item.size)
                self.begin(self.verb, item.path, self.send, item, there)

    def differs(self, item: Item, there: Item) -> bool:
        """Of two files of one size. Contents are compared by who sends."""
        return self.checksum or not same_time(item.mtime, there.mtime) or self.worn(item, there)

    def worn(self, item: Item, there: Item) -> bool:
        """The mode is another, and can only be mended by sending."""
        return False

    def unchanged(self, item: Item, there: Item) -> None:
        return

    def replace(self, item: Item, there: Item) -> bool:
        """A file where a directory should be, or the other way."""
        if not self.delete:
            shown = self.shown(item.path)
            text = f"is a {there.kind} there, and a {item.kind} in the source; --delete replaces it"
            self.crew.failed(OSError(errno.EEXIST, text, shown))
            return False
        self.say("delete", item.path)
        if not self.dry:
            self.drop(item.path)
        for path in [path for path in self.there if path == item.path or path.startswith(item.path + "/")]:
            del self.there[path]
        return True

    def begin(self, verb: str, path: str, what: Callable[..., None], *args: object) -> None:
        if self.checksum and verb == self.verb and args[1] is not None:
            self.crew.do(self.compare, *args)
            return
        self.say(verb, path)
        if not self.dry:
            self.crew.do(what, *args)

    def compare(self, item: Item, there: Item) -> None:
        """Send it only if the content is another."""
        if there.size == item.size and self.same_content(item):
            return
        self.say(self.verb, item.path)
        if not self.dry:
            self.send(item, there)

    def remove(self) -> None:
        """What the source does not have."""
        if not self.delete:
            return
        if not self.whole:
            self.crew.failed(
                OSError(errno.EIO, "nothing is removed, for not all of the source could be read", self.source)
            )
            return
        gone = ""
        for path in sorted(self.there, key=lambda path: os.fsencode(path).split(b"/")):
            if path in self.seen or (gone and path.startswith(f"{gone}/")):
                continue
            gone = path
            self.say("delete", path)
            if not self.dry:
                try:
                    self.drop(path)
                except FileNotFoundError:
                    continue
                except OSError as problem:
                    self.crew.failed(problem)

    def say(self, verb: str, path: str) -> None:
        if self.dry:
            self.call.out.write(verb.encode() + b" " + path_bytes(path, self.call.out.terminal()) + b"\n")
        elif verb != self.verb:  # who sends says so himself
            self.call.say(f"{verb} {escaped(path)}")

    def noted(self) -> Iterator[Item]:
        """What the source has, less what cannot come to its place."""
        blocked = ""
        for item in self.ours():
            self.seen.add(item.path)
            if blocked and item.path.startswith(f"{blocked}/"):
                continue
            there = self.there.get(item.path)
            if (
                there
                and there.kind != item.kind
                and item.kind in ("file", "directory")
                and not self.replace(item, there)
            ):
                blocked = item.path
                continue
            yield item

    def ours(self) -> Iterator[Item]:
        raise NotImplementedError

    def theirs(self) -> Iterator[Item]:
        raise NotImplementedError

    def send(self, item: Item, there: Item | None) -> None:
        raise NotImplementedError

    def make(self, path: str) -> None:
        raise NotImplementedError

    def drop(self, path: str) -> None:
        raise NotImplementedError

    def same_content(self, item: Item) -> bool:
        raise NotImplementedError

    def shown(self, path: str) -> str:
        raise NotImplementedError

    def odd(self, item: Item) -> OSError:
        raise NotImplementedError

    def close(self) -> None:
        return


class _Up(_Sync):
    """From this machine into the tier."""

    verb = "put"

    def ours(self) -> Iterator[Item]:
        for found in disk.walk(self.source, bool(self.call.values.get("follow")), self.unread):
            yield of_disk(found)

    def theirs(self) -> Iterator[Item]:
        try:
            for entry in self.call.tier.walk(self.target):
                yield of_tier(entry, self.target)
        except FileNotFoundError:
            if self.target and not self.dry:
                self.call.tier.mkdir(self.target, exist_ok=True)

    def worn(self, item: Item, there: Item) -> bool:
        # A store that keeps no modes says FILE_MODE of everything, and would be sent everything every time.
        return there.mode not in (item.mode, FILE_MODE)

    def send(self, item: Item, there: Item | None) -> None:
        path = names.join(self.target, item.path)
        put_file(self.call, self.crew, os.path.join(self.source, item.path), path)

    def make(self, path: str) -> None:
        self.call.tier.mkdir(names.join(self.target, path), exist_ok=True)

    def drop(self, path: str) -> None:
        self.call.tier.remove(names.join(self.target, path), recursive=True)

    def same_content(self, item: Item) -> bool:
        with disk.Source(os.path.join(self.source, item.path)) as file:
            return _same(file.fd, self.call.tier, names.join(self.target, item.path), self.crew)

    def shown(self, path: str) -> str:
        return names.join(self.target, path)

    def odd(self, item: Item) -> OSError:
        return refused(item.kind, os.path.join(self.source, item.path))


class _Down(_Sync):
    """From the tier to this machine."""

    verb = "get"
    _folder: disk.Folder | None = None

    @property
    def folder(self) -> disk.Folder:
        if self._folder is None:
            if not self.dry:
                os.makedirs(self.target, exist_ok=True)
            self._folder = disk.Folder(self.target)
        return self._folder

    def ours(self) -> Iterator[Item]:
        for entry in self.call.tier.walk(self.source):
            yield of_tier(entry, self.source)

    def theirs(self) -> Iterator[Item]:
        if self.dry and not os.path.lexists(self.target):
            return
        for found in disk.walk(self.folder.path, False, self.crew.failed):
            yield of_disk(found)

    def unchanged(self, item: Item, there: Item) -> None:
        if item.mode != there.mode and not self.dry:
            self.folder.chmod(item.path, item.mode)

    def send(self, item: Item, there: Item | None) -> None:
        path = names.join(self.source, item.path)
        get_file(self.call, self.crew, path, self.folder, item.path)

    def make(self, path: str) -> None:
        self.folder.make(path)

    def drop(self, path: str) -> None:
        self.folder.remove(path)

    def same_content(self, item: Item) -> bool:
        with disk.Source(self.folder.shown(item.path), follow=False) as file:
            return _same(file.fd, self.call.tier, names.join(self.source, item.path), self.crew)

    def shown(self, path: str) -> str:
        return os.path.join(self.target, path)

    def odd(self, item: Item) -> OSError:
        raise AssertionError(item.kind)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.__exit__()


def _same(fd: int, tier: Tier, path: str, crew: Crew) -> bool:
    """Has a file here the content of one in the tier?"""
    with tier.open(path) as reader:
        while block := reader.read(BLOCK):
            crew.tick(0)
            while block:
                own = os.read(fd, len(block))
                if not own or own != block[: len(own)]:
                    return False
                block = block[len(own) :]
    return not os.read(fd, 1)
