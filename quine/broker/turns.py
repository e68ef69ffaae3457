"""A gate with its clock: inferences wait here for leave to send, and trees whose provider has no quota left.

Law: a tree that is paused sends nothing until it is resumed, its pause is over, its deadline has passed, or none of its
inferences waits any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable

from quine.base.errors import DEADLINE
from quine.base.messages import Refused, Reply, Unavailable, Usage, unheard
from quine.broker.gate import Chain, Gate, Refusal, Ticket
from quine.providers.way import GOES_ON, PATIENCE, Outcome, Wait
from transport.lean import NamedTuple

LATE = 5.0  # seconds of a wait for a turn after which the client is told
LOOK = 1.0  # seconds between two looks at the budgets of a paused tree


class Patience(NamedTuple):
    """The end of the patience of a paused tree: its time, and how often its budgets were raised, if it has any."""

    time_left: Callable[[], float | None]
    raises: Callable[[], int] | None = None


class Turns:
    def __init__(self) -> None:
        self.gate = Gate()
        self._starts: dict[Ticket, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.answered_429 = 0
        self._paused: dict[int, tuple[asyncio.Event, Patience | None]] = {}  # by tree
        self._waiting: Counter[int] = Counter()  # inferences that wait for the end of a pause, by tree
        self._ends: dict[int, asyncio.TimerHandle] = {}  # of pauses whose length is known

    async def enter(self, ticket: Ticket) -> None:
        """Wait until the ticket may start."""
        loop = asyncio.get_running_loop()
        start = self._starts[ticket] = loop.create_future()
        self.gate.ask(ticket, loop.time())
        self._turn()
        try:
            await start
        except BaseException:
            self.withdraw(ticket)
            raise

    def heard(self, ticket: Ticket) -> None:
        if not ticket.heard:
            self.gate.heard(ticket, asyncio.get_running_loop().time())
            self._turn()

    def leave(self, ticket: Ticket, refusal: Refusal | None, well: bool) -> None:
        self.gate.leave(ticket, asyncio.get_running_loop().time(), refusal, well)
        self._turn()

    def withdraw(self, ticket: Ticket) -> None:
        self._starts.pop(ticket, None)
        self.gate.withdraw(ticket, asyncio.get_running_loop().time())
        self._turn()

    def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for ticket in self.gate.start(now):
            start = self._starts.pop(ticket)
            if not start.done():
                start.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake = self.gate.wake(now)
        if wake is not None:
            self._timer = loop.call_at(wake, self._turn)

    # -- trees without quota -----------------------------------------------------------------------

    def pause(self, tree: int, seconds: float | None, patience: Patience | None = None) -> None:
        """Pause the tree, for `seconds` if that is known."""
        if tree not in self._paused:
            self._paused[tree] = (asyncio.Event(), patience)
            if seconds is not None:
                self._ends[tree] = asyncio.get_running_loop().call_later(seconds, self.resume, tree)

    def resume(self, tree: int) -> bool:
        """Let the tree go on; return whether it was paused."""
        if timer := self._ends.pop(tree, None):
            timer.cancel()
        paused = self._paused.pop(tree, None)
        if paused is not None:
            paused[0].set()
        return paused is not None

    def resume_all(self) -> int:
        """Let all trees go on; return how many were paused."""
        return sum(map(self.resume, list(self._paused)))

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs or is paused."""
        return self.gate.is_idle and not self._paused

    def is_paused(self, tree: int) -> bool:
        return tree in self._paused

    async def resumed(self, tree: int, patience: Patience) -> None:
        """Wait until the tree is not paused. A raise of its budgets resumes it. Raises Refused at its deadline.

        A pause ends with the last that waits for it: a tree whose agents were killed was shown as paused for ever.
        """
        if tree not in self._paused:
            return
        self._waiting[tree] += 1
        try:
            await self._resumed(tree, patience)
        finally:
            self._waiting[tree] -= 1
            if not self._waiting[tree]:
                del self._waiting[tree]
                self.resume(tree)

    async def _resumed(self, tree: int, patience: Patience) -> None:
        before = patience.raises() if patience.raises else 0
        while (paused := self._paused.get(tree)) is not None:
            event, left = paused[0], patience.time_left()
            if left is not None and left <= 0:
                raise Refused("the time of the tree is over", "see --deadline", DEADLINE)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(event.wait(), LOOK if left is None else min(LOOK, left))
            if patience.raises and patience.raises() != before:
                self.resume(tree)

    def close(self) -> None:
        for timer in (*self._ends.values(), *([self._timer] if self._timer else [])):
            timer.cancel()

    def status(self) -> dict[str, object]:
        now = asyncio.get_running_loop().time()
        return {
            **self.gate.status(now),
            "answered_429": self.answered_429,
            "without_quota": [
                {"tree": tree, "seconds": self._seconds(tree, now), "deadline": _deadline(patience)}
                for tree, (_, patience) in self._paused.items()
            ],
        }

    def _seconds(self, tree: int, now: float) -> float | None:
        """Return the seconds until a pause ends by itself; None if nobody knows."""
        end = self._ends.get(tree)
        return max(0.0, round(end.when() - now, 1)) if end else None


