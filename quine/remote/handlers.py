"""Handlers of a remote agent's requests `life`, `infer`, `tape` and `ledger`, in its proxy at the origin.

Laws
1. The requester is not trusted: every body is bounded and checked by a model. A refusal is a RequestError that
   names the rule.
2. A key or a script never leaves here; a remote agent sends a conversation and gets a reply.
3. Rights come from the job, not from the request: its tree, its levels, its sessions, the ledger that it was started
   with. Each inference of a session is made once.
4. Of a provider's own blocks only those go to the provider that this end has handed out.
5. A session is served with the model that its tape names, by which `tape cost` reckons; the session that was given
   away, with the one that it was given. A model that is neither that of the job nor of a fork of a reply is noted.
6. A proxy that is not the origin (quine/remote/between.py) applies the same rules.
7. The services are called from worker threads.
"""

from __future__ import annotations

import _thread
import itertools
import os

from quine.agent import env, personas, prompt, tools
from quine.agent.session import SessionSpec
from quine.agent.signals import ANSWER
from quine.base import allowed_hosts, data_directory
from quine.base.cli_options import RunOptions
from quine.base.errors import DEADLINE
from quine.base.messages import (
    Guest,
    GuestError,
    Message,
    Refused,
    Reply,
    Request,
    Spent,
    unheard,
)
from quine.base.sessions import tape_path
from quine.base.strict import HEX, Strict, flag, integer, number, parse, text
from quine.base.text import plain
from quine.budget.leases import Lender
from quine.budget.ledger import Ledger
from quine.budget.loans import PARTS, Wanted
from quine.providers import metering
from quine.providers.asking import Infer
from quine.providers.relay import error_to_json, spent_to_json, tape_to_json
from quine.remote.guests import Guests
from quine.remote.replies import Replies
from quine.remote.tape_receiver import MAX_SESSIONS, Arrivals
from quine.tape.lines import digest
from quine.tape.redact import Mask
from quine.tape.writer import FileSink, MaskedSink, Sink
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any, Callable, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from quine.tape.redact import Secret

MOST_MODELS = 256  # names that are kept of one job
LATEST = 2 * ANSWER[1]  # seconds after the deadline in which a remote agent may still finish

Service = Callable[[bytes], bytes]


class LedgerRequest(Strict):
    """A request of quine/budget/leases.py. `ended`: the job of the share has ended, and all its places come back."""

    ledger: str = text(letters=HEX, sizes=(32,))
    back: int = integer(1 << 40, default=0)
    ask: int = integer(1 << 40, default=0)
    had: int = integer(1 << 40, default=0)
    need: int = integer(1 << 20, default=0)
    ended: bool = flag(False)
    loan: bool = flag(False)  # it is also about tokens and money; the rest is as in quine.budget.loans.Wanted
    tokens: int = integer(1 << 40, default=0)
    cost: float = number(1e9, default=0.0)
    lend: int = integer(1 << 40, default=0)
    money: float = number(1e9, default=0.0)
    begin: bool = flag(False)
    over: bool = flag(False)


def no_hosts() -> bytes:
    return b"[]"


def here() -> str:
    """The host of a job of this machine."""
    return ""


def _placed(spec: SessionSpec, hosts: Callable[[], bytes]) -> SessionSpec:
    """Return `spec` with the hosts that it may use where it was placed. A clone is told if they have changed."""
    try:
        listed = allowed_hosts.checked(hosts())
    except RequestError:
        listed = ""
    if spec.context and spec.hosts != listed:
        moved = Message("user", prompt.moved(listed))
        spec = spec._replace(opening=(*spec.opening, moved))
    return spec._replace(hosts=listed)


def services(
    spec: SessionSpec,
    ledger: Ledger | None,
    environ: Mapping[str, str] = os.environ,
    spent: dict[str, object] | None = None,
    note: Callable[[str], None] = unheard,
    hosts: Callable[[], bytes] = no_hosts,
    endings: list[Callable[[], None]] | None = None,
    masked: Sequence[Secret] = (),
    host: Callable[[], str] = here,
) -> dict[str, Service]:
    """Return the handlers for one remote child: name -> body to body. `spent` counts tokens_in and tokens_out.

    `hosts` returns the hosts that it may use, as JSON. `endings` gets functions to call when the job has ended, which
    free all that it holds here. `masked` are values that no tape may hold, besides those in `environ`. `host` is where
    it runs.
    """
    ledger = ledger or Ledger.create(spec.limits)
    origin = Origin(spec, ledger, environ, {} if spent is None else spent, note, hosts, masked, host)
    if endings is not None:
        endings.append(origin.close)
    return {"life": origin.spec, "infer": origin.infer, "tape": origin.arrivals.put, "ledger": origin.ledger}


