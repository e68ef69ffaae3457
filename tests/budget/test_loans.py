"""Tokens lent to machines that infer by themselves: the cap of the tree holds, whatever is lost on the way."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quine.base.messages import Spent
from quine.budget.borrowing import Borrower
from quine.budget.leases import MAX_LOANS, Lender
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.budget.loans import Wanted
from quine.budget.shared_counters import INFER
from transport.errors import RequestError
from transport.lean import suppress

CAP = 100_000
PROMPT = 1000


class Wire:
    """Joins a borrower to its lender by function calls, as the handler of `ledger` does (quine/remote/handlers.py)."""

    def __init__(self, lender: Lender) -> None:
        self.lender = lender
        self.bodies: list[bytes] = []
        self.fates: list[str] = []  # of the next messages: "request" or "answer" is what is lost

    def ask(self, name: str, body: bytes) -> bytes:
        fate = self.fates.pop(0) if self.fates else ""
        self.bodies.append(body)
        if fate == "request":
            raise RequestError("lost")
        answer = self.deliver(body)
        if fate == "answer":
            raise RequestError("lost")
        return json.dumps(answer).encode()

    def deliver(self, body: bytes) -> dict[str, Any]:
        asked = json.loads(body)
        ident, number = asked["ledger"], asked.get("ask", 0)
        places = self.lender.lend(ident, number, asked["had"], asked["need"], asked["back"]) if number else 0
        wanted = Wanted(**{name: asked[name] for name in Wanted._fields if name in asked})
        tokens, cost = self.lender.budget(ident, wanted, bool(number))
        return {"places": places, "tokens": tokens, "cost": cost}


class Host:
    """A machine whose job infers by itself: its own ledger, and the way to the origin's."""

    def __init__(self, tree: Ledger, parts: int = 4) -> None:
        self.ledger = Ledger.create(Limits(), share=True)
        self.wire = Wire(Lender(tree, 0, parts))
        self.borrower = Borrower(self.ledger, self.wire.ask, suppress)
        self.ledger.beyond = self.borrower
        self.holds: list[Any] = []
        self.used = 0  # by inferences that have ended

    def begin(self) -> None:
        self.borrower.begin()

    def reserve(self, prompt: int = PROMPT) -> bool:
        """Begin an inference, as quine/providers/metering.py does: borrow where too little is left."""
        while True:
            try:
                hold = self.ledger.try_reserve(0, prompt)
            except Spent:
                if not self.borrower.extend(self.ledger, prompt + 1000, 0.0):
                    return False
                continue
            if hold is None:
                return False
            self.holds.append((hold, prompt + hold.output))
            return True

    def settle(self, share: float) -> None:
        hold, most = self.holds.pop()
        tokens = int(most * share)
        self.ledger.settle(hold, tokens)
        self.used += tokens

    def kill(self) -> None:
        """The process of an inference is killed: it is charged as it was reserved."""
        hold, most = self.holds.pop()
        os.close(hold.fd)
        self.used += most

    def close(self) -> None:
        for hold, _ in self.holds:
            os.close(hold.fd)
        self.holds = []
        os.close(self.ledger.fd)


@pytest.fixture
def tree() -> Iterator[Ledger]:
    made = Ledger.create(Limits(tokens=CAP))
    yield made
    os.close(made.fd)


@pytest.fixture
def host(tree: Ledger) -> Iterator[Host]:
    made = Host(tree)
    made.begin()
    yield made
    made.wire.lender.close()
    made.close()


def spoken_for(tree: Ledger) -> int:
    """Tokens that nobody else can have: used, reserved or lent."""
    return tree.totals()[1] + sum(int(tokens) for tokens, _, _, _ in tree.book.records(INFER))


# -- any sequence of events --------------------------------------------------------------------------

fates = st.lists(st.sampled_from(["", "request", "answer"]), max_size=3)
numbers = st.integers(0, 2)


