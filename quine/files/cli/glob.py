"""Patterns in paths of the tier, as a shell has them: `*`, `?`, `[a-z]`, and `**` for any number of directories.

Laws
1. `*`, `?` and `**` match no name that begins with a dot, unless the pattern begins with one there; as in a shell.
2. A pattern that matches nothing is an error: `rm 'lgo*'` must not look successful.
3. Matches are in the order of the names' bytes, each once.
"""

from __future__ import annotations

import errno
import os

from quine.files import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.files.api import Entry, Tier

MAGIC = frozenset("*?[")


class NoMatch(FileNotFoundError):
    """Nothing matches the pattern."""

    def __init__(self, pattern: str) -> None:
        super().__init__(errno.ENOENT, "nothing matches", pattern)


def is_pattern(path: str) -> bool:
    return not MAGIC.isdisjoint(path)


def expand(tier: Tier, path: str) -> list[str]:
    """Clean paths that match. Raises NoMatch, OSError."""
    parts = paths.clean(path).split("/")
    found = list(dict.fromkeys(_below(tier, "", parts)))
    if path.endswith("/"):
        found = [one for one in found if not tier.stat(one).is_file]
    if not found:
        raise NoMatch(path)
    return sorted(found, key=os.fsencode)


def like(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a name matches. Dots are not special, as in `find -name`."""
    import fnmatch
    import re

    match = re.compile(fnmatch.translate(pattern)).match
    return lambda name: match(name) is not None


def _below(tier: Tier, above: str, parts: list[str]) -> Iterator[str]:
    """Paths below a directory that match the parts."""
    count = next((count for count, part in enumerate(parts) if is_pattern(part)), -1)
    if count < 0:
        whole = paths.join(above, *parts)
        try:
            tier.stat(whole)
        except (FileNotFoundError, NotADirectoryError):
            return
        yield whole
        return
    above = paths.join(above, *parts[:count])
    part, rest = parts[count], parts[count + 1 :]
    if part == "**":
        yield from _deep(tier, above, rest)
        return
    matches = like(part)
    for entry in _list(tier, above):
        name = paths.name(entry.path)
        if (not name.startswith(".") or part.startswith(".")) and matches(name):
            if not rest:
                yield entry.path
            elif not entry.is_file:
                yield from _below(tier, entry.path, rest)


def _deep(tier: Tier, above: str, rest: list[str]) -> Iterator[str]:
    """Paths that match `**` and the parts after it, in this directory and in each one below."""
    todo = [above]
    while todo:
        above = todo.pop()
        if rest:
            yield from _below(tier, above, rest)
        for entry in _list(tier, above):
            if paths.name(entry.path).startswith("."):
                continue
            if not rest:
                yield entry.path
            if not entry.is_file:
                todo.append(entry.path)


def _list(tier: Tier, path: str) -> list[Entry]:
    try:
        return list(tier.list(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
