"""The dialect of Gemini's generateContent, against its own strict rules."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quine.base.messages import Malformed, Message, Refused, ToolCall, ToolResult, Unavailable
from quine.providers.dialects.faults import Adapted
from quine.providers.dialects.gemini import GeminiDialect
from tests.providers.dialects import Conformance
from tests.tape.conversations import ASKED, CALLS, answered
from tests.vendors import gemini
from tests.vendors.common import example
from tests.vendors.server import Said

MODEL = "gemini-3.8-flash"


class TestGemini(Conformance):
    dialect = GeminiDialect
    vendor = gemini
    model = MODEL
    kind = "gemini"

    def said(self, body: Any) -> list[Any]:
        parts = [(content["role"], part) for content in body["contents"] for part in content["parts"]]
        return [body["tools"], body.get("systemInstruction"), *parts]

    def returned(self, body: Any) -> list[Any]:
        return [
            part for content in body["contents"] if content["role"] == "model" for part in content["parts"]
        ]

    def returnable(self, answer: Any) -> list[Any]:
        return list(answer["candidates"][0].get("content", {"parts": []})["parts"])

    def refusals(self) -> list[tuple[str, str]]:
        text = "it has a maxOutputTokens value of 16384 but the supported range is from 1 to 8193 (exclusive)"
        return [(f"Unable to submit request because {text}", "16384")]


def body(*messages: Message, model: str = MODEL) -> Any:
    return GeminiDialect(model).body(ASKED._replace(messages=[*ASKED.messages, *messages]))


def reply(said: Said) -> Message:
    return GeminiDialect(MODEL).reply(gemini.reply_json(said)).message


def answer(*parts: dict[str, Any], reason: str = "STOP", **more: Any) -> dict[str, Any]:
    return {
        "candidates": [{"content": {"role": "model", "parts": list(parts)}, "finishReason": reason, **more}]
    }


def test_the_example_is_one() -> None:
    """A request of the vendor's own client passes the strict rules, and has the form of the requests made here."""
    given = example("gemini")
    gemini.check_body(given)
    made = body()
    assert made.keys() <= given.keys()
    declared = [tools[0]["functionDeclarations"][0].keys() for tools in (made["tools"], given["tools"])]
    assert declared[0] == declared[1]
    message = GeminiDialect(MODEL).reply(answer(*given["contents"][1]["parts"])).message
    results = [ToolResult("c1", "sh", "a b c"), ToolResult("c2", "fork", "no such agent", True)]
    told = body(message, *(Message("tool", result=result) for result in results))["contents"][1:]
    assert json.dumps(told) == json.dumps(given["contents"][1:])


def test_the_example_of_an_answer() -> None:
    got = GeminiDialect(MODEL).reply(example("gemini-response"))
    assert (got.message.text, got.stop, got.usage) == ("3 files.", "end", (2312, 40, 2000, 0, 25, 0.0))


@pytest.mark.parametrize(
    ("base", "model", "path"),
    [
        ("https://g", "gemini-3.8-flash", "/v1/models/gemini-3.8-flash"),
        ("https://g", "models/gemini-3.8-flash", "/v1/models/gemini-3.8-flash"),
        ("https://g", "gemini-flash-latest", "/v1beta/models/gemini-flash-latest"),
        ("https://g/v1beta", "gemini-4-argon", "/v1beta/models/gemini-4-argon"),
        ("https://g/v1", "gemini-flash-latest", "/v1/models/gemini-flash-latest"),
        ("https://g", "a b?c", "/v1/models/a%20b%3Fc"),
    ],
)
def test_url(base: str, model: str, path: str) -> None:
    url = GeminiDialect(model).url(base)
    assert url == f"https://g{path}:streamGenerateContent?alt=sse"


def test_responses_stand_alone() -> None:
    """Text beside them makes the service take the turn for one of the model's."""
    made = body(*answered(reply(Said("", CALLS))), Message("user", "[TIME LIMIT]"), Message("user", "go on"))
    _, _, responses, text = made["contents"]
    assert all("functionResponse" in part for part in responses["parts"])
    assert text == {"role": "user", "parts": [{"text": "[TIME LIMIT]"}, {"text": "go on"}]}


def test_an_id_goes_back_only_where_one_came() -> None:
    call = {"functionCall": {"name": "sh", "args": {}}}
    message = GeminiDialect(MODEL).reply(answer(call, call)).message
    assert len({one.id for one in message.tool_calls}) == 2
    _, calls, results = body(*answered(message))["contents"]
    assert calls["parts"] == [call, call]
    assert [list(part["functionResponse"]) for part in results["parts"]] == [["name", "response"]] * 2
    named = {"functionCall": {"id": "a", "name": "sh", "args": {}}}
    twice = body(*answered(GeminiDialect(MODEL).reply(answer(named, named)).message))["contents"]
    assert [part["functionCall"]["id"] for part in twice[1]["parts"]] == [
        part["functionResponse"]["id"] for part in twice[2]["parts"]
    ]


