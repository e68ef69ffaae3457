"""The inferences of a broker: a request becomes a reply, paid from the ledger of its tree, through one gate.

Laws
1. A body is checked before anything is done. An error of the body, the guest or the payer is an answer.
2. An inference that cannot be paid is not begun. One that was cancelled on its way is charged its prompt and as much of
   the reply as had come: whoever hung up just before its end had it for its prompt.
3. Nothing here blocks: the server is asked by an event loop, and a ledger by a thread.
4. A provider's quota that is used up pauses a tree that has a deadline or a budget that can be raised; any other tree
   is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from quine.base.errors import Failure
from quine.base.messages import (
    GuestError,
    Message,
    Refused,
    Remaining,
    Request,
    Spent,
    Tool,
    Unavailable,
    Usage,
)
from quine.base.strict import parse
from quine.broker.payment import Payments, tree_of
from quine.broker.turns import Passage, Patience, Turns
from quine.budget.ledger import Ledger, Reservation
from quine.providers import metering, vendors
from quine.providers.asking import Infer
from quine.providers.dialects.faults import NO_QUOTA_LEFT
from quine.providers.metering import Price
from quine.providers.relay import error_to_json, spent_to_json
from quine.providers.vendors import Config
from quine.providers.way import GOES_ON, PATIENCE, Wait
from quine.tape.redact import Mask
from transport.errors import RequestError

if TYPE_CHECKING:
    from quine.broker.gate import Chain
    from quine.providers.connecting import Connections
    from quine.providers.http import HttpGuest
    from quine.providers.models import Windows

MOST_MODELS = 256  # whose state is kept: anybody may ask for any name


class Payer(NamedTuple):
    """The payer of an inference: ledger with its cap, guest, price, limit of concurrency, and the tools to offer.

    `raises` returns how often the budgets around the tree were raised; None: there are none. Where there are, a tree
    whose provider has no quota left waits for the next raise.
    """

    ledger: Ledger
    config: Config
    price: Price | None
    concurrent: int
    tools: tuple[Tool, ...] = ()
    raises: Callable[[], int] | None = None


class Inferences:
    """All inferences of one broker. To be made, used and closed in one event loop."""

    def __init__(self) -> None:
        self._payments = Payments()
        self._connections: Connections | None = None
        self._guests: dict[Config, HttpGuest] = {}
        self._windows: Windows | None = None
        self._turns: dict[tuple[str, str, str], Turns] = {}  # by key, base and model

    async def infer(self, payer: Payer, body: bytes, note: Callable[[str], None]) -> bytes:
        """Return the reply to an `infer` request, or its error, as `RelayGuest` reads them."""
        try:
            asked = parse(Infer, body)
            if asked.tape:
                raise RequestError("infer: lines for a tape, which is not written here")
            payer = _of_request(payer, asked.model, asked.cost)
            answer = await self._answer(
                payer, asked.request(asked.conversation(), payer.tools), asked.known, note
            )
        except RequestError as error:
            answer = error_to_json(GuestError(str(error)))
        except GuestError as error:
            answer = error_to_json(error)
        except Spent as spent:
            answer = spent_to_json(spent)
        except Failure as failure:
            answer = error_to_json(Refused(failure.detail, failure.hint, failure.status))
        return json.dumps(answer).encode()

    @property
    def trees(self) -> list[int]:
        """The trees, as of `tree_of`, whose ledgers are in use."""
        return self._payments.trees

    def resume(self, tree: int = 0) -> int:
        """Let a tree go on that was paused for a provider's quota, or all; return the number of pauses that ended.

        `tree` as of `tree_of`.
        """
        all_of_them = self._turns.values()
        return sum(turns.resume(tree) if tree else turns.resume_all() for turns in all_of_them)

    def status(self, key_name: Callable[[str], str], keys: Sequence[str] = ()) -> list[dict[str, object]]:
        """Return the state of each gate, with the name of its key by `key_name`. No text holds one of `keys`.

        A client names the model and the address: it may have put a key there.
        """
        mask = Mask([*keys, *(key for key, _, _ in self._turns)])
        return [
            {
                "key": key_name(key),
                "base": mask.of(_shown(base)),
                "model": mask.of(model),
                **turns.status(),
                "left_out": self._lessons(key, base, model),
            }
            for (key, base, model), turns in self._turns.items()
        ]

    def _lessons(self, key: str, base: str, model: str) -> list[str]:
        """Return the optional parts that requests to this model go without, as its server refuses them."""
        guests = (guest for config, guest in self._guests.items() if config[1:] == (base, model, key))
        return sorted({part for guest in guests for part in guest.lessons})

    async def close(self) -> None:
        """Finish the payments that were begun, and close all connections."""
        for turns in self._turns.values():
            turns.close()
        await self._payments.close()
        if self._windows is not None:
            await self._windows.close()
        if self._connections is not None:
            await self._connections.close()

    async def _answer(
        self, payer: Payer, request: Request, known: int, note: Callable[[str], None]
    ) -> dict[str, object]:
        guest, turns, tree = self._guest(payer.config), self._gate(payer.config), tree_of(payer.ledger)
        patience = Patience(payer.ledger.time_left, payer.raises)
        patient = payer.raises is not None or payer.ledger.time_left() is not None
        chain = chain_of(request.messages)
        while True:
            way = Passage(turns, tree, chain, patience if patient else None, note)
            try:
                return await self._paid(guest, way, payer, request, known, note)
            except GuestError as fault:
                if not patient or not is_quota(fault):
                    raise
                after = fault.after if isinstance(fault, Unavailable) else None
                note(Wait(str(fault), after, quota=True).note)
                turns.pause(tree, after, patience)
            await turns.resumed(tree, patience)
            note(GOES_ON)

    async def _paid(
        self,
        guest: HttpGuest,
        way: Passage,
        payer: Payer,
        request: Request,
        known: int,
        note: Callable[[str], None],
    ) -> dict[str, object]:
        ledger, price = payer.ledger, payer.price
        self._window(payer.config, guest)
        due = metering.due(request, ledger, price, known)
        hold: Reservation | None = await self._payments.reserve(ledger, payer.concurrent, due)
        assert hold

        async def settle(used: Usage) -> tuple[Remaining, Remaining]:
            nonlocal hold
            assert hold
            settled, hold = hold, None
            cost = metering.cost_of(guest, used, price)
            return await self._payments.settle(ledger, settled, used.input + used.output, cost)

        async def broke_off(usage: Usage) -> tuple[int, float]:
            nonlocal hold, due
            await settle(due.broke_off(usage))
            due = due._replace(prompt=max(due.prompt, usage.input))
            hold = await self._payments.reserve(ledger, payer.concurrent, due)
            return hold.output, hold.cost

        way.pay = broke_off
        used = Usage()
        try:
            reply = await guest.infer(request._replace(output=hold.output, cost=hold.cost), note, way)
            used = due.used(reply)
            left, surely = await settle(used)
        except GuestError as error:
            used = due.broke_off(error.usage) if error.usage is not None else Usage()
            raise
        except BaseException:
            # Cancelled. The provider has read the prompt of a request that was under way, and counts what it has said.
            used = due.cancelled(way.so_far) if way.sent else Usage()
            if way.owed is not None:
                used = due.broke_off(way.owed)
            elif way.is_whole and hold is not None:
                used = used._replace(
                    output=hold.output
                )  # all of it was made, and nothing tells how much that is
            raise
        finally:
            if hold is not None:
                await settle(used)
        cost = metering.cost_of(guest, reply.usage, price)
        reply = reply._replace(window=self._window(payer.config, guest))
        return {**reply.to_json(), "left": left, "surely": surely, "cost": cost}

    def _window(self, config: Config, guest: HttpGuest) -> int:
        """Return the context that the server gives to the model, 0 if it has not told; ask it."""
        if self._windows is None:
            from quine.providers.models import Windows

            self._windows = Windows()
        return self._windows.of(config, guest)

    def _guest(self, config: Config) -> HttpGuest:
        if config not in self._guests:
            if len(self._guests) >= MOST_MODELS:
                del self._guests[next(iter(self._guests))]
            from quine.providers.connecting import Connections

            self._connections = self._connections or Connections()
            self._guests[config] = vendors.served(config, self._connections)
        return self._guests[config]

    def _gate(self, config: Config) -> Turns:
        if len(self._turns) >= MOST_MODELS:
            for way in [way for way, turns in self._turns.items() if turns.is_idle]:
                del self._turns[way]
        return self._turns.setdefault((config.key, config.base, config.model), Turns())


def is_quota(fault: GuestError) -> bool:
    """Return True if the account has no quota left, or the server asks for a pause that no client makes."""
    if isinstance(fault, Unavailable):
        return fault.after is not None and fault.after > PATIENCE
    return isinstance(fault, Refused) and fault.hint == NO_QUOTA_LEFT


def chain_of(messages: Sequence[Message]) -> Chain:
    """Return the prefixes of a conversation. The tools precede them all."""
    chain: list[tuple[int, int]] = []
    mark, size = 0, metering.TOOLS * metering.LETTERS
    for message in messages:
        result = message.result
        calls = tuple((call.name, call.raw or str(call.args)) for call in message.tool_calls)
        mark = hash((mark, message.role, message.text, result and result.text, message.reasoning, calls))
        size += len(message.text) + (len(result.text) if result else 0) + len(message.reasoning)
        size += sum(len(arguments) for _, arguments in calls)
        chain.append((mark, size))
    return tuple(chain)


def _shown(base: str) -> str:
    """Return an address without the parts that may authenticate: user:password@, and what follows a question mark."""
    scheme, _, rest = base.partition("?")[0].partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


def _of_request(payer: Payer, model: str, cost: float) -> Payer:
    """Return the payer for a model of its choice. Raises Failure if its price has to be known, and is not."""
    if model in ("", payer.config.model) and not cost:
        return payer
    config = payer.config._replace(model=model or payer.config.model)
    return payer._replace(config=config, price=metering.price(config, bool(cost or payer.ledger.mark.cost)))
