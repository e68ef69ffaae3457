"""The inferences of a broker without its processes: requests, payers, and an event loop that a test can use."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from quine.agent.tools import TOOLS
from quine.base.messages import Message, Reply, Request
from quine.base.sessions import new_session
from quine.broker.gate import Gate, Refusal, Ticket
from quine.broker.inference import Inferences, Payer
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.providers.connecting import Connections
from quine.providers.http import HttpGuest
from quine.providers.relay import RelayGuest
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


def gates(made: Inferences) -> list[dict[str, Any]]:
    """The state of each gate; keys are named by their first letters."""
    return made.status(lambda key: key[:6])


@contextlib.asynccontextmanager
async def inferences() -> AsyncIterator[Inferences]:
    made = Inferences()
    try:
        yield made
    finally:
        await made.close()


class Hasty(Gate):
    """A gate that makes no pauses: a test that asks for many says how long they would have been."""

    def leave(self, ticket: Ticket, now: float, refusal: Refusal | None = None, well: bool = False) -> None:
        super().leave(ticket, now, refusal and refusal._replace(after=0.0), well)


class Guest:
    """A guest for a caller that blocks: each request goes through the inferences of a broker, as a body.

    It does not wait between its tries, but says how long it would have.
    """

    def __init__(self, dialect: Any, base: str, key: str = KEY) -> None:
        self.pauses: list[float] = []
        self.notes: list[str] = []
        self._ledger = Ledger.create(Limits())
        self._config = Config("openai", base, "m", key)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._inferences = self._run(self._made(dialect))

    async def _made(self, dialect: Any) -> Inferences:
        async def pause(seconds: float) -> None:
            self.pauses.append(seconds)

        made = Inferences()
        made._guests[self._config] = HttpGuest(
            dialect, self._config.base, self._config.key, pause=pause, connections=Connections()
        )
        made._gate(self._config).gate = Hasty()
        return made

    def infer(self, request: Request) -> Reply:
        payer = Payer(self._ledger, self._config, None, 0, tuple(request.tools))

        def ask(name: str, body: bytes) -> bytes:
            answer: bytes = self._run(self._inferences.infer(payer, body, self.notes.append))
            return answer

        return RelayGuest(ask).infer(request)

    def close(self) -> None:
        self._run(self._inferences._guests[self._config].close())
        self._run(self._inferences.close())
        self._run(self._loop.shutdown_asyncgens())  # as asyncio.run does at its end
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        os.close(self._ledger.fd)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)
