"""Personas: texts written by the user, from which a guest may choose one for the system prompt of its next sessions.

Laws
1. A persona is an instruction, so a person must have written it: a regular file that was neither written, moved nor
   linked since the tree began.
2. Only directories that existed when the tree began count. Their identities are kept, so no other directory can take
   their place by a rename or a symlink.
3. The directory and the file are the user's or root's, and nobody else can write to them; for the user's own directory
   this holds of the whole way to it.
4. The start time of the tree and these identities come from a sealed file (quine/budget/beginning.py), never from the
   ledger, which a command can write, nor from a name or an id that a process chose.
5. A repository does not replace a persona of the user: of two with one name, the own one counts, even if it is refused.
"""

from __future__ import annotations

import os
import stat
import struct
import time

from quine.budget.ledger import Ledger
from transport.address import user_directory
from transport.lean import contextlib
from transport.provenance import safe_path

LONGEST = 1 << 16  # bytes
_IDENTITY = struct.Struct("<QQ")  # device, inode
_CLOCK = 5  # CLOCK_REALTIME_COARSE, the clock of file timestamps in the kernel


def directories(start: str) -> list[str]:
    """Return the persona directories of a tree started in `start`: one in it, one in the user's configuration."""
    return [os.path.join(start, "personas"), os.path.join(user_directory("config"), "quine", "personas")]


def named(name: str, start: str) -> list[str]:
    """Return the files of the name `name`: first the user's own, which is the one that counts (law 5)."""
    places = reversed(directories(start))
    return [path for place in places if os.path.lexists(path := os.path.join(place, f"{name}.md"))]


def now() -> int:
    """Return nanoseconds since the epoch, at most the change time of any file that changes after this call."""
    return time.clock_gettime_ns(_CLOCK)


def identities(start: str, before: int = 0) -> bytes:
    """Return the identities of the persona directories now, for a new tree; zeros for one excluded.

    `before`: in units of `now`; a directory changed since then is excluded. It is the time when a tree began elsewhere.
    """
    found = []
    for path in directories(start):
        identity = bytes(_IDENTITY.size)
        with contextlib.suppress(OSError):
            facts = os.stat(path)
            if not before or facts.st_ctime_ns < before:
                identity = _IDENTITY.pack(facts.st_dev, facts.st_ino)
        found.append(identity)
    return b"".join(found)


def text(name: str, start: str, ledger: Ledger) -> str:
    """Return the text of persona `name` of a tree started in `start`. Raises OSError, or ValueError with the reason."""
    places = directories(start)
    for path in named(name, start)[:1]:
        place = os.path.dirname(path)
        opened = safe_path.found if place == places[0] else safe_path.named
        folder = opened(place, safe_path.FOLDER)  # Unsafe is a ValueError
        try:
            return _read(folder, path, ledger)
        finally:
            os.close(folder)
    raise ValueError(f"there is neither {' nor '.join(f'{place}/{name}.md' for place in places)}")


def _read(folder: int, path: str, ledger: Ledger) -> str:
    name, facts = os.path.basename(path), os.fstat(folder)
    entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
    identity = _IDENTITY.pack(facts.st_dev, facts.st_ino)
    recorded = ledger.beginning.personas
    if identity not in (recorded[: _IDENTITY.size], recorded[_IDENTITY.size :]):
        raise ValueError(f"{os.path.dirname(path)} was made, moved or linked after this tree had begun")
    if stat.S_ISLNK(entry.st_mode):
        # Any directory on its path may have been renamed since, which no timestamp shows.
        raise ValueError(f"{path} is a symlink; put the file itself there")
    # O_NONBLOCK: the open must not wait for the writer of a named pipe.
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{path} is not a regular file")
        safe_path.judge(facts, path)
        # No program can set the change time: a copy, a rename or a new link updates it.
        if facts.st_ctime_ns >= ledger.beginning.begun:
            raise ValueError(f"{path} was written, moved or linked after this tree had begun")
        data = os.read(fd, LONGEST + 1)
    finally:
        os.close(fd)
    if len(data) > LONGEST:
        raise ValueError(f"{path} is longer than {LONGEST} bytes")
    decoded = data.decode()  # UnicodeDecodeError is a ValueError
    if not decoded.strip():
        raise ValueError(f"{path} is empty")
    return decoded
