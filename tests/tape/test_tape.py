"""The tape itself, and what is drawn from it."""

from __future__ import annotations

import json
import os
import resource
import time
import tracemalloc
from pathlib import Path

import pytest

from quine.base.errors import Failure, Misconfigured
from quine.base.messages import Message, ToolCall, ToolResult
from quine.base.sessions import is_session, new_session
from quine.tape import cost, render, verify
from quine.tape.lines import message_of
from quine.tape.progress import progress
from quine.tape.writer import FileSink, Tape
from tests.tape.tapes import read


def write(folder: Path, session: str, parent: str = "", root: str = "", **more: object) -> Tape:
    tape = Tape(FileSink(str(folder / f"{session}.jsonl")), ["very-secret", 'a"quoted"secret'])
    meta = {
        "session_id": session,
        "parent_session_id": parent,
        "root_session_id": root or session,
        "depth": int(bool(parent)),
    }
    tape.add("meta", {**meta, "node": "local", "pid": 7, "mission": "m", **more})
    return tape


def end(tape: Tape, code: int = 0, mode: str = "exit") -> None:
    tape.add("outcome", {"exit_code": code, "duration_ms": 1500, "termination_mode": mode})
    tape.sync()
    tape.close()


def test_sessions_sort_by_time() -> None:
    made = [new_session() for _ in range(200)]
    assert all(map(is_session, made))
    assert len(set(made)) == 200
    assert [m[:13] for m in made] == sorted(m[:13] for m in made)
    assert {m[14] for m in made} == {"7"}
    assert {m[19] for m in made} <= set("89ab")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "../../../../etc/passwd",
        "0" * 36,
        "G" * 36,
        None,
        3,
        "01A20022-C549-722D-A851-397867099135",
        "01a20022-c549-722d-a851-397867099135\n",
    ],
)
def test_what_is_no_session(text: object) -> None:
    assert not is_session(text)


def test_nothing_is_written_before_sync(tmp_path: Path) -> None:
    tape = write(tmp_path, new_session())
    assert list(tmp_path.iterdir()) == []
    tape.sync()
    assert len(list(tmp_path.iterdir())) == 1
    tape.close()


def test_what_waits_is_not_written_by_a_forked_child(tmp_path: Path) -> None:
    tape = write(tmp_path, new_session())
    tape.disown()
    tape.sync()
    assert list(tmp_path.iterdir()) == []


def test_a_tape_that_was_closed_is_continued_by_its_writer(tmp_path: Path) -> None:
    """After an exec that failed."""
    sink = FileSink(str(tmp_path / "t.jsonl"))
    for line in (b"1", b"2"):
        sink.put([line])
        sink.close()
    assert (tmp_path / "t.jsonl").read_bytes() == b"1\n2\n"


def test_an_existing_tape_is_never_touched(tmp_path: Path) -> None:
    session = new_session()
    end(write(tmp_path, session))
    with pytest.raises(Failure) as caught:
        end(write(tmp_path, session))
    assert caught.value.status == 74


def test_messages_come_back(tmp_path: Path) -> None:
    messages = [
        Message("user", "ä\ud83d"),
        Message(
            "assistant",
            "t",
            (ToolCall.parse("c", "sh", '{"a": 1}'), ToolCall("d", "x", {"b": 2})),
            raw={"chat": {}},
        ),
        Message("tool", result=ToolResult("c", "sh", "out", True)),
    ]
    tape = write(tmp_path, new_session())
    for message in messages:
        tape.message(message)
    end(tape)
    (path,) = tmp_path.iterdir()
    assert [m for e in read(str(path)) if (m := message_of(e))] == messages


def test_a_torn_line_is_left_out(tmp_path: Path) -> None:
    end(write(tmp_path, new_session()))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b'{"type": "mess')
    assert len(read(str(path))) == 2
    path.write_bytes(b"garbage\n")
    with pytest.raises(ValueError, match="line 1"):
        read(str(path))


