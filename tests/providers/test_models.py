"""Models as their servers tell of them: each way of the table is asked of a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from quine.base.messages import GuestError
from quine.providers import models, servers
from quine.providers.bodies import below
from quine.providers.http import HttpGuest
from quine.providers.models import TRIES, Windows
from quine.providers.vendors import Config
from tests.providers.test_matrix import BASES, VENDORS, Lenient
from tests.providers.test_servers import DIALECTS
from tests.vendors.server import KEY, Provider

WAYS = [(name, row) for name, server in servers.table()["servers"].items() for row in server["window"]]


def asked(
    provider: Provider, kind: str, ask: Callable[[HttpGuest], Coroutine[Any, Any, Any]], host: str = ""
) -> Any:
    """Return what a guest of this provider is told; `host` is reached through it, as through a proxy."""

    async def work() -> Any:
        base = f"http://{host}" if host else provider.base
        guest = HttpGuest(DIALECTS[kind]("m"), base + BASES.get(kind, "/v1"), KEY)
        try:
            return await ask(guest)
        finally:
            await guest.close()

    return asyncio.run(work())


def nested(path: str, value: Any) -> Any:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(("server", "row"), WAYS, ids=lambda value: value if isinstance(value, str) else "")
def test_the_context_that_a_server_gives(
    server: str, row: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, kind = (servers.table()["servers"][server][key] for key in ("hosts", "speaks"))
    facts: Any = nested(row["tokens"], 4096)
    if row["list"]:
        other = {**nested(row["tokens"], 99), row["name"]: "another"}
        facts = {row["list"]: [other, {**facts, row["name"]: "m"}]}
    with Provider(Lenient(VENDORS[kind[0]])) as provider:
        path = row["get"].format(model="m")
        base = "" if path.startswith("/") else BASES.get(kind[0], "/v1") + "/"
        provider.facts[base + path] = facts
        if hosts:
            monkeypatch.setenv("http_proxy", provider.base)
        host = hosts[0] if hosts else ""
        assert asked(provider, kind[0], lambda guest: models.served(guest, "m"), host) == 4096
        assert asked(provider, kind[0], lambda guest: models.served(guest, "none"), host) in (0, 4096)


@pytest.mark.parametrize(
    "answer", [None, [], {"data": None}, {"data": [None, 1, {"id": 7}, {"id": "m", "max_model_len": "x"}]}]
)
def test_an_answer_that_is_none_is_no_fact(answer: Any) -> None:
    with Provider(Lenient(VENDORS["openai"])) as provider:
        provider.facts["/v1/models"] = answer
        assert asked(provider, "openai", lambda guest: models.served(guest, "m")) == 0


@pytest.mark.parametrize("kind", VENDORS)
def test_the_names_of_models(kind: str) -> None:
    row = servers.models(kind)
    path = row["get"].partition("?")[0]
    with Provider(Lenient(VENDORS[kind])) as provider:
        base = "" if path.startswith("/") else "/v1/"
        provider.facts[base + path] = {
            row["list"]: [{row["name"]: "a"}, {row["name"]: "models/b\x1b"}, {}, 3]
        }
        assert asked(provider, kind, models.listed) == ["a", "b�"]
        provider.facts.clear()
        with pytest.raises(GuestError):
            asked(provider, kind, models.listed)


def test_the_context_is_asked_beside_inferences_and_not_for_ever() -> None:
    """A server may know it only when it has loaded the model."""

    async def work(provider: Provider) -> list[int]:
        windows, config = Windows(), Config("openai", f"{provider.base}/v1", "m", KEY)
        guest = HttpGuest(DIALECTS["openai"]("m"), config.base, KEY)
        told = []
        for turn in range(TRIES + 2):
            told.append(windows.of(config, guest))
            await asyncio.gather(*windows._asking.values())
            if turn == 0:
                provider.facts["/api/ps"] = {"models": [{"name": "m:latest", "context_length": 4096}]}
        await windows.close()
        await guest.close()
        return told

    with Provider(Lenient(VENDORS["openai"])) as provider:
        assert asyncio.run(work(provider)) == [0, 0, 4096, 4096]


@pytest.mark.parametrize(
    ("base", "path", "url"),
    [
        ("http://h:1/v1", "models", "http://h:1/v1/models"),
        ("http://h:1/v1", "/props", "http://h:1/props"),
        ("http://h:1", "/props", "http://h:1/props"),
        ("https://h/openai/v1", "/api/ps", "https://h/openai/api/ps"),
        ("https://h/api/v1?api-version=2", "models?limit=9", "https://h/api/v1/models?limit=9&api-version=2"),
        ("https://h/v1?a=b", "models", "https://h/v1/models?a=b"),
    ],
)
def test_a_path_below_a_server(base: str, path: str, url: str) -> None:
    assert below(base, path) == url
