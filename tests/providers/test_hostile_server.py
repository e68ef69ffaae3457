"""A hostile server: bad calls over the wire of every vendor, names that it would not take back, mutated answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from quine.agent import tools
from quine.base.messages import GuestError, Message, Reply, Request, ToolResult
from quine.providers.dialects.anthropic import AnthropicDialect
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.gemini import GeminiDialect
from quine.providers.dialects.responses import ResponsesDialect
from tests.support.agents import OK, Agents, call, sh
from tests.support.hostile_guest import MEASURE, MEGABYTE, answered, bad_call, measured, mutated
from tests.vendors import anthropic, chat, gemini, responses
from tests.vendors.server import KEY, Provider, Said

SEED = 20262


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    made = Agents(tmp_path)
    made.env |= {"QUINE_MAX_TURNS": "0", "QUINE_CONTEXT_WINDOW": "0"}
    return made


VENDORS = {
    "openai": (chat, ChatDialect, "/v1"),
    "responses": (responses, ResponsesDialect, "/v1"),
    "anthropic": (anthropic, AnthropicDialect, ""),
    "gemini": (gemini, GeminiDialect, ""),
}
wires = pytest.mark.parametrize("kind", VENDORS)


def can_be_sent(one: dict[str, Any]) -> bool:
    """Whether a vendor can send the call in pieces: short, and JSON. Some send {} for a non-object, a valid exec."""
    text = json.dumps(one)
    odd = [word for word in ("\\\\ud800", "\\ud", "NaN", "Infinity") if word in text]
    good = (one["name"], type(one["arguments"])) == ("exec", str)
    return not odd and not good and one["name"] in tools.BY_NAME and len(text) < 2000


def reach(kind: str, provider: Provider) -> dict[str, str]:
    base = provider.base + VENDORS[kind][2]
    return {"QUINE_API_TYPE": kind, "QUINE_API_BASE": base, "QUINE_API_KEY": KEY, "QUINE_MODEL_ID": "m"}


@pytest.mark.long
@wires
def test_bad_calls_from_a_server(agents: Agents, kind: str) -> None:
    """The vendor accepts each following request: every call answered, once, in order, by its own id."""
    drawn = random.Random(SEED)
    calls = [one for one in (bad_call(drawn) for _ in range(500)) if can_be_sent(one)][:250]
    plan = [Said(calls=(*calls[at : at + 50], sh("true"))) for at in range(0, 250, 50)]
    vendor = VENDORS[kind][0]
    with Provider(vendor, *plan, Said(calls=(sh(MEASURE), OK))) as provider:
        done = agents.run(mission="work", env=reach(kind, provider))
    assert (done.returncode, done.stderr) == (0, b"")
    pairs = answered(agents.tape())
    assert len(pairs) == 250 + 5 + 1
    assert sum(not answer["is_error"] for _, answer in pairs) == 5 + 1
    assert measured(done.stdout)[0] < 200 * MEGABYTE


@pytest.mark.long
@wires
def test_names_that_their_vendor_would_not_take_back(agents: Agents, kind: str) -> None:
    """Models invent such names, and each further request holds their calls."""
    names = ("functions.sh", "", "sh ", "x" * 200)
    plan = [Said(calls=(call(name, x=1),)) for name in names]
    with Provider(VENDORS[kind][0], *plan, Said(calls=(OK,))) as provider:
        done = agents.run(mission="work", env=reach(kind, provider))
    assert (done.returncode, done.stderr) == (0, b"")
    answered = len(names) - (kind == "openai")  # a chat call without a name is none, and is reminded
    assert [text.startswith("Bad call: ") for text in agents.results()] == [True] * answered


@pytest.mark.long
@wires
def test_mutated_answers(kind: str) -> None:
    """Any answer becomes a reply or an error of the guest. A reply can be kept, sent back and answered."""
    drawn = random.Random(SEED + 1)
    vendor, make, _ = VENDORS[kind]
    said = Said("text", (sh("true"), call("fork", intent="x"), sh("false")), "thoughts")
    dialect = make("m")
    whole, events = vendor.reply_json(said), list(vendor.reply_events(said))
    replies = 0
    for number in range(1500):
        try:
            if number % 2:
                data = mutated(drawn, whole)
            else:
                stream, broken = dialect.stream(), events.copy()
                at = drawn.randrange(len(events))
                broken[at] = (broken[at][0], mutated(drawn, broken[at][1]))
                complete = any(stream.feed(*event) for event in broken)
                data = stream.whole()
                assert isinstance(complete, bool)
            reply = dialect.reply(data)
        except GuestError as error:
            assert len(str(error)) < 5000
            continue
        replies += 1
        message = reply.message
        assert Reply.from_json(json.loads(json.dumps(reply.to_json()))) == reply
        ids = [one.id for one in message.tool_calls]
        assert len(set(ids)) == len(ids) and all(ids)
        results = [Message("tool", result=ToolResult(one.id, one.name, "done")) for one in message.tool_calls]
        conversation = [
            Message("system", "be"),
            Message("user", "do"),
            message,
            *(results or [Message("user", "?")]),
        ]
        json.dumps(dialect.body(Request(conversation, tools.TOOLS)), allow_nan=False)
    assert 100 < replies < 1400
