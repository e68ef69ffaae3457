"""The origin of a remote agent, as the agent sees it: requests to it, the `SessionSpec` and the slots that it gives.

An agent is remote if the memo names an origin elsewhere; without one it is its own origin.
"""

from __future__ import annotations

import os
import select

from quine.agent.session import SessionSpec
from quine.base.errors import NOT_STARTED, TRY_AGAIN, Failure, Misconfigured, NoGuest
from quine.base.sessions import COURIER, tape_path
from quine.tape.writer import FileSink, RelaySink
from transport import inherit, quickjson
from transport.lean import Any, Callable, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from quine.agent.env import Settings
    from quine.agent.signals import Signals
    from quine.budget.ledger import Ledger
    from quine.tape.writer import Sink
    from transport.lean import contextlib, socket

    Context = contextlib.AbstractContextManager[object]

INFERENCE = (
    "QUINE_INFERENCE"  # "direct" in the environment of an agent that the node starts, and of nothing below it
)
NO_KEY = 'inference = "direct", and this host has no key of its own'
CURE = (
    "name QUINE_API_KEY_FILE or QUINE_API_KEY_COMMAND, and QUINE_MODEL_ID, in env of its table in the inventory; "
    'or set inference = "relay" there'
)

# request by name and body, and a function that waits for the reply (transport/rpc/call.py)
Ask = Callable[..., bytes]


def is_relayed(memo: Mapping[str, Any]) -> bool:
    """Return whether an agent above this process has its origin elsewhere. A plain job of a node has no agent above."""
    return "token" in memo and "lineage" in memo


def connect(signals: Signals | None = None) -> Ask | None:
    """Return the function that sends requests to the origin; None if this process is the origin.

    A fatal signal ends its waits within `signals.calling_out`.
    """
    if "token" not in inherit.read():
        return None
    from transport.rpc.call import Relay

    relay = Relay.from_environment(signals.until_ready if signals else None)
    return None if relay is None else relay.request


def assigned(settings: Settings, ask: Ask | None) -> SessionSpec | None:
    """Ask the origin for the `SessionSpec` of this process, if a node started it as a remote agent; None if not."""
    if ask is None or "lineage" in settings.memo:
        return None
    from transport.errors import RequestError

    try:
        return SessionSpec.from_json(quickjson.loads(ask("life", b"")))
    except RequestError as error:
        if str(error).startswith("no service named"):
            return None  # a plain job: its user started this quine
        # Not the mission in argv: that one is truncated.
        raise Failure(
            TRY_AGAIN, f"the origin does not tell the mission: {error}", "try again later"
        ) from None
    except ValueError as error:
        raise Failure(NOT_STARTED, f"the reply of the origin is not a valid mission: {error}") from None


def is_direct(memo: Mapping[str, Any]) -> bool:
    """Return whether the agents of this job infer with keys of this machine: `inference = "direct"`."""
    return COURIER in memo


def infers(ask: Ask | None, memo: Mapping[str, Any]) -> bool:
    """Return whether the guest of this process is asked by the origin, elsewhere."""
    return ask is not None and not is_direct(memo)


