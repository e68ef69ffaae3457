"""The answers of an origin, and an agent whose origin is elsewhere, joined by a function call."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from quine.agent import env, origin, personas
from quine.agent.env import Settings
from quine.agent.session import SessionSpec
from quine.agent.tools import TOOLS
from quine.base.cli_options import RunOptions
from quine.base.errors import LOST, Failure, Misconfigured
from quine.base.messages import (
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
from quine.base.sessions import new_session
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.files import select
from quine.providers.relay import RelayGuest
from quine.remote import between as third
from quine.remote import handlers
from quine.tape import replay, verify
from quine.tape.lines import digest
from quine.tape.writer import AHEAD, FileSink, RelaySink, Tape
from tests.fuzz.mutate import peak
from tests.tape.tapes import read
from transport.errors import RequestError

Services = dict[str, Any]


@pytest.fixture
def spec() -> SessionSpec:
    return SessionSpec(
        new_session(), new_session(), "mission", wisdom={"a": "b"}, limits=Limits(concurrent=2)
    )


@pytest.fixture
def ledger(spec: SessionSpec) -> Iterator[Ledger]:
    ledger = Ledger.create(spec.limits)
    yield ledger
    os.close(ledger.fd)


@pytest.fixture
def services(spec: SessionSpec, ledger: Ledger, tmp_path: Path) -> Services:
    script = tmp_path / "s.jsonl"
    script.write_text('{"match": "^m", "reply": {"text": "first"}}\n{"reply": {"tool_calls": []}}\n')
    environ = {
        "QUINE_API_TYPE": "script",
        "QUINE_API_BASE": str(script),
        "QUINE_DATA_DIR": str(tmp_path / "data"),
    }
    return handlers.services(spec, ledger, environ)


def ask(services: Services) -> Any:
    return lambda name, body: services[name](body)


def meta(session: str, root: str, parent: str = "", depth: int = 0, born: str = "fork") -> dict[str, Any]:
    return {
        "session_id": session,
        "root_session_id": root,
        "parent_session_id": parent,
        "depth": depth,
        "born": born,
    }


def told_life(services: Services) -> SessionSpec:
    """Return the data of a life as another machine gets it, without the age of the tree."""
    return SessionSpec.from_json(json.loads(services["life"](b"")))._replace(age=0.0)


def test_the_age_of_a_tree_goes_across(spec: SessionSpec, tmp_path: Path) -> None:
    """The other machine has a clock of its own, so it gets the age of the tree, not the time of its start."""
    ledger = Ledger.create(spec.limits, begun=personas.now() - 50_000_000_000)
    try:
        environ = {"QUINE_API_TYPE": "script", "QUINE_API_BASE": "/dev/null", "QUINE_DATA_DIR": str(tmp_path)}
        told = SessionSpec.from_json(json.loads(handlers.services(spec, ledger, environ)["life"](b"")))
        assert 50 <= told.age < 50 + 60
    finally:
        os.close(ledger.fd)


def test_life_goes_across(services: Services, spec: SessionSpec) -> None:
    assert told_life(services) == spec


def test_a_whole_life_goes_across() -> None:
    call = ToolCall.parse("c", "sh", '{"command": "x"}')
    spec = SessionSpec(
        new_session(), new_session(), "m", cloned=("s", 3), hidden=True, material="pipe",
        context=(Message("system", "s"), Message("assistant", "t", (call,), raw={"chat": {"x": 1}}, reasoning="r")),
    )  # fmt: skip
    assert SessionSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


@pytest.mark.parametrize(
    "change",
    [{"session": "../x"}, {"root": "x"}, {"depth": "1"}, {"depth": True}, {"limits": {"turns": "x"}}, {"limits": 3},
     {"material": "gold"}, {"context": [{"role": "boss", "content": ""}]}, {"context": 1}, {"more": 1},
     {"wisdom": {"a": 1}},
     {"mission": None}, {"cloned": "x"}, {"hidden": 1}],
)  # fmt: skip
def test_what_is_no_life_is_refused(spec: SessionSpec, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a life"):
        SessionSpec.from_json({**spec.to_json(), **change})


def test_infer(services: Services, spec: SessionSpec) -> None:
    guest = RelayGuest(ask(services))
    request = Request([Message("user", "x")], TOOLS, spec.session, "mission")
    assert guest.infer(request) == Reply(Message("assistant", "first"))
    assert guest.infer(request._replace(ordinal=1)).message.text == ""
    with pytest.raises(Refused, match="has no reply left for this mission"):
        guest.infer(request._replace(ordinal=2))


@pytest.mark.parametrize("error", [Unavailable("u"), Overflow("o"), Refused("r"), GuestError("g")])
def test_errors_of_the_guest_cross_by_kind(
    services: Services, spec: SessionSpec, error: GuestError, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def infer(self, request: Request) -> Reply:
            raise error

    monkeypatch.setattr("quine.providers.vendors.build", lambda config: Failing())
    with pytest.raises(type(error), match=str(error)) as caught:
        RelayGuest(ask(services)).infer(Request([], TOOLS, spec.session))
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


def test_half_a_surrogate_pair_goes_across(services: Services, spec: SessionSpec, tmp_path: Path) -> None:
    guest = RelayGuest(ask(services))
    odd = "m\udc80\ud83d"
    call = ToolCall("c", "sh", {"\udc80": odd})
    request = Request(
        [Message("user", odd), Message("assistant", odd, (call,))], TOOLS, spec.session, odd, 0, {"a": odd}
    )
    assert guest.infer(request).message.text == "first"
    tape = Tape(RelaySink(ask(services), spec.session))
    tape.add("meta", {**meta(spec.session, spec.root), "mission": odd})
    tape.sync()
    (entry,) = read(str(tmp_path / "data" / f"{spec.session}.jsonl"))
    assert entry["data"]["mission"] == odd


def test_tape_arrives_as_it_was_written(services: Services, spec: SessionSpec, tmp_path: Path) -> None:
    tape = Tape(RelaySink(ask(services), spec.session))
    tape.add("meta", meta(spec.session, spec.root))
    tape.message(Message("user", "hello\n\u2028 ä"))
    path = tmp_path / "data" / f"{spec.session}.jsonl"
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


def test_lines_go_with_an_inference(services: Services, spec: SessionSpec, tmp_path: Path) -> None:
    """One that was not answered has taken them all the same. Then they come again, and are on the tape once."""
    path = tmp_path / "data" / f"{spec.session}.jsonl"
    guest = RelayGuest(ask(services))
    tape = Tape(RelaySink(ask(services), spec.session))
    request = Request([Message("user", "x")], TOOLS, spec.session, "mission")
    tape.add("meta", meta(spec.session, spec.root))
    guest.infer(request._replace(tape=tape.ahead()))
    assert len(read(str(path))) == 1
    tape.message(Message("user", "after no answer"))
    guest.infer(request._replace(ordinal=1, tape=tape.ahead()))
    lines = tape.ahead()
    assert len(lines) == 2
    tape.message(Message("user", "y"))
    with pytest.raises(Unavailable, match="asked for already"):
        guest.infer(request._replace(ordinal=1, tape=tape.ahead()))
    tape.arrived(len(lines))
    tape.message(Message("user", "z"))
    tape.sync()
    tape.sync()
    assert [entry["seq"] for entry in read(str(path))] == [0, 1, 2, 3]
    assert not tape.ahead()


def test_an_inference_is_not_made_if_its_lines_are_refused(
    services: Services, spec: SessionSpec, tmp_path: Path
) -> None:
    guest = RelayGuest(ask(services))
    request = Request([Message("user", "x")], TOOLS, spec.session, "mission")
    with pytest.raises(Failure, match="cannot be sent to the origin: tape: the first line must be") as caught:
        guest.infer(request._replace(tape=['{"type":"message","data":{},"seq":0,"ts":1,"prev":""}']))
    # Not that of a guest that cannot be had now: such a one is asked again.
    assert caught.value.status == LOST
    guest.infer(request)


def test_many_lines_go_by_themselves(services: Services, spec: SessionSpec, tmp_path: Path) -> None:
    tape = Tape(RelaySink(ask(services), spec.session))
    tape.add("meta", {**meta(spec.session, spec.root), "mission": "m" * AHEAD})
    assert tape.ahead() == []
    assert len(read(str(tmp_path / "data" / f"{spec.session}.jsonl"))) == 1
    own = Tape(FileSink(str(tmp_path / "own.jsonl")))
    own.add("meta", {})
    assert own.ahead() == []
    own.close()
    assert len(read(str(tmp_path / "own.jsonl"))) == 1


def test_tapes_of_others_are_out_of_reach(services: Services, spec: SessionSpec, tmp_path: Path) -> None:
    def put(session: str, *lines: str) -> None:
        services["tape"](json.dumps({"session": session, "lines": lines}).encode())

    def line(seq: int, kind: str = "message", prev: str = "", **data: Any) -> str:
        return json.dumps({"type": kind, "data": data, "seq": seq, "ts": 1.0, "prev": prev})

    def after(text: str) -> str:
        return digest(text.encode())

    first = line(0, "meta", **meta(spec.session, spec.root))
    put(spec.session, first, line(1, prev=after(first)))
    other = new_session()
    (tmp_path / "data").mkdir(exist_ok=True)
    (tmp_path / "data" / f"{other}.jsonl").write_text("kept\n")
    with pytest.raises(RequestError, match="cannot be written"):
        put(other, line(0, "meta", **meta(other, spec.root, spec.session, 1)))
    assert (tmp_path / "data" / f"{other}.jsonl").read_text() == "kept\n"
    fresh = new_session()
    good = line(0, "meta", **meta(fresh, spec.root, spec.session, 1))
    for bad in (
        [line(0, "message")],
        [line(0, "meta", **meta(fresh, new_session(), spec.session, 1))],
        [line(0, "meta", **meta(new_session(), spec.root, spec.session, 1))],
        [line(1, "meta", **meta(fresh, spec.root, spec.session, 1))],
        [good + "\n" + line(1)],
        [good, "not json"],
        [good, line(2)],
        [good, line(1)],
        [good, line(1, "Evil Type", after(good))],
        [good, line(1, "fork", after(good), session="x")],
        [good, line(1, "fork", after(good), session=new_session(), ended={"code": 0})],
        [good, line(1, "fork", after(good), session=new_session(), ended=[])],
        # above its parent, or of one that is not known here
        [line(0, "meta", **meta(fresh, spec.root, spec.session, 0))],
        [line(0, "meta", **meta(fresh, spec.root, new_session(), 1))],
        [line(0, "meta", **meta(fresh, spec.root, "", 0))],
        [line(0, "meta", **meta(fresh, spec.root, spec.session, True))],
        [line(0, "meta", **meta(fresh, spec.root, spec.session, spec.limits.depth))],
    ):
        with pytest.raises(RequestError):
            put(fresh, *bad)
    assert not (tmp_path / "data" / f"{fresh}.jsonl").exists()
    second = line(1, prev=after(good))
    put(fresh, good, second)
    changed = line(1, prev=after(good), content="x")
    third = line(2, prev=after(second))
    other_good = line(0, "meta", **meta(fresh, spec.root, spec.session, 1), mission="x")
    for bad in (
        [changed], [line(3)], [good], [good, changed], [line(2)], [line(2, prev=after(good))],
        [other_good, second], [other_good, second, third],
    ):  # fmt: skip
        with pytest.raises(RequestError):
            put(fresh, *bad)
    put(fresh, third)
    put(fresh, second, third)
    assert len(read(str(tmp_path / "data" / f"{fresh}.jsonl"))) == 3
    renewed = new_session()
    put(renewed, line(0, "meta", **meta(renewed, spec.root, fresh, 1, "exec")))


@pytest.fixture
def served(spec: SessionSpec, ledger: Ledger, tmp_path: Path) -> Services:
    """The services of a job on h2, whose guest calls a tool with arguments of all kinds, and then says <secret>."""
    script = tmp_path / "s.jsonl"
    script.write_text(
        '{"reply": {"text": "ä\\ud83d", "tool_calls": ['
        '{"name": "sh", "arguments": {"command": "ls", "n": [1, 1.5, null]}}]}}\n'
        '{"reply": {"text": "with <secret> in it"}}\n'
    )
    environ = {
        "QUINE_API_TYPE": "script",
        "QUINE_API_BASE": str(script),
        "QUINE_DATA_DIR": str(tmp_path / "data"),
    }
    return handlers.services(spec, ledger, environ, host=lambda: "h2")


def test_a_host_cannot_write_another_reply_on_a_tape(
    served: Services, spec: SessionSpec, tmp_path: Path
) -> None:
    """`tape replay` runs the calls of replies here."""
    guest, path = RelayGuest(ask(served)), tmp_path / "data" / f"{spec.session}.jsonl"
    request = Request([Message("user", "x")], TOOLS, spec.session, "mission")
    tape = Tape(RelaySink(ask(served), spec.session))
    tape.add("meta", {**meta(spec.session, spec.root), "told_by": "another"})
    tape.sync()
    given = guest.infer(request).message
    call = ToolCall("evil", "sh", {"command": "rm -r ~"})
    forgeries = [
        given._replace(text="another").to_json(),
        given._replace(tool_calls=(*given.tool_calls, call)).to_json(),
        given._replace(tool_calls=(given.tool_calls[0]._replace(args={"command": "rm"}),)).to_json(),
        given._replace(raw={"chat": {}}).to_json(),
        {**given.to_json(), "told": False},
        # as a reader of tapes may take it
        {
            **given.to_json(),
            "tool_calls": [{**given.tool_calls[0].to_json(), "function": {"arguments": "{}"}}],
        },
    ]
    for number, forged in enumerate(forgeries):
        hostile = Tape(RelaySink(ask(served), spec.session))
        hostile.length, hostile._prev = tape.length, tape._prev
        hostile.add("message", forged)
        with pytest.raises(Failure, match="a reply that was not given to this session"):
            hostile.sync()
        assert len(read(str(path))) == 1, number
    tape.message(given, usage={"input": 1}, stop="tool", asked=1.0)
    masked = guest.infer(request._replace(ordinal=1, tape=tape.ahead())).message
    tape.message(masked._replace(text="with <secret> <secret>"))
    tape.sync()
    tape.add("outcome", {"exit_code": 0})
    tape.sync()
    first, *replies = [entry["data"] for entry in read(str(path)) if entry["type"] in ("meta", "message")]
    assert first["told_by"] == "h2" and [reply.get("told") for reply in replies] == [None, True]
    verdict = verify.verify(path)
    assert (verdict.state, verdict.told_by, verdict.replies) == (verify.OK, "h2", 1)
    assert verdict.text().endswith(": ok: whole, 4 lines, 1 reply as told by h2\n")
    with pytest.raises(
        Misconfigured, match="came from other machines \\(h2\\), whose commands would run here"
    ):
        replay.replay(tmp_path / "data", spec.session)


def test_a_host_is_named_also_before_it_says_that_it_has_started_the_job() -> None:
    """Else a tape that it sends so early would be taken for one of this machine."""
    here, there = (select.Services({}, asked=where) for where in ("local", "@gpu"))
    assert (here.where(), there.where()) == ("", "@gpu")
    there.placed("h1")
    assert there.where() == "h1"


def test_replies_of_a_session_that_asked_for_none_are_as_told(
    served: Services, spec: SessionSpec, tmp_path: Path
) -> None:
    """Its host infers by itself, or says so."""
    tape = Tape(RelaySink(ask(served), spec.session))
    tape.add("meta", meta(spec.session, spec.root))
    for _ in range(2):
        tape.message(Message("assistant", "", (ToolCall("a", "sh", {"command": "id"}),)))
    tape.sync()
    verdict = verify.verify(tmp_path / "data" / f"{spec.session}.jsonl")
    assert (verdict.faults, verdict.told_by, verdict.replies) == ([], "h2", 2)


def test_an_agent_counts_once_its_tape_has_begun(served: Services, spec: SessionSpec, ledger: Ledger) -> None:
    """A host that sends tapes which are refused would count up the agents of the tree."""
    tape = Tape(RelaySink(ask(served), spec.session))
    tape.add("meta", meta(spec.session, spec.root))
    tape.sync()
    for _ in range(2):
        child = new_session()
        tape = Tape(RelaySink(ask(served), child))
        tape.add("meta", meta(child, spec.root, spec.session, 1))
        tape.length += 1
        tape.add("message", {"role": "user", "content": "its number is wrong"})
        with pytest.raises(Failure, match="and 1 is next"):
            tape.sync()
    assert ledger.totals()[0] == 0
    tape = Tape(RelaySink(ask(served), child))
    tape.add("meta", meta(child, spec.root, spec.session, 1))
    tape.sync()
    assert ledger.totals()[0] == 1


def test_an_inference_is_answered_once_and_only_to_a_session_of_the_job(
    services: Services, spec: SessionSpec
) -> None:
    guest = RelayGuest(ask(services))
    request = Request([Message("user", "x")], TOOLS, spec.session, "mission")
    with pytest.raises(Unavailable, match="not of this job"):
        guest.infer(request._replace(session=new_session()))
    guest.infer(request)
    with pytest.raises(Unavailable, match="asked for already"):
        guest.infer(request)
    guest.infer(request._replace(ordinal=1))


def test_a_session_is_served_with_the_model_that_its_tape_names(
    spec: SessionSpec, ledger: Ledger, tmp_path: Path
) -> None:
    """A host named a model a thousand times as dear, and `tape cost` knew nothing of it."""
    script, notes = tmp_path / "s.jsonl", list[str]()
    forks = {"name": "fork", "arguments": {"children": [{"intent": "x", "model": "forked"}]}}
    script.write_text(json.dumps({"reply": {"tool_calls": [forks]}, "repeat": True}) + "\n")
    environ = {
        "QUINE_API_TYPE": "script",
        "QUINE_API_BASE": str(script),
        "QUINE_DATA_DIR": str(tmp_path / "data"),
    }
    spec = spec._replace(model="m")
    served = handlers.services(spec, ledger, environ, note=notes.append)

    def infers(session: str, model: str, ordinal: int = 0) -> Reply:
        request = Request([Message("user", "x")], TOOLS, session, "mission", ordinal, model=model)
        return RelayGuest(ask(served)).infer(request)

    def begins(session: str, model: str) -> str:
        parent = "" if session == spec.session else spec.session
        tape = Tape(RelaySink(ask(served), session))
        tape.add("meta", {**meta(session, spec.root, parent, int(bool(parent))), "model_id": model})
        tape.sync()
        return session

    with pytest.raises(Unavailable, match="another model than the session was given"):
        infers(spec.session, "dear")
    begins(spec.session, "m")
    infers(spec.session, "m")
    infers(spec.session, "", 1)
    with pytest.raises(Unavailable, match="or its tape names"):
        infers(begins(new_session(), "m"), "dear")
    infers(begins(new_session(), "forked"), "forked")
    assert not notes
    infers(begins(new_session(), "chosen"), "chosen")
    infers(begins(new_session(), "chosen"), "chosen")
    assert [note for note in notes if "model chosen is that of no fork" in note] == notes[:1] == notes


def test_one_inference_of_a_session_at_a_time(
    services: Services, spec: SessionSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    class Nosy:
        def infer(self, request: Request) -> Reply:
            if not seen:
                seen.append("")
                with pytest.raises(Unavailable, match="asked for already") as caught:
                    RelayGuest(ask(services)).infer(request._replace(ordinal=7))
                seen.append(str(caught.value))
            return Reply(Message("assistant", "x"))

    monkeypatch.setattr("quine.providers.vendors.build", lambda config: Nosy())
    RelayGuest(ask(services)).infer(Request([], TOOLS, spec.session))
    assert len(seen) == 2


def test_blocks_of_a_provider_come_back_only_where_they_came_from(
    spec: SessionSpec, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the clone's memory, and of replies to it; a forged one would be sent to the provider as its own."""
    sent: list[Request] = []
    notes: list[str] = []

    class Echo:
        def infer(self, request: Request) -> Reply:
            sent.append(request)
            return Reply(
                Message("assistant", "x", raw={"anthropic": [{"signature": "s1", "b": 1, "a": 0.1}]})
            )

    monkeypatch.setattr("quine.providers.vendors.build", lambda config: Echo())
    (tmp_path / "s.jsonl").touch()
    environ = {
        "QUINE_API_TYPE": "script",
        "QUINE_API_BASE": str(tmp_path / "s.jsonl"),
        "QUINE_DATA_DIR": str(tmp_path),
    }
    cloned = Message("assistant", "old", raw={"anthropic": [{"signature": "s0"}]})
    spec = spec._replace(context=(cloned,))
    guest = RelayGuest(ask(handlers.services(spec, ledger, environ, None, notes.append)))
    request = Request([cloned], TOOLS, spec.session)
    reply = guest.infer(request).message
    forged = [
        reply._replace(raw={"anthropic": [{"signature": "s2"}]}),
        # Another order is another block.
        reply._replace(raw={"anthropic": [{"signature": "s1", "a": 0.1, "b": 1}]}),
    ]
    guest.infer(request._replace(messages=[cloned, reply, *forged], ordinal=1))
    assert [message.raw for message in sent[1].messages] == [cloned.raw, reply.raw, None, None]
    assert [message.text for message in sent[1].messages] == ["old", "x", "x", "x"]
    assert len(notes) == 1 and "2 blocks" in notes[0]


