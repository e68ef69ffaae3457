"""Shared counters as a process that pays for others keeps them: a command that rewrites the file gets nothing for it.

Any process of the user can open the memory file of its ledger and write to it. So the broker takes from the file what
other processes have to say, and believes no more of it than what makes its own numbers stricter.

Laws
1. A limit is the one that was first seen when something was to be paid, or a narrower one that the file has had since.
   A total is never less than it was. The limits of a share are those of the file, where its origin lends to it.
2. A reservation that was made here counts until it is paid here, whatever has become of its record.
3. The numbers outlive this process: `save` gets it with each change, and the next process is given it as `former`.
   It charges each reservation, whatever the file says of it, and whoever has locked its slot since: a kill gains
   nothing. A write that fails gains nothing either, and costs nothing: numbers that were not saved are saved later, a
   reservation counts until the totals have it, and a reservation that could not be saved is taken back.
"""

from __future__ import annotations

import _thread
import fcntl
import os

from quine.budget.ledger import Ledger
from quine.budget.shared_counters import INFER, LINK, PUT, Kind, Numbers, SharedCounters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from quine.budget.purse import Cap, Purse

LIMITS = ("agents", "concurrent", "limit_tokens", "limit_cost", "deadline", "limit_stored")  # 0 = no limit
TOTALS = ("tokens", "cost")


class KeptCounters(SharedCounters):
    def __init__(
        self,
        fd: int,
        save: Callable[[dict[str, Any]], None] = lambda state: None,
        former: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(fd)
        self._save = save
        self._former = former
        self._kept: Numbers | None = None
        self._own: dict[int, tuple[float, ...]] = {}  # records of the reservations made here, by their slots
        self._told: dict[str, Any] = {}
        self._lock = _thread.allocate_lock()  # numbers are read by other threads than those that pay

    def numbers(self) -> Numbers:
        facts = super().numbers()
        with self._lock:
            if self._kept is not None:
                facts = self._kept = stricter(self._kept, facts)
        return facts

    def _finished(self, facts: Numbers) -> Numbers:
        if self._kept is None:
            with self._lock:
                self._kept = self._first(facts)
        facts = super()._finished(stricter(self._kept, facts))
        with self._lock:
            self._kept = stricter(self._kept, facts)
        self._tell()
        return facts

    def _add(self, facts: Numbers, index: int) -> None:
        super()._add(facts, index)  # if it fails the reservation counts on, else the inference would be free
        self._own.pop(index, None)  # whatever fails from here on: it would be charged twice
        with self._lock:
            self._kept = stricter(self._kept, facts) if self._kept is not None else facts

    def note(self, kind: Kind, fd: int, index: int, *values: float) -> None:
        super().note(kind, fd, index, *values)
        if kind is INFER and any(values):
            self._own[index] = values
            try:
                self._tell()
            except BaseException:  # its inference is not begun, and its slot is free
                del self._own[index]
                super().note(kind, fd, index, *(0,) * len(values))
                raise

    def _written(self, kind: Kind) -> Iterator[tuple[int, tuple[float, ...]]]:
        rows = dict(super()._written(kind))
        return iter((rows | self._own if kind is INFER else rows).items())

    def _first(self, facts: Numbers) -> Numbers:
        """Return the numbers to begin with: those of the file, or those that a former process has kept."""
        if self._former is None:
            return facts
        former = facts._replace(**self._former["numbers"])
        found = dict(super()._written(INFER))
        left = []  # not in the totals of the file: on top of these, and not a second time by their records
        for index, values in self._former["own"]:
            if _packed(found.get(index)) == _packed(values) and facts.paid != index + 1:
                left.append(values)
                super().note(INFER, self._writer, index, 0, 0.0, 0, 0.0)
            else:
                former = _charged(former, values)
        first = stricter(former, facts)
        for values in left:
            first = _charged(first, values)
        return first

    def _tell(self) -> None:
        if self._kept is not None:
            numbers = {name: getattr(self._kept, name) for name in ("depth", "ident", *LIMITS, *TOTALS)}
            state = {"numbers": {**numbers, "ident": self._kept.ident.hex()}, "own": list(self._own.items())}
            if state != self._told:
                self._save(state)
                self._told = state


class KeptLedger(Ledger):
    """A ledger whose purses are those that the broker keeps; `purses` are their inodes."""

    def __init__(
        self,
        book: KeptCounters,
        cap: Cap,
        purses: tuple[int, ...],
        around: Callable[[tuple[int, ...]], list[Purse]],
    ) -> None:
        super().__init__(book, cap, purses)
        self._around = around

    def around(self) -> list[Purse]:
        return self._around(self.purses)


def inode_of(fd: int) -> int:
    """Return the inode of a ledger that another process has given; 0 if the file is no ledger."""
    try:
        facts = os.fstat(fd)
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        name = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return 0
    needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    whole = name == LINK and seals & needed == needed and facts.st_size >= PUT.end
    return facts.st_ino if whole else 0


def stricter(kept: Numbers, facts: Numbers) -> Numbers:
    """Return the numbers of the file with the narrower limits, and with totals that are not less than those kept."""
    totals = {name: max(getattr(kept, name), getattr(facts, name)) for name in TOTALS}
    if any(kept.ident):  # of a share
        return facts._replace(**totals, ident=kept.ident)
    limits = {name: narrower(getattr(kept, name), getattr(facts, name)) for name in LIMITS}
    return facts._replace(**totals, **limits, depth=min(kept.depth, facts.depth), ident=kept.ident)


def _charged(facts: Numbers, values: tuple[float, ...]) -> Numbers:
    return facts._replace(tokens=facts.tokens + int(values[0]), cost=facts.cost + values[1])


def narrower(one: Any, other: Any) -> Any:
    """Return the narrower of two limits, where 0 is none."""
    return min(filter(None, (one, other)), default=0)


def _packed(values: Any) -> bytes:
    return INFER.record.pack(*values) if values else b""
