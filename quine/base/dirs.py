"""Creation of private directories: mode 0700 from the start, missing parents too. Existing ones keep their mode."""

from __future__ import annotations

import os


def make(path: str) -> None:
    """Create `path` and its missing parents. Raises OSError."""
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    if above and above != path:
        make(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # two processes of a tree may create it at the same time
    if not os.path.isdir(path):
        raise NotADirectoryError(20, "not a directory", path)
