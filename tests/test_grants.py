"""Places lent to other machines: asked for seldom, never two for one, and given back when somebody is refused."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quine import ledger
from quine.grants import WAKE, Grant, Lender
from quine.ledger import Ledger
from quine.life import Limits
from transport.errors import RequestError


class Wire:
    """Joins a share to its lender by function calls; what is posted is answered in a thread, which then wakes us."""

    def __init__(self, lender: Lender) -> None:
        self.lender = lender
        self.asks: list[dict[str, Any]] = []
        self.lose = False  # the next answer
        self.threads: list[threading.Thread] = []

    def ask(self, name: str, body: bytes) -> bytes:
        asked = json.loads(body)
        self.asks.append(asked)
        given = self.lender.lend(
            asked["ledger"], asked["ask"], asked["had"], asked["least"], asked["most"], asked["back"]
        )
        if self.lose:
            self.lose = False
            raise RequestError("lost")
        return json.dumps({"places": given}).encode()

    def post(self, name: str, body: bytes) -> Any:
        return Posted(self, json.loads(body))


class Posted:
    def __init__(self, wire: Wire, asked: dict[str, Any]) -> None:
        self.reply: bytes | None = None
        self.asked = asked
        thread = threading.Thread(target=self.work, args=(wire.lender,))
        wire.threads.append(thread)
        thread.start()

    def work(self, lender: Lender) -> None:
        asked = self.asked
        try:
            wanted = lender.watch(asked["ledger"], asked["back"], asked["heard"], asked["lost"])
        except RequestError:
            return
        self.reply = json.dumps({"wanted": wanted}).encode()
        os.kill(os.getpid(), WAKE)

    def answer(self) -> bytes | None:
        return self.reply

    def close(self) -> None:
        pass


class Tree:
    """A ledger, and shares of it."""

    def __init__(self, limit: int) -> None:
        self.limits = Limits(agents=limit)
        self.ledger = Ledger.create(self.limits)
        self.held: list[list[int]] = []
        self.made: list[tuple[Ledger, Wire, Grant]] = []
        self.take(self.ledger)

    def share(self) -> tuple[Ledger, Wire]:
        """A machine with its first agent, whose place the face has."""
        assert self.take(self.ledger)
        share = Ledger.create(self.limits, share=True)
        wire = Wire(Lender(self.ledger, self.limits.agents))
        grant = Grant(share, wire.ask, wire.post)
        share.beyond = grant
        self.made.append((share, wire, grant))
        assert self.take(share)
        return share, wire

    def take(self, ledger: Ledger, count: int = 1) -> list[int] | None:
        held = ledger.agents(self.limits.agents, count)
        if held:
            self.held.append(held)
        return held

    def end(self, held: list[int] | None) -> None:
        assert held
        self.held.remove(held)
        for fd in held:
            os.close(fd)

    def close(self) -> None:
        for share, wire, grant in self.made:
            grant.close()
            wire.lender.close()
            for thread in wire.threads:
                thread.join(10)
            os.close(share.fd)
        for fd in (fd for held in self.held for fd in held):
            os.close(fd)
        os.close(self.ledger.fd)


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Tree]]:
    # They give back at once, as far as the machine has time for them.
    monkeypatch.setattr(ledger, "RECALL", 30.0)
    made: list[Tree] = []
    before = signal.getsignal(WAKE)

    def make(limit: int) -> Tree:
        made.append(Tree(limit))
        return made[-1]

    yield make
    for one in made:
        one.close()
    signal.signal(WAKE, before)


Make = Callable[[int], Tree]


def test_ten_forks_ask_four_times_at_the_most(tree: Make) -> None:
    top = tree(64)
    share, wire = top.share()
    for _ in range(10):
        assert top.take(share)
    assert len(wire.asks) <= 4
    assert wire.lender.places() <= 12


def test_ten_at_once_ask_once(tree: Make) -> None:
    top = tree(64)
    share, wire = top.share()
    assert top.take(share, 10)
    assert len(wire.asks) == 1


def test_a_place_that_is_free_again_is_not_asked_for(tree: Make) -> None:
    top = tree(64)
    share, wire = top.share()
    for _ in range(10):
        top.end(top.take(share))
    assert len(wire.asks) == 1


def test_never_more_than_the_limit(tree: Make) -> None:
    top = tree(10)
    shares = [top.share()[0] for _ in range(3)]
    taken = 0
    while any(top.take(share) for share in shares):
        taken += 1
    assert taken == 10 - 4  # one here, and the first of each machine
    assert top.take(top.ledger) is None


def test_more_than_there_are_is_refused_and_takes_nothing(tree: Make) -> None:
    top = tree(10)
    share, wire = top.share()
    assert top.take(share, 9) is None
    assert wire.lender.places() == 1
    assert top.take(share, 8)
    assert top.take(share) is None


def test_what_lies_idle_comes_back_when_somebody_is_refused(tree: Make) -> None:
    top = tree(10)
    one, _ = top.share()
    other, _ = top.share()
    held = top.take(one, 7)
    assert top.take(other) is None
    top.end(held)
    assert top.take(other, 3)  # from the other machine
    assert top.take(top.ledger, 4)  # and here
    assert top.take(one) is None


def test_who_is_refused_keeps_nothing_from_others(tree: Make) -> None:
    top = tree(8)
    one, wire = top.share()
    other, _ = top.share()
    top.take(one, 2)
    held = top.take(one, 2)
    top.end(held)  # two lie idle
    assert top.take(one, 5) is None
    assert wire.lender.places() == 3
    assert top.take(other, 3)


def test_an_answer_that_is_lost_costs_no_place(tree: Make) -> None:
    top = tree(6)
    share, wire = top.share()
    wire.lose = True
    with pytest.raises(OSError, match="lost"):
        top.take(share, 4)
    assert wire.lender.places() == 5
    assert top.take(share, 3)
    assert wire.lender.places() == 4
    assert top.take(top.ledger, 1)


def test_what_was_given_to_the_dead_comes_back_when_it_is_wanted(tree: Make) -> None:
    top = tree(6)
    share, wire = top.share()
    assert top.take(share)
    wire.lose = True
    with pytest.raises(OSError, match="lost"):
        top.take(share, 3)
    assert top.take(top.ledger, 3)


def test_an_ask_that_comes_late_or_twice_gives_nothing(tree: Make) -> None:
    top = tree(10)
    share, wire = top.share()
    top.take(share, 2)
    with pytest.raises(RequestError, match="was before"):
        wire.lender.lend(wire.asks[0]["ledger"], 1, 0, 3, 3, 0)
    assert wire.lender.places() == 3
    wire.lender.lend(wire.asks[0]["ledger"], 2, 1, 0, 0, 1)
    wire.lender.lend(wire.asks[0]["ledger"], 3, 2, 0, 0, 1)  # a total, which says the same twice
    assert wire.lender.places() == 2


def test_a_machine_that_lies_has_what_it_was_lent_and_no_more(
    tree: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tree(6)
    monkeypatch.setattr(ledger, "RECALL", 0.5)  # for one that will not hear
    _, wire = top.share()
    lender = wire.lender
    assert lender.lend("0" * 32, 1, 0, 1, 1 << 20, 0) == 4
    assert lender.lend("0" * 32, 2, 1, 1, 1, 0) == 0
    assert lender.lend("0" * 32, 3, 1 << 40, 0, 0, 1 << 40) == 0  # gives back more than it has
    assert lender.places() == 1
    assert top.take(top.ledger, 4)
    for number in range(1, 64):
        lender.lend(f"{number:032x}", 1, 0, 0, 0, 0)
    with pytest.raises(RequestError, match="more than 64"):
        lender.lend(f"{99:032x}", 1, 0, 0, 0, 0)


def test_who_asks_when_the_job_has_ended_gets_nothing(tree: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler may have been about to ask the lender, or be waiting for the ledger, when its face closed that."""
    top = tree(10)
    share, wire = top.share()
    lend = top.ledger.lend

    def closed(*asked: int) -> list[int]:
        given = lend(*asked)
        wire.lender.close()
        return given

    monkeypatch.setattr(top.ledger, "lend", closed)
    with pytest.raises(OSError, match="nobody waits"):
        top.take(share, 4)
    with pytest.raises(RequestError, match="has ended"):
        wire.lender.lend("0" * 32, 1, 0, 1, 4, 0)
    with pytest.raises(RequestError, match="has ended"):
        wire.lender.watch("0" * 32, 0, 0, 0)
    assert top.take(top.ledger, 8)


def test_a_limit_of_ones_own_is_not_asked_about(tree: Make) -> None:
    top = tree(20)
    share, wire = top.share()
    assert share.agents(1, 1) is None
    assert share.agents(3, 3) is None
    assert not wire.asks


def test_not_more_inferences_at_one_time_than_places(tree: Make) -> None:
    top = tree(20)
    share, wire = top.share()
    begun, go = threading.Semaphore(0), threading.Event()

    def infer() -> None:
        with wire.lender.inferring():
            begun.release()
            go.wait(120)

    threads = [threading.Thread(target=infer) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=120)
    assert not begun.acquire(blocking=False)
    assert top.take(share)
    assert begun.acquire(timeout=120)
    go.set()
    for thread in threads:
        thread.join(20)


def test_the_watcher_that_ends_leaves_nothing_idle(tree: Make) -> None:
    top = tree(20)
    share, wire = top.share()
    top.end(top.take(share, 5))
    assert wire.lender.places() == 6
    assert share.beyond
    share.beyond.finish()
    assert wire.lender.places() == 1
