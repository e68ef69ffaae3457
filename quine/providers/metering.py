"""One inference, paid for: reserved in the ledger of the tree before, settled after, whoever asks for it.

Laws
1. What cannot be paid is not begun: Spent comes before the guest hears of it.
2. A guest that does not tell what it used is charged what was estimated, so that a budget ends with it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quine.base.errors import Misconfigured
from quine.base.messages import Guest, GuestError, Left, Message, Reply, Request, Spent, Usage
from quine.budget.ledger import Ledger
from quine.providers import FILES, Config

LETTERS = 4  # of a token, about
TOOLS = 1500  # tokens of the tools, which stand before every conversation


class Price(NamedTuple):
    """What a model costs: dollars for its usage, None where nobody has told."""

    model: str

    def of(self, usage: Usage) -> float:
        from quine.budget import prices

        return prices.cost(self.model, usage) or 0.0

    def about(self, prompt: int, reply: int) -> float:
        """At the most: as if all of the prompt were new to the provider's cache."""
        return max(self.of(Usage(prompt, reply)), self.of(Usage(prompt, reply, cache_write=prompt)))


def price(config: Config, limited: bool) -> Price | None:
    """None where nothing is to be counted; Misconfigured where money is limited and the price is unknown."""
    if not limited and config.kind in FILES:
        return None
    from quine.budget import prices

    # Here, and not when the first reply is there and has to be paid: a file of prices can be wrong.
    if not prices.known(config.model) and limited:
        raise Misconfigured(
            f"QUINE_MAX_COST is set, and the price of {config.model} is not known",
            "put it into a file and name that with QUINE_PRICES, or use QUINE_MAX_TOKENS",
        )
    return Price(config.model)


def infer(
    guest: Guest, request: Request, ledger: Ledger, concurrent: int, price: Price | None, known: int = 0
) -> Reply:
    """Blocks until there is a reply. `known` is how long the prompt is at least, in tokens, with the tools.

    Raises a GuestError, ledger.Spent, or what a handler raises.
    """
    prompt = max(tokens(request.messages) + TOOLS, known)
    within = Left(prompt + request.output if request.output else None, request.cost or None)
    money = price.about if price and (ledger.mark.cost or within.cost) else None
    hold = ledger.reserve(concurrent, prompt, money, within)
    used = Usage(prompt)  # of one that a signal cuts short, too: the provider has read it
    try:
        reply = guest.infer(request._replace(output=hold.output, cost=hold.cost))
        used = reply.usage
        if not used.input and not used.output and (ledger.mark.tokens or ledger.mark.cost):
            used = Usage(prompt, tokens([reply.message]))
        return reply
    except (GuestError, Spent):
        used = Usage()
        raise
    finally:
        ledger.settle(hold, used.input + used.output, cost_of(guest, used, price))


def cost_of(guest: Guest, used: Usage, price: Price | None) -> float:
    """Dollars, as far as they are known: told by the provider, or by the origin that has paid, or of a table."""
    if not used.input and not used.output:
        return used.cost
    told: float = used.cost or getattr(guest, "cost", 0.0)
    return told or (price.of(used) if price else 0.0)


def tokens(messages: Sequence[Message]) -> int:
    """About so many, where nobody has counted them."""
    size = 0
    for message in messages:
        texts = [message.result.text] if message.result else [message.text, message.reasoning]
        texts += [call.raw or str(call.args) for call in message.tool_calls]
        # Bytes, not characters: three of a Chinese character are about the token that it is.
        size += sum(len(t) if t.isascii() else len(t.encode("utf-8", "replace")) for t in texts)
    return size // LETTERS
