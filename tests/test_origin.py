"""What an origin answers, and an agent that has its origin elsewhere, joined by a function call."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine import env, host, origin
from quine.env import Settings
from quine.exits import Failure
from quine.guests.base import (
    GuestError,
    Message,
    Overflow,
    Refused,
    Reply,
    Request,
    ToolCall,
    Unavailable,
    Usage,
)
from quine.guests.relay import RelayGuest
from quine.ledger import Ledger
from quine.life import Life, Limits, new_session
from quine.tape import RelaySink, Tape, read
from quine.tools import TOOLS
from tests.fuzz import peak
from transport.errors import RequestError

Services = dict[str, Any]


@pytest.fixture
def life() -> Life:
    return Life(new_session(), new_session(), "mission", wisdom={"a": "b"}, limits=Limits(concurrent=2))


@pytest.fixture
def ledger(life: Life) -> Iterator[Ledger]:
    ledger = Ledger.create(life.limits)
    yield ledger
    os.close(ledger.fd)


@pytest.fixture
def services(life: Life, ledger: Ledger, tmp_path: Path) -> Services:
    script = tmp_path / "s.jsonl"
    script.write_text('{"match": "^m", "reply": {"text": "first"}}\n{"reply": {"tool_calls": []}}\n')
    environ = {
        "QUINE_API_TYPE": "script",
        "QUINE_API_BASE": str(script),
        "QUINE_DATA_DIR": str(tmp_path / "data"),
    }
    return origin.services(life, ledger, environ)


def ask(services: Services) -> Any:
    return lambda name, body: services[name](body)


def meta(session: str, root: str) -> dict[str, Any]:
    return {"session_id": session, "root_session_id": root}


def test_life_goes_across(services: Services, life: Life) -> None:
    assert Life.from_json(json.loads(services["life"](b""))) == life


def test_a_whole_life_goes_across() -> None:
    call = ToolCall.parse("c", "sh", '{"command": "x"}')
    life = Life(
        new_session(), new_session(), "m", cloned=("s", 3), hidden=True, material="pipe",
        context=(Message("system", "s"), Message("assistant", "t", (call,), raw={"chat": {"x": 1}}, reasoning="r")),
    )  # fmt: skip
    assert Life.from_json(json.loads(json.dumps(life.to_json()))) == life


@pytest.mark.parametrize(
    "change",
    [{"session": "../x"}, {"root": "x"}, {"depth": "1"}, {"depth": True}, {"limits": {"turns": "x"}}, {"limits": 3},
     {"material": "gold"}, {"context": [{"role": "boss", "content": ""}]}, {"context": 1}, {"more": 1},
     {"wisdom": {"a": 1}},
     {"mission": None}, {"cloned": "x"}, {"hidden": 1}],
)  # fmt: skip
def test_what_is_no_life_is_refused(life: Life, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a life"):
        Life.from_json({**life.to_json(), **change})


def test_infer(services: Services, life: Life) -> None:
    guest = RelayGuest(ask(services))
    request = Request([Message("user", "x")], TOOLS, life.session, "mission")
    assert guest.infer(request) == Reply(Message("assistant", "first"))
    assert guest.infer(request._replace(mission="other")).message.text == ""
    with pytest.raises(Refused, match="asked for one more"):
        guest.infer(request._replace(ordinal=2))


@pytest.mark.parametrize("error", [Unavailable("u"), Overflow("o"), Refused("r"), GuestError("g")])
def test_errors_of_the_guest_cross_by_kind(
    services: Services, error: GuestError, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def infer(self, request: Request) -> Reply:
            raise error

    monkeypatch.setattr("quine.guests.build", lambda config: Failing())
    with pytest.raises(type(error), match=str(error)) as caught:
        RelayGuest(ask(services)).infer(Request([], TOOLS))
    assert type(caught.value) is type(error)


@pytest.mark.parametrize("answer", [b"", b"[]", b"{}", b'{"message": {"role": "x"}}', b"3", b"\xff"])
def test_a_garbled_answer_is_an_error_of_the_guest(answer: bytes) -> None:
    with pytest.raises(GuestError):
        RelayGuest(lambda name, body: answer).infer(Request([], TOOLS))


def test_a_reply_goes_across() -> None:
    message = Message("assistant", "t", (ToolCall.parse("c", "sh", "{"),), raw={"chat": {}})
    reply = Reply(message, Usage(1, 2, 3, 4, 5), "tool")
    assert Reply.from_json(json.loads(json.dumps(reply.to_json()))) == reply


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("infer", b"not json"), ("infer", b"{}"), ("infer", b"[]"), ("infer", b"\xff\xfe"),
        ("infer", b'{"session":"s","mission":"m","ordinal":-1,"wisdom":{},"messages":[]}'),
        ("infer", b'{"session":"s","mission":"m","ordinal":0,"wisdom":{},"messages":[{"role":"boss"}]}'),
        ("infer", b'{"session":"s","mission":"m","ordinal":0,"wisdom":{},"messages":[],"more":1}'),
        ("infer", b'{"session":"s","mission":"m","ordinal":0,"wisdom":{},"messages":[{"role":"user","content":"",'
                  b'"tool_calls":["x"]}]}'),
        ("infer", b"[" * 100_000), ("infer", b"1" * 5000),
        ("tape", b"{}"), ("tape", b'{"session":"../../etc/passwd","lines":["{}"]}'),
        ("tape", b'{"session":"x","lines":[]}'),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(services: Services, name: str, body: bytes) -> None:
    with pytest.raises(RequestError):
        services[name](body)


def test_half_a_surrogate_pair_goes_across(services: Services, life: Life, tmp_path: Path) -> None:
    guest = RelayGuest(ask(services))
    odd = "m\udc80\ud83d"
    call = ToolCall("c", "sh", {"\udc80": odd})
    request = Request(
        [Message("user", odd), Message("assistant", odd, (call,))], TOOLS, "s", odd, 0, {"a": odd}
    )
    assert guest.infer(request).message.text == "first"
    tape = Tape(RelaySink(ask(services), life.session))
    tape.add("meta", {**meta(life.session, life.root), "mission": odd})
    tape.sync()
    (entry,) = read(str(tmp_path / "data" / f"{life.session}.jsonl"))
    assert entry["data"]["mission"] == odd


def test_tape_arrives_as_it_was_written(services: Services, life: Life, tmp_path: Path) -> None:
    tape = Tape(RelaySink(ask(services), life.session))
    tape.add("meta", meta(life.session, life.root))
    tape.message(Message("user", "hello\n\u2028 ä"))
    path = tmp_path / "data" / f"{life.session}.jsonl"
    assert not path.exists()
    tape.sync()
    assert len(read(str(path))) == 2
    tape.add("outcome", {"exit_code": 0})
    tape.sync()
    tape.add("message", {"role": "user", "content": "a life that goes on after a failed exec"})
    tape.sync()
    entries = read(str(path))
    assert [e["seq"] for e in entries] == [0, 1, 2, 3]
    assert path.stat().st_mode & 0o777 == 0o600


def test_tapes_of_others_are_out_of_reach(services: Services, life: Life, tmp_path: Path) -> None:
    def put(session: str, *lines: str) -> None:
        services["tape"](json.dumps({"session": session, "lines": lines}).encode())

    def line(seq: int, kind: str = "message", **data: Any) -> str:
        return json.dumps({"type": kind, "data": data, "seq": seq, "ts": 1.0, "prev": ""})

    other = new_session()
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / f"{other}.jsonl").write_text("kept\n")
    with pytest.raises(RequestError, match="cannot be written"):
        put(other, line(0, "meta", **meta(other, life.root)))
    assert (tmp_path / "data" / f"{other}.jsonl").read_text() == "kept\n"
    fresh = new_session()
    for bad in (
        [line(0, "message")],
        [line(0, "meta", **meta(fresh, new_session()))],
        [line(0, "meta", **meta(new_session(), life.root))],
        [line(1, "meta", **meta(fresh, life.root))],
        [line(0, "meta", **meta(fresh, life.root)) + "\n" + line(1)],
        [line(0, "meta", **meta(fresh, life.root)), "not json"],
        [line(0, "meta", **meta(fresh, life.root)), line(2)],
        [line(0, "meta", **meta(fresh, life.root)), line(1, "Evil Type")],
    ):
        with pytest.raises(RequestError):
            put(fresh, *bad)
    assert not (tmp_path / "data" / f"{fresh}.jsonl").exists()
    put(fresh, line(0, "meta", **meta(fresh, life.root)), line(1))
    for bad in ([line(1)], [line(3)], [line(0, "meta", **meta(fresh, life.root))]):
        with pytest.raises(RequestError):
            put(fresh, *bad)
    put(fresh, line(2))
    assert len(read(str(tmp_path / "data" / f"{fresh}.jsonl"))) == 3


def test_no_secret_goes_out(life: Life, ledger: Ledger, tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "canary-0123456789", "QUINE_MODEL_ID": "m", "QUINE_DATA_DIR": str(tmp_path)}
    services = origin.services(life, ledger, environ)
    assert b"canary" not in services["life"](b"")


def test_settings_hold_the_secrets_apart() -> None:
    assert "secrets" in Settings._fields


def test_a_mission_that_cannot_be_asked_for_is_not_guessed(tmp_path: Path) -> None:
    settings = env.adopt({}, {"QUINE_DATA_DIR": str(tmp_path)})

    def refuse(why: str) -> Any:
        def ask(name: str, body: bytes) -> bytes:
            raise RequestError(why)

        return ask

    assert host._assigned(settings, refuse("no service named 'life' at the origin")) is None
    with pytest.raises(Failure) as caught:
        host._assigned(settings, refuse("the origin cannot be reached"))
    assert caught.value.status == 75
    with pytest.raises(Failure) as caught:
        host._assigned(settings, lambda name, body: b"{}")
    assert caught.value.status == 69


BOMBS = {
    "lists": b"[" + b"[]," * 10_000_000 + b"[]]",
    "depth": b"[" * 20_000_000,
    "numbers": b'{"a":[' + b"1," * 1_000_000 + b"1]}",
    "quotes": b'"\\"' * 9_000_000 + b"," * 999_999,
    "texts": b"[" + b'"",' * 10_000_000 + b'""]',
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
def test_a_body_is_no_bomb(services: Services, body: bytes) -> None:
    """Sixty megabytes of small values would be two gigabytes here; they are refused unread."""
    before = peak()
    with pytest.raises(RequestError, match=r"infer: (more than 250000 values|not JSON|.*JSON)"):
        services["infer"](body)
    assert peak() - before < 3 * len(body)


def test_what_a_conversation_quotes_may_hold_any_number_of_commas(services: Services, life: Life) -> None:
    text = '1,2,[3],{"a"\\\\},' * 100_000
    request = Request([Message("user", text)], TOOLS, life.session, "mission")
    assert RelayGuest(ask(services)).infer(request).message.text == "first"
