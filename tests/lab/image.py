"""An installation of this build as a host has it, made once for each state of the sources and each Python of a lab.

Other hosts get hard links of it. A first start compiles its modules: half a second of a processor for each of the sixty
hosts of one run.

Laws
1. It is made by a real deployment to a real host, and used once, so that its modules are compiled.
2. It is complete or absent: made aside, renamed under a lock that all runs beside each other share.
3. A host whose binary differs (other dependencies, same sources) finds none of its own there, and is deployed to.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from deploy.build import Binary
from deploy.probe import Place
from deploy.there import installer
from tests.lab.host import OTHER
from tests.lab.machine import OURS
from transport import this_build

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / ".lab-cache" / "installed"
KEPT = 4  # images that stay: switching between branches stays quick
CACHE = Path(".cache") / "quine"  # below a home


def image(deployed: Callable[[], AbstractContextManager[Path]]) -> Path:
    """The image of the sources as they are; `deployed` gives the home of a host to which they were deployed."""
    found = IMAGES / f"{this_build.build_hash()}-{OURS}{OTHER.replace('/', '-')}"
    IMAGES.mkdir(parents=True, exist_ok=True)
    lock = os.open(IMAGES, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            aside = found.with_suffix(".new")
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            with deployed() as home:
                for path in (home / CACHE).iterdir():
                    shutil.move(path, aside / path.name)
            aside.rename(found)
            _forget_old()
        os.utime(found)
    finally:
        os.close(lock)
    return found


def _forget_old() -> None:
    for path in sorted(IMAGES.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def install(image: Path, home: Path) -> None:
    """Give it to the host with this home, as a deployment would have left it."""
    for source in image.iterdir():
        with open(source / installer.FILE, "rb") as file:
            binary = Binary(source / installer.FILE, hashlib.file_digest(file, "sha256").hexdigest(), 0)
            if Place(python=OTHER).name(binary) != source.name:
                raise RuntimeError(f"a test wrote to the installation that all hosts share: rm -r {image}")
        target = home / CACHE / source.name
        if target.exists():
            continue
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copytree(source, target, symlinks=True, copy_function=_link)
        # The launcher names its own path. It must be younger than the binary: an older one is taken for damaged.
        (target / "quine").unlink()
        text = (source / "quine").read_text()
        (target / "quine").write_text(re.sub(rf"\S+(?=/{CACHE}/)", str(home), text))
        (target / "quine").chmod(0o700)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system
        shutil.copy2(source, target, follow_symlinks=False)
