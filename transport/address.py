"""Directories of the user; identities of this boot, of a process and of those above it.

Laws
1. A private directory, such as the runtime directory, is ours alone: 0700, our uid, not a link; anything else is
   refused, never repaired. One that another user has made in /tmp locks nobody out: there is one more, below the home.
2. A home shared by several machines is not a shared runtime: the directory is local, or names the machine.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from transport.errors import Refused, Unseen
from transport.lean import Mapping
from transport.provenance import safe_path

TMP = "/tmp"
_ELSEWHERE = "set XDG_RUNTIME_DIR to a directory of yours"
_DEFAULTS = {"config": ".config", "state": ".local/state", "cache": ".cache"}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_boot = ""


def user_directory(kind: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the user's directory of a kind, one of `_DEFAULTS`: $XDG_KIND_HOME, or else the default below the home.

    The variable is ignored if its path is relative, as the XDG specification asks.
    """
    base = environ.get(f"XDG_{kind.upper()}_HOME", "")
    return base if os.path.isabs(base) else os.path.join(home(environ), _DEFAULTS[kind])


def home(environ: Mapping[str, str] = os.environ) -> str:
    """Return the user's home: that of the account where the variable is missing or empty, as in a container."""
    if named := environ.get("HOME"):
        return named
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:  # the number of a container's user, who has no name
        return "/"


def state_directory(environ: Mapping[str, str] = os.environ) -> str:
    """Return the directory of quine's state of this user."""
    return os.path.join(user_directory("state", environ), "quine")


def runtime_places(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the paths at which the runtime directory may be, the first one that no other user has made."""
    named = environ.get("XDG_RUNTIME_DIR", "")
    bases = [named] if _is_safe(named) else []
    places = [f"{base}/quine-{os.getuid()}" for base in [*bases, TMP]]
    return [*places, os.path.join(user_directory("cache", environ), "quine", "run")]


def _is_safe(base: str) -> bool:
    """Return whether a directory is the user's, or root's, and one in which nobody replaces a name of another user."""
    try:
        facts = os.stat(base)
    except OSError:
        return False
    sticky = bool(facts.st_mode & stat.S_ISVTX)
    own = facts.st_uid == os.getuid() and (sticky or not safe_path.others_write(facts))
    return stat.S_ISDIR(facts.st_mode) and (own or (facts.st_uid == 0 and sticky))


def runtime_directory() -> str:
    """Return the directory of this user's node sockets; make it if missing. Raises Refused if it cannot be trusted.

    /tmp/quine-UID may be another user's, who was first; then it is below the user's cache.
    """
    *places, last = runtime_places()
    for place in places:
        if not _is_of_another(place):
            return private_directory(place, _ELSEWHERE)
    try:
        safe_path.made(os.path.dirname(last))
    except safe_path.Unsafe as unsafe:
        raise Refused(str(unsafe), f"{unsafe.hint}; or {_ELSEWHERE}") from None
    except OSError as error:
        raise Refused(f"cannot make {last}: {error.strerror}", _ELSEWHERE) from None
    return private_directory(last, _ELSEWHERE)


def _is_of_another(place: str) -> bool:
    try:
        return os.lstat(place).st_uid != os.getuid()
    except OSError:
        return False


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


def pid_space() -> str:
    """Names the namespace in which pids of this process mean something: a container has its own, in the same boot."""
    try:
        return os.readlink("/proc/self/ns/pid").replace(",", "")
    except OSError:
        return "-"


def boot_clock() -> float:
    """Seconds since this machine was booted: nobody sets it, and it goes on while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def start_time(pid: int) -> int:
    """Return the time at which a process started, in clock ticks since boot; 0 if there is no such process."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # each start of a job reads it
        try:
            return int(os.read(fd, 4096).rpartition(b") ")[2].split()[19])
        finally:
            os.close(fd)
    except (OSError, IndexError, ValueError):
        return 0


def ancestors(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (pid, start) of a process and of all above it, as far as the kernel shows them. Raises Unseen.

    The caller may take its time for each. A process that ends meanwhile leaves its children to another one above it,
    so the way goes on from the highest one that still lives.
    """
    living: list[tuple[int, int]] = []
    above = pid
    while above > 0:
        found = _parent_and_start(above)
        now = _parent_of_last(living) if living else pid
        if now != above:
            above = now
        elif found is not None:
            living.append((above, found[1]))
            yield living[-1]
            above = found[0]
        elif living:
            return  # another user's process, which the kernel hides
        else:
            raise Unseen(f"process {pid} has ended")


def _parent_of_last(living: list[tuple[int, int]]) -> int:
    """Return the parent that the last of these processes has now, without those that have ended. Raises Unseen."""
    while living:
        pid, start = living[-1]
        found = _parent_and_start(pid)
        if found is not None and found[1] == start:
            return found[0]
        living.pop()
    raise Unseen("a process has ended while those above it were looked at")


def _parent_and_start(pid: int) -> tuple[int, int] | None:
    """Return (pid of the parent, start) of a process; None if it has ended, or is hidden. Raises Unseen."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fields = os.read(fd, 4096).rpartition(b") ")[2].split()
        finally:
            os.close(fd)
    except OSError as error:
        pass_over(error, hidden=True)
        return None
    return int(fields[1]), int(fields[19])


def closed_since(error: OSError) -> bool:
    """Return whether it says that a process, or its descriptor, is there no more."""
    return error.errno in (errno.ENOENT, errno.ESRCH)


def pass_over(error: OSError, hidden: bool) -> None:
    """Raise Unseen unless what was looked at is there no more, or, with `hidden`, not for our eyes."""
    if not closed_since(error) and not (hidden and error.errno in (errno.EACCES, errno.EPERM)):
        why = (error.strerror or str(error)).lower()
        scarce = error.errno in (errno.EMFILE, errno.ENFILE)
        hint = "raise the limit, as with: ulimit -n 1024" if scarce else ""
        raise Unseen(f"the processes above this one cannot be looked at: {why}", hint) from None
