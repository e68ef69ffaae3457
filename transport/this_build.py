"""This build of quine: its sources, their hash, and the command that starts it again.

Laws
1. The hash is the same in a checkout, a wheel and the one file that hosts get.
2. A wheel has it in a stamp: nobody changes an installed source in place. Elsewhere it is kept in a note.
"""

from __future__ import annotations

import os
import sys
import time

from transport.address import boot_id, runtime_directory
from transport.errors import Refused
from transport.lean import blake2b, suppress

PACKAGES = ("quine", "transport", "deploy")
SUFFIXES = (".py", ".md", ".toml")  # of sources
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # has the packages
NEW = 2_000_000_000  # ns; a file modified more recently may change again within one clock tick and look the same
STAMP = "build_stamp"  # a file in this package, in a wheel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

NOTE_SECONDS = 600.0  # between two notes that this build is in use
_build = ""
_use_noted = -NOTE_SECONDS  # when the last one was written


def build_hash() -> str:
    """BLAKE2 over the sources of our packages: the same in a checkout, a wheel and the one file that hosts get.

    A wheel has it in a stamp: nobody changes an installed source in place. Elsewhere it is kept in a note.
    """
    global _build
    if not _build:
        _build = _stamped() or _looked_up()
    return _build


def _stamped() -> str:
    try:
        with open(f"{ROOT}/transport/{STAMP}", "rb", buffering=0) as file:
            build = file.read(65).decode()
    except (OSError, ValueError):
        return ""
    return build if len(build) == 64 else ""


def _looked_up() -> str:
    """Return the hash by the note of an earlier process, which has the inode, size and times of every source.

    Reading the sources would take a tenth of a client's start time, and looking at them takes a twentieth. It is not
    noted while a source is newer than `NEW`, which may change and look the same.
    """
    now = time.time_ns()
    found = sources()
    facts = [(name, f.st_ino, f.st_size, f.st_mtime_ns, f.st_ctime_ns) for name, _, f in found]
    seen = blake2b(repr((ROOT, facts)).encode(), digest_size=32).hexdigest()
    note = _note_path(ROOT)
    build = _noted(note, seen)
    if not build:
        build = hash_of((name, _content(path)) for name, path, _ in found)
        if note and max(row[4] for row in facts) < now - NEW:
            _note(note, f"{seen} {build}")
    return build


def sources() -> list[tuple[str, str, os.stat_result]]:
    """Return (name, path, facts) of every source of this build, in the same order on every machine."""
    return [source for package in PACKAGES for source in _sources(f"{ROOT}/{package}", package)]


def _sources(folder: str, name: str) -> list[tuple[str, str, os.stat_result]]:
    found: list[tuple[str, str, os.stat_result]] = []
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            own = f"{name}/{entry.name}"
            if entry.name.endswith(SUFFIXES):
                found.append((own, entry.path, entry.stat()))
            elif entry.name != "__pycache__" and entry.is_dir():
                found += _sources(entry.path, own)
    return found


def hash_of(contents: Iterable[tuple[str, bytes]]) -> str:
    """Return the hash of a build with these sources, as pairs of name and content."""
    digest = blake2b(digest_size=32)
    for name, source in contents:
        digest.update(f"{name}\0{len(source)}\0".encode() + source)
    return str(digest.hexdigest())


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _note_path(root: str) -> str:
    """Return the path of the noted hash, where no other user can write; "" if there is no such place."""
    try:
        return f"{runtime_directory()}/build-{blake2b(os.fsencode(root), digest_size=8).hexdigest()}"
    except Refused:
        return ""


def _noted(path: str, seen: str) -> str:
    try:
        with open(path) as file:
            before, _, build = file.read(256).partition(" ")
    except (OSError, ValueError):
        return ""
    return build if before == seen and len(build) == 64 else ""


def _note(path: str, text: str) -> None:
    from transport import atomic  # here: every client loads this module

    try:
        atomic.write(path, text.encode(), 0o600, own=True)
    except OSError:
        pass  # the next process reads the sources again


def unpacked() -> bool:
    """Whether this process runs from the one file that hosts get, unpacked."""
    return os.path.exists(f"{ROOT}/__main__.py")


def removed() -> bool:
    """Whether the files of this build are gone, as after `rm -rf ~/.cache`: modules not loaded yet fail then."""
    return not os.path.exists(f"{ROOT}/transport")


def note_use(job: str = "") -> None:
    """Tell other hosts with this home that a process of this one runs this build: a note in it, each few minutes.

    They see no processes of this one, and would remove it as an old one (deploy/there/installer.py). Two hosts may have
    one name, so the note names the boot, too. The record of a detached `job` that runs is touched as well.
    """
    global _use_noted
    now = time.monotonic()
    if now < _use_noted + NOTE_SECONDS:
        return
    _use_noted = now  # also elsewhere: this is called in loops, and looks at the disk
    with suppress(OSError):
        if job:
            os.utime(job)
    with suppress(OSError):  # it was removed, or cannot be written
        if unpacked():
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            note = f"{os.path.dirname(ROOT)}/used-{os.uname().nodename}-{boot_id()}"
            fd = os.open(note, flags, 0o600)
            try:
                os.utime(fd)
            finally:
                os.close(fd)


def own_command() -> list[str]:
    """The argv that starts this same program again; arguments follow.

    A file named like one of our modules in the current directory must not be imported in its place: hence -P, and where
    there is none (before Python 3.11) our own place as the first one of the path. PyPy has its locale from the launcher
    of the installation.
    """
    if unpacked():
        launcher = f"{os.path.dirname(ROOT)}/quine"
        if sys.implementation.name == "pypy" and os.access(launcher, os.X_OK):
            return [launcher]
        flags = (
            ["-I"] * sys.flags.isolated + ["-S"] * sys.flags.no_site + ["-X", "utf8"] * sys.flags.utf8_mode
        )
        return [sys.executable, *flags, ROOT]
    if sys.version_info < (3, 11):
        places = f"sys.path[:1] = []; sys.path.append({ROOT!r})"
        return [sys.executable, "-c", f"import sys; {places}; from quine.__main__ import main; main()"]
    return [sys.executable, "-P", "-m", "quine"]


def same_command() -> list[str]:
    """The argv that starts this program again by the script that has started it: `ps` and `pgrep` show the same.

    As `own_command` where the kernel has not started a script by its first line: it names the process after that.
    """
    script = sys.argv[0]
    try:
        with open("/proc/self/comm") as file:
            named = file.read().rstrip("\n") == os.path.basename(script)[:15]
    except (OSError, ValueError):
        named = False
    # `orig_argv` is there from Python 3.10 on; that of a fork names the program whose fork it is.
    started = named and getattr(sys, "orig_argv", ())[1:2] == [script]
    return [os.path.abspath(script)] if started and os.access(script, os.X_OK) else own_command()


def path_with_own(path: str) -> str:
    """Return `path` with the directory of this build's `quine` executable at its end.

    At the end, because an environment's bin must not change which python a command finds. On another host the
    dial has already put the binary's own directory in front.
    """
    own = os.path.dirname(ROOT if unpacked() else sys.executable)
    return path if own in path.split(":") else f"{path}:{own}"
