"""Known secrets on their way to a tape: whatever they look like and wherever they stand, they do not arrive."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from quine.agent.capture import Capture
from quine.base.errors import Failure
from quine.base.messages import Message, ToolCall, ToolResult
from quine.base.sessions import new_session
from quine.tape import verify
from quine.tape.lines import digest, message_of
from quine.tape.redact import MASK, NAMES, PLAIN, Mask
from quine.tape.writer import FileSink, MaskedSink, Tape
from tests.support.agents import OK, Agents, says, sh
from tests.tape.tapes import read

HOSTILE = [
    'ü"quoted"\\ünicode',
    "very-secret", 'a"quoted"secret', "back\\slash\\secret", "line\nbreak-secret", "tab\tand\x07bell",
    "ümläut-gehéim-ñ", "emoji-\U0001f511-key", "half-\ud83d-surrogate", "</script>&amp;'", "12345678901",
    '","seq":0,"prev":"', "\\u0041\\u0042secret", "tool_result", "message_", "arguments", "session_id", "assistant",
]  # fmt: skip


def written(folder: Path, secrets: list[str], *messages: Message) -> tuple[str, list[dict[str, Any]]]:
    """The text of a tape, which is whole, and its entries."""
    path = folder / f"{new_session()}.jsonl"
    tape = Tape(FileSink(str(path)), secrets)
    tape.add(
        "meta", {"session_id": path.stem, "root_session_id": path.stem, "wisdom": {s: s for s in secrets}}
    )
    for message in messages:
        tape.message(message)
    tape.add("outcome", {"exit_code": 0, "stderr": "".join(secrets), "termination_mode": "exit"})
    tape.sync()
    tape.close()
    assert verify.verify(path).state == verify.OK
    return path.read_text(), read(str(path))


def everywhere(secret: str) -> list[Message]:
    """A conversation in which it stands wherever something can stand."""
    raw = json.dumps({"command": f"echo {secret}"})
    plain = json.dumps({"command": f"echo {secret}", "k": secret}, ensure_ascii=False)
    payload = {"chat": {"content": secret, "tool_calls": [{"id": "c", "function": {"arguments": plain}}]}}
    return [
        Message("system", f"{secret} and {secret}{secret}"),
        Message("user", json.dumps({"wisdom": secret})),
        Message("assistant", secret, (ToolCall.parse("c", "sh", raw),), reasoning=f"x{secret}x", raw=payload),
        Message("assistant", "", (ToolCall("d", secret, {secret: {secret: [secret, 1]}}),)),
        Message("tool", result=ToolResult("c", "sh", f"[STDOUT]\n{secret}\n")),
    ]


def strings(value: Any, top: bool = True) -> list[str]:
    """Return every text in a JSON value, except the fixed texts of quine."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        keys = [] if top else [key for key in value if key not in NAMES]
        return keys + [s for k, v in value.items() if not (top and k in PLAIN) for s in strings(v, False)]
    return [text for item in value for text in strings(item, False)] if isinstance(value, list) else []


@pytest.mark.parametrize("secret", HOSTILE)
def test_a_hostile_secret_is_not_written(tmp_path: Path, secret: str) -> None:
    messages = everywhere(secret)
    text, entries = written(tmp_path, [secret], *messages)
    told = [text for entry in entries for text in strings(entry["data"])]
    assert not [text for text in told if secret in text]
    for ascii in (True, False):
        assert not [text for text in told if json.dumps(secret, ensure_ascii=ascii)[1:-1] in text]
    assert text.count(MASK) >= 15
    back = [message for entry in entries if (message := message_of(entry))]
    assert [message.role for message in back] == [message.role for message in messages]
    assert back[2].tool_calls[0].args == {"command": f"echo {MASK}"}, "a masked call can still be read"


@pytest.mark.long
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(secret=st.text(min_size=8, max_size=20), around=st.text(max_size=20))
def test_any_secret_in_any_text(tmp_path: Path, secret: str, around: str) -> None:
    assume(MASK not in secret and secret not in around)
    _, entries = written(tmp_path, [secret], Message("user", f"{around}{secret}{around}"))
    content = entries[1]["data"]["content"]
    assert MASK in content and secret not in content.replace(MASK, "")


def test_one_that_is_the_beginning_of_another(tmp_path: Path) -> None:
    text, entries = written(
        tmp_path, ["password", "password-and-more"], Message("user", "password-and-more password")
    )
    assert entries[1]["data"]["content"] == f"{MASK} {MASK}"
    assert "and-more" not in text


def test_a_short_one_is_a_word(tmp_path: Path) -> None:
    _, entries = written(tmp_path, ["seven77", ""], Message("user", "seven77"))
    assert entries[1]["data"]["content"] == "seven77"


@pytest.mark.parametrize("shift", range(-14, 15, 2))
def test_one_that_a_cut_goes_through(tmp_path: Path, shift: int) -> None:
    """The middle of a long output is not shown. Pieces of a secret at the cuts are masked, down to 8 characters."""
    secret, limit = "0123456789-secret", 400
    head, tail = limit - limit // 4, limit // 4
    capture = Capture(limit, str(tmp_path / "out"))
    capture.feed(b"." * (head + shift - 8) + secret.encode() + b"." * 500)
    capture.feed(secret.encode() + b"." * (tail + shift - 8))
    result = ToolResult("c", "sh", capture.text())
    _, entries = written(tmp_path, [secret], Message("tool", result=result))
    pieces = {secret[:n] for n in range(8, 18)} | {secret[-n:] for n in range(8, 18)}
    assert not [piece for piece in pieces if piece in entries[1]["data"]["content"]]


