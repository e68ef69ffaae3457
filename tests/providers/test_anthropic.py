"""The dialect of Anthropic's Messages API, against its own strict rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quine.base.messages import Message, Overflow, Refused, ToolResult, Unavailable
from quine.providers.dialects.anthropic import AnthropicDialect
from quine.providers.dialects.faults import Adapted
from tests.providers.dialects import Conformance
from tests.tape.conversations import ASKED, CALLS, answered, sent
from tests.vendors import anthropic
from tests.vendors.common import example
from tests.vendors.server import Said

MODEL = "claude-opus-5-5"


def without_marks(value: Any) -> Any:
    return json.loads(
        json.dumps(value), object_hook=lambda o: {k: v for k, v in o.items() if k != "cache_control"}
    )


def marked(body: Any) -> list[tuple[int, int]]:
    """Where breakpoints stand in the messages."""
    return [
        (at, index)
        for at, message in enumerate(body["messages"])
        for index, block in enumerate(message["content"])
        if "cache_control" in block
    ]


class TestAnthropic(Conformance):
    dialect = AnthropicDialect
    vendor = anthropic
    model = MODEL
    kind = "anthropic"

    def said(self, body: Any) -> list[Any]:
        body = without_marks(body)
        blocks = [(m["role"], block) for m in body["messages"] for block in m["content"]]
        return [body["tools"], body["system"], *blocks]

    def returned(self, body: Any) -> list[Any]:
        return [block for m in body["messages"] if m["role"] == "assistant" for block in m["content"]]

    def returnable(self, answer: Any) -> list[Any]:
        blocks = [b for b in answer["content"] if b["type"] != "text" or b["text"].strip()]
        return blocks if blocks and blocks[-1]["type"] in ("text", "tool_use") else []

    def refusals(self) -> list[tuple[str, str]]:
        return [
            ("adaptive thinking is not supported on this model", '"thinking": {'),
            (
                "thinking: Input tag 'adaptive' found using 'type' does not match any of the expected tags",
                '"thinking": {',
            ),
            ("system.0.cache_control: Extra inputs are not permitted", "cache_control"),
            ("max_tokens: 16384 > 8192, which is the maximum allowed number of output tokens for m", "16384"),
            ("input length and `max_tokens` exceed context limit: 190000 + 16384 > 200000", "16384"),
        ]


def body(*messages: Message, model: str = MODEL) -> Any:
    return AnthropicDialect(model).body(ASKED._replace(messages=[*ASKED.messages, *messages]))


def reply(*calls: dict[str, Any], text: str = "", reasoning: str = "") -> Message:
    return AnthropicDialect(MODEL).reply(anthropic.reply_json(Said(text, calls, reasoning))).message


def test_the_example_is_one() -> None:
    """A request of the vendor's own client passes the strict rules, and has the form of the requests made here."""
    given = example("anthropic")
    anthropic.check_body(given)
    made = body()
    assert made.keys() <= given.keys()
    assert made["system"][0].keys() == given["system"][0].keys()
    assert made["tools"][0].keys() == given["tools"][0].keys()
    assert made["thinking"] == given["thinking"]
    # its history, told in neutral form and by this dialect's own words
    answer = {"content": given["messages"][1]["content"], "stop_reason": "tool_use"}
    message = AnthropicDialect(MODEL).reply(answer).message
    results = [ToolResult("toolu_01A", "sh", "a b c"), ToolResult("toolu_01B", "fork", "no such agent", True)]
    told = body(message, *(Message("tool", result=result) for result in results))["messages"][1:]
    assert without_marks(told) == given["messages"][1:]


def test_the_example_of_an_answer() -> None:
    got = AnthropicDialect(MODEL).reply(example("anthropic-response"))
    assert (got.message.text, got.stop, got.usage) == ("3 files.", "end", (2312, 40, 2000, 300, 25, 0.0))


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("https://api.anthropic.com/v1", "https://api.anthropic.com/v1/messages"),
        ("http://127.0.0.1:8080/api", "http://127.0.0.1:8080/api/v1/messages"),
    ],
)
def test_url(base: str, url: str) -> None:
    assert AnthropicDialect(MODEL).url(base) == url


