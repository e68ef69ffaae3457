"""The guest that follows a file, the schemas, and the choice of a guest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quine.agent import env
from quine.agent.tools import TOOLS, validate
from quine.base.cli_options import RunOptions
from quine.base.errors import Misconfigured
from quine.base.messages import Refused, Request
from quine.providers import choice
from quine.providers.script import ScriptGuest
from quine.providers.vendors import Config


def script(tmp_path: Path, *lines: dict[str, Any]) -> ScriptGuest:
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return ScriptGuest(str(path))


def text(guest: ScriptGuest, mission: str, ordinal: int, **wisdom: str) -> str:
    return guest.infer(Request([], TOOLS, "", mission, ordinal, wisdom)).message.text


def says(text: str, **more: Any) -> dict[str, Any]:
    return {**more, "reply": {"text": text}}


def test_one_file_scripts_a_tree(tmp_path: Path) -> None:
    guest = script(
        tmp_path,
        says("a0", match="^a"),
        says("all"),
        says("b1", match="^b"),
        says("a2", match="^a", repeat=True),
    )
    assert [text(guest, "a", n) for n in range(5)] == ["a0", "all", "a2", "a2", "a2"]
    assert [text(guest, "b", n) for n in range(2)] == ["all", "b1"]
    with pytest.raises(Refused):
        text(guest, "b", 2)


def test_lives_told_apart_by_wisdom(tmp_path: Path) -> None:
    guest = script(tmp_path, says("first", wisdom="^{}$"), says("second", wisdom='"n":"1"'))
    assert text(guest, "x", 0) == "first"
    assert text(guest, "x", 0, n="1") == "second"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x", "not JSON"), ("[]", 'no "reply"'), ("{}", 'no "reply"'), ('{"reply": 1}', 'no "reply"'),
        ('{"reply": {}, "mtach": ""}', "unknown key 'mtach'"), ('{"reply": {}, "match": "("}', "unterminated"),
        ('{"reply": {}, "match": 3}', '"match" must be text, not int'),
        ('{"reply": {}, "repeat": 1}', '"repeat" must be true or false'),
        ('{"reply": {"tool_call": []}}', "unknown key 'tool_call' in \"reply\""),
        ('{"reply": {"tool_calls": null}}', '"tool_calls" must be a list, not null'),
        ('{"reply": {"tool_calls": ["sh"]}}', "a tool call is"), ('{"reply": {"text": 1}}', '"text" must be text'),
        ('{"reply": {"tool_calls": [{"name": "sh"}]}}', 'a tool call without "arguments"'),
        ('{"reply": {"tool_calls": [{"name": 1, "arguments": {}}]}}', '"name" must be text'),
        ('{"reply": {"tool_calls": [{"name": "sh", "arguments": null}]}}', '"arguments" must be an object'),
        ('{"reply": {}, "usage": 3}', '"usage" must be an object'),
        ('{"reply": {}, "usage": {"input": "3"}}', '"input" must be an integer, not str'),
        ('{"reply": {}, "usage": {"input": true}}', '"input" must be an integer'),
        ('{"reply": {}, "usage": {"in": 3}}', "unknown key 'in'"),
    ],
)  # fmt: skip
def test_a_broken_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "s").write_text('{"reply": {}}\n' + line + "\n")
    with pytest.raises(Misconfigured) as caught:
        ScriptGuest(str(tmp_path / "s"))
    assert f"{tmp_path}/s, line 2: " in caught.value.detail
    assert words in caught.value.detail


def test_a_line_is_used_once(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="has no reply left for this mission"):
        text(script(tmp_path, says("x")), "m", 1)


# -- schemas ---------------------------------------------------------------------------------------


def keywords(rule: Any) -> set[str]:
    found = set(rule)
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(rule.get(key), dict):
            found |= keywords(rule[key])
    for each in (*rule.get("properties", {}).values(), *rule.get("anyOf", ())):
        found |= keywords(each)
    return found


def test_the_validator_knows_every_keyword_of_the_tools() -> None:
    for tool in TOOLS:
        assert keywords(tool.schema) <= validate.KNOWN


@pytest.mark.parametrize(
    ("value", "rule", "words"),
    [
        (1, {"type": "integer"}, ""),
        (1, {"type": "number"}, ""),
        (1.5, {"type": "integer"}, "must be an integer, not a number"),
        (True, {"type": "integer"}, "not a boolean"),
        (True, {"type": "boolean"}, ""),
        (0, {"type": "boolean"}, "not an integer"),
        (None, {"type": "string"}, "not null"),
        (float("nan"), {"type": "number"}, "between"),
        ("", {"type": "string", "minLength": 1}, "must not be empty"),
        ("ab", {"type": "string", "maxLength": 1}, "at most 1"),
        ("a\n", {"pattern": "^a$"}, "must match"),
        ([1, "x"], {"items": {"type": "integer"}}, "[1] must be an integer"),
        ({"a": {"b": 1}}, {"properties": {"a": {"properties": {"b": {"type": "string"}}}}}, "a.b must be a string"),
        ({"x": 1}, {"properties": {}, "additionalProperties": False}, "x is not an argument"),
        ("b", {"enum": ["a"]}, "must be one of 'a', not 'b'"),
        ("x", {"anyOf": [{"type": "integer"}, {"type": "string", "enum": ["a"]}]}, "one of 'a'"),
        (3, {"anyOf": [{"type": "integer"}, {"type": "string"}]}, ""),
    ],
)  # fmt: skip
def test_validator(value: Any, rule: dict[str, Any], words: str) -> None:
    fault = validate.check(value, rule)
    assert words in fault
    assert bool(fault) is bool(words)


def test_an_unknown_keyword_is_a_defect() -> None:
    with pytest.raises(AssertionError):
        validate.check(1, {"oneOf": []})


OPENAI = "https://api.openai.com/v1"
ANTHROPIC = "https://api.anthropic.com"
GOOGLE = "https://generativelanguage.googleapis.com"

# -- the choice ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "config"),
    [
        ({"OPENAI_API_KEY": "k"}, Config("responses", OPENAI, "m", "k")),
        ({"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "http://b/v1/"}, Config("openai", "http://b/v1", "m", "k")),
        ({"QUINE_API_BASE": "http://b/v1"}, Config("openai", "http://b/v1", "m")),
        ({"QUINE_API_BASE": "http://b/v1", "OPENAI_API_KEY": "k"}, Config("openai", "http://b/v1", "m")),
        ({"QUINE_API_BASE": "http://b/v1", "QUINE_API_KEY": "q"}, Config("openai", "http://b/v1", "m", "q")),
        ({"QUINE_API_KEY": "q", "QUINE_API_TYPE": "openai"}, Config("openai", "https://api.openai.com/v1", "m", "q")),
        ({"OLLAMA_HOST": "0.0.0.0"}, Config("openai", "http://127.0.0.1:11434/v1", "m")),
        ({"OLLAMA_HOST": "[::1]"}, Config("openai", "http://[::1]:11434/v1", "m")),
        ({"OLLAMA_HOST": "https://ollama.com"}, Config("openai", "https://ollama.com/v1", "m")),
        ({"OLLAMA_HOST": "http://gw/ollama"}, Config("openai", "http://gw:11434/ollama/v1", "m")),
        ({"OLLAMA_HOST": "http://h:1/v1"}, Config("openai", "http://h:1/v1", "m")),
        ({"OLLAMA_HOST": "https://o:1/"}, Config("openai", "https://o:1/v1", "m")),
        ({"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "k"}, Config("responses", OPENAI, "m", "k")),
        ({"OPENAI_API_KEY": "k\n"}, Config("responses", OPENAI, "m", "k")),
        ({"OPENAI_API_KEY": "k", "QUINE_API_TYPE": "openai"}, Config("openai", "https://api.openai.com/v1", "m", "k")),
        ({"QUINE_API_BASE": OPENAI, "OPENAI_API_KEY": "k"}, Config("responses", OPENAI, "m", "k")),
        ({"ANTHROPIC_API_KEY": "a"}, Config("anthropic", "https://api.anthropic.com", "m", "a")),
        ({"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "http://b"}, Config("anthropic", "http://b", "m", "t")),
        ({"GEMINI_API_KEY": "g", "GOOGLE_API_KEY": "h"}, Config("gemini", GOOGLE, "m", "h")),
        ({"OPENROUTER_API_KEY": "o"}, Config("openai", "https://openrouter.ai/api/v1", "m", "o")),
        ({"QUINE_API_TYPE": "anthropic", "QUINE_API_KEY": "q"}, Config("anthropic", ANTHROPIC, "m", "q")),
        ({"QUINE_API_TYPE": "gemini", "OPENAI_API_KEY": "k", "GEMINI_API_KEY": "g"},
         Config("gemini", GOOGLE, "m", "g")),
        ({"QUINE_API_TYPE": "program", "QUINE_API_BASE": "/bin/cat"}, Config("program", "/bin/cat", "m")),
    ],
)  # fmt: skip
def test_which_guest(environ: dict[str, str], config: Config) -> None:
    given = {"QUINE_MODEL_ID": "m", **environ}
    settings = env.adopt(RunOptions(), given)
    assert env.guest(settings, given) == config
    assert not any(key in given for key in choice.KEYS)


def test_options_win_over_the_environment() -> None:
    given = {"QUINE_MAX_TURNS": "1", "QUINE_MODEL_ID": "x"}
    settings = env.adopt(RunOptions(max_turns="5", model="y"), given)
    assert (settings.limits.turns, settings.model) == (5, "y")
    assert given["QUINE_MAX_TURNS"] == "5"
