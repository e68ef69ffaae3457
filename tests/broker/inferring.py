"""The inferences of a broker without its processes: requests, payers, and an event loop that a test can use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from quine.agent.tools import TOOLS
from quine.base.messages import Message
from quine.base.sessions import new_session
from quine.broker.inference import Inferences, Payer
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.providers.vendors import Config
from tests.vendors.server import KEY, Provider

HELLO = (Message("system", "be"), Message("user", "do"))


def request(messages: Sequence[Message] = HELLO, **more: Any) -> bytes:
    """The body of an `infer` request."""
    told = [message.to_json() for message in messages]
    body = {"session": new_session(), "mission": "do", "ordinal": 0, "wisdom": {}, "messages": told, **more}
    return json.dumps(body).encode()


def config(provider: Provider, kind: str = "openai", path: str = "/v1", key: str = KEY) -> Config:
    return Config(kind, provider.base + path, "m", key)


def payer(
    provider: Provider, ledger: Ledger, concurrent: int = 0, raises: Callable[[], int] | None = None
) -> Payer:
    return Payer(ledger, config(provider), None, concurrent, TOOLS, raises)


@contextlib.contextmanager
def ledger(**limits: Any) -> Any:
    made = Ledger.create(Limits(**limits))
    try:
        yield made
    finally:
        os.close(made.fd)


@contextlib.asynccontextmanager
async def inferences() -> AsyncIterator[Inferences]:
    made = Inferences()
    try:
        yield made
    finally:
        await made.close()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)
