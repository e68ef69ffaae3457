"""Runs on the host, sent there as text: receives the binary, checks it, makes it startable, becomes the dial.

    answers on stdout, each a line that begins with the marker:
        unpack            the binary is there and whole
        fail WORD TEXT    nothing was installed; WORD is one of FAILURES in deploy/host_requirements.py
        have              installed; the bytes of the dial follow

Laws
1. Standard library only, no import of ours: this program runs before anything of ours is there.
2. The name <cache>/<sha256> exists only as a whole: made aside in the same directory, tried, then renamed.
   So nothing half-installed can be started, and two installers at once do no harm: the second finds it done.
3. Whatever happens, the directory made aside is removed; one that a killed installer left is removed by the next.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import NoReturn

UNPACKED = 5  # times the size of the binary: the room that making it startable takes
UNPACK_SECONDS = 300
STALE = 3600  # seconds after which a directory made aside belongs to nobody
KEPT = 3  # installations that stay, the newest; and those in use
CHUNK = 1 << 16


class Failure(Exception):
    """One word for the origin, one text for people."""

    def __init__(self, word: str, text: str) -> None:
        super().__init__(word, text)
        self.word = word
        self.text = text


def main(marker: str, sha256: str, size: int, build: str, mode: str, source: BufferedReader) -> NoReturn:
    """Install the binary from `source`; then exec the dial if the mode is "dial". Never returns."""
    umask = os.umask(0o077)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # unwinds: law 3
    base = Path("~/.cache/quine").expanduser()
    target = base / sha256
    try:
        install(base, target, sha256, size, build, source, lambda word: say(marker, word))
    except Failure as failure:
        say(marker, f"fail {failure.word} {' '.join(failure.text.split())}")
        sys.exit(69)
    except OSError as error:
        say(marker, f"fail {word_of(error)} {error.filename or base}: {error.strerror}")
        sys.exit(69)
    say(marker, "have")
    if mode != "dial":
        sys.exit(0)
    os.environ["PATH"] = f"{target}:{os.environ.get('PATH', os.defpath)}"
    python = str(target / "venv" / "bin" / "python")
    os.umask(umask)  # the node's jobs have that of the login
    os.execv(python, [python, "-I", "-m", "quine", "node", "--dial"])


def say(marker: str, text: str) -> None:
    os.write(1, f"{marker} {text}\n".encode(errors="replace"))


def word_of(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "full"
    return "readonly" if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOENT) else "write"


def install(
    base: Path,
    target: Path,
    sha256: str,
    size: int,
    build: str,
    source: BufferedReader,
    tell: Callable[[str], None],
) -> None:
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    forget(base, target)
    facts = os.statvfs(base)
    free, needed = facts.f_bavail * facts.f_frsize, size * (1 + UNPACKED)
    if free < needed:
        raise Failure("full", f"{base} has {free >> 20} MB free, {needed >> 20} MB are needed")
    began = time.time()
    work = Path(tempfile.mkdtemp(prefix=".new-", dir=base))
    try:
        receive(work / "quine.pex", sha256, size, source)
        tell("unpack")
        unpack(work, target, build)
        put(work, target, began)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def receive(path: Path, sha256: str, size: int, source: BufferedReader) -> None:
    """Write exactly `size` bytes, and verify them by reading the file back."""
    with open(path, "xb") as file:
        left = size
        while left:
            data = source.read1(min(left, CHUNK))
            if not data:
                raise Failure("cut", f"{size - left} of {size} bytes came")
            file.write(data)
            left -= len(data)
        file.flush()
        os.fsync(file.fileno())
    with open(path, "rb") as file:
        got = hashlib.sha256()
        while data := file.read(CHUNK):
            got.update(data)
    if got.hexdigest() != sha256:
        raise Failure("corrupt", f"its SHA-256 begins with {got.hexdigest()[:16]}, not {sha256[:16]}")
    path.chmod(0o700)


def unpack(work: Path, target: Path, build: str) -> None:
    """Make the binary's environment, and check that it starts. Unpacking at each start would cost 100 ms."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PEX", "PYTHON"))}
    env |= {"PEX_TOOLS": "1", "PEX_ROOT": str(work / "root"), "PEX_IGNORE_RCFILES": "1", "TMPDIR": str(work)}
    run([sys.executable, "-sE", str(work / "quine.pex"), "venv", str(work / "venv")], env, "unpack")
    shutil.rmtree(work / "root", ignore_errors=True)
    python = work / "venv" / "bin" / "python"
    launcher = work / "quine"
    place = shlex.quote(str(target / "venv" / "bin" / "python"))
    launcher.write_text(f'#!/bin/sh\nexec {place} -I -m quine "$@"\n')
    launcher.chmod(0o700)
    if not os.access(launcher, os.X_OK):
        raise Failure("noexec", f"{target.parent} is on a file system mounted noexec")
    ask = "from transport.address import build_hash; print(build_hash())"
    if run([str(python), "-I", "-c", ask], env, "start").strip() != build:
        raise Failure("start", "it starts, as another build")


def run(command: list[str], env: dict[str, str], word: str) -> str:
    """Return its stdout. Raises Failure with the last line of its stderr."""
    try:
        done = subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=UNPACK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Failure(word, f"not done in {UNPACK_SECONDS} s") from None
    if done.returncode:
        text = done.stderr.decode(errors="replace")
        if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
            raise Failure("full", f"no space left below {Path(command[0]).anchor}")
        raise Failure(word, (text.strip().splitlines() or [f"status {done.returncode}"])[-1][:500])
    return done.stdout.decode(errors="replace")


def put(work: Path, target: Path, began: float) -> None:
    """Rename the work to its name. Equal work that another installer made meanwhile stays; a damaged one goes."""
    for _ in range(3):
        try:
            work.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        if target.stat().st_mtime > began:
            return
        aside = Path(tempfile.mkdtemp(prefix=".old-", dir=target.parent))
        target.rename(aside / "was")
        shutil.rmtree(aside, ignore_errors=True)
    raise Failure("write", f"{target} cannot be replaced")


def forget(base: Path, target: Path) -> None:
    """Remove the leftovers of killed installers, and old installations that no process runs."""
    old: list[tuple[float, Path]] = []
    for path in base.iterdir():
        try:
            changed = path.lstat().st_mtime
        except OSError:
            continue
        if path.name.startswith((".new-", ".old-")):
            if changed < time.time() - STALE:
                shutil.rmtree(path, ignore_errors=True)
        elif len(path.name) == len(target.name) and path.name != target.name:
            old.append((changed, path))
    spare = [path for _, path in sorted(old, reverse=True)[KEPT - 1 :]]
    if spare:
        running = commands()
        for path in spare:
            if str(path) not in running:
                shutil.rmtree(path, ignore_errors=True)


def commands() -> str:
    """Return the command lines of all processes: an installation in use is named in one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return "\n".join(found)
