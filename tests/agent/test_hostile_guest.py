"""A hostile guest: thousands of bad calls, each answered once and in order, and the life goes on or ends by rule."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.agent import tools
from quine.base.messages import ToolCall
from tests.support.agents import OK, Agents, call, says, sh
from tests.support.hostile_guest import MEASURE, MEGABYTE, answered, bad_call, batches, measured

SEED = 20260
CALLS = 2000  # in one reply


@pytest.fixture
def agents(tmp_path: Path) -> Agents:
    made = Agents(tmp_path)
    made.env |= {"QUINE_MAX_TURNS": "0", "QUINE_CONTEXT_WINDOW": "0"}
    return made


@pytest.mark.long
def test_a_thousand_bad_calls(agents: Agents) -> None:
    drawn = random.Random(SEED)
    calls = [bad_call(drawn) for _ in range(1000)]
    before = os.times()
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
    now = os.times()  # of processors: seconds of a clock would be those of a busy machine
    assert now.children_user + now.children_system - before.children_user - before.children_system < 60


def test_thousands_of_calls_in_one_reply(agents: Agents) -> None:
    """A refused call did nothing: its answer need not be on the disk before the next one is looked at."""
    done = agents.run(says(*(call("nope", n=n) for n in range(CALLS)), sh(MEASURE)), says(OK))
    assert (done.returncode, done.stderr) == (0, b"")
    pairs = answered(agents.tape())
    assert [asked["arguments"].get("n") for asked, _ in pairs[:-1]] == list(range(CALLS))
    memory, writes = measured(done.stdout)
    assert memory < 60 * MEGABYTE
    assert writes < CALLS / 10


def test_what_was_wrong_is_quoted_in_short(agents: Agents) -> None:
    """The guest may send megabytes; it does not get them back twice."""
    long = "x" * 200_000  # longer than a string of execve may be
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
    size = 2 * MEGABYTE
    done = agents.run(
        says(sh(f"x={'y' * size}; echo ${{#x}} >&4")),
        says(sh(f": {'é' * 200_000}\necho on >&4")),
        says(sh(MEASURE), OK),
    )
    assert (done.returncode, done.stderr) == (0, b"")
    length, on, *rest = done.stdout.split()
    assert (int(length), on) == (size, b"on")
    assert measured(b" ".join(rest))[0] < 12 * size + 40 * MEGABYTE


def test_nothing_but_bad_calls_ends_by_rule(agents: Agents) -> None:
    drawn = random.Random(SEED + 1)
    calls = [bad_call(drawn) for _ in range(12 * 8)]
    done = agents.run(*(says(*calls[at : at + 8]) for at in range(0, len(calls), 8)))
    assert done.returncode == 1
    assert b"every call of 10 replies in a row had to be refused" in done.stderr
    assert len(answered(agents.tape()[:-1])) == 10 * 8
    assert agents.outcome()["termination_mode"] == "error"


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


@pytest.mark.long
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


@settings(max_examples=40)
@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")) | JSON.map(json.dumps))
def test_any_argument_string_is_read_or_refused(raw: str) -> None:
    parsed = ToolCall.parse("id", "sh", raw)
    assert (parsed.id, parsed.name, parsed.raw) == ("id", "sh", raw)
    assert ToolCall.from_json(json.loads(json.dumps(parsed.to_json()))) == parsed
    if not (parsed.fault or parsed.repair) and raw.strip():
        assert parsed.args == json.loads(raw)