class Loans(RuleBasedStateMachine):
    """One origin and three hosts: inferences here and there, messages that are lost, late or double, jobs that end."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Ledger.create(Limits(tokens=CAP))
        self.hosts = [Host(self.tree) for _ in range(3)]
        for host in self.hosts:
            host.begin()
        self.used_before = 0  # by hosts whose jobs have ended, and here

    @rule(tokens=st.integers(1, CAP // 4))
    def infer_here(self, tokens: int) -> None:
        with contextlib.suppress(Spent):
            if hold := self.tree.try_reserve(0, PROMPT):
                used = min(tokens, PROMPT + hold.output)
                self.tree.settle(hold, used)
                self.used_before += used

    @rule(number=numbers, fate=fates, prompt=st.integers(1, CAP // 8))
    def begin_there(self, number: int, fate: list[str], prompt: int) -> None:
        host = self.hosts[number]
        host.wire.fates = list(fate)
        host.reserve(prompt)
        host.wire.fates = []

    @rule(number=numbers, share=st.floats(0, 1))
    def end_there(self, number: int, share: float) -> None:
        if self.hosts[number].holds:
            self.hosts[number].settle(share)

    @rule(number=numbers)
    def kill_there(self, number: int) -> None:
        if self.hosts[number].holds:
            self.hosts[number].kill()

    @rule(number=numbers, fate=fates)
    def report(self, number: int, fate: list[str]) -> None:
        host = self.hosts[number]
        host.wire.fates = list(fate)
        with contextlib.suppress(OSError):
            host.borrower.report()
        host.wire.fates = []

    @rule(number=numbers, late=st.integers(0, 20))
    def a_message_comes_late_or_twice(self, number: int, late: int) -> None:
        wire = self.hosts[number].wire
        for body in wire.bodies[late : late + 1]:
            if json.loads(body).get("ask"):
                with contextlib.suppress(RequestError):
                    wire.deliver(body)
                with pytest.raises(RequestError, match="was before"):
                    wire.deliver(body)
            else:
                wire.deliver(body)

    @rule(number=numbers)
    def the_job_ends(self, number: int) -> None:
        """All is given back, and what was used is counted, exactly."""
        host = self.hosts[number]
        while host.holds:
            host.settle(0.5)
        before, lent = spoken_for(self.tree), host.ledger.book.numbers().limit_tokens
        host.borrower.return_rest()
        host.wire.lender.close()
        self.used_before += host.used
        assert spoken_for(self.tree) <= before
        assert host.used <= max(lent, 1)
        assert not host.reserve(), "nothing can be spent after that"
        self._another(number)

    @rule(number=numbers)
    def the_host_is_gone(self, number: int) -> None:
        """Nothing comes back: the whole loan is charged, and so never less than was used."""
        host = self.hosts[number]
        before = spoken_for(self.tree)
        host.wire.lender.close()
        assert spoken_for(self.tree) == before
        self.used_before = self.tree.totals()[1] - sum(
            each.wire.lender._shares[ident].loan._used  # type: ignore[union-attr]
            for each in self.hosts
            if each is not host
            for ident in each.wire.lender._shares
            if each.wire.lender._shares[ident].loan
        )
        self._another(number)

    def _another(self, number: int) -> None:
        self.hosts[number].close()
        self.hosts[number] = Host(self.tree)
        self.hosts[number].begin()

    @invariant()
    def never_more_than_the_cap(self) -> None:
        assert spoken_for(self.tree) <= CAP
        reserved = sum(most for host in self.hosts for _, most in host.holds)
        assert self.used_before + sum(host.used for host in self.hosts) + reserved <= CAP

    def teardown(self) -> None:
        for host in self.hosts:
            while host.holds:
                host.settle(1.0)
            host.borrower.return_rest()
            host.wire.lender.close()
        # All has come back: the totals are what was used, and nothing is lent.
        assert self.tree.totals()[1] == spoken_for(self.tree)
        assert self.tree.totals()[1] == self.used_before + sum(host.used for host in self.hosts)
        for host in self.hosts:
            host.close()
        os.close(self.tree.fd)


Loans.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
TestLoans = Loans.TestCase


# -- one by one --------------------------------------------------------------------------------------


def test_a_loan_is_a_part_and_all_of_it_where_nobody_else_spends(tree: Ledger) -> None:
    one, alone = Host(tree, parts=4), Host(tree, parts=1)
    one.begin()
    assert one.ledger.mark.tokens == CAP // 4 and spoken_for(tree) == CAP // 4
    one.borrower.return_rest()
    assert spoken_for(tree) == 0
    alone.begin()
    assert alone.ledger.mark.tokens == CAP
    for host in (one, alone):
        host.wire.lender.close()
        host.close()


def test_more_is_borrowed_until_the_tree_has_none(tree: Ledger, host: Host) -> None:
    count = 0
    while host.reserve(PROMPT):
        host.settle(1.0)
        count += 1
    assert count > 4  # parts
    assert CAP - 2 * PROMPT < host.used <= CAP
    host.borrower.report()
    assert tree.totals()[1] == host.used


def test_others_that_reserve_what_was_lent_leave_more_to_borrow(tree: Ledger, host: Host) -> None:
    """Another process of the host is first with the room of a loan: the borrower asks again."""
    need, borrow = CAP // 3, host.borrower._borrow

    def overtaken(wanted: Wanted) -> bool:
        lent = borrow(wanted)
        if len(host.holds) < 1:
            host.holds.append((host.ledger.try_reserve(0, need - 300), need))
        return lent

    host.borrower._borrow = overtaken  # type: ignore[method-assign]
    assert host.borrower.extend(host.ledger, need, 0.0)
    left = host.ledger.left(surely=True).tokens
    assert left is not None and left >= need


def test_a_loan_whose_answer_was_lost_comes_back(tree: Ledger, host: Host) -> None:
    before = spoken_for(tree)
    host.wire.fates = ["answer"]
    assert not host.borrower.extend(host.ledger, CAP // 2, 0.0)
    assert spoken_for(tree) > before
    assert host.borrower.extend(host.ledger, CAP // 4 + 10, 0.0)
    assert spoken_for(tree) == host.ledger.mark.tokens


def test_no_loan_begins_without_a_number(tree: Ledger) -> None:
    lender = Lender(tree, 0)
    with pytest.raises(RequestError, match="no such loan"):
        lender.budget("a" * 32, Wanted(5), numbered=False)
    assert spoken_for(tree) == 0
    lender.close()


@pytest.mark.parametrize("limit", [0, 3])
def test_loans_are_no_more_than_machines_with_an_agent(tree: Ledger, limit: int) -> None:
    lender = Lender(tree, limit)
    most = MAX_LOANS
    if limit:
        assert lender.lend("0" * 32, 1, 0, 1, 0) == 1  # one place more than that of the proxy
        most = 2
    for number in range(most):
        ident = f"{number + 1:032x}"
        lender.lend(ident, 1, 0, 0, 0)
        lender.budget(ident, Wanted(begin=True), numbered=True)
    with pytest.raises(RequestError, match=f"more than {most} loans"):
        lender.budget("f" * 32, Wanted(begin=True), numbered=True)
    lender.close()
    assert spoken_for(tree) == tree.totals()[1]


@pytest.mark.parametrize("limits", [Limits(tokens=CAP), Limits(cost=1.0)], ids=["tokens", "dollars"])
def test_a_host_that_passes_its_loan_is_noted_once_and_charged_what_was_lent(limits: Limits) -> None:
    """A command there can raise the limit of its share: no broker there knows what was lent."""
    tree, notes = Ledger.create(limits), list[str]()
    lender, ident = Lender(tree, 0, 4, notes.append), "a" * 32
    lender.lend(ident, 1, 0, 0, 0)
    tokens, cost = lender.budget(ident, Wanted(begin=True), numbered=True)
    within = Wanted(tokens or 5, cost or 0.0)
    lender.budget(ident, within, numbered=False)
    assert notes == []
    beyond = Wanted(2 * within.tokens, 2 * within.cost, over=True)
    for number in (2, 3):
        lender.lend(ident, number, number - 1, 0, 0)
        with contextlib.suppress(RequestError):  # the loan has ended
            lender.budget(ident, beyond, numbered=True)
    told = "50000 tokens were used, and 25000 were lent"
    told = told if limits.tokens else "0.5000 US dollars were used, and 0.2500 were lent"
    assert notes == [f"ledger: the host has passed its loan: {told}"]
    assert tree.totals()[1:] == ((tokens, 0.0) if limits.tokens else (10, cost))
    lender.close()
    os.close(tree.fd)


def test_after_the_rest_was_given_back_nothing_is_lent(tree: Ledger, host: Host) -> None:
    host.borrower.return_rest()
    ident = host.ledger.book.numbers().ident.hex()
    with pytest.raises(RequestError, match="its loan has ended"):
        host.wire.lender.budget(ident, Wanted(lend=PROMPT), numbered=True)
    assert spoken_for(tree) == 0


def test_a_host_that_says_it_used_more_than_it_was_lent_is_charged_what_it_was_lent(
    tree: Ledger, host: Host
) -> None:
    body = {"ledger": host.ledger.book.numbers().ident.hex(), "loan": True, "tokens": 1 << 60, "cost": 1e12}
    host.wire.deliver(json.dumps(body).encode())
    assert tree.totals()[1] == host.ledger.mark.tokens == spoken_for(tree)


def test_what_was_told_once_is_not_taken_back(tree: Ledger, host: Host) -> None:
    ident = host.ledger.book.numbers().ident.hex()
    for tokens in (500, 20, 0):
        host.wire.deliver(json.dumps({"ledger": ident, "loan": True, "tokens": tokens, "cost": 0.0}).encode())
        assert tree.totals()[1] == 500


def test_idle_places_are_given_back_by_the_courier(tree: Ledger) -> None:
    """An agent that ends calls it, and does not wait for the origin."""
    host, calls = Host(tree), []
    agent = Borrower(
        host.ledger, lambda name, body: pytest.fail("it waits"), suppress, lambda: calls.append(1)
    )
    with host.ledger.book.changing() as facts:
        host.ledger.book.put(facts._replace(granted=3))
    agent.give_back()
    assert calls == [1]
    host.begin()
    host.borrower.report()
    assert host.ledger.book.numbers().granted == 1 and host.ledger.book.numbers().back == 2
    agent.give_back()
    assert calls == [1]
    host.wire.lender.close()
    host.close()


def test_a_limit_that_the_tree_has_no_more_holds_on_no_host() -> None:
    tree = Ledger.create(Limits(tokens=CAP, cost=1.0))
    host = Host(tree)
    host.begin()
    for taken in ({"limit_tokens": 0}, {"limit_cost": 0.0}):
        with tree.book.changing() as facts:
            tree.book.put(facts._replace(**taken))
        assert host.borrower.extend(host.ledger, CAP * 10, 0.5)
        assert host.ledger.left(surely=True).tokens is None
    assert host.borrower.extend(host.ledger, CAP * 10, 100.0)
    left = host.ledger.left(surely=True)
    assert (left.tokens, left.cost) == (None, None)
    host.wire.lender.close()
    host.close()
    os.close(tree.fd)


def test_a_loan_that_cannot_be_counted_is_charged(
    tree: Ledger, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a proxy that was killed: its slot is free, and all of it is used."""
    lent = host.ledger.mark.tokens
    lender = host.wire.lender

    def fails() -> Any:
        raise OSError("no lock")

    with monkeypatch.context() as broken:
        broken.setattr(lender._ledger.book, "changing", fails)
        lender.close()
    tree.collect()
    assert (tree.totals()[1], spoken_for(tree)) == (lent, lent)


@pytest.mark.parametrize("slots", [1, 2])
def test_a_loan_whose_proxy_was_killed_is_not_lent_again(tree: Ledger, slots: int) -> None:
    """Nobody has charged it yet: the next loan does, in its own slot or in another one."""
    hosts = [Host(tree, parts=1) for _ in range(slots + 1)]
    for host in hosts[:slots]:
        host.begin()
    for host in hosts[:slots]:
        (share,) = host.wire.lender._shares.values()
        assert share.loan
        os.close(share.loan._fd)
        share.loan._fd = -1
    hosts[-1].begin()
    assert hosts[-1].ledger.mark.tokens == 1, "nothing, since 0 would be no limit"
    assert tree.totals()[1] == spoken_for(tree) == CAP
    for host in hosts:
        host.wire.lender.close()
        host.close()
