"""The table of servers: its form, the answers of real servers judged by it, and the reasons of ends."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from quine.base.messages import GuestError, Malformed, Overflow, Refused, Unavailable
from quine.providers import servers
from quine.providers.dialects.anthropic import AnthropicDialect
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.dialect import Dialect
from quine.providers.dialects.faults import ERRORS, REFUSALS, Adapted, end_of, told
from quine.providers.dialects.gemini import GeminiDialect
from quine.providers.dialects.responses import ResponsesDialect

TABLE = servers.table()
ANSWERS: list[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("answers.toml").read_text(encoding="utf-8")
)["answer"]
DIALECTS: dict[str, type[Dialect]] = {
    each.KIND: each for each in (ChatDialect, ResponsesDialect, AnthropicDialect, GeminiDialect)
}
KEYS = {
    *("title", "speaks", "base", "hosts", "judge", "silent", "rate", "finish"),
    *("refuses", "demands", "usage", "stream", "notools", "seen", "window"),
}
MOST = 200  # characters of a server's text that a person is shown for certain


def rows() -> list[tuple[str, dict[str, Any]]]:
    found = [(name, row) for name, server in TABLE["servers"].items() for row in server["judge"]]
    return [*found, *(("common", row) for row in TABLE["common"]["judge"])]


def test_each_row_has_its_source() -> None:
    """A row that nobody can look up is a guess."""
    sources = TABLE["sources"]
    for name, server in TABLE["servers"].items():
        assert server.keys() == KEYS, name
        assert server["speaks"] and set(server["speaks"]) <= DIALECTS.keys(), name
        lists = [
            row
            for value in server.values()
            if isinstance(value, list)
            for row in value
            if isinstance(row, dict)
        ]
        for row in (*lists, server["rate"], server["finish"], server["usage"]):
            assert row["src"] in sources, (name, row)
    assert all(row["src"] in sources for _, row in rows())


@pytest.mark.parametrize(("name", "row"), rows())
def test_each_rule_can_fit(name: str, row: dict[str, Any]) -> None:
    """Text and codes come in small letters: a rule with a large one is dead."""
    assert row.keys() == {"t", "s", "c", "w", "act", "src"}
    assert row["t"] in ERRORS or row["t"] in REFUSALS
    assert row["c"] == [code.lower() for code in row["c"]]
    for word in row["w"]:
        re.compile(word)
        assert not re.search(r"(?<!\\)[A-Z]", word), word


def judged(answer: dict[str, Any], host: str) -> GuestError:
    kind = TABLE["servers"][answer["server"]]["speaks"][0]
    dialect = DIALECTS[kind]("m")
    dialect.url(f"https://{host}/v1")
    fault = dialect.fault(answer["status"] or 200, json.loads(answer["body"]))
    return fault.fault if isinstance(fault, Adapted) else fault


@pytest.mark.parametrize(
    "answer", ANSWERS, ids=lambda answer: f"{answer['server']}-{answer['status']}-{answer['is']}"
)
def test_an_answer_of_a_real_server(answer: dict[str, Any]) -> None:
    hosts = TABLE["servers"][answer["server"]]["hosts"]
    fault = judged(answer, hosts[0] if hosts else "127.0.0.1")
    expected = ERRORS.get(answer["is"], Refused)
    assert type(fault) is expected, fault
    if isinstance(fault, Refused) and answer["is"] in REFUSALS:
        assert (fault.hint, fault.status) == REFUSALS[answer["is"]] or answer["is"] == "nomodel"
    said = told(json.loads(answer["body"])).message
    assert said[:MOST] in str(fault) and str(fault).isprintable()


def test_no_answer_teaches_what_the_model_wrote() -> None:
    """Quoted by its server, the words of one model made all agents go without what they named."""
    for answer in ANSWERS:
        if answer["is"] in ("malformed", "badargs", "overflow", "too_big"):
            dialect = ChatDialect("m")
            fault = dialect.fault(answer["status"], json.loads(answer["body"]))
            if isinstance(fault, Adapted):  # for this conversation alone, and no lesson: see `Lesson.learn`
                assert (type(fault.fault), fault.parts) == (Overflow, {"output"}), answer


def test_a_pause_is_read_from_the_text() -> None:
    """Azure, LiteLLM and GitHub Models tell it nowhere else."""
    for text, seconds in (("Please retry after 22 seconds.", 22.0), ("Try again in 1.5 min", 90.0)):
        fault = ChatDialect("m").fault(
            429, {"error": {"code": "rate_limit_exceeded", "message": f"{text} per minute"}}
        )
        assert isinstance(fault, Unavailable) and fault.after == seconds


@pytest.mark.parametrize("name", TABLE["servers"])
def test_the_reasons_of_ends(name: str) -> None:
    finish = TABLE["servers"][name]["finish"]
    for meaning, ends in (
        ("cut", "length"),
        ("refusal", "refusal"),
        ("overflow", "context"),
        ("end", ""),
        ("tool", ""),
    ):
        for reason in finish[meaning]:
            assert end_of(reason.partition(":")[2] or reason) == ends, reason
    for reason in finish["malformed"]:
        with pytest.raises(Malformed):
            end_of(reason)
    for reason in finish["unavailable"]:
        if reason not in (
            "load",
            "unload",
            "OTHER",
            "MISSING_THOUGHT_SIGNATURE",
        ):  # of dialects with a list of their own
            with pytest.raises(Unavailable):
                end_of(reason)


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        (None, ""),
        ("", ""),
        ("stop", ""),
        ("tool_calls", ""),
        ("eos_token", ""),
        ("MAX_TOKENS", "length"),
        ("max_output_tokens", "length"),
        ("model_length", "length"),
        ("model_context_window_exceeded", "context"),
        ("sensitive", "refusal"),
        ("guardrail_intervened", "refusal"),
    ],
)
def test_the_end_of_an_answer(reason: str | None, end: str) -> None:
    assert end_of(reason) == end


@pytest.mark.parametrize("reason", ["error", "network_error", "timeout", "cancelled", "abort", "ERROR"])
def test_an_end_that_leaves_no_reply(reason: str) -> None:
    """The call of a half reply was run."""
    with pytest.raises(Unavailable, match=reason):
        end_of(reason)


@pytest.mark.parametrize("kind", [Overflow, Malformed])
def test_each_kind_of_error_is_met(kind: type[GuestError]) -> None:
    assert any(ERRORS.get(answer["is"]) is kind for answer in ANSWERS)
