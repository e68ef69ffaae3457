"""Places lent to other machines: asked for as needed, never two for one, given back as soon as they lie idle."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quine.budget.leases import MAX_SHARES, Grant, Lender
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.budget.shared_counters import AGENT
from transport.errors import RequestError


class Wire:
    """Joins a share to its lender by function calls."""

    def __init__(self, lender: Lender) -> None:
        self.lender = lender
        self.bodies: list[bytes] = []
        self.fates: list[str] = []  # of the next messages: "request" or "answer" is what is lost
        self.meanwhile: list[Callable[[], object]] = []  # done while the next message is on its way

    @property
    def asks(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    def ask(self, name: str, body: bytes) -> bytes:
        while self.meanwhile:
            self.meanwhile.pop()()
        fate = self.fates.pop(0) if self.fates else ""
        self.bodies.append(body)
        if fate == "request":
            raise RequestError("lost")
        places = self.deliver(body)
        if fate == "answer":
            raise RequestError("lost")
        return json.dumps({"places": places}).encode()

    def deliver(self, body: bytes) -> int:
        asked = json.loads(body)
        return self.lender.lend(asked["ledger"], asked["ask"], asked["had"], asked["need"], asked["back"])


class Share:
    """A machine with its first agent, whose place the proxy of its job has at the origin."""

    def __init__(self, tree: Ledger, limits: Limits) -> None:
        proxy = tree.take(limits.agents, 1)
        assert proxy
        self.proxy = proxy
        self.ledger = Ledger.create(limits, share=True)
        self.wire = Wire(Lender(tree, limits.agents))
        self.grant = Grant(self.ledger, self.wire.ask)
        self.ledger.beyond = self.grant
        first = self.ledger.agents(limits.agents)
        assert first
        self.agents = first

    def fork(self, limit: int, count: int = 1) -> bool:
        held = self.ledger.agents(limit, count)
        self.agents += held or []
        return held is not None

    def kill(self) -> None:
        """The last agent but the first; nothing tells of that."""
        os.close(self.agents.pop())

    def end(self) -> None:
        self.kill()
        self.grant.give_back()

    def close(self) -> None:
        """The job and its proxy end."""
        self.wire.lender.close()
        for fd in (*self.agents, *self.proxy, self.ledger.fd):
            os.close(fd)
        self.agents, self.proxy = [], []


class Tree:
    """A ledger, and shares of it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.limits = Limits(agents=limit)
        self.ledger = Ledger.create(self.limits)
        self.agents = self.ledger.agents(limit) or []
        self.shares: list[Share] = []

    def share(self) -> Share:
        self.shares.append(Share(self.ledger, self.limits))
        return self.shares[-1]

    def fork(self, count: int = 1) -> bool:
        held = self.ledger.agents(self.limit, count)
        self.agents += held or []
        return held is not None

    @property
    def counted(self) -> int:
        return self.ledger.book.count(AGENT)

    def close(self) -> None:
        for share in self.shares:
            share.close()
        for fd in (*self.agents, self.ledger.fd):
            os.close(fd)


@pytest.fixture
def tree() -> Iterator[Callable[[int], Tree]]:
    made: list[Tree] = []

    def make(limit: int) -> Tree:
        made.append(Tree(limit))
        return made[-1]

    yield make
    for one in made:
        one.close()


Make = Callable[[int], Tree]


# -- any sequence of events --------------------------------------------------------------------------


LIMIT = 7
fates = st.lists(st.sampled_from(["", "request", "answer"]), max_size=3)
numbers = st.integers(0, 2)


