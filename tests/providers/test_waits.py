"""Waits for a provider: the notes that tell of them are read again, and a batch counts the agents that wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quine.base.messages import Message, Request
from quine.broker import turns
from quine.broker.turns import Passage
from quine.providers import http
from quine.providers.dialects.chat import ChatDialect
from quine.providers.http import HttpGuest
from quine.providers.way import GOES_ON, Wait
from quine.remote.waits import Waits
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said

WAITS = [
    Wait("Rate limit: 3 of 5", 12.5, number="2 of 6"),
    Wait("no quota", quota=True),
    Wait("no quota: none in 3.0 s", 300.0, quota=True),
    Wait("others are before it"),
]


@pytest.mark.parametrize("wait", WAITS)
def test_a_note_of_a_wait_is_read_as_it_was_written(wait: Wait) -> None:
    assert Wait.read(wait.note) == wait


@pytest.mark.parametrize(
    "note", ["", GOES_ON, "the arguments of sh were repaired: x", "try it: x", "paused", "a: b"]
)
def test_another_note_is_no_wait(note: str) -> None:
    assert Wait.read(note) is None


def test_a_retry_is_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.0)
    notes: list[str] = []

    async def work(base: str) -> None:
        guest = HttpGuest(ChatDialect("m"), f"{base}/v1", KEY)
        try:
            await guest.infer(Request([Message("system", "be"), Message("user", "do")], ()), notes.append)
        finally:
            await guest.close()

    with Provider(chat, Fault(429, "rate"), Said("hi")) as provider:
        asyncio.run(work(provider.base))
    (wait,) = map(Wait.read, notes)
    assert wait and wait.number == "2 of 6" and "Rate limit reached" in wait.why and not wait.quota


def test_a_long_wait_for_a_turn_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "LATE", 0.0)
    told = asyncio.Event()
    notes: list[str] = []

    class Full:
        async def enter(self, ticket: object) -> None:
            await asyncio.wait_for(told.wait(), 30)

    def note(text: str) -> None:
        notes.append(text)
        told.set()

    given: Any = Full()
    asyncio.run(Passage(given, 1, (), None, note).enter())
    assert Wait.read(notes[0]) and notes[1:] == [GOES_ON]


def test_an_inference_of_a_tree_that_is_paused_says_so() -> None:
    """It sends nothing, so no answer tells that it waits."""
    notes: list[str] = []

    async def work() -> None:
        made = turns.Turns()
        made.pause(1, None)

        def note(text: str) -> None:
            notes.append(text)
            made.resume(1)

        await Passage(made, 1, (), turns.Patience(lambda: None), note).enter()
        made.close()

    asyncio.run(work())
    wait = Wait.read(notes[0])
    assert wait and wait.quota and notes[1:] == [GOES_ON]


def test_the_agents_that_wait_are_counted() -> None:
    now = [100.0]
    waits = Waits(lambda: now[0])
    assert waits.look() == ("", "")
    waits.hear("a", Wait("rate", 30.0, number="2 of 6").note)
    waits.hear("b", Wait("rate", 90.0, number="3 of 6").note)
    waits.hear("b", "another note")
    assert waits.look() == ("2 wait for the provider, 30 s", "")
    now[0] += 31
    assert waits.look() == ("1 wait for the provider, 59 s", "")
    assert waits.telling("b", lambda body: body)(b"{}") == b"{}"  # it has its reply
    assert waits.look() == ("", "")
    log: list[str] = []
    waits.noting("c", log.append)(Wait("buy more", quota=True).note)
    assert log == [Wait("buy more", quota=True).note]
    assert waits.look() == ("1 wait for the quota of the provider", "buy more")
    waits.hear("c", GOES_ON)
    assert waits.look() == ("", "")
