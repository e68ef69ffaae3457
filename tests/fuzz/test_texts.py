"""Parsers of foreign bytes above the wire, fed with broken recordings: they return or raise a declared error.

QUINE_TEST_FUZZ=10000000 is the long form: so many bytes for each of them.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.inventory import ConfigError, load
from quine.agent.session import SessionSpec
from quine.agent.tools import TOOLS
from quine.base.cli_options import RunOptions
from quine.base.errors import Failure
from quine.base.messages import GuestError, Message, Request, Spent, ToolCall, ToolResult
from quine.base.sessions import new_session
from quine.budget.ledger import Ledger
from quine.budget.limits import Limits
from quine.cli import ps_table
from quine.jobs import census, remote
from quine.jobs.asking import Answer
from quine.providers.bodies import fed, parse
from quine.providers.dialects import sse
from quine.providers.dialects.anthropic import AnthropicDialect
from quine.providers.dialects.chat import ChatDialect
from quine.providers.dialects.gemini import GeminiDialect
from quine.providers.dialects.responses import ResponsesDialect
from quine.providers.relay import RelayGuest
from quine.remote import handlers
from quine.tape import cost, reader, registry, render, requests, verify
from quine.tape.writer import FileSink, Tape
from tests.fuzz.mutate import VOLUME, Target, bombard, of_bytes, of_json, of_lines, pieces
from tests.vendors import anthropic, chat, gemini, responses
from tests.vendors.server import Said
from transport import quickjson
from transport.errors import RequestError
from transport.status import Status

pytestmark = pytest.mark.timeout(150 + VOLUME // 10_000)


# -- files -------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[2] / "inventory.example.toml"


def test_inventory(tmp_path: Path) -> None:
    path = tmp_path / "inventory.toml"

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        for host in load(path, {}).hosts.values():
            assert host.name.isprintable() and not host.destination.startswith("-")

    bombard("inventory", Target([EXAMPLE.read_bytes()], feed, (ConfigError,), of_bytes)).both()


def tape(folder: Path) -> bytes:
    session = new_session()
    tape = Tape(FileSink(str(folder / "recording")))
    call = ToolCall.parse("c1", "sh", '{"command": "ls"}')
    tape.add("meta", {"session_id": session, "root_session_id": session, "parent_session_id": "", "depth": 0,
                      "mission": "m", "model_id": "x", "pid": 1, "node": "local", "created_at": 1.7e9,
                      "cloned": {"session": new_session(), "lines": 3}})  # fmt: skip
    tape.message(Message("system", "be"))
    tape.message(Message("user", "do"))
    tape.message(
        Message("assistant", "t", (call,), reasoning="r", raw={"chat": {"x": 1}}),
        usage={"input": 5},
        stop="tool",
    )
    tape.message(Message("tool", result=ToolResult("c1", "sh", "done")), again=2)
    tape.add("fork", {"session": new_session(), "intent": "x"})
    tape.add(
        "outcome",
        {"exit_code": 0, "termination_mode": "exit", "duration_ms": 12, "tokens_in": 1, "tokens_out": 2},
    )
    tape.sync()
    tape.close()
    data = (folder / "recording").read_bytes()
    (folder / "recording").unlink()
    return data


def test_tape(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Of a tape that came from elsewhere: listed, shown, drawn, billed, verified and rebuilt, or said to be none."""
    path = tmp_path / f"{new_session()}.jsonl"

    def feed(data: bytes) -> None:
        path.write_bytes(data)
        verify.verify(path).text()
        verify.verify(path).json()
        known = reader.sessions(tmp_path)
        for do in (render.ls, render.show, render.tree, cost.cost):
            try:
                shown = do(tmp_path)
            except Failure:
                continue
            assert "\x1b" not in shown
        for read in (requests.requests, requests.children):
            try:
                list(read(path))
            except (OSError, ValueError):
                continue
        if not known:
            raise ValueError

    bombard("tape", Target([tape(tmp_path)], feed, (ValueError,), of_lines)).both()
    assert "\x1b" not in capfd.readouterr().err


