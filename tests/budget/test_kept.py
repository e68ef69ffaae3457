"""Counters that a hostile command rewrites: the process that pays believes nothing that would let it pay more."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from quine.base.messages import Remaining, Spent
from quine.budget import purse
from quine.budget.kept_counters import KeptCounters
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.budget.loans import Loan, Wanted
from quine.budget.shared_counters import _HEADER, COUNTS, INFER, MOST, SharedCounters

LIMIT = 4000


class Payer:
    """The broker's side of a ledger, and the file as a command of the tree sees it."""

    def __init__(self, **limits: Any) -> None:
        self.file = Ledger.create(Limits(tokens=LIMIT, **limits)).book
        self.saved: list[dict[str, Any]] = []
        self.ledger = Ledger(KeptCounters(self.file.fd, self.saved.append))

    def next_worker(self) -> None:
        """Have another process keep what this one has kept: it was killed, and with it the locks of its slots."""
        state = self.saved[-1]
        state["numbers"]["ident"] = bytes.fromhex(state["numbers"]["ident"])
        self.ledger = Ledger(KeptCounters(self.file.fd, self.saved.append, state))

    def rewrite(self, **numbers: Any) -> None:
        with self.file.changing() as facts:
            self.file.put(facts._replace(**numbers))

    def rewrite_header(self, **numbers: Any) -> None:
        """Rewrite numbers with no lock held, and without what a change of them does first."""
        fd = self.file.again()
        os.pwrite(fd, _HEADER.pack(*self.file.numbers()._replace(**numbers)), 0)
        os.close(fd)

    def wipe_records(self) -> None:
        with self.file.changing():
            for index in range(4):
                self.file.note(INFER, self.file._writer, index, 0, 0.0, 0, 0.0)


@pytest.fixture
def payer() -> Iterator[Payer]:
    made = Payer()
    yield made
    os.close(made.file.fd)


def test_a_limit_that_was_raised_and_a_total_that_was_lowered(payer: Payer) -> None:
    payer.ledger.settle(payer.ledger.reserve(0, 1000), 3500)
    payer.rewrite(limit_tokens=0, tokens=0, agents=0, ident=b"x" * 16, granted=9)
    assert payer.ledger.left() == Remaining(500, None)
    with pytest.raises(Spent, match="3500 of 4000 tokens are used"):
        payer.ledger.reserve(0, 1000)
    payer.rewrite(limit_tokens=3600, tokens=3550)
    assert payer.ledger.left() == Remaining(50, None)  # a narrower limit is believed


def test_a_reservation_whose_record_was_wiped(payer: Payer) -> None:
    first = payer.ledger.reserve(0, 1000)
    assert first.output == 3000
    payer.wipe_records()
    payer.rewrite(paid=first.index + 1)
    assert payer.ledger.try_reserve(0, 1000) is None
    payer.ledger.settle(first, 1100)
    assert payer.ledger.left() == Remaining(2900, None)


@pytest.mark.parametrize("wiped", [False, True], ids=["as it was", "wiped"])
def test_what_a_killed_process_had_reserved_is_charged_once(payer: Payer, wiped: bool) -> None:
    payer.ledger.settle(payer.ledger.reserve(0, 100), 500)
    os.close(payer.ledger.reserve(0, 1000, within=Remaining(2000)).fd)
    if wiped:
        payer.wipe_records()
        payer.rewrite(tokens=0, limit_tokens=0)
    payer.next_worker()
    payer.ledger.collect()
    assert payer.ledger.totals()[1] == 2500
    payer.next_worker()
    payer.ledger.collect()
    assert payer.ledger.totals()[1] == 2500


@pytest.mark.parametrize("paid", [False, True], ids=["locked", "locked and called paid"])
def test_a_lock_on_the_slot_of_a_killed_process_keeps_no_reservation_from_the_bill(
    payer: Payer, paid: bool
) -> None:
    """Any process can lock the slot once its holder is dead, wipe the record meanwhile, and let go."""
    payer.ledger.settle(payer.ledger.reserve(0, 100), 500)
    killed = payer.ledger.reserve(0, 1000, within=Remaining(2000))
    os.close(killed.fd)
    lock, index = payer.file.slot(INFER, 1)
    assert index == killed.index
    if paid:
        payer.rewrite_header(paid=index + 1)
    payer.next_worker()
    payer.ledger.collect()
    assert payer.ledger.totals()[1] == 2500
    payer.wipe_records()
    os.close(lock)
    payer.ledger.collect()
    assert payer.ledger.totals()[1] == 2500 and payer.ledger.left() == Remaining(1500, None)


def test_a_reservation_of_a_killed_process_comes_on_top_of_what_others_have_paid_since(payer: Payer) -> None:
    os.close(payer.ledger.reserve(0, 1000, within=Remaining(2000)).fd)
    payer.rewrite(tokens=700)
    payer.next_worker()
    payer.ledger.collect()
    assert payer.ledger.totals()[1] == 2700
    payer.next_worker()
    payer.ledger.collect()
    assert payer.ledger.totals()[1] == 2700


def price(prompt: int, reply: int) -> float:
    return (prompt + reply) / 1e4


