"""Handlers of a proxy that is not the origin: the child of a remote agent runs on a third machine.

Laws
1. The same rules hold as at the origin (quine/remote/handlers.py), which is asked with the capability of this job.
2. Places and budgets of the child's machine are granted by the origin alone.
3. If the agents of this machine infer by themselves, its child infers here, too; the key stays on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from quine.agent import env, tools
from quine.agent.session import SessionSpec
from quine.base.messages import GuestError, Spent, unheard
from quine.base.sessions import COURIER
from quine.base.strict import parse
from quine.budget.leases import Lender
from quine.budget.ledger import Ledger
from quine.providers import metering
from quine.providers.asking import Infer
from quine.providers.relay import RelayGuest, error_to_json, spent_to_json
from quine.remote.handlers import LedgerRequest, Origin, Proxy, Service, no_hosts
from quine.remote.tape_receiver import Arrivals
from quine.tape.courier import SpooledSink
from quine.tape.redact import Mask
from quine.tape.writer import MaskedSink, RelaySink, Sink
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.tape.redact import Secret


def between(
    spec: SessionSpec,
    ledger: Ledger,
    ask: Callable[[str, bytes], bytes],
    spent: dict[str, object] | None = None,
    hosts: Callable[[], bytes] = no_hosts,
    endings: list[Callable[[], None]] | None = None,
    masked: Sequence[Secret] = (),
) -> dict[str, Service]:
    """Return the same for a child of an agent that is itself remote; `ask` asks its origin, from any thread."""
    proxy = Between(spec, ledger, {} if spent is None else spent, ask, hosts, masked)
    if endings is not None:
        endings.append(proxy.close)
    return {"life": proxy.spec, "infer": proxy.infer, "tape": proxy.arrivals.put, "ledger": proxy.ledger}


def here(
    spec: SessionSpec,
    ledger: Ledger,
    environ: Mapping[str, str],
    ask: Callable[[str, bytes], bytes],
    spent: dict[str, object] | None = None,
    note: Callable[[str], None] = unheard,
    hosts: Callable[[], bytes] = no_hosts,
    endings: list[Callable[[], None]] | None = None,
    masked: Sequence[Secret] = (),
) -> dict[str, Service]:
    """Return the same for a child of an agent that infers on this machine, by keys that this machine has."""
    proxy = Here(spec, ledger, environ, {} if spent is None else spent, note, hosts, masked, ask)
    if endings is not None:
        endings.append(proxy.close)
    return {"life": proxy.spec, "infer": proxy.infer, "tape": proxy.arrivals.put, "ledger": proxy.ledger}


class _Passing:
    """The requests `ledger` of a child: they go on to the origin."""

    def _begin(self, ask: Callable[[str, bytes], bytes]) -> None:
        self._ask = ask
        self._shares: set[str] = set()

    def ledger(self, body: bytes) -> bytes:
        asked = parse(LedgerRequest, body)
        self._shares.add(asked.ledger)
        return self._ask("ledger", body)

    def close(self) -> None:
        """Return the places of the child's machines after its job has ended, for others below our own job."""
        for share in self._shares.copy():
            with contextlib.suppress(RequestError):  # else they end with our own job
                self._ask("ledger", quickjson.dumps({"ledger": share, "ended": True}).encode())


class Between(_Passing, Proxy):
    def __init__(
        self,
        spec: SessionSpec,
        ledger: Ledger,
        spent: dict[str, Any],
        ask: Callable[[str, bytes], bytes],
        hosts: Callable[[], bytes],
        masked: Sequence[Secret],
    ) -> None:
        mask = Mask(masked)
        arrivals = Arrivals(spec, lambda session: MaskedSink(RelaySink(ask, session), mask))
        super().__init__(spec, ledger, spent, arrivals, hosts)
        self._begin(ask)

    def infer(self, body: bytes) -> bytes:
        asked = parse(Infer, body)
        if refusal := self._take(asked):
            return refusal
        with self._once(asked.session, asked.ordinal):
            mark = self._ledger.mark
            if mark.tokens or mark.cost:
                answer = self._pay(asked)
            else:
                answer = self._ask("infer", _without_tape(body) if asked.tape else body)
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):  # an error has none
                given = quickjson.loads(answer)["usage"]
                self._answered(asked.session, asked.ordinal, (int(given[0]), int(given[1])))
        return answer

    def _pay(self, asked: Infer) -> bytes:
        """Ask the origin within the budget that this child has of its own; the origin knows that of the tree alone."""
        guest = RelayGuest(self._ask)
        request = asked.request(asked.conversation(), tools.TOOLS)
        try:
            reply = metering.infer(guest, request, self._ledger, 0, None)
        except GuestError as error:
            return quickjson.dumps(error_to_json(error)).encode()
        except Spent as spent:
            return quickjson.dumps(spent_to_json(spent)).encode()
        told = {
            "left": self._ledger.left().least(guest.left),
            "surely": self._ledger.left(surely=True).least(guest.surely),
            "cost": guest.cost,
        }
        return quickjson.dumps({**reply.to_json(), **told}).encode()


def _without_tape(body: bytes) -> bytes:
    """Return the body of an inference without lines: they went on by themselves, masked here."""
    return quickjson.dumps({**quickjson.loads(body), "tape": []}).encode()


class Here(_Passing, Origin):
    """The origin's rules, with the broker of this machine; tapes go by the courier of this job."""

    def __init__(
        self,
        spec: SessionSpec,
        ledger: Ledger,
        environ: Mapping[str, str],
        spent: dict[str, Any],
        note: Callable[[str], None],
        hosts: Callable[[], bytes],
        masked: Sequence[Secret],
        ask: Callable[[str, bytes], bytes],
    ) -> None:
        super().__init__(spec, ledger, environ, spent, note, hosts, masked)
        self._lender = Lender(ledger, 0)  # the origin lends the places
        self._begin(ask)

    def _sink(self, settings: env.Settings, session: str) -> Sink:
        path, folder = settings.memo[COURIER]
        return SpooledSink(folder, path, session)

    def _born(self) -> None:
        """The origin counts it."""

    def close(self) -> None:
        _Passing.close(self)
        Origin.close(self)