def settle_here(
    settings: Settings,
    spec: SessionSpec,
    ledger: Ledger,
    environ: MutableMapping[str, str],
    calling_out: Callable[[], Context],
) -> Settings:
    """Begin a job whose agents infer here, if this is one: make the courier of its tapes, and borrow its budget.

    Return the settings with its place, for the memo. `calling_out` is open while this waits for the origin, and may
    end that. Raises Failure: without a guest here nothing is begun.
    """
    if environ.pop(INFERENCE, "") != "direct":
        return settings
    from quine.broker import finding
    from quine.budget.borrowing import Borrower
    from quine.tape import courier
    from transport.address import runtime_directory
    from transport.errors import RequestError
    from transport.rpc.call import Relay

    if spec.model:
        environ.setdefault("QUINE_MODEL_ID", spec.model)
    try:
        finding.check(settings.memo, environ, settings.secrets)
    except NoGuest as error:
        raise Failure(error.status, NO_KEY, CURE, settings.node) from None
    except Misconfigured as error:
        raise Failure(error.status, error.detail, error.hint, settings.node) from None
    relay = Relay.from_environment()
    assert relay is not None

    def send(name: str, body: bytes) -> bytes:
        return relay.request(name, body, _for_ever)

    folder = os.path.join(settings.data_dir, f"direct-{spec.session}")
    path = f"{runtime_directory()}/{spec.session}-{os.urandom(4).hex()}{courier.SUFFIX}"
    borrower = Borrower(ledger, send, suppress)
    try:
        # First: it is small here yet, and it gives back what was lent should a signal come before the answer.
        courier.start(folder, path, send, borrower.report, borrower.return_rest)
        with calling_out():
            borrower.begin()
    except (OSError, RequestError) as error:
        why = str(error)
        if isinstance(error, OSError) and error.strerror:
            why = f"{error.filename or ''}: {error.strerror.lower()}".removeprefix(": ")
        raise Failure(NOT_STARTED, f"the agent cannot begin here: {why}", "", settings.node) from None
    return settings._replace(memo={**settings.memo, COURIER: [path, folder]})


def sink(settings: Settings, ask: Ask | None, signals: Signals, spec: SessionSpec) -> Sink:
    """Return where a tape is written: to a file here, by the courier of this job, or by requests to the origin."""
    begins = spec.born != "exec"
    if ask is None:
        return FileSink(tape_path(settings.data_dir, spec.session), begins)
    if is_direct(settings.memo):
        from quine.tape.courier import SpooledSink

        path, folder = settings.memo[COURIER]
        return SpooledSink(folder, path, spec.session, begins)

    def send(name: str, body: bytes) -> bytes:
        # Not interruptible: an outcome is written after the signal that it records.
        with signals.block_sigpipe():
            return ask(name, body, signals.ready)

    return RelaySink(send, spec.session)


def part(settings: Settings, wait: Callable[[socket.socket, int], None]) -> str:
    """End a job whose agents infer here: return "" once all of it has arrived at the origin, else the reason."""
    from quine.tape import courier

    return courier.ask(settings.memo[COURIER][0], courier.END, wait)


def flush(settings: Settings, wait: Callable[[socket.socket, int], None]) -> None:
    """Let all that was written so far arrive at the origin, if it goes by a courier: another program takes over."""
    if is_direct(settings.memo):
        from quine.tape import courier

        courier.ask(settings.memo[COURIER][0], courier.FLUSH, wait)


def _for_ever(channel: socket.socket, event: int) -> None:
    poll = select.poll()
    poll.register(channel, event)
    poll.poll()


def left_out(settings: Settings) -> Settings:
    """Make the agent of a plain job its own origin: remove the way to an origin elsewhere from the memo."""
    memo = {
        key: value for key, value in settings.memo.items() if key not in ("socket", "token", "capability")
    }
    return settings._replace(memo=memo)


def borrow_slots(
    ledger: Ledger, ask: Ask | None, memo: Mapping[str, Any], signals: Signals | None = None
) -> None:
    """With the origin elsewhere, let the ledger borrow slots for agents from it and give them back.

    If this machine infers, its ledger pays from what it borrows of the budget. A signal may end a wait for the origin.
    """
    if ask is None:
        return
    from quine.budget.leases import Grant

    def request(name: str, body: bytes) -> bytes:
        # A proxy has removed its signal handlers.
        if signals is None or signals.fd < 0:
            return ask(name, body)
        with signals.calling_out(elsewhere=True):
            return ask(name, body)

    if not is_direct(memo):
        ledger.beyond = Grant(ledger, request)
        return
    from quine.budget.borrowing import Borrower
    from quine.tape import courier

    def call_courier() -> None:
        courier.call(memo[COURIER][0])

    ledger.beyond = Borrower(ledger, request, signals.interruptible if signals else suppress, call_courier)
