"""`tape verify`: whatever happens to a tape is found, or said to be its missing end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quine.base import procs
from quine.base.errors import Misconfigured
from quine.base.messages import Message, ToolCall, ToolResult, Usage
from quine.base.sessions import new_session
from quine.tape import verify
from quine.tape.writer import FileSink, Tape
from transport.address import boot_id

SESSION = "01a20022-c549-722d-a851-397867099135"


def record(folder: Path, session: str = SESSION, whole: bool = True, **meta: object) -> Path:
    """A short session."""
    path = folder / f"{session}.jsonl"
    tape = Tape(FileSink(str(path)), ["very-secret"])
    tape.add("meta", {"session_id": session, "root_session_id": session, "mission": "ä", **meta})
    tape.message(Message("user", "begin, very-secret\n"))
    call = ToolCall("c", "sh", {"command": 'echo "\ud83d"', '},"seq":': ',"seal":"'})
    tape.message(Message("assistant", "", (call,)), usage=Usage(10, 2)._asdict())
    tape.message(Message("tool", result=ToolResult("c", "sh", "[EXIT CODE] 0")))
    if whole:
        tape.add("outcome", {"exit_code": 0, "stderr": '},"seq":4', "termination_mode": "exit"})
    tape.sync()
    tape.close()
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return record(tmp_path_factory.mktemp("made")).read_bytes()


def judged(path: Path, data: bytes) -> verify.Verdict:
    path.write_bytes(data)
    return verify.verify(path)


def faults(verdict: verify.Verdict) -> list[tuple[int, str]]:
    return [(fault.line, fault.what.partition(":")[0]) for fault in verdict.faults]


def test_a_whole_tape_is_ok(tmp_path: Path, made: bytes) -> None:
    assert judged(tmp_path / "a.jsonl", made) == (tmp_path / "a.jsonl", verify.OK, 5, [], "", 0)


@pytest.mark.long
def test_every_changed_byte_is_found(tmp_path: Path, made: bytes) -> None:
    """The last newline alone can be lost in an honest way: then the outcome is torn, and said to be."""
    path = tmp_path / "a.jsonl"
    for at in range(len(made)):
        for byte in {ord("\n") if at % 7 == 3 else made[at] ^ 1} - {made[at]}:
            verdict = judged(path, made[:at] + bytes([byte]) + made[at + 1 :])
            if at == len(made) - 1:
                assert verdict.state == verify.TORN
                continue
            assert verdict.state == verify.BROKEN, (at, byte, made[at - 10 : at + 10])
            line = made.count(b"\n", 0, at) + 1
            assert {n for n, _ in faults(verdict)} & {line - 1, line, line + 1}, (line, verdict.faults)


@pytest.mark.long
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_any_single_byte_is_found(tmp_path: Path, made: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(made) - 2))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != made[at]))
    change = data.draw(st.sampled_from(["put", "insert", "delete"]))
    tail = {"put": made[at + 1 :], "insert": made[at:], "delete": made[at + 1 :]}[change]
    new = made[:at] + (b"" if change == "delete" else bytes([byte])) + tail
    if new != made:
        assert judged(tmp_path / "a.jsonl", new).state == verify.BROKEN


def test_every_truncation_is_reported(tmp_path: Path, made: bytes) -> None:
    path = tmp_path / "a.jsonl"
    first = made.index(b"\n") + 1
    for size in range(len(made)):
        verdict = judged(path, made[:size])
        if size < first:
            assert verdict.state == verify.BROKEN
        else:
            assert verdict.state == (verify.ENDLESS if made[:size].endswith(b"\n") else verify.TORN)


def test_lines_lost_moved_and_inserted(tmp_path: Path, made: bytes) -> None:
    path = tmp_path / "a.jsonl"
    lines = made.splitlines(keepends=True)
    for n in range(4):
        verdict = judged(path, b"".join(lines[:n] + lines[n + 1 :]))
        assert faults(verdict) == [(n + 1, "lost")], n
    assert judged(path, b"".join(lines[:4])).state == verify.ENDLESS
    for one in range(5):
        for other in range(one + 1, 5):
            swapped = list(lines)
            swapped[one], swapped[other] = swapped[other], swapped[one]
            verdict = judged(path, b"".join(swapped))
            assert verdict.state == verify.BROKEN
            assert (one + 1, "out of place") in faults(verdict)
        again = b"".join([*lines[: one + 1], *lines[one:]])
        assert faults(judged(path, again)) == [(one + 2, "inserted")]


def test_a_line_of_another_tape_is_found(tmp_path: Path, made: bytes) -> None:
    other = record(tmp_path, new_session()).read_bytes().splitlines(keepends=True)
    lines = made.splitlines(keepends=True)
    for n in range(5):
        mixed = [*lines[:n], other[n], *lines[n + 1 :]]
        verdict = judged(tmp_path / "a.jsonl", b"".join(mixed))
        assert verdict.state == verify.BROKEN and verdict.faults[0].line in (n, n + 1)
    blank = b"".join([*lines[:2], b"\n", *lines[2:]])
    assert (3, "changed") in faults(judged(tmp_path / "a.jsonl", blank))


def test_a_running_session_is_said_to_run(tmp_path: Path) -> None:
    me = procs.look(os.getpid())
    assert me is not None
    alive = {"pid": os.getpid(), "boot_id": boot_id(), "started": me.started}
    assert verify.verify(record(tmp_path, new_session(), False, **alive)).state == verify.RUNNING
    assert verify.verify(record(tmp_path, new_session(), True, **alive)).state == verify.OK
    for change in ({"started": me.started - 1}, {"boot_id": "another"}, {"pid": "x"}):
        path = record(tmp_path, new_session(), False, **{**alive, **change})
        assert verify.verify(path).state == verify.ENDLESS


def test_what_was_lived_before_must_be_there(tmp_path: Path) -> None:
    parent, child = new_session(), new_session()
    told = {"cloned": {"session": parent, "lines": 5}}
    path = record(tmp_path, child, **told)
    assert "the tape of" in verify.verify(path).faults[0].what
    record(tmp_path, parent)
    assert verify.verify(path).state == verify.OK
    short = record(tmp_path, new_session(), cloned={"session": parent, "lines": 6})
    assert "which has 5" in verify.verify(short).faults[0].what
    for odd in ("x", {"session": "../x", "lines": 1}, {"session": parent, "lines": "1"}):
        assert verify.verify(record(tmp_path, new_session(), cloned=odd)).state == verify.BROKEN


def test_a_tape_of_the_reference_has_no_chain(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    lines = [
        {"type": "meta", "data": {"session_id": "a"}},
        {"type": "outcome", "data": {"exit_code": 0}},
    ]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert judged(path, data).state == verify.UNCHAINED
    assert "reference implementation" in judged(path, data).text()
    assert judged(path, data[:-5]).state == verify.TORN
    assert faults(judged(path, data + b"garbage\n")) == [(3, "changed")]


def test_what_cannot_be_read_is_not_ok(tmp_path: Path) -> None:
    assert "no such file" in verify.verify(tmp_path / "none.jsonl").text()
    assert faults(judged(tmp_path / "a.jsonl", b"")) == [(1, "the file is empty")]
    with pytest.raises(Misconfigured, match="no tapes"):
        verify.paths(tmp_path / "none", [])
    with pytest.raises(Misconfigured, match="begins with"):
        verify.paths(tmp_path, ["zzz"])
    tape = tmp_path / f"{new_session()}.jsonl"
    tape.touch()
    assert verify.paths(tmp_path, [tape.name[:8], "./b.jsonl"]) == [tape, Path("./b.jsonl")]
