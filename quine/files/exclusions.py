"""What of this machine is quine's own and no part of a user's tree: the data directory, and the tier if it is one here.

Laws
1. What is put, got or synced as a tree leaves them out, and what is removed to make it like another leaves them there:
   `quine fs sync --delete tier:src .` once removed the tapes, and the very store that it had read.
2. Who names one of them, or something in it, means it.
"""

from __future__ import annotations

import os

from quine.files import paths

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.api import Tier


def own(tier: Tier, top: str) -> frozenset[str]:
    """Where they are below the directory `top`, relative to it; a link to one counts as one. Raises OSError."""
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
    """Is it one of them, or in one?"""
    return any(paths.within(path, place) for place in places)


def holds(path: str, places: frozenset[str]) -> bool:
    """Is it one of them, or a directory above one?"""
    return any(paths.within(place, path) for place in places)
