"""Directories: absolute paths; creation with mode 0700, missing parents too. Existing ones keep their mode."""

from __future__ import annotations

import os

from transport.provenance import safe_path

make = safe_path.make


def absolute(path: str) -> str:
    """Return `path` made absolute, `~` expanded. In a directory that has been removed it is below `/`."""
    try:
        here = os.getcwd()
    except OSError:
        here = "/"
    return os.path.normpath(os.path.join(here, os.path.expanduser(path)))
