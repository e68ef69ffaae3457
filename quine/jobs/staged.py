"""A job of a batch with its files: they are laid out before it starts, and its returns come back after its end.

Laws
1. The functions are those of `Batch.start`, and are called from `Batch.turn`. `on_exit` comes once, after the returns.
2. Signals are for the job itself. Once it has ended, its returns are on their way, and only `abandon` gives them up.
3. Returns that are cut are asked for again after a pause, as long as their caller wants them: an sshd that is started
   anew refuses five tries within a second. A host that has begun to send them and says nothing is not asked again
   (`Taking.patience`). A job that was told to end brings none.
"""

from __future__ import annotations

import os
import time
from functools import partial

from quine.staging.caller_side import pause_of_returns
from transport.client.batch_job import ENDING

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from quine.files.select import Services
    from quine.staging.caller_side import Staging
    from transport.client.batch import Batch, BatchJob
    from transport.client.batch_job import Input
    from transport.spawn import Spawn
    from transport.status import Status

    At = Callable[[float, Callable[[], None]], None]  # calls a function at a time of the monotonic clock

    class Receiver(Protocol):
        """The owner of a job whose returns come; all is called from `Batch.turn`."""

        def sent(self, job: BatchJob | Bringing) -> None:
            """This sends them now: to be given up by `abandon`, or left to the next process by `go_on`."""

        @property
        def wanted(self) -> bool:
            """Whether they are to be asked for again if they are cut."""

        def write(self, data: memoryview) -> int | None:
            """Take bytes of the sender's stderr, as `on_output` does."""

        def say(self, line: str) -> None:
            """Show the line about what was left out."""

        def lost(self, place: str) -> None:
            """They did not come, and are still in this directory of the host; "" if it is not known."""


class StagedJob:
    """One job, and the job that sends its returns. `held` are descriptors that are closed after its end."""

    def __init__(
        self,
        batch: Batch,
        spawn: Spawn,
        answers: Services,
        stage: Staging | None,
        stdin: bytes | int | Input | None,
        at: At,
        on_output: Callable[[int, memoryview], int | None],
        on_started: Callable[[str], None],
        on_exit: Callable[[Status], None],
        on_note: Callable[[dict[str, Any]], None] | None = None,
        held: list[int] | None = None,
    ) -> None:
        """`on_started` is called with the name of the host."""
        self._batch = batch
        self._answers = answers
        self._stage = stage
        self._at = at
        self._on_output = on_output
        self._on_started = on_started
        self._on_exit = on_exit
        self._held = held or []
        self.bringing = False  # the job itself has ended
        self._told = 0  # the signal that it was told to end by
        self._abandoned = False
        if stage:
            spawn = stage.dressed(spawn, answers)
            stage.begin()
        self._spawn = spawn
        self._begun = batch.start(spawn, stdin, on_output, self._started, self._ended, on_note, answers)
        self.job: BatchJob | Bringing = self._begun

    def signal(self, number: int) -> None:
        if not self.bringing:
            self._told = self._told or (number if number in ENDING else 0)
            self._begun.signal(number)

    def refuse(self, stream: int, why: str) -> None:
        """Take no more of a stream: whoever writes to it gets SIGPIPE."""
        if not isinstance(self.job, Bringing):
            self.job.refuse(stream, why)

    def abandon(self) -> None:
        self._abandoned = True
        self.job.abandon()

    def _started(self, _: int, host: str) -> None:
        self._answers.placed(host)
        self._on_started(host)

    def _ended(self, status: Status) -> None:
        let_go(self._answers, self._held)
        stage = self._stage
        if not (stage and stage.brings(status := stage.judged(status))):
            self._on_exit(status)
        elif self._told:
            stage.leave(status, self._spawn, self._told)
            self._on_exit(status)
        else:
            self.bringing = True
            over = partial(self._on_exit, status)
            Bringing(self._batch, stage, self._spawn, status, self, self._at, over).begin()

    # -- the interface of `Bringing` -----------------------------------------------------------------

    def sent(self, job: BatchJob | Bringing) -> None:
        self.job = job

    @property
    def wanted(self) -> bool:
        return not self._abandoned

    def write(self, data: memoryview) -> int | None:
        return self._on_output(2, data)

    def say(self, line: str) -> None:
        self._on_output(2, memoryview(line.encode()))

    def lost(self, place: str) -> None:
        """The status says it."""


class Bringing:
    """The returns of one job on their way, after its end with `status`; then `over` is called.

    Errors are put into `status`. `receiver` is told of each job that sends them; between two of them this stands in
    their place.
    """

    over = True  # it does not rest between two tries

    def __init__(
        self,
        batch: Batch,
        stage: Staging,
        spawn: Spawn,
        status: Status,
        receiver: Receiver,
        at: At,
        over: Callable[[], None],
    ) -> None:
        self._batch, self._stage, self._spawn = batch, stage, spawn
        self._status, self._receiver, self._at, self._over = status, receiver, at, over
        self._tries = 0
        self._place = stage.place  # directory there, as the first job that sends them has told

    def begin(self) -> None:
        """Start a job that sends them."""
        self._tries += 1
        taking = self._taking = self._stage.taking()
        taking.place = self._place
        try:
            taking.begin()
        except OSError as error:
            taking.failure = str(error)
            self._end()
            return
        sender = self._stage.sender(self._spawn, self._status)
        job = self._batch.start(sender, on_output=self._written, on_exit=self._sent, services=taking.services)
        job.limit(taking.patience, taking.heard)
        self._job = job
        self._receiver.sent(job)

    def _written(self, stream: int, data: memoryview) -> int | None:
        return self._receiver.write(data) if stream == 2 else None

    def _sent(self, status: Status) -> None:
        # A host that did not begin to send them was slow to be reached, and may be there at the next try.
        self._taking.late = self._job.overdue and self._job.pid > 0
        self._taking.end(status)
        self._place = self._taking.place
        if self._taking.is_cut and self._tries < self._stage.tries and self._receiver.wanted:
            self.over = False
            self._receiver.sent(self)
            self._at(time.monotonic() + pause_of_returns(self._tries), self._rested)
        else:
            self._end()

    def _rested(self) -> None:
        if self.over:
            return
        self.over = True
        if self._receiver.wanted:
            self._taking.close()
            self.begin()
        else:
            self._end()

    def abandon(self) -> None:
        """Wait no longer for the next try: they have not come."""
        self._at(time.monotonic(), self._rested)

    def go_on(self) -> None:
        """Leave them to the next process, which asks for them: `over` is not called."""
        self.over = True
        self._taking.close()

    def _end(self) -> None:
        taking, status = self._taking, self._status
        taking.close()
        self._stage.brought(taking, status)
        if status.state == "lost" or taking.beaten:
            self._receiver.lost(taking.place)
        if line := taking.note(status.host):
            self._receiver.say(line)
        self._over()


def let_go(answers: Services, held: list[int]) -> None:
    """Close what was made for a job."""
    answers.close()
    for fd in held:
        os.close(fd)
