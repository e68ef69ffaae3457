"""Answers that break off are paid: a provider counts what it has read and said, whatever becomes of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from unittest import mock

import pytest

from quine.base.messages import GuestError, unheard
from quine.providers import metering
from quine.providers.http import HttpGuest
from tests.broker.inferring import inferences, ledger, payer, request, run
from tests.vendors import chat
from tests.vendors.server import Cut, Fault, Provider, Raw, Said, Seen, Turn, Whole

LONG = Said("long work", usage=(40_000, 5_000, 0))
PROMPT = metering.TOOLS + 1
LIMIT = 100_000


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quine.providers.http.FIRST_PAUSE", 0.001)


class Telling:
    """A vendor that tells its usage with each event."""

    check, error, reply_json = chat.check, chat.error, chat.reply_json

    @staticmethod
    def reply_events(said: Said) -> Any:
        for name, data in chat.reply_events(said):
            yield name, data if data == "[DONE]" else {**data, "usage": chat._usage(said)}


def asked(provider: Provider, paying: Any, count: int = 1, known: int = 0) -> list[Any]:
    async def work() -> list[Any]:
        notes: list[str] = []
        async with inferences() as made:
            return [
                json.loads(await made.infer(payer(provider, paying), request(known=known), notes.append))
                for _ in range(count)
            ]

    found: list[Any] = run(work())
    return found


def test_a_budget_is_never_passed_by_answers_that_break_off() -> None:
    """Six answers of 45,000 tokens each passed a limit of 100,000, of which none was charged."""
    told = 0

    def choose(seen: Seen) -> Turn:
        nonlocal told
        told += 45_000
        return Cut(LONG, 3) if told // 45_000 % 2 else LONG

    with Provider(Telling, choose=choose) as provider, ledger(tokens=LIMIT) as paid:
        ends = asked(provider, paid, 8, known=40_000)
        used = paid.totals()[1]
    assert used == told <= LIMIT
    assert ends[-1]["error"] == "spent" and ends[-1]["option"] == "--max-tokens"


def test_what_was_not_told_is_charged_by_estimate() -> None:
    with (
        Provider(chat, Cut(LONG, 3), Said("hi", usage=(100, 10, 0))) as provider,
        ledger(tokens=LIMIT) as paid,
    ):
        (answer,) = asked(provider, paid)
        assert answer["message"]["content"] == "hi"
        assert paid.totals()[1] == PROMPT + 110


def test_the_last_try_is_charged_too() -> None:
    with Provider(Telling, *[Cut(LONG, 3)] * 4) as provider, ledger(tokens=10 * LIMIT) as paid:
        (answer,) = asked(provider, paid)
        assert answer["error"] == "unavailable"
        assert paid.totals()[1] == 4 * 45_000


@pytest.mark.parametrize(
    "turn",
    [Fault(500, "server"), Raw(200, b"<html>login</html>", "text/html"), Raw(200, b"{}"), Cut(LONG, 0)],
)
def test_what_never_began_costs_nothing(turn: Turn) -> None:
    tries = 1 if isinstance(turn, Raw) and b"html" in turn.body else 4
    with Provider(chat, *[turn] * tries) as provider, ledger(tokens=LIMIT) as paid:
        (answer,) = asked(provider, paid)
        assert answer["error"] in ("unavailable", "refused")
        assert paid.totals()[1] == 0 and paid.left() == (LIMIT, None)


def test_who_hangs_up_in_the_pause_pays_for_the_answer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was paid before the next try alone, and a caller that went before that had it for nothing."""
    monkeypatch.setattr("quine.providers.http.FIRST_PAUSE", 1000.0)
    monkeypatch.setattr("quine.providers.http.LONGEST_PAUSE", 1000.0)

    async def work() -> None:
        pauses = asyncio.Event()
        async with inferences() as made:
            asking = made.infer(payer(provider, paid), request(), lambda text: pauses.set())
            task = asyncio.ensure_future(asking)
            await pauses.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with Provider(Telling, Cut(LONG, 3)) as provider, ledger(tokens=LIMIT) as paid:
        run(work())
        assert paid.totals()[1] == 45_000 and paid.left() == (LIMIT - 45_000, None)


def test_an_answer_that_is_no_stream_was_made_before_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its provider has told nothing yet: it is charged as much as it may have."""

    async def work() -> int:
        comes = asyncio.Event()

        async def whole(*_: object) -> bytes:
            comes.set()
            await asyncio.Event().wait()
            return b""

        monkeypatch.setattr(HttpGuest, "_whole", whole)
        monkeypatch.setattr(HttpGuest, "get", mock.AsyncMock(side_effect=GuestError("not asked here")))
        async with inferences() as made:
            task = asyncio.ensure_future(made.infer(payer(provider, paid), request(), unheard))
            await comes.wait()
            reserved = LIMIT - (paid.left().tokens or 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return reserved

    with Provider(chat, Whole(LONG)) as provider, ledger(tokens=LIMIT) as paid:
        reserved = run(work())
        assert PROMPT < reserved == paid.totals()[1]
