"""Tokens and money for a machine that pays its inferences itself: lent by the origin, and given back at the end.

    remote machine, Borrower            origin, Loan (in the `Lender` of the job's proxy)
    used, need, over  ───────────────▶  counts what was used, then lends, or takes the rest back

The limits in the counters of that machine are what it was lent so far. At the origin the rest of a loan, lent less
used, is the record of an inference's slot, so all that others may spend is less by it.

Laws
1. A loan is reserved at the origin before it can be spent. The records of killed holders are charged first, since
   nobody else may have looked at them yet. The used part moves from the record to the totals, which are written
   first: a process that is killed in between leaves too much charged, never too little.
2. A loan that does not come back is charged whole: that of a proxy that was killed as any reservation whose holder is
   gone, and that of a job which ended without its last report.
3. A loan whose answer was not read comes back with the next request. A report tells totals, so it may come twice.
4. A request for more than is free is refused at once, as one for places.
5. No more is counted than was lent. It is noted when a host tells of more: a command there may have raised its limit.
"""

from __future__ import annotations

import os

from quine.budget.ledger import Ledger
from quine.budget.shared_counters import INFER
from transport.lean import NamedTuple, contextlib

LEAST = 1e-6  # dollars: a difference below is one of rounding
PARTS = 10  # of what is free, or one for each agent that the tree may have if those are fewer: a loan is one of them


class Wanted(NamedTuple):
    """The part of a request that is about tokens and money. `over`: it is the last one, and the rest comes back."""

    tokens: int = 0  # used so far
    cost: float = 0.0
    lend: int = 0  # to be lent at least
    money: float = 0.0
    begin: bool = False  # lend for the first time, however little
    over: bool = False


class Loan:
    """Tokens and money lent to one share. `parts`: how many such loans what is free should do for; 1: it gets all."""

    def __init__(self, ledger: Ledger, parts: int) -> None:
        """Raises OSError if there is no slot for it."""
        self._ledger = ledger
        self._book = ledger.book
        self._parts = parts
        self._fd, self._index = self._book.slot(INFER, INFER.most, last=True)
        if self._fd < 0:
            raise OSError("too many loans at one time")
        with self._book.changing() as facts:
            ledger.charge_abandoned(facts, self._index)
        self._rest, self._rest_cost = 0, 0.0  # lent less used, as in the record
        self._used, self._used_cost = 0, 0.0
        self._last: tuple[int, float] = (0, 0.0)  # lent by the last answer, which may not have been read
        self.returned = False

    def lend(self, wanted: Wanted) -> tuple[int | None, float | None]:
        """Count what was used, and lend. Return (tokens, dollars): None for what the tree has without limit."""
        self.count(wanted)
        self._last = (0, 0.0)
        if wanted.over:
            self.returned = True
            self.close()
            return 0, 0.0
        with self._book.changing() as facts:
            mark, facts = self._ledger.mark, self._ledger.charge_abandoned(facts)
            others, others_cost = 0, 0.0
            for tokens, cost, _, _ in self._book.records(INFER):  # this one included
                others, others_cost = others + int(tokens), others_cost + cost
            tokens_free = mark.tokens - facts.tokens - others if mark.tokens else None
            money_free = mark.cost - facts.cost - others_cost if mark.cost else None
            asks = wanted.begin or wanted.lend or wanted.money
            lacks = (tokens_free is not None and tokens_free < wanted.lend) or (
                money_free is not None and money_free < wanted.money
            )
            if not asks or lacks:
                return (None if tokens_free is None else 0), (None if money_free is None else 0.0)
            lent = None if tokens_free is None else int(self._part(tokens_free, wanted.lend))
            money = None if money_free is None else self._part(money_free, wanted.money)
            self._last = (lent or 0, money or 0.0)
            self._rest, self._rest_cost = self._rest + self._last[0], self._rest_cost + self._last[1]
            self._note()
        return lent, money

    def _part(self, free: float, need: float) -> float:
        return max(0.0, min(free, max(need, free / self._parts)))

    def unread(self) -> None:
        """Take back the loan of the last answer, which was not read."""
        with self._book.changing():
            self._rest = max(0, self._rest - self._last[0])
            self._rest_cost = max(0.0, self._rest_cost - self._last[1])
            self._last = (0, 0.0)
            self._note()

    def lacks(self, wanted: Wanted) -> bool:
        """Return whether this much could not be lent even if all others gave back what they have reserved."""
        mark, facts = self._ledger.mark, self._book.numbers()
        return bool(
            (mark.tokens and mark.tokens - facts.tokens - self._rest < wanted.lend)
            or (mark.cost and mark.cost - facts.cost - self._rest_cost < wanted.money)
        )

    def close(self) -> None:
        """End the loan: the rest comes back if it was returned, and is charged if not."""
        if self._fd < 0:
            return
        # On an error its record stays, and is charged as that of a proxy that was killed.
        with contextlib.suppress(OSError):
            if not self.returned:
                self._count(self._used + self._rest, self._used_cost + self._rest_cost)
            self._rest, self._rest_cost = 0, 0.0
            with self._book.changing():
                self._note()
        os.close(self._fd)
        self._fd = -1

    def count(self, wanted: Wanted) -> None:
        """Count what was used so far."""
        self._count(wanted.tokens, wanted.cost)

    def exceeded(self, wanted: Wanted) -> str:
        """Return how a host has passed its loan, by its own word; "" if it has not."""
        mark, told = self._ledger.mark, []
        if mark.tokens and wanted.tokens > (lent := self._used + self._rest):
            told.append(f"{wanted.tokens} tokens were used, and {lent} were lent")
        if mark.cost and wanted.cost > (money := self._used_cost + self._rest_cost) + LEAST:
            told.append(f"{wanted.cost:.4f} US dollars were used, and {money:.4f} were lent")
        return "; ".join(told)

    def _count(self, tokens: int, cost: float) -> None:
        """Add what was used since the last report to the totals: no more than was lent, where there is a limit."""
        mark = self._ledger.mark
        more = max(0, tokens - self._used)
        dearer = max(0.0, cost - self._used_cost)
        more = min(more, self._rest) if mark.tokens else more
        dearer = min(dearer, self._rest_cost) if mark.cost else dearer
        if not more and not dearer:
            return
        with self._book.changing() as facts:
            self._book.put(facts._replace(tokens=facts.tokens + more, cost=facts.cost + dearer))
            self._used, self._used_cost = self._used + more, self._used_cost + dearer
            self._rest, self._rest_cost = max(0, self._rest - more), max(0.0, self._rest_cost - dearer)
            self._note()

    def _note(self) -> None:
        """Write the record; inside `changing` only. None of it is sure to be used."""
        self._book.note(INFER, self._fd, self._index, self._rest, self._rest_cost, 0, 0.0)
