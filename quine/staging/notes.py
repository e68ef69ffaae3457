"""Notes of one process for others: on a disk the claim of a race, and that a command has not begun; in words the
private directories (`renames.py`) and the files that it has left alone.

Laws
1. A claim is a symlink that names its owner: made by one system call, with its content, by the first alone. So of
   several processes, each with its result, one may put it in place.
2. The winner takes it right before its result is put in place, and gives it back if that fails.
3. The staging on a host notes a job that has ended before its command began. An exit status cannot say it: 69 may be
   the command's own, and the caller that would hear the reason may have died.
4. That note is known by the secret of its job. A command that makes one has itself run again.
"""

from __future__ import annotations

import os
import time

from transport.lean import contextlib
from transport.text import harmless

MOST = 10_000  # notes of a user on a machine: a batch that is killed may leave as many as it has jobs at one time
LONGEST = 30 * 86400.0  # seconds for which a note stays where there are so many


class Claim:
    """One entrant of a race, called `owner`, which has no `/` in it. The race is known by `path`."""

    def __init__(self, path: str, owner: str) -> None:
        self._path, self._owner = path, owner

    def take(self) -> bool:
        """Take the claim; return whether the owner has it now. If it cannot be made, the owner does not have it."""
        with contextlib.suppress(OSError):
            os.symlink(self._owner, self._path)
            return True
        with contextlib.suppress(OSError):
            return os.readlink(self._path) == self._owner
        return False

    def give_back(self) -> None:
        """The owner has failed: another may win."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)


def name_of(capability: str) -> str:
    """Return the name of the note that the command of a job has not begun."""
    from quine.staging.scan import key_of  # here: every agent loads this module

    return key_of("unbegun", capability)


def note_unbegun(capability: str) -> None:
    """This process is a job, and ends without its command. Without room for a note the job counts as lost."""
    from quine.base import dirs

    with contextlib.suppress(OSError):
        folder = _folder()
        dirs.make(folder)
        if len(names := os.listdir(folder)) >= MOST:
            oldest = time.time() - LONGEST
            for name in names:
                if os.stat(os.path.join(folder, name)).st_mtime < oldest:
                    os.unlink(os.path.join(folder, name))
        path = os.path.join(folder, name_of(capability))
        os.close(os.open(path, os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def is_unbegun(name: str) -> bool:
    """Return whether there is a note of this name."""
    return os.path.lexists(os.path.join(_folder(), os.path.basename(name)))


def _folder() -> str:
    from quine.staging.scan import cache

    return cache("unbegun")


class Left(str):
    """The name of a private directory that `recover` has left alone, and why."""

    why = "not sealed by quine of this user here, and may have come with a repository"


class OfAnotherVersion(Left):
    why = (
        "begun by another version of quine: its `new` has the files to come, its `old` those before; "
        "--returns of that version finishes it, or move what is missing and remove it"
    )


class OfAnotherMachine(Left):
    why = "of another machine that has this directory, too, and a day old; remove it if no quine runs there"


def left_alone(foreign: list[str]) -> str:
    """Return the message about the directories that `recover` left alone; "" for an empty list."""
    names: dict[str, list[str]] = {}
    for name in sorted(foreign):
        names.setdefault(name.why if isinstance(name, Left) else Left.why, []).append(harmless(name))
    return "; ".join(f"{', '.join(found)} left alone, {why}" for why, found in names.items())


def newer(names: list[bytes]) -> str:
    """Return the message about files that stay, as they are newer than what was to replace them."""
    named = ", ".join(harmless(os.fsdecode(name)) for name in sorted(names))
    return f"{named} left as it is, since it was written while a result for it came"
