"""The dialect of chat completions against a strict server, then a whole agent that has only this server to live on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from quine.agent.tools import TOOLS
from quine.base.messages import Message, Request, ToolResult, Usage
from quine.providers.dialects.chat import ChatDialect
from quine.providers.http import HttpGuest
from tests.lab import Lab
from tests.support.agents import OK, Agents, call
from tests.support.blocking import BlockingGuest
from tests.vendors import chat
from tests.vendors.server import (
    KEY,
    Cut,
    Fault,
    Inside,
    Provider,
    Raw,
    Said,
    Silent,
    Slow,
    Turn,
    Whole,
)

ASKED = Request([Message("system", "be"), Message("user", "do")], TOOLS)
WORK = Said("", (call("sh", command="echo a"), call("sh", command="echo b")), "hm, think", usage=(50, 5, 9))
BYE = Said("", (OK,))


@pytest.mark.parametrize("turn", [WORK, Whole(WORK), Slow(WORK)], ids=["streamed", "whole", "slow"])
def test_a_conversation(turn: Turn) -> None:
    """Reasoning and argument strings go back as they came: the server would refuse anything else."""
    with Provider(chat, turn, BYE) as provider:
        guest = BlockingGuest(lambda: HttpGuest(ChatDialect("m"), f"{provider.base}/v1", KEY))
        first = guest.infer(ASKED)
        results = [Message("tool", result=ToolResult(c.id, c.name, "done")) for c in first.message.tool_calls]
        second = guest.infer(ASKED._replace(messages=[*ASKED.messages, first.message, *results], output=50))
        guest.close()
    assert first.usage == Usage(50, 5, 9)
    assert second.message.tool_calls[0].args == {"status": 0}
    assert provider.bodies[1]["max_tokens"] == 50
    assert provider.bodies[1]["messages"][2]["reasoning_content"] == "hm, think"


def test_the_strict_server_is_strict() -> None:
    """The test above relies on these rules of the server."""
    first = ChatDialect("m").reply(chat.reply_json(WORK)).message
    results = [Message("tool", result=ToolResult(c.id, c.name, "done")) for c in first.tool_calls]
    headers = {"authorization": f"Bearer {KEY}"}

    def objection(*messages: Message, **more: Any) -> str | None:
        body = ChatDialect("m").body(ASKED._replace(messages=[*ASKED.messages, *messages]))
        return chat.check(headers, chat.PATH, {**body, **more})

    assert objection(first, *results) is None
    assert first.raw is not None
    respelled = {**first.raw["chat"], "tool_calls": json.loads(json.dumps(first.raw["chat"]["tool_calls"]))}
    respelled["tool_calls"][0]["function"]["arguments"] = '{"command":"echo a"}'
    thoughtless = {k: v for k, v in first.raw["chat"].items() if not k.startswith("reasoning")}
    for wrong in (respelled, thoughtless):
        assert "not what was sent" in (objection(first._replace(raw={"chat": wrong}), *results) or "")
    assert objection(first, results[0]) and objection(*results) and objection(first, *results, results[0])
    assert objection(n=1) and objection(tools=[]) and objection(max_tokens=0) and objection(stream=False)
    assert chat.check({}, chat.PATH, {}) and chat.check(headers, "/v1/v1/chat/completions", {})


# -------------------------------------------------------------------------------------- a whole agent


def settings(provider: Provider) -> dict[str, str]:
    return {
        "QUINE_API_TYPE": "openai",
        "QUINE_API_BASE": f"{provider.base}/v1",
        "QUINE_API_KEY": KEY,
        "QUINE_MODEL_ID": "m",
    }


def life(agents: Agents, provider: Provider, **more: Any) -> Any:
    return agents.run(env=settings(provider), **more)


def test_a_life(agents: Agents) -> None:
    """Calls in parallel, reasoning handed back, a reply without a call, bad arguments, material and a deliverable."""
    copy = Said("so", (call("sh", command="echo a"), call("sh", command="cat <&3 >&4")), "hmm")
    bad = Said("", ({"name": "sh", "arguments": "{not json"}, call("nope"), call("sh", command=5)))
    with Provider(chat, Slow(copy), Said("thinking aloud"), Said(""), bad, Whole(BYE)) as provider:
        done = life(agents, provider, input=b"material")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"material", b"")
    last = provider.bodies[-1]["messages"]
    roles = [
        *("system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant", "user"),
        *("assistant", "tool", "tool", "tool"),
    ]
    assert [message["role"] for message in last] == roles
    assert "work" in last[0]["content"] and "a\n" in last[3]["content"]
    assert all("Bad call" in message["content"] for message in last[-3:])
    assert agents.outcome()["termination_mode"] == "exit"
    kept = b"".join(path.read_bytes() for path in agents.data.rglob("*") if path.is_file())
    assert KEY.encode() not in kept


def test_an_agent_goes_by_the_context_that_its_server_gives(agents: Agents) -> None:
    """One that gives less cuts what is longer, often without a word. It is asked beside the first inference."""
    waits = Said("", (call("sh", command="until test -e known; do sleep 0.01; done"),), usage=(900, 10, 0))
    with Provider(chat, waits, Said("", (call("sh", command=":"),), usage=(3000, 10, 0)), BYE) as provider:
        provider.facts["/props"] = {"default_generation_settings": {"n_ctx": 4096}}
        provider.told = lambda path: path == "/props" and (agents.directory / "known").touch()
        done = life(agents, provider)
    assert (done.returncode, done.stderr) == (0, b"")
    first, second = (body["messages"][-1]["content"] for body in provider.bodies[1:])
    shown = [text for text in (first, second) if "gives you 4096 tokens" in text]
    assert len(shown) == 1 and "less than the 128000" in shown[0]
    assert "[CONTEXT USED] 3K of 4K" in second


def test_a_life_elsewhere(lab: Lab, tmp_path: Path) -> None:
    """Inference is asked of the origin: the key stays here, and what goes back is what came."""
    with Provider(chat, WORK, BYE) as provider:
        env = {**settings(provider), "QUINE_DATA_DIR": str(tmp_path / "data")}
        done = lab.run(["--on", "h1", "work"], env=env)
        assert (done.returncode, done.stderr) == (0, b"")
    assert len(provider.requests) == 2


def test_a_signal_in_the_middle_of_an_answer(agents: Agents) -> None:
    with (
        Provider(chat, Silent(WORK, 2)) as provider,
        agents.start("work", env=settings(provider)) as process,
    ):
        assert provider.silent.wait(120)
        process.terminate()
        out, _ = process.communicate(timeout=120)
        assert (process.returncode, out) == (-signal.SIGTERM, b"")
        assert provider.hung_up.wait(120)
    assert agents.outcome()["termination_mode"] == "signal"


@pytest.mark.long
def test_trouble_on_the_way_is_not_seen(agents: Agents) -> None:
    soon = {"retry-after-ms": "1"}
    plan = [
        Fault(429, "rate", soon), Fault(503, "overloaded", soon), Said("", (call("sh", command="echo a >&4"),)),
        Fault(529, "overloaded", soon), Fault(400, "bad", message="Unknown parameter: 'stream_options'"),
        Cut(BYE, 2, torn=True), BYE,
    ]  # fmt: skip
    with Provider(chat, *plan) as provider:
        done = life(agents, provider)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"a\n", b"")
    assert "stream_options" not in provider.bodies[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("turn", "code", "says"),
    [
        (Fault(401, "auth"), 2, b"Incorrect API key"),
        (Fault(404, "model"), 2, b"does not exist"),
        (Fault(429, "quota"), 2, b"quota"),
        (Raw(308, headers={"Location": "http://other.example"}), 2, b"has moved to http://other.example"),
        (Inside("quota", BYE, 2), 2, b"quota"),
        (Fault(400, "bad", message="no such field"), 1, b"no such field"),
        (Fault(429, "rate", {"Retry-After": "3600"}), 75, b"it asks to wait 3600 s"),
    ],
    ids=["key", "model", "quota", "moved", "quota inside", "bad", "much later"],
)
def test_what_never_helps_ends_the_life(agents: Agents, turn: Turn, code: int, says: bytes) -> None:
    with Provider(chat, turn) as provider:
        done = life(agents, provider)
    assert (done.returncode, done.stdout) == (code, b"")
    assert says in done.stderr and done.stderr.startswith(b"quine: error: ")
