"""`quine doctor --guest`: the examination of a server, by what real servers say and tell."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import OK, QUINE, call
from tests.vendors import chat
from tests.vendors.server import KEY, Fault, Provider, Said, Turn

CALLS = Said("", (call("sh", command="echo one"), call("sh", command="echo two")), usage=(100, 10, 0))
DONE = Said("", (OK,))
MODELS = {"data": [{"id": "m"}, {"id": "other"}]}
Examine = Callable[..., dict[str, Any]]


@pytest.fixture
def examine(tmp_path: Path) -> Examine:
    """Examine a provider; return the findings by their subjects, and the exit status as "status"."""

    def run(provider: Provider, *words: str, **env: str) -> dict[str, Any]:
        given = {
            "PATH": os.environ["PATH"],
            "HOME": str(tmp_path),
            "XDG_RUNTIME_DIR": os.environ["XDG_RUNTIME_DIR"],
            "QUINE_DATA_DIR": str(tmp_path / ".quine"),
            "QUINE_API_TYPE": "openai",
            "QUINE_API_BASE": f"{provider.base}/v1",
            "QUINE_MODEL_ID": "m",
            "QUINE_API_KEY": KEY,
            **env,
        }
        done = subprocess.run(
            [*QUINE, "doctor", "--guest", "--json", *words],
            env=given,
            cwd=tmp_path,
            capture_output=True,
            timeout=120,
        )
        assert KEY.encode() not in done.stdout and not done.stderr, done
        found = {row["subject"]: row for row in map(json.loads, done.stdout.splitlines())}
        return {**found, "status": done.returncode}

    return run


def test_a_server_that_has_all(examine: Examine) -> None:
    with Provider(chat, CALLS, DONE) as provider:
        provider.facts = {"/v1/models": {"data": [{"id": "m", "max_model_len": 200_000}]}}
        found = examine(provider)
        assert found["status"] == 0
        assert "directly, without TLS" in found["way"]["detail"]
        assert found["guest"]["facts"] | {"input": 100, "output": 10} == found["guest"]["facts"]
        assert found["tools"]["detail"].startswith("they work, several in one reply")
        assert found["models"]["facts"]["models"] == ["m"]
        assert found["context"]["facts"] == {"served": 200_000, "window": 128_000}
        assert found["price"]["detail"] == "that of m is not known"
        line = found["settings"]["detail"]
        assert line == (
            f"export QUINE_API_TYPE=openai QUINE_API_BASE={provider.base}/v1 QUINE_MODEL_ID=m "
            "QUINE_CONTEXT_WINDOW=200000"
        )


def test_a_server_that_gives_less_context_than_an_agent_has(examine: Examine) -> None:
    """As Ollama does, which cuts what is longer without a word."""
    with Provider(chat, CALLS, DONE) as provider:
        provider.facts = {"/api/ps": {"models": [{"name": "m:latest", "context_length": 4096}]}}
        found = examine(provider)
    assert (found["status"], found["context"]["state"]) == (0, "warn")
    assert "it gives 4096 tokens, fewer than QUINE_CONTEXT_WINDOW (128000)" in found["context"]["detail"]
    assert "OLLAMA_CONTEXT_LENGTH" in found["context"]["cure"]


@pytest.mark.parametrize(
    ("plan", "detail", "cure"),
    [
        ((Said("ok then"),), "none was called; it said: 'ok then'", "--jinja"),
        (
            (CALLS, Fault(400, "bad", message="Unexpected role")),
            "its own call does not go back: Unexpected role",
            "",
        ),
    ],
)
def test_a_server_without_what_an_agent_needs(
    examine: Examine, plan: tuple[Turn, ...], detail: str, cure: str
) -> None:
    with Provider(chat, *plan) as provider:
        found = examine(provider)
    assert (found["status"], found["tools"]["state"]) == (1, "fail")
    assert detail in found["tools"]["detail"] and cure in found["tools"]["cure"]


def test_a_model_that_is_not_there_or_not_named(examine: Examine) -> None:
    """The names that the server lists are the cure."""
    with Provider(chat, Fault(404, "model")) as provider:
        provider.facts = {"/v1/models": MODELS}
        found = examine(provider, QUINE_MODEL_ID="x")
        assert (found["status"], found["guest"]["state"]) == (1, "fail")
        assert found["models"]["detail"] == "x is not in its list: m, other"
        found = examine(provider, QUINE_MODEL_ID="")
        assert (found["status"], found["guest"]["detail"]) == (1, "QUINE_MODEL_ID is not set")
        assert found["guest"]["cure"].endswith(": one of those that it lists")
        assert found["models"]["detail"] == "it lists m, other"
        assert found["way"]["state"] == "ok"
        found = examine(provider, QUINE_MODEL_ID="", QUINE_API_BASE=provider.base)
        assert (found["status"], found["models"]["state"], found["way"]["state"]) == (1, "fail", "ok")
        assert found["models"]["cure"].endswith(f" QUINE_API_BASE={provider.base}/v1")
        assert found["guest"]["cure"].endswith(": the server has listed none")


def test_a_wrong_key_and_a_dead_server(examine: Examine) -> None:
    with Provider(chat, Fault(401, "auth")) as provider:
        found = examine(provider)
        assert (found["status"], found["guest"]["state"]) == (1, "fail")
        assert (found["way"]["state"], found["models"]["state"]) == ("ok", "fail")
    found = examine(provider)
    assert (found["status"], found["guest"]["state"]) == (1, "fail")
    assert "refused" in found["guest"]["detail"]
    found = examine(provider, QUINE_MODEL_ID="")
    assert [found[name]["state"] for name in ("guest", "way", "models")] == ["fail"] * 3
    assert found["way"]["cure"] == "does it run there? see QUINE_API_BASE"


def test_it_is_not_asked_without_the_option(examine: Examine, tmp_path: Path) -> None:
    with Provider(chat) as provider:
        env = {
            **os.environ,
            "QUINE_API_BASE": f"{provider.base}/v1",
            "QUINE_MODEL_ID": "m",
            "HOME": str(tmp_path),
        }
        done = subprocess.run(
            [*QUINE, "doctor"], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert "settings are complete, nothing was sent (--guest)" in done.stdout
