"""Names excluded from user trees: quine's own directories on this machine, and names that are obeyed where they lie.

Laws
1. A put, get or sync of a tree leaves out the data directory and a local store, and `--delete` does not remove them:
   `quine fs sync --delete tier:src .` once removed the tapes, and the very store that it had read.
2. A tree that comes from another machine lacks the names that quine or git obeys at its top: otherwise an agent that is
   not trusted could write the user's next inventory, persona or hook. Each name left out is said. So is a directory
   of an interrupted staging, whose renames quine would finish if it were the user's. So is a name that a file
   system takes for one of them, as it ignores case or has short names: `.GIT`, `inventory.toml.`, `PERSON~1`.
3. A path that names one of them, or something in it, explicitly is not excluded.
"""

from __future__ import annotations

import os

from quine.base import data_directory
from quine.base.errors import say
from quine.files import paths
from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from quine.files.api import Tier


OBEYED = (".git", ".quine", "inventory.toml", "personas")  # a file or a link of that name, too
ASIDE = ".quine-aside-"  # prefix of the names of the private directories of staging


def obeyed(path: str) -> str:
    """Return the first name of a path if quine or git obeys it there, on some file system; "" if not."""
    first = path.partition("/")[0]
    is_one = any(paths.is_alias(first, each) for each in OBEYED)
    return first if is_one or first.lower().startswith(ASIDE) else ""


class Places:
    """Paths below a directory, each in whatever way some file system spells it, and others `exactly` as they are."""

    def __init__(self, names: Iterable[str], exactly: Iterable[str] = ()) -> None:
        self.names, self._exactly = sorted(names), sorted(exactly)
        parts = [name.split("/") for name in self.names if {".", ".."}.isdisjoint(name.split("/"))]
        self._wanted = [list(map(_form, each)) for each in parts]
        self._first = ""
        self._begin: list[list[str]] = []  # those that the last name began as

    def begin(self, first: str) -> list[list[str]]:
        """Return those that a path with this first name may be at or in."""
        if first != self._first:
            form = _form(first)
            self._first = first
            self._begin = [wanted for wanted in self._wanted if paths.stands_for(form, wanted[0])]
        return self._begin

    def at(self, name: str) -> str:
        """Return the path that a name is at or in, as it is spelled there; "" if it is at none."""
        for exact in self._exactly:
            if paths.within(name, exact):
                return exact
        if not (begin := self.begin(name.partition("/")[0])):
            return ""
        parts = name.split("/")
        for wanted in begin:
            if len(parts) >= len(wanted) and all(map(paths.stands_for, map(_form, parts), wanted)):
                return "/".join(parts[: len(wanted)])
        return ""

    def there(self, folder: str, tops: Iterable[bytes]) -> list[str]:
        """Return the paths that are there, of which one of `tops` may be above; b"" is above all."""
        found = {name for name in self._exactly if os.path.lexists(os.path.join(folder, name))}
        if b"" not in tops and not any(len(wanted) > 1 for wanted in self._wanted):
            return sorted(found)
        listed: dict[str, list[tuple[str, str]]] = {}
        for wanted in self._wanted:
            level = [""]
            for part in wanted:
                for above in level:
                    if above not in listed:
                        listed[above] = _listed(os.path.join(folder, above))
                level = [
                    paths.join(above, name)
                    for above in level
                    for name, form in listed[above]
                    if paths.stands_for(form, part)
                ]
            found.update(level)
        return sorted(found)


def _form(name: str) -> str:
    return paths.plain(name) or name


def _listed(folder: str) -> list[tuple[str, str]]:
    """Return the names in a directory, and their forms; [] if it is none, or cannot be read."""
    with contextlib.suppress(OSError):
        return [(name, _form(name)) for name in os.listdir(folder)]
    return []


def own(tier: Tier, top: str) -> frozenset[str]:
    """Paths of quine's own directories below `top`, relative to it; a link to one counts as one. Raises OSError.

    Private directories of staging are among them.
    """
    places = [data_directory.named()]
    if tier.directory_here():
        places.append(tier.directory_here())
    top = os.path.realpath(top)
    found = set()
    for place in map(os.path.abspath, places):
        named = os.path.join(os.path.realpath(os.path.dirname(place)), os.path.basename(place))
        for path in (named, os.path.realpath(place)):
            relative = os.path.relpath(path, top)
            if relative != "." and relative.partition("/")[0] != "..":
                found.add(relative)
    with contextlib.suppress(OSError):
        found.update(name for name in os.listdir(top) if name.startswith(ASIDE))
    return frozenset(found)


def naming(place: str, named: Iterable[str]) -> list[str]:
    """Return those of `named`, paths or patterns, that name `place` or something in it explicitly."""
    return [word for word in named if paths.within(word, place)]


def left_out(places: Iterable[str], option: Callable[[str], str]) -> str:
    """Return the message about `places` that were left out; `option` returns what brings one. "" if there are none."""
    from transport.text import harmless

    found = [harmless(place) for place in sorted(places)]
    if not found:
        return ""
    which = "names" if len(found) > 1 else "a name"
    return f"{', '.join(found)} left out, {which} that quine or git obeys; to have it: {', '.join(map(option, found))}"


def written_here(names: Iterable[str]) -> str:
    """Return the message about results that were left out since the caller writes there; "" if there are none."""
    from transport.text import harmless

    found = ", ".join(map(harmless, names))
    return f"{found} left out of --returns, since this command writes there itself" if found else ""


def say_left_out(places: Iterable[str], option: Callable[[str], str]) -> None:
    """Print that message."""
    if text := left_out(places, option):
        say(f"quine: {text}\n")


def within(path: str, places: frozenset[str]) -> bool:
    """Return whether `path` is one of `places` or inside one."""
    return any(paths.within(path, place) for place in places)


def holds(path: str, places: frozenset[str]) -> bool:
    """Return whether `path` is one of `places` or a directory above one."""
    return any(paths.within(place, path) for place in places)
