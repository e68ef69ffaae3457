"""The origin of a remote agent, as the agent sees it: requests to it, the `SessionSpec` and the slots that it gives.

An agent is remote if the memo names an origin elsewhere; without one it is its own origin.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

from quine.agent.session import SessionSpec
from quine.base.errors import NOT_STARTED, TRY_AGAIN, Failure
from transport import inherit, quickjson
from transport.lean import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.env import Settings
    from quine.agent.signals import Signals
    from quine.budget.ledger import Ledger

# request by name and body, and a function that waits for the reply (transport/rpc/call.py)
Ask = Callable[..., bytes]


def is_relayed(memo: Mapping[str, Any]) -> bool:
    """Return whether an agent above this process has its origin elsewhere. A plain job of a node has no agent above."""
    return "token" in memo and "lineage" in memo


def connect() -> Ask | None:
    """Return the function that sends requests to the origin; None if this process is the origin."""
    if "token" not in inherit.read():
        return None
    from transport.rpc.call import Relay

    relay = Relay.from_environment()
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


def left_out(settings: Settings) -> Settings:
    """Make the agent of a plain job its own origin: remove the way to an origin elsewhere from the memo."""
    memo = {
        key: value for key, value in settings.memo.items() if key not in ("socket", "token", "capability")
    }
    return settings._replace(memo=memo)


def borrow_slots(ledger: Ledger, ask: Ask | None, signals: Signals) -> None:
    """With the origin elsewhere, let the ledger borrow slots for agents from it and give them back."""
    if ask is None:
        return
    from quine.budget.leases import Grant

    def request(name: str, body: bytes) -> bytes:
        # A proxy has removed its signal handlers.
        with signals.calling_out() if signals.fd >= 0 else contextlib.nullcontext():
            return ask(name, body)

    ledger.beyond = Grant(ledger, request)
