"""sync: make one directory like another, one way, by sending only the differences.

Laws
1. A file with the same size, time and mode (here less the umask) on both sides is not sent. If the listings agree on
   the size alone, the store is asked about that file: listings of some stores lack time and mode.
2. Extra files of the target are removed only with --delete, and after everything else. If a part of the source could
   not be read, none is removed: unread is not absent. They also stay at and below a refused link. The same holds for a
   path that the source holds but does not list, such as a symlink in a tier.
3. An empty source removes nothing, unless forced: a root that is missing, or not mounted, lists as empty.
4. A dry run prints the actions in the order in which they would begin, and changes nothing.
"""

from __future__ import annotations

import errno
import os

from quine.base.errors import Misconfigured
from quine.files import paths
from quine.files.api import Request, error
from quine.files.cli import destination, localfs
from quine.files.cli.compare import Item, alike, listed_alike, of_disk, of_tier, same_bytes, same_time
from quine.files.cli.get import get_file
from quine.files.cli.options import PREFIX, number
from quine.files.cli.output import escaped, path_bytes
from quine.files.cli.pool import at_once, once
from quine.files.cli.put import put_file, refused
from quine.files.exclusions import OBEYED, at, holds, obeyed, obeyed_below, own, say_left_out, within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator
    from typing import Any

    from quine.files.cli.context import Call
    from quine.files.cli.pool import Crew, Task, Work

    Look = Generator[Request, Any, bool]  # a task that decides something


def sync(call: Call) -> int:
    if len(call.paths) != 2:
        raise Misconfigured(
            "sync takes two paths: SOURCE TARGET", "quine fs sync DIR tier:PATH, or the other way"
        )
    source, target = call.paths
    if source.startswith(PREFIX) == target.startswith(PREFIX):
        both = "; quine fs cp -r" if source.startswith(PREFIX) else ""
        hint = f"quine fs sync {PREFIX}PATH DIR, or the other way{both}"
        raise Misconfigured(f"one of the two paths should be in the tier, written {PREFIX}PATH", hint)
    # One job, so that a dry run prints in order.
    values = {**call.values, "jobs": "1"} if call.values.get("dry_run") else call.values
    with destination.crew_of(values, call.tier) as crew:
        if source.startswith(PREFIX):
            top = paths.clean(source.removeprefix(PREFIX))
            if call.tier.stat(top).is_file:
                raise error(errno.ENOTDIR, top)
            job: _Sync = _Down(call, crew, top, target)
        else:
            if not os.path.isdir(source):
                raise error(errno.ENOTDIR if os.path.exists(source) else errno.ENOENT, source)
            job = _Up(call, crew, source, paths.clean(target.removeprefix(PREFIX)))
        try:
            job.run()
            crew.progress.found_all = True
            crew.wait()
            job.remove()
            verb = f"quine fs sync {PREFIX}"
            say_left_out(job.left_out, lambda name: f"{verb}{paths.join(job.source, name)} {job.shown(name)}")
            status = crew.finish()
            return call.end() or status
        finally:
            job.close()


