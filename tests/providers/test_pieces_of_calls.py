"""Calls that a server streams in pieces: none is lost, merged with another or guessed.

Servers differ in what they name. The usual forms are in test_chat.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from quine.base.messages import Malformed, ToolCall, Unavailable
from quine.providers.dialects.responses import ResponsesDialect
from tests.providers.test_chat import fragment, streamed

LS, BYE = '{"command":"ls"}', '{"status":0}'
TWO = [("sh", {"command": "ls"}), ("exit", {"status": 0})]


def calls(*deltas: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    message = streamed(*deltas).message
    assert not any(call.fault for call in message.tool_calls)
    assert len({call.id for call in message.tool_calls}) == len(message.tool_calls)
    assert message.raw is not None
    raw = message.raw["chat"]["tool_calls"]  # goes back to the server
    assert [call["function"]["name"] for call in raw] == [call.name for call in message.tool_calls]
    return [(call.name, call.args) for call in message.tool_calls]


@pytest.mark.parametrize(
    "pieces",
    [
        [fragment(0, id="a", name="fo"), fragment(0, name="rk"), fragment(0, arguments=LS)],
        [fragment(0, id="a", name="fo"), fragment(0, id="a", name="rk", arguments=LS)],
        [fragment(id="a", name="f"), fragment(name="o"), fragment(name="rk"), fragment(arguments=LS)],
        [fragment(0, id="a", name="fo"), fragment(0, name="fork"), fragment(0, name="fork", arguments=LS)],
        [fragment(0, id="a", name="fork"), fragment(0, name=""), fragment(0, name=None, arguments=LS)],
    ],
    ids=["in two", "with the id again", "no index", "longer each time", "empty names"],
)
def test_a_name_in_pieces(pieces: list[dict[str, Any]]) -> None:
    assert calls(*pieces) == [("fork", {"command": "ls"})]


@pytest.mark.parametrize(
    "pieces",
    [
        [fragment(0, id="a", name="sh", arguments='{"comm'), fragment(0, id="b", name="exit", arguments='{"st'),
         fragment(0, id="a", arguments='and":"ls"}'), fragment(0, id="b", arguments='atus":0}')],
        [fragment(id="a", name="sh", arguments='{"comm'), fragment(id="b", name="exit", arguments='{"st'),
         fragment(id="b", arguments='atus":0}'), fragment(id="a", arguments='and":"ls"}')],
        [fragment(0, id="a", name="sh"), fragment(1, id="b", name="exit"), fragment(0, arguments='{"command"'),
         fragment(1, arguments=BYE), fragment(0, arguments=':"ls"}')],
        [fragment(0, id="a", name="sh"), fragment(1, id="a", name="exit"), fragment(0, id="a", arguments=LS),
         fragment(1, id="a", arguments=BYE)],
        [fragment(0, id="a", name="sh", arguments=LS), fragment(0, id="a", name="exit"),
         fragment(0, id="a", arguments=BYE)],
        [fragment(0, id="a", name="sh"), fragment(1, id="a", arguments=LS), fragment(2, id="b", name="exit"),
         fragment(3, id="b", arguments=BYE)],
        [fragment(0, id="a", name="sh", arguments=LS), fragment(1, id="b", name="exit", arguments=BYE),
         fragment(0, id="a", name="sh", arguments=LS), fragment(1, id="b", name="exit", arguments=BYE)],
        [fragment(0, name="sh", arguments=LS[:9]), fragment(0, name="sh", arguments=LS[9:]),
         fragment(0, name="sh", arguments=""), fragment(0, name="exit", arguments=BYE), fragment(0, name="exit")],
        [fragment(name="sh", arguments=LS[:9]), fragment(name="sh", arguments=LS), fragment(name="sh", arguments=LS),
         fragment(name="exit"), fragment(name="exit", arguments=BYE[:3]), fragment(name="exit", arguments=BYE)],
        [fragment(0, name="sh"), fragment(0, arguments=LS[:9]), fragment(0, arguments=LS), fragment(0, arguments=LS),
         fragment(1, name="exit", arguments=BYE)],
    ],
    ids=["one index", "no index", "ids in the first pieces alone", "one id", "one id and index",
         "an index for each piece", "the whole calls again", "the name each time", "all so far each time",
         "arguments so far each time"],
)  # fmt: skip
def test_parallel_calls(pieces: list[dict[str, Any]]) -> None:
    assert calls(*pieces) == TWO


@pytest.mark.parametrize("own", [{}, {"id": "a"}], ids=["no id", "one id"])
def test_a_call_without_arguments_before_another_one(own: dict[str, str]) -> None:
    pieces = [fragment(0, **own, name="exec", arguments=""), fragment(0, **own, name="exit", arguments=BYE)]
    assert streamed(*pieces).message.tool_calls[0].name == "exec"
    assert calls(*pieces) == [("exec", {}), ("exit", {"status": 0})]


def test_two_calls_of_one_name_without_ids() -> None:
    """The second one begins as the first one could be ended: with the name and nothing else."""
    pieces = [
        fragment(0, name="sh", arguments=LS),
        fragment(0, name="sh"),
        fragment(0, arguments='{"command":"cd"}'),
    ]
    assert calls(*pieces) == [("sh", {"command": "ls"}), ("sh", {"command": "cd"})]


def test_arguments_that_nest_without_end_are_not_read() -> None:
    deep = [fragment(0, name="sh", arguments="[" * 50_000), fragment(0, name="sh", arguments="[" * 60_000)]
    assert streamed(*deep).message.tool_calls[0].fault


@pytest.mark.parametrize(
    "pieces",
    [
        [fragment(id="a", name="sh", arguments='{"command":'), fragment(id="b", name="exit", arguments='{"status":'),
         fragment(arguments='"ls"}'), fragment(arguments="0}")],
        [fragment(0, id="a", name="sh", arguments='{"command":'),
         fragment(0, id="b", name="exit", arguments='{"status":'), fragment(0, arguments="0}")],
        [fragment(0, id="a", name="exec"), fragment(0, id="b", name="exit"), fragment(0, arguments=BYE)],
        [fragment(0, name="exec"), fragment(0, name="exit"), fragment(0, arguments=BYE)],
        [fragment(0, name="sh", arguments='{"command":'), fragment(0, name="exit", arguments='"ls"}')],
    ],
    ids=["no index", "one index", "nothing of the first one", "nothing of it, and no ids", "neither ids nor indices"],
)  # fmt: skip
def test_a_piece_that_may_belong_to_either_of_two_is_given_to_none(pieces: list[dict[str, Any]]) -> None:
    with pytest.raises(Malformed, match="several calls"):
        streamed(*pieces)


def test_a_call_without_a_name_is_no_reply() -> None:
    with pytest.raises(Unavailable, match="name"):
        streamed(fragment(0, id="a", name="sh", arguments=LS), fragment(1, id="b", arguments=BYE))


# ------------------------------------------------------------------------------- OpenAI's Responses API


def call(index: int, id: str | None, name: str) -> dict[str, Any]:
    item = {"type": "function_call", "call_id": f"call_{name}", "name": name, "arguments": ""}
    return {
        "type": "response.output_item.added",
        "output_index": index,
        "item": {**item, **({"id": id} if id else {})},
    }


def delta(index: int, id: str | None, text: str) -> dict[str, Any]:
    named = {"item_id": id} if id else {}
    return {"type": "response.function_call_arguments.delta", "output_index": index, "delta": text, **named}


def done(index: int, id: str | None, text: str) -> dict[str, Any]:
    named = {"item_id": id} if id else {}
    return {
        "type": "response.function_call_arguments.done",
        "output_index": index,
        "arguments": text,
        **named,
    }


@pytest.mark.parametrize(
    "events",
    [
        [call(0, "x", "sh"), call(0, "y", "exit"), delta(0, "x", LS), delta(0, "y", BYE)],
        [call(0, None, "sh"), delta(0, None, LS), call(0, None, "exit"), delta(0, None, BYE)],
        [call(0, "x", "sh"), call(1, "y", "exit"), done(0, "x", LS), done(1, "y", BYE)],
        [call(0, "x", "sh"), delta(0, "x", LS), done(0, "x", LS), call(1, "y", "exit"), delta(1, "y", BYE)],
        [call(0, "x", "sh"), call(0, "x", "sh"), delta(0, "x", LS), call(1, "y", "exit"), done(1, "z", BYE)],
    ],
    ids=["one index", "one index and no ids", "no deltas", "both", "begun twice, and an id for each event"],
)
def test_items_of_responses_that_are_never_done(events: list[dict[str, Any]]) -> None:
    dialect = ResponsesDialect("m")
    stream = dialect.stream()
    for event in events:
        stream.feed("", event)
    assert stream.feed("", {"type": "response.completed", "response": {"status": "completed", "output": []}})
    got: tuple[ToolCall, ...] = dialect.reply(stream.whole()).message.tool_calls
    assert [(one.name, one.args) for one in got] == TWO
