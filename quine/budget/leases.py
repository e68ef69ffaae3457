"""Places for agents on other machines: the origin lends them to a job, and the agents there request and return them.

A place is the right to run one agent. The origin's ledger counts every place of the tree. A remote agent that finds
too few free on its machine requests as many as it needs. Idle places go back when the agent that had them ends. If that
agent was killed, they go back with the next step of another agent on the same machine.

    remote machine, Grant               origin, Lender (in the proxy of the job)
    ask, need, back  ───────────────▶   takes back the returned places, then gives as many as are needed, or none

Laws
1. A place counts at the origin from before its use on the other machine until after its return. So the sum holds
   whatever is lost on the way. The places that a proxy has lent go back when its job has ended.
2. Every message can arrive twice or late. A request has a number. Places for a requester that died before it read the
   reply go back with the next request; `back` is a total.
3. One process of a machine requests at a time. It looks for idle places once more after it has released that right,
   so an agent that ends meanwhile need not wait.
4. No agent waits for a place: idle places go back unrequested, and a request for too many is refused at once.
"""

from __future__ import annotations

import errno
import os
import time

from quine.base.messages import unheard
from quine.budget.changes import Changes
from quine.budget.ledger import Ledger
from quine.budget.loans import PARTS, Loan, Wanted
from quine.budget.shared_counters import AGENT, ASKING, LONGEST, SHORTEST, Numbers, release
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any, Callable, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PATIENCE = 120.0  # seconds to wait for the request of another process
MAX_LOANS = 64  # machines below one job that infer by themselves, where the number of agents has no limit
MAX_SHARES = 4096  # machines below one job, over its whole time, that get places through it

Ask = Callable[[str, bytes], bytes]


# -- on a remote machine ---------------------------------------------------------------------------


def _as_is(answer: Any, facts: Numbers) -> Numbers:
    return facts


class Grant:
    """Implements `ledger.Upstream` for the ledger of a share."""

    def __init__(self, ledger: Ledger, ask: Ask) -> None:
        self._ledger = ledger
        self._book = ledger.book
        self._ask = ask

    def more(self, limit: int, count: int) -> list[int] | None:
        """Return `count` places, free ones here included; None if that is too many. Raises OSError without a reply."""
        with self._asking():
            # Other agents may take the new places first; then another request is needed.
            while (held := self._ledger.take(limit, count)) is None:
                facts, used = self._book.numbers(), self._book.count(AGENT)
                if not facts.granted or limit < used + count:
                    break  # too many, whatever the origin has
                if not self._request(max(1, count - max(0, facts.granted - used))):
                    break
        self.give_back()
        return held

    def extend(self, ledger: Ledger, tokens: int, money: float) -> bool:
        """Nothing is lent to this share: the origin pays its inferences."""
        return False

    def give_back(self) -> None:
        """Return idle places to the origin, and places for a requester that died.

        It does not wait for another process that is requesting: that one looks again afterwards.
        """
        with contextlib.suppress(OSError):  # no answer: the next message repeats all of it
            while self._owes():
                fd, _ = self._book.slot(ASKING, 1)
                if fd < 0:
                    return
                try:
                    if self._idle() or self._unheard():
                        self._request(0)
                finally:
                    os.close(fd)

    def _request(
        self,
        need: int,
        more: Mapping[str, object] | None = None,
        take: Callable[[Any, Numbers], Numbers] = _as_is,
    ) -> int:
        """Request `need` places; return how many were given. The caller holds the `ASKING` slot. Raises OSError.

        `more` belongs to the request, too; `take` returns the numbers after its answer.
        """
        with self._book.changing() as facts:
            facts = facts._replace(asked=facts.asked + 1)
            self._book.put(facts)
        asked = {"ledger": facts.ident.hex(), "ask": facts.asked, "had": facts.had, "need": need}
        body = {**asked, "back": facts.back, **(more or {})}
        try:
            answer: Any = quickjson.loads(self._ask("ledger", quickjson.dumps(body).encode()))
            got = max(0, int(answer["places"]))
            take(answer, facts)  # read whole before anything is changed
        except RequestError as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(errno.EPROTO, f"the origin's answer cannot be read: {error}") from None
        with self._book.changing() as now:
            self._book.put(take(answer, now._replace(had=facts.asked, granted=now.granted + got)))
        return got

    def _owes(self) -> bool:
        facts = self._book.numbers()
        return self._unheard() or 1 < facts.granted > self._book.count(AGENT)

    def _unheard(self) -> bool:
        """Return whether the reply to the last request was not read; also True while another process requests."""
        facts = self._book.numbers()
        return facts.asked != facts.had

    def _idle(self) -> int:
        """Take the unused places out of the grant; return their number. The first place is the proxy's, and stays."""
        with self._book.changing() as facts:
            idle = max(0, facts.granted - max(1, self._book.count(AGENT)))
            if idle:
                self._book.put(facts._replace(granted=facts.granted - idle, back=facts.back + idle))
        return idle

    @contextlib.contextmanager
    def _asking(self, patience: float = PATIENCE) -> Iterator[None]:
        fd, pause, over = -1, SHORTEST, time.monotonic() + patience
        while (fd := self._book.slot(ASKING, 1)[0]) < 0:
            if time.monotonic() > over:
                raise OSError(errno.ETIMEDOUT, "the origin does not answer")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        try:
            yield
        finally:
            os.close(fd)


