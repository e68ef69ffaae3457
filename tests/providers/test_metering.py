"""One inference paid for: the charge for a reply, for a failure, and for one that a signal cut short."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from quine.agent.signals import Terminated
from quine.base.messages import Message, Reply, Request, Spent, Tool, Unavailable, Usage, unheard
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.providers import metering


class Stub:
    """A guest that returns the given reply, or raises the given error."""

    note = staticmethod(unheard)

    def __init__(self, answer: Reply | BaseException) -> None:
        self.answer = answer

    def infer(self, request: Request) -> Reply:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    made = Ledger.create(Limits(tokens=100_000))
    yield made
    os.close(made.fd)


Infer = Callable[[Reply | BaseException], object]


@pytest.fixture
def infer(ledger: Ledger) -> Infer:
    request = Request([Message("user", "x" * 4000)], ())
    return lambda answer: metering.infer(Stub(answer), request, ledger, 4, None)


PROMPT = 1000 + metering.TOOLS  # tokens: four letters are one


def test_a_reply_is_charged_what_the_guest_tells(infer: Infer, ledger: Ledger) -> None:
    infer(Reply(Message("assistant", "y"), Usage(700, 30)))
    assert ledger.totals()[1] == 730


def test_a_reply_without_usage_is_charged_what_is_estimated(infer: Infer, ledger: Ledger) -> None:
    infer(Reply(Message("assistant", "y" * 400), Usage()))
    assert ledger.totals()[1] == PROMPT + 100


@pytest.mark.parametrize("error", [Unavailable("the server is gone"), Spent("no money", "--max-cost")])
def test_a_failed_inference_costs_nothing(infer: Infer, ledger: Ledger, error: Exception) -> None:
    with pytest.raises(type(error)):
        infer(error)
    assert ledger.totals()[1] == 0
    assert ledger.left() == (100_000, None)


def test_an_inference_that_a_signal_cuts_short_is_charged_its_prompt(infer: Infer, ledger: Ledger) -> None:
    """The provider has read it; how much of a reply it wrote is not known."""
    with pytest.raises(Terminated):
        infer(Terminated(15))
    assert ledger.totals()[1] == PROMPT
    assert ledger.left() == (100_000 - PROMPT, None)


@pytest.mark.parametrize(
    "raw",
    [
        {"anthropic": [{"type": "text", "text": "x" * 40_000}]},
        {"chat": {"content": "x" * 40_000}, "gemini": []},
        {"responses": [{"arguments": {"x" * 40_000: 1}}]},
    ],
)
def test_what_is_sent_in_place_of_a_text_is_in_the_estimate(ledger: Ledger, raw: dict[str, object]) -> None:
    """The raw form of a reply is the requester's to choose, and it is sent as it is."""
    due = metering.due(Request([Message("assistant", "y", raw=raw)], ()), ledger, None)
    assert 0 <= due.prompt - 10_000 - metering.TOOLS < 20
    assert due.cancelled(None).input == due.prompt


def test_a_text_is_estimated_once_and_also_where_nothing_of_it_is_in_the_raw_form(ledger: Ledger) -> None:
    """A dialect sends a reply of another one as text."""
    due = metering.due(Request([Message("assistant", "x" * 4000, raw={"chat": {}})], ()), ledger, None)
    assert due.prompt == PROMPT


def test_a_letter_of_many_bytes_is_no_longer_in_a_raw_form(ledger: Ledger) -> None:
    due = metering.due(Request([Message("assistant", raw={"chat": "\u4e2d" * 4000})], ()), ledger, None)
    assert due.prompt == 3000 + metering.TOOLS


def test_tools_are_estimated_by_their_size(ledger: Ledger) -> None:
    tools = (Tool("sh", "x" * 40_000, {"type": "object"}),)
    due = metering.due(Request([Message("user", "y")], tools), ledger, None)
    assert 10_000 < due.prompt < 10_050
