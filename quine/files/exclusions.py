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
