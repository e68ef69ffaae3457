"""Account of a tree's files: the bytes counted, the bytes reserved by writers, and the locks on paths under change.

The count, the reservations and the locks are in the shared counters of the tree (quine.budget.shared_counters). The
laws are in quota.py.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import time
import zlib
from collections.abc import Callable, Iterator

from quine.budget.shared_counters import GATE, PATH, PUT, TURN, Numbers, SharedCounters, lock

PATIENCE = 600.0  # seconds for another change of the same path, which may be an upload
SHORTEST, LONGEST = 0.001, 0.05  # seconds between two attempts to take a lock


class Account:
    """The counters of one tree, and the locks on the paths that it changes."""

    def __init__(self, book: SharedCounters) -> None:
        self._book = book

    def reserve(
        self, slot: tuple[int, int], amount: int, ahead: int, path: str
    ) -> tuple[int, tuple[int, int]]:
        """Return (reserved, slot): at least `amount` bytes in all, `ahead` more if there is plenty.

        Raises EDQUOT at once; EBUSY after PATIENCE if as many files are written as there are slots.
        """
        if amount <= 0:
            return 0, slot
        found: list[tuple[int, tuple[int, int]]] = []

        def reserved() -> bool:
            found.extend(self._reserved(slot, amount, ahead, path))
            return bool(found)

        _wait(reserved, path)
        return found[0]

    def _reserved(
        self, slot: tuple[int, int], amount: int, ahead: int, path: str
    ) -> list[tuple[int, tuple[int, int]]]:
        """As `reserve`; [] if there is no slot now."""
        with self._book.changing() as facts:
            # Take the slot and write its record in one change: the record of a dead holder must count for nobody.
            fd, index = slot if slot[0] >= 0 else self._book.slot(PUT, PUT.most)
            others = sum(int(reserved) for (reserved,) in self._book.records(PUT, index))
            free = facts.limit_stored - facts.stored - others
            if fd < 0:
                return []
            if amount > free:
                if slot[0] < 0:
                    os.close(fd)
                raise OSError(errno.EDQUOT, _full(facts, others, amount), path)
            amount = min(amount + ahead, max(amount, free // 8))
            self._book.note(PUT, fd, index, amount)
        return [(amount, (fd, index))]

    def add(self, amount: int, slot: tuple[int, int] = (-1, -1)) -> int:
        """Add `amount` to the count, which stays >= 0, and release the slot's reservation; return the real change."""
        if not amount and slot[0] < 0:
            return 0
        with self._book.changing() as facts:
            stored = max(0, facts.stored + amount)
            self._book.put(facts._replace(stored=stored))
            if slot[0] >= 0:
                self._book.note(PUT, *slot, 0)
        return stored - facts.stored

    @contextlib.contextmanager
    def changing(self, *paths: str, alone: bool = False) -> Iterator[None]:
        """Lock these paths, or with `alone` all paths, against changes by the tree. Raises EBUSY after PATIENCE."""
        path = paths[-1]
        places = {zlib.crc32(os.fsencode(each)) % PATH.most for each in paths}
        fd = self._book.again()
        try:
            # The waiter for the exclusive lock holds TURN, so that later shared locks cannot starve it.
            _wait(lambda: lock(fd, TURN.first), path)
            _wait(lambda: lock(fd, GATE.first, fcntl.F_WRLCK if alone else fcntl.F_RDLCK), path)
            lock(fd, TURN.first, fcntl.F_UNLCK)
            for place in () if alone else sorted(places):  # in sorted order, which prevents a deadlock
                _wait(functools.partial(lock, fd, PATH.first + place), path)
            yield
        finally:
            os.close(fd)


def _wait(done: Callable[[], bool], path: str) -> None:
    pause, deadline = SHORTEST, time.monotonic() + PATIENCE
    while not done():
        if time.monotonic() > deadline:
            raise OSError(errno.EBUSY, "another process of the tree is changing it", path)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST)


def _full(facts: Numbers, others: int, amount: int) -> str:
    under_way = f" and {others} under way" if others else ""
    has = f"the tree has {facts.stored} of {facts.limit_stored} bytes in the files tier{under_way}"
    return f"{has}, and no room for {amount} more"


class Slot:
    """The reservation for one path."""

    def __init__(self, account: Account, path: str) -> None:
        self.account, self.path = account, path
        self._held = (-1, -1)

    def reserve(self, amount: int, ahead: int = 0) -> int:
        """As `Account.reserve`."""
        reserved, self._held = self.account.reserve(self._held, amount, ahead, self.path)
        return reserved

    def count(self, amount: int) -> int:
        """As `Account.add`, in place of the reservation."""
        return self.account.add(amount, self._held)

    def close(self) -> None:
        if self._held[0] >= 0:
            os.close(self._held[0])
            self._held = (-1, -1)
