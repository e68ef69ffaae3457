"""The index of a data directory: which files a verb opens, and how often, whatever the number of sessions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from quine.base.sessions import new_session
from quine.cli.tape import main as tape
from quine.tape.index import BLOCK, Ends, Index, ends
from quine.tape.reader import sessions
from tests.support.agents import OK, QUINE, Agents, call, says, sh
from tests.support.sessions import NOBODY, write_sessions

COUNTING = """
import atexit, json, os, sys
opened = []
def seen(event, args):
    if event == "open" and str(args[0]).endswith((".jsonl", "/stat")):
        opened.append(str(args[0]))
sys.addaudithook(seen)
from quine.__main__ import dispatch
status = dispatch(sys.argv[2:])
sys.stdout.flush()
with open(sys.argv[1], "w") as file:
    json.dump(opened, file)
sys.exit(status)
"""


def opened_by(agents: Agents, *words: str) -> Counter[str]:
    """How often each tape is opened by a verb that succeeds."""
    paths = map(Path, all_opened_by(agents, *words))
    return Counter(path.stem for path in paths if path.suffix == ".jsonl")


def all_opened_by(agents: Agents, *words: str) -> list[str]:
    """The paths of tapes and of processes that it opens."""
    target = agents.directory / "opened"
    subprocess.run(
        [sys.executable, "-P", "-c", COUNTING, str(target), *words],
        cwd=agents.directory,
        env={**agents.env, "PYTHONPATH": os.fspath(Path(__file__).parents[2])},
        capture_output=True,
        check=True,
        timeout=120,
    )
    found: list[str] = json.loads(target.read_text())
    return found


@pytest.mark.parametrize("words", [("ps",), ("ps", "--all"), ("ps", "--all", "--json")])
def test_ps_opens_each_tape_once_however_many_lives_a_process_has(
    agents: Agents, words: tuple[str, ...]
) -> None:
    ids = write_sessions(agents.data, 120, lives=80)
    assert opened_by(agents, *words) == Counter(ids)


def test_ps_looks_for_no_process_of_a_session_whose_tape_tells_the_end(agents: Agents) -> None:
    write_sessions(agents.data, 30, lives=20)
    stat = f"/proc/{NOBODY}/stat"
    assert stat not in all_opened_by(agents, "ps")
    assert stat in all_opened_by(agents, "ps", "--all")


def test_wait_opens_the_lives_of_its_process_and_nothing_else(agents: Agents) -> None:
    ids = write_sessions(agents.data, 60, lives=40)
    found = opened_by(agents, "wait", ids[20])
    assert set(found) == set(ids[:40])
    assert max(found.values()) <= 2, "once to find it, once after it has ended"


@pytest.mark.parametrize("verb", ["show", "cost"])
def test_tape_opens_the_session_that_is_named_and_nothing_else(agents: Agents, verb: str) -> None:
    ids = write_sessions(agents.data, 60, lives=40)
    assert set(opened_by(agents, "tape", verb, ids[50])) == {ids[50]}


def test_tape_tree_reads_other_trees_no_further_than_their_first_line(agents: Agents) -> None:
    ids = write_sessions(agents.data, 30, lives=20)
    found = opened_by(agents, "tape", "tree", ids[25])
    assert max(found.values()) <= 5 and set(found) <= set(ids)
    assert all(found[other] <= 2 for other in ids if other != ids[25])


def test_all_lives_of_a_process_are_one_agent(agents: Agents) -> None:
    ids = write_sessions(agents.data, 50, lives=40)
    index = Index(str(agents.data))
    assert all(index.lives(one) == ids[:40] for one in ids[:40])
    assert all(index.lives(one) == [one] for one in ids[40:])


def test_the_lives_of_a_real_agent_are_one_agent(agents: Agents) -> None:
    begin = {"match": "^work", "wisdom": "^\\{\\}$"}
    agents.run(
        says(call("exec", wisdom={"n": "1"}), **begin),
        says(OK, match="^work", wisdom="."),
    )
    first, second = (tape[0]["data"]["session_id"] for tape in agents.tapes())
    assert Index(str(agents.data)).lives(second) == [first, second]


def write(folder: Path, session: str, meta: dict[str, object], to: str = "") -> None:
    """Write a tape of a first entry and, with `to`, of an exec into that session."""
    entries = [("meta", meta), *([("outcome", {"termination_mode": "exec", "to": to})] if to else [])]
    text = "".join(json.dumps({"type": kind, "data": data}) + "\n" for kind, data in entries)
    (folder / f"{session}.jsonl").write_text(text)


def test_a_host_cannot_give_its_agent_the_process_of_another(tmp_path: Path) -> None:
    """`quine kill` of that one would end the other."""
    victim, before, after, here, there = (new_session() for _ in range(5))
    told: dict[str, object] = {"told_by": "h1"}
    write(tmp_path, victim, {"born": "start"})
    write(tmp_path, before, told, to=victim)
    write(tmp_path, after, {**told, "born": "exec", "parent_session_id": victim})
    write(tmp_path, here, {"born": "start"}, to=there)
    write(tmp_path, there, {**told, "born": "exec", "parent_session_id": here})
    index = Index(str(tmp_path))
    assert [index.lives(one) for one in (before, after, victim)] == [[before], [after], [victim]]
    assert index.lives(there) == [here, there] == index.lives(here)


def test_a_circle_of_tapes_ends_where_it_closes(tmp_path: Path) -> None:
    one, two = new_session(), new_session()
    for session, other in ((one, two), (two, one)):
        meta = {"type": "meta", "data": {"born": "exec", "parent_session_id": other}}
        end = {"type": "outcome", "data": {"to": other}}
        (tmp_path / f"{session}.jsonl").write_text(f"{json.dumps(meta)}\n{json.dumps(end)}\n")
    index = Index(str(tmp_path))
    assert set(index.lives(one)) == {one, two}
    assert index.lives(two) == index.lives(one)


@pytest.mark.parametrize("size", [10, BLOCK - 100, BLOCK, BLOCK + 1, 9 * BLOCK, 100 * BLOCK])
@pytest.mark.parametrize("torn", [b"", b'{"type": "out'])
def test_first_and_last_entry_of_lines_of_any_size(tmp_path: Path, size: int, torn: bytes) -> None:
    def line(kind: str) -> bytes:
        return json.dumps({"type": kind, "data": {"text": "x" * size}}).encode() + b"\n"

    path = tmp_path / "tape"
    for kinds in (["meta"], ["meta", "outcome"], ["meta", "message", "outcome"]):
        path.write_bytes(b"".join(map(line, kinds)) + torn)
        found = ends(str(path))
        assert (found.first["type"], found.last["type"]) == (kinds[0], kinds[-1])
        assert found.first["data"]["text"] == found.last["data"]["text"] == "x" * size


@pytest.mark.parametrize("content", [b"", b"\n", b"torn", b"[]\n", b"\xff\n", b'{"type": 1, "data": []}\n'])
def test_what_is_no_tape_has_no_ends(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tape"
    path.write_bytes(content)
    assert ends(str(path)) == Ends({}, {})
    assert ends(str(tmp_path / "missing")) == Ends({}, {})


def test_tape_show_has_json_and_local_time_and_no_python(agents: Agents) -> None:
    agents.run(says(OK))
    words = [sys.executable, "-P", "-m", "quine", "tape", "show"]
    done = subprocess.run(
        words, cwd=agents.directory, env=agents.env, capture_output=True, check=True, timeout=120
    )
    meta = agents.tape()[0]["data"]
    text = done.stdout.decode()
    assert f"limits: {json.dumps(meta['limits'], separators=(',', ':'))}" in text
    assert f"created_at: {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(meta['created_at']))}" in text
    assert "{'" not in text


def test_tape_ls_reads_the_two_ends_of_a_session_that_has_an_outcome(agents: Agents) -> None:
    agents.run(says(sh("echo hello")), says(OK))
    (path,) = agents.data.glob("*.jsonl")
    words = [*QUINE, "tape", "ls", "--json"]
    before = subprocess.run(words, cwd=agents.directory, env=agents.env, capture_output=True, check=True)
    facts = json.loads(before.stdout)
    (whole,) = sessions(agents.data).values()
    assert (facts["session"], facts["tokens_in"], facts["exit"]) == (whole.id, whole.tokens()[0], 0)
    assert (facts["mission"], facts["root"], facts["begun"]) == (whole.mission, whole.root, whole.begun)
    first, *between, last = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + b"no entry\n" * len(between) + last)
    after = subprocess.run(words, cwd=agents.directory, env=agents.env, capture_output=True, check=True)
    assert (after.stdout, after.stderr) == (before.stdout, b"")
    assert opened_by(agents, "tape", "ls") == Counter([path.stem])


def test_verify_lists_a_directory_as_often_for_many_tapes_without_an_outcome_as_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    listed = []

    def counting(path: str | Path = ".") -> list[str]:
        listed.append(str(path))
        return listdir(path)

    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", counting)
    counts = []
    for number in (1, 20):
        folder = tmp_path / str(number)
        for session in write_sessions(folder, number):
            path = folder / f"{session}.jsonl"
            first, *_ = path.read_text().splitlines(keepends=True)
            path.write_text(first.replace("0" * 64, ""))
        listed.clear()
        tape(["verify", "--data-dir", str(folder)])
        assert capfd.readouterr().out.count(": no outcome") == number
        counts.append(len(listed))
    assert counts[0] == counts[1]
