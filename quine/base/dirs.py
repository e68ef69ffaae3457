"""Directories of ours: 0700 from the first moment, also the ones between; those that were there stay as they are."""

from __future__ import annotations

import os


def make(path: str) -> None:
    """The directory and what is missing above it; OSError where it cannot be."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above and above != path:
        make(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # two processes of a tree make it at the same time
    if not os.path.isdir(path):
        raise NotADirectoryError(20, "not a directory", path)
