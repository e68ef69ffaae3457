"""The examination of the guest, by `quine doctor --guest`: one small session, as an agent would have it.

Laws
1. It asks for what an agent needs: tools, several calls in one reply, results that are taken back, the context.
2. Two inferences at most, with room for a short reply: they may cost something.
3. A fact that the server does not tell is said to be unknown, and is no failure.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, NamedTuple

from quine.base.text import plain
from quine.cli.doctor.findings import Finding

if TYPE_CHECKING:
    from quine.base.messages import GuestError, Message, Reply, Request
    from quine.providers.http import HttpGuest
    from quine.providers.vendors import Config

ROOM = 1024  # tokens of a reply: a model that thinks first needs more than its calls
NAMES = 8  # of models that are shown
TEXT = (
    "This is a test by your user. In one reply, call the tool sh twice: with the command `echo one`, and with the "
    "command `echo two`. When their results are there, call exit with the status 0."
)
WITHOUT_TOOLS = (
    "llama.cpp: --jinja; vLLM: --enable-auto-tool-choice --tool-call-parser; Ollama: a model that has tools"
)
LONGER = "Ollama: OLLAMA_CONTEXT_LENGTH; llama.cpp: -c; LM Studio: the length with which the model is loaded"


class Timed(NamedTuple):
    reply: Reply
    first: float  # seconds to the first byte
    took: float


def examine(config: Config) -> list[Finding]:
    """Return the findings on a guest. Raises Failure if it cannot be one."""
    from quine.providers.vendors import FILES

    where = f"{config.kind} at {config.base}"
    if config.kind in FILES:
        return [_of_file(config, where)]
    return asyncio.run(_of_server(config))


def _of_file(config: Config, where: str) -> Finding:
    """Make one call of a guest that is a file here."""
    from quine.base.messages import GuestError
    from quine.providers import vendors

    began = time.monotonic()
    try:
        reply = vendors.build(config).infer(_request(_opening()))
    except GuestError as error:
        return _failed(where, error)
    used = reply.usage
    took = f"replied in {time.monotonic() - began:.1f} s, {used.input} tokens in, {used.output} out"
    return Finding("ok", "guest", f"{where}: {took}")


async def _of_server(config: Config) -> list[Finding]:
    from quine.base.messages import GuestError
    from quine.providers import vendors

    guest = vendors.served(config)
    try:
        found: list[Finding] = []
        replied, reached = False, True
        try:
            if config.model:
                found += await _session(guest, config)
                replied = True
        except GuestError as error:
            reached = error.reached
            found.append(_failed(f"{config.kind} at {config.base}", error))
        models = await _models(guest, config, replied)
        reached = reached and models.facts.get("reached", True)
        found = [_way(config, reached), *found, models]
        if replied:
            context = await _context(guest, config)
            found += [context, _price(config), _settings(config, context.facts["served"])]
        return found
    finally:
        await guest.close()


def _failed(where: str, error: Exception) -> Finding:
    cure = getattr(error, "hint", "") or "look at QUINE_API_BASE, the key and QUINE_MODEL_ID"
    return Finding("fail", "guest", f"{where}: {error}", cure)


def _way(config: Config, reached: bool) -> Finding:
    from quine.providers.connecting import route_of, without_password

    route = route_of(config.base, os.environ)
    by = f"by the proxy {without_password(route.proxy)} ({route.variable})" if route.proxy else "directly"
    safe = config.base.startswith("https://")
    trusted = (
        f", with the certificates of {route.bundle or route.folder}" if route.bundle or route.folder else ""
    )
    detail = f"{config.base}: {by}, {f'by TLS{trusted}' if safe else 'without TLS'}"
    facts = {"base": config.base, "proxy": route.variable, "tls": safe}
    if not reached:
        variable = "OLLAMA_HOST" if os.environ.get("OLLAMA_HOST") else "QUINE_API_BASE"
        return Finding("fail", "way", f"{detail}; no connection", f"does it run there? see {variable}", facts)
    return Finding("ok", "way", detail, facts=facts)


# -- the session -------------------------------------------------------------------------------------


async def _session(guest: HttpGuest, config: Config) -> list[Finding]:
    """Return what the session has found. Raises GuestError if there was no reply."""
    from quine.base.messages import GuestError, Message, ToolResult

    messages = _opening()
    first = await _timed(guest, messages)
    found = [_speed(first, config)]
    calls = first.reply.message.tool_calls
    if not calls:
        said = plain(first.reply.message.text[:100], newlines=False)
        detail = f"none was called; it said: {said!r}" if said else "none was called, and it said nothing"
        return [*found, Finding("fail", "tools", detail, WITHOUT_TOOLS, {"calls": 0})]
    messages.append(first.reply.message)
    messages += [Message("tool", result=ToolResult(call.id, call.name, "one")) for call in calls]
    facts = {"calls": len(calls), "reasoning": bool(first.reply.message.reasoning)}
    try:
        second = await _timed(guest, messages)
    except GuestError as error:
        detail = f"its own call does not go back: {error}"
        return [*found, Finding("fail", "tools", detail, getattr(error, "hint", ""), facts)]
    ends = [call.name for call in second.reply.message.tool_calls]
    several = "several in one reply" if len(calls) > 1 else "one a reply"
    goes_on = "and it goes on with their results" if ends else "but behind their results it only talks"
    found.append(Finding("ok" if ends else "warn", "tools", f"they work, {several}, {goes_on}", facts=facts))
    found.append(_forms(guest, first.reply))
    return found


def _speed(timed: Timed, config: Config) -> Finding:
    used = timed.reply.usage
    rate = used.output / max(timed.took - timed.first, 0.001)
    speed = f", {rate:.0f} tokens a second" if used.output and timed.took - timed.first > 0.05 else ""
    detail = f"{config.model} replied in {timed.took:.1f} s, first byte after {timed.first:.1f} s{speed}"
    facts = {
        "first": round(timed.first, 3),
        "took": round(timed.took, 3),
        "input": used.input,
        "output": used.output,
    }
    if not used.input:
        return Finding("warn", "guest", f"{detail}; it tells no usage", "budgets count an estimate", facts)
    return Finding("ok", "guest", f"{detail}, {used.input} tokens in, {used.output} out", facts=facts)


def _forms(guest: HttpGuest, reply: Reply) -> Finding:
    """Return the finding on optional parts: reasoning, and what the server refuses."""
    thinks = "it shows reasoning, and takes it back" if reply.message.reasoning else "it shows no reasoning"
    lessons = guest.lessons
    left_out = f"; it refuses, and goes without: {', '.join(lessons)}" if lessons else ""
    return Finding("ok", "requests", f"{thinks}{left_out}", facts={"without": lessons})


async def _timed(guest: HttpGuest, messages: list[Message]) -> Timed:
    from quine.providers.way import Open

    class Watched(Open):
        first = 0.0

        def heard(self) -> None:
            self.first = self.first or time.monotonic()

    way, began = Watched(), time.monotonic()
    reply = await guest.infer(_request(messages), way=way)
    ended = time.monotonic()
    return Timed(reply, (way.first or ended) - began, ended - began)


def _opening() -> list[Message]:
    from quine.base.messages import Message

    return [Message("system", "You are tested by your user."), Message("user", TEXT)]


def _request(messages: list[Message]) -> Request:
    from quine.agent import tools
    from quine.base.messages import Request
    from quine.base.sessions import new_session

    return Request(messages, tools.TOOLS, new_session(), TEXT, output=ROOM)


# -- what it tells of itself -------------------------------------------------------------------------


async def _models(guest: HttpGuest, config: Config, replied: bool) -> Finding:
    """Return the finding on the list of models. A server that has replied may have none."""
    from quine.base.messages import GuestError
    from quine.providers import models

    try:
        names = await models.listed(guest)
    except GuestError as error:
        facts = {"models": [], "reached": error.reached}
        if replied:
            return Finding("ok", "models", f"it lists none: {error}", facts=facts)
        return Finding("fail", "models", f"no list: {error}", _cure_of_list(config, error), facts)
    shown = ", ".join(names[:NAMES]) + (f" and {len(names) - NAMES} more" if len(names) > NAMES else "")
    facts = {"models": names}
    if config.model in names or f"{config.model}:latest" in names:
        return Finding("ok", "models", f"{config.model} is one of {len(names)}: {shown}", facts=facts)
    if not config.model:
        return Finding("warn", "models", f"it lists {shown or 'none'}", "QUINE_MODEL_ID, or --model", facts)
    return Finding("warn", "models", f"{config.model} is not in its list: {shown or 'empty'}", facts=facts)


def _cure_of_list(config: Config, error: GuestError) -> str:
    from urllib.parse import urlsplit

    if not error.reached:
        return ""  # it stands below the way
    if config.kind in ("openai", "responses") and not urlsplit(config.base).path.strip("/"):
        return f"the base of most servers ends in /v1: QUINE_API_BASE={config.base}/v1"
    return getattr(error, "hint", "") or "see QUINE_API_BASE, and the key"


async def _context(guest: HttpGuest, config: Config) -> Finding:
    from quine.base import sizes
    from quine.budget.limits import Limits
    from quine.providers import models

    window = sizes.integer(os.environ, "QUINE_CONTEXT_WINDOW", Limits().window)
    tokens = await models.served(guest, config.model)
    facts = {"served": tokens, "window": window}
    if not tokens:
        detail = f"it does not tell how much it gives; an agent has {window} tokens"
        return Finding("ok", "context", detail, "QUINE_CONTEXT_WINDOW=N where it gives less", facts)
    if window and tokens < window:
        detail = (
            f"it gives {tokens} tokens, fewer than QUINE_CONTEXT_WINDOW ({window}): agents go by the smaller"
        )
        return Finding("warn", "context", detail, LONGER, facts)
    return Finding("ok", "context", f"it gives {tokens} tokens; an agent has {window}", facts=facts)


def _price(config: Config) -> Finding:
    from quine.base.messages import Usage
    from quine.budget import prices

    dollars = prices.cost(config.model, Usage(1_000_000))
    if dollars is None:
        cure = "for --max-cost: its price, in ~/.config/quine/prices.toml"
        return Finding("ok", "price", f"that of {config.model} is not known", cure, {"known": False})
    return Finding("ok", "price", f"${dollars:.2f} for a million tokens of input", facts={"known": True})


def _settings(config: Config, served: int) -> Finding:
    """Return the line that puts this guest into an environment; the key stays where it is."""
    from shlex import quote

    named = {"QUINE_API_TYPE": config.kind, "QUINE_API_BASE": config.base, "QUINE_MODEL_ID": config.model}
    if served:
        named["QUINE_CONTEXT_WINDOW"] = str(served)
    line = "export " + " ".join(f"{name}={quote(value)}" for name, value in named.items())
    return Finding("ok", "settings", line, facts={"environment": named})
