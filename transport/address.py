"""Addresses and identities: directories of the user, a node's socket, build hash, boot id, start time of a process.

Laws
1. A private directory, such as the runtime directory, is ours alone: 0700, our uid, not a link; anything else is
   refused, never repaired.
2. The socket's name holds the build hash, so a client never talks to a daemon of another build: after an
   upgrade the old daemon serves its jobs to their end and goes when idle.
3. A home shared by several machines is not a shared runtime: the directory is local, or names the machine.
"""

from __future__ import annotations

import os
import stat
import sys
import time

from transport.errors import Refused
from transport.lean import Mapping, blake2b

PACKAGES = ("quine", "transport", "deploy")
SUFFIXES = (".py", ".md", ".toml")  # of sources
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # has the packages
NEW = 2_000_000_000  # ns; a file modified more recently may change again within one clock tick and look the same
_DEFAULTS = {"config": ".config", "state": ".local/state", "cache": ".cache"}
STAMP = "build_stamp"  # a file in this package, in a wheel
SUN_PATH = 100  # bytes of a Unix socket's path; 108 on Linux, 104 on BSD

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_build = ""
_boot = ""


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


def own_command() -> list[str]:
    """The argv that starts this same program again; arguments follow.

    A file named like one of our modules in the current directory must not be imported in its place: hence -P, and where
    there is none (before Python 3.11) our own place as the first one of the path.
    """
    if unpacked():
        flags = (
            ["-I"] * sys.flags.isolated + ["-S"] * sys.flags.no_site + ["-X", "utf8"] * sys.flags.utf8_mode
        )
        return [sys.executable, *flags, ROOT]
    if sys.version_info < (3, 11):
        places = f"sys.path[:1] = []; sys.path.append({ROOT!r})"
        return [sys.executable, "-c", f"import sys; {places}; from quine.__main__ import main; main()"]
    return [sys.executable, "-P", "-m", "quine"]


def path_with_own(path: str) -> str:
    """Return `path` with the directory of this build's `quine` executable at its end.

    At the end, because an environment's bin must not change which python a command finds. On another host the
    dial has already put the binary's own directory in front.
    """
    own = os.path.dirname(ROOT if unpacked() else sys.executable)
    return path if own in path.split(":") else f"{path}:{own}"


def user_directory(kind: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the user's directory of a kind, one of `_DEFAULTS`: $XDG_KIND_HOME, or else the default below the home.

    The variable is ignored if its path is relative, as the XDG specification asks.
    """
    base = environ.get(f"XDG_{kind.upper()}_HOME", "")
    home = environ.get("HOME") or os.path.expanduser("~")
    return base if os.path.isabs(base) else os.path.join(home, _DEFAULTS[kind])


def runtime_directory() -> str:
    """Return the directory of this user's node sockets; make it if missing. Raises Refused if it cannot be trusted."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if not (base and os.path.isdir(base)):
        base = "/tmp"
    return private_directory(f"{base}/quine-{os.getuid()}", "set XDG_RUNTIME_DIR to a directory of yours")


def private_directory(path: str, cure: str) -> str:
    """Return `path`, a directory of this user alone; make it if missing. Raises Refused if it cannot be trusted.

    `cure` is a way to do without this directory.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise Refused(f"cannot make {path}: {error.strerror}", cure) from None
    facts = os.lstat(path)
    if facts.st_uid != os.getuid():  # the sticky bit of /tmp keeps others from replacing it after this
        raise Refused(f"{path} belongs to another user", f"have it removed, or {cure}")
    if not stat.S_ISDIR(facts.st_mode) or facts.st_mode & 0o077:
        raise Refused(
            f"{path} is not a directory of yours alone", f"look at it, then rm -r {path} or chmod 700 it"
        )
    return path


def node_name() -> str:
    """Return a short name of this user's node of this build; its files in the runtime directory begin with it."""
    home = os.environ.get("HOME", "")
    return blake2b(f"{home}\0{boot_id()}\0{build_hash()}".encode(), digest_size=8).hexdigest()


def socket_path() -> str:
    path = f"{runtime_directory()}/{node_name()}.sock"
    if len(os.fsencode(path)) > SUN_PATH:
        raise Refused(
            f"the path of the node's socket is too long: {path}", "set XDG_RUNTIME_DIR to a shorter one"
        )
    return path


def boot_id() -> str:
    """Names this boot of this machine, so that a pid is never confused with one of another boot. Read once."""
    global _boot
    if not _boot:
        try:
            with open("/proc/sys/kernel/random/boot_id", "rb", buffering=0) as file:
                _boot = file.read(64).decode().strip()
        except OSError:
            _boot = os.uname().nodename
    return _boot


def start_time(pid: int) -> int:
    """Return the time at which a process started, in clock ticks since boot; 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b") ")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
