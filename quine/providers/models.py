"""The facts that a server tells of its models: the names that it lists, and the length of context that it serves.

Laws
1. The table of servers says how a server is asked. One that names no host is asked in the ways of all of them.
2. Such a fact is a help, and may be missing or wrong: no failure of a question is an error here.
"""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from quine.base.messages import GuestError
from quine.providers import servers
from quine.providers.dialects.dialect import number
from quine.providers.dialects.faults import printable
from transport.lean import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.providers.http import HttpGuest
    from quine.providers.vendors import Config

MOST = 10_000  # names
MOST_MODELS = 256  # whose context is remembered: anybody may ask for any name
TRIES = 2
LONGEST = 200  # characters of a name


async def listed(guest: HttpGuest) -> list[str]:
    """Return the names of the models that a server lists. Raises GuestError if it does not."""
    row = servers.models(guest.kind)
    names = [entry.get(row["name"]) for entry in _entries(await guest.get(row["get"]), row["list"])]
    return [printable(name.removeprefix("models/"), LONGEST) for name in names if isinstance(name, str)][
        :MOST
    ]


async def served(guest: HttpGuest, model: str) -> int:
    """Return the tokens of context that the server gives to a model now; 0 if it does not tell."""
    answers: dict[str, Any] = {}
    for row in servers.windows(guest.host, guest.kind):
        path = row["get"].format(model=quote(model.removeprefix("models/"), safe=""))
        if path not in answers:
            try:
                answers[path] = await guest.get(path)
            except GuestError:
                answers[path] = None
        if tokens := _tokens(answers[path], row, model):
            return tokens
    return 0


class Windows:
    """The context that servers give to their models, as they tell it beside the first inferences of each.

    To be used in one event loop. No inference waits for it. A server may know the number only when it has loaded the
    model, so one that did not tell is asked once more.
    """

    def __init__(self) -> None:
        self._told: dict[Config, int] = {}
        self._tries: dict[Config, int] = {}
        self._asking: dict[Config, asyncio.Task[None]] = {}

    def of(self, config: Config, guest: HttpGuest) -> int:
        """Return the tokens of context; 0 if they are not known, and perhaps with the next reply."""
        if config not in self._told and config not in self._asking and self._tries.get(config, 0) < TRIES:
            if len(self._tries) >= MOST_MODELS:
                self._tries.clear()
                self._told.clear()
            self._tries[config] = self._tries.get(config, 0) + 1
            self._asking[config] = asyncio.get_running_loop().create_task(self._ask(config, guest))
        return self._told.get(config, 0)

    async def _ask(self, config: Config, guest: HttpGuest) -> None:
        try:
            if tokens := await served(guest, config.model):
                self._told[config] = tokens
        finally:
            del self._asking[config]

    async def close(self) -> None:
        for task in (tasks := list(self._asking.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _tokens(answer: Any, row: dict[str, str], model: str) -> int:
    if not row["list"]:
        return number(answer, *row["tokens"].split("."))
    own = [entry for entry in _entries(answer, row["list"]) if _is(entry.get(row["name"]), model)]
    return number(own[0], *row["tokens"].split(".")) if own else 0


def _is(name: object, model: str) -> bool:
    """Return whether a server means this model by a name: Ollama's end with a tag."""
    return isinstance(name, str) and name in (model, f"{model}:latest")


def _entries(answer: Any, name: str) -> list[dict[str, Any]]:
    found = answer.get(name) if isinstance(answer, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
