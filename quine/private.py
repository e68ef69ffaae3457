"""Directories of ours: 0700 from the first moment, also the ones between; those that were there stay as they are."""

from __future__ import annotations

import contextlib
import os


def make(path: str) -> None:
    """The directory and what is missing above it; OSError where it cannot be."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above and above != path:
        make(above)
    # Two processes of a tree make it at the same time.
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if not os.path.isdir(path):
        raise NotADirectoryError(20, "not a directory", path)