class Places(RuleBasedStateMachine):
    """One origin, three machines: agents begin, end, are killed; messages are lost, late or double; jobs end."""

    def __init__(self) -> None:
        super().__init__()
        self.tree = Tree(LIMIT)
        for _ in range(3):
            self.tree.share()

    @property
    def alive(self) -> int:
        return len(self.tree.agents) + sum(len(share.agents) for share in self.tree.shares)

    @rule(count=st.integers(1, 4))
    def fork_here(self, count: int) -> None:
        free = LIMIT - self.tree.counted
        assert self.tree.fork(count) == (count <= free)

    @rule(number=numbers, count=st.integers(1, 4), fate=fates, leaves=st.booleans())
    def fork_there(self, number: int, count: int, fate: list[str], leaves: bool) -> None:
        share = self.tree.shares[number]
        if leaves and len(share.agents) > 1:
            share.wire.meanwhile.append(share.end)
        share.wire.fates = fate
        free, alive = LIMIT - self.tree.counted, len(share.agents)
        with contextlib.suppress(OSError):
            if not share.fork(LIMIT, count) and not fate:
                assert count > free or alive + count > LIMIT
        share.wire.meanwhile, share.wire.fates = [], []

    @precondition(lambda self: len(self.tree.agents) > 1)
    @rule()
    def end_here(self) -> None:
        os.close(self.tree.agents.pop())

    @rule(number=numbers, how=st.sampled_from(["end", "kill"]), fate=fates)
    def end_there(self, number: int, how: str, fate: list[str]) -> None:
        share = self.tree.shares[number]
        if len(share.agents) > 1:
            share.wire.fates = fate
            getattr(share, how)()
            share.wire.fates = []

    @rule(number=numbers, late=st.integers(0, 10))
    def a_message_comes_late_or_twice(self, number: int, late: int) -> None:
        wire = self.tree.shares[number].wire
        for body in wire.bodies[late : late + 1]:
            before = self.tree.counted
            try:
                wire.deliver(
                    body
                )  # possible where nothing that was sent later has come: then it is only late
            except RequestError:
                assert self.tree.counted == before
            with pytest.raises(RequestError, match="was before"):
                wire.deliver(body)

    @rule(number=numbers)
    def the_job_is_lost_and_tried_again(self, number: int) -> None:
        lost = self.tree.shares[number]
        before, theirs = self.tree.counted, lost.wire.lender.places()
        lost.close()
        assert self.tree.counted == before - theirs
        self.tree.shares[number] = Share(self.tree.ledger, self.tree.limits)

    @rule()
    def each_takes_a_step(self) -> None:
        """After that nothing lies idle anywhere, so whatever is free can be had, and all of it."""
        for share in self.tree.shares:
            share.grant.give_back()
        assert self.tree.counted == self.alive
        free = LIMIT - self.alive
        held = self.tree.ledger.agents(LIMIT, free)
        assert held is not None
        assert self.tree.ledger.agents(LIMIT) is None
        for fd in held:
            os.close(fd)

    @invariant()
    def never_more_than_the_limit(self) -> None:
        assert self.alive <= self.tree.counted <= LIMIT
        for share in self.tree.shares:
            assert len(share.agents) <= share.wire.lender.places()

    def teardown(self) -> None:
        self.each_takes_a_step()
        self.tree.close()


Places.TestCase.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
TestPlaces = Places.TestCase