def test_tree(tmp_path: Path) -> None:
    root, child, life, grand = (new_session() for _ in range(4))
    end(write(tmp_path, root, mission="the root"), mode="exec")
    end(write(tmp_path, life, root, root, mission="the root", born="exec"))
    end(write(tmp_path, child, root, root, node="h1", mission="a child\x1b[31m\nwith " + "words " * 20), 3)
    running = write(tmp_path, grand, child, root, node="h2", pid=12345, mission="grand")
    running.sync()
    running.close()
    drawn = render.tree(tmp_path).splitlines()
    assert drawn[0].split() == ["NODE", "PID", "EXIT", "SECONDS", "SESSION", "MISSION"]
    rows = {line.split()[0] + line.split()[2]: line for line in drawn[1:]}
    assert rows["localexec"].startswith("local")
    assert rows["local0"].startswith("local ")
    assert rows["h13"].startswith("  h1")
    assert rows["h2-"].startswith("    h2")
    assert "\x1b" not in "".join(drawn)
    assert "…" in rows["h13"]
    assert len(drawn) == 5
    assert render.tree(tmp_path, grand[:30]) == "\n".join(drawn) + "\n"


def test_a_child_that_was_killed_ran_until_its_parent_heard_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last entry of its own tape may be its first."""
    root, child = new_session(), new_session()
    monkeypatch.setattr(time, "time", lambda: 1_000_000.0)
    parent, killed = write(tmp_path, root), write(tmp_path, child, root, root, node="h1")
    killed.sync()
    killed.close()
    monkeypatch.setattr(time, "time", lambda: 1_000_005.0)
    parent.add("fork", {"session": child, "ended": {"code": 74, "state": "lost", "signal": "", "detail": ""}})
    end(parent)
    row = next(line for line in render.tree(tmp_path).splitlines() if line.startswith("  h1"))
    assert row.split()[3] == "5.00"


def test_the_latest_tree_is_drawn(tmp_path: Path) -> None:
    for mission in ("old", "new"):
        end(write(tmp_path, new_session(), mission=mission))
    assert "new" in render.tree(tmp_path)
    assert "old" not in render.tree(tmp_path)


def test_show(tmp_path: Path) -> None:
    session = new_session()
    tape = write(tmp_path, session)
    tape.message(Message("assistant", "thought\x07", (ToolCall("c", "sh", {"command": "a\nb"}),)))
    tape.message(Message("tool", result=ToolResult("c", "sh", "x" * 5000)))
    end(tape)
    shown = render.show(tmp_path, session[:8])
    assert "-> sh" in shown
    assert "thought\\x07" in shown
    assert "(5000 characters)" in shown
    assert "exit_code: 0" in shown


def test_no_such_session(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no tapes"):
        render.tree(tmp_path)
    end(write(tmp_path, new_session()))
    end(write(tmp_path, new_session()))
    for wrong in ("x", "0"):
        with pytest.raises(Misconfigured):
            render.tree(tmp_path, wrong)


def test_foreign_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / f"{new_session()}.jsonl").write_text("garbage\n")
    (tmp_path / f"{new_session()}.jsonl").write_text(json.dumps({"type": "message", "data": {}}) + "\n")
    end(write(tmp_path, new_session()))
    assert len(render.tree(tmp_path).splitlines()) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"pid": [], "node": {}, "mission": None, "depth": "x", "born": 3}, {"ts": "late"}, {"ts": 10**4000},
        {"parent_session_id": 7, "root_session_id": ["x"]}, {"outcome": {"duration_ms": "x", "exit_code": {}}},
        {"outcome": {"duration_ms": 10**400}}, {"tool_calls": 3}, {"tool_calls": [3, {"arguments": "x"}]},
        {"tool_calls": [{"name": None, "arguments": {"a": [[[1]]]}}]},
    ],
)  # fmt: skip
def test_odd_tapes_are_drawn(tmp_path: Path, change: dict[str, object]) -> None:
    session = new_session()
    outcome = change.pop("outcome", {"exit_code": 0})
    calls = change.pop("tool_calls", [])
    ts = change.pop("ts", 1.0)
    meta = {"session_id": session, "root_session_id": session, **change}
    entries = [
        ("meta", meta),
        ("message", {"role": 1, "tool_calls": calls, "content": 3}),
        ("outcome", outcome),
    ]
    lines = [json.dumps({"type": kind, "data": data, "seq": "x", "ts": ts}) + "\n" for kind, data in entries]
    (tmp_path / f"{session}.jsonl").write_text("".join(lines))
    assert len(render.tree(tmp_path).splitlines()) == 2
    assert render.show(tmp_path).startswith("[x] meta")


def test_a_long_chain_of_lives_and_a_circle(tmp_path: Path) -> None:
    ids = [new_session() for _ in range(1200)]
    for before, session in zip(["", *ids], ids, strict=False):
        meta = {"parent_session_id": before, "root_session_id": ids[0], "born": "exec"}
        (tmp_path / f"{session}.jsonl").write_text(json.dumps({"type": "meta", "data": meta}) + "\n")
    assert len(render.tree(tmp_path).splitlines()) == 1201
    one, two = new_session(), new_session()
    for session, parent in ((one, two), (two, one)):
        meta = {"parent_session_id": parent, "root_session_id": one}
        (tmp_path / f"{session}.jsonl").write_text(json.dumps({"type": "meta", "data": meta}) + "\n")
    assert len(render.tree(tmp_path, one).splitlines()) == 3


def test_a_bad_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    deep = tmp_path / f"{new_session()}.jsonl"
    deep.write_text("[" * 100_000 + "\n")
    end(write(tmp_path, new_session()))
    assert len(render.tree(tmp_path).splitlines()) == 2
    assert f"{deep.name}, line 1" in capfd.readouterr().err


@pytest.mark.parametrize(("begins", "status"), [(True, 69), (False, 74)])
def test_a_tape_whose_first_line_cannot_be_written_is_not_there(
    tmp_path: Path, begins: bool, status: int
) -> None:
    """Nothing was started, except by an earlier life of the same process."""
    path = tmp_path / "t.jsonl"
    tape = Tape(FileSink(str(path), begins))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    tape.add("meta", {"mission": "x" * 1000})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        for _ in range(2):
            with pytest.raises(Failure, match="cannot be written: File too large") as caught:
                tape.sync()
            assert caught.value.status == status and not path.exists()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    tape.sync()
    assert len(read(str(path))) == 1
    tape.add("message", {"content": "x" * 1000})
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
    try:
        with pytest.raises(Failure) as caught:
            tape.sync()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.status == 74 and len(read(str(path))) == 1
    tape.close()


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """A line that could not be written is written with the next one; no line is lost or torn in between."""
    tape = write(tmp_path, new_session())
    tape.sync()
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, limits[1]))
    try:
        tape.message(Message("user", "x" * 1000))
        with pytest.raises(Failure, match="cannot be written"):
            tape.sync()
        assert path.stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    end(tape)
    assert verify.verify(path)[:4] == (path, verify.OK, 3, [])


def test_many_entries_at_once(tmp_path: Path) -> None:
    """More buffers than the kernel takes in one call."""
    tape = write(tmp_path, new_session())
    for n in range(3000):
        tape.add("fork", {"n": n})
    end(tape)
    (path,) = tmp_path.iterdir()
    assert verify.verify(path).lines == 3002


def test_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal, a quota: the kernel may take less than it is given."""
    whole = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, parts: whole(fd, [bytes(part)[:7] for part in parts[:1]]))
    end(write(tmp_path, new_session()))
    (path,) = tmp_path.iterdir()
    assert verify.verify(path).state == verify.OK


