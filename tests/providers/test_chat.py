"""The dialect of chat completions, its values alone: requests, and replies in the manner of each server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.agent.tools import TOOLS
from quine.base.messages import (
    GuestError,
    Message,
    Overflow,
    Refused,
    Reply,
    Request,
    ToolCall,
    ToolResult,
    Unavailable,
    Usage,
)
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.faults import Adapted
from tests.support.agents import call
from tests.vendors import chat
from tests.vendors.server import KEY, Said

ASKED = Request([Message("system", "be"), Message("user", "do")], TOOLS)


def dialect(base: str = "http://host/v1") -> ChatDialect:
    made = ChatDialect("model")
    made.url(base)
    return made


def answer(message: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": "hi", **(message or {})}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": said}], **more}


def called(*calls: tuple[object, str, object]) -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": name, "arguments": args}}
            for id, name, args in calls
        ],
    }


def streamed(*deltas: dict[str, Any], finish: str | None = "stop", usage: Any = None) -> Reply:
    """The reply that is put together from chunks with these deltas."""
    made = dialect()
    made.body(ASKED)
    stream = made.stream()
    for delta in deltas:
        stream.feed("", {"id": "c1", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    stream.feed("", {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    stream.feed("", {"choices": [], "usage": usage})
    assert stream.feed("", "[DONE]")
    return made.reply(stream.whole())


def fragment(index: int | None = None, **fields: Any) -> dict[str, Any]:
    """A delta with one piece of a call: `name` and `arguments` are of its function."""
    function = {key: fields.pop(key) for key in ("name", "arguments") if key in fields}
    piece = {**({} if index is None else {"index": index}), **fields}
    return {"tool_calls": [{**piece, "function": function} if function else piece]}


# --------------------------------------------------------------------------------------- what is sent


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://host/v1", "http://host/v1/chat/completions"),
        ("http://host:8080", "http://host:8080/chat/completions"),
        ("http://host/v1/chat/completions", "http://host/v1/chat/completions"),
        ("https://api.openai.com", "https://api.openai.com/v1/chat/completions"),
        ("https://api.openai.com/v1", "https://api.openai.com/v1/chat/completions"),
        ("https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1/chat/completions"),
    ],
)
def test_where_a_base_leads_to(base: str, url: str) -> None:
    assert ChatDialect("m").url(base) == url


def test_a_compatible_server_gets_what_all_of_them_take() -> None:
    body = dialect().body(ASKED)
    assert set(body) == {"model", "tools", "messages", "stream", "stream_options"}
    assert body["messages"] == [{"role": "system", "content": "be"}, {"role": "user", "content": "do"}]
    assert [t["function"]["name"] for t in body["tools"]] == ["sh", "fork", "exec", "exit"]
    assert all(t["function"]["parameters"]["type"] == "object" for t in body["tools"])
    assert dialect().body(ASKED._replace(output=99))["max_tokens"] == 99
    assert "tools" not in dialect().body(ASKED._replace(tools=()))


@pytest.mark.parametrize(
    "base", ["https://api.openai.com", "https://API.openai.com/v1", "https://api.openai.com:443/v1"]
)
def test_openai_gets_its_own_names(base: str) -> None:
    body = dialect(base).body(ASKED._replace(output=99))
    assert body["messages"][0]["role"] == "developer"
    assert body["max_completion_tokens"] == 99 and "max_tokens" not in body
    clone = ASKED._replace(messages=[*ASKED.messages, Message("user", "more")], session="other")
    assert 0 < len(body["prompt_cache_key"]) <= 64
    assert dialect(base).body(clone)["prompt_cache_key"] == body["prompt_cache_key"]
    other = ASKED._replace(messages=[Message("system", "be another"), *ASKED.messages[1:]])
    assert dialect(base).body(other)["prompt_cache_key"] != body["prompt_cache_key"]


def test_openrouter_is_asked_for_the_cost_and_tells_it() -> None:
    made = dialect("https://openrouter.ai/api/v1")
    assert made.body(ASKED)["usage"] == {"include": True}
    assert made.body(ASKED)["messages"][0]["role"] == "system"
    assert made.reply(answer(usage={"prompt_tokens": 1, "cost": 0.0125})).usage == Usage(1, cost=0.0125)
    assert "usage" not in dialect("https://openrouter.ai.example/v1").body(ASKED)


def test_calls_come_and_go_back_as_they_came() -> None:
    raw = '{"command" : "ls"}'
    details = [{"type": "reasoning.encrypted", "data": "xyz", "index": 0}]
    message = called(("c1", "sh", raw), ("c2", "exit", '{"status":0}')) | {
        "reasoning_content": "hm",
        "reasoning_details": details,
        "annotations": [],
    }
    message["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    reply = dialect().reply(answer(message))
    assert (reply.stop, reply.message.reasoning) == ("tool", "hm")
    assert [(c.id, c.name, c.args) for c in reply.message.tool_calls] == [
        ("c1", "sh", {"command": "ls"}),
        ("c2", "exit", {"status": 0}),
    ]
    results = [Message("tool", result=ToolResult(c.id, c.name, "done")) for c in reply.message.tool_calls]
    through = Message.from_json(json.loads(json.dumps(reply.message.to_json())))
    assert through == reply.message
    body = dialect().body(ASKED._replace(messages=[*ASKED.messages, through, *results]))
    sent, *rest = body["messages"][2:]
    assert sent["tool_calls"] == message["tool_calls"]
    assert sent["content"] is None
    assert (sent["reasoning_content"], sent["reasoning_details"]) == ("hm", details)
    assert "annotations" not in sent
    assert rest == [{"role": "tool", "tool_call_id": c, "content": "done"} for c in ("c1", "c2")]


def test_a_message_of_another_guest_is_sent_in_this_dialect() -> None:
    other = Message("assistant", "", (ToolCall("x", "sh", {"command": "ä"}),), raw={"gemini": {}})
    body = dialect().body(ASKED._replace(messages=[*ASKED.messages, other, Message("assistant", "text")]))
    sent, text = body["messages"][2:]
    assert json.loads(sent["tool_calls"][0]["function"]["arguments"]) == {"command": "ä"}
    assert sent["content"] is None
    assert text == {"role": "assistant", "content": "text"}


@pytest.mark.parametrize(
    ("says", "base", "changed"),
    [
        ("Unknown parameter: 'stream_options'.", "http://host/v1", {"stream_options": None}),
        ("Cannot use tools with stream", "http://host/v1", {"stream": None, "stream_options": None}),
        ("'stream' is not supported by this model", "http://host/v1", {"stream": None, "stream_options": None}),
        (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens'.",
            "http://host/v1",
            {"max_tokens": None, "max_completion_tokens": 9},
        ),
        (
            "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions. To use "
            "function tools, use /v1/responses or set reasoning_effort to 'none'.",
            "https://api.openai.com/v1",
            {"reasoning_effort": "none"},
        ),
    ],
)  # fmt: skip
def test_what_a_server_refuses_is_done_differently(says: str, base: str, changed: dict[str, Any]) -> None:
    made = dialect(base)
    before = made.body(ASKED._replace(output=9))
    fault = made.fault(400, {"error": {"message": says, "type": "invalid_request_error"}})
    assert isinstance(fault, Adapted) and isinstance(fault.fault, Refused)
    after = made.body(ASKED._replace(output=9), fault.parts)
    assert after == {k: v for k, v in {**before, **changed}.items() if v is not None} != before


def test_reasoning_that_is_refused_is_not_sent_back() -> None:
    made = dialect()
    reply = made.reply(answer(called(("c", "sh", "{}")) | {"reasoning": "hm"}))
    asked = ASKED._replace(messages=[*ASKED.messages, reply.message])
    assert made.body(asked)["messages"][2]["reasoning"] == "hm"
    fault = made.fault(
        400, {"error": "'messages.2': for 'role:assistant' property 'reasoning' is unsupported"}
    )
    assert isinstance(fault, Adapted)
    assert made.body(asked, fault.parts)["messages"][2].keys() == {"role", "content", "tool_calls"}


def test_other_refusals_teach_nothing() -> None:
    for status, text in (
        (400, "Invalid 'messages[1].content': too odd"),
        (400, "Unsupported value: 'reasoning_effort' does not support 'none' with this model."),
        (400, "max_completion_tokens is too large: maximum context length is 9"),
        (401, "stream_options"),
        (500, "error in upstream while reading stream"),
    ):
        made = dialect()
        before = made.body(ASKED)
        assert not isinstance(made.fault(status, {"error": {"message": text}}), Adapted)
        assert made.body(ASKED) == before


def test_hints() -> None:
    missing = dialect("http://host:11434").fault(404, "404 page not found")
    assert isinstance(missing, Refused) and "/v1" in missing.hint
    effort = dialect().fault(400, {"error": {"message": "'reasoning_effort' does not support 'none'"}})
    assert isinstance(effort, Refused) and "QUINE_API_TYPE=responses" in effort.hint


# ---------------------------------------------------------------------------------- what comes, whole


@pytest.mark.parametrize(
    ("ids", "unique"), [((None, None), True), (("a", "a"), True), (("", "x"), True), ((1, 2), True)]
)  # fmt: skip
def test_missing_or_double_ids(ids: tuple[object, object], unique: bool) -> None:
    reply = dialect().reply(answer(called((ids[0], "sh", "{}"), (ids[1], "sh", "{}")), id="r1"))
    first, second = (call.id for call in reply.message.tool_calls)
    assert first and second and first != second
    assert reply.message.raw is not None
    assert [c["id"] for c in reply.message.raw["chat"]["tool_calls"]] == [first, second]


def test_ids_that_we_make_differ_from_turn_to_turn() -> None:
    made = {
        dialect().reply(answer(called((None, "sh", "{}")), id=id)).message.tool_calls[0].id
        for id in ("r1", "r2", 3, None)
    }
    assert len(made) == 4
    for id in ("s1", "s2"):
        stream = dialect().stream()
        for delta in (fragment(0, name="sh", arguments="{"), fragment(0, arguments="}")):
            stream.feed("", {"id": id, "choices": [{"delta": delta}]})
        stream.feed("", "[DONE]")
        made.add(dialect().reply(stream.whole()).message.tool_calls[0].id)
    assert len(made) == 6


@pytest.mark.parametrize(
    ("arguments", "args", "bad"),
    [('{"a":1}', {"a": 1}, False), ("", {}, False), (None, {}, False), ({"a": 1}, {"a": 1}, False), ("{", {}, True),
     ("[]", {}, True), ("null", {}, False)],
)  # fmt: skip
def test_arguments(arguments: object, args: dict[str, object], bad: bool) -> None:
    whole = dialect().reply(answer(called(("c", "sh", arguments)))).message
    piecewise = streamed(fragment(0, id="c", name="sh", arguments=arguments)).message
    for message in (whole, piecewise):
        (one,) = message.tool_calls
        assert one.args == args
        assert bool(one.fault) is bad
        assert message.raw is not None
        sent = message.raw["chat"]["tool_calls"][0]["function"]["arguments"]
        as_it_came = isinstance(arguments, str) and arguments and not bad and not one.repair
        assert sent == (arguments if as_it_came else json.dumps({"unreadable": arguments} if bad else args))


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, ""), ("", ""), ("x", "x"), ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "x"}], "x")],
)  # fmt: skip
def test_content(content: Any, text: str) -> None:
    assert dialect().reply(answer({"content": content})).message.text == text
    assert streamed({"content": content}).message.text == text


def test_usage() -> None:
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert dialect().reply(answer(usage=usage)).usage == Usage(10, 5, 4, 3, 2)
    assert streamed({"content": "x"}, usage=usage).usage == Usage(10, 5, 4, 3, 2)
    odd: Any
    for odd in (
        None,
        {},
        {"prompt_tokens": None},
        {"prompt_tokens": -1, "cost": "1"},
        {"prompt_tokens_details": 3},
    ):
        assert dialect().reply(answer(usage=odd)).usage == Usage()
        assert streamed({"content": "x"}, usage=odd).usage == Usage()


@pytest.mark.parametrize(
    ("reason", "message", "stop"),
    [
        ("stop", {}, "end"),
        (None, {}, "end"),
        ("length", {}, "length"),
        ("model_length", {}, "length"),
        ("content_filter", {}, "refusal"),
        ("stop", {"content": None, "refusal": "no"}, "refusal"),
        ("stop", called(("c", "sh", "{}")), "tool"),
        ("tool_calls", called(("c", "sh", "{}")), "tool"),
        ("length", called(("c", "sh", '{"com')), "length"),
    ],
)
def test_stops(reason: str | None, message: dict[str, Any], stop: str) -> None:
    given = answer(message)
    given["choices"][0]["finish_reason"] = reason
    assert dialect().reply(given).stop == stop


@pytest.mark.parametrize(
    "data",
    [{}, [], None, "text", {"choices": []}, {"choices": [{}]}, {"choices": [{"message": None}]},
     answer({"tool_calls": [{"id": "x"}]}), {"choices": [{"message": {}, "finish_reason": "error"}]},
     {"choices": [{"message": {}, "finish_reason": "insufficient_system_resource"}]}],
)  # fmt: skip
def test_what_is_no_reply_may_be_one_the_next_time(data: Any) -> None:
    with pytest.raises(Unavailable):
        dialect().reply(data)


# --------------------------------------------------------------------------------- what comes, streamed


TWO = [("sh", {"command": "ls"}), ("exit", {"status": 0})]


@pytest.mark.parametrize(
    "deltas",
    [
        [fragment(0, id="a", type="function", name="sh", arguments=""), fragment(0, arguments='{"comm'),
         fragment(0, arguments='and":"ls"}'), fragment(1, id="b", name="exit"), fragment(1, arguments='{"status":0}')],
        [fragment(0, id="a", name="sh", arguments='{"command":'), fragment(1, id="b", name="exit", arguments='{"st'),
         fragment(0, arguments='"ls"}'), fragment(1, arguments='atus":0}')],
        [fragment(0, id="a", name="sh", arguments='{"command":"ls"}'),
         fragment(0, id="b", name="exit", arguments='{"status":0}')],
        [fragment(0, name="sh", arguments='{"command":"ls"}'), fragment(0, name="exit", arguments='{"status":0}')],
        [fragment(id="a", name="sh", arguments='{"command":"ls"}'),
         fragment(id="b", name="exit", arguments='{"status":0}')],
        [fragment(name="sh", arguments='{"command":'), fragment(arguments='"ls"}'),
         fragment(name="exit", arguments={"status": 0})],
        [fragment(0, id="r1", name="sh"), fragment(0, id="r2", arguments='{"command":"ls"}'),
         fragment(1, id="r3", name="exit"), fragment(1, id="r4", name="", arguments='{"status":0}')],
        [fragment(0, id="a", name="sh", arguments='{"command":'), fragment(0, id="a", name="sh", arguments='"ls"}'),
         fragment(1, id="b", name="exit", arguments='{"status":0}')],
        [{"tool_calls": fragment(0, id="a", name="sh", arguments='{"command":"ls"}')["tool_calls"]
          + fragment(1, id="b", name="exit", arguments='{"status":0}')["tool_calls"]}],
    ],
    ids=["OpenAI", "mixed", "all index 0", "index 0 and no ids", "no index", "no index and no ids, object",
         "an id for each fragment", "the name again", "all in one chunk"],
)  # fmt: skip
def test_calls_in_fragments(deltas: list[dict[str, Any]]) -> None:
    message = streamed(*deltas).message
    assert [(c.name, c.args) for c in message.tool_calls] == TWO
    assert len({c.id for c in message.tool_calls}) == 2


def test_the_first_id_of_a_call_is_its_id() -> None:
    """As a server sent it that made up another one for each fragment."""
    message = streamed(fragment(0, id="r1", name="sh"), fragment(0, id="r2", arguments="{}")).message
    assert [c.id for c in message.tool_calls] == ["r1"]


def test_what_nobody_knows_of_a_call_goes_back_with_it() -> None:
    signed = {"google": {"thought_signature": "s"}}
    message = streamed(fragment(0, id="a", name="sh", arguments="{}", extra_content=signed)).message
    assert message.raw is not None
    (sent,) = message.raw["chat"]["tool_calls"]
    assert sent == {
        "id": "a",
        "type": "function",
        "function": {"name": "sh", "arguments": "{}"},
        "extra_content": signed,
    }


def test_reasoning_in_fragments() -> None:
    def piece(index: int | None, **more: Any) -> dict[str, Any]:
        return {"reasoning_details": [{"index": index, **more}]}

    message = streamed(
        {"reasoning": "hm"}, {"reasoning": ", so"}, piece(0, type="reasoning.text", text="hm", signature=None),
        piece(0, type="reasoning.text", text=", so"), piece(0, type="reasoning.text", signature="s1"),
        piece(0, type="reasoning.text", text="", signature=None),
        piece(1, type="reasoning.encrypted", data="x"), piece(None, type="t", text="a"),
        piece(None, type="t", text="b"), {"content": "x"},
    ).message  # fmt: skip
    assert message.reasoning == "hm, so" and message.raw is not None
    assert message.raw["chat"]["reasoning_details"] == [
        {"index": 0, "type": "reasoning.text", "text": "hm, so", "signature": "s1"},
        {"index": 1, "type": "reasoning.encrypted", "data": "x"},
        {"index": None, "type": "t", "text": "a"},
        {"index": None, "type": "t", "text": "b"},
    ]


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("done", [True, False])
def test_the_end_of_a_stream(finish: bool, done: bool) -> None:
    stream = dialect().stream()
    stream.feed("", {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None}]})
    if finish:
        stream.feed("", {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    if done:
        assert stream.feed("", "[DONE]")
    if finish or done:
        assert dialect().reply(stream.whole()).message.text == "hi"
    else:
        with pytest.raises(Unavailable, match="cut"):
            stream.whole()


def test_a_stream_without_a_choice_is_no_reply() -> None:
    stream = dialect().stream()
    stream.feed("", "[DONE]")
    with pytest.raises(Unavailable):
        dialect().reply(stream.whole())


@pytest.mark.parametrize(
    ("event", "data", "kind"),
    [
        ("", {"error": {"message": "overloaded", "code": 529}}, Unavailable),
        ("", {"error": "The number of tokens to keep from the initial prompt is greater than n_ctx"}, Overflow),
        ("error", {"message": "Context size exceeded: context length 4096"}, Overflow),
        ("", {"error": {"code": 401, "message": "no"}, "choices": [{"delta": {}, "finish_reason": "error"}]}, Refused),
        ("", {"error": {"code": 429, "message": "rate"}}, Unavailable),
        ("", [1], Unavailable),
        ("", "text", Unavailable),
        ("", None, Unavailable),
    ],
)  # fmt: skip
def test_errors_in_a_stream(event: str, data: Any, kind: type[GuestError]) -> None:
    with pytest.raises(kind) as caught:
        dialect().stream().feed(event, data)
    assert type(caught.value) is kind


SAID = st.builds(
    Said,
    text=st.text(max_size=12),
    calls=st.lists(
        st.builds(lambda name, args: call(name, **args), st.sampled_from(["sh", "exit"]),
                  st.dictionaries(st.sampled_from(["a", "ä"]), st.text(max_size=9), max_size=2)),
        max_size=3,
    ).map(tuple),
    reasoning=st.text(max_size=9),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(SAID)
def test_a_streamed_reply_is_the_whole_one(said: Said) -> None:
    made = dialect()
    stream = made.stream()
    ends = [stream.feed(event, json.loads(json.dumps(data))) for event, data in chat.reply_events(said)]
    assert ends == [False] * (len(ends) - 1) + [True]
    whole, put_together = made.reply(chat.reply_json(said)), made.reply(stream.whole())
    assert put_together == whole
    asked = ASKED._replace(messages=[*ASKED.messages, whole.message])
    results = [Message("tool", result=ToolResult(c.id, c.name, "done")) for c in whole.message.tool_calls]
    body = made.body(asked._replace(messages=[*asked.messages, *results]))
    assert chat.check({"authorization": f"Bearer {KEY}"}, chat.PATH, body) is None


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["choices", "delta", "message", "content", "tool_calls", "function", "name", "arguments", "id", "index",
             "reasoning_details", "text", "finish_reason", "usage", "error", "code", "type"]
        ),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip
PIECE = st.fixed_dictionaries(
    {},
    optional={
        "index": st.integers(-1, 2) | JSON,
        "id": st.text(max_size=2) | JSON,
        "function": st.fixed_dictionaries(
            {}, optional={"name": st.text(max_size=2) | JSON, "arguments": JSON}
        )
        | JSON,
    },
)
DELTA = st.fixed_dictionaries(
    {},
    optional={
        "content": st.text(max_size=2) | JSON,
        "reasoning": JSON,
        "reasoning_details": st.lists(
            st.fixed_dictionaries({}, optional={"index": JSON, "type": JSON, "text": JSON})
        ),
        "tool_calls": st.lists(PIECE, max_size=3) | JSON,
    },
)
CHOICE = st.fixed_dictionaries({}, optional={"delta": DELTA, "message": DELTA | JSON, "finish_reason": JSON})
CHUNK = (
    st.fixed_dictionaries({"choices": st.lists(CHOICE, max_size=2) | JSON}, optional={"usage": JSON}) | JSON
)


@pytest.mark.long
@settings(max_examples=400, deadline=None)
@given(st.lists(CHUNK, max_size=4), JSON, st.sampled_from([200, 400, 404, 429, 500]))
def test_whatever_comes_is_a_reply_or_an_error_of_ours(chunks: list[Any], body: Any, status: int) -> None:
    made = dialect()
    assert isinstance(made.fault(status, body), GuestError)
    stream = made.stream()
    try:
        for chunk in chunks:
            stream.feed("", chunk)
        stream.feed("", "[DONE]")
        assert isinstance(made.reply(stream.whole()), Reply)
    except GuestError:
        pass
    try:
        assert isinstance(made.reply(body), Reply)
    except GuestError:
        pass
