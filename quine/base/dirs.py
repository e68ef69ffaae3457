"""Directories: absolute paths; creation with mode 0700, missing parents too. Existing ones keep their mode."""

from __future__ import annotations

import os
import stat


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
    # One that is gone again by now was removed by the last process that shared it: its next use says so.
    try:
        if not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(20, "not a directory", path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise


def absolute(path: str) -> str:
    """Return `path` made absolute, `~` expanded. In a directory that has been removed it is below `/`."""
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    return os.path.normpath(os.path.join(here, os.path.expanduser(path)))