def test_never_more_than_the_limit_when_all_fork_and_end_at_once(tree: Make) -> None:
    """Three machines with three agents each, which begin and end others without regard to each other."""
    top, lock = tree(9), threading.Lock()
    shares = [top.share() for _ in range(3)]
    alive, most, had = 4, 4, 0  # the root and the first of each machine

    def work(share: Share) -> None:
        nonlocal alive, most, had
        for _ in range(15):
            held = share.ledger.agents(9, 2)
            if held is None:
                continue
            with lock:
                alive, had = alive + 2, had + 1
                most = max(most, alive)
            with lock:
                alive -= 2
            for fd in held:
                os.close(fd)
            share.grant.give_back()

    threads = [threading.Thread(target=work, args=(share,)) for share in shares for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert had
    assert most <= 9
    assert top.counted == 4  # each has given back what it had, without another step


# -- one by one --------------------------------------------------------------------------------------


def test_a_fork_asks_once_for_what_it_needs(tree: Make) -> None:
    top = tree(64)
    share = top.share()
    assert share.fork(64, 10)
    assert [ask["need"] for ask in share.wire.asks] == [10]
    assert share.wire.lender.places() == 11


def test_a_place_goes_back_with_the_end_of_its_agent(tree: Make) -> None:
    top = tree(3)
    one, other = top.share(), top.share()
    assert not one.fork(3)
    os.close(top.agents.pop())
    assert one.fork(3)
    assert not other.fork(3)
    one.end()
    assert other.fork(3)


def test_the_place_of_a_killed_agent_goes_back_with_the_next_step_of_another(tree: Make) -> None:
    top = tree(4)
    share = top.share()
    assert share.fork(4, 2)
    share.kill()
    assert not top.fork()
    share.grant.give_back()
    assert top.fork()
    assert not top.fork()


def test_an_agent_that_ends_while_another_one_asks_does_not_wait_for_it(tree: Make) -> None:
    """The one that asks finds what has become idle, and gives it back."""
    top = tree(10)
    share = top.share()
    assert share.fork(10, 3)
    before = len(share.wire.asks)
    messages: list[int] = []
    share.wire.meanwhile = [lambda: (share.end(), messages.append(len(share.wire.asks)))]
    assert share.fork(10)
    assert messages == [before]  # it sent none itself
    assert top.counted == 1 + len(share.agents) == share.wire.lender.places() + 1


def test_an_agent_that_ends_while_another_one_gives_back_does_not_wait_for_it(tree: Make) -> None:
    top = tree(10)
    share = top.share()
    assert share.fork(10, 3)
    share.wire.meanwhile = [share.end]
    share.end()
    assert top.counted == 1 + len(share.agents)


def test_a_refused_fork_keeps_nothing_from_others(tree: Make) -> None:
    top = tree(8)
    share = top.share()
    assert share.fork(8, 2)
    share.kill()
    assert not share.fork(8, 7)
    assert top.counted == 3
    assert top.fork(5)


def test_an_answer_that_is_lost_costs_no_place(tree: Make) -> None:
    top = tree(6)
    share = top.share()
    share.wire.fates = ["answer"]
    with pytest.raises(OSError, match="lost"):
        share.fork(6, 4)
    assert share.wire.lender.places() == 5
    share.grant.give_back()
    assert share.wire.lender.places() == 1
    assert top.fork(4)


def test_a_machine_that_lies_has_what_it_was_lent_and_no_more(tree: Make) -> None:
    top = tree(6)
    lender = top.share().wire.lender
    assert lender.lend("0" * 32, 1, 0, 1 << 20, 0) == 0
    assert lender.lend("0" * 32, 2, 1, 4, 0) == 4
    assert lender.lend("0" * 32, 3, 2, 1, 0) == 0
    assert lender.lend("0" * 32, 4, 1 << 40, 0, 1 << 40) == 0  # gives back more than it has
    assert lender.places() == 1
    assert top.fork(4)
    for number in range(1, MAX_SHARES):
        lender.lend(f"{number:032x}", 1, 0, 0, 0)
    with pytest.raises(RequestError, match=f"more than {MAX_SHARES}"):
        lender.lend(f"{MAX_SHARES:032x}", 1, 0, 0, 0)


def test_a_job_that_has_ended_holds_nothing_and_gets_nothing(tree: Make) -> None:
    top = tree(10)
    share = top.share()
    assert share.fork(10, 5)
    share.wire.lender.close()
    assert top.counted == 2
    with pytest.raises(OSError, match="has ended"):
        share.fork(10)
    with pytest.raises(RequestError, match="has ended"), share.wire.lender.inferring():
        pass


def test_a_machine_below_another_one_that_has_ended_holds_nothing_and_gets_nothing(tree: Make) -> None:
    top = tree(10)
    lender = top.share().wire.lender
    assert lender.lend("0" * 32, 1, 0, 3, 0) == 3
    assert lender.lend("1" * 32, 1, 0, 2, 0) == 2
    lender.end("0" * 32)
    assert lender.places() == 3
    with pytest.raises(RequestError, match="was before"):
        lender.lend("0" * 32, 2, 1, 1, 0)
    assert lender.lend("1" * 32, 2, 1, 1, 0) == 1


def test_a_limit_of_ones_own_is_not_asked_about(tree: Make) -> None:
    top = tree(20)
    share = top.share()
    assert not share.fork(1)
    assert not share.fork(3, 3)
    assert not share.wire.asks


def most_at_once(lender: Lender, count: int) -> int:
    """How many of so many threads were in an inference at one time."""
    lock, inside, most = threading.Lock(), 0, 0

    def infer() -> None:
        nonlocal inside, most
        for _ in range(5):
            with lender.inferring():
                with lock:
                    inside += 1
                    most = max(most, inside)
                os.sched_yield()
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=infer) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return most


def test_not_more_inferences_at_one_time_than_places(tree: Make) -> None:
    top = tree(20)
    share = top.share()
    lender = share.wire.lender
    assert most_at_once(lender, 4) == 1
    assert share.fork(20)
    with lender.inferring(), lender.inferring():
        waiting = threading.Thread(target=most_at_once, args=(lender, 1))
        waiting.start()
        assert share.fork(20)  # which makes room for a third
        waiting.join(60)
        assert not waiting.is_alive()
    assert most_at_once(lender, 8) <= 3


def test_the_inference_of_a_killed_agent_keeps_no_other_from_inferring(tree: Make) -> None:
    """It goes on at the origin, where nobody hears that nobody waits for it; the place has come back."""
    top = tree(20)
    share = top.share()
    assert share.fork(20)
    with share.wire.lender.inferring():
        share.end()
        assert share.wire.lender.places() == 1
        assert most_at_once(share.wire.lender, 1) == 1