class Proxy:
    """The common part of both proxies: the spec that they give away, its tapes, and its inferences, each once."""

    def __init__(
        self,
        spec: SessionSpec,
        ledger: Ledger,
        spent: dict[str, Any],
        arrivals: Arrivals,
        hosts: Callable[[], bytes],
    ) -> None:
        self._spec = spec
        self._hosts = hosts
        self._ledger = ledger
        self._spent = spent
        self.arrivals = arrivals
        self._lock = _thread.allocate_lock()
        self._next: dict[str, int] = {}  # session -> its next inference
        self._asking: set[str] = set()

    def spec(self, body: bytes) -> bytes:
        spec, left = self._spec, self._ledger.time_left()
        if left is not None:  # its clock is not ours: send the time left
            spec = spec._replace(limits=spec.limits._replace(deadline=max(left, 0.001)))
        spec = spec._replace(age=(personas.now() - self._ledger.beginning.begun) / 1e9)
        return quickjson.dumps(_placed(spec, self._hosts).to_json()).encode()

    @contextlib.contextmanager
    def _once(self, session: str, ordinal: int) -> Iterator[None]:
        """Allow one inference of a session at a time, and none again that has its reply. Raises RequestError."""
        if not self.arrivals.known(session):
            raise RequestError("infer: a session that is not of this job")
        with self._lock:
            if session in self._asking or ordinal < self._next.get(session, 0):
                raise RequestError(f"infer: inference {ordinal} of this session was asked for already")
            self._asking.add(session)
        try:
            yield
        finally:
            with self._lock:
                self._asking.discard(session)

    def _take(self, asked: Infer) -> bytes:
        """Take the lines that come before an inference; return b"", or the answer if they are refused."""
        try:
            if asked.tape:
                self.arrivals.take(asked.session, asked.tape)
        except RequestError as error:
            return quickjson.dumps(tape_to_json(error)).encode()
        return b""

    def _answered(self, session: str, ordinal: int, tokens: tuple[int, int]) -> None:
        with self._lock:
            self._next[session] = ordinal + 1
            for name, count in zip(("tokens_in", "tokens_out"), tokens):
                self._spent[name] = self._spent.get(name, 0) + count


