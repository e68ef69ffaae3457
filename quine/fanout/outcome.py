"""How the items of a batch ended: kinds, counts, the exit status; when to halt, and which hosts to leave alone.

Laws
1. Eight kinds, counted apart, and no ninth: done, failed, killed, timeout, lost, never started, denied, unavailable.
2. No clock and no descriptor: the time is given.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from quine.base import errors
from quine.base.errors import Misconfigured
from quine.jobs.batch_state import KINDS
from transport import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.status import Status

DONE, FAILED, KILLED, TIMEOUT, LOST, NEVER, DENIED, UNAVAILABLE = KINDS
STOPPABLE = (FAILED, KILLED, TIMEOUT)  # ends that a job may have because it was ended
STATES = {"signaled": KILLED, "unreachable": NEVER, "denied": DENIED, "lost": LOST}
# exit statuses of an agent that are no verdict of its own
OF_AGENTS = {
    errors.LOST: LOST,
    errors.TRY_AGAIN: UNAVAILABLE,
    errors.DENIED: DENIED,
    errors.DEADLINE: TIMEOUT,
}
SOME_FAILED = 123  # as xargs
MOST = 101  # of --exit-count, as GNU parallel: more than 100

STRIKES = 3  # failed starts in a row, after which a host is set aside
ASIDE = 60.0  # seconds


def kind_of(status: Status, timed_out: bool = False, agent: bool = False, left: bool = False) -> str:
    """Return the kind of an end. A job that was killed because of its time has that kind, if it is known to be over.

    `left`: it was told to end, and its results were left on its host. It was killed, then, whatever its status.
    """
    if timed_out and status.state in ("exited", "signaled"):
        return TIMEOUT
    if left:
        return KILLED
    if agent and status.state == "exited" and status.code in OF_AGENTS:
        return OF_AGENTS[status.code]
    return STATES.get(status.state) or (FAILED if status.code else DONE)


class Tally:
    """The ends of items so far."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(KINDS, 0)
        self.lost_before = 0  # in a run before, and left as they are by this one
        self.open = 0  # sent in a run before, or cut off: a host that may have their jobs does not answer
        self._misused = 0  # never started because the inventory, or an option, is wrong

    def add(self, kind: str, code: int = 0) -> None:
        """`code`: the exit status that `quine run` would have."""
        self.counts[kind] += 1
        self._misused += kind == NEVER and code == errors.USAGE

    @property
    def ended(self) -> int:
        return sum(self.counts.values())

    @property
    def failed(self) -> int:
        """Those that are not done."""
        return self.ended - self.counts[DONE]

    def text(self, but: str = "") -> str:
        """The counts that are not 0, without that of the kind `but`."""
        return ", ".join(f"{count} {kind}" for kind, count in self.counts.items() if count and kind != but)

    def exit_status(self, count: bool = False) -> int:
        """`count`: the number of items that are not done, as GNU parallel has it."""
        if count:
            return min(self.failed + self.lost_before + self.open, MOST)
        counts = self.counts
        if counts[LOST] or self.lost_before or self.open:
            return errors.LOST
        if counts[DENIED]:
            return errors.DENIED
        if self.failed and counts[NEVER] == self.ended:
            return errors.USAGE if self._misused == self.ended else errors.NOT_STARTED
        return SOME_FAILED if self.failed else 0


class Halt:
    """--halt: when no more items are started (soon), or all are ended (now)."""

    def __init__(self, text: str) -> None:
        """Raises Misconfigured."""
        self.now = False
        self._of = ""
        if text in ("", "never"):
            return
        found = re.fullmatch(r"(now|soon),(fail|success|done)=([1-9][0-9]{0,8})(%?)", text)
        if not found or (found[4] and int(found[3]) > 100):
            raise Misconfigured(
                f"--halt {text[:40]}: should be now or soon, then ,fail=N ,success=N or ,done=N",
                "N% is a share of what has ended, 100% at most",
            )
        self.now, self._of, self._count = found[1] == "now", found[2], int(found[3])
        self._percent = bool(found[4])

    def reached(self, tally: Tally) -> bool:
        """A share is one of the items that have ended, once three of them count."""
        if not self._of:
            return False
        number = {"fail": tally.failed, "success": tally.counts[DONE], "done": tally.ended}[self._of]
        if self._percent:
            return number >= 3 and 100 * number >= self._count * tally.ended
        return number >= self._count


