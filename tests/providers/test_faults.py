"""The meaning of providers' errors: one judgement for all dialects."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.messages import GuestError, Overflow, Refused, Unavailable
from quine.providers.dialects.faults import Told, judge, printable, told


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        (400, "context_length_exceeded", "invalid_request_error", "m"),
        (400, "400", "exceed_context_size_error", "request (9 tokens) exceeds the available context size (4 tokens)"),
        (413, "", "request_too_large", "m"),
        (400, "", "invalid_request_error", "prompt is too long: 200001 tokens > 200000 maximum"),
        (400, "", "invalid_request_error", "input length and `max_tokens` exceed context limit: 1 + 2 > 3"),
        (400, "400", "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (4)."),
        (400, "", "BadRequestError", "However, the model's context length is only 4 tokens"),
        (400, "400", "", "This endpoint's maximum context length is 4 tokens. However, you requested about 9 tokens"),
        (400, "", "invalid_request_error", "the prompt is longer than the context length currently available"),
        (400, "", "", "The number of tokens to keep from the initial prompt is greater than the context length"),
        (400, "", "", "The decoder prompt (length 9) is longer than the maximum model length of 4"),
        (400, "", "", "This model's maximum prompt length is 4 but the request contains 9 tokens"),
        (200, "", "", "The number of tokens to keep from the initial prompt is greater than n_ctx"),
    ],
)  # fmt: skip
def test_overflow(status: int, code: str, kind: str, message: str) -> None:
    assert type(judge(status, Told(code, kind, message, message.lower()))) is Overflow


@pytest.mark.parametrize(
    ("status", "code", "kind", "message"),
    [
        (529, "", "overloaded_error", "Overloaded"),
        (200, "", "overloaded_error", "Overloaded: no context window is free"),
        (503, "", "server_is_overloaded", "no room for your context length"),
        (500, "", "server_error", "error in the context of the request"),
        (400, "", "invalid_request_error", "bad context"),
        (429, "rate_limit_exceeded", "tokens", "Rate limit; see the context window docs"),
        (401, "", "", "your key has no access to this context window"),
    ],
)
def test_no_overflow(status: int, code: str, kind: str, message: str) -> None:
    assert type(judge(status, Told(code, kind, message, message.lower()))) is not Overflow


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"),
    [
        (401, {"error": {"message": "bad key", "code": "invalid_api_key"}}, Refused, "bad key (HTTP 401)"),
        (403, {"error": "no"}, Refused, "no (HTTP 403)"),
        (404, {"error": {"message": "no model", "code": "model_not_found"}}, Refused, "no model"),
        (400, {"error": {"message": "bad field"}}, Refused, "bad field"),
        (422, {"detail": [{"loc": ["body", "x"], "msg": "bad"}]}, Refused, "bad"),
        (402, {"error": {"message": "no credit", "code": 402}}, Refused, "no credit"),
        (429, {"error": {"message": "pay", "type": "insufficient_quota"}}, Refused, "pay"),
        (429, {"error": {"message": "pay", "code": "project_spend_limit_exceeded"}}, Refused, "pay"),
        (429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, Unavailable, "slow down"),
        (500, {"error": {"message": "context of the error: overloaded"}}, Unavailable, "overloaded"),
        (529, {"error": {"message": "overloaded"}}, Unavailable, "overloaded (HTTP 529)"),
        (503, {"error": {"code": 503, "message": "Loading", "type": "unavailable_error"}}, Unavailable, "Loading"),
        (503, "Loading model", Unavailable, "Loading model"),
        (502, "<!DOCTYPE html>\n<html><title>502\nBad Gateway</title>", Unavailable, "page: 502 Bad Gateway ("),
        (200, {"error": {"code": 401, "message": "key"}}, Refused, "key (HTTP 401)"),
        (200, {"error": {"code": "²", "message": "key"}}, Unavailable, "key (HTTP 200)"),
        (200, {"error": {"code": "4" * 5000, "message": "key"}}, Unavailable, "key (HTTP 200)"),
        (429, [{"error": {"code": 429, "message": "rate", "status": "RESOURCE_EXHAUSTED"}}], Unavailable, "rate (HTTP"),
        (500, [], Unavailable, "[] (HTTP 500)"),
        (500, "", Unavailable, "no reason given (HTTP 500)"),
        (500, "a\x1b[31mb\udc80\u202e" + "c" * 9999, Unavailable, "a�[31mb�\ufffdcc"),
    ],
)  # fmt: skip
def test_a_status_and_its_body_name_the_fault(
    status: int, body: Any, kind: type[GuestError], words: str
) -> None:
    fault = judge(status, told(body))
    assert type(fault) is kind
    assert words in str(fault)
    assert str(fault).isprintable() and len(str(fault)) < 600 and str(fault).encode()
    assert not isinstance(fault, Refused) or status in (400, 422) or fault.hint


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "status", "details", "detail"]), inner
        )
    ),
    max_leaves=8,
)


@settings(max_examples=50)
@given(st.text(max_size=50) | st.from_regex(r"<html>.*<title>.*", fullmatch=True), JSON)
def test_error_text_can_always_be_shown(text: str, body: Any) -> None:
    for shown in (printable(text), told(text).message, *told(body)[:3], *told({"error": body})[:3]):
        assert shown.isprintable() and len(shown) <= 500
        shown.encode()