def _deadline(patience: Patience | None) -> float | None:
    left = patience.time_left() if patience else None
    return None if left is None else max(0.0, round(left, 1))


class Passage:
    """The way of one inference through a gate; one ticket for each try."""

    def __init__(
        self,
        turns: Turns,
        tree: int,
        chain: Chain,
        patience: Patience | None,
        note: Callable[[str], None] = unheard,
    ) -> None:
        self._turns = turns
        self.tree = tree
        self._chain = chain
        self._patience = patience  # None: the tree is not paused
        self._note = note
        self._is_late = False
        self._ticket = Ticket(tree)
        self.sent = False  # a request is under way, or was when it was cancelled
        self.so_far: Reply | None = None
        self.is_whole = False
        self.owed: Usage | None = None  # for an answer that broke off, as long as it is not paid
        self.pay: Callable[[Usage], Awaitable[tuple[int, float]]] | None = None

    async def enter(self) -> None:
        while True:
            if self._patience and self._turns.is_paused(self.tree):
                self._note(Wait("another inference of the tree has met it", quota=True).note)
                await self._turns.resumed(self.tree, self._patience)
                self._note(GOES_ON)
            self._ticket = Ticket(self.tree, self._chain)
            await self._turn()
            if not self._patience or not self._turns.is_paused(self.tree):
                break
            self._turns.withdraw(self._ticket)  # paused while it waited
        self.sent, self.so_far, self.is_whole, self.owed = True, None, False, None

    async def _turn(self) -> None:
        """Wait for a turn, and tell of a long wait."""
        timer = asyncio.get_running_loop().call_later(LATE, self._late)
        try:
            await self._turns.enter(self._ticket)
        finally:
            timer.cancel()
        if self._is_late:
            self._is_late = False
            self._note(GOES_ON)

    def _late(self) -> None:
        self._is_late = True
        self._note(Wait("others are before it, and the server takes no more at one time").note)

    def heard(self) -> None:
        self._turns.heard(self._ticket)

    async def broke_off(self, usage: Usage) -> tuple[int, float] | None:
        self.owed = None
        return await self.pay(usage) if self.pay else None

    def leave(self, outcome: Outcome | None) -> None:
        well = outcome is not None and isinstance(outcome.told, Reply)
        if outcome is not None and outcome.status == 429:
            self._turns.answered_429 += 1
        self._turns.leave(self._ticket, refusal_of(outcome) if outcome else None, well)
        if outcome is not None and not isinstance(outcome.told, Reply):
            self.sent = False  # of a reply that is read the caller may still be cancelled, and that was made
            self.owed = outcome.told.usage  # paid before the next try, and not before the pause


def refusal_of(outcome: Outcome) -> Refusal | None:
    """Return what the end of a try says about the load of the server, if anything."""
    fault = outcome.told
    if not isinstance(fault, Unavailable):
        return None
    rate = outcome.status == 429
    overload = outcome.status == 529 or "overloaded" in str(fault).lower()
    after = fault.after or 0.0
    if after > PATIENCE:
        return None  # as a quota that is used up: one tree may wait for it, and the others are told
    return Refusal(after, rate, overload) if rate or overload or after else None
