"""Stamps that tell a changed file of the configuration of ssh."""

from __future__ import annotations

import os
from typing import Optional

Stamp = Optional[tuple[int, int, int]]  # of a file that is not there: None


def stamp_of(facts: os.stat_result) -> Stamp:
    # The time of the inode: tools that copy can set the other one back.
    return facts.st_ctime_ns, facts.st_ino, facts.st_size


def stamp(path: str) -> Stamp:
    """Return what tells a changed file from the one before; an entry that is made or removed changes a directory."""
    try:
        return stamp_of(os.stat(path))
    except OSError:
        return None
