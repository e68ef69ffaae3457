"""Ids of calls for Mistral, which takes nine letters and digits alone.

The history of an agent whose guest was changed has those of another server.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from quine.agent.tools import TOOLS
from quine.base.messages import Message, Request, ToolCall, ToolResult
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.faults import Adapted
from quine.providers.http import HttpGuest
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Seen, Turn

MISTRAL = "https://api.mistral.ai/v1"
BEGIN = [Message("system", "be"), Message("user", "do")]
IDS = (
    "call_" + "x" * 19,
    "a:0",
    "b",
    "",
    "functions.sh:0",
    "toolu_01A09q90qw90lq917835lq9",
    "Abcdef123",
    "ä" * 9,
)
REFUSAL = "Tool call id was {} but must be a-z, A-Z, 0-9, with a length of 9."


def turn(*ids: str, raw: bool = True) -> list[Message]:
    """A reply of another server with calls, and their results."""
    calls = tuple(ToolCall(id, "sh", {"command": id}) for id in ids)
    own = [{"id": c.id, "type": "function", "function": {"name": "sh", "arguments": "{}"}} for c in calls]
    reply = Message("assistant", "", calls, raw={"chat": {"tool_calls": own}} if raw else {"gemini": []})
    return [reply, *(Message("tool", result=ToolResult(c.id, c.name, "done")) for c in calls)]


def sent(messages: list[Message], base: str = MISTRAL, *without: str) -> list[dict[str, Any]]:
    dialect = ChatDialect("m")
    dialect.url(base)
    body = dialect.body(Request([*BEGIN, *messages], TOOLS), without)
    return list(body["messages"][2:])


def ids(messages: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """The ids of the calls, and those of the results."""
    calls = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    return calls, [message["tool_call_id"] for message in messages if message["role"] == "tool"]


@pytest.mark.parametrize("raw", [True, False], ids=["chat completions", "another dialect"])
def test_ids_of_another_server(raw: bool) -> None:
    messages = turn(*IDS, raw=raw)
    before = repr(messages)
    calls, results = ids(sent(messages))
    assert calls == results
    assert len(set(calls)) == len(IDS) and all(re.fullmatch("[a-zA-Z0-9]{9}", one) for one in calls)
    assert calls[IDS.index("Abcdef123")] == "Abcdef123"
    assert repr(messages) == before
    # A longer conversation begins alike, for the cache: also where an id of its own is the one that was made.
    longer, _ = ids(sent([*messages, *turn(calls[0], raw=raw), *turn(IDS[1], raw=raw)]))
    assert longer[: len(calls)] == calls
    assert longer[-2] not in calls and longer[-1] == calls[1]


def test_other_servers_get_the_ids_that_they_made() -> None:
    for base in ("http://host/v1", "https://api.mistral.ai.example/v1"):
        assert ids(sent(turn(*IDS), base)) == ([*IDS], [*IDS])


def test_a_refusal_that_openrouter_passes_on_teaches_the_same() -> None:
    dialect = ChatDialect("m")
    dialect.url("https://openrouter.ai/api/v1")
    raw = json.dumps({"object": "error", "message": REFUSAL.format(IDS[0]), "type": "invalid_function_call"})
    said = {
        "message": "Provider returned error",
        "code": 400,
        "metadata": {"raw": raw, "provider_name": "Mistral"},
    }
    fault = dialect.fault(400, {"error": said})
    assert isinstance(fault, Adapted) and fault.parts == {"ids"}
    quoted = {**said, "message": "the prompt was flagged"}  # such words may be those of the conversation
    assert not isinstance(dialect.fault(400, {"error": quoted}), Adapted)


@pytest.mark.parametrize(
    "message",
    [
        REFUSAL.format(IDS[0]),
        f"1 validation error: {REFUSAL.format('a:0')} [type=value_error]",
        "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got "
        "a string with length 54 instead.",
    ],
)
def test_a_refusal_of_an_id_teaches_to_send_others(message: str) -> None:
    dialect = ChatDialect("m")
    dialect.url("http://host/v1")
    fault = dialect.fault(400, {"object": "error", "message": message, "type": "invalid_request_error"})
    assert isinstance(fault, Adapted) and fault.parts == {"ids"}


class Strict:
    """A server with Mistral's tokenizer on any host, such as vLLM's."""

    error, reply_json, reply_events = chat.error, chat.reply_json, chat.reply_events

    @staticmethod
    def check(headers: Any, path: str, body: Any) -> None:
        pass


def test_a_server_on_any_host_is_asked_again_with_its_own_ids() -> None:
    def choose(seen: Seen) -> Turn:
        wrong = [one for one in ids(seen.body["messages"])[0] if not re.fullmatch("[a-zA-Z0-9]{9}", one)]
        return Fault(400, "bad", message=REFUSAL.format(wrong[0])) if wrong else Said("hi")

    async def work(base: str) -> list[str]:
        guest = HttpGuest(ChatDialect("m"), f"{base}/v1", KEY)
        try:
            asked = Request([*BEGIN, *turn(*IDS)], TOOLS)
            texts = [(await guest.infer(asked)).message.text for _ in range(2)]
            assert guest.lessons == ["ids"]
            return texts
        finally:
            await guest.close()

    with Provider(Strict, choose=choose) as provider:
        assert asyncio.run(work(provider.base)) == ["hi", "hi"]
        assert len(provider.bodies) == 3
