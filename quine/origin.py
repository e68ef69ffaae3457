"""What the origin of a tree answers to the agents that it has on other machines: life, infer, tape, ledger.

Laws
1. What asks is not trusted: every body is bounded and held against a pydantic model, and a refusal is a RequestError
   that names the rule.
2. A key or a script never leaves here; an agent elsewhere sends a conversation and gets a reply.
3. A tape that comes from elsewhere is a file here: its name is a session's UUID, its first line makes it, only
   the face that saw that line may append to it, and its session belongs to the tree of the life that it serves.
4. The services are called from worker threads.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from quine import env, guests, inference, tools
from quine.env import MOST
from quine.exits import DEADLINE, Failure
from quine.grants import Lender
from quine.guests.base import Guest, GuestError, Message, Refused, Reply, Request
from quine.guests.relay import error_to_json, spent_to_json
from quine.ledger import Ledger, Spent
from quine.life import Life, is_session
from quine.log import Log
from quine.signals import ANSWER
from quine.tape import FileSink
from transport import quickjson
from transport.errors import RequestError

MAX_BODY = 64 << 20  # a conversation of a million tokens is a tenth of this
MAX_VALUES = 250_000  # of JSON in one body: each is some hundred bytes here, for two on the wire
MAX_LINE = 16 << 20
MAX_SESSIONS = 10_000  # tapes that one job may make
LATEST = 2 * ANSWER[1]  # seconds after the deadline in which an agent elsewhere may still say its last word
MOST_REFUSALS = 100  # of one job that are logged

_SEPARATORS = (b",", b"[", b"{")

Model = TypeVar("Model", bound=BaseModel)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Infer(_Strict):
    session: Annotated[str, Field(max_length=36)]
    mission: str  # not bounded here but by MAX_BODY: a bound is an error where there is half a surrogate pair
    ordinal: Annotated[int, Field(ge=0, le=1_000_000)]
    wisdom: dict[str, str]
    messages: Annotated[list[dict[str, Any]], Field(max_length=1_000_000)]
    output: Annotated[int, Field(ge=0, le=MOST)] = 0
    cost: Annotated[float, Field(ge=0, le=MOST)] = 0.0


class _Ledger(_Strict):
    """quine/grants.py says what it means. With `heard` it is a watch, without it an ask."""

    ledger: Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
    back: Annotated[int, Field(ge=0, le=1 << 40)]
    ask: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    had: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    least: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    most: Annotated[int, Field(ge=0, le=1 << 20)] = 0
    heard: Annotated[int, Field(ge=0, le=1 << 62)] | None = None
    lost: Annotated[int, Field(ge=0, le=1 << 40)] = 0


class _Tape(_Strict):
    session: Annotated[str, Field(max_length=36)]
    lines: Annotated[list[Annotated[str, Field(max_length=MAX_LINE)]], Field(min_length=1, max_length=10_000)]


class _Entry(_Strict):
    type: Annotated[str, Field(pattern="^[a-z_]{1,32}$")]
    data: dict[str, Any]
    seq: Annotated[int, Field(ge=0, le=1 << 40)]
    ts: Annotated[float | int, Field(ge=0, le=1e11)]
    prev: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]


def services(
    life: Life,
    ledger: Ledger | None,
    environ: Mapping[str, str] = os.environ,
    spent: dict[str, object] | None = None,
) -> dict[str, Callable[[bytes], bytes]]:
    """The handlers for one remote child: name -> body to body. `spent` counts tokens_in and tokens_out."""
    origin = _Origin(life, ledger or Ledger.create(life.limits), environ, {} if spent is None else spent)
    handlers = {"life": origin.life, "infer": origin.infer, "tape": origin.tape, "ledger": origin.ledger}
    return {name: partial(origin.answer, handler) for name, handler in handlers.items()}


class _Origin:
    def __init__(self, life: Life, ledger: Ledger, environ: Mapping[str, str], spent: dict[str, Any]) -> None:
        self._life = life
        self._ledger = ledger
        self._spent = spent
        settings = env.adopt({}, dict(environ))
        self._settings = settings
        self._config = env.guest(settings, {**environ})
        self._price = inference.price(self._config, bool(ledger.mark.cost))
        self._guest: Guest | None = None
        self._lender = Lender(ledger, life.limits.agents)
        self._known: dict[
            str, tuple[int, int]
        ] = {}  # session -> tokens of its conversation, messages that those are
        self._lock = threading.Lock()
        self._sinks: dict[str, tuple[FileSink, int]] = {}  # session -> file, next seq
        self._log = Log(os.path.join(settings.data_dir, f"{life.session}.log"))
        self._refused = 0

    def answer(self, handler: Callable[[bytes], bytes], body: bytes) -> bytes:
        """What the handler answers. A refusal is kept in the log: who asks for what it may not have shows there."""
        try:
            return handler(body)
        except RequestError as error:
            self._refused += 1
            if self._refused <= MOST_REFUSALS:
                self._log.note(f"refused to an agent elsewhere: {str(error)[:500]!a}")
            raise

    def life(self, body: bytes) -> bytes:
        life, left = self._life, self._ledger.time_left()
        if left is not None:  # its clock is not ours
            life = life._replace(limits=life.limits._replace(deadline=max(left, 0.001)))
        return json.dumps(life.to_json()).encode()

    def infer(self, body: bytes) -> bytes:
        asked = _parse(_Infer, body)
        try:
            messages = [Message.from_json(message) for message in asked.messages]
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise RequestError(f"infer: not a conversation: {str(error)[:200]}") from None
        request = Request(
            messages,
            tools.TOOLS,
            asked.session,
            asked.mission,
            asked.ordinal,
            asked.wisdom,
            asked.output,
            asked.cost,
        )
        with self._lock:
            if self._guest is None:
                try:
                    self._guest = guests.build(self._config)
                except Failure as failure:
                    raise RequestError(f"infer: {failure.detail}") from None
        try:
            with self._lender.inferring():
                reply = self._pay(self._guest, request)
        except GuestError as error:
            return json.dumps(error_to_json(error)).encode()
        except Spent as spent:
            return json.dumps(spent_to_json(spent)).encode()
        agents, _, cost = self._ledger.totals()
        with self._lock:
            self._spent.update(agents=agents, cost=cost or None)
            for name, count in (("tokens_in", reply.usage.input), ("tokens_out", reply.usage.output)):
                self._spent[name] = self._spent.get(name, 0) + count
        told = {
            "left": self._ledger.left(),
            "surely": self._ledger.left(surely=True),
            "cost": inference.cost_of(self._guest, reply.usage, self._price),
        }
        return json.dumps({**reply.to_json(), **told}).encode()

    def _pay(self, guest: Guest, request: Request) -> Reply:
        left = self._ledger.time_left()
        if left is not None and left < -LATEST:
            raise Refused("the time of the tree is over", "see --deadline", DEADLINE)
        session, messages = request.session, request.messages
        # How long the conversation is by the provider's count, and not by what a machine elsewhere says.
        context, told = self._known.get(session, (0, 0))
        known = context + inference.tokens(messages[told:])
        reply = inference.infer(
            guest, request, self._ledger, self._life.limits.concurrent, self._price, known
        )
        with self._lock:
            if len(self._known) >= MAX_SESSIONS:
                del self._known[next(iter(self._known))]
            if reply.usage.input:
                self._known[session] = (reply.usage.input + reply.usage.output, len(messages) + 1)
        return reply

    def ledger(self, body: bytes) -> bytes:
        asked = _parse(_Ledger, body)
        try:
            if asked.heard is not None:
                wanted = self._lender.watch(asked.ledger, asked.back, asked.heard, asked.lost)
                return quickjson.dumps({"wanted": wanted}).encode()
            most = max(asked.least, asked.most)
            places = self._lender.lend(asked.ledger, asked.ask, asked.had, asked.least, most, asked.back)
        except OSError as error:
            raise RequestError(f"ledger: {(error.strerror or '').lower()}") from None
        return quickjson.dumps({"places": places}).encode()

    def tape(self, body: bytes) -> bytes:
        asked = _parse(_Tape, body)
        if not is_session(asked.session):
            raise RequestError("tape: the session is not a UUID")
        with self._lock:
            sink, expected = self._sinks.get(asked.session) or self._new(asked)
            for line in asked.lines:
                entry = _entry(line)
                if entry.seq != expected:
                    raise RequestError(f"tape: line {entry.seq} came, and {expected} is next")
                expected += 1
            try:
                sink.put([line.encode() for line in asked.lines])
            except Failure as failure:
                raise RequestError(f"tape: {failure.detail}") from None
            finally:
                sink.close()  # many sessions, few descriptors: the next line opens it again
            self._sinks[asked.session] = (sink, expected)
        return b""

    def _new(self, asked: _Tape) -> tuple[FileSink, int]:
        """A tape begins with its meta, which must be of this tree; an existing file is never touched."""
        first = _entry(asked.lines[0])
        if first.type != "meta" or first.data.get("session_id") != asked.session:
            raise RequestError("tape: the first line must be the session's own meta")
        if first.data.get("root_session_id") != self._life.root:
            raise RequestError("tape: the session belongs to another tree")
        if asked.session != self._life.session and first.data.get("born") != "exec":
            self._ledger.born()
            self._spent["agents"] = self._ledger.totals()[0]
        if len(self._sinks) >= MAX_SESSIONS:
            raise RequestError(f"tape: more than {MAX_SESSIONS} sessions of one job")
        return FileSink(os.path.join(self._settings.data_dir, f"{asked.session}.jsonl")), 0


def _parse(model: type[Model], body: bytes) -> Model:
    name = model.__name__.removeprefix("_").lower()
    if len(body) > MAX_BODY:
        raise RequestError(f"{name}: {len(body)} bytes, and {MAX_BODY} are possible")
    if _values(body) > MAX_VALUES:
        raise RequestError(f"{name}: more than {MAX_VALUES} values")
    try:
        # Not model_validate_json: half a surrogate pair, as undecodable bytes become here, is an error for it.
        return model.model_validate(quickjson.loads(body))
    except (RecursionError, UnicodeDecodeError):
        raise RequestError(f"{name}: not JSON") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise RequestError(f"{name}: {where}: {first['msg'].lower()}") from None
    except ValueError as error:
        raise RequestError(f"{name}: {error}") from None


def _values(body: bytes) -> int:
    """About how many values a JSON text holds; what a conversation quotes may hold any number of commas."""
    count = sum(map(body.count, _SEPARATORS))
    if count <= MAX_VALUES:
        return count
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    quotes = bare.count(b'"')
    if quotes > 4 * MAX_VALUES:  # each value and its name in quotes
        return quotes // 4
    return sum(part.count(mark) for part in bare.split(b'"')[::2] for mark in _SEPARATORS)


def _entry(line: str) -> _Entry:
    """One whole line that is one entry; a newline in it would be two."""
    if "\n" in line or not line.isascii():
        raise RequestError("tape: a line with a newline in it, or not in ASCII")
    return _parse(_Entry, line.encode())
