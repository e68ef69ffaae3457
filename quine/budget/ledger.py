"""The ledger: the agents, concurrent inferences, tokens, money and time that a tree may still spend.

On each machine it is kept in shared counters (`SharedCounters`). Those at the origin of the tree hold all of it.
On another machine they count the places there, which the origin grants (`leases`), and a loan of its budget (`loans`).

Laws
1. All slots that a step needs are taken before the step begins, or none.
2. Limits are written once, by the root of the tree; those of a purse (quine/budget/purse.py) can be raised from
   outside. A descendant can set itself a narrower cap (`Cap`), never a wider one. Its ledger is the one that the
   processes above it hold, whatever its memo says.
3. An amount that is only reserved, and may come back, refuses nothing. A place for an agent is free or not, and no
   agent waits for one.
4. An inference whose holder was killed is charged at its reservation, once, by the next process that looks. So the sum
   stays within the limit, whatever is killed.
"""

from __future__ import annotations

import os
import time

from quine.base.messages import Remaining, Spent
from quine.budget import beginning, caller, purse
from quine.budget.beginning import Beginning
from quine.budget.limits import Limits
from quine.budget.purse import Cap, Purse
from quine.budget.shared_counters import (
    AGENT,
    INFER,
    LONGEST,
    SHORTEST,
    Locked,
    Numbers,
    SharedCounters,
    release,
)
from transport.address import boot_clock
from transport.lean import Callable, Protocol

Price = Callable[[int, int], float]

LEAST_REPLY = 256  # tokens: a shorter reply is not worth its prompt
PIECE = 256  # places for agents that are taken under the lock, some milliseconds, before others may have it
MOST_REPLY = 16384  # tokens reserved for a reply, if the tree has that many left


class Reservation:
    """One inference under way: its slot and its reservation."""

    def __init__(self, fd: int, index: int, output: int, cost: float = 0.0) -> None:
        self.fd = fd
        self.index = index
        self.output = output  # the most tokens that the reply may have; 0 = the guest decides
        self.cost = cost  # the most dollars that it may cost; 0 = no limit


class Upstream(Protocol):
    """The upstream ledger: it gives places and a budget that the origin of the tree grants, and takes them back."""

    def more(self, limit: int, count: int) -> list[int] | None: ...
    def give_back(self) -> None: ...
    def extend(self, ledger: Ledger, tokens: int, money: float) -> bool: ...


