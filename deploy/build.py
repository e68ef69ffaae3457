"""Makes the single-file binary: a PEX of our sources and their dependencies, for this Python and machine.

Laws
1. Same inputs, same bytes: its SHA-256 is its name everywhere, so a host that has it is never sent it again.
2. Nothing is fetched: our sources are copied from where this process imports them, the dependencies are
   taken from the environment it runs in. A checkout and an installed wheel are built alike.
3. A process that runs as such a file sends that file.
4. The binary has the sources of this process. Sources that have changed since its start are an error here, not a
   surprise at the greeting.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from deploy import paths
from deploy.install import NAME, distribution
from transport import address, atomic
from transport.errors import Refused

# Cures for a cache without room, here or on a host, and for one here that we may not write.
ROOM = "make room there, or let ~/.cache be a link to where there is room"
ROOM_HERE = "make room there, or set XDG_CACHE_HOME"
OWN = "~/.cache must be yours to write: look at its owner and mode, or set XDG_CACHE_HOME"
FORMAT = "2"  # of the recipe below: another recipe, another key
SUFFIXES = (".py", ".md", ".toml", ".typed")
LEFT_OUT = ("pex",)  # only builds need it, and a process that runs as the file does not build
KEPT = 4  # builds that stay in the cache: switching between branches stays quick
BUILD_SECONDS = 300


@dataclass(frozen=True, slots=True)
class Binary:
    """One file, and the Python and machine that can run it."""

    path: Path
    sha256: str
    size: int
    python: tuple[int, int]
    system: str
    machine: str


# The binary that this process found, for each cache directory, and the stat of its file. A node dials again and again,
# and finding and digesting the file takes a fifth of a dial.
_known: dict[Path, tuple[Binary, os.stat_result]] = {}


def build(out: Path | None = None) -> Binary:
    """Return the binary of this very build, made or from the cache; copy it to `out`. Raises Refused."""
    if out is not None:
        _check_place(out)
    binary = _still_there()
    if binary is None:
        binary = running_binary() or _cached()
        _known[cache_directory()] = binary, binary.path.stat()
    if out is not None:
        _copy(binary.path, out)
        binary = _described(out, binary.sha256)
    return binary


def _still_there() -> Binary | None:
    """Return the binary that was found before, if its file has not changed since."""
    binary, before = _known.get(cache_directory(), (None, None))
    if binary is None or before is None:
        return None
    try:
        now = binary.path.stat()
    except OSError:
        return None
    same = (now.st_ino, now.st_size, now.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    return binary if same else None


def running_binary() -> Binary | None:
    """Return the file that this process runs as, if it does: pex leaves its mark in the environment it made."""
    if not (Path(sys.prefix) / "PEX-INFO").exists():
        return None
    for candidate in (Path(sys.prefix).parent / "quine.pex", Path(os.environ.get("PEX", ""))):
        if candidate.is_file():
            return _described(candidate)
    raise Refused("cannot find the file that this quine was started from", "start it by its full path again")


def cache_directory() -> Path:
    return Path(paths.cache())


def _cached() -> Binary:
    folder = cache_directory() / "build"
    target = folder / _key()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(folder / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits, and finds it done
            found = _intact(target)
            if found is None:
                with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as work:
                    _make(Path(work))
                    shutil.rmtree(target, ignore_errors=True)
                    (Path(work) / "made").rename(target)
                _forget_old(folder)
                found = _intact(target)
    except OSError as error:
        why = f"{error.filename or folder}: {(error.strerror or str(error)).lower()}"
        cure = ROOM_HERE if error.errno in (errno.ENOSPC, errno.EDQUOT) else OWN
        raise Refused(f"the binary for hosts cannot be kept: {why}", cure) from None
    if found is None:
        raise Refused(f"{target} is damaged as soon as it is written", "look at the disk")
    os.utime(target)
    return found


def _intact(target: Path) -> Binary | None:
    """Return the cached build if it is still as it was written."""
    try:
        binary = _described(target / "quine.pex")
        recorded = (target / "sha256").read_text().strip()
    except OSError:
        return None
    return binary if binary.sha256 == recorded else None


def _make(work: Path) -> None:
    """Build into work/made: the file, and its digest beside it."""
    sources, made = work / "sources", work / "made"
    made.mkdir()
    _stage(sources)
    version = ".".join(map(str, sys.version_info[:2]))
    command = [sys.executable, "-m", "pex", *_requirements(), "--venv-repository", sys.prefix, "--no-pypi"]
    for name in LEFT_OUT:
        command += ["--exclude", name]
    command += ["--sources-directory", str(sources), "--entry-point", "quine.__main__:main", "--venv"]
    # not --sh-boot: it writes the path of this interpreter's environment into the file
    command += ["--python-shebang", f"/usr/bin/env python{version}", "--pex-root", str(work / "root")]
    command += ["--tmpdir", str(work), "--output-file", str(made / "quine.pex")]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PEX", "PYTHON"))}
    try:
        done = subprocess.run(
            command,
            env=env,
            cwd=work,
            capture_output=True,
            timeout=BUILD_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"pex did not finish within {BUILD_SECONDS} s") from None
    if done.returncode != 0 or not (made / "quine.pex").exists():
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it says nothing"])[-1]
        hint = "in its checkout: python3 -m venv .venv; .venv/bin/pip install ."
        raise Refused(f"pex cannot make the binary: {last}", hint)
    (made / "quine.pex").chmod(0o755)
    (made / "sha256").write_text(_digest(made / "quine.pex") + "\n")


def _stage(sources: Path) -> None:
    """Copy our packages and nothing else, with equal modes whatever the umask. Raises Refused if they have changed."""
    root = Path(address.__file__).parents[1]
    for package in address.PACKAGES:
        for path in sorted((root / package).rglob("*")):
            if path.suffix in SUFFIXES and "__pycache__" not in path.parts:
                target = sources / path.relative_to(root)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path.read_bytes())
    _announce(sources / f"{NAME.replace('-', '_')}.dist-info")
    for folder, _, files in os.walk(sources):
        Path(folder).chmod(0o755)
        for name in files:
            (Path(folder) / name).chmod(0o644)
    ask = "from transport.address import build_hash; print(build_hash())"
    staged = subprocess.run(
        [sys.executable, "-B", "-c", ask], cwd=sources, capture_output=True, text=True, check=False
    )
    if staged.stdout.strip() != address.build_hash():
        raise Refused(
            "the sources have changed since this process was started",
            "run the command again; if it is the node that says so: quine node --stop",
        )


def _announce(folder: Path) -> None:
    """Write the metadata of an installation, by which the binary's Python finds our entry points, as any other does."""
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(_entry_points())