def test_an_entry_is_not_kept(tmp_path: Path) -> None:
    """A conversation is in memory once, in the loop; its tape adds no more than the entry under way."""
    tape = write(tmp_path, new_session())
    text = "x" * 1_000_000
    tracemalloc.start()
    try:
        for _ in range(5):
            tape.message(Message("user", text))
            tape.sync()
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    end(tape)
    assert kept < 100_000
    assert peak < 3.5 * len(text)


# -- lists -------------------------------------------------------------------------------------------


def test_ls_and_cost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    first, child, running = (new_session() for _ in range(3))
    for session, parent, model in ((first, "", "claude-opus-5"), (child, first, "my-model")):
        tape = write(tmp_path, session, parent, first, model_id=model, mission="a\x1bb")
        tape.message(Message("assistant", "x"), usage={"input": 1000, "output": 100, "cache_read": 800})
        tape.message(Message("assistant", "y"), usage={"input": 2000, "output": 10})
        outcome = {"tokens_in": 3000, "tokens_out": 110, "turn_count": 2, "termination_mode": "exit"}
        tape.add("outcome", {"exit_code": 3, "duration_ms": 1500, **outcome})
        tape.sync()
        tape.close()
    tape = write(tmp_path, running, model_id="m")
    tape.sync()
    tape.close()
    head, *rows = render.ls(tmp_path).splitlines()
    assert " ".join(head.split()) == "SESSION BEGUN SECONDS MODEL TURNS IN OUT EXIT MODE MISSION"
    assert [row.split()[0] for row in rows] == [first[:18], child[:18], running[:18]]
    assert rows[0].split()[3:] == ["1.5", "claude-opus-5", "2", "3000", "110", "3", "exit", "a\\x1bb"]
    assert rows[2].split()[4:] == ["m", "-", "0", "0", "-", "-", "m"]
    facts = [json.loads(line) for line in render.ls(tmp_path, as_json=True).splitlines()]
    assert [(one["session"], one["exit"], one["tokens_in"]) for one in facts] == [
        (first, 3, 3000), (child, 3, 3000), (running, "-", 0),
    ]  # fmt: skip
    price = (200 * 5 + 800 * 0.5 + 100 * 25 + 2000 * 5 + 10 * 25) / 1e6
    (row,) = map(json.loads, cost.cost(tmp_path, first, as_json=True).splitlines())
    assert row["usd"] == pytest.approx(price) and row["complete"] and row["cache_read"] == 800
    known, unknown = map(json.loads, cost.cost(tmp_path, child, whole_tree=True, as_json=True).splitlines())
    assert (known["usd"], unknown["usd"], unknown["complete"]) == (row["usd"], None, False)
    shown = cost.cost(tmp_path).splitlines()
    assert shown[2].split() == ["my-model", "2", "3000", "800", "0", "110", "unknown", "price"]
    assert shown[3].split() == [
        "total",
        "4",
        "6000",
        "1600",
        "0",
        "220",
        f"{price:.4f}",
        "and",
        "unknown",
        "prices",
    ]
    assert cost.cost(tmp_path, running).splitlines()[1].split()[-1] == "0.0000"