@pytest.mark.parametrize(
    "messages",
    [
        '[{"role":"user","content":["x"]}]',
        '[{"role":"user","content":null}]',
        '[{"role":"assistant","content":"","tool_calls":[{"id":"1","name":"sh","arguments":'
        + '{"a":' * 300 + "1" + "}" * 300 + "}]}]",
        "[" + '{"role":"user","content":"","reasoning_content":""},' * 100_001 + "{}]",
    ],
    ids=["list", "null", "deep", "many"],
)  # fmt: skip
def test_what_is_no_conversation_of_ours(services: Services, spec: SessionSpec, messages: str) -> None:
    body = f'{{"session":"{spec.session}","mission":"m","ordinal":0,"wisdom":{{}},"messages":{messages}}}'
    with pytest.raises(RequestError, match="infer: "):
        services["infer"](body.encode())


def test_brackets_are_not_worth_their_memory(services: Services, spec: SessionSpec) -> None:
    """Thirty megabytes of them would be two thousand in memory; as much text is as much memory."""
    parts = f'{{"session":"{spec.session}","mission":"m","ordinal":0,"wisdom":{{}},"messages":[%s]}}'
    with pytest.raises(RequestError, match="more than 250000 values"):
        services["infer"]((parts % ("[],[]," * 1_000_000 + "[]")).encode())
    text = json.dumps({"role": "user", "content": '[],{"\\,' * 200_000})
    assert services["infer"]((parts % text).encode())


