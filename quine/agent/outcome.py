"""What a tool gives back, how a process must leave, and the ways in which a call can leave the loop instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from quine.base.messages import Usage

if TYPE_CHECKING:
    from quine.agent.session import Life
    from transport.status import Status


class Result(NamedTuple):
    text: str
    is_error: bool = False


class End(NamedTuple):
    """How this process must leave. `outcome` is of a life that ran elsewhere."""

    status: int
    signal: int = 0
    usage: Usage = Usage()
    outcome: Status | None = None


class Ended(Exception):
    """This life is over. `mode` is the termination mode on the tape; `reason` goes to stderr, as a line."""

    def __init__(self, status: int, mode: str, reason: str = "", detail: str = "", hint: str = "") -> None:
        super().__init__(mode)
        self.status = status
        self.mode = mode
        self.reason = reason  # the agent's own words
        self.detail = detail  # the host loop's words
        self.hint = hint


class Reborn(Exception):
    """Raised in a forked child: this process goes on as `life`. `record` is where its end is noted, "" for nowhere."""

    def __init__(self, life: Life, slots: list[int], record: str) -> None:
        super().__init__(life.session)
        self.life = life
        self.slots = slots
        self.record = record


class Moved(Exception):
    """Raised where the next life has run elsewhere, to its end, and this process was its face."""

    def __init__(self, end: End) -> None:
        super().__init__(end.status)
        self.end = end


def sections(code: int, stdout: str, stderr: str) -> str:
    """The form of every result that has streams."""
    return f"[EXIT CODE] {code}\n[STDOUT]\n{stdout}\n[STDERR]\n{stderr}"
