"""Inferences of a broker: each paid from the ledger of the tree that asked for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from quine.base.errors import Failure
from quine.base.messages import GuestError, Message, Refused, Request, Spent, Tool
from quine.budget.ledger import Ledger
from quine.providers import metering, vendors
from quine.providers.metering import Price
from quine.providers.relay import error_to_json, spent_to_json
from quine.providers.vendors import Config
from transport import quickjson


class Payer(NamedTuple):
    ledger: Ledger
    config: Config
    price: Price | None
    concurrent: int
    tools: tuple[Tool, ...] = ()


class Inferences:
    def __init__(self) -> None:
        self._guests: dict[Config, Any] = {}

    async def infer(self, payer: Payer, body: bytes, note: Callable[[str], None]) -> bytes:
        return await asyncio.to_thread(self._infer, payer, body, note)

    def _infer(self, payer: Payer, body: bytes, note: Callable[[str], None]) -> bytes:
        asked = quickjson.loads(body)
        request = Request(
            [Message.from_json(each) for each in asked["messages"]],
            payer.tools,
            asked["session"],
            asked["mission"],
            asked["ordinal"],
            asked["wisdom"],
            asked["output"],
            asked["cost"],
        )
        try:
            guest = vendors.build(payer.config)
            guest.note = note
            reply = metering.infer(
                guest, request, payer.ledger, payer.concurrent, payer.price, int(asked.get("known", 0))
            )
        except GuestError as error:
            return quickjson.dumps(error_to_json(error)).encode()
        except Spent as spent:
            return quickjson.dumps(spent_to_json(spent)).encode()
        except Failure as failure:
            return quickjson.dumps(
                error_to_json(Refused(failure.detail, failure.hint, failure.status))
            ).encode()
        told = {
            "left": payer.ledger.left(),
            "surely": payer.ledger.left(surely=True),
            "cost": metering.cost_of(guest, reply.usage, payer.price),
        }
        return quickjson.dumps({**reply.to_json(), **told}).encode()

    def status(self) -> dict[str, object]:
        return {}

    async def close(self) -> None:
        pass