def test_what_a_host_lists(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """`quine ps --on HOST`: each answer is shown or left out."""
    fact = {"id": new_session(), "session": "s", "pid": 77, "state": "running", "code": 3, "signal": "TERM",
            "detail": "d", "started": 1.7e9, "seconds": 2.5, "mission": "m", "parent": "p", "root": "r", "stdout": "/o",
            "stderr": "/e", "host": "x"}  # fmt: skip
    asked: list[bytes] = []
    monkeypatch.setattr(registry, "everyone", lambda *_, **_options: [])
    monkeypatch.setattr(census, "look", lambda *_: [])
    monkeypatch.setattr(remote, "hosts", lambda *_: ["h1"])
    monkeypatch.setattr(
        remote, "ask", lambda *_, **_options: {"h1": Answer(Status("exited", 0), asked[-1], b"")}
    )

    def feed(data: bytes) -> None:
        asked.append(data)
        for as_json in (False, True):
            assert ps_table.ps((), RunOptions(on="h1", all=True, json=as_json)) in (
                0,
                69,
            )  # the latter if a line was left out
        out = capfd.readouterr().out
        assert "\x1b" not in out and len(out) < 10 * len(data) + 100_000
        if fact["id"] not in out:
            raise ValueError

    lines = b"".join(quickjson.dumps({**fact, "pid": n}).encode() + b"\n" for n in range(3))
    bombard("list", Target([lines], feed, (ValueError,), of_lines)).both()


# -- the origin and its agents elsewhere -------------------------------------------------------------


@pytest.fixture
def spec() -> SessionSpec:
    context = (Message("user", "x"), Message("assistant", "t", (ToolCall("c", "sh", {"command": "x"}),)))
    return SessionSpec(
        new_session(),
        new_session(),
        "mission",
        wisdom={"a": "b"},
        limits=Limits(concurrent=2),
        context=context,
    )


@pytest.fixture
def services(spec: SessionSpec, tmp_path: Path) -> Iterator[dict[str, Any]]:
    script = tmp_path / "s.jsonl"
    script.write_text(
        '{"reply": {"text": "first", "tool_calls": [{"name": "sh", "arguments": {}}]}, "repeat": true}\n'
    )
    data = tmp_path / "data"
    environ = {"QUINE_API_TYPE": "script", "QUINE_API_BASE": str(script), "QUINE_DATA_DIR": str(data)}
    ledger = Ledger.create(spec.limits)
    yield handlers.services(spec, ledger, environ)
    os.close(ledger.fd)


def asked(spec: SessionSpec) -> bytes:
    messages = [message.to_json() for message in spec.context]
    body = {"session": spec.session, "mission": "m", "ordinal": 0, "wisdom": {"k": "v"}, "messages": messages}
    return quickjson.dumps(body).encode()


def test_what_an_agent_asks(services: dict[str, Any], spec: SessionSpec) -> None:
    """An answer that can be read over there, or a refusal that names the rule."""
    ordinals = itertools.count()

    def numbered(data: bytes) -> bytes:
        return data.replace(b'"ordinal":0', b'"ordinal":%d' % next(ordinals))  # each is answered once

    def feed(data: bytes) -> None:
        guest = RelayGuest(lambda name, _: services[name](numbered(data)))
        guest.infer(Request([Message("user", "x")], TOOLS))

    def body(data: bytes) -> None:
        try:
            services["infer"](numbered(data))
        except RequestError as error:
            assert str(error).startswith("infer: ")
            raise

    bombard("infer", Target([asked(spec)], body, (RequestError,), of_json)).both()
    feed(asked(spec))


def test_what_a_share_of_the_ledger_asks(services: dict[str, Any]) -> None:
    """Never more places than the tree has, whatever is asked for or said to be given back."""

    def feed(data: bytes) -> None:
        assert 0 <= json.loads(services["ledger"](data))["places"] <= Limits().agents

    held = set(os.listdir("/proc/self/fd"))
    recordings = [
        quickjson.dumps({"ledger": digit * 32, "back": 0, "ask": n, "had": 0, "need": 3}).encode()
        for n, digit in enumerate("0123456789abcdef", 1)
    ]
    bombard("ledger", Target(recordings, feed, (RequestError,), of_json)).both()
    for number in set(os.listdir("/proc/self/fd")) - held:  # the places that are lent until this process ends
        with contextlib.suppress(OSError):
            os.close(int(number))


def test_what_a_tape_from_elsewhere_brings(
    services: dict[str, Any], spec: SessionSpec, tmp_path: Path
) -> None:
    """It makes files of sessions in the data directory, and nothing anywhere else."""

    def recorded(session: str, parent: str, depth: int) -> bytes:
        meta = {"session_id": session, "root_session_id": spec.root, "parent_session_id": parent}
        entry = {"type": "meta", "data": {**meta, "depth": depth}, "seq": 0, "ts": 1.5, "prev": ""}
        return quickjson.dumps({"session": session, "lines": [quickjson.dumps(entry)]}).encode()

    before = set(tmp_path.iterdir())
    services["tape"](recorded(spec.session, spec.parent, spec.depth))
    session = new_session()
    recording = recorded(session, spec.session, spec.depth + 1)

    def feed(data: bytes) -> None:
        fresh = new_session().encode()
        services["tape"](data.replace(session.encode(), fresh))

    bombard("tape service", Target([recording], feed, (RequestError,), of_json)).both()
    made = [
        path
        for path in (tmp_path / "data").iterdir()
        if path.name not in (f"{spec.session}.log", ".mark", ".gitignore")
    ]
    assert made and all(path.suffix == ".jsonl" and len(path.name) == 42 for path in made)
    assert set(tmp_path.iterdir()) - before == {tmp_path / "data"}


def test_what_an_origin_answers(services: dict[str, Any], spec: SessionSpec) -> None:
    answer = services["infer"](asked(spec))

    def feed(data: bytes) -> None:
        RelayGuest(lambda *_: data).infer(Request([], TOOLS))

    refused = b'{"error": "refused", "detail": "no", "hint": "h", "status": 2}'
    with pytest.raises(GuestError):
        feed(refused)
    bombard("relay", Target([answer], feed, (GuestError, Spent), of_json)).both()


def test_life(spec: SessionSpec) -> None:
    def feed(data: bytes) -> None:
        try:
            value = quickjson.loads(data)
        except RecursionError:
            raise ValueError from None
        if isinstance(value, dict):
            quickjson.dumps(SessionSpec.from_json(value).to_json())

    bombard("life", Target([quickjson.dumps(spec.to_json()).encode()], feed, (ValueError,), of_json)).both()


# -- providers ---------------------------------------------------------------------------------------

VENDORS = {
    "openai": (chat, ChatDialect),
    "responses": (responses, ResponsesDialect),
    "anthropic": (anthropic, AnthropicDialect),
    "gemini": (gemini, GeminiDialect),
}
SAID = Said(
    "täxt",
    ({"name": "sh", "arguments": {"command": "ls"}}, {"name": "exit", "arguments": {"status": 0}}),
    "thoughts",
)


def stream(vendor: Any) -> bytes:
    text = ""
    for event, data in vendor.reply_events(SAID):
        text += (
            f"event: {event}\n" if event else ""
        ) + f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"
    return text.encode()


def test_sse() -> None:
    """The same events however the bytes were split."""

    def feed(data: bytes) -> None:
        whole, split = sse.Decoder(100_000), sse.Decoder(100_000)
        events = whole.feed(data)
        events += whole.close()
        assert events == [event for piece in pieces(data) for event in split.feed(piece)] + split.close()

    bombard("sse", Target([stream(vendor) for vendor, _ in VENDORS.values()], feed, (sse.TooLong,), of_bytes))


@pytest.mark.parametrize("kind", VENDORS)
def test_a_streamed_answer(kind: str) -> None:
    vendor, make = VENDORS[kind]
    dialect = make("m")

    def feed(data: bytes) -> None:
        decoder, putting = sse.Decoder(), dialect.stream()
        complete = any(fed(putting, decoder.feed(piece)) for piece in pieces(data))
        if not complete:
            fed(putting, decoder.close())
        reply = dialect.reply(putting.whole())
        quickjson.dumps(reply.to_json())

    bombard(f"{kind} stream", Target([stream(vendor)], feed, (GuestError,), of_events)).both()


@pytest.mark.parametrize("kind", VENDORS)
def test_a_whole_answer(kind: str) -> None:
    vendor, make = VENDORS[kind]
    dialect = make("m")

    def feed(data: bytes) -> None:
        try:
            value = parse(data)
        except ValueError:
            raise GuestError(dialect.fault(500, data.decode("utf-8", "replace"))) from None
        quickjson.dumps(dialect.reply(value).to_json())

    whole = json.dumps(vendor.reply_json(SAID)).encode()
    bombard(f"{kind} body", Target([whole], feed, (GuestError,), of_json)).both()
    error = json.dumps(vendor.error(429, "rate")).encode()

    def refuse(data: bytes) -> None:
        try:
            value: Any = parse(data)
        except ValueError:
            value = data.decode("utf-8", "replace")
        assert isinstance(dialect.fault(429, value), GuestError)

    bombard(f"{kind} error", Target([error], refuse, (), of_json), VOLUME // 4)


def of_events(drawn: Any, recordings: Any) -> bytes:
    """A stream of events: the data of one is changed as JSON, or the whole as bytes."""
    if drawn.random() < 0.3:
        return of_bytes(drawn, recordings)
    blocks = drawn.choice(recordings).split(b"\n\n")
    at = drawn.randrange(len(blocks))
    head, mark, data = blocks[at].rpartition(b"data: ")
    if data.startswith(b"{"):
        data = of_json(drawn, [data]).replace(b"\n", b"")
    blocks[at] = head + mark + data
    return b"\n\n".join(blocks)
