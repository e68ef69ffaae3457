"""The way of an inference to its server, which a gate may stand in. The HTTP client and the broker share it."""

from __future__ import annotations

from quine.base.messages import GuestError, Reply, Usage
from transport.lean import NamedTuple, Protocol

GOES_ON = "going on after the pause"  # the note at the end of a wait of unknown length
PATIENCE = 120.0  # seconds, as in the vendors' own clients: a longer Retry-After is a refusal


class Way(Protocol):
    """The way of one inference. Of a try that was cancelled: `so_far`, the part of the answer that had come, and
    `is_whole`, an answer that is no stream had begun to come, so its server has made all of it. `tree` is the number of
    the tree that asks.
    """

    so_far: Reply | None
    is_whole: bool
    tree: int

    async def enter(self) -> None:
        """Wait until a request may be sent."""

    def heard(self) -> None:
        """Called with the first byte of an answer that is no error."""

    def leave(self, outcome: Outcome | None) -> None:
        """Called at the end of a try; None: it was cancelled."""

    async def broke_off(self, usage: Usage) -> tuple[int, float] | None:
        """Pay an answer that broke off, and return the output and the cost that the next try may have; None: as before.

        `usage` is what its provider has told, all 0 if nothing. Raises Spent if there can be no other try.
        """


class Outcome(NamedTuple):
    """The end of one try: `status` is that of HTTP, or 0; `final`: the server forbids another try."""

    told: Reply | GuestError
    status: int = 0
    final: bool = False


class Open:
    """A way without a gate."""

    so_far: Reply | None = None
    is_whole = False
    tree = 0

    async def enter(self) -> None:
        pass

    def heard(self) -> None:
        pass

    def leave(self, outcome: Outcome | None) -> None:
        pass

    async def broke_off(self, usage: Usage) -> tuple[int, float] | None:
        return None


class Wait(NamedTuple):
    """A wait of one inference for its provider: `seconds` until the next try, None if they are not known.

    It crosses processes as a note, which people read in a log.
    """

    why: str
    seconds: float | None = None
    quota: bool = False  # the provider's quota is used up
    number: str = ""  # of the next try, and how many there are: "2 of 4"

    @property
    def note(self) -> str:
        if self.number:
            return f"try {self.number} in {self.seconds or 0.0:.1f} s: {self.why}"
        if not self.quota:
            return f"waits for a turn: {self.why}"
        most = f", {self.seconds:.1f} s at most" if self.seconds else ""
        return f"paused until the quota is raised or the time of the tree is over{most}: {self.why}"

    @classmethod
    def read(cls, note: str) -> Wait | None:
        """Return the wait that a note tells of; None for any other note."""
        start, colon, why = note.partition(": ")
        if not colon:
            return None
        import re  # here: proxies do without it

        if found := re.fullmatch(r"try (\d+ of \d+) in (\d{1,9}\.\d) s", start):
            return cls(why, float(found[2]), number=found[1])
        if found := re.fullmatch(r"paused until .*?(?:, (\d{1,9}\.\d) s at most)?", start):
            return cls(why, float(found[1]) if found[1] else None, quota=True)
        return cls(why) if start == "waits for a turn" else None
