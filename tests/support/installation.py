"""An installation of quine as the wheel makes it: packages with a stamp, the console script, and no library."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from transport import this_build

ROOT = Path(__file__).resolve().parents[2]


def install(folder: Path) -> Path:
    """Install this tree into a new virtual environment at `folder`; return the console script.

    The sources are as old as the tree's: a client takes none for new that has changed since it began.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
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