class Ledger:
    def __init__(self, book: SharedCounters, mark: Cap | None = None, purses: tuple[int, ...] = ()) -> None:
        self.book = book
        self.purses = purses  # descriptors of the purses around this process
        self.beginning = Beginning()
        self.beyond: Upstream | None = None  # set if the origin is another machine
        self._refused = -1  # raises of the purses at the last refusal here because of what the tree has used
        self.own = mark or Cap()  # the caps of this process alone; `mark` has all that hold

    @property
    def mark(self) -> Cap:
        """The caps that hold now: those of the tree, of each purse around this process, and its own."""
        facts = self.book.numbers()
        of_tree = Cap(facts.limit_tokens, facts.limit_cost, facts.deadline)
        all_of_them = [of_tree, self.own, *(each.cap for each in self.around())]
        tokens, cost, deadline = zip(*all_of_them)
        return Cap(int(_least(*tokens)), _least(*cost), _least(*deadline))

    @property
    def spent(self) -> bool:
        """Whether an inference was refused here because of what the tree has used, and no purse was raised since."""
        return self._refused == self.raises()

    def refuse(self) -> None:
        """Note that an inference was refused because of what the tree has used."""
        self._refused = self.raises()

    def raises(self) -> int:
        """Return how often the purses around this process were raised."""
        return sum(each.raised for each in self.around())

    def around(self) -> list[Purse]:
        """Return the purses around this process."""
        return purse.caps(self.purses)

    @property
    def fd(self) -> int:
        return self.book.fd

    @classmethod
    def create(cls, limits: Limits, share: bool = False, begun: int = 0, personas: bytes = b"") -> Ledger:
        """Create the ledger of a new tree, or of a `share`: the part on this machine of a tree with another origin.

        A share has one place, which the proxy of its first agent holds at the origin, and no budget of its own.
        quine/agent/personas.py needs `begun` and `personas`; without the latter there is no persona.
        """
        deadline = boot_clock() + limits.deadline if limits.deadline else 0.0
        tokens, cost = (0, 0.0) if share else (limits.tokens, limits.cost)
        numbers = Numbers(limits.depth, limits.agents, limits.concurrent, tokens, cost, deadline)
        numbers = numbers._replace(limit_stored=0 if share else limits.stored)
        if share:
            numbers = numbers._replace(granted=int(limits.agents > 0), ident=os.urandom(16))
        ledger = cls(SharedCounters.create(numbers))
        inode = os.fstat(ledger.fd).st_ino
        ledger.beginning = beginning.create(inode, begun, personas) if personas else Beginning(begun)
        return ledger

    @classmethod
    def join(cls, told: object, limits: Limits, walk: caller.Walk = caller.walk) -> Ledger | None:
        """Return the ledger of the tree above this process, narrowed by its own `limits`; None at the root of a tree.

        It is the ledger that the topmost process above holds. The memo's part, `told`, can only narrow it.
        """
        found = caller.joined(walk)
        if found is None:
            return None
        mark = told.get("mark") if isinstance(told, dict) else None
        own = Cap(int(mark[0]), float(mark[1]), float(mark[2])) if isinstance(mark, list) else None
        ledger = cls(SharedCounters(found[0]), own, found[1])
        ledger.beginning = found[2]
        same = isinstance(told, dict) and told.get("given") == _given(limits)
        return ledger if same else ledger._narrowed(limits)

    def _narrowed(self, limits: Limits) -> Ledger:
        """Set a budget of its own inside the tree's: `limits` from now on, never more than is left above."""
        facts, own = self.book.numbers(), self.own
        self.own = Cap(
            int(_least(own.tokens, limits.tokens and facts.tokens + limits.tokens)),
            _least(own.cost, limits.cost and facts.cost + limits.cost),
            _least(own.deadline, limits.deadline and boot_clock() + limits.deadline),
        )
        return self

    def narrower(self, limits: Limits) -> Ledger:
        """Return this ledger for a child that is given `limits`, counted from now on, and never more than is left."""
        child = Ledger(self.book, self.own, self.purses)
        child.beyond, child.beginning = self.beyond, self.beginning
        return child._narrowed(limits)

    def into_purse(self, ident: str, command: str, limits: Limits) -> None:
        """Move the budget that this process was given as `limits`, at the root of its tree, into a purse."""
        given = (limits.tokens, limits.cost, limits.deadline)
        fd = purse.create(self.book, ident, command, given, (limits.agents, limits.concurrent))
        if not self.purses:  # the ledger is of this process: nothing has joined it yet
            with self.book.changing() as facts:
                self.book.put(facts._replace(limit_tokens=0, limit_cost=0.0, deadline=0.0))
        self.own = Cap()
        self.purses = (*self.purses, fd)

    def bound(self, limits: Limits) -> Limits:
        """Return `limits`, as far as the root of the tree and the purses around this process allow them."""
        facts, around = self.book.numbers(), self.around()
        return limits._replace(
            depth=min(limits.depth, facts.depth),
            agents=int(_least(limits.agents, facts.agents, *(each.agents for each in around))),
            concurrent=int(
                _least(limits.concurrent, facts.concurrent, *(each.concurrent for each in around))
            ),
        )

    def to_json(self, limits: Limits) -> dict[str, object]:
        """Return the part for the memo: the caps of this process and those below it, and the budget they were given."""
        return {"mark": list(self.own), "given": _given(limits)}

    # -- agents ------------------------------------------------------------------------------------

    def agents(self, limit: int, count: int = 1) -> list[int] | None:
        """Return `count` places for agents as descriptors, or None if fewer are free. With `limit` 0: [].

        Raises OSError if no descriptors are left, or the origin cannot be reached.
        """
        held = self.take(limit, count)
        return self.beyond.more(limit, count) if held is None and self.beyond else held

    def take(self, limit: int, count: int, born: int | None = None) -> list[int] | None:
        """Like `agents`, from the places free on this machine. `born`: how many agents begin with them; default all.

        More than PIECE are taken in pieces. If two processes take as many at one time, both may be refused.
        """
        if limit and limit < count:
            return None
        held: list[int] = []
        at = 0
        try:
            while (at := self._take_piece(held, at, limit, count, count if born is None else born)) >= 0:
                if not limit or len(held) == count:
                    return held
        except BaseException:
            release(held)
            raise
        release(held)
        return None

    def _take_piece(self, held: list[int], at: int, limit: int, count: int, born: int) -> int:
        """Add places to `held`, the slots from `at` on, until it has `count`; note `born` with the last one.

        Return the slot to go on from, or -1 if fewer are free.
        """
        # Under the lock: two processes that want two each would take one each, and both be refused.
        with self.book.changing() as facts:
            todo = count - len(held)
            if facts.granted and limit and facts.granted - self.book.count(AGENT) < todo:
                return -1
            for _ in range(min(todo, PIECE) if limit else 0):
                fd, index = self.book.slot(AGENT, limit, begin=at)
                if fd < 0:
                    return -1
                held.append(fd)
                at = index + 1
            if not limit or todo <= PIECE:
                self.book.put(facts._replace(born=facts.born + born))
        return at

    def born(self) -> None:
        """Count an agent that has begun on another machine; its place was lent before."""
        with self.book.changing() as facts:
            self.book.put(facts._replace(born=facts.born + 1))

    # -- inferences --------------------------------------------------------------------------------

    def reserve(
        self,
        concurrent: int,
        prompt: int,
        price: Price | None = None,
        within: Remaining | None = None,
        on_wait: Callable[[], None] | None = None,
    ) -> Reservation:
        """Reserve one inference of about `prompt` tokens; block while others hold the slots or the budget it needs.

        `price` returns dollars for (prompt, reply) tokens; `within` is the most that this inference may take.
        `on_wait` is called before each pause. Raises Spent if waiting would not help. A signal handler that raises ends
        the wait.
        """
        pause = SHORTEST
        while (hold := self.try_reserve(concurrent, prompt, price, within)) is None:
            if on_wait:
                on_wait()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST)
        return hold

    def try_reserve(
        self,
        concurrent: int,
        prompt: int,
        price: Price | None = None,
        within: Remaining | None = None,
    ) -> Reservation | None:
        """Reserve without waiting; None while others hold the slots or the budget. Else as `reserve`."""
        fd, index = self.book.slot(INFER, concurrent or INFER.most)
        if fd < 0:
            return None
        try:
            hold = self._reserve(fd, index, prompt, price, within or Remaining())
        except BaseException:
            os.close(fd)
            raise
        if hold is None:
            os.close(fd)
        return hold

    def _reserve(
        self, fd: int, index: int, prompt: int, price: Price | None, within: Remaining
    ) -> Reservation | None:
        """Return None if it does not fit now, but may once others have settled. Raises Spent."""
        first = price(prompt, 0) if price else 0.0
        with self.book.changing() as facts:
            mark, facts = self.mark, self.charge_abandoned(facts, index)
            if not mark.tokens and not mark.cost and within == Remaining():
                self.book.note(INFER, fd, index, prompt, first, prompt, first)
                return Reservation(fd, index, 0)
            others = [0, 0.0]
            for reserved, reserved_cost, _, _ in self.book.records(INFER, index):
                others = [others[0] + reserved, others[1] + reserved_cost]
            tokens = mark.tokens - facts.tokens if mark.tokens else None
            cost = mark.cost - facts.cost if mark.cost else None
            room = within.least(
                Remaining(
                    None if tokens is None else tokens - int(others[0]),
                    None if cost is None else cost - others[1],
                )
            )
            output = _reply(room, prompt, price)
            if output >= LEAST_REPLY:
                dear = price(prompt, output) if price else room.cost or 0.0
                self.book.note(INFER, fd, index, prompt + output, dear, prompt + LEAST_REPLY, first)
                return Reservation(fd, index, output, room.cost or 0.0)
            if _reply(Remaining(tokens, cost), prompt, price) < LEAST_REPLY:
                self._refused = self.raises()
            alone = within.least(Remaining(tokens, cost))
            if _reply(alone, prompt, price) >= LEAST_REPLY:
                return None
            raise self._spent(facts, alone, prompt, price)

    def _spent(self, facts: Numbers, alone: Remaining, prompt: int, price: Price | None) -> Spent:
        mark = self.mark
        if alone.tokens is not None and alone.tokens - prompt < LEAST_REPLY:
            used = f"{max(0, alone.tokens)} tokens are left"
            if mark.tokens and alone.tokens == mark.tokens - facts.tokens:
                used = f"{facts.tokens} of {mark.tokens} tokens are used"
            return Spent(f"{used}, and the next reply needs about {prompt + LEAST_REPLY}", "--max-tokens")
        used = f"{max(0.0, alone.cost or 0):.4f} US dollars are left"
        if mark.cost:
            used = f"{facts.cost:.4f} of {mark.cost:.4f} US dollars are used"
        needs = f", and the next reply needs about {price(prompt, LEAST_REPLY):.4f}" if price else ""
        return Spent(f"{used}{needs}", "--max-cost")

    def settle(self, hold: Reservation, tokens: int, cost: float = 0.0) -> None:
        """Record the actual usage of an inference, and free its slot. After Locked it is to be called again."""
        try:
            with self.book.changing() as facts:
                self.book.pay(facts, hold.index, tokens, cost)
        except Locked:
            raise
        except BaseException:
            os.close(hold.fd)
            raise
        os.close(hold.fd)

    def collect(self) -> None:
        """Charge the inferences whose holders were killed at their reservations: nobody knows what they have cost."""
        with self.book.changing() as facts:
            self.charge_abandoned(facts)

    def charge_abandoned(self, facts: Numbers, own: int = -1) -> Numbers:
        """Charge the records of killed holders, and of an earlier one in the slot `own`; inside `changing` only."""
        for index, (tokens, cost, _, _) in self.book.abandoned(INFER, own):
            facts = self.book.pay(facts, index, int(tokens), cost)
        return facts

    # -- remaining ---------------------------------------------------------------------------------

    def left(self, surely: bool = False) -> Remaining:
        """Return the amount neither used nor reserved. `surely` also counts reservations that may come back."""
        mark = self.mark
        if not mark.tokens and not mark.cost:
            return Remaining()
        with self.book.changing() as facts:
            facts = self.charge_abandoned(facts)
            tokens, cost = facts.tokens, facts.cost
            for reserved, reserved_cost, sure, sure_cost in self.book.records(INFER):
                tokens += int(sure if surely else reserved)
                cost += sure_cost if surely else reserved_cost
        return Remaining(
            max(0, mark.tokens - tokens) if mark.tokens else None,
            max(0.0, mark.cost - cost) if mark.cost else None,
        )

    def time_left(self) -> float | None:
        """Seconds until the deadline, negative after it; None where there is none."""
        deadline = self.mark.deadline  # read once: it may be raised meanwhile
        return deadline - boot_clock() if deadline else None

    def totals(self) -> tuple[int, int, float]:
        """(agents, tokens, dollars) of the whole tree so far."""
        facts = self.book.numbers()
        return facts.born, facts.tokens, facts.cost


def _reply(room: Remaining, prompt: int, price: Price | None) -> int:
    """Return how many tokens a reply may have; negative if not even the prompt can be paid."""
    output = MOST_REPLY
    if room.tokens is not None:
        output = min(output, room.tokens - prompt)
    if room.cost is not None:
        first = price(prompt, 0) if price else 0.0
        each = (price(prompt, MOST_REPLY) - first) / MOST_REPLY if price else 0.0
        rest = room.cost - first
        affordable = rest >= 0 if price else rest > 0
        # Only the origin knows the price. Without one, all remaining money is reserved.
        output = min(output, int(rest / each) if each else output if affordable else -1)
    return output


def _given(limits: Limits) -> list[float]:
    """The budget that a process was given. A nested process that was given the same has no budget of its own."""
    return [limits.tokens, limits.cost, limits.deadline]


def _least(*values: float) -> float:
    """The least limit, where 0 is none."""
    return min(filter(None, values), default=0)
