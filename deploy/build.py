"""Makes the binary: one zip file of our sources and a few pure packages, for every Linux with Python 3.9 or newer.

Laws
1. Same inputs, same bytes: its SHA-256 is its name everywhere, so a host that has it is never sent it again.
2. Nothing is fetched: our sources are copied from where this process imports them, the packages are taken from the
   environment it runs in. A checkout and an installed wheel are built alike.
3. Nothing compiled is in it: a host does all for its origin without. `quine fs python` has fsspec, which is pure.
4. A process that runs as such a file sends that file.
5. The binary has the sources of this process. Sources that have changed since its start are an error here, not a
   surprise at the greeting.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from deploy import paths
from deploy.install import NAME, distribution
from deploy.there import installer
from transport import atomic, this_build
from transport.errors import Refused
from transport.provenance import safe_path

# Cures for a cache without room, here or on a host, and for one here that we may not write.
ROOM = "make room there, or let ~/.cache be a link to where there is room"
ROOM_HERE = "make room there, or set XDG_CACHE_HOME"
OWN = "~/.cache must be yours to write: look at its owner and mode, or set XDG_CACHE_HOME"
_OTHER = "set XDG_CACHE_HOME to a directory of yours"
OLDEST_PYTHON = (3, 9)
FORMAT = "6"  # of the recipe below: another recipe, another key
PACKAGES = ("fsspec",)  # pure distributions that go with the sources
# Modules of them that do nothing without packages that no host has from us.
OTHERS_NEED = frozenset((
    "gui", "conftest", "dask", "dbfs", "gist", "git", "github", "jupyter", "libarchive", "smb", "webhdfs",
    "arrow", "fuse", "http_sync", "parquet", "reference", "sftp",  # for pyarrow, Pyodide, zarr, paramiko
))  # fmt: skip
# Sources that unpack the rest. The rest is one compressed stream: a fifth shorter than a stream for each source.
UNPACKING = frozenset((
    "deploy/__init__.py", "deploy/paths.py", "deploy/there/__init__.py", "deploy/there/installer.py",
    "deploy/trust.py", "transport/__init__.py", "transport/address.py", "transport/errors.py",
    "transport/lean.py", "transport/provenance/__init__.py", "transport/provenance/safe_path.py",
))  # fmt: skip
KEPT = 4  # builds that stay in the cache: switching between branches stays quick
_SHEBANG = b"#!/usr/bin/env python3\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can say


@dataclass(frozen=True)
class Binary:
    """One file. `size` in bytes."""

    path: Path
    sha256: str
    size: int

    def lines(self) -> list[str]:
        """Return a description for people."""
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return [
            f"{self.path}: {self.size} bytes, for Linux and Python {oldest} or newer",
            f"sha256 {self.sha256}",
        ]


# The binary that this process found, for each cache directory, and the stat of its file. A node dials again and again,
# and finding and digesting the file takes a fifth of a dial.
_known: dict[Path, tuple[Binary, os.stat_result]] = {}


class Unwritable(Refused):
    """The file that was asked for cannot be written."""

    status = 74

    def __init__(self, out: Path, why: str | None) -> None:
        super().__init__(f"cannot write {out}: {(why or 'unknown').lower()}", "name another file with -o")


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
    """Return the file that this process was unpacked from, if it was."""
    if not this_build.unpacked():
        return None
    candidate = Path(this_build.ROOT).parent / installer.FILE
    if not candidate.is_file():
        raise Refused(f"{candidate} is missing, from which this quine was unpacked", "install it anew")
    return _described(candidate)


def cache_directory() -> Path:
    return Path(paths.cache())


def made_directory(name: str) -> Path:
    """Return a directory in the cache, which is made if it is missing.

    Its files run on hosts. Raises Refused if another user can put something there, and OSError.
    """
    try:
        return Path(safe_path.made(str(cache_directory() / name)))
    except safe_path.Unsafe as unsafe:
        raise Refused(
            f"the cache for hosts is not yours alone: {unsafe}", f"{unsafe.hint}; or {_OTHER}"
        ) from None


def _cached() -> Binary:
    folder = cache_directory() / "build"
    target = folder / _key()
    try:
        made_directory("build")
        with open(folder / "lock", "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second process waits, and finds it done
            found = _intact(target)
            if found is None:
                with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as work:
                    _make(Path(work) / "made")
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
    """Return the cached build if it is still as it was written, and no other user can write it."""
    try:
        os.close(safe_path.named(str(target / installer.FILE)))
        binary = _described(target / installer.FILE)
        recorded = (target / "sha256").read_text().strip()
    except (OSError, safe_path.Unsafe):
        return None
    return binary if binary.sha256 == recorded else None


def _make(made: Path) -> None:
    """Build into the directory `made`: the file, and its digest beside it."""
    made.mkdir(mode=0o700)
    path = made / installer.FILE
    sources = _sources()
    if this_build.hash_of(sources) != this_build.build_hash():
        raise Refused(
            "the sources have changed since this process was started",
            "run the command again; if it is the node that says so: quine node --stop",
        )
    main = ("__main__.py", _main())
    content = BytesIO()
    write_zip(content, [*sources, *_packages(), *_metadata(), main], zipfile.ZIP_STORED)
    with open(path, "wb") as file:
        file.write(_SHEBANG)
        first = [one for one in sources if one[0] in UNPACKING]
        write_zip(file, [main, *first, (installer.CONTENT, content.getvalue())])
    path.chmod(0o755)
    (made / "sha256").write_text(_digest(path) + "\n")


def write_zip(file: BinaryIO, members: Iterable[tuple[str, bytes]], how: int = zipfile.ZIP_DEFLATED) -> None:
    """Write pairs of name and content as a zip file: the same pairs, the same bytes."""
    with zipfile.ZipFile(file, "w", how, compresslevel=9) as archive:
        for name, content in sorted(members):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.external_attr = 0o644 << 16
            member.compress_type = how
            archive.writestr(member, content)


def _sources() -> list[tuple[str, bytes]]:
    """Return name and content of each of our sources, in the order of the build's hash."""
    return [(name, Path(path).read_bytes()) for name, path, _ in this_build.sources()]