class _Sync:
    """The part of a sync that both directions share."""

    verb = ""

    def __init__(self, call: Call, crew: Crew, source: str, target: str) -> None:
        self.call, self.crew, self.source, self.target = call, crew, source, target
        self.dry = bool(call.values.get("dry_run"))
        self.checksum = bool(call.values.get("checksum"))
        self.delete = bool(call.values.get("delete"))
        self.may_go = number(call.values, "max-delete", 0, None)  # entries that may still be removed
        self.skipped = 0  # entries that --max-delete kept from removal
        self.left_out: set[str] = set()  # names at the top of the source that would be obeyed in the target
        self.whole = True  # all of the source could be read
        self.empty = True  # nothing was found in the source
        self.there: dict[str, Item] = {}  # entries of the target
        self.seen: set[str] = set()  # paths of the source
        # Of these, links and special files, for paths behind a link were not seen; and those without a free place.
        self.refused: set[str] = set()

    def unread(self, problem: OSError) -> None:
        self.whole = False
        self.crew.failed(problem)

    def run(self) -> None:
        """Begin all transfers."""
        self.there = {item.path: item for item in self.theirs()}
        for item in destination.needed(self.noted()):
            there = self.there.get(item.path)
            if item.kind not in ("file", "directory"):
                self.refused.add(item.path)
                self.crew.failed(self.odd(item))
            elif item.kind == "directory":
                if not there:
                    self.begin("mkdir", item.path, self.make, item.path)
            elif there and there.size == item.size:
                if not self.checksum and listed_alike(item, there):
                    continue
                self.crew.do(self.settle, item, there)
            else:
                self.crew.progress.expect(item.size)
                self.begin(self.verb, item.path, self.send, item)

    def settle(self, item: Item, there: Item) -> Task:
        """Compare two files of the same size by more than their listings; send the file if they differ."""
        if (yield from self.same_bytes(item) if self.checksum else self.known_alike(item, there)):
            return
        self.say(self.verb, item.path)
        if not self.dry:
            self.crew.progress.expect(item.size)
            yield from self.send(item)

    def replace(self, item: Item, there: Item) -> bool:
        """With --delete remove a file in place of a directory, or the reverse; return whether the place is free."""
        if not self.delete:
            shown = self.shown(item.path)
            text = f"is a {there.kind} there, and a {item.kind} in the source; --delete replaces it"
            self.crew.failed(OSError(errno.EEXIST, text, shown))
            return False
        if not self.counts(item.path):
            return False
        try:
            self.say("delete", item.path)
            if not self.dry:
                at_once(self.drop(item.path), self.call.tier)
        except OSError as problem:
            self.crew.failed(problem)
            return False
        for path in [path for path in self.there if paths.within(path, item.path)]:
            del self.there[path]
        return True

    def begin(self, verb: str, path: str, what: Work, *args: object) -> None:
        self.say(verb, path)
        if not self.dry:
            self.crew.do(what, *args)

    def remove(self) -> None:
        """Remove from the target the entries that the source does not have."""
        victims = self.victims() if self.delete else []
        if victims and not self.whole:
            self.crew.failed(
                OSError(errno.EIO, "nothing is removed, for not all of the source could be read", self.source)
            )
            return
        if victims and self.empty and not self.call.values.get("force"):
            text = "is empty or is not there, so nothing is removed; --force removes it all the same"
            self.crew.failed(OSError(errno.ENOENT, text, self.source_shown()))
            return
        self.crew.jobs = 1  # in order, and at a store that is reached directly one after the other
        kept = self.refused.union(self.unseen()) if victims else self.refused
        for path in victims:
            if any(paths.within(path, place) or paths.within(place, path) for place in kept):
                self.call.say(f"keep {escaped(path)}")
                continue
            if not self.counts(path):
                continue
            self.say("delete", path)
            if not self.dry:
                self.crew.do(self.let_go, path)
        if self.skipped:
            text = f"--max-delete {self.call.values['max_delete']}: {self.skipped} that should go stay"
            self.crew.failed(OSError(errno.EPERM, text, self.target))

    def let_go(self, path: str) -> Task:
        try:
            yield from self.drop(path) or ()
        except FileNotFoundError:
            return

    def victims(self) -> list[str]:
        """Paths of the target that the source does not have; of a directory with its contents only the directory."""
        found: list[str] = []
        for path in sorted(self.there, key=lambda path: os.fsencode(path).split(b"/")):
            if path not in self.seen and not (found and path.startswith(f"{found[-1]}/")):
                found.append(path)
        return found

    def counts(self, path: str) -> bool:
        """Count `path` and its contents against --max-delete; return False, and count nothing, if they exceed it."""
        if self.may_go is None:
            return True
        size = sum(paths.within(each, path) for each in self.there)
        if size > self.may_go:
            self.skipped += size
            return False
        self.may_go -= size
        return True

    def unseen(self) -> Iterable[str]:
        """Paths that the source holds but does not list."""
        return ()

    def source_shown(self) -> str:
        return self.source

    def say(self, verb: str, path: str) -> None:
        if self.dry:
            self.call.out.write(verb.encode() + b" " + path_bytes(path, self.call.out.terminal()) + b"\n")
        elif verb != self.verb:  # put_file and get_file report transfers themselves
            self.call.say(f"{verb} {escaped(path)}")

    def noted(self) -> Iterator[Item]:
        """Entries of the source, recorded in `seen`, without those whose place in the target cannot be freed."""
        blocked = ""
        for item in self.ours():
            self.empty = False
            self.seen.add(item.path)
            if blocked and item.path.startswith(f"{blocked}/"):
                continue
            there, plain = self.there.get(item.path), item.kind in ("file", "directory")
            if plain and there and there.kind != item.kind and not self.replace(item, there):
                blocked = item.path
                self.refused.add(item.path)  # the directory there goes whole, or stays
                continue
            yield item

    def ours(self) -> Iterator[Item]:
        raise NotImplementedError

    def theirs(self) -> Iterator[Item]:
        raise NotImplementedError

    def known_alike(self, item: Item, there: Item) -> Look:
        """Compare after a stat in the store: listings of some stores lack the time that a file was given."""
        raise NotImplementedError

    def send(self, item: Item) -> Task:
        raise NotImplementedError

    def make(self, path: str) -> Task | None:
        raise NotImplementedError

    def drop(self, path: str) -> Task | None:
        raise NotImplementedError

    def same_bytes(self, item: Item) -> Look:
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
        follow = bool(self.call.values.get("follow"))
        leave_out = own(self.call.tier, self.source)
        for found in localfs.walk(self.source, follow, self.unread, leave_out=leave_out):
            yield of_disk(found)

    def unseen(self) -> Iterable[str]:
        return own(self.call.tier, self.source)

    def theirs(self) -> Iterator[Item]:
        try:
            for entry in self.call.tier.walk(self.target):
                yield of_tier(entry, self.target)
        except FileNotFoundError:
            if self.target and not self.dry:
                self.call.tier.mkdir(self.target, exist_ok=True)

    def unfollowed(self, item: Item) -> str:
        """The `found` argument of `localfs.Source`: the part of the path in which no link is followed."""
        return "" if self.call.values.get("follow") else item.path

    def known_alike(self, item: Item, there: Item) -> Look:
        try:
            entry = yield Request("stat", paths.join(self.target, item.path))
        except FileNotFoundError:
            return False
        return alike(item, of_tier(entry, self.target))

    def send(self, item: Item) -> Task:
        path = paths.join(self.target, item.path)
        return put_file(
            self.call, self.crew, os.path.join(self.source, item.path), path, found=self.unfollowed(item)
        )

    def make(self, path: str) -> Task:
        return once(Request("mkdir", paths.join(self.target, path), exist_ok=True))

    def drop(self, path: str) -> Task:
        return once(Request("remove", paths.join(self.target, path), recursive=True))

    def same_bytes(self, item: Item) -> Look:
        here = os.path.join(self.source, item.path)
        reader = yield Request("get", paths.join(self.target, item.path), size=item.size)
        with reader, localfs.Source(here, self.unfollowed(item)) as file:
            return same_bytes(file.fd, reader, self.crew)

    def shown(self, path: str) -> str:
        return paths.join(self.target, path)

    def odd(self, item: Item) -> OSError:
        return refused(item.kind, os.path.join(self.source, item.path))


