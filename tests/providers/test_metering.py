"""One inference paid for: the charge for a reply, for a failure, and for one that a signal cut short."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from quine.agent.signals import Terminated
from quine.base.messages import Message, Reply, Request, Spent, Unavailable, Usage, unheard
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
