"""Other CPythons of this machine, by their minor version: on the PATH, or where pyenv keeps them.

python -m tests.lab.pythons    print the path of the newest one that is newer than the one that runs it
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

HOSTS = (9, 10, 11, 12, 13)  # that a host may have; an origin from 11 on
PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")


def find(minor: int) -> str:
    """Return the path of CPython 3.`minor`, "" if there is none. A name on the PATH may be pyenv's, and not start."""
    name = f"python3.{minor}"
    kept = PYENV.glob(f"versions/3.{minor}.*/bin/{name}")
    for path in filter(None, (shutil.which(name), *map(str, sorted(kept)))):
        if not subprocess.run(
            [path, "-I", "-c", "import ssl, zlib"], capture_output=True, check=False
        ).returncode:
            return path
    return ""


def newer() -> str:
    """Return the path of the newest one that is newer than this one, "" if there is none."""
    minors = (minor for minor in reversed(HOSTS) if minor > sys.version_info.minor)
    return next(filter(None, map(find, minors)), "")


if __name__ == "__main__":
    print(newer())