def between(services: Services, spec: SessionSpec, ledger: Ledger) -> Services:
    """Return the proxy of a child of `spec`, with the child's origin."""
    return third.between(spec, ledger, ask(services))


def test_a_proxy_on_the_way_passes_on_what_is_its_childs(
    services: Services, spec: SessionSpec, ledger: Ledger, tmp_path: Path
) -> None:
    own = Tape(RelaySink(ask(services), spec.session))
    own.add("meta", meta(spec.session, spec.root))
    own.sync()
    child = spec._replace(session=new_session(), parent=spec.session, depth=1, mission="mission of a child")
    proxy = between(services, child, ledger)
    assert told_life(proxy) == child
    tape = Tape(RelaySink(ask(proxy), child.session))
    tape.add("meta", meta(child.session, spec.root, spec.session, 1))
    tape.sync()
    guest = RelayGuest(ask(proxy))
    request = Request([Message("user", "x")], TOOLS, child.session, child.mission)
    assert guest.infer(request).message.text == "first"
    with pytest.raises(Unavailable, match="asked for already"):
        guest.infer(request)
    with pytest.raises(Unavailable, match="not of this job"):  # which the origin would have answered
        guest.infer(request._replace(session=spec.session))
    own.add("message", {"role": "user", "content": "x"})
    with pytest.raises(Failure, match="parent or depth"):
        RelaySink(ask(proxy), spec.session).put([b'{"type":"meta","data":{"session_id":"%s","root_session_id":"%s"},'
            b'"seq":0,"ts":1,"prev":""}' % (spec.session.encode(), spec.root.encode())])  # fmt: skip
    own.sync()
    tape.message(Message("user", "y"))
    guest.infer(request._replace(ordinal=1, tape=tape.ahead()))
    assert len(read(str(tmp_path / "data" / f"{spec.session}.jsonl"))) == 2
    assert len(read(str(tmp_path / "data" / f"{child.session}.jsonl"))) == 2


