"""An installation of quine as the wheel makes it: packages with a stamp, and the console script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from transport import this_build

ROOT = Path(__file__).resolve().parents[2]


def install(folder: Path, python: str = sys.executable) -> Path:
    """Install this tree, and no library, into a new virtual environment at `folder`; return the console script.

    The sources are as old as the tree's: a client takes none for new that has changed since it began.
    """
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    for name in this_build.PACKAGES:
        shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    (packages / "transport" / this_build.STAMP).write_text(this_build.build_hash())
    subprocess.run([folder / "bin" / "python", "-m", "compileall", "-q", packages], check=True)
    script = folder / "bin" / "quine"
    text = (ROOT / "scripts" / "quine").read_text()
    script.write_text(text.replace("#!python", f"#!{folder}/bin/python", 1))
    os.chmod(script, 0o755)
    return script


def link_libraries(folder: Path) -> None:
    """Give the installation at `folder` the libraries of this process, whose Python is of the same version."""
    (packages,) = folder.glob("lib/python3*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if (
            entry.suffix != ".pth"
            and not entry.name.startswith("quine")
            and not (packages / entry.name).exists()
        ):
            (packages / entry.name).symlink_to(entry)