@pytest.mark.parametrize(("model", "dollars"), [("unheard-of", None), ("gpt-5", 0.0)])
def test_a_session_without_a_reply_has_cost_nothing_if_its_price_is_known(
    tmp_path: Path, model: str, dollars: float | None
) -> None:
    """`ps` showed 0.0000, and no cost after the first reply."""
    end(write(tmp_path, session := new_session(), model_id=model))
    assert progress(str(tmp_path / f"{session}.jsonl")).cost == dollars


def test_a_price_that_the_provider_told(tmp_path: Path) -> None:
    tape = write(tmp_path, new_session(), model_id="unheard-of")
    tape.message(Message("assistant", "x"), usage={"input": 10, "output": 1, "cost": 0.25})
    end(tape)
    assert cost.cost(tmp_path).splitlines()[1].split() == ["unheard-of", "1", "10", "0", "0", "1", "0.2500"]


def test_entries_are_synced_after_they_are_written_and_before_sync_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut loses data that is only in the page cache."""
    events: list[str] = []
    writev, fsync = os.writev, os.fsync

    def written(fd: int, parts: list[memoryview]) -> int:
        events.append("write")
        return writev(fd, parts)

    def synced(fd: int) -> None:
        events.append(f"sync {os.fstat(fd).st_size}")
        fsync(fd)

    monkeypatch.setattr(os, "writev", written)
    monkeypatch.setattr(os, "fsync", synced)
    path = tmp_path / "t.jsonl"
    tape = Tape(FileSink(str(path)))
    for number in range(3):
        tape.add("message", {"n": number})
        tape.add("message", {"n": number})
        tape.sync()
        assert events == ["write", f"sync {path.stat().st_size}"]
        events.clear()
        tape.sync()
        assert not events
    tape.close()