class Origin(Proxy):
    def __init__(
        self,
        spec: SessionSpec,
        ledger: Ledger,
        environ: Mapping[str, str],
        spent: dict[str, Any],
        note: Callable[[str], None],
        hosts: Callable[[], bytes],
        masked: Sequence[Secret],
        host: Callable[[], str] = here,
    ) -> None:
        settings = env.adopt(RunOptions(), dict(environ))
        mask = Mask([*settings.masked, *masked])

        def sink(session: str) -> Sink:
            return MaskedSink(self._sink(settings, session), mask)

        self._replies = Replies()
        arrivals = Arrivals(spec, sink, self._born, self._used, self._replies, host)
        super().__init__(spec, ledger, spent, arrivals, hosts)
        concurrent = spec.limits.concurrent
        self._guests = Guests(settings, environ, ledger, concurrent, spec.model, note)
        alone = spec.session == spec.root and not ledger.purses
        parts = 1 if alone else min(spec.limits.agents or PARTS, PARTS)
        self._lender = Lender(ledger, spec.limits.agents, parts, note)
        # session -> (tokens of its conversation, number of the messages counted)
        self._known: dict[str, tuple[int, int]] = {}
        self._note = note
        self._models = {spec.model, *(name for message in spec.context for name in _models_of(message))}
        self._given = {_mark(message.raw) for message in (*spec.context, *spec.opening) if message.raw}

    def _sink(self, settings: env.Settings, session: str) -> Sink:
        os.close(data_directory.opened(settings.data_dir, make=True))
        return FileSink(tape_path(settings.data_dir, session))

    def infer(self, body: bytes) -> bytes:
        asked = parse(Infer, body)
        if refusal := self._take(asked):
            return refusal
        self._check_model(asked.session, asked.model)
        messages = self._conversation(asked)
        with self._once(asked.session, asked.ordinal):
            return self._infer(asked.request(messages, tools.TOOLS))

    def _check_model(self, session: str, model: str) -> None:
        """Raise RequestError for another model than that of the session. Note one that nothing here has named."""
        own = self._spec.model
        served, told = model or own, self.arrivals.model(session) or own
        if served != told or (session == self._spec.session and served != own):
            raise RequestError("infer: another model than the session was given, or its tape names")
        with self._lock:
            unnamed = served not in self._models and len(self._models) < MOST_MODELS
            if unnamed:
                self._models.add(served)
        if unnamed:
            name = plain(served, newlines=False)
            self._note(f"infer: model {name} is that of no fork given here: a command of the host chose it")

    def _infer(self, request: Request) -> bytes:
        try:
            guest, price = self._guests.of(request)
            with self._lender.inferring():
                reply = self._pay(guest, price, request)
        except GuestError as error:
            return quickjson.dumps(error_to_json(error)).encode()
        except Spent as spent:
            self._ledger.refuse()
            return quickjson.dumps(spent_to_json(spent)).encode()
        self._tell_totals()
        with self._lock:
            if reply.message.raw:
                self._given.add(_mark(reply.message.raw))
            self._models.update(itertools.islice(_models_of(reply.message), MOST_MODELS))
        self._replies.give(request.session, reply.message)
        self._answered(request.session, request.ordinal, (reply.usage.input, reply.usage.output))
        told = {
            "left": self._ledger.left(),
            "surely": self._ledger.left(surely=True),
            "cost": metering.cost_of(guest, reply.usage, price),
        }
        return quickjson.dumps({**reply.to_json(), **told}).encode()

    def _pay(self, guest: Guest, price: metering.Price | None, request: Request) -> Reply:
        left = self._ledger.time_left()
        if left is not None and left < -LATEST:
            raise Refused("the time of the tree is over", "see --deadline", DEADLINE)
        session, messages = request.session, request.messages
        # The length of the conversation by the provider's count: a remote machine's is not trusted.
        context, told = self._known.get(session, (0, 0))
        known = context + metering.tokens(messages[told:])
        reply = metering.infer(guest, request, self._ledger, self._spec.limits.concurrent, price, known)
        with self._lock:
            if len(self._known) >= MAX_SESSIONS:
                del self._known[next(iter(self._known))]
            if reply.usage.input:
                self._known[session] = (reply.usage.input + reply.usage.output, len(messages) + 1)
        return reply

    def close(self) -> None:
        self._lender.close()
        self._guests.close()

    def ledger(self, body: bytes) -> bytes:
        asked = parse(LedgerRequest, body)
        try:
            if asked.ended:
                self._lender.end(asked.ledger)
                return quickjson.dumps({"places": 0}).encode()
            numbered = asked.ask > 0 or not asked.loan
            places = (
                self._lender.lend(asked.ledger, asked.ask, asked.had, asked.need, asked.back)
                if numbered
                else 0
            )
            answer: dict[str, object] = {"places": places}
            if asked.loan:
                wanted = Wanted(asked.tokens, asked.cost, asked.lend, asked.money, asked.begin, asked.over)
                answer["tokens"], answer["cost"] = self._lender.budget(asked.ledger, wanted, numbered)
                self._tell_totals()
        except OSError as error:
            raise RequestError(f"ledger: {(error.strerror or str(error)).lower()}") from None
        return quickjson.dumps(answer).encode()

    def _tell_totals(self) -> None:
        agents, _, cost = self._ledger.totals()
        with self._lock:
            self._spent.update(agents=agents, cost=cost or None)

    def _used(self, session: str, usage: tuple[int, int]) -> None:
        """Count the tokens of an inference that is on a tape, if it was made over there."""
        with self._lock:
            if session not in self._next:
                for name, count in zip(("tokens_in", "tokens_out"), usage):
                    self._spent[name] = self._spent.get(name, 0) + count

    def _born(self) -> None:
        """Count an agent that was made on the remote machine with those of the tree."""
        self._ledger.born()
        self._spent["agents"] = self._ledger.totals()[0]

    def _conversation(self, asked: Infer) -> list[Message]:
        """Return the messages, without provider blocks that were not handed out here. Raises RequestError."""
        messages, foreign = asked.conversation(), 0
        for at, message in enumerate(messages):
            if message.raw and _mark(message.raw) not in self._given:
                messages[at] = message._replace(raw=None)
                foreign += 1
        if foreign:
            self._note(f"infer: {foreign} blocks of a provider that were not handed out here were left out")
        return messages


def _models_of(message: Message) -> Iterator[str]:
    """Yield the models that the forks of a reply name."""
    for call in message.tool_calls:
        children = call.args.get("children") if call.name == "fork" else None
        for one in [call.args, *children] if isinstance(children, list) else [call.args]:
            if isinstance(one, dict) and isinstance(model := one.get("model"), str):
                yield model


def _mark(raw: dict[str, Any]) -> str:
    """Return the digest of a block, in its order of keys."""
    return digest(quickjson.dumps(raw).encode())