# -- at the origin ---------------------------------------------------------------------------------


class _Share:
    """The places lent to one machine's ledger."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.asked = 0  # number of its last request,
        self.last: list[int] = []  # and the places given for it: its requester may have died before it knew
        self.back = 0
        self.over = False
        self.exceeded = False  # its loan, which was noted
        self.loan: Loan | None = None  # of tokens and money, if that machine pays its inferences itself


class Lender:
    """The places that this process, the proxy of a job, has lent to it. Called from worker threads.

    `parts`: how many loans what is free should do for; 1 if nobody else is to spend of it.
    """

    def __init__(
        self, ledger: Ledger, limit: int, parts: int = PARTS, note: Callable[[str], None] = unheard
    ) -> None:
        self._note = note
        self._ledger = ledger
        self._limit = limit
        self._parts = parts
        self._shares: dict[str, _Share] = {}
        self._changed = Changes()
        self._inferring = 0
        self._most = 1  # places that the job had at any one time
        self._over = False

    @contextlib.contextmanager
    def inferring(self) -> Iterator[None]:
        """Allow one inference of the job; block while as many run as it ever had places. Raises RequestError.

        The places it has now would be too few: the inference of a killed agent goes on after its place has come back.
        """
        with self._changed:
            while self._limit and self._inferring >= self._most and not self._over:
                self._changed.wait()
            self._end_if_over()
            self._inferring += 1
        try:
            yield
        finally:
            with self._changed:
                self._inferring -= 1
                self._changed.notify_all()

    def places(self) -> int:
        """Return the number of places of the job's agents, its first agent included; 0 = no limit."""
        with self._changed:
            return 1 + sum(len(share.held) for share in self._shares.values()) if self._limit else 0

    def lend(self, ident: str, ask: int, had: int, need: int, back: int) -> int:
        """Take back the returned places, then give `need` places or none. Return how many were given.

        `ask` is the number of the request, `had` that of the last one whose reply was read, `back` the total returned.
        """
        with self._changed:
            share = self._share(ident)
            if ask <= share.asked or share.over:
                raise RequestError(f"ledger: ask {ask} came, and {share.asked} was before")
            if had < share.asked:  # the process that requested these died before it read the reply
                self._drop(share, share.last)
                if share.loan:
                    share.loan.unread()
            share.asked, share.last = ask, []
            self._take_back(share, back)
            if need and self._limit:
                share.last = self._ledger.take(self._limit, need, born=0) or []
                share.held += share.last
                self._most = max(self._most, self.places())
                self._changed.notify_all()
            return len(share.last)

    def budget(self, ident: str, wanted: Wanted, numbered: bool) -> tuple[int | None, float | None]:
        """Lend tokens and dollars, after `lend` has taken the number of the same request; see `Loan.lend`.

        A request without a number tells what was used, and gets nothing.
        """
        with self._changed:
            share = self._share(ident)
            if share.over or (share.loan and share.loan.returned):
                raise RequestError("ledger: its loan has ended")
            if share.loan is None:
                self._require_another(numbered)
                share.loan = Loan(self._ledger, self._parts)
            loan = share.loan
            if (passed := loan.exceeded(wanted)) and not share.exceeded:
                share.exceeded = True
                self._note(f"ledger: the host has passed its loan: {passed}")
            if not numbered and not wanted.over:
                loan.count(wanted)
                return None, None
            lent = loan.lend(wanted)
            if (wanted.lend or wanted.money) and loan.lacks(wanted):
                self._ledger.refuse()
            return lent

    def _require_another(self, numbered: bool) -> None:
        """Raise RequestError if no other machine may begin a loan: each has one agent at least."""
        most = self._most if self._limit else MAX_LOANS
        if not numbered or sum(share.loan is not None for share in self._shares.values()) >= most:
            raise RequestError("ledger: no such loan" if not numbered else f"ledger: more than {most} loans")

    def end(self, ident: str) -> None:
        """Take all places of a share back after its job has ended; it gets no more."""
        with self._changed:
            share = self._share(ident)
            share.over = True
            self._drop(share, share.held)
            if share.loan:
                share.loan.close()

    def close(self) -> None:
        """Take all places back after the job has ended; later requests are refused."""
        with self._changed:
            self._over = True
            for share in self._shares.values():
                self._drop(share, share.held)
                if share.loan:
                    share.loan.close()
            self._changed.notify_all()

    def _end_if_over(self) -> None:
        if self._over:
            raise RequestError("ledger: the job has ended")

    def _share(self, ident: str) -> _Share:
        self._end_if_over()
        if ident not in self._shares and len(self._shares) >= MAX_SHARES:
            raise RequestError(f"ledger: more than {MAX_SHARES} shares of one job")
        return self._shares.setdefault(ident, _Share())

    def _take_back(self, share: _Share, back: int) -> None:
        count = min(max(0, back - share.back), len(share.held))
        share.back = max(share.back, back)
        self._drop(share, share.held[len(share.held) - count :])

    def _drop(self, share: _Share, places: list[int]) -> None:
        release(places)
        share.held = [fd for fd in share.held if fd not in places]
        share.last = [fd for fd in share.last if fd not in places]
