"""Agents of a lab that run or fork on its hosts, and the tapes that they leave at the origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab


def leave(status: object = 0, **guard: str) -> dict[str, Any]:
    arguments = (
        {"status": status} if status in (0, "success") else {"status": status, "stderr": "it failed\n"}
    )
    return {**guard, "reply": {"tool_calls": [{"name": "exit", "arguments": arguments}]}}


def environment(lab: Lab, data: Path, *lines: dict[str, Any]) -> dict[str, str]:
    return {**lab.script(lines, f"{data.parent.name}.jsonl"), "QUINE_DATA_DIR": str(data)}


def tapes(data: Path) -> dict[str, list[dict[str, Any]]]:
    """The tapes of a data directory by mission. A line under way is left out."""
    found = {}
    for path in data.glob("*.jsonl"):
        entries = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        if entries:  # one that has just been made is still empty, and a line under way is none
            found[entries[0]["data"]["mission"]] = entries
    return found


def results(data: Path, mission: str) -> list[str]:
    return [entry["data"]["content"] for entry in tapes(data)[mission] if entry["type"] == "tool_result"]


def warm(lab: Lab, *hosts: str) -> None:
    """Install the binary on the hosts and make a link: a test does not measure that on a busy machine."""
    first = [lab.popen(["run", "--on", host, "--", "true"]) for host in hosts]
    assert [each.wait(120) for each in first] == [0] * len(hosts)


def with_rights(lab: Lab) -> Lab:
    """b1 may fork to b2, b2 to hosts with the tag c, b3 and b4 nowhere. b4 is h1 again."""
    lab.alias("b4", "h1", tags=["d"])
    lab.alias("b3", "h3", tags=["c"])
    lab.alias("b2", "h2", may_fork=["@c"])
    lab.alias("b1", "h1", may_fork=["b2"])
    return lab


@pytest.fixture
def reach(lab: Lab) -> Lab:
    """The hosts of `with_rights`, each with a link."""
    with_rights(lab)
    warm(lab, "b1", "b2", "b3", "b4")
    return lab
