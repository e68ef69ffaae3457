"""The contents by which an item is the same one in the next run: those of its --files and of its --stdin.

Laws
1. A link below a directory is what it says, as for the staging: through two links to their own directory there are
   2^40 ways. A file that cannot be read is its name: the start tells of it, and not the name of the item.
2. A file that results of the batch have replaced counts as what it was before, and one that they have added not at all;
   nor do the files of the batch itself: its log, its --results, the data directory, results on their way here.
3. A directory is the number of its entries, and each with its name: no file is moved into another one unseen.
   A result may be the file of another item, which has its name already: a file that any item could name counts so, too.
4. Contents that all items have are read once, and again when their inodes say that they have changed.
"""

from __future__ import annotations

import os
import stat
import time

from quine.base import dirs
from quine.base.errors import Misconfigured
from quine.fanout.files.replaced import ABSENT, Replaced
from quine.fanout.input.template import Values
from quine.staging import spec
from quine.staging.spec import located, name_below
from transport.lean import blake2b

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from quine.fanout.input.template import Word

    Found = Iterable[tuple[str, bytes]]  # paths, and the names that they get
    Seen = dict[bytes, tuple[tuple[int, ...], str]]  # path -> inode, size and times of a file, and its state

SETTLED = 2_000_000_000  # nanoseconds: two changes of a file may have one time
FOLDER = "d"


class Contents:
    """Names and states of files. `replaced` tells what results have replaced, in a batch with a log."""

    def __init__(self, own: Iterable[str] = ()) -> None:
        """`own`: paths of the files of the batch itself."""
        self._own = {located(os.fsencode(path)) for path in own if path}
        self.replaced: Replaced | None = None
        self._beginnings: tuple[bytes, ...] = ()  # of the paths of files that items have for themselves
        self._seen: Seen = {}
        self._here = os.path.realpath(os.fsencode(dirs.here()))

    def parts(self, found: Found, shared: bool = False) -> Iterator[bytes]:
        """Yield the parts of a hash. `shared`: files of all items, which are remembered."""
        seen = self._seen if shared else None
        for path, name in found:
            yield name
            # By its own name, of which results may have a record, and not by that of a link to it.
            yield from self._content(os.path.realpath(os.fsencode(path)), seen) or [ABSENT.encode()]

    def replace(self, arrivals: Iterable[tuple[bytes, bytes]], inputs: Iterable[bytes]) -> None:
        """Record results that are about to appear: pairs of name and path where each lies now. Raises Failure.

        `inputs` are paths of the item's files. Only results at or below one of them are recorded, and those that
        replace a file which may be another item's.
        """
        if self.replaced is not None:
            tops = {found for path in inputs for found in (located(path), os.path.realpath(path))}
            self.replaced.add(self._rows(arrivals, tops))

    def _rows(
        self, arrivals: Iterable[tuple[bytes, bytes]], tops: set[bytes]
    ) -> Iterator[tuple[bytes, str, str]]:
        for name, lies in arrivals:
            path = os.path.join(self._here, name)
            is_inside = any(name_below(path, top) is not None for top in tops)
            if is_inside or (path.startswith(self._beginnings) and os.path.lexists(path)):
                below = is_inside and path not in tops
                yield self._name(path), state_of(path, below=below), state_of(lies)

    def expect(self, words: Iterable[Word]) -> None:
        """Items have files by these words for themselves."""
        texts = (os.fsencode(spec.fixed(os.path.expanduser(word.beginning))) for word in words if word.varies)
        self._beginnings = tuple(located(os.path.join(self._here, text)) for text in texts)

    def _name(self, path: bytes) -> bytes:
        """The name of a file in the record: relative, so that a log can go to another machine with its files."""
        return name_below(path, self._here) or path

    def _content(self, path: bytes, seen: Seen | None, below: bool = False) -> list[bytes]:
        """The state of a file, and of all that is in a directory; [] for what results have added."""
        state = state_of(path, seen, below)
        before = self.replaced.before(self._name(path), state) if self.replaced else state
        inner: list[bytes] = []
        count = 0
        if state == FOLDER:
            for name in self._listed(path):
                inside = os.path.join(path, name)
                if inside not in self._own and (found := self._content(inside, seen, below=True)):
                    count += 1
                    inner += [name, *found]
        if inner or before == FOLDER:
            return [FOLDER.encode(), b"%d" % count, *inner]  # else its end could be elsewhere
        return [] if before == ABSENT else [before.encode()]

    def _listed(self, path: bytes) -> list[bytes]:
        """The names in a directory, without the private directories of a staging that is under way."""
        try:
            names = sorted(os.listdir(path))
        except OSError:
            return []
        if path != self._here:
            return names
        from quine.staging import scan

        return [name for name in names if not scan.is_private(path, name)]


def state_of(path: bytes, seen: Seen | None = None, below: bool = True) -> str:
    """Return the state of a file as a word. A link is followed unless it is `below` a directory that was named."""
    try:
        facts = os.stat(path, follow_symlinks=not below)
        if stat.S_ISLNK(facts.st_mode):
            return of_link(os.readlink(path))
        if stat.S_ISDIR(facts.st_mode):
            return FOLDER
        if stat.S_ISREG(facts.st_mode):
            return _of_file(path, facts, seen)
    except FileNotFoundError:
        return ABSENT
    except OSError:
        pass
    return "?" + blake2b(path, digest_size=16).hexdigest()


def of_link(target: bytes) -> str:
    return "l" + blake2b(target, digest_size=16).hexdigest()


def _of_file(path: bytes, facts: os.stat_result, seen: Seen | None) -> str:
    from quine.staging.content import measure

    key = (facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns)
    if seen is None:
        return measure(os.path.realpath(path)).digest.hex()
    if path not in seen or seen[path][0] != key:
        before = time.time_ns() - SETTLED
        state = measure(os.path.realpath(path)).digest.hex()
        if facts.st_ctime_ns >= before:
            return state
        seen[path] = (key, state)
    return seen[path][1]


def meant(words: list[str]) -> list[tuple[str, bytes]]:
    """Return paths and names of --files; if they cannot be had the words, and the start tells of it."""
    try:
        return [(os.fsdecode(path), name) for path, name in spec.sources(words, dirs.current())]
    except Misconfigured:
        return [(word, os.fsencode(word)) for word in words]


def unnumbered(word: Word, item: Values) -> list[tuple[str, bytes]]:
    """Return the paths of a word with {#}, and names that are the same with another number of the item."""
    text, name = word.path(item), os.fsencode(word.path(Values(item.args, 0, item.slot, item.fields)))
    found = meant([text])
    if spec.name_of(text) is not None:
        return [(path, name) for path, _ in found]
    return [(path, b"%b/%b" % (name, os.fsencode(os.path.basename(path)))) for path, _ in found]
