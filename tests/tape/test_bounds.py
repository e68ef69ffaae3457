"""Tapes that somebody else made, of any size and name. Reading stops at the first line that is too long."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from quine.base.errors import Failure
from quine.base.sessions import new_session
from quine.tape import index, lines, reader, registry, render, requests, verify
from quine.tape.writer import FileSink, Tape
from tests.support.agents import OK, QUINE, Agents, says
from transport.status import Status

HUGE = 20 << 30  # bytes, all of them a hole
LOST = {"code": 74, "state": "lost", "signal": "", "detail": "x"}
MEMORY = 600_000  # KiB of address space: an interpreter, a line and its copies


def meta(session: str, **more: Any) -> str:
    data = {"session_id": session, "root_session_id": session, "depth": 0, "mission": "planted", **more}
    return json.dumps({"type": "meta", "data": data, "seq": 0, "ts": 1.0, "prev": ""}, separators=(",", ":"))


def planted(folder: Path, head: str = "") -> str:
    """A tape with a first line and then a hole; without one it is only a hole."""
    session = new_session()
    path = folder / f"{session}.jsonl"
    folder.mkdir(exist_ok=True)
    path.write_text(head.replace("SESSION", session))
    os.truncate(path, HUGE)
    return session


def limited(agents: Agents, *words: str) -> subprocess.CompletedProcess[str]:
    line = f'ulimit -v {MEMORY}; exec "$@"'
    return subprocess.run(
        ["sh", "-c", line, "sh", *QUINE, *words],
        cwd=agents.directory,
        env=agents.env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )


READING = (
    ("tape show", 2), ("tape show --follow", 2), ("tape tree", 2), ("tape cost", 2), ("tape replay --dry", 2),
    ("tape replay --force", 2), ("tape verify", 1), ("wait --timeout 2", 74), ("logs", 1), ("kill -0", 1),
)  # fmt: skip
LISTING = (("tape ls", 0), ("tape cost", 2), ("tape verify", 1), ("tape archive", 0), ("ps --all", 0))


@pytest.mark.parametrize(
    "head",
    [
        pytest.param("", id="hole", marks=pytest.mark.long),
        pytest.param(meta("SESSION") + "\n", id="line and hole"),
    ],
)
def test_a_tape_that_is_a_hole_costs_one_line(agents: Agents, head: str) -> None:
    session = planted(agents.data, head)
    for words, status in (*((f"{verb} {session}", status) for verb, status in READING), *LISTING):
        done = limited(agents, *words.split())
        assert done.returncode == status or (not head and done.returncode == 2), (words, done)
        named = done.stdout if "verify" in words else done.stderr
        if words.startswith("tape") and (head or "archive" not in words):
            assert named.count(f"a line of more than {lines.READ} bytes") == 1, (words, done)


def test_the_last_line_is_found_behind_no_more_than_a_torn_one(tmp_path: Path) -> None:
    session = planted(tmp_path, meta("SESSION") + "\n")
    path = tmp_path / f"{session}.jsonl"
    assert index.ends(str(path)).last["type"] == "meta"
    outcome = b'{"type":"outcome","data":{}}\n'
    with path.open("ab") as file:
        file.write(b"\n" + outcome + b"x" * (lines.READ // 2))
    assert index.ends(str(path)).last["type"] == "outcome"
    os.truncate(path, HUGE + 3 * lines.READ)
    assert index.ends(str(path)).last["type"] == "meta"


def test_a_device_is_no_tape(tmp_path: Path) -> None:
    path = tmp_path / f"{new_session()}.jsonl"
    path.symlink_to("/dev/zero")
    assert index.ends(str(path)) == index.Ends({}, {})
    assert "no regular file" in verify.verify(path).text()
    with pytest.raises(OSError, match="no regular file"):
        lines.first(str(path))


def test_a_record_of_a_job_that_is_a_hole_is_none(tmp_path: Path) -> None:
    (tmp_path / "job").touch()
    os.truncate(tmp_path / "job", HUGE)
    assert registry.record(str(tmp_path)) == {}


@pytest.mark.parametrize(
    "data",
    [
        {"x": {"ended": {}}},
        {"ended": []},
        {"ended": {"code": 0}},
        {"session": [], "ended": LOST},
        {"session": "x", "ended": LOST},
    ],
)
def test_a_fork_that_is_none_tells_no_end(tmp_path: Path, data: dict[str, Any]) -> None:
    child, parent = new_session(), new_session()
    good = {"session": new_session(), "ended": LOST}
    texts = [
        json.dumps({"type": "fork", "data": facts}, separators=(",", ":"))
        for facts in ({"session": child} | data, good)
    ]
    (tmp_path / f"{parent}.jsonl").write_text("\n".join([meta(parent), *texts, ""]))
    (tmp_path / f"{child}.jsonl").write_text(meta(child, parent_session_id=parent) + "\n")
    found = index.Index(str(tmp_path)).children_ended(parent)
    assert list(found) == [good["session"]]
    assert [agent.verdict().state for agent in registry.everyone(str(tmp_path))] == ["unknown", "unknown"]


@pytest.mark.parametrize("levels", [100_000, 900, 500])
def test_records_that_nest_too_deep_are_none(tmp_path: Path, levels: int) -> None:
    """At the limit of the parser a value may be read of which no text can be made."""
    deep = f"{'[' * levels}{']' * levels}"
    session = new_session()
    (tmp_path / f"{session}.jsonl").write_text(meta(session).replace('"planted"', deep) + "\n")
    assert index.ends(str(tmp_path / f"{session}.jsonl")) == index.Ends({}, {})
    job = tmp_path / "jobs" / session
    job.mkdir(parents=True)
    (job / "job").write_text(f'{{"pid":1,"intent":{deep}}}')
    assert registry.record(str(job)) == {}
    (job / "job").write_text('{"pid":1}')
    (job / "status").write_text(f'{{"code":69,"state":"exited","detail":{deep}}}')
    (job / "report").write_text(deep)
    (agent,) = registry.everyone(str(tmp_path))
    assert agent.verdict().state == "unknown"
    (job / "status").write_text('{"code":69,"state":"exited","signal":"","detail":""}')
    assert agent.verdict() == Status("exited", 69)


def test_a_pipe_in_the_place_of_a_result_is_not_copied_and_the_others_are(agents: Agents) -> None:
    agents.run(says(OK))
    (true,) = agents.data.glob("*.jsonl")
    job = agents.data / "jobs" / true.stem
    job.mkdir(parents=True)
    for name in ("job", "status"):
        (job / name).write_text("{}")
    os.mkfifo(job / "stdout")
    done = limited(agents, "tape", "archive")
    assert done.returncode == 0 and f"{job}/stdout is not copied: no regular file" in done.stderr, done
    kept = {path.name for path in (agents.data / "fs").rglob("*") if path.is_file()}
    assert kept >= {true.name, "job", "status"} and "stdout" not in kept


def test_a_line_is_written_only_if_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / f"{new_session()}.jsonl"
    tape = Tape(FileSink(str(path)))
    tape.add("meta", {"mission": "x" * (lines.LONGEST - 200)})
    with pytest.raises(
        Failure, match=f"a tape takes lines of up to {lines.LONGEST} bytes, and this message has"
    ):
        tape.add("message", {"content": "x" * lines.LONGEST})
    tape.add("outcome", {"exit_code": 0})
    tape.sync()
    tape.close()
    assert [entry["type"] for _, entry in lines.entries(str(path))] == ["meta", "outcome"]
    assert verify.verify(path).state == verify.OK


def test_only_a_file_with_the_name_of_a_session_is_a_tape(
    agents: Agents, capfd: pytest.CaptureFixture[str]
) -> None:
    agents.run(says(OK))
    (true,) = agents.data.glob("*.jsonl")
    for name in ("01a228e3\x1b[31m\nquine: note: fake.jsonl", f"{true.stem}x.jsonl", "x.jsonl"):
        (agents.data / name).write_bytes(true.read_bytes())
    assert reader.files(agents.data) == [true]
    for words in ("ls", "tree", "cost", "verify", "archive"):
        done = limited(agents, "tape", words)
        assert done.returncode == 0 and not done.stderr, (words, done)
        assert "\x1b" not in done.stdout and "fake" not in done.stdout, (words, done)
    assert len(render.ls(agents.data).splitlines()) == 2
    assert requests.named(true, f"{true.stem}x") is None and requests.named(true, true.stem) == true
    assert capfd.readouterr().err == ""
