"""The tape itself, and what is drawn from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quine import tree
from quine.exits import Failure, Misconfigured
from quine.guests.base import Message, ToolCall, ToolResult
from quine.life import is_session, new_session
from quine.tape import FileSink, Tape, message_of, read


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


def test_secrets_are_masked(tmp_path: Path) -> None:
    tape = write(tmp_path, new_session())
    tape.message(Message("user", 'x very-secret y a"quoted"secret z'))
    tape.sync()
    (path,) = tmp_path.iterdir()
    assert "secret y" not in path.read_text()
    assert read(str(path))[1]["data"]["content"] == "x <secret> y <secret> z"
    tape.close()


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
    drawn = tree.tree(tmp_path).splitlines()
    assert drawn[0].split() == ["NODE", "PID", "EXIT", "SECONDS", "SESSION", "MISSION"]
    rows = {line.split()[0] + line.split()[2]: line for line in drawn[1:]}
    assert rows["localexec"].startswith("local")
    assert rows["local0"].startswith("local ")
    assert rows["h13"].startswith("  h1")
    assert rows["h2-"].startswith("    h2")
    assert "\x1b" not in "".join(drawn)
    assert "…" in rows["h13"]
    assert len(drawn) == 5
    assert tree.tree(tmp_path, grand[:30]) == "\n".join(drawn) + "\n"


def test_the_latest_tree_is_drawn(tmp_path: Path) -> None:
    for mission in ("old", "new"):
        end(write(tmp_path, new_session(), mission=mission))
    assert "new" in tree.tree(tmp_path)
    assert "old" not in tree.tree(tmp_path)


def test_show(tmp_path: Path) -> None:
    session = new_session()
    tape = write(tmp_path, session)
    tape.message(Message("assistant", "thought\x07", (ToolCall("c", "sh", {"command": "a\nb"}),)))
    tape.message(Message("tool", result=ToolResult("c", "sh", "x" * 5000)))
    end(tape)
    shown = tree.show(tmp_path, session[:8])
    assert "-> sh" in shown
    assert "thought\\x07" in shown
    assert "(5000 characters)" in shown
    assert "exit_code: 0" in shown


def test_no_such_session(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="no tapes"):
        tree.tree(tmp_path)
    end(write(tmp_path, new_session()))
    end(write(tmp_path, new_session()))
    for wrong in ("x", "0"):
        with pytest.raises(Misconfigured):
            tree.tree(tmp_path, wrong)


def test_foreign_files_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("garbage\n")
    (tmp_path / "y.jsonl").write_text(json.dumps({"type": "message", "data": {}}) + "\n")
    end(write(tmp_path, new_session()))
    assert len(tree.tree(tmp_path).splitlines()) == 2


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
    assert len(tree.tree(tmp_path).splitlines()) == 2
    assert tree.show(tmp_path).startswith("[x] meta")


def test_a_long_chain_of_lives_and_a_circle(tmp_path: Path) -> None:
    ids = [new_session() for _ in range(1200)]
    for before, session in zip(["", *ids], ids, strict=False):
        meta = {"parent_session_id": before, "root_session_id": ids[0], "born": "exec"}
        (tmp_path / f"{session}.jsonl").write_text(json.dumps({"type": "meta", "data": meta}) + "\n")
    assert len(tree.tree(tmp_path).splitlines()) == 1201
    one, two = new_session(), new_session()
    for session, parent in ((one, two), (two, one)):
        meta = {"parent_session_id": parent, "root_session_id": one}
        (tmp_path / f"{session}.jsonl").write_text(json.dumps({"type": "meta", "data": meta}) + "\n")
    assert len(tree.tree(tmp_path, one).splitlines()) == 3


def test_a_bad_file_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    end(write(tmp_path, new_session()))
    assert len(tree.tree(tmp_path).splitlines()) == 2
    assert "deep.jsonl, line 1" in capfd.readouterr().err