def test_no_secret_goes_out(spec: SessionSpec, ledger: Ledger, tmp_path: Path) -> None:
    environ = {"OPENAI_API_KEY": "canary-0123456789", "QUINE_MODEL_ID": "m", "QUINE_DATA_DIR": str(tmp_path)}
    services = handlers.services(spec, ledger, environ)
    assert b"canary" not in services["life"](b"")


def test_settings_hold_the_secrets_apart() -> None:
    assert "secrets" in Settings._fields


def test_a_mission_that_cannot_be_asked_for_is_not_guessed(tmp_path: Path) -> None:
    settings = env.adopt(RunOptions(), {"QUINE_DATA_DIR": str(tmp_path)})

    def refuse(why: str) -> Any:
        def ask(name: str, body: bytes) -> bytes:
            raise RequestError(why)

        return ask

    assert origin.assigned(settings, refuse("no service named 'life' at the origin")) is None
    with pytest.raises(Failure) as caught:
        origin.assigned(settings, refuse("the origin cannot be reached"))
    assert caught.value.status == 75
    with pytest.raises(Failure) as caught:
        origin.assigned(settings, lambda name, body: b"{}")
    assert caught.value.status == 69


BOMBS = {
    "lists": b"[" + b"[]," * 5_000_000 + b"[]]",
    "depth": b"[" * 15_000_000,
    "numbers": b'{"a":[' + b"1," * 1_000_000 + b"1]}",
    "quotes": b'"\\"' * 5_000_000 + b"," * 999_999,
    "texts": b"[" + b'"",' * 5_000_000 + b'""]',
}


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
def test_a_body_is_no_bomb(services: Services, body: bytes) -> None:
    """Fifteen megabytes of small values would be half a gigabyte here; they are refused unread."""
    before = peak()
    with pytest.raises(RequestError, match=r"infer: (more than 250000 values|not JSON|.*JSON)"):
        services["infer"](body)
    assert peak() - before < 3 * len(body)


def test_what_a_conversation_quotes_may_hold_any_number_of_commas(
    services: Services, spec: SessionSpec
) -> None:
    text = '1,2,[3],{"a"\\\\},' * 100_000
    request = Request([Message("user", text)], TOOLS, spec.session, "mission")
    assert RelayGuest(ask(services)).infer(request).message.text == "first"
