"""The dialect of OpenAI's Responses API, against its own strict rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quine.base.messages import Message, Overflow, Refused, ToolResult, Unavailable
from quine.providers.dialects.faults import Adapted
from quine.providers.dialects.responses import ResponsesDialect
from tests.providers.dialects import Conformance
from tests.tape.conversations import ASKED, CALLS, answered
from tests.vendors import responses
from tests.vendors.common import example
from tests.vendors.server import Said

MODEL = "gpt-6-astra"
OURS = ("reasoning", "function_call")


class TestResponses(Conformance):
    dialect = ResponsesDialect
    vendor = responses
    model = MODEL
    path = "/v1"
    kind = "responses"

    def said(self, body: Any) -> list[Any]:
        return [body["prompt_cache_key"], body["tools"], body["instructions"], *body["input"]]

    def returned(self, body: Any) -> list[Any]:
        return [item for item in body["input"] if item.get("role") == "assistant" or item.get("type") in OURS]

    def returnable(self, answer: Any) -> list[Any]:
        items = answer["output"]
        return items if items and items[-1]["type"] != "reasoning" else []

    def refusals(self) -> list[tuple[str, str]]:
        return [
            ("Unsupported parameter: 'max_output_tokens' is too large", "16384"),
            ("Encrypted content is not supported with this model.", "encrypted_content"),
            ("Unknown parameter: 'prompt_cache_key'.", "prompt_cache_key"),
        ]


def body(*messages: Message) -> Any:
    return ResponsesDialect(MODEL).body(ASKED._replace(messages=[*ASKED.messages, *messages]))


def reply(said: Said) -> Message:
    return ResponsesDialect(MODEL).reply(responses.reply_json(said)).message


def test_the_example_is_one() -> None:
    """A request of the vendor's own client passes the strict rules, and has the form of the requests made here."""
    given = example("responses")
    responses.check_body(given)
    made = body()
    assert made.keys() <= given.keys()
    assert made["tools"][0].keys() == given["tools"][0].keys()
    assert (made["include"], made["store"]) == (given["include"], False)
    answer = {"output": given["input"][1:5], "status": "completed"}
    message = ResponsesDialect(MODEL).reply(answer).message
    results = [
        ToolResult("call_1", "sh", "a b c"),
        ToolResult("call_2", "fork", "error: no such agent", True),
    ]
    told = body(message, *(Message("tool", result=result) for result in results))["input"][1:]
    assert json.dumps(told) == json.dumps(given["input"][1:])


def test_the_example_of_an_answer() -> None:
    got = ResponsesDialect(MODEL).reply(example("responses-response"))
    assert (got.message.text, got.stop, got.usage) == ("3 files.", "end", (2312, 40, 2000, 300, 25, 0.0))


def test_nothing_is_stored() -> None:
    """Not even after a complaint of the server: without the field the vendor stores the conversation."""
    dialect = ResponsesDialect(MODEL)
    text = "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false."
    assert type(dialect.fault(404, responses.error(404, "bad", text))) is Refused
    assert type(dialect.fault(400, responses.error(400, "bad", text))) is Refused
    assert dialect.body(ASKED)["store"] is False


def test_one_cache_for_a_parent_and_its_clones() -> None:
    key = body()["prompt_cache_key"]
    assert key == body(*answered(reply(Said("", CALLS))))["prompt_cache_key"]
    other = ASKED._replace(messages=[Message("system", "Be \ud83d long."), *ASKED.messages[1:]])
    assert key != ResponsesDialect(MODEL).body(other)["prompt_cache_key"]


def test_the_refused_field_is_named_by_param() -> None:
    dialect = ResponsesDialect(MODEL)
    fault = dialect.fault(
        400, {"error": {"message": "Not with this model.", "param": "include", "code": None}}
    )
    assert isinstance(fault, Adapted)
    assert "include" not in dialect.body(ASKED, fault.parts)


@pytest.mark.parametrize(
    "text",
    [
        "The encrypted content for item rs_1 could not be verified. Reason: it could not be decrypted or parsed.",
        "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'.",
        "Item 'rs_1' of type 'reasoning' was provided without its required following item.",
    ],
)
def test_reasoning_with_which_the_vendor_finds_fault_is_no_longer_sent(text: str) -> None:
    """That of another account, as behind a balancer: the agent goes on."""
    dialect = ResponsesDialect(MODEL)
    request = ASKED._replace(messages=[*ASKED.messages, *answered(reply(Said("x", CALLS, "why")))])
    assert "encrypted_content" in dialect.body(request)["input"][1]
    fault = dialect.fault(400, responses.error(400, "bad", text))
    assert isinstance(fault, Adapted)
    made = dialect.body(request, fault.parts)
    responses.check_body(made)  # it misses no partner
    assert "include" in made and not [item for item in made["input"] if item.get("type") == "reasoning"]


