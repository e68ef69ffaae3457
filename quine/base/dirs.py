"""Directories: absolute paths; creation with mode 0700, missing parents too. Existing ones keep their mode.

Law: the current directory may have been removed. A path that is only compared is then below `/`; a job or a file that
needs the directory is refused.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured
from transport.provenance import safe_path

make = safe_path.make


def make_inside(path: str, names: int) -> None:
    """Make a directory in the data directory, where its last `names` names are quine's own. Raises OSError.

    No other user can replace it then, so files in it are made by their path.
    """
    above = path
    for _ in range(names):
        above = os.path.dirname(above)
    make(above)
    os.close(safe_path.inside(path, names, safe_path.FOLDER, make=True))


def here() -> str:
    """Return the current directory; `/` if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return "/"


def current() -> str:
    """Return the current directory. Raises Misconfigured if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        raise Misconfigured("the current directory has been removed", "cd to another one") from None


def absolute(path: str) -> str:
    """Return `path` made absolute, `~` expanded. In a directory that has been removed it is below `/`."""
    return os.path.normpath(os.path.join(here(), os.path.expanduser(path)))