def test_nothing_costs_where_there_is_no_secret() -> None:
    assert not Mask([]).may_be_in("...[Output Truncated")
    assert not Mask(["short"]).may_be_in("short")
    assert Mask(["long-enough"]).may_be_in('{"a":"long-enough"}')


def test_an_agent_that_prints_its_password(tmp_path: Path) -> None:
    """In one command's output as it comes, in pieces, and on stderr."""
    agents = Agents(tmp_path)
    slow = "for c in hunter2-hunter2 hunter2-hunter2; do printf hunter2; sleep 0; printf -- -hunter2; done; echo $X >&2"
    env = {"MY_PASSWORD": "hunter2-hunter2", "X": "y"}
    agents.run(says(sh(slow)), says(OK), env=env)
    (path,) = agents.data.glob("*.jsonl")
    assert "hunter2-hunter2" not in path.read_text()
    assert f"{MASK}{MASK}" in agents.results()[0]


# -- of agents on another machine, which knows no secret of ours ----------------------------------------


class Kept:
    """A sink that keeps the lines, or fails."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.full = False

    def put(self, lines: Sequence[bytes]) -> None:
        if self.full:
            raise Failure(74, "no space left on device")
        self.lines += lines

    def close(self) -> None: ...


def state_of(folder: Path, lines: list[bytes]) -> str:
    path = folder / f"{new_session()}.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return verify.verify(path).state


def lived_elsewhere(secret: str) -> list[bytes]:
    """The lines of a tape, as an end without secrets sends them."""
    kept = Kept()
    tape = Tape(kept)
    tape.add("meta", {"session_id": (own := new_session()), "root_session_id": own, "mission": secret})
    for message in everywhere(secret):
        tape.message(message)
    tape.message(Message("user", "nothing to hide"))
    tape.add("outcome", {"exit_code": 0, "stderr": secret, "termination_mode": "exit"})
    tape.sync()
    return kept.lines


@pytest.mark.parametrize("secret", HOSTILE)
def test_what_comes_from_elsewhere_is_as_if_it_had_been_written_here(tmp_path: Path, secret: str) -> None:
    sent, here = lived_elsewhere(secret), Kept()
    sink = MaskedSink(here, Mask([secret]))
    for line in sent:
        sink.put([line])
    entries = [json.loads(line) for line in here.lines]
    told = [text for entry in entries for text in strings(entry["data"])]
    assert not [text for text in told if secret in text]
    assert state_of(tmp_path, here.lines) == verify.OK
    came = [json.loads(line) for line in sent]
    assert [(e["type"], e["seq"], e["ts"]) for e in entries] == [(e["type"], e["seq"], e["ts"]) for e in came]
    assert sum(map(len, here.lines)) <= sum(map(len, sent))


def test_what_holds_no_secret_is_written_as_it_came() -> None:
    sent, here = lived_elsewhere("nothing"), Kept()
    MaskedSink(here, Mask(["a-real-secret"])).put(sent)
    assert here.lines == sent


def test_lines_that_could_not_be_written_come_again(tmp_path: Path) -> None:
    sent, here = lived_elsewhere("very-secret"), Kept()
    sink = MaskedSink(here, Mask(["very-secret"]))
    sink.put(sent[:2])
    here.full = True
    with pytest.raises(Failure):
        sink.put(sent[2:])
    here.full = False
    sink.put(sent[2:])
    assert len(here.lines) == len(sent)
    assert state_of(tmp_path, here.lines) == verify.OK


@pytest.mark.parametrize("broken", [b"", b',"seal":"' + b"0" * 64 + b'"'], ids=["none", "another"])
def test_a_seal_that_did_not_hold_is_not_made_good(tmp_path: Path, broken: bytes) -> None:
    *sent, outcome = lived_elsewhere("very-secret")
    at = outcome.index(b',"seal":"')
    here = Kept()
    MaskedSink(here, Mask(["very-secret"])).put([*sent, outcome[:at] + broken + outcome[at + 74 :]])
    assert b"very-secret" not in b"".join(here.lines)
    assert state_of(tmp_path, here.lines) == verify.BROKEN


def test_a_line_can_be_spelled_otherwise_but_not_made_longer() -> None:
    first = b'{"type":"meta","data":{"a":"very\\u002dsecret","n":%s},"seq":0,"ts":1,"prev":""}'
    here = Kept()
    MaskedSink(here, Mask(["very-secret"])).put([first % b"1"])
    assert json.loads(here.lines[0])["data"] == {"a": MASK, "n": 1}
    with pytest.raises(Failure, match="longer"):
        MaskedSink(here, Mask([])).put([first % b"[%s]" % b",".join([b"1e15"] * 9)])
    deep = b"[" * 2000 + b"]" * 2000  # Python 3.13 allows half of it
    with pytest.raises(Failure, match="deep"):
        MaskedSink(here, Mask(["very-secret"])).put([first % deep])
    assert len(here.lines) == 1
    assert digest(here.lines[0]) != digest(first % b"1")
