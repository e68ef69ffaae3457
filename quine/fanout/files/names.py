"""The names over there of the files that items bring.

Law: items share a directory on a host. Two under way at one time never have different files under one name, nor one of
them a directory with a file of the other in it: each might get the other's. Nor is a result of one of them a file that
the other brings for itself alone. The later one waits. Only a job that is adopted does not: it has its files already,
and those that are started after it wait for it. So does an item that has a result of the same name for itself.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import NamedTuple

from quine.staging import spec
from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.staging.caller_side import Staging

    Sources = list[tuple[bytes, bytes]]  # (path here, name over there)

    Uses = list[tuple[bytes, bytes]]  # (FILE, RESULT or FORMER, name over there)

ELSEWHERE = b""  # the path of a directory that has a file of another directory in it
FILE, RESULT = b"file", b"result"  # one that an item brings for itself alone, and one that it returns
FORMER = b"former"  # a result of a job of the run before, behind a slash; an item has its own results so, too
EVERYTHING = [(ELSEWHERE, b"")]  # each name over there
LONGEST = 1 << 13  # bytes of the paths and names of own files in a note


class Noted(NamedTuple):
    """The names that one job has over there for itself: those of its own files, and the patterns of its results."""

    own: list[tuple[bytes, bytes]]  # (path here, name over there)
    results: list[str]

    @classmethod
    def of(cls, stage: Staging) -> Noted:
        return cls(stage.alone, stage.patterns)

    @classmethod
    def uses_of(cls, stage: Staging) -> Uses:
        """Return the uses of an item that is to be started."""
        own = ((RESULT, b"/" + os.fsencode(pattern)) for pattern in stage.varying)
        return [*cls.of(stage).uses, *own]

    @property
    def uses(self) -> Uses:
        results = filter(None, map(spec.name_of, self.results))
        return [*((FILE, name) for _, name in self.own), *((RESULT, os.fsencode(name)) for name in results)]

    @property
    def former(self) -> Uses:
        """The uses of a job of the run before: no new item has one of its results for itself."""
        return [*self.uses, *((FORMER, b"/" + os.fsencode(pattern)) for pattern in self.results)]

    @property
    def keys(self) -> list[object]:
        """Return keys of its results: two jobs with a key in common write over each other's results.

        Jobs with one pattern are taken to do that if they also have files of one name for themselves.
        """
        names = [pattern for pattern in self.results if spec.name_of(pattern) not in (None, ".")]
        own = frozenset(name for _, name in self.own)
        return [*names, *([(own, *self.results)] if own and self.results else [])]

    def line(self, id: str) -> str:
        """Return the note in the journal: of an item with very many files the directories that these are in."""
        names = self.own
        while names != EVERYTHING and sum(len(part) for pair in names for part in pair) > LONGEST:
            names = _folded(names)
        own = [os.fsdecode(part) for pair in names for part in pair]
        return f"names {id} {quickjson.dumps([own, self.results])}\n"

    @classmethod
    def parsed(cls, text: str) -> Noted:
        """Raises ValueError."""
        found = quickjson.loads(text)
        if not isinstance(found, list) or [*map(type, found)] != [list, list]:
            raise ValueError("not two lists")
        own, results = found
        if not all(isinstance(word, str) for word in (*own, *results)):
            raise ValueError("not a text")
        parts = [*map(os.fsencode, own)]
        return cls([*zip(parts[::2], parts[1::2])], results)


class Names:
    """The names that are taken. `note` is told once that an item waits."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._said = False
        self._paths: dict[bytes, Counter[bytes]] = {}  # by name
        self._above: dict[bytes, Counter[bytes]] = {}  # of the directories that names are in
        self._uses: dict[bytes, Counter[bytes]] = {}  # FILE and RESULT, by name
        self._waiting: list[Callable[[], None]] = []

    def take(self, sources: Sources, uses: Uses, again: Callable[[], None]) -> bool:
        """Take the names of an item; if it has to wait return False, and have `again` called when it may try again."""
        clash, used = self.clash(sources, uses)
        if clash is used is None:
            self.hold(sources, uses)
            return True
        self._waiting.append(again)
        if not self._said:
            self._said = True
            if clash is None:
                name = (used or b"").decode(errors="replace")
                what = f"items wait for each other: {name} is a file of one and a result of another"
                if name.startswith("/"):
                    what = f"items wait for a job of the run before that has a result of the same name ({name[1:]})"
                self._note(what)
            else:
                name = clash.decode(errors="replace") or "."
                hint = "DIR/./PATH keeps the directories of PATH, and FROM:NAME names it"
                self._note(
                    f"items whose --files have one name over there ({name}) wait for each other; {hint}"
                )
        return False

    def clash(self, sources: Sources, uses: Uses) -> tuple[bytes | None, bytes | None]:
        """Return a name that another item has for another file, and one that it has for another use."""
        clash = next((name for path, name in sources if self._clashes(path, name)), None)
        return clash, next((name for use, name in uses if _others(self._uses, name, use)), None)

    def hold(self, sources: Sources, uses: Uses) -> None:
        """Take names whoever has them: the job runs already."""
        for use, name in uses:
            self._uses.setdefault(name, Counter())[use] += 1
        for path, name in sources:
            self._paths.setdefault(name, Counter())[path] += 1
            for above, there in _directories(path, name):
                self._above.setdefault(above, Counter())[there] += 1

    def give(self, sources: Sources, uses: Uses) -> None:
        """The item has its end; those that wait try again."""
        for use, name in uses:
            _less(self._uses, name, use)
        for path, name in sources:
            _less(self._paths, name, path)
            for above, there in _directories(path, name):
                _less(self._above, above, there)
        self.retry()

    def retry(self) -> None:
        waiting, self._waiting = self._waiting, []
        for again in waiting:
            again()

    def _clashes(self, path: bytes, name: bytes) -> bool:
        if _others(self._paths, name, path) or _others(self._above, name, path):
            return True
        return any(_others(self._paths, above, there) for above, there in _directories(path, name))


def _folded(names: Sources) -> Sources:
    """Return the names with the deepest of them folded into their directories; EVERYTHING if none can be.

    A file that has another name over there is in no directory of here.
    """
    above = {pair: next(_directories(*pair), (b"", ELSEWHERE)) for pair in names}
    depths = [name.count(b"/") for (_, name), (_, there) in above.items() if there != ELSEWHERE]
    if not depths:
        return EVERYTHING
    deepest = max(depths)
    folds = {
        pair: there != ELSEWHERE and pair[1].count(b"/") == deepest for pair, (_, there) in above.items()
    }
    return list(dict.fromkeys((above[pair][1], above[pair][0]) if folds[pair] else pair for pair in names))


def _directories(path: bytes, name: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The directories that a name is in, b"" for all, and the path of each that has the file under this name."""
    above = name
    while above:
        above = above.rpartition(b"/")[0]
        behind = b"/" + name[len(above) :].lstrip(b"/")
        yield above, path[: -len(behind)] if path.endswith(behind) else ELSEWHERE


def _others(taken: dict[bytes, Counter[bytes]], name: bytes, path: bytes) -> bool:
    """Whether the name is taken by another path."""
    return any(other != path or other == ELSEWHERE for other in taken.get(name, ()))


def _less(taken: dict[bytes, Counter[bytes]], name: bytes, path: bytes) -> None:
    counts = taken[name]
    counts[path] -= 1
    if not counts[path]:
        del counts[path]
    if not counts:
        del taken[name]
