"""Directories of the user; identities of this boot and of a process.

Laws
1. A private directory, such as the runtime directory, is ours alone: 0700, our uid, not a link; anything else is
   refused, never repaired. One that another user has made in /tmp locks nobody out: there is one more, below the home.
2. A home shared by several machines is not a shared runtime: the directory is local, or names the machine.
"""

from __future__ import annotations

import os
import stat
import time

from transport.errors import Refused
from transport.lean import Mapping
from transport.provenance import safe_path

TMP = "/tmp"
_ELSEWHERE = "set XDG_RUNTIME_DIR to a directory of yours"
_DEFAULTS = {"config": ".config", "state": ".local/state", "cache": ".cache"}

_boot = ""


def user_directory(kind: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the user's directory of a kind, one of `_DEFAULTS`: $XDG_KIND_HOME, or else the default below the home.

    The variable is ignored if its path is relative, as the XDG specification asks.
    """
    base = environ.get(f"XDG_{kind.upper()}_HOME", "")
    home = environ.get("HOME") or os.path.expanduser("~")
    return base if os.path.isabs(base) else os.path.join(home, _DEFAULTS[kind])


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