def _main() -> bytes:
    return Path(this_build.ROOT, "quine", "one_file.py").read_bytes()


def _packages() -> list[tuple[str, bytes]]:
    """Return the files of PACKAGES that are installed here, with their licences."""
    found = {}
    for project in PACKAGES:
        try:
            files = metadata.distribution(project).files or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            licence = "licen" in file.name.lower() and ".dist-info" in file.parts[0]
            code = (
                file.suffix in this_build.SUFFIXES
                and ".dist-info" not in file.parts[0]
                and not (OTHERS_NEED | {"tests"}) & {*file.parts, file.stem}
            )
            if (code or licence) and ".." not in file.parts:
                found[file.as_posix()] = Path(file.locate()).read_bytes()
    return sorted(found.items())


def _metadata() -> list[tuple[str, bytes]]:
    """Return the metadata of an installation, by which the host's Python finds our entry points, as any other does."""
    folder = f"{NAME.replace('-', '_')}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n"
    return [(f"{folder}/METADATA", about.encode()), (f"{folder}/entry_points.txt", _entry_points().encode())]


def _entry_points() -> str:
    known = distribution()
    points = known.entry_points if known else ()
    return "".join(
        sorted(
            f"[{one.group}]\n{one.name} = {one.value}\n" for one in points if one.group != "console_scripts"
        )
    )


def _key() -> str:
    """Return the name of a build: a digest of everything that goes into it."""
    parts = [FORMAT, this_build.build_hash(), _entry_points()]
    for project in PACKAGES:
        try:
            parts.append(f"{project}=={metadata.version(project)}")
        except metadata.PackageNotFoundError:
            continue
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _described(path: Path, sha256: str = "") -> Binary:
    return Binary(path, sha256 or _digest(path), path.stat().st_size)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return installer.digest(file)


def _check_place(out: Path) -> None:
    """Raise Unwritable if `out` cannot be written, before anything is built.

    Only a file may be replaced: a rename over /dev/null, by root, takes it from the whole machine.
    """
    if out.exists() and not out.is_file():
        raise Unwritable(out, "it is not a file")
    try:
        os.stat(os.path.join(out.parent, ""))  # ENOTDIR where a file stands
        if not os.access(out.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise Unwritable(out, error.strerror) from None


def _copy(path: Path, out: Path) -> None:
    """Write aside and rename: a file that runs as `out` at this moment must not change."""
    _check_place(out)
    try:
        atomic.write(str(out), path.read_bytes(), 0o755 & ~_umask(), own=True)
    except OSError as error:
        raise Unwritable(out, error.strerror) from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask & ~stat.S_IXUSR


def _forget_old(folder: Path) -> None:
    for path in by_age(folder, stat.S_ISDIR, "new-")[KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def by_age(folder: Path, kind: Callable[[int], bool], spared: str) -> list[Path]:
    """Return the entries of a kind, the newest first, but those whose name begins with `spared`.

    Other processes remove entries meanwhile.
    """
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            facts = path.stat()
            if kind(facts.st_mode) and not path.name.startswith(spared):
                found.append((facts.st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]
