"""A Python for another machine: CPython 3.11 of Debian for arm64, started through qemu's emulation of a process.

Its wrapper is sys.executable of what it starts, so that a host needs no binfmt_misc: each process of quine goes through
it again. Other programs run as they are.

Laws
1. The machine's own apt is not touched: lists, status and cache lie in the lab's.
2. The files are fetched once, checked by Debian's key, and kept in .lab-cache: by `python -m tests.lab.arm64`, before
   any test is watched. A mirror that does not answer cost three tests their whole time once.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.lab.machine import remove

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / ".lab-cache" / "arm64"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
SOURCE = f"deb [signed-by={KEYS}] http://deb.debian.org/debian bookworm main\n"
PACKAGES = (
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1",
    "zlib1g", "libexpat1", "libssl3", "libffi8", "libbz2-1.0", "liblzma5",
)  # fmt: skip
QEMU = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
WRAPPER = """#!/bin/sh
root="${{0%/usr/bin/*}}"
exec {qemu} -L "$root" -0 "$0" "$root/usr/bin/python3.11.arm64" "$@"
"""


def python() -> tuple[Path | None, str]:
    """Return the wrapper, or None and the reason why there is none."""
    if QEMU is None:
        return None, "needs qemu-user"
    if not PLACE.exists():
        return None, "not fetched: python -m tests.lab.arm64"
    return PLACE / "usr" / "bin" / "python3.11", ""


def fetch() -> None:
    """Fetch it, if it is not there. Raises OSError, and CalledProcessError with what a tool said."""
    for tool in (QEMU, shutil.which("apt-get"), shutil.which("dpkg-deb"), KEYS):
        if not (tool and os.path.exists(tool)):
            raise FileNotFoundError("needs qemu-user, and apt with Debian's keys")
    PLACE.parent.mkdir(exist_ok=True)
    lock = os.open(PLACE.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not PLACE.exists():
            aside = PLACE.with_suffix(".new")
            remove(aside)
            _fetch(aside)
            aside.rename(PLACE)
    finally:
        os.close(lock)


def _fetch(root: Path) -> None:
    apt = root / "apt"
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "sources.list").write_text(SOURCE)
    (apt / "apt.conf").write_text(
        f'Dir::State "{apt}/state";\nDir::State::status "{apt}/status";\nDir::Cache "{apt}/cache";\n'
        f'Dir::Etc::SourceList "{apt}/sources.list";\nDir::Etc::SourceParts "-";\n'
        'APT::Architecture "arm64";\nAPT::Architectures { "arm64"; };\nAPT::Sandbox::User "";\n'
    )
    env = {**os.environ, "APT_CONFIG": f"{apt}/apt.conf"}

    def run(*words: str | Path) -> None:
        subprocess.run(words, cwd=apt, env=env, check=True, capture_output=True, text=True)

    run("apt-get", "update", "-o", "APT::Update::Error-Mode=any")
    run("apt-get", "download", *PACKAGES)
    for package in apt.glob("*.deb"):
        run("dpkg-deb", "-x", package, root)
    remove(apt)
    wrapper = root / "usr" / "bin" / "python3.11"
    wrapper.rename(f"{wrapper}.arm64")
    wrapper.write_text(WRAPPER.format(qemu=QEMU))
    wrapper.chmod(0o755)


if __name__ == "__main__":
    try:
        fetch()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error}\n{error.stderr}")
    except OSError as error:
        sys.exit(str(error))
