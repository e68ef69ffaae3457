"""Values that end a call, a session or a process: results of tools, and exceptions that leave the host loop."""

from __future__ import annotations

from quine.base.errors import DENIED, TRY_AGAIN
from quine.base.messages import GuestError, Overflow, Refused, Spent, Unavailable, Usage
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.agent.session import SessionSpec
    from quine.budget.ledger import Ledger
    from quine.budget.limits import Limits
    from transport.status import Status


SERVED = "its server gives it no more: quine doctor --guest shows what it gives"


class Result(NamedTuple):
    text: str
    is_error: bool = False


class End(NamedTuple):
    """How this process must end, and why. `outcome` is the status of a session that ran on another machine."""

    status: int
    signal: int = 0
    usage: Usage = Usage()
    outcome: Status | None = None
    reason: str = ""


class Ended(Exception):
    """The session is over. `mode` is the termination mode on the tape; `reason` goes to stderr, as a line."""

    def __init__(self, status: int, mode: str, reason: str = "", detail: str = "", hint: str = "") -> None:
        super().__init__(mode)
        self.status = status
        self.mode = mode
        self.reason = reason  # written by the agent
        self.detail = detail  # written by the host loop
        self.hint = hint


class ForkedChild(Exception):
    """Raised in a forked child, which continues as `spec`, paid from `ledger`. `record` is as in `Loop`.

    `model` is that of the child if it is not its parent's, else "".
    """

    def __init__(self, spec: SessionSpec, ledger: Ledger, model: str, slots: list[int], record: str) -> None:
        super().__init__(spec.session)
        self.spec = spec
        self.ledger = ledger
        self.model = model
        self.slots = slots
        self.record = record


class Moved(Exception):
    """Raised after the next session has run to its end on another machine, with this process as its proxy."""

    def __init__(self, end: End) -> None:
        super().__init__(end.status)
        self.end = end


def sections(code: int, stdout: str, stderr: str) -> str:
    """Format a result that has streams."""
    return f"[EXIT CODE] {code}\n[STDOUT]\n{stdout}\n[STDERR]\n{stderr}"


def ended_by(error: GuestError | Spent) -> Ended:
    """Return the end of a session whose inference failed."""
    if isinstance(error, Spent):
        return Ended(DENIED, "budget", detail=f"the budget is spent: {error}", hint=f"see {error.option}")
    if isinstance(error, Unavailable):
        return Ended(
            TRY_AGAIN,
            "error",
            detail=f"no reply from the guest: {error}",
            hint="try again later, or check QUINE_API_BASE",
        )
    if isinstance(error, Overflow):
        return Ended(DENIED, "context_exhaustion", detail=f"the context is full: {error}")
    if isinstance(error, Refused):
        return Ended(error.status, "error", detail=f"the guest refused: {error}", hint=error.hint)
    return Ended(TRY_AGAIN, "error", detail=f"the guest failed: {error}")


def exhausted(mode: str, limits: Limits, window: int) -> Ended:
    """Return the end of a session that did not end itself in the last reply that a limit left to it.

    `window` is the context that it had, in tokens: that of `limits`, or less.
    """
    if mode == "turn_exhaustion":
        return Ended(DENIED, mode, detail=f"all {limits.turns} turns are used", hint="see --max-turns")
    if mode == "budget":
        return Ended(
            DENIED,
            mode,
            detail="the budget of the tree is used up",
            hint="see --max-tokens and --max-cost",
        )
    return Ended(
        DENIED,
        mode,
        detail=f"the context of {window} tokens is full",
        hint="see QUINE_CONTEXT_WINDOW" if window == limits.window else SERVED,
    )


def mute(called: bool, session: str) -> str:
    """Return the hint for a guest that only talks in the end; `called` says that it had made calls before."""
    what = "has this model tools, and the template of its server?"
    if called:
        what = "its tools work, and what they did stays; it never called exit, as small models do:"
    return f"{what} `quine tape show {session}` has all"