class _Down(_Sync):
    """From the tier to this machine."""

    verb = "get"
    _folder: localfs.Folder | None = None
    _own = frozenset(OBEYED)  # and quine's own directories: nothing in them is written or removed
    _bits = 0  # of a mode, which a file gets here

    @property
    def folder(self) -> localfs.Folder:
        if self._folder is None:
            if not self.dry:
                os.makedirs(self.target, exist_ok=True)
            self._folder = localfs.Folder(self.target)
        return self._folder

    def ours(self) -> Iterator[Item]:
        obeys = obeyed_below(self.target)
        for entry in self.call.tier.walk(self.source):
            item = of_tier(entry, self.source, self._bits)
            if place := obeyed(item.path) or at(item.path, obeys):
                self.left_out.add(place)
            elif not within(item.path, self._own):
                yield item

    def unseen(self) -> Iterable[str]:
        return [destination.relative(path, self.source) for path in self.call.tier.hidden(self.source)]

    def source_shown(self) -> str:
        return f"{PREFIX}{self.source}"

    def theirs(self) -> Iterator[Item]:
        self._bits = localfs.bits()
        if self.dry and not os.path.lexists(self.target):
            return
        self._own = own(self.call.tier, self.folder.path).union(OBEYED, obeyed_below(self.folder.path))
        for found in localfs.walk(self.folder.path, False, self.crew.failed, leave_out=self._own):
            if found.kind == "directory" and holds(found.path, self._own):
                self.seen.add(found.path)  # the directory stays, even if its other contents are removed
            if not obeyed(found.path):
                yield of_disk(found)

    def known_alike(self, item: Item, there: Item) -> Look:
        entry = yield Request("stat", paths.join(self.source, item.path))
        known = of_tier(entry, self.source, self._bits)
        if known.size != there.size or not same_time(known.mtime, there.mtime):
            return False
        if known.mode != there.mode and not self.dry:
            self.folder.chmod(item.path, known.mode)
        return True

    def send(self, item: Item) -> Task:
        path = paths.join(self.source, item.path)
        return get_file(self.call, self.crew, path, self.folder, item.path, item.size, tree=True)

    def make(self, path: str) -> None:
        self.folder.make(path)

    def drop(self, path: str) -> None:
        if holds(path, self._own):
            raise OSError(errno.EBUSY, "the data directory of quine, or the tier, is in it", self.shown(path))
        self.folder.remove(path)

    def same_bytes(self, item: Item) -> Look:
        reader = yield Request("get", paths.join(self.source, item.path), size=item.size)
        with reader, localfs.Source(self.folder.shown(item.path), item.path) as file:
            return same_bytes(file.fd, reader, self.crew)

    def shown(self, path: str) -> str:
        return os.path.join(self.target, path)

    def odd(self, item: Item) -> OSError:
        raise AssertionError(item.kind)

    def close(self) -> None:
        if self._folder is not None:
            self._folder.__exit__()
