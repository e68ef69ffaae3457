"""The claim of a race: of several processes, each with its result, one may put it in place.

Laws
1. A claim is a symlink that names its owner: made by one system call, with its content, by the first alone.
2. The winner takes it right before its result is put in place, and gives it back if that fails.
"""

from __future__ import annotations

import os

from transport.lean import contextlib


class Claim:
    """One entrant of a race, called `owner`, which has no `/` in it. The race is known by `path`."""

    def __init__(self, path: str, owner: str) -> None:
        self._path, self._owner = path, owner

    def take(self) -> bool:
        """Take the claim; return whether it is the owner's now. A claim that cannot be made is nobody's."""
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
