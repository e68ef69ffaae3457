"""Names and patterns over there, and whether a name or a pattern may mean what one of them does.

Law: one item may have a hundred thousand results, and there may be thousands of patterns. So a name is compared with a
pattern only if it begins as all matches of that do, and each comparison is counted: the caller can stop in between.

A brought directory is one name in comparisons. A removal takes the files and directories that it has here: over there
it may hold other files.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from itertools import islice, takewhile

from quine.base.data_directory import named
from quine.base.errors import Misconfigured
from quine.files.exclusions import OBEYED, Places, naming
from quine.files.paths import ancestors
from quine.staging import scan, spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

COMPARED = 256  # names with a pattern: of more, one is taken to be a match


class Uses:
    """Each name and pattern as often as it was added. `compared` counts comparisons of a name with a pattern."""

    def __init__(self) -> None:
        self._names: Counter[str] = Counter()
        self._above: Counter[str] = Counter()  # directories of names, and of the beginnings of patterns
        self._patterns: Counter[str] = Counter()
        self._by_beginning: dict[str, dict[str, None]] = {}  # beginning of all matches -> patterns
        self._lengths: Counter[int] = Counter()  # of these beginnings
        self._sorted: list[str] | None = None  # names, as long as none is added or dropped
        self.compared = 0

    def add(self, words: Iterable[str], count: int = 1) -> None:
        for word in words:
            name = spec.name_of(word)
            if name is None:
                self._count_pattern(word, count)
                continue
            self._sorted = None
            self._count(self._names, name, count)
            for above in ancestors(name):
                self._count(self._above, above, count)

    def drop(self, words: Iterable[str]) -> None:
        self.add(words, -1)

    def _count_pattern(self, pattern: str, count: int) -> None:
        beginning = spec.fixed(pattern)
        for above in ancestors(beginning):
            self._count(self._above, above, count)
        self._count(self._lengths, len(beginning), count)
        self._count(self._patterns, pattern, count)
        alike = self._by_beginning.setdefault(beginning, {})
        if pattern in self._patterns:
            alike[pattern] = None
        else:
            del alike[pattern]
        if not alike:
            del self._by_beginning[beginning]

    @staticmethod
    def _count(counter: Counter[Any], key: object, count: int) -> None:
        counter[key] += count
        if not counter[key]:
            del counter[key]

    def meet(self, word: str) -> bool:
        """Whether one of them may be what a name or pattern means, or in it, or above it."""
        name = spec.name_of(word)
        if name == "." or "." in self._names:
            return bool(self._names or self._patterns)  # the whole directory
        if name is None:
            return self._meets_pattern(word)
        if (
            name in self._names
            or name in self._above
            or any(above in self._names for above in ancestors(name))
        ):
            return True
        return any(self._overlap(pattern, word) for pattern in self._beginning(name))

    def _beginning(self, name: str) -> Iterator[str]:
        """Yield the patterns whose matches begin as a name does."""
        for length in self._lengths:
            yield from self._by_beginning.get(name[:length], ()) if length <= len(name) else ()

    def _meets_pattern(self, pattern: str) -> bool:
        beginning = spec.fixed(pattern)
        if any(above in self._names for above in ancestors(beginning)):
            return True
        if any(spec.overlap(pattern, other) for other in self._patterns):
            return True
        if self._sorted is None:
            self._sorted = sorted(self._names)
        first = bisect_left(self._sorted, beginning)
        begin_so = takewhile(lambda name: name.startswith(beginning), islice(self._sorted, first, None))
        names = [*islice(begin_so, COMPARED + 1)]
        return len(names) > COMPARED or any(self._overlap(pattern, spec.literal(name)) for name in names)

    def _overlap(self, pattern: str, name: str) -> bool:
        self.compared += 1
        return spec.overlap(pattern, name)


class Tree(str):
    """The name over there, as a pattern, of a directory that was brought."""

    path: str  # of the one here

    def below(self) -> Iterator[str]:
        """Yield its files, and then its directories with a slash at the end, the deepest first, as patterns."""
        folders, own = [""], scan.identity(named())
        for folder in folders:  # which grows
            try:
                entries = sorted(os.scandir(os.path.join(self.path, folder)), key=lambda entry: entry.name)
            except OSError:
                continue  # it has gone here: over there it stays
            for entry in entries:
                name = os.path.join(folder, entry.name)
                if not entry.is_dir(follow_symlinks=False):
                    yield f"{self}/{spec.literal(name)}"
                elif scan.identity(entry.path) != own:
                    folders.append(name)
        for folder in reversed(folders):
            yield os.path.join(self, spec.literal(folder), "")


class Shared:
    """The files that all items have over there, of the `words` of `placed`."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        self._paths: dict[str, str] = {}  # of directories here, "" of a file, by their names over there
        for word in words:
            if (name := spec.name_of(word)) is not None:
                self._paths[name] = word.path if isinstance(word, Tree) else ""
        self._above = {above for name in self._paths for above in ancestors(name)}

    def __bool__(self) -> bool:
        return bool(self._paths)

    def meet(self, word: str) -> bool:
        """Whether a name is that of one of them, or of a directory above one."""
        return self.have(word) or spec.name_of(word) in self._above

    def have(self, word: str) -> bool:
        """Whether a name is that of one of them; in a directory they are what is there here."""
        name = spec.name_of(word)
        if name is None or name in self._paths:
            return name is not None
        tops = (top for top in ancestors(name) if self._paths.get(top))
        return any(os.path.lexists(os.path.join(self._paths[top], name[len(top) + 1 :])) for top in tops)


def _word(name: str, path: str, is_named: bool) -> str:
    """Return a brought name as a pattern. A link to a directory is one only if it is named itself."""
    word = spec.literal(name)
    if os.path.isdir(path) and (is_named or not os.path.islink(path)):
        word = Tree(word)
        word.path = path
    return word


def placed(words: list[str], patterns: list[str], folder: str) -> list[str]:
    """Return the names over there of --files, as far as they are here, as patterns, and the patterns of --returns.

    A directory that becomes the job's own is given by its entries, except for the places that the patterns leave out.
    Raises Misconfigured.
    """
    found: list[tuple[str, str, bool]] = []
    try:
        meant = spec.sources(words, folder)
    except Misconfigured:
        meant = []  # nothing was brought
    for path, name in meant:
        here = os.fsdecode(path)
        if name:
            found.append((os.fsdecode(name), here, True))
        else:
            found += [(each, os.path.join(here, each), False) for each in sorted(os.listdir(here))]
    back = spec.returns(patterns)
    places, texts = Places(OBEYED), list(map(spec.text_of, back))

    def stays(name: str) -> bool:
        place = places.at(name)
        return bool(place) and spec.allowed(os.fsencode(place), back) and not naming(place, texts)

    return [*(_word(*each) for each in found if not stays(each[0])), *back]


def removable(own: list[str], came: list[str] | None) -> Iterator[str]:
    """Yield what is to be removed of the `own` names and patterns of an item: of a pattern, what came by it.

    It may match more by now, of another item. Without `came` that is not known, since the process before brought it:
    the pattern is for the end of the batch.
    """
    mine = set(own)
    patterns = [word for word in own if spec.name_of(word) is None]
    yield from (word for word in own if came is None or word not in patterns)
    for name in came or () if patterns else ():
        if (word := spec.literal(name)) not in mine and spec.allowed(os.fsencode(name), patterns):
            yield word
