"""A hostile guest: thousands of bad calls, each answered once and in order, and the life goes on or ends by rule."""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quine import tools
from quine.guests.anthropic import AnthropicDialect
from quine.guests.base import GuestError, Message, Reply, Request, ToolCall, ToolResult
from quine.guests.chat import ChatDialect
from quine.guests.gemini import GeminiDialect
from quine.guests.responses import ResponsesDialect
from tests.agents import OK, Agents, call, says, sh
from tests.provider import anthropic, chat, gemini, responses
from tests.provider.server import KEY, Provider, Said

SEED = 20260
CALLS = int(
    os.environ.get("QUINE_TEST_CALLS", 2000)
)  # in one reply; 10000 is a minute where each is waited for
MEGABYTE = 1 << 20

# One thing of every kind that JSON has, and of every kind that a length, a range or an encoder may stumble over.
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, -0.0, 1e308, 10**400, [], {}, [None], [[[]]], {"": {}}, "", " ", "\0", "a\0b",
    "\ud800", "\udfff\ud800", "\ufeff", "\u2028", "\x1b[2J\x07", "'\"`$(exit 9)", "%s%n{}", "-", "../../etc", "é" * 999,
    "null", "0", {"type": "string"}, [0] * 999, {str(n): n for n in range(99)},
)  # fmt: skip
NO_TEXT = tuple(value for value in ODD if not isinstance(value, str))

NAMES = (
    "",
    " ",
    "sh ",
    "SH",
    "Sh",
    "sh\0",
    "shell",
    "fork\n",
    "functions.sh",
    "__class__",
    "\ud800",
    "é",
    "exit()",
    "{}",
)

RAW = (
    "{", "}", "[]", "null", "nul", "NaN", '{"command": NaN}', '{"command": Infinity}', '"sh"', "0", "-", '{"command"}',
    "{'command': 'true'}", '{"command": "true"', '{"command": "true"} x', '{"command": "\\ud800"}', "\0", "\ufeff{}",
    '{"command": "\\u0000"}', "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, "1" * 10_000,
    '{"timeout": ' + "9" * 5000 + "}",
    '{"command": "a\tb\nc"}', "\ud800", '{"command":"true","command":5}', '<invoke name="sh">', "true\n",
    '{"command": "' + "\\" * 9999, "{}" * 9,
)  # fmt: skip


def bad_call(drawn: random.Random) -> dict[str, Any]:
    """A call that no tool can carry out."""
    one = drawn.choice
    kind = drawn.randrange(8)
    if kind == 0:
        return call(one(NAMES), **{one(("command", "x", "")): one(ODD)})
    if kind == 1:
        return {"name": one(("sh", "fork", "exec", "exit")), "arguments": one(RAW)}
    if kind == 2:
        return call("sh", command=one((*NO_TEXT, "a\0b", "\ud800")))
    if kind == 3:
        return call("sh", command="echo never >&4", **one([
            {"timeout": one((None, True, 0, -1, "5", [], {}, 10**400))}, {"": 1}, {"cmd": "x"},
            {"\ud800": 1}, {"stdin": "\0"},
        ]))  # fmt: skip
    if kind == 4:
        return call("fork", **one([
            {}, {"intent": one((*NO_TEXT, "", " \n", "\0", "\ud800"))},
            {"children": one((*NO_TEXT, [{}], [{"intent": ""}]))},
            {"intent": "x", "children": [{"intent": "x"}]}, {"intent": "x", "wait": one((None, 1, "true", []))},
            {"intent": "x", "mode": one(ODD)}, {"intent": "x", "context": one(ODD)},
            {"intent": "x", "host": one((*NO_TEXT, "", "\0"))},
            {"intent": "x", "stdin": one((*NO_TEXT, "", "\0", "/no/such/file"))}, {"intent": "x", "?": 1},
            {"children": [{"intent": f"never {n}"} for n in range(2000)]},
        ]))  # fmt: skip
    if kind == 5:
        return call("exec", **one([
            {"wisdom": one(("", "x", [], [{}], 5, True, None))},
            {"wisdom": {one(("", "1a", "a-b", "a=b", "\0", "é", "a\n", "x" * 101)): "v"}},
            {"wisdom": {"k": one((*NO_TEXT, "\0", "\ud800", "w" * 200_000))}},
            {"argv": one(("", "true", [], [""], [5], ["\0"], ["/no/such/program"], ["/etc/passwd"], ["/"],
                ["\ud800"]))},
            {"reason": one(NO_TEXT)}, {"persona": 5}, {"?": one(ODD)},
        ]))  # fmt: skip
    if kind == 6:
        return call("exit", **one([
            {}, {"status": one((None, True, -1, 256, 1.5, 10**400, "", "ok", "0", [], {}))},
            {"status": 0, "stderr": "but"},            {"status": 3},
            {"status": 3, "stderr": one((" \n\t", *NO_TEXT))}, {"status": "failure"}, {"status": 0, "?": 1},
            {"code": 0},
        ]))  # fmt: skip
    return call(
        one(("sh", "fork", "exec", "exit")), **{f"k{n}": one(ODD) for n in range(1, drawn.randrange(2, 20))}
    )


