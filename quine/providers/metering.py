"""Payment of one inference: reserved in the ledger of the tree before it, settled after it, for every requester.

Laws
1. An inference that cannot be paid is not begun: Spent is raised before the guest is called.
2. A guest that reports no usage is charged an estimate, so that it uses up a budget too.
3. An estimate counts what is sent, also where a command has written it: the raw form of a reply, and the tools.
"""

from __future__ import annotations

from quine.base.errors import Misconfigured
from quine.base.messages import Guest, GuestError, Message, Remaining, Reply, Request, Spent, Usage
from quine.budget.ledger import LEAST_REPLY, Ledger
from quine.providers.relay import BrokeredGuest
from quine.providers.vendors import FILES, Config
from transport import quickjson
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


LETTERS = 4  # bytes of a token, about
LOANS = 3  # for one inference, whose price may turn out higher than thought
PACKED = 2.5  # bytes of a token in a packed text, at most: a vocabulary has less than 2^20 words
TOOLS = 1500  # tokens of the tool definitions of this build, which precede every conversation


class Price(NamedTuple):
    """The price of a model: `of` returns dollars for a usage, 0.0 if its price is unknown."""

    model: str

    def of(self, usage: Usage) -> float:
        from quine.budget import prices

        return prices.cost(self.model, usage) or 0.0

    def about(self, prompt: int, reply: int) -> float:
        """Return an upper bound in dollars: the whole prompt may be new to the provider's cache."""
        return max(self.of(Usage(prompt, reply)), self.of(Usage(prompt, reply, cache_write=prompt)))


def price(config: Config, limited: bool) -> Price | None:
    """Return None if no cost is to be counted. Raises Misconfigured if money is limited and the price is unknown."""
    if not limited and config.kind in FILES:
        return None
    from quine.budget import prices

    # Checked before the first reply, which would have to be paid: a file of prices can be wrong.
    if not prices.known(config.model) and limited:
        raise Misconfigured(
            f"a limit on the cost needs a price, and the price of {config.model} is not known",
            "put it into a file and name that with QUINE_PRICES, or use QUINE_MAX_TOKENS",
        )
    return Price(config.model)


class Due(NamedTuple):
    """The bill of one inference before it is made: the arguments of `Ledger.reserve`, and what is charged then."""

    prompt: int  # tokens, estimated
    money: Callable[[int, int], float] | None
    within: Remaining
    counted: bool  # tokens or money of the tree are limited

    def used(self, reply: Reply) -> Usage:
        """Return the usage to charge; an estimate if the guest reports none."""
        if not reply.usage.input and not reply.usage.output and self.counted:
            return Usage(self.prompt, tokens([reply.message]))
        return reply.usage

    def cancelled(self, reply: Reply | None) -> Usage:
        """Return the usage to charge for an inference that was cancelled, whose `reply` had come so far."""
        if reply is None:
            return Usage(self.prompt)
        told, said = reply.usage, tokens([reply.message])
        return Usage(max(self.prompt, told.input), max(told.output, said))

    def broke_off(self, usage: Usage) -> Usage:
        """Return the usage to charge for an answer that broke off: as it was told, else the prompt, which was read."""
        told = usage.input or usage.output or not self.counted
        return usage if told else Usage(self.prompt)


def due(request: Request, ledger: Ledger, price: Price | None, known: int = 0) -> Due:
    """Return the bill of `request`. `known` is a lower bound of the prompt in tokens, with the tools."""
    prompt = max(_sent(request), known)
    within = Remaining(prompt + request.output if request.output else None, request.cost or None)
    money = price.about if price and (ledger.mark.cost or within.cost) else None
    return Due(prompt, money, within, bool(ledger.mark.tokens or ledger.mark.cost))


def infer(
    guest: Guest,
    request: Request,
    ledger: Ledger,
    concurrent: int,
    price: Price | None,
    known: int = 0,
    on_wait: Callable[[], None] | None = None,
) -> Reply:
    """Make one inference; block until the reply. `known` is as for `due`. quine/broker/payment.py does not block.

    `on_wait` is called while others have what it needs of the ledger. Where this machine pays from a loan that is used
    up, more is borrowed first. Raises GuestError, ledger.Spent, or the exception of a signal handler.
    """
    for _ in range(LOANS):
        try:
            return _infer(guest, request, ledger, concurrent, price, known, on_wait)
        except Spent:
            prompt = due(request, ledger, price, known).prompt
            if not borrow(ledger, price, 1, prompt):
                raise
    return _infer(guest, request, ledger, concurrent, price, known, on_wait)


def borrow(ledger: Ledger, price: Price | None, count: int, prompt: int) -> bool:
    """Have enough left for `count` inferences with such a prompt, by a loan of the origin. False if there is none."""
    if ledger.beyond is None:
        return False
    money = price.about(prompt, LEAST_REPLY) if price and ledger.mark.cost else 0.0
    return ledger.beyond.extend(ledger, count * (prompt + LEAST_REPLY), count * money)


def _infer(
    guest: Guest,
    request: Request,
    ledger: Ledger,
    concurrent: int,
    price: Price | None,
    known: int,
    on_wait: Callable[[], None] | None,
) -> Reply:
    if isinstance(guest, BrokeredGuest):
        return guest.pay(request, known)
    bill = due(request, ledger, price, known)
    hold = ledger.reserve(concurrent, bill.prompt, bill.money, bill.within, on_wait)
    used = Usage(bill.prompt)  # also charged if a signal interrupts: the provider has read the prompt
    try:
        reply = guest.infer(request._replace(output=hold.output, cost=hold.cost))
        used = bill.used(reply)
        return reply
    except (GuestError, Spent):
        used = Usage()
        raise
    finally:
        ledger.settle(hold, used.input + used.output, cost_of(guest, used, price))


def cost_of(guest: object, used: Usage, price: Price | None) -> float:
    """Return dollars as reported by the provider, else by the origin that has paid, else from the price table."""
    if not used.input and not used.output:
        return used.cost
    told: float = used.cost or getattr(guest, "cost", 0.0)
    return told or (price.of(used) if price else 0.0)


def tokens(messages: Sequence[Message]) -> int:
    """Estimate the tokens of messages for which there is no count."""
    return sum(map(_said, messages)) // LETTERS


def at_least(messages: Sequence[Message]) -> int:
    """Return a lower bound of the tokens of messages to a guest: long tokens are rare, or are repeated."""
    others = [message for message in messages if message.role != "assistant"]
    texts = [message.result.text if message.result else message.text for message in others]
    data = "".join(texts).encode("utf-8", "replace")
    if not data:
        return 0
    from zlib import compress

    return int(min(len(data) / (2 * LETTERS), len(compress(data)) / PACKED))


def _sent(request: Request) -> int:
    """Estimate the tokens of a prompt by all that a dialect may send of it: a raw form goes in place of the text."""
    raw = [
        max(map(_of_json, message.raw.values()), default=0) if message.raw else 0
        for message in request.messages
    ]
    size = sum(map(max, map(_said, request.messages), raw))
    return size // LETTERS + max(TOOLS, _of_json(request.tools) // LETTERS)


def _said(message: Message) -> int:
    texts = [message.result.text] if message.result else [message.text, message.reasoning]
    texts += [call.raw or str(call.args) for call in message.tool_calls]
    return sum(map(_bytes, texts))


def _of_json(value: Any) -> int:
    return _bytes(quickjson.readable(value))


def _bytes(text: str) -> int:
    # Bytes, not characters: a Chinese character has three bytes and is about one token.
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
