"""Whole-file locks (flock) between all processes of one mount, by path, because each writer has its own draft.

Laws
1. A lock belongs to an open file, as with flock: it ends with the last descriptor of that file, however that ends.
2. No thread waits for a lock: a waiting request is answered when its turn comes, or by a signal.
3. Every method is called with `State.lock` held.
"""

from __future__ import annotations

import fcntl
from typing import NamedTuple

from quine.files import paths


class Waiting(NamedTuple):
    unique: int  # the request to answer
    path: str
    handle: int
    exclusive: bool


class Locks:
    def __init__(self) -> None:
        self._held: dict[str, dict[int, bool]] = {}  # path -> handle -> exclusive
        self._waiting: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._held) + len(self._waiting)

    def ask(self, path: str, handle: int, kind: int) -> bool:
        """Take, change or release (F_UNLCK) a lock. On a conflict return False; the old lock is gone even then."""
        self._drop(path, handle)
        if kind == fcntl.F_UNLCK:
            return True
        exclusive, held = kind == fcntl.F_WRLCK, self._held.get(path, {})
        if held and (exclusive or any(held.values())):
            return False
        self._held.setdefault(path, {})[handle] = exclusive
        return True

    def wait(self, waiting: Waiting) -> None:
        self._waiting.append(waiting)

    def give_up(self, unique: int) -> bool:
        """Cancel a waiting request; return whether it was waiting."""
        before = len(self._waiting)
        self._waiting = [each for each in self._waiting if each.unique != unique]
        return len(self._waiting) < before

    def release(self, handle: int) -> None:
        for path in [path for path, held in self._held.items() if handle in held]:
            self._drop(path, handle)

    def moved(self, source: str, target: str) -> None:
        """Move held and awaited locks to the new names after a rename."""
        for path in [path for path in self._held if paths.within(path, source)]:
            held = self._held.pop(path)
            self._held.setdefault(paths.moved(path, source, target), {}).update(held)
        self._waiting = [each._replace(path=paths.moved(each.path, source, target)) for each in self._waiting]

    def turns(self) -> list[int]:
        """Give locks to the waiting requests whose turn has come, and return their numbers."""
        given = []
        for each in list(self._waiting):
            kind = fcntl.F_WRLCK if each.exclusive else fcntl.F_RDLCK
            if self.ask(each.path, each.handle, kind):
                self._waiting.remove(each)
                given.append(each.unique)
        return given

    def _drop(self, path: str, handle: int) -> None:
        held = self._held.get(path)
        if held is not None:
            held.pop(handle, None)
            if not held:
                del self._held[path]
