"""Calls that are almost right: repairs, refusals, and the form in which they go back to the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quine.agent import tools
from quine.base.messages import Message, Request, ToolCall, ToolResult
from quine.base.strict import MAX_VALUES
from quine.providers.dialects import turns
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.responses import ResponsesDialect


@pytest.mark.parametrize(
    ("raw", "args", "repair"),
    [
        ('{"command": "a\nb\tc"}', {"command": "a\nb\tc"}, "control characters in a string"),
        ('"{\\"command\\": \\"ls\\"}"', {"command": "ls"}, "encoded twice"),
        ('{"command": "ls"}}', {"command": "ls"}, "} too many at the end"),
        ('{"command": "ls"} }] ', {"command": "ls"}, "}] too many at the end"),
        ("null", {}, "null for no arguments"),
        ("", {}, ""),
        (' {"command": "ls"} ', {"command": "ls"}, ""),
    ],
)
def test_what_is_repaired(raw: str, args: dict[str, Any], repair: str) -> None:
    call = ToolCall.parse("c", "sh", raw)
    assert (call.args, call.repair, call.fault) == (args, repair, "")
    assert json.loads(turns.argument_text(call)) == args
    assert ToolCall.from_json(call.to_json()) == call


@pytest.mark.parametrize(
    "raw",
    ['{"command": "ls', "ls", '{"a": 1} {"b": 2}', '{"a": NaN}', "[1]", '"ls"', '{"a": 1}}}}}', "{'a': 1}"],
)
def test_what_is_not_guessed(raw: str) -> None:
    call = ToolCall.parse("c", "sh", raw)
    assert call.fault and not call.args and call.raw == raw
    assert json.loads(turns.argument_text(call)) == {"unreadable": raw}


@pytest.mark.parametrize("twice", [False, True])
def test_arguments_of_too_many_values_are_not_read(twice: bool) -> None:
    raw = json.dumps({"a": [0] * (MAX_VALUES + 1)})
    raw = json.dumps(raw) if twice else raw
    call = ToolCall.parse("c", "sh", raw)
    assert call.fault == f"the arguments have more than {MAX_VALUES} values" and not call.args


@given(
    st.text()
    | st.recursive(st.none() | st.text(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)).map(
        json.dumps
    )
)
def test_whatever_came_goes_back_as_an_object(raw: str) -> None:
    """vLLM, llama.cpp and Ollama parse the arguments of old calls: one that is not JSON ends the session for good."""
    call = ToolCall.parse("c", "sh", raw)
    assert isinstance(json.loads(turns.argument_text(call)), dict)
    answer = {
        "choices": [{"message": {"tool_calls": [{"id": "c", "function": {"name": "sh", "arguments": raw}}]}}]
    }
    reply = ChatDialect("m").reply(answer).message
    messages = [Message("user", "do"), reply, Message("tool", result=ToolResult("c", "sh", "r"))]
    sent = ChatDialect("m").body(Request(messages, ()))["messages"][1]["tool_calls"][0]
    assert isinstance(json.loads(sent["function"]["arguments"]), dict)
    items = ResponsesDialect("m").body(Request(messages, ()))["input"]
    assert isinstance(json.loads(items[1]["arguments"]), dict)


@pytest.mark.parametrize("name", [" sh", "sh\n", "functions.sh", "default_api:sh"])
def test_the_name_of_a_tool(name: str) -> None:
    call = ToolCall("c", name, {"command": "ls"})
    assert tools.fitted(call) == call._replace(name="sh")


@pytest.mark.parametrize("name", ["functions.", "sh.x", "functions.rm", "Sh", ""])
def test_a_name_of_no_tool(name: str) -> None:
    call = ToolCall("c", name, {"command": "ls"})
    assert tools.fitted(call) is call


@pytest.mark.parametrize(
    ("name", "args", "meant"),
    [
        ("exit", {"status": "1", "stderr": "no"}, {"status": 1, "stderr": "no"}),
        ("exit", {"status": 1.0, "stderr": "no"}, {"status": 1, "stderr": "no"}),
        ("sh", {"command": "ls", "timeout": None}, {"command": "ls"}),
        ("fork", {"children": '[{"intent": "x"}]'}, {"children": [{"intent": "x"}]}),
        (
            "fork",
            {"children": [{"intent": "x"}], "wait": "true"},
            {"children": [{"intent": "x"}], "wait": True},
        ),
    ],
)
def test_a_type_that_is_plainly_meant(name: str, args: dict[str, Any], meant: dict[str, Any]) -> None:
    call = tools.fitted(ToolCall("c", name, args))
    assert call.args == meant and not tools.fault(name, call.args)


@pytest.mark.parametrize(
    ("name", "args"),
    [("exit", {"status": "one"}), ("sh", {"command": None}), ("sh", {"command": 7}), ("no", {})],
)
def test_what_is_not_plain_stays_as_it_came(name: str, args: dict[str, Any]) -> None:
    call = ToolCall("c", name, args)
    assert tools.fitted(call) is call and tools.fault(name, call.args)