@pytest.mark.parametrize(
    ("model", "signs"), [("gemini-3.8-flash", True), ("gemini-2.5-pro", False), ("gemini-4-argon", True)]
)
def test_a_call_of_another_model_has_a_signature_for_none(model: str, signs: bool) -> None:
    other = Message("assistant", "so", (ToolCall("x", "sh", {"command": "ls"}), ToolCall("y", "exit", {})))
    parts = body(*answered(other), model=model)["contents"][1]["parts"]
    assert ["thoughtSignature" in part for part in parts] == [False, signs, False]


@pytest.mark.parametrize(
    "text", ["Thought signature is not valid", "Function call is missing a thought_signature"]
)
def test_signatures_with_which_the_vendor_finds_fault_are_no_longer_sent(text: str) -> None:
    """As of the model that an alias meant yesterday: the agent goes on."""
    dialect = GeminiDialect(MODEL)
    request = ASKED._replace(messages=[*ASKED.messages, *answered(reply(Said("x", CALLS)))])
    assert gemini.SIGNED in json.dumps(dialect.body(request))
    fault = dialect.fault(400, gemini.error(400, "bad", text))
    assert isinstance(fault, Adapted)
    made = dialect.body(request, fault.parts)
    gemini.check_body(made)
    signatures = [part.get("thoughtSignature") for part in made["contents"][1]["parts"]]
    assert signatures == [None, gemini.UNSIGNED, None, None]
    assert gemini.SIGNED in json.dumps(request.messages[2].raw)


def test_a_signature_on_an_empty_part_of_a_stream() -> None:
    stream = GeminiDialect(MODEL).stream()
    for part in ({"text": "a"}, {"text": "b"}, {"text": "", "thoughtSignature": "QUJD"}, {"text": ""}):
        assert not stream.feed("", {"candidates": [{"content": {"role": "model", "parts": [part]}}]})
    assert not stream.complete
    stream.feed("", {"candidates": [{"finishReason": "STOP"}]})
    message = GeminiDialect(MODEL).reply(stream.whole()).message
    assert message.text == "ab"
    made = body(message, Message("user", "go on"))
    assert made["contents"][1]["parts"] == [{"text": "ab"}, {"text": "", "thoughtSignature": "QUJD"}]


def test_an_answer_in_hops() -> None:
    """The token asks for the rest; the hops are one content, and what the loop said between them was never said."""
    first = reply(Said("one, ", stop="pause"))
    asked = body(first, Message("user", "[REMINDER]"))
    gemini.check_body(asked)
    assert asked["continuationToken"] == gemini.TOKEN
    assert asked["contents"] == body()["contents"]
    second = reply(Said("two", CALLS[:1]))
    made = body(first, Message("user", "[REMINDER]"), *answered(second))
    assert "continuationToken" not in made
    assert [content["role"] for content in made["contents"]] == ["user", "model", "user"]
    assert [part.get("text") for part in made["contents"][1]["parts"]] == ["one, ", "two", None]


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reason", ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "OTHER", "NEW"]
)
def test_a_fault_of_the_model_is_worth_another_try(reason: str) -> None:
    with pytest.raises((Unavailable, Malformed), match=reason):
        GeminiDialect(MODEL).reply(answer(reason=reason))


def test_a_prompt_that_was_blocked() -> None:
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {}}
    stream = GeminiDialect(MODEL).stream()
    stream.feed("", blocked)
    for whole in (blocked, stream.whole()):
        with pytest.raises(Refused, match="PROHIBITED_CONTENT"):
            GeminiDialect(MODEL).reply(whole)
    for nothing in ({}, {"candidates": []}, {"candidates": [{"content": {"parts": [{"text": "x"}]}}]}):
        with pytest.raises(Unavailable):
            GeminiDialect(MODEL).reply(nothing)


def test_quotas() -> None:
    """One of a minute passes, after the time that it names; one of a day, or of nothing, does not."""
    passing = GeminiDialect(MODEL).fault(429, gemini.error(429, "rate"))
    assert isinstance(passing, Unavailable) and passing.after == 7.0
    assert isinstance(GeminiDialect(MODEL).fault(429, [gemini.error(429, "rate")]), Unavailable)
    assert isinstance(GeminiDialect(MODEL).fault(429, gemini.error(429, "quota")), Refused)
    none = gemini.error(429, "rate", "Quota exceeded for metric: requests, limit: 0, model: gemini-4-argon")
    assert isinstance(GeminiDialect(MODEL).fault(429, none), Refused)


def test_a_wrong_key_is_a_400() -> None:
    fault = GeminiDialect(MODEL).fault(400, gemini.error(400, "auth"))
    assert isinstance(fault, Refused) and "QUINE_API_KEY" in fault.hint