def test_a_key_and_a_login() -> None:
    assert AnthropicDialect(MODEL).headers("sk-ant-api03-x")["x-api-key"] == "sk-ant-api03-x"
    assert AnthropicDialect(MODEL).headers("sk-ant-oat01-x")["Authorization"] == "Bearer sk-ant-oat01-x"


@pytest.mark.parametrize(
    ("model", "thinks"),
    [
        ("claude-opus-5-5", True), ("claude-fable-5", True), ("claude-opus-4-6", True), ("claude-sonnet-4-6", True),
        ("claude-mythos-5-1", True), ("anthropic/claude-opus-4.6", True), ("claude-opus-5-20260901", True),
        ("claude-haiku-4-5-20251001", False), ("claude-opus-4-20250514", False), ("claude-3-5-sonnet-20241022", False),
        ("claude-opus-4-5", False), ("qwen3:8b", False),
    ],
)  # fmt: skip
def test_thinking_where_the_model_takes_it(model: str, thinks: bool) -> None:
    assert ("thinking" in body(model=model)) is thinks


# -- the cache -------------------------------------------------------------------------------------


def test_the_last_request_ended_at_a_breakpoint_of_this_one() -> None:
    """However many calls there were: a lookup goes back only 20 blocks from a breakpoint."""
    messages: list[Message] = []
    ends = marked(body())
    for _ in range(4):
        messages += answered(reply(*CALLS * 9, text="now", reasoning="so"))
        made = body(*messages)
        assert ends[-1] in marked(made)
        assert len(marked(made)) <= 3
        last = made["messages"][-1]["content"]
        assert marked(made)[-1] == (len(made["messages"]) - 1, len(last) - 1)
        ends = marked(made)


def test_a_clone_reads_what_its_parent_wrote() -> None:
    lived = [*answered(reply(*CALLS[:1])), *answered(reply(*CALLS[:1]))]
    parents = body(*lived)
    fork = reply(*CALLS)
    answers = answered(fork, "You are the child now")
    child = body(*lived, *answers, Message("user", "[TIME LIMIT]"))
    assert parents["system"] == child["system"] and parents["tools"] == child["tools"]
    end = marked(parents)[-1]
    assert end in marked(child)
    until = end[0] + 1
    assert json.dumps(child["messages"][:until][-1]) == json.dumps(parents["messages"][:until][-1])


def test_marks_do_not_stay_on_what_is_kept() -> None:
    message = reply(*CALLS, text="x")
    kept = json.dumps(message.raw)
    body(message)
    body(*answered(message))
    assert json.dumps(message.raw) == kept and "cache_control" not in kept


