"""A conversation as strict turns, for the dialects in which user and guest must alternate.

Laws
1. Every call of a reply is answered exactly once, directly after it, in the order of the calls; text comes after that.
2. The user's side begins and ends. Messages that the API refuses (a blank text, a call without a result, a result
   without a call) are repaired here, once for all dialects. The host loop makes none of them; an edited tape may.
3. A reply that this dialect made is sent back unchanged, ids and all. Every other reply is brought into a form that any
   provider takes: ids and names of the usual letters, no id twice.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Sequence

from quine.base.messages import Message, Request, ToolCall, ToolResult
from transport.lean import Any, NamedTuple

FIT = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}")  # ids and names that the strictest provider takes
NAMES = {  # names of calls that a provider takes, also in its own replies
    "anthropic": re.compile(r"[a-zA-Z0-9_-]{1,128}"),
    "gemini": re.compile(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,127}"),
}
USUAL = re.compile(r"[a-zA-Z0-9_-]{1,64}")
# Tokens of a reply; the second if a model, or the rest of its window, takes less.
OUTPUT, SMALL = 16384, 4096
BEGIN, GO_ON, EMPTY = "Begin.", "Go on.", "(empty)"
NO_RESULT = "There is no result: this call was not carried out."


class User(NamedTuple):
    """The user's side of a turn; `results` answer the calls of the reply before it."""

    results: tuple[ToolResult, ...] = ()
    texts: tuple[str, ...] = ()


class Conversation(NamedTuple):
    system: str
    first: User
    rest: list[tuple[Message, User]]  # a reply of the guest, and the user's side after it


def split(messages: Iterable[Message], dialect: str) -> Conversation:
    """Return the conversation as `dialect` must send it."""
    system: list[str] = []
    sides: list[tuple[Message | None, list[ToolResult], list[str]]] = [(None, [], [])]
    for message in messages:
        if message.role == "assistant":
            sides.append((message, [], []))
        elif message.result is not None:
            sides[-1][1].append(message.result)
        elif text := message.text if message.text.strip() else "":
            (system if message.role == "system" else sides[-1][2]).append(text)
    kept = {call.id for reply, _, _ in sides if reply and own(reply, dialect) for call in reply.tool_calls}
    given: set[str] = set()
    rest: list[tuple[Message, User]] = []
    first = User()
    for reply, results, texts in sides:
        pairs, orphans = _paired(reply.tool_calls if reply else (), results)
        said = [*orphans, *texts]
        if reply is None:
            first = User((), tuple(said or [BEGIN]))
            continue
        if not own(reply, dialect):
            pairs = [_adapted(call, result, kept, given) for call, result in pairs]
            reply = reply._replace(tool_calls=tuple(call for call, _ in pairs), raw=None)
        rest.append((reply, User(tuple(result for _, result in pairs), tuple(said))))
    if rest and rest[-1][1] == User():
        rest[-1] = (rest[-1][0], User((), (GO_ON,)))
    return Conversation("\n\n".join(system), first, rest)


def output(request: Request, small: bool) -> int:
    """Return the most tokens that the reply may have."""
    wanted = request.output or OUTPUT
    return min(wanted, SMALL) if small else wanted


def own(reply: Message, dialect: str) -> list[dict[str, Any]] | None:
    """Return the list of blocks, items or parts that this dialect kept of its own reply; None for any other reply."""
    kept = (reply.raw or {}).get(dialect)
    whole = isinstance(kept, list) and all(isinstance(part, dict) for part in kept)
    return kept if whole and named(reply, dialect) else None


def named(reply: Message, dialect: str) -> bool:
    """Return True if its calls can be sent back by name. A model may invent a name, which every later request holds."""
    return all(NAMES.get(dialect, USUAL).fullmatch(call.name) for call in reply.tool_calls)


def fit(name: str) -> str:
    """Return the name, or a similar one that any provider takes."""
    return name if FIT.fullmatch(name) else "_" + re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:63]


def arguments(call: ToolCall) -> dict[str, Any]:
    """Return the arguments as the object that a provider requires, even if they could not be parsed."""
    return {"unreadable": call.raw} if call.fault else call.args


def argument_text(call: ToolCall) -> str:
    """Return the arguments as they came if they are an object of JSON, else as such a one.

    vLLM, llama.cpp and Ollama parse the arguments of old calls: one that is not JSON ends the session.
    """
    as_came = call.raw.strip() and not (call.fault or call.repair)
    return call.raw if as_came else json.dumps(arguments(call), ensure_ascii=False)


def _paired(
    calls: Sequence[ToolCall], results: list[ToolResult]
) -> tuple[list[tuple[ToolCall, ToolResult]], list[str]]:
    """Return each call with its result, and the texts of results without a call."""
    left = list(results)
    pairs = []
    for call in calls:
        found = next((result for result in left if result.call_id == call.id), None)
        if found is None:
            found = ToolResult(call.id, call.name, NO_RESULT, True)
        else:
            left.remove(found)
        pairs.append((call, found._replace(name=call.name, text=found.text if found.text.strip() else EMPTY)))
    return pairs, [result.text for result in left if result.text.strip()]


def _adapted(
    call: ToolCall, result: ToolResult, kept: set[str], given: set[str]
) -> tuple[ToolCall, ToolResult]:
    """Return another dialect's call and result, with an id and a name that this dialect's provider takes.

    `given` holds only the ids before it, so that a longer conversation keeps the ids of its beginning.
    """
    fresh = call.id
    numbers = itertools.count(len(given))
    while not FIT.fullmatch(fresh) or fresh in kept or fresh in given:
        fresh = f"call_{next(numbers)}"
    given.add(fresh)
    name = fit(call.name)
    return call._replace(id=fresh, name=name), result._replace(call_id=fresh, name=name)