@pytest.mark.parametrize("index", ["0", 1.0, [], {}])
def test_an_index_that_is_none(index: object) -> None:
    with pytest.raises(Unavailable):
        item = {"type": "response.output_item.done", "output_index": index, "item": {"type": "message"}}
        ResponsesDialect(MODEL).stream().feed("", item)


# -- odd answers -----------------------------------------------------------------------------------


def test_a_reply_that_failed_behind_a_200() -> None:
    for code, error in (("server_error", Unavailable), ("rate_limit_exceeded", Unavailable), (None, Unavailable),
                        ("invalid_prompt", Refused), ("bio_policy", Refused), ("insufficient_quota", Refused),
                        ("context_length_exceeded", Overflow)):  # fmt: skip
        failed = {**responses.reply_json(Said()), "status": "failed", "error": {"code": code, "message": "m"}}
        with pytest.raises(error):
            ResponsesDialect(MODEL).reply(failed)
        stream = ResponsesDialect(MODEL).stream()
        assert stream.feed("response.failed", {"type": "response.failed", "response": failed})
        with pytest.raises(error):
            ResponsesDialect(MODEL).reply(stream.whole())


@pytest.mark.parametrize("status", ["failed", "in_progress", "queued", "cancelled"])
def test_a_reply_that_is_not_complete(status: str) -> None:
    with pytest.raises(Unavailable, match=status):
        ResponsesDialect(MODEL).reply({**responses.reply_json(Said("x")), "status": status})


def test_filtered() -> None:
    answer = responses.reply_json(Said("x", stop="length"))
    answer["incomplete_details"] = {"reason": "content_filter"}
    assert ResponsesDialect(MODEL).reply(answer).stop == "refusal"


def test_items_come_with_their_events_or_at_the_end() -> None:
    """Some servers leave the last list empty, some send no event for an item."""
    whole = responses.reply_json(Said("x", CALLS, "why"))
    events = list(responses.events(whole, Said("x", CALLS, "why")))
    last = events[-1][1]
    without_list = [*events[:-1], ("", {**last, "response": {**last["response"], "output": []}})]
    without_items = [event for event in events if event[0] != "response.output_item.done"]
    for some in (events, without_list, without_items):
        stream = ResponsesDialect(MODEL).stream()
        for event in some:
            stream.feed(*event)
        assert stream.whole()["output"] == whole["output"]


def test_reasoning_that_nothing_follows_or_nobody_can_read_is_not_sent() -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"}
    call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "sh", "arguments": "{}"}
    dialect = ResponsesDialect(MODEL)
    only = dialect.reply({"status": "incomplete", "output": [thought]})
    assert only.stop == "length"
    assert len(body(only.message, Message("user", "go on"))["input"]) == 2
    blind = dialect.reply({"output": [{**thought, "encrypted_content": None}, call]}).message
    assert [item["type"] for item in body(*answered(blind))["input"][1:]] == [
        "function_call",
        "function_call_output",
    ]
    open_ = {**thought, "encrypted_content": None, "content": [{"type": "reasoning_text", "text": "hm"}]}
    told = dialect.reply({"output": [open_, call]}).message
    assert told.reasoning == "hm" and body(*answered(told))["input"][1] == open_


@pytest.mark.parametrize(
    ("arguments", "args", "bad"),
    [
        ('{"a" :1}', {"a": 1}, False),
        ("", {}, False),
        (None, {}, False),
        ({"a": 1}, {"a": 1}, False),
        ("{", {}, True),
    ],
)
def test_arguments(arguments: object, args: dict[str, object], bad: bool) -> None:
    item = {"type": "function_call", "name": "sh", "arguments": arguments}
    message = (
        ResponsesDialect(MODEL)
        .reply({"output": [item, {**item, "call_id": "x"}, {**item, "call_id": "x"}]})
        .message
    )
    assert len({call.id for call in message.tool_calls}) == 3
    assert all(call.args == args and bool(call.fault) is bad for call in message.tool_calls)
    made = body(*answered(message))
    responses.check_body(made)
    if isinstance(arguments, str) and arguments:
        sent_back = json.dumps({"unreadable": arguments}) if bad else arguments
        assert made["input"][1]["arguments"] == sent_back
