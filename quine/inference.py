"""One inference, paid for: reserved in the ledger of the tree before, settled after, whoever asks for it.

Laws
1. What cannot be paid is not begun: Spent comes before the guest hears of it.
2. A guest that does not tell what it used is charged what was estimated, so that a budget ends with it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quine.exits import Misconfigured
from quine.guests import FILES, Config
from quine.guests.base import Guest, Message, Reply, Request, Usage
from quine.ledger import Hold, Ledger

LETTERS = 4  # of a token, about
TOOLS = 1500  # tokens of the tools, which stand before every conversation


class Price(NamedTuple):
    """What a model costs: dollars for its usage, None where nobody has told."""

    model: str

    def of(self, usage: Usage) -> float:
        from quine import prices

        return prices.cost(self.model, usage) or 0.0

    def about(self, prompt: int, reply: int) -> float:
        return self.of(Usage(prompt, reply))


def price(config: Config, limited: bool) -> Price | None:
    """None where nothing is to be counted; Misconfigured where money is limited and the price is unknown."""
    if limited:
        from quine import prices

        if not prices.known(config.model):
            raise Misconfigured(
                f"QUINE_MAX_COST is set, and the price of {config.model} is not known",
                "put it into a file and name that with QUINE_PRICES, or use QUINE_MAX_TOKENS",
            )
    return Price(config.model) if limited or config.kind not in FILES else None


def infer(guest: Guest, request: Request, ledger: Ledger, concurrent: int, price: Price | None) -> Reply:
    """Blocks until there is a reply. Raises a GuestError, ledger.Spent, or what a handler raises."""
    prompt = tokens(request.messages) + TOOLS
    hold = ledger.reserve(concurrent, prompt, price.about if price and ledger.mark.cost else None)
    used = Usage()
    try:
        reply = guest.infer(request._replace(output=hold.output))
        used = reply.usage
        if not used.input and not used.output and ledger.mark.tokens:
            used = Usage(prompt, tokens([reply.message]))
        return reply
    finally:
        _settle(ledger, hold, used, price)


def _settle(ledger: Ledger, hold: Hold, used: Usage, price: Price | None) -> None:
    cost = used.cost or (price.of(used) if price and (used.input or used.output) else 0.0)
    ledger.settle(hold, used.input + used.output, cost)


def tokens(messages: Sequence[Message]) -> int:
    """About so many, where nobody has counted them."""
    size = 0
    for message in messages:
        size += len(message.result.text) if message.result else len(message.text) + len(message.reasoning)
        size += sum(len(call.raw) or len(str(call.args)) for call in message.tool_calls)
    return size // LETTERS
