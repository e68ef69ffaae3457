"""The remote end of a loan (quine/budget/loans.py): a share that pays its inferences from what it has borrowed.

Laws
1. Requests have one numbering with those for places, and one process of a machine asks at a time.
2. After the rest was given back nothing can be spent here.
"""

from __future__ import annotations

import errno

from quine.budget.leases import Ask, Grant
from quine.budget.ledger import Ledger
from quine.budget.loans import Wanted
from quine.budget.shared_counters import INFER, Numbers
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager as Context

    Guard = Context[object]

FOR_EVER = float("inf")
LEAST, LEAST_MONEY = 1, 1e-9  # a limit of 0 would be none


class Borrower(Grant):
    """Implements `ledger.Upstream` for the ledger of a share that pays its inferences itself.

    `guard` is open while this waits for the origin; a signal may end the wait there. `call_courier` has the process
    that waits for the origin give idle places back; None: this is that process.
    """

    def __init__(
        self,
        ledger: Ledger,
        ask: Ask,
        guard: Callable[[], Guard],
        call_courier: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(ledger, ask)
        self._guard = guard
        self._call_courier = call_courier
        self._told = Wanted()

    def begin(self) -> None:
        """Borrow for the first time. Raises OSError without an answer."""
        with self._asking():
            self._borrow(Wanted(begin=True))

    def extend(self, ledger: Ledger, tokens: int, money: float) -> bool:
        """Have at least so much surely left in `ledger`; borrow more where needed. False if there is no more.

        It waits for the origin while the link is down.
        """
        try:
            with self._guard(), self._asking(FOR_EVER):
                # Others may reserve what was lent before this process does: then more is borrowed.
                while self._lacks(ledger, tokens, money):
                    facts = self._book.numbers()
                    if _own_caps_lack(ledger, facts, tokens, money):
                        return False  # whatever the origin has
                    room, room_cost = self._room(facts)
                    lend, dear = max(0, tokens - room), max(0.0, money - room_cost)
                    if not self._borrow(Wanted(facts.tokens, facts.cost, lend, dear)):
                        return not self._lacks(ledger, tokens, money)
                return True
        except OSError:
            return False

    def give_back(self) -> None:
        """Return idle places to the origin. No agent waits for the link with that: the courier does."""
        if self._call_courier is None:
            super().give_back()
        elif self._owes():
            self._call_courier()

    def report(self) -> None:
        """Tell what was used so far, and return idle places. Raises OSError without an answer."""
        self.give_back()
        facts = self._book.numbers()
        used = Wanted(facts.tokens, facts.cost)
        if used != self._told:
            # Totals need no number: late or double they change nothing.
            body = {"ledger": facts.ident.hex(), "loan": True, **used._asdict()}
            try:
                self._ask("ledger", quickjson.dumps(body).encode())
            except RequestError as error:
                raise OSError(errno.EHOSTUNREACH, str(error)) from None
            self._told = used

    def return_rest(self) -> None:
        """Close the ledger for more, and give back what is left. Raises OSError without an answer."""
        with self._asking(FOR_EVER):
            self._ledger.collect()
            with self._book.changing() as facts:
                tokens, cost = facts.tokens, facts.cost
                for reserved, reserved_cost, _, _ in self._book.records(INFER):  # of processes left behind
                    tokens, cost = tokens + int(reserved), cost + reserved_cost
                self._book.put(facts._replace(limit_tokens=max(LEAST, facts.tokens)))
            self._borrow(Wanted(tokens, cost, over=True))

    def _room(self, facts: Numbers) -> tuple[int, float]:
        """Return what is surely left of the loan: below 0 after an inference that took more than it had reserved."""
        room, cost = facts.limit_tokens - facts.tokens, facts.limit_cost - facts.cost
        for _, _, sure, sure_cost in self._book.records(INFER):
            room, cost = room - int(sure), cost - sure_cost
        return room, cost

    def _lacks(self, ledger: Ledger, tokens: int, money: float) -> bool:
        left = ledger.left(surely=True)  # the rest of the reservations is waited for, not borrowed
        return (left.tokens is not None and left.tokens < tokens) or (
            left.cost is not None and left.cost < money
        )

    def _borrow(self, wanted: Wanted) -> bool:
        """Send a request, and return whether anything was lent; the caller holds the slot `ASKING`.

        A limit that the tree has no more is taken away here too, which lends without end.
        """
        lent = False

        def take(answer: Any, facts: Numbers) -> Numbers:
            nonlocal lent
            if wanted.over:
                return facts
            tokens, cost = answer["tokens"], answer["cost"]
            unlimited = (tokens is None and facts.limit_tokens) or (cost is None and facts.limit_cost)
            lent = bool(tokens or cost or unlimited)
            more = 0 if tokens is None else max(LEAST, (facts.limit_tokens or facts.tokens) + int(tokens))
            dearer = 0.0 if cost is None else max(LEAST_MONEY, (facts.limit_cost or facts.cost) + float(cost))
            return facts._replace(limit_tokens=more, limit_cost=dearer)

        self._request(0, {"loan": True, **wanted._asdict()}, take)
        return lent


def _own_caps_lack(ledger: Ledger, facts: Numbers, tokens: int, money: float) -> bool:
    """Return whether the caps of this process alone, which no loan widens, allow less than this."""
    own = ledger.own
    return bool(
        (own.tokens and own.tokens - facts.tokens < tokens) or (own.cost and own.cost - facts.cost < money)
    )