def _entry_points() -> str:
    known = distribution()
    points = known.entry_points if known else ()
    return "".join(
        sorted(
            f"[{one.group}]\n{one.name} = {one.value}\n" for one in points if one.group != "console_scripts"
        )
    )


def _requirements() -> list[str]:
    """Return the requirements of our distribution, without its extras and `LEFT_OUT`."""
    known = distribution()
    if known is None:
        raise Refused("quine is not installed here, only imported", "pip install -e . in its checkout")
    asked = known.requires or []
    return [text for text in asked if "extra ==" not in text and _project(text) not in LEFT_OUT]


def _key() -> str:
    """Return the name of a build: a digest of everything that goes into it."""
    parts = [
        FORMAT,
        address.build_hash(),
        sys.implementation.cache_tag,
        platform.system(),
        platform.machine(),
    ]
    parts += [platform.libc_ver()[0], metadata.version("pex")]
    seen: set[str] = set()
    waiting = [_project(text) for text in _requirements()]
    parts.append(_entry_points())
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # behind a marker that does not hold here
        parts.append(f"{name}=={distribution.version}")
        waiting += [_project(text) for text in distribution.requires or [] if "extra ==" not in text]
    return hashlib.sha256("\0".join(sorted(parts)).encode()).hexdigest()[:32]


def _project(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def _described(path: Path, sha256: str = "") -> Binary:
    return Binary(
        path=path,
        sha256=sha256 or _digest(path),
        size=path.stat().st_size,
        python=sys.version_info[:2],
        system=platform.system(),
        machine=platform.machine(),
    )


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_place(out: Path) -> None:
    """Raise Refused if `out` cannot be written, before a minute is spent on building.

    Only a file may be replaced: a rename over /dev/null, by root, takes it from the whole machine.
    """
    if out.exists() and not out.is_file():
        raise Refused(f"{out} is not a file", "name another one with -o")
    try:
        os.stat(os.path.join(out.parent, ""))  # ENOTDIR where a file stands
        if not os.access(out.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise Refused(f"cannot write {out}: {error.strerror}") from None


def _copy(path: Path, out: Path) -> None:
    """Write aside and rename: a file that runs as `out` at this moment must not change."""
    _check_place(out)
    try:
        atomic.write(str(out), path.read_bytes(), 0o755 & ~_umask(), own=True)
    except OSError as error:
        raise Refused(f"cannot write {out}: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask & ~stat.S_IXUSR


def _forget_old(folder: Path) -> None:
    builds = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("new-")]
    for path in sorted(builds, key=lambda path: path.stat().st_mtime, reverse=True)[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)
