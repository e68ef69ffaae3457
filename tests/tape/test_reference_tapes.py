"""Tapes that the reference implementation wrote: read, listed, drawn, priced and verified like ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quine.base.errors import Misconfigured
from quine.base.messages import ToolCall
from quine.tape import cost, render, requests, verify
from quine.tape.lines import message_of
from quine.tape.reader import moment, sessions
from quine.tape.replay import dry, replay
from tests.tape.tapes import read

ROOT, CHILD = "679c7ab2-db0d-4cee-8f5c-366c156f063d", "d78cf630-7357-4852-8355-1b53d866d7bc"
MILLISECONDS = 1771287370189
SYSTEM = "You are a process.\n\n### Your Mission\n# Count\n\nthe files.\n\n\n### Mortality\nYou will die."


def write(folder: Path, session: str, *more: tuple[str, dict[str, Any]], **meta: Any) -> Path:
    head = {"session_id": session, "parent_session_id": "", "depth": 0, "model_id": "claude-sonnet-4-5"}
    entries = [("meta", {**head, "created_at": MILLISECONDS, **meta}), *more]
    path = folder / f"{session}.jsonl"
    path.write_text("".join(json.dumps({"type": kind, "data": data}) + "\n" for kind, data in entries))
    return path


def message(role: str, content: str | None, **more: Any) -> tuple[str, dict[str, Any]]:
    return "message", {"role": role, "content": content, "timestamp": MILLISECONDS + 2000, **more}


def call(id: str, name: str = "sh", arguments: Any = None) -> dict[str, Any]:
    return {"id": id, "name": name, "arguments": {"command": "ls"} if arguments is None else arguments}


OUTCOME = (
    "outcome",
    {"exit_code": 0, "stderr": "", "duration_ms": 96_500, "tokens_in": 40_000, "tokens_out": 2000, "turn_count": 3,
     "termination_mode": "exit"},
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(
        tmp_path, ROOT, message("system", SYSTEM, timestamp=0), message("user", "Begin.", timestamp=0),
        message("assistant", "I'll look.", tool_calls=[call("a")], reasoning_content="hm"),
        ("tool_result", {"tool_id": "a", "content": "[EXIT CODE] 0", "is_error": False}),
        ("meta", {"session_id": "another", "model_id": "second"}),
        message("assistant", None, tool_calls=[call("b", "nothing")]),
        message("tool_result", "unknown tool: nothing", tool_id="b"), OUTCOME,
    )  # fmt: skip
    write(
        tmp_path,
        CHILD,
        message("user", "Begin."),
        parent_session_id=ROOT,
        depth=1,
        created_at=MILLISECONDS + 1000,
    )
    return tmp_path


def test_its_messages_are_read(folder: Path) -> None:
    found = [m for entry in read(str(folder / f"{ROOT}.jsonl")) if (m := message_of(entry))]
    assert [one.role for one in found] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert found[2].tool_calls == (ToolCall("a", "sh", {"command": "ls"}),) and found[2].reasoning == "hm"
    assert found[3].result is not None and not found[3].result.is_error
    assert found[4].text == ""
    refused = found[5].result
    assert refused is not None
    assert (refused.call_id, refused.text, refused.is_error) == ("b", "unknown tool: nothing", True)


@pytest.mark.parametrize(
    "given",
    [
        {"id": "x", "name": "sh", "arguments": {"command": "ls"}},
        {"id": "x", "name": "sh", "arguments": '{"command": "ls"}'},
        {"id": "x", "type": "function", "function": {"name": "sh", "arguments": '{"command": "ls"}'}},
        {"id": "x", "type": "function", "function": {"name": "sh", "arguments": {"command": "ls"}}},
    ],
)
def test_calls_in_every_plausible_form(given: dict[str, Any]) -> None:
    entry = {"type": "message", "data": {"role": "assistant", "content": "", "tool_calls": [given]}}
    got = message_of(entry)
    assert got is not None
    (one,) = got.tool_calls
    assert (one.id, one.name, one.args) == ("x", "sh", {"command": "ls"})


@pytest.mark.parametrize("arguments", ["", None, {}, "{}"])
def test_calls_without_arguments(arguments: Any) -> None:
    given = {"id": "x", "name": "sh", "arguments": arguments}
    got = message_of({"type": "message", "data": {"role": "assistant", "content": "", "tool_calls": [given]}})
    assert got is not None and got.tool_calls[0].args == {}


@pytest.mark.parametrize("calls", [3, [3], [{"id": "x"}], [{"name": "x", "arguments": [1]}], {"a": 1}])
def test_calls_that_are_none(calls: Any) -> None:
    with pytest.raises(ValueError):
        message_of({"type": "message", "data": {"role": "assistant", "content": "", "tool_calls": calls}})


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        (MILLISECONDS, MILLISECONDS / 1000), (1771287370, 1771287370), (1771287370.5, 1771287370.5),
        ("2026-02-17T00:16:10Z", 1771287370), ("2026-02-17T00:16:10.123456789Z", 1771287370.123456),
        ("2026-02-17T01:16:10+01:00", 1771287370), ("yesterday", 0), (None, 0), ([], 0), (10**40, 0), (True, 1),
    ],
)  # fmt: skip
def test_moments_in_every_plausible_form(told: Any, seconds: float) -> None:
    assert moment(told) == pytest.approx(seconds)


def test_it_is_listed(folder: Path) -> None:
    first, second = map(json.loads, render.ls(folder, as_json=True).splitlines())
    assert (first["session"], first["begun"], first["seconds"]) == (ROOT, MILLISECONDS / 1000, 96.5)
    assert (first["model"], first["turns"], first["mission"]) == (
        "claude-sonnet-4-5",
        3,
        "# Count\n\nthe files.",
    )
    assert (second["session"], second["root"], second["exit"], second["seconds"]) == (CHILD, ROOT, "-", 1.0)
    assert len(render.ls(folder).splitlines()) == 3


def test_it_is_drawn(folder: Path) -> None:
    _, first, second = render.tree(folder).splitlines()
    assert first.startswith("?") and second.startswith("  ?")
    shown = render.show(folder, ROOT)
    assert shown.startswith("[0] meta\n") and "-> nothing" in shown and "[7] outcome" not in shown
    assert "tokens_in: 40000" in shown


def test_it_is_priced_by_the_session(folder: Path) -> None:
    """It tells the tokens of the whole only: the price is an estimate, and said to be one."""
    (row,) = map(json.loads, cost.cost(folder, as_json=True).splitlines())
    assert (row["inferences"], row["tokens_in"], row["estimated"]) == (2, 40_000, True)
    assert row["usd"] == pytest.approx((40_000 * 3 + 2000 * 15) / 1e6)
    assert "~0.1500" in cost.cost(folder)


def test_it_has_no_chain_to_verify(folder: Path) -> None:
    for session in (ROOT, CHILD):
        verdict = verify.verify(folder / f"{session}.jsonl")
        assert verdict.state == verify.UNCHAINED
        assert "no chain: written by the reference implementation" in verdict.text()


def test_its_requests_are_rebuilt_and_not_run(folder: Path) -> None:
    lines = [json.loads(line) for line in dry(folder, ROOT)]
    assert [(line["ordinal"], line["line"], len(line["messages"])) for line in lines] == [
        (0, 4, 2),
        (1, 7, 4),
        (2, 0, 6),
    ]
    assert [sent.ordinal for sent in requests.requests(folder / f"{CHILD}.jsonl")] == [0]
    with pytest.raises(Misconfigured, match="cannot be run again"):
        replay(folder, ROOT)


def test_parents_in_a_circle(tmp_path: Path) -> None:
    write(tmp_path, ROOT, parent_session_id=CHILD)
    write(tmp_path, CHILD, parent_session_id=ROOT)
    assert len(sessions(tmp_path)) == 2
    assert len(render.tree(tmp_path).splitlines()) >= 2


def test_lines_of_any_length_and_blank_ones(tmp_path: Path) -> None:
    path = write(tmp_path, ROOT, message("user", "x" * (3 << 20)), OUTCOME)
    path.write_text(path.read_text().replace("\n", "\n\n"))
    assert [entry["type"] for entry in read(str(path))] == ["meta", "message", "outcome"]
