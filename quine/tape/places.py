"""The places of sessions and jobs that were begun here, so that an id is found from any directory.

They are the data directories of agents, and the hosts of detached commands and batches.

Laws
1. A note is a help: it is looked at when all that a command names has nothing. A directory counts if it has the mark of
   this user; a host, if it is still one. A job with an id of the caller's that is noted starts nowhere else
   (quine/jobs/detach.py); if the note is lost, only WHERE and the id choose its host.
2. One line a place, appended. A note that has grown is replaced by its last lines. Machines that share a home share the
   notes, so a line may be torn or lost: one that cannot be read is passed over.
3. A line is written only for a place that the note does not have, so most starts write none. The last line of a job
   counts.
"""

from __future__ import annotations

import os
import stat

from quine.base import data_directory, dirs
from quine.base.errors import Misconfigured
from transport.address import state_directory
from transport.atomic import write
from transport.lean import contextlib
from transport.provenance import safe_path

FOLDERS, HOSTS = "data-directories", "started-on"  # names of the notes, in the state directory
LARGEST = 1 << 15  # bytes that are read, the last ones, and kept of a note of twice that size
LONGEST = 1 << 12  # bytes of a line


def note_folder(path: str) -> None:
    """Note the data directory of an agent."""
    _add(FOLDERS, os.fsencode(path))


def note_host(job: str, host: str) -> None:
    """Note the host of a command or batch that is detached there; "" if it was not started on the one that is noted."""
    if host != host_of(job):
        _add(HOSTS, f"{job} {host}".encode(errors="surrogateescape"), again=True)


def host_of(job: str) -> str:
    """Return the host on which the command with this id was started; "" if none is noted."""
    return next((host for each, host in hosts(job) if each == job), "")


def folders() -> list[str]:
    """Return the data directories of this user that are noted, the latest first."""
    return [path for path in map(os.fsdecode, _lines(FOLDERS)) if os.path.isabs(path) and _is_own(path)]


def having(text: str, apart: str = "") -> list[str]:
    """Return the noted directories with a session or a job whose id begins so, other than the directory `apart`."""
    from quine.tape.index import Index  # here: an agent that only notes its directory does without

    known = os.path.realpath(apart)
    others = [path for path in folders() if os.path.realpath(path) != known]
    return [path for path in others if text and Index(path).has(text)]


def holding(text: str, apart: str) -> str:
    """Return the noted directory with a tape that begins so, as for `having`; "" without one. Raises Misconfigured."""
    from quine.tape.index import Index

    tapes = {
        path: {name for name in Index(path).tapes if name.startswith(text)} for path in having(text, apart)
    }
    found = [path for path, names in tapes.items() if names]
    if len(found) > 1 and len(set[str]().union(*tapes.values())) > 1:
        what = f"{len(found)} data directories have sessions that begin with {text}"
        raise Misconfigured(what, f"{', '.join(found[:3])}: give more of the id, or --data-dir")
    return found[0] if found else ""


def hosts(text: str) -> list[tuple[str, str]]:
    """Return the commands whose id begins so, each with its host, the latest first."""
    found, none = [], set()
    for line in _lines(HOSTS):
        job, _, host = line.decode(errors="surrogateescape").partition(" ")
        if not host:
            none.add(job)
        elif job.startswith(text) and job not in none:
            found.append((job, host))
    return found


def _is_own(path: str) -> bool:
    """Return whether a directory has the mark of this user, and nobody else can write to it. No mark is made."""
    try:
        safe_path.judge(os.stat(path), path)
        return data_directory.marked_at(path) is not None
    except (OSError, safe_path.Unsafe, Misconfigured):
        return False


def _path(name: str) -> str:
    return os.path.join(state_directory(), name)


def _lines(name: str) -> list[bytes]:
    """Return the lines of a note, the last one first."""
    data = b""
    with contextlib.suppress(OSError):
        fd = os.open(_path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = _end(fd)
        finally:
            os.close(fd)
    return list(dict.fromkeys(reversed(data.splitlines())))


def _end(fd: int) -> bytes:
    """Return the last lines of a note, less than LARGEST bytes; nothing of what is no file."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode):
        return b""
    past = max(0, facts.st_size - LARGEST)
    data = os.pread(fd, LARGEST, past)
    return data.partition(b"\n")[2] if past else data


def _add(name: str, line: bytes, again: bool = False) -> None:
    """Append a line; without `again` only if the note does not have it."""
    if len(line) > LONGEST or b"\n" in line or (not again and line in _lines(name)):
        return
    with contextlib.suppress(OSError):  # law 1
        dirs.make(state_directory())
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(_path(name), flags, 0o600)
        try:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.write(fd, line + b"\n")
            if os.fstat(fd).st_size > 2 * LARGEST:
                write(_path(name), _end(fd), 0o600, own=True)
        finally:
            os.close(fd)
