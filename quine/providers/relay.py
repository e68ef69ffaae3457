"""The guest of an agent whose origin is elsewhere: every inference is a request to the origin, over the link.

Laws
1. No key and no script comes here; a request and a reply go across, as JSON.
2. The errors of the guest cross by kind, so that this end acts on them as if it had called the guest itself.
"""

from __future__ import annotations

from quine.base.errors import LOST, Failure
from quine.base.messages import (
    GuestError,
    Malformed,
    Overflow,
    Refused,
    Remaining,
    Reply,
    Request,
    Spent,
    Unavailable,
    unheard,
)
from transport import quickjson
from transport.errors import RequestError
from transport.lean import Any, Callable

Ask = Callable[[str, bytes], bytes]

_ERRORS: dict[str, type[GuestError]] = {
    "unavailable": Unavailable,
    "malformed": Malformed,
    "overflow": Overflow,
    "refused": Refused,
}


class RelayGuest:
    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.note: Callable[[str], None] = unheard
        # Remaining in the tree, as last answered: less all reservations; less only the certain part of them.
        self.left = self.surely = Remaining()
        self.cost = 0.0  # dollars of the last inference

    def infer(self, request: Request) -> Reply:
        return self._infer(request, {"model": request.model, "tape": list(request.tape)})

    def _infer(self, request: Request, more: dict[str, object]) -> Reply:
        body = quickjson.dumps({"cost": request.cost, **request.to_json(), **more})
        try:
            answer: Any = quickjson.loads(self._ask("infer", body.encode()))
            if fault := answer.get("error"):
                raise _error(fault, answer)
            self.left, self.surely = Remaining(*answer["left"]), Remaining(*answer["surely"])
            self.cost = float(answer["cost"])
            return Reply.from_json(answer)
        except RequestError as error:
            raise Unavailable(f"the origin: {error}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
            raise GuestError(f"the origin's answer cannot be read: {error}") from None


class BrokeredGuest(RelayGuest):
    """A server that the broker of this machine asks: it has the keys, and pays from the ledger of the tree."""

    def __init__(self, ask: Callable[[str, bytes, Callable[[str], None]], bytes]) -> None:
        super().__init__(lambda name, body: ask(name, body, lambda text: self.note(text)))

    def pay(self, request: Request, known: int) -> Reply:
        """Infer, paid by the broker. `known` is a lower bound of the prompt in tokens, with the tools."""
        return self._infer(request, {"known": known, "model": request.model})


def error_to_json(error: GuestError) -> dict[str, object]:
    """Return a guest's error as JSON: the origin's half of law 2."""
    kind = next((name for name, kind in _ERRORS.items() if isinstance(error, kind)), "other")
    more = {"hint": error.hint, "status": error.status} if isinstance(error, Refused) else {}
    return {"error": kind, "detail": str(error), **more}


def spent_to_json(spent: Spent) -> dict[str, object]:
    return {"error": "spent", "detail": str(spent), "option": spent.option}


def tape_to_json(error: RequestError) -> dict[str, object]:
    """Return as JSON that the lines of a request could not be taken, and no inference was made."""
    return {"error": "tape", "detail": str(error)}


def _error(kind: str, answer: dict[str, Any]) -> GuestError | Spent | Failure:
    detail = str(answer["detail"])
    if kind == "tape":
        return Failure(LOST, f"the tape cannot be sent to the origin: {detail}")
    if kind == "spent":
        return Spent(detail, str(answer["option"]))
    if kind == "refused":
        return Refused(detail, str(answer["hint"]), int(answer["status"]))
    return _ERRORS.get(kind, GuestError)(detail)
