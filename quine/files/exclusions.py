"""Quine's own directories on this machine, excluded from user trees: the data directory, and a local store.

Laws
1. A put, get or sync of a tree leaves them out, and `--delete` does not remove them:
   `quine fs sync --delete tier:src .` once removed the tapes, and the very store that it had read.
2. A path that names one of them, or something in it, explicitly is not excluded.
"""

from __future__ import annotations

import os

from quine.files import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.api import Tier


def own(tier: Tier, top: str) -> frozenset[str]:
    """Paths of quine's own directories below `top`, relative to it; a link to one counts as one. Raises OSError."""
    places = [os.environ.get("QUINE_DATA_DIR") or ".quine"]
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
    return frozenset(found)


def within(path: str, places: frozenset[str]) -> bool:
    """Return whether `path` is one of `places` or inside one."""
    return any(paths.within(path, place) for place in places)


def holds(path: str, places: frozenset[str]) -> bool:
    """Return whether `path` is one of `places` or a directory above one."""
    return any(paths.within(place, path) for place in places)
