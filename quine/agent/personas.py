"""Personas: texts of the user's that a guest may choose for the system prompt of its next lives.

Laws
1. A persona is an instruction, so a person must have written it: a regular file that was neither written, moved nor
   linked since the tree began.
2. The directories are those that the tree began with. The ledger keeps their identities, so a directory that was
   renamed, or that a symlink leads to, cannot take the place of one.
3. When the tree began is known from the ledger, never from a name or an id that somebody chose.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time

from quine.budget.ledger import Ledger

LONGEST = 1 << 16  # bytes
_IDENTITY = struct.Struct("<QQ")  # device, inode
_CLOCK = 5  # CLOCK_REALTIME_COARSE, by which the kernel marks files


def directories(start: str) -> list[str]:
    """Where the personas of a tree are that was started in `start`: there, and in the user's configuration."""
    config = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return [os.path.join(start, "personas"), os.path.join(config, "quine", "personas")]


def now() -> int:
    """Nanoseconds since the epoch, never later than the change time of a file that changes from here on."""
    return time.clock_gettime_ns(_CLOCK)


def identities(start: str, before: int = 0) -> bytes:
    """For the ledger of a new tree: what the directories are at this moment, zeros for one that does not count.

    `before`: one that changed after this moment (as `now`) does not count, for the tree began elsewhere then.
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
    """The persona `name` of the tree that was started in `start`. OSError, or ValueError with the reason."""
    places = directories(start)
    for place in places:
        path = os.path.join(place, f"{name}.md")
        try:
            folder = os.open(place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            continue
        try:
            return _read(folder, path, ledger)
        except FileNotFoundError:
            continue
        finally:
            os.close(folder)
    raise ValueError(f"there is neither {' nor '.join(f'{place}/{name}.md' for place in places)}")


def _read(folder: int, path: str, ledger: Ledger) -> str:
    name, facts = os.path.basename(path), os.fstat(folder)
    entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
    identity = _IDENTITY.pack(facts.st_dev, facts.st_ino)
    recorded = ledger.personas
    if identity not in (recorded[: _IDENTITY.size], recorded[_IDENTITY.size :]):
        raise ValueError(f"{os.path.dirname(path)} was made, moved or linked after this tree had begun")
    if stat.S_ISLNK(entry.st_mode):
        # Of what it leads through, any directory may have been renamed: no time tells of that.
        raise ValueError(f"{path} is a symlink; put the file itself there")
    # Without waiting for the writer of a named pipe.
    fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise ValueError(f"{path} is not a regular file")
        # The change time, which nobody can set: a copy, a rename or a new link shows in it.
        if facts.st_ctime_ns >= ledger.begun:
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
