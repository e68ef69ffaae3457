"""Builds the tree below a directory of a flat store from one listing of all its keys.

Laws
1. The tree equals the listings of each directory, in the order of a walk.
2. A key below a part that encodes no name is left out; so is a key below a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from quine.files import paths
from quine.files.api import DIRECTORY_MODE, Entry
from quine.files.stores.fsspec_io import known


def tree(
    top: str,
    found: Iterable[tuple[str, dict[str, Any]]],
    name_of: Callable[[str], str | None],
    kept: str,
    aside: str,
) -> tuple[Sequence[Entry], Sequence[str]]:
    """Return the entries below `top`, and for keys that encode no name the paths that another tool would show.

    `found`: keys relative to `top`, with the driver's facts of each. `name_of` decodes a part of a key; None: no name.
    `kept` is the key part of objects that keep an empty directory; `aside` names the hidden directory of the root.
    """
    entries: dict[str, Entry] = {}
    odd: set[str] = set()
    for key, facts in found:
        *above, last = key.split("/")
        path = top
        for part in above:
            name = name_of(part)
            if not name or (not path and name == aside):
                if not name and (twin := paths.nearest(part)):
                    odd.add(paths.join(path, twin))
                break
            path = paths.join(path, name)
            entries.setdefault(path, Entry(path, "directory", mode=DIRECTORY_MODE))
        else:
            name = name_of(last)
            at = paths.join(path, name) if name else ""
            if at and at != aside and not (at in entries and facts.get("type") == "directory"):
                entries[at] = known(at, facts)
            elif not name and last != kept and (twin := paths.nearest(last)):
                odd.add(paths.join(path, twin))
    start = len(top) + 1 if top else 0
    shown = [
        entry
        for entry in entries.values()
        if not any(
            paths.join(top, each) in entries and entries[paths.join(top, each)].is_file
            for each in paths.ancestors(entry.path[start:])
        )
    ]
    shown.sort(key=lambda entry: [os.fsencode(name) for name in entry.path.split("/")])
    return shown, sorted(odd, key=os.fsencode)