class Hosts:
    """Hosts on which starts fail: after STRIKES in a row one is set aside for ASIDE seconds, then tried again."""

    def __init__(self) -> None:
        self._strikes: dict[str, int] = {}
        self._aside: dict[str, float] = {}

    def ended(self, host: str, kind: str, now: float) -> bool:
        """Note the end of a job. Return True if its host is set aside by it."""
        if kind != NEVER or not host:
            self._strikes.pop(host, None)
            self._aside.pop(host, None)
            return False
        strikes = self._strikes[host] = self._strikes.get(host, 0) + 1
        if strikes < STRIKES:
            return False
        new = host not in self._aside
        self._aside[host] = now + ASIDE
        return new

    def aside(self, now: float) -> list[str]:
        """The hosts that are set aside now."""
        for host in [host for host, until in self._aside.items() if until <= now]:
            del self._aside[host]  # a single failed start sets it aside again
        return list(self._aside)


class Numbers(NamedTuple):
    """The values of {#} and {%} in the words of one try; 0 where the journal of an earlier build has no note of it."""

    job: int = 0
    slot: int = 0

    def word(self, attempt: int) -> str:
        """Return the word in the journal for a try with these numbers."""
        return f"{attempt}:{self.job}:{self.slot}" if any(self) else f"{attempt}"

    @classmethod
    def parsed(cls, word: str) -> tuple[int, Numbers]:
        """Return the attempt and the numbers of a word. Raises ValueError."""
        attempt, *numbers = map(int, word.split(":"))
        if len(numbers) not in (0, 2):
            raise ValueError(f"{word[:80]!r} should be ATTEMPT or ATTEMPT:JOB:SLOT")
        return attempt, cls(*numbers)


class Unreturned(NamedTuple):
    """A job that has ended, by itself, and whose returns did not come; `place` is its directory, "" if not known."""

    attempt: int
    code: int
    signal: str
    host: str
    place: str
    numbers: Numbers = Numbers()

    def line(self, id: str) -> str:
        signal, host, place = (quickjson.dumps(text) for text in (self.signal, self.host, self.place))
        return f"unreturned {id} {self.numbers.word(self.attempt)} {self.code} {signal} {host} {place}\n"

    @classmethod
    def parsed(cls, words: list[str]) -> Unreturned:
        """Raises ValueError."""
        word, code, signal, host = words[:4]
        texts = [quickjson.loads(text) for text in (signal, host, " ".join(words[4:]))]
        if not all(isinstance(text, str) for text in texts):
            raise ValueError("not a text")
        attempt, numbers = Numbers.parsed(word)
        return cls(attempt, int(code), *texts)._replace(numbers=numbers)


def unstartable(error: OSError | Misconfigured) -> Status:
    """Return the end of an item whose stdin or files cannot be had."""
    from transport.status import Status

    if isinstance(error, Misconfigured):
        return Status("unreachable", errors.NOT_STARTED, detail=error.detail, hint=error.hint)
    why = f"{error.filename}: {(error.strerror or 'cannot be read').lower()}"
    return Status("unreachable", errors.NOT_STARTED, detail=why)


def missed(never: bool, host: str) -> Status:
    """Return the end of a job of this run that no host has; `never`: it certainly never began."""
    from transport.status import Status

    detail = "the node here ended, and no host has the job"
    if never:
        return Status("unreachable", errors.NOT_STARTED, detail=detail)
    return Status("lost", errors.LOST, host=host, detail=detail)


def noted(note: Unreturned) -> Status:
    """Return the end that a job had in a run before."""
    from transport.status import Status

    return Status("signaled" if note.signal else "exited", note.code, note.signal, host=note.host)


def unfetched(error: Misconfigured, note: Unreturned) -> Status:
    """Return the end of an item whose returns, of a run before, cannot be asked for."""
    from quine.staging.caller_side import still_there
    from transport.status import Status

    hint = still_there(note.place) if note.place else error.hint
    return Status("lost", errors.LOST, host=note.host, detail=error.detail, hint=hint)


def of_adopted(status: Status, torn: bool, staged: bool) -> Status:
    """Return the end of a job that was adopted; it is lost if it may have lacked its files, or its output is not whole.

    `torn`: output that the process before had taken is not here. Its host may have noted that it never began.
    """
    from transport.status import Status

    why = ""
    if torn:
        why = "output that the batch before had taken is not there any more"
    elif staged and (status.state, status.code) == ("exited", errors.NOT_STARTED):
        why = "the batch before ended while it got its files, or it failed with 69"
    return Status("lost", errors.LOST, host=status.host, pid=status.pid, detail=why) if why else status