@pytest.mark.parametrize("false", [-3e38, math.nan, math.inf])
def test_an_amount_below_zero_or_not_finite_lifts_no_limit(false: float) -> None:
    payer = Payer(cost=1.0)
    payer.ledger.settle(payer.ledger.reserve(0, 100, price), 100, 1.0)
    fd, index = payer.file.slot(INFER, INFER.most)
    payer.file.note(INFER, fd, index, 0, false, 0, false)
    payer.rewrite(cost=false, limit_cost=false, deadline=false)
    try:
        with pytest.raises(Spent, match=r"1.0000 of 1.0000 US dollars are used"):
            payer.ledger.reserve(0, 100, price)
        assert payer.ledger.left().cost == 0
        loan = Loan(payer.ledger, 1)
        assert loan.lend(Wanted(money=0.1))[1] == 0
        loan.close()
        assert payer.ledger.time_left() is None
    finally:
        os.close(fd)
    payer.ledger.collect()  # charges the record
    assert payer.ledger.totals()[1:] == (100, 1.0)
    os.close(payer.file.fd)


def test_what_the_next_reply_needs_is_told_of_money_too() -> None:
    payer = Payer(cost=0.01)
    try:
        payer.ledger.settle(payer.ledger.reserve(0, 1, lambda prompt, reply: 0.001), 100, 0.0027)
        with pytest.raises(
            Spent, match=r"0.0027 of 0.0100 US dollars are used, and the next reply needs about 0.3256"
        ):
            payer.ledger.reserve(0, 3000, price)
    finally:
        os.close(payer.file.fd)


def test_a_count_without_room_for_more_is_paid_as_any_other(payer: Payer) -> None:
    """It could not be packed, and each inference of the tree was a line in the log of the broker."""
    full = (1 << 64) - 1
    payer.rewrite(limit_tokens=0, **dict.fromkeys((*COUNTS, "paid"), full))
    for _ in range(2):
        payer.ledger.settle(payer.ledger.reserve(0, 1000), 3500)
        assert MOST <= payer.ledger.totals()[1] < full


def test_the_amounts_of_a_purse_are_finite_and_not_below_zero_and_its_counts_have_room(payer: Payer) -> None:
    fd = purse.create(payer.file, "a", "true", (0, 1.0, 10.0), (0, 0))
    try:
        made = purse.read(fd)
        assert made
        wrong = made._replace(
            since=math.nan, cost=-1.0, deadline=math.inf, cost_before=-math.inf, raised=(1 << 64) - 1
        )
        with open(f"/proc/self/fd/{fd}", "r+b") as file:
            purse.write(file.fileno(), wrong)
        found = purse.read(fd)
        assert found == made._replace(since=0.0, cost=0.0, deadline=0.0, cost_before=0.0, raised=MOST)
    finally:
        os.close(fd)


def test_the_limit_of_a_share_is_what_was_lent() -> None:
    share = Ledger.create(Limits(agents=2), share=True)
    ledger = Ledger(KeptCounters(share.fd))
    try:
        for lent in (1000, 5000):
            with share.book.changing() as facts:
                share.book.put(facts._replace(limit_tokens=lent))
            assert ledger.left() == Remaining(lent, None)
    finally:
        os.close(share.fd)


def test_a_write_that_fails_gains_nothing(payer: Payer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can limit the size of files for the process that pays, and wipe a record that is not kept there."""
    full = OSError(errno.EFBIG, "File too large")
    hold = payer.ledger.reserve(0, 1000, within=Remaining(2000))
    with monkeypatch.context() as limited, pytest.raises(OSError):
        limited.setattr(SharedCounters, "put", mock.Mock(side_effect=full))
        payer.ledger.settle(hold, 1900)
    payer.wipe_records()
    payer.ledger.collect()
    assert payer.ledger.totals()[1] == 2000
    payer.saved.clear()
    payer.rewrite(tokens=3000)
    with monkeypatch.context() as limited, pytest.raises(OSError):
        limited.setattr(payer.ledger.book, "_save", mock.Mock(side_effect=full))
        payer.ledger.collect()
    payer.ledger.collect()
    assert payer.saved[-1]["numbers"]["tokens"] == 3000


def test_a_save_that_fails_charges_nothing_twice(payer: Payer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The totals have a payment already when the room for it is full; an inference that is not begun costs nothing."""
    hold = payer.ledger.reserve(0, 1000)
    failing = mock.Mock(side_effect=OSError(errno.ENOSPC, "no room"))
    with monkeypatch.context() as full:
        full.setattr(payer.ledger.book, "_save", failing)
        with pytest.raises(OSError):
            payer.ledger.settle(hold, 1200)
    payer.rewrite(tokens=0)  # by a command, as long as the totals are saved nowhere else
    assert payer.ledger.left() == Remaining(LIMIT - 1200, None)
    with monkeypatch.context() as full:
        full.setattr(payer.ledger.book, "_save", failing)
        with pytest.raises(OSError):
            payer.ledger.reserve(0, 1000)
    assert payer.ledger.left() == Remaining(LIMIT - 1200, None)
    payer.next_worker()
    assert payer.ledger.left() == Remaining(LIMIT - 1200, None)


def test_a_payment_that_is_half_done_is_kept(payer: Payer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The totals are written, and the record of the reservation cannot be cleared."""
    hold = payer.ledger.reserve(0, 1000)
    with monkeypatch.context() as failing, pytest.raises(OSError):
        failing.setattr(SharedCounters, "note", mock.Mock(side_effect=OSError(errno.EFBIG, "File too large")))
        payer.ledger.settle(hold, 1200)
    payer.rewrite(tokens=0)
    assert payer.ledger.left() == Remaining(LIMIT - 1200, None)
