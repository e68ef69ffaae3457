"""Payments by an event loop: a reservation and a settlement whose callers are cancelled while the thread works."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from quine.base.messages import Remaining
from quine.broker.payment import Payments
from quine.budget import shared_counters
from quine.budget.shared_counters import INFER, MUTEX, lock
from quine.providers.metering import Due
from tests.broker.inferring import ledger, run

DUE = Due(1000, None, Remaining(), True)


def test_a_reservation_whose_caller_was_cancelled_is_given_back() -> None:
    async def work() -> None:
        payments = Payments()
        with paid.book.changing():  # the thread of the reservation waits for this lock
            task = asyncio.ensure_future(payments.reserve(paid, 4, DUE))
            while not paid.book.count(INFER):
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await payments.close()

    with ledger(tokens=100_000) as paid:
        run(work())
        assert paid.book.count(INFER) == 0
        assert paid.left() == (100_000, None) and paid.totals()[1] == 0


def test_a_settlement_is_finished_though_its_caller_was_cancelled() -> None:
    async def work() -> None:
        payments = Payments()
        hold = await payments.reserve(paid, 4, DUE)
        with paid.book.changing():
            task = asyncio.ensure_future(payments.settle(paid, hold, 700, 0.0))
            await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await payments.close()

    with ledger(tokens=100_000) as paid:
        run(work())
        assert paid.book.count(INFER) == 0
        assert paid.left() == (100_000 - 700, None) and paid.totals()[1] == 700


def test_the_first_to_ask_is_the_first_to_be_served() -> None:
    order: list[int] = []

    async def work() -> None:
        payments = Payments()

        async def one(number: int) -> None:
            hold = await payments.reserve(paid, 1, DUE)
            order.append(number)
            await payments.settle(paid, hold, 1, 0.0)

        await asyncio.gather(*(one(number) for number in range(10)))
        await payments.close()

    with ledger(tokens=100_000) as paid:
        run(work())
    assert order == list(range(10))


def test_a_ledger_that_takes_its_time_makes_nobody_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command can lock ten thousands of its bytes, each alone, and the kernel looks at all of them with each call."""
    threads: set[threading.Thread] = set()

    def locking(*arguments: Any) -> bool:
        threads.add(threading.current_thread())
        return lock(*arguments)

    async def work() -> None:
        payments = Payments()
        hold = await payments.reserve(paid, 4, DUE)
        await payments.settle(paid, hold, 1, 0.0)
        hold = await payments.reserve(paid, 4, DUE)
        with open(paid.book.again(), "rb") as held:
            assert lock(held.fileno(), MUTEX.first)
            task = asyncio.ensure_future(payments.settle(paid, hold, 700, 0.0))
            await asyncio.sleep(0)  # the loop goes on
            assert not task.done()
        left, surely = await task
        assert left == surely == (100_000 - 701, None)
        await payments.close()

    with ledger(tokens=100_000) as paid:
        monkeypatch.setattr(shared_counters, "lock", locking)
        run(work())
        assert paid.book.count(INFER) == 0 and paid.totals()[1] == 701
    assert threads and threading.main_thread() not in threads
