"""Places for agents on other machines: what the origin lends to a job, and how agents over there get and return them.

The origin's ledger counts every place of the tree. An agent elsewhere that finds too few free on its machine asks the
origin for as many as it needs. What lies idle there goes back with the end of the agent that had it, or, where that one
was killed, with the next step of another agent of the same machine.

    over there, Grant                   at the origin, Lender (in the face of the job)
    ask, need, back  ───────────────▶   takes back what was returned, then gives as many as are needed, or none

Laws
1. A place counts at the origin from before it is used over there until after it is given back: the sum holds whatever
   is lost on the way. What a face has lent goes back when its job has ended.
2. Every message can come twice or late. An ask has a number, and what was given to one whose asker died before it had
   the answer goes back with the next; `back` is a total.
3. One process asks at a time over there, and looks for what is idle once more after it has let go of that right. So an
   agent that ends while another one asks need not wait.
4. Nobody waits for a place: what lies idle goes back unasked, and an agent that finds too few is refused at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from quine.budget.ledger import Ledger
from quine.budget.shared_counters import AGENT, ASKING, LONGEST, SHORTEST, release
from transport.errors import RequestError
from transport.wire import quickjson

PATIENCE = 120.0  # seconds for the answer to somebody else's ask
MAX_SHARES = 4096  # machines below one job, over all of its time, that have their places through it

Ask = Callable[[str, bytes], bytes]


# -- over there ------------------------------------------------------------------------------------


class Grant:
    """ledger.Beyond, for the ledger of a share."""

    def __init__(self, ledger: Ledger, ask: Ask) -> None:
        self._ledger = ledger
        self._book = ledger.book
        self._ask = ask

    def more(self, limit: int, count: int) -> list[int] | None:
        """`count` places, with those that are free here; None where that is too many. OSError: no answer."""
        with self._asking():
            # Others may take what was given before we do, so it may need another ask.
            while (held := self._ledger.take(limit, count)) is None:
                facts, used = self._book.numbers(), self._book.count(AGENT)
                if not facts.granted or limit < used + count:
                    break  # whatever the origin has
                if not self._request(max(1, count - max(0, facts.granted - used))):
                    break
        self.give_back()
        return held

    def give_back(self) -> None:
        """Return to the origin what lies idle here, and what may have been given to an asker that died.

        It does not wait for others that ask: they look again afterwards.
        """
        with contextlib.suppress(OSError):  # no answer: the next message says all of it again
            while self._owes():
                fd, _ = self._book.slot(ASKING, 1)
                if fd < 0:
                    return
                try:
                    if self._idle() or self._unheard():
                        self._request(0)
                finally:
                    os.close(fd)

    def _request(self, need: int) -> int:
        """Inside `_asking` only: how many places were given. OSError where there is no answer."""
        with self._book.changing() as facts:
            facts = facts._replace(asked=facts.asked + 1)
            self._book.put(facts)
        body = {"ledger": facts.ident.hex(), "ask": facts.asked, "had": facts.had, "need": need}
        try:
            answer: Any = quickjson.loads(
                self._ask("ledger", quickjson.dumps({**body, "back": facts.back}).encode())
            )
            got = max(0, int(answer["places"]))
        except RequestError as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from None
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(errno.EPROTO, f"the origin's answer cannot be read: {error}") from None
        with self._book.changing() as now:
            self._book.put(now._replace(had=facts.asked, granted=now.granted + got))
        return got

    def _owes(self) -> bool:
        facts = self._book.numbers()
        return self._unheard() or 1 < facts.granted > self._book.count(AGENT)

    def _unheard(self) -> bool:
        """Has the last ask had no answer? It has none yet, either, while another process asks."""
        facts = self._book.numbers()
        return facts.asked != facts.had

    def _idle(self) -> int:
        """Take out of the grant what nobody uses here; how many those are. The first place is that of the face."""
        with self._book.changing() as facts:
            idle = max(0, facts.granted - max(1, self._book.count(AGENT)))
            if idle:
                self._book.put(facts._replace(granted=facts.granted - idle, back=facts.back + idle))
        return idle

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        fd, pause, over = -1, SHORTEST, time.monotonic() + PATIENCE
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
    """The places of one machine's ledger."""

    def __init__(self) -> None:
        self.held: list[int] = []
        self.asked = 0  # its last ask,
        self.last: list[int] = []  # and what was given for it: of these nobody may know over there
        self.back = 0
        self.over = False


class Lender:
    """What this process, the face of a job, has lent to it from its tree's ledger. Called from worker threads."""

    def __init__(self, ledger: Ledger, limit: int) -> None:
        self._ledger = ledger
        self._limit = limit
        self._shares: dict[str, _Share] = {}
        self._changed = threading.Condition()
        self._inferring = 0
        self._most = 1  # places that the job had at any one time
        self._over = False

    @contextlib.contextmanager
    def inferring(self) -> Iterator[None]:
        """One inference of the job: not more at one time than it ever had places, whatever runs over there.

        Not than it has now: that of an agent which was killed goes on here when its place has come back.
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
        """For agents of the job, with that of its first one; 0 = no limit."""
        with self._changed:
            return 1 + sum(len(share.held) for share in self._shares.values()) if self._limit else 0

    def lend(self, ident: str, ask: int, had: int, need: int, back: int) -> int:
        """Take back what was returned; then how many places were given: `need`, or none."""
        with self._changed:
            share = self._share(ident)
            if ask <= share.asked or share.over:
                raise RequestError(f"ledger: ask {ask} came, and {share.asked} was before")
            if had < share.asked:  # the process that had asked for these died before it knew
                self._drop(share, share.last)
            share.asked, share.last = ask, []
            self._take_back(share, back)
            if need and self._limit:
                share.last = self._ledger.take(self._limit, need, born=0) or []
                share.held += share.last
                self._most = max(self._most, self.places())
                self._changed.notify_all()
            return len(share.last)

    def end(self, ident: str) -> None:
        """The job of a share has ended: what it had comes back, and it gets nothing any more."""
        with self._changed:
            share = self._share(ident)
            share.over = True
            self._drop(share, share.held)

    def close(self) -> None:
        """The job has ended: nothing is lent any more, nor to an agent that is about to ask."""
        with self._changed:
            self._over = True
            for share in self._shares.values():
                self._drop(share, share.held)
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