def batches(calls: list[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """As replies, each with one call that is right at its end: a life of nothing but refusals would be ended."""
    return [says(*calls[at : at + size], sh("true")) for at in range(0, len(calls), size)]


# The deliverable of these agents: the most memory they have had (kB), and how often they wrote.
MEASURE = "grep -h -e VmHWM -e syscw /proc/$PPID/status /proc/$PPID/io | tr -dc '0-9\\n' >&4"


def measured(out: bytes) -> tuple[int, int]:
    """Bytes and writes."""
    kilobytes, writes = out.split()
    return int(kilobytes) * 1024, int(writes)


def answered(tape: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each call with its one answer; the answers of a reply stand behind it in the order of its calls."""
    pairs = []
    entries = iter(tape)
    for entry in entries:
        for asked in entry["data"].get("tool_calls", ()) if entry["type"] == "message" else ():
            if (asked["name"], asked["arguments"]) == (OK["name"], OK["arguments"]):
                continue
            answer = next(entries)
            assert answer["type"] == "tool_result", answer
            assert answer["data"]["tool_id"] == asked["id"]
            pairs.append((asked, answer["data"]))
    for entry in tape:
        ids = [asked["id"] for asked in entry["data"].get("tool_calls", ())]
        assert len(set(ids)) == len(ids)
    return pairs


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    made = Agents(tmp_path)
    made.env |= {"QUINE_MAX_TURNS": "0", "QUINE_CONTEXT_WINDOW": "0"}
    return made


def test_a_thousand_bad_calls(agents: Agents) -> None:
    drawn = random.Random(SEED)
    calls = [bad_call(drawn) for _ in range(1000)]
    begun = time.monotonic()
    done = agents.run(*batches(calls, 50), says(sh(MEASURE), OK))
    assert (done.returncode, done.stderr) == (0, b"")
    pairs = answered(agents.tape())
    assert len(pairs) == 1000 + 20 + 1
    wrong = [
        (asked, answer)
        for asked, answer in pairs
        if asked["arguments"].get("command") not in ("true", MEASURE)
    ]
    assert [pair for pair in wrong if not pair[1]["is_error"]] == []
    assert b"never" not in done.stdout
    memory, _ = measured(done.stdout)
    assert memory < 20 * (agents.directory / "script.jsonl").stat().st_size + 40 * MEGABYTE
    assert time.monotonic() - begun < 60


@pytest.mark.xfail(strict=True, reason="each refused call is waited for on the disk")
def test_thousands_of_calls_in_one_reply(agents: Agents) -> None:
    """A refused call did nothing: its answer need not be on the disk before the next one is looked at."""
    done = agents.run(says(*(call("nope", n=n) for n in range(CALLS)), sh(MEASURE)), says(OK))
    assert (done.returncode, done.stderr) == (0, b"")
    pairs = answered(agents.tape())
    assert [asked["arguments"].get("n") for asked, _ in pairs[:-1]] == list(range(CALLS))
    memory, writes = measured(done.stdout)
    assert memory < 100 * MEGABYTE
    assert writes < CALLS / 10


def test_what_was_wrong_is_quoted_in_short(agents: Agents) -> None:
    """The guest may send megabytes; it does not get them back twice."""
    long = "x" * MEGABYTE
    calls = [
        call(long), call(""), call("sh", command="true", **{long: 1}), call("sh", command="true", timeout=10**4000),
        call("fork", intent="x", mode=long), call("exit", status=long), call("exec", wisdom={long: "v"}),
        call("exec", argv=[long]), call("fork", intent="x", stdin=long), call("sh", command=long + "\0"),
        {"name": "sh", "arguments": "{" + long}, call("exec", wisdom={"k": long}),
        call("fork", intent="x", wait=[long] * 9),
        call("fork", intent="x", mode=[long] * 9), call("fork", intent="x", files=long), call("exit", status=[long]),
    ]  # fmt: skip
    done = agents.run(says(*calls, sh("true")), says(OK))
    assert (done.returncode, done.stderr) == (0, b"")
    pairs = answered(agents.tape())
    assert all(answer["is_error"] for _, answer in pairs[:-1])
    assert {
        answer["content"][:60]: len(answer["content"]) for _, answer in pairs if len(answer["content"]) > 2000
    } == {}


def test_megabytes_that_are_right(agents: Agents) -> None:
    """A long command is no bad call; it is carried out, whatever its length."""
    size = 8 * MEGABYTE
    done = agents.run(
        says(sh(f"x={'y' * size}; echo ${{#x}} >&4")),
        says(sh(f": {'é' * MEGABYTE}\necho on >&4")),
        says(sh(MEASURE), OK),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    length, on, *rest = done.stdout.split()
    assert (int(length), on) == (size, b"on")
    assert measured(b" ".join(rest))[0] < 12 * size + 40 * MEGABYTE


def test_nothing_but_bad_calls_ends_by_rule(agents: Agents) -> None:
    drawn = random.Random(SEED + 1)
    calls = [bad_call(drawn) for _ in range(12 * 30)]
    done = agents.run(*(says(*calls[at : at + 30]) for at in range(0, len(calls), 30)))
    assert done.returncode == 1
    assert b"every call of 10 replies in a row had to be refused" in done.stderr
    assert len(answered(agents.tape()[:-1])) == 10 * 30
    assert agents.outcome()["termination_mode"] == "error"


# -- over the wire ---------------------------------------------------------------------------------

VENDORS = {
    "openai": (chat, ChatDialect, "/v1"),
    "responses": (responses, ResponsesDialect, "/v1"),
    "anthropic": (anthropic, AnthropicDialect, ""),
    "gemini": (gemini, GeminiDialect, ""),
}
wires = pytest.mark.parametrize("kind", VENDORS)


def can_be_sent(one: dict[str, Any]) -> bool:
    """By a vendor, in pieces of a few bytes: short, and JSON. Some make {} of what is no object: a good exec."""
    text = json.dumps(one)
    odd = [word for word in ("\\\\ud800", "\\ud", "NaN", "Infinity") if word in text]
    good = (one["name"], type(one["arguments"])) == ("exec", str)
    return not odd and not good and one["name"] in tools.BY_NAME and len(text) < 2000


def reach(kind: str, provider: Provider) -> dict[str, str]:
    base = provider.base + VENDORS[kind][2]
    return {"QUINE_API_TYPE": kind, "QUINE_API_BASE": base, "QUINE_API_KEY": KEY, "QUINE_MODEL_ID": "m"}


@wires
def test_bad_calls_from_a_server(agents: Agents, kind: str) -> None:
    """Each request that follows is what the vendor accepts: every call answered, once, in order, by its own id."""
    drawn = random.Random(SEED + 2)
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


@wires
@pytest.mark.xfail(
    strict=True, reason="the history holds the name as it was made up, and the vendor refuses it for ever"
)
def test_names_that_their_vendor_would_not_take_back(agents: Agents, kind: str) -> None:
    """Models make them up, and each further request holds what they said."""
    names = ("functions.sh", "", "sh ", "x" * 200)
    plan = [Said(calls=(call(name, x=1),)) for name in names]
    with Provider(VENDORS[kind][0], *plan, Said(calls=(OK,))) as provider:
        done = agents.run(mission="work", env=reach(kind, provider))
    assert (done.returncode, done.stderr) == (0, b"")
    assert [text.startswith("Bad call: unknown tool") for text in agents.results()] == [True] * len(names)


def mutated(drawn: random.Random, value: Any) -> Any:
    """`value` with one thing in it, somewhere, that is something else, missing, or twice there."""
    if isinstance(value, dict | list) and value and drawn.random() < 0.8:
        at = drawn.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy = value.copy()
        if drawn.random() < 0.15:
            del copy[at]
        elif isinstance(copy, list) and drawn.random() < 0.15:
            copy.append(copy[at])
        else:
            copy[at] = mutated(drawn, copy[at])
        return copy
    return drawn.choice(ODD)


@wires
def test_mutated_answers(kind: str) -> None:
    """What a server may send is a reply or an error of the guest; a reply can be kept, sent back and answered."""
    drawn = random.Random(SEED + 3)
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


# -- what stands between the guest and the tools --------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["\ud800", "\0"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
ARGUMENTS = [name for tool in tools.TOOLS for name in tool.schema["properties"]]


@given(
    st.sampled_from([*tools.BY_NAME, "", "nope"]),
    st.dictionaries(st.sampled_from(ARGUMENTS) | st.text(max_size=5), JSON, max_size=5),
)
def test_any_arguments_are_judged(name: str, args: dict[str, Any]) -> None:
    fault = tools.fault(name, args)
    assert isinstance(fault, str)
    json.dumps(fault)
    if name in tools.BY_NAME and not fault:
        assert set(args) <= set(tools.BY_NAME[name].schema["properties"])


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")) | JSON.map(json.dumps))
def test_any_argument_string_is_read_or_refused(raw: str) -> None:
    parsed = ToolCall.parse("id", "sh", raw)
    assert (parsed.id, parsed.name, parsed.raw) == ("id", "sh", raw)
    assert ToolCall.from_json(json.loads(json.dumps(parsed.to_json()))) == parsed
    if not parsed.fault and raw.strip():
        assert parsed.args == json.loads(raw)
