"""Asking hosts: one verb of quine on each of them at the same time, over one connection, within one time.

Laws
1. A host that does not answer in that time hides no other.
2. At most MOST bytes and MOST_LINES lines of an answer are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from quine.base.cli_options import RunOptions
from quine.base.procs import LONGEST as LONGEST_WAIT
from quine.jobs.detach import verb_there
from transport.errors import NothingThere
from transport.inherit import hold_standard_streams
from transport.lean import Any, NamedTuple
from transport.node import rendezvous
from transport.status import NOT_STARTED, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.client.batch import Batch
    from transport.spawn import Spawn

ASK = 45.0  # seconds for all hosts to answer; a dial may have to send this build to a host that has another
LATE_ANSWER = "no answer within"
MORE = 1.0  # seconds for the other hosts, if one answer is enough
MOST = 16 << 20  # bytes of one answer,
MOST_LINES = 20_000  # and its lines: a job, of which each takes ten times as much here as on the wire


class Answer(NamedTuple):
    status: Status
    out: bytes
    err: bytes

    @property
    def whole(self) -> bool:
        """Whether it says all that the host knows. One that has nothing of ours knows nothing."""
        return (self.status.state == "exited" and not self.status.code) or has_nothing(self.status)


def has_nothing(status: Status) -> bool:
    """Return whether a host was not asked because it has nothing of ours: no job of ours is there."""
    return status.state == "unreachable" and status.detail == NothingThere.DETAIL


def asking(words: list[str], host: str, options: RunOptions) -> Spawn:
    """Return the spawn of a verb that asks about jobs of a host, or does something to one: it brings nothing there."""
    spawn = verb_there(words, host, options)
    spawn.context["asks"] = True
    return spawn


def ask(
    words: list[str],
    names: list[str],
    options: RunOptions,
    seconds: float = ASK,
    enough: Callable[[str, bytes], bool] | None = None,
    least: float = 0.0,
) -> dict[str, Answer]:
    """Run the same verb on all hosts, and return their answers in order.

    `enough` gets a host and its stdout, and returns whether the others need not be waited for. They have `least`
    seconds if one of them may have to be dialled first.
    """
    from transport.client.batch import Batch

    hold_standard_streams()
    rendezvous.connect().close()  # that no node can be had here is no fault of a host
    batch = Batch()
    ended: list[_Asked] = []
    try:
        asked = [_Asked(batch, asking(words, name, options), name, ended.append) for name in names]
        begun = time.monotonic()
        deadline = begun + seconds
        while len(batch):
            late = deadline if all(one.reached for one in asked) else max(deadline, begun + least)
            if (left := late - time.monotonic()) <= 0:
                break
            batch.turn(min(left, LONGEST_WAIT))
            while ended:
                one = ended.pop()
                if enough and enough(one.host, one.stdout):
                    deadline, enough = min(deadline, time.monotonic() + MORE), None
        took = time.monotonic() - begun
    finally:
        batch.close()
    return {one.host: one.answer(took) for one in asked}


class _Asked:
    """One host that is asked, and what it has answered."""

    def __init__(self, batch: Batch, spawn: Spawn, host: str, ended: Callable[[_Asked], None]) -> None:
        self.host = host
        self._kept = {1: bytearray(), 2: bytearray()}  # stdout and stderr
        self._status: Status | None = None
        self._lines = 0
        self._large = ""  # the bound that it is beyond
        self.reached = False  # the verb has begun there, or waits for a link that is cut: no dial is needed
        self._ended = ended
        self._job = batch.start(
            spawn,
            on_output=self._take,
            on_exit=self._end,
            on_started=lambda pid, host: self._hear({"up": True}),
            on_note=self._hear,
        )

    @property
    def stdout(self) -> bytes:
        return bytes(self._kept[1])

    def _hear(self, note: dict[str, Any]) -> None:
        self.reached = self.reached or "up" in note

    def _take(self, stream: int, data: memoryview) -> None:
        self._kept[stream] += data
        self._lines += bytes(data).count(b"\n")
        if len(self._kept[stream]) > MOST:
            self._large = f"{MOST >> 20} MiB"
        elif self._lines > MOST_LINES:
            self._large = f"{MOST_LINES} lines"
        if self._large:
            self._kept[stream].clear()
            self._job.abandon()

    def _end(self, status: Status) -> None:
        self._status = status
        self._ended(self)

    def answer(self, seconds: float) -> Answer:
        """Return the answer, or why the host has given none in so many seconds."""
        if self._large:
            why, hint = f"an answer of more than {self._large}", ""
        elif self._status:
            return Answer(self._status, self.stdout, bytes(self._kept[2]))
        else:
            why, hint = f"{LATE_ANSWER} {seconds:.0f} s", "try again later"
        return Answer(Status("unreachable", NOT_STARTED, detail=why, hint=hint), b"", b"")
