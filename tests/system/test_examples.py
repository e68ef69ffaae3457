"""The examples, whole but short: the claims of each example are counted again here, on its tapes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import Agents, section
from transport.inherit import is_secret

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NAMES = ("compositions", "iterator", "library", "stream")
SURRENDER = (
    '{"reply": {"tool_calls": [{"name": "exit", "arguments": {"status": "success"}}]}, "repeat": true}\n'
)


def run(directory: Path, name: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """One example in a directory of its own, `work`, with the quine of this tree and no guest but its own."""
    env = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith("QUINE_") and not is_secret(key) and key != "OLLAMA_HOST"
    }
    env |= {"PATH": f"{Path(sys.executable).parent}:{env['PATH']}", "PYTHONPATH": str(ROOT)}
    env |= {"WORK": str(directory / "work"), **more}
    return subprocess.run(
        [str(EXAMPLES / name / "run"), *words],
        env=env,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def tapes(directory: Path) -> list[list[dict[str, Any]]]:
    """In the order in which their lives began."""
    found = [list(map(json.loads, path.read_text().splitlines())) for path in directory.glob("*.jsonl")]
    return sorted(found, key=lambda tape: float(tape[0]["ts"]))


def metas(directory: Path) -> list[dict[str, Any]]:
    return [tape[0]["data"] for tape in tapes(directory)]


def said(tape: list[dict[str, Any]], role: str) -> list[str]:
    return [e["data"]["content"] for e in tape if e["type"] == "message" and e["data"]["role"] == role]


def shown(tape: list[dict[str, Any]], command: str) -> list[str]:
    """Return the output of the commands that begin with `command`."""
    calls = [call for entry in tape for call in entry["data"].get("tool_calls", ())]
    ours = {call["id"] for call in calls if call["arguments"].get("command", "").startswith(command)}
    results = [entry["data"] for entry in tape if entry["type"] == "tool_result"]
    return [section(result["content"], "STDOUT") for result in results if result["tool_id"] in ours]


def test_compositions(tmp_path: Path) -> None:
    done = run(tmp_path, "compositions")
    assert done.returncode == 0, done.stderr
    known = metas(tmp_path / "work" / "tapes")
    missions = Counter(meta["mission"] for meta in known)
    # the second attempt at the patch fails, and so nobody tests after it
    assert missions["Apply the patch"] == 2
    assert missions["Run the test suite and report results"] == 1
    assert missions.total() == 7
    assert {meta["depth"] for meta in known} == {0}
    assert len({meta["pid"] for meta in known}) == 7
    checklist = (tmp_path / "work" / "checklist").read_text().splitlines()
    assert checklist == [
        "- [ ] lib/login.sh (high risk, +1 -1)",
        "- [ ] lib/total.sh (medium risk, +1 -1)",
        "- [ ] README (low risk, +1 -1)",
        "- [ ] tests/run.sh (low risk, +1 -0)",
    ]
    assert "4 of 4 tests passed\n" in done.stdout
    assert "quine: error" not in done.stderr


@pytest.mark.whole
@pytest.mark.long
def test_library_search(tmp_path: Path) -> None:
    """1 → 10 → 25, for a thousand volumes and eight turns each."""
    done = run(tmp_path, "library")
    assert done.returncode == 0, done.stderr
    known = tapes(tmp_path / "work" / "tapes")
    assert len(known) == 36
    sessions = {tape[0]["data"]["session_id"]: tape[0]["data"] for tape in known}
    assert Counter(meta["depth"] for meta in sessions.values()) == {0: 1, 1: 10, 2: 25}
    # all children are one level below: the root has ten, and each of these has five or none
    families = Counter(meta["parent_session_id"] for meta in sessions.values())
    assert sorted(Counter(families.values()).items()) == [(1, 1), (5, 5), (10, 1)]
    for tape in known:
        assert tape[-1]["data"]["exit_code"] == 0
        assert tape[-1]["data"]["turn_count"] <= 8
    # the tree is shown: a line for each session, two blanks for each level
    depths = Counter(len(indent) // 2 for indent in re.findall(r"^( *)local ", done.stdout, re.MULTILINE))
    assert depths == {0: 1, 1: 10, 2: 25}
    assert len(list((tmp_path / "work" / "library").rglob("*.txt"))) == 1000
    # nobody but its own searcher has read a volume: each needle is on the tape of one looker and of no other
    assert [sum("two identical books" in json.dumps(tape) for tape in known)] == [1]


@pytest.mark.long
def test_a_librarian_with_too_few_turns_has_another_life(tmp_path: Path) -> None:
    """Composition and continuity at once, as the paper saw it: notes of what was checked go through exec."""
    agents = Agents(tmp_path)
    make = subprocess.run(
        [sys.executable, str(EXAMPLES / "library" / "make.py")], cwd=tmp_path, capture_output=True, text=True
    )
    (needle,) = [path for path in make.stdout.split() if "hex_03" in path]
    guest = {"QUINE_API_TYPE": "program", "QUINE_API_BASE": str(EXAMPLES / "library" / "guest.py")}
    mission = f"Search the library directory {Path(needle).parent} for something non-random."
    done = agents.run(mission=mission, env={**guest, "QUINE_MAX_TURNS": "3"})
    assert (done.returncode, done.stdout.decode()) == (0, needle.removeprefix("./") + "\n")
    first, second = tapes(agents.data)
    assert first[-1]["data"]["termination_mode"] == "exec"
    assert second[0]["data"]["wisdom"] == {
        "files": "30",
        "files_checked": "50",
        "found": needle.removeprefix("./"),
    }


def test_short_stream(tmp_path: Path) -> None:
    """As in the paper: up to 7K tokens nobody has to begin anew."""
    done = run(tmp_path, "stream", "7000")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("score 1.000") == 1
    assert len(tapes(tmp_path / "work" / "tapes.7000")) == 1


@pytest.mark.long
def test_long_stream(tmp_path: Path) -> None:
    """One process, three lives: joined, the parts that they have read are the stream, to the byte."""
    done = run(tmp_path, "stream", "62000")
    assert done.returncode == 0, done.stderr
    work = tmp_path / "work"
    known = tapes(work / "tapes.62000")
    assert [tape[0]["data"]["born"] for tape in known] == ["start", "exec", "exec"]
    assert len({(tape[0]["data"]["pid"], tape[0]["data"]["started"]) for tape in known}) == 1
    stream = (work / "conversation").read_text()
    read = "".join(text for tape in known for text in shown(tape, "head -c"))
    assert stream.startswith(read)
    assert len(read) + int((work / "left").read_text()) == len(stream)
    assert len(stream) - 20000 < len(read) < len(stream)
    # the lives saw less at a time than there was, and their instructions never held any of it
    usages = [entry["data"]["usage"] for tape in known for entry in tape if "usage" in entry["data"]]
    assert max(usage["input"] + usage["output"] for usage in usages) <= 25000 < len(stream) // 4 / 2
    (system,) = {text for tape in known for text in said(tape, "system")}
    assert "Assistant:" not in system
    # where a life began to read is where the one before had told it
    positions = [int(tape[0]["data"]["wisdom"].get("current_position", 0)) for tape in known]
    sizes = [sum(map(len, shown(tape, "head -c"))) for tape in known]
    assert positions == [0, sizes[0], sizes[0] + sizes[1]]


@pytest.mark.whole
@pytest.mark.long
def test_iterator(tmp_path: Path) -> None:
    done = run(tmp_path, "iterator", "25")
    assert done.returncode == 0, done.stderr
    independent, sequential = (tapes(tmp_path / "work" / f"tapes.{mode}") for mode in "ab")
    # eight items, and a life that finds nothing left; none of them knows anything of another
    assert [tape[0]["data"]["born"] for tape in independent] == ["start"] + ["exec"] * 8
    assert all(tape[0]["data"]["wisdom"] == {} for tape in independent)
    assert [sum("HACKED" in json.dumps(tape) for tape in independent)] == [1]
    # ten, ten and five lines
    assert [len(shown(tape, "for")[0].split("\n")) - 1 for tape in sequential] == [10, 10, 5]
    assert [bool(tape[0]["data"]["wisdom"]) for tape in sequential] == [False, True, True]
    for lives in (independent, sequential):
        assert len({tape[0]["data"]["pid"] for tape in lives}) == 1
        # O(1): the last item costs what the first did
        costs = [tape[-1]["data"]["tokens_in"] / max(1, tape[-1]["data"]["turn_count"]) for tape in lives]
        assert max(costs[:-1]) < 1.25 * min(costs[:-1])


@pytest.mark.parametrize("name", NAMES)
def test_a_guest_of_ones_own_that_does_nothing_is_found_out(tmp_path: Path, name: str) -> None:
    (tmp_path / "surrender.jsonl").write_text(SURRENDER)
    own = {"QUINE_API_TYPE": "script", "QUINE_API_BASE": str(tmp_path / "surrender.jsonl")}
    words = ("4000",) if name == "stream" else ("1", "1") if name == "library" else ()
    done = run(tmp_path, name, *words, **own)
    assert done.returncode == 1
    assert f"{name}: wrong: " in done.stderr
    assert f"{name}: the guest is yours: script\n" in done.stderr
    assert "right" not in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_each_has_a_readme_that_says_what_was_seen(name: str) -> None:
    text = (EXAMPLES / name / "README.md").read_text()
    assert f"examples/{name}/run" in text
    assert "| seen here |" in text
    assert f"`{name}/`" in (EXAMPLES / "README.md").read_text()