def test_a_breakpoint_in_a_reply_is_not_sent() -> None:
    """A command may have written it: the API takes four in all, and one may ask for an hour, which costs more."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    said = Message("assistant", "x", raw={"anthropic": [{"type": "text", "text": "x", **mark}]})
    (first, second, third) = body(said, Message("user", "go on"))["messages"]
    assert second["content"] == [{"type": "text", "text": "x"}]
    assert "cache_control" in first["content"][-1] and "cache_control" in third["content"][-1]


# -- odd answers -----------------------------------------------------------------------------------


def test_arguments_that_were_cut() -> None:
    """They come in a stream whose limit was reached; the call is answered, and an object goes back."""
    said = Said("", ({"name": "sh", "arguments": '{"command": "ec'},), stop="length")
    stream = AnthropicDialect(MODEL).stream()
    for event in anthropic.reply_events(said):
        stream.feed(*event)
    got = AnthropicDialect(MODEL).reply(stream.whole())
    (call,) = got.message.tool_calls
    assert call.fault and call.raw == '{"command": "ec' and got.stop == "length"
    (block,) = body(*answered(got.message))["messages"][1]["content"]
    assert block["input"] == {"unreadable": '{"command": "ec'}


def test_a_piece_that_is_no_text_is_no_answer_and_an_unknown_one_is_left_out() -> None:
    def replied(delta: dict[str, object]) -> str:
        stream = AnthropicDialect(MODEL).stream()
        for name, event in anthropic.reply_events(Said("text")):
            if event["type"] == "content_block_delta":
                stream.feed(name, {**event, "delta": delta})
            stream.feed(name, event)
        return AnthropicDialect(MODEL).reply(stream.whole()).message.text

    assert replied({"type": "later_delta", "text": 5}) == "text"
    with pytest.raises(Unavailable):
        replied({"type": "text_delta", "text": 5})


def test_thinking_that_nothing_follows_is_not_sent() -> None:
    blocks = [{"type": "thinking", "thinking": "long", "signature": ""}, {"type": "text", "text": " \n"}]
    got = AnthropicDialect(MODEL).reply({"content": blocks, "stop_reason": "max_tokens"})
    assert got.stop == "length"
    (only,) = body(got.message, Message("user", "go on"))["messages"]
    assert [block["text"] for block in only["content"]] == ["Begin.", "go on"]


def test_missing_and_double_ids() -> None:
    use = {"type": "tool_use", "name": "sh", "input": {}}
    got = AnthropicDialect("m").reply({"content": [use, {**use, "id": "a"}, {**use, "id": "a"}]}).message
    assert len({call.id for call in got.tool_calls}) == 3
    sent_back = body(*answered(got))["messages"]
    assert [b["id"] for b in sent_back[1]["content"]] == [b["tool_use_id"] for b in sent_back[2]["content"]]


def test_refusals_say_why() -> None:
    answer = anthropic.reply_json(Said("", stop="refusal"))
    assert AnthropicDialect(MODEL).reply(answer).message.text == "refused: cyber"
    answer["stop_details"] = {"type": "refusal", "category": None, "explanation": "because"}
    assert AnthropicDialect(MODEL).reply(answer).message.text == "because"


@pytest.mark.parametrize(("said", "stop"), [("pause", "pause"), ("context", "context")])
def test_other_stops(said: str, stop: str) -> None:
    got = AnthropicDialect(MODEL).reply(anthropic.reply_json(Said("so far", stop=said)))
    assert got.stop == stop
    assert sent(body(got.message, Message("user", "go on")))["messages"][1]["content"][0]["text"] == "so far"


@pytest.mark.parametrize(
    ("kind", "status", "error"),
    [
        ("overloaded_error", 529, Unavailable), ("api_error", 500, Unavailable), ("timeout_error", 504, Unavailable),
        ("rate_limit_error", 429, Unavailable), ("conflict_error", 409, Unavailable), ("new_error", 500, Unavailable),
        ("authentication_error", 401, Refused), ("permission_error", 403, Refused), ("billing_error", 402, Refused),
        ("not_found_error", 404, Refused), ("invalid_request_error", 400, Refused),
        ("request_too_large", 413, Overflow),
    ],
)  # fmt: skip
def test_errors_by_status_and_in_a_stream(kind: str, status: int, error: type[Exception]) -> None:
    told = {"type": "error", "error": {"type": kind, "message": "m"}}
    assert type(AnthropicDialect(MODEL).fault(status, told)) is error
    with pytest.raises(error):
        AnthropicDialect(MODEL).stream().feed("error", told)


def test_a_ramp_passes_a_spend_limit_does_not() -> None:
    for code, error in (("ramp_limit_exceeded", Unavailable), ("contract_spend_limit_reached", Refused)):
        told = {"error": {"type": "rate_limit_error", "message": "m", "details": {"error_code": code}}}
        assert type(AnthropicDialect(MODEL).fault(429, told)) is error


def test_thinking_with_which_the_vendor_finds_fault_is_no_longer_sent() -> None:
    """The signature of another model, or of another account: the agent thinks on, and goes on."""
    dialect = AnthropicDialect(MODEL)
    request = ASKED._replace(messages=[*ASKED.messages, *answered(reply(*CALLS, reasoning="so"))])
    assert "signature" in json.dumps(dialect.body(request))
    text = "messages.3.content.8: `thinking` blocks in the latest assistant message cannot be modified"
    fault = dialect.fault(400, anthropic.error(400, "bad", text))
    assert isinstance(fault, Adapted)
    made = dialect.body(request, fault.parts)
    assert "thinking" in made and "signature" not in json.dumps(made["messages"])
    anthropic.check_body(sent(made))
    text = "messages.1.content.0: Invalid `signature` in `thinking` block"
    assert isinstance(dialect.fault(400, anthropic.error(400, "bad", text)), Adapted)


@pytest.mark.parametrize("index", ["0", None, 1.0, [], {}])
def test_an_index_that_is_none(index: object) -> None:
    with pytest.raises(Unavailable):
        block = {"type": "content_block_start", "index": index, "content_block": {"type": "text", "text": ""}}
        AnthropicDialect(MODEL).stream().feed("", block)
