"""A job of a batch with its files: they are laid out before it starts, and its returns come back after its end.

Laws
1. The functions are those of `Batch.start`, and are called from `Batch.turn`. `on_exit` comes once, after the returns.
2. Signals are for the job itself. Once it has ended, its returns are on their way, and only `abandon` gives them up.
"""

from __future__ import annotations

import os
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from quine.files.select import Services
    from quine.staging.caller_side import Staging
    from transport.client.batch import Batch, BatchJob
    from transport.client.batch_job import Input
    from transport.spawn import Spawn
    from transport.status import Status


class StagedJob:
    """One job, and the job that sends its returns. `held` are descriptors that are closed after its end."""

    def __init__(
        self,
        batch: Batch,
        spawn: Spawn,
        answers: Services,
        stage: Staging | None,
        stdin: bytes | int | Input | None,
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
        self._on_output = on_output
        self._on_started = on_started
        self._on_exit = on_exit
        self._held = held or []
        self.bringing = False  # the job itself has ended
        if stage:
            spawn = stage.dressed(spawn, answers)
            stage.begin()
        self._spawn = spawn
        self.job = batch.start(spawn, stdin, on_output, self._started, self._ended, on_note, answers)

    def signal(self, number: int) -> None:
        if not self.bringing:
            self.job.signal(number)

    def abandon(self) -> None:
        self.job.abandon()

    def _say(self, line: str) -> None:
        self._on_output(2, memoryview(line.encode()))

    def _started(self, _: int, host: str) -> None:
        self._answers.placed(host)
        self._on_started(host)

    def _ended(self, status: Status) -> None:
        let_go(self._answers, self._held)
        stage = self._stage
        if stage and stage.brings(status := stage.judged(status)):
            self.bringing = True
            more = self._say, partial(self._on_exit, status)
            self.job = bring(self._batch, stage, self._spawn, status, self._on_output, *more) or self.job
        else:
            self._on_exit(status)


def bring(
    batch: Batch,
    stage: Staging,
    spawn: Spawn,
    status: Status,
    on_output: Callable[[int, memoryview], int | None],
    say: Callable[[str], None],
    over: Callable[[], None],
) -> BatchJob | None:
    """Bring the returns of a job that has ended with `status`, then call `over`; errors are put into `status`.

    `say` is given the line about what was left out. Return the job that sends them. None: there is none, and `over` was
    called.
    """
    taking = stage.taking()

    def brought() -> None:
        taking.close()
        stage.brought(taking, status)
        if line := taking.note(status.host):
            say(line)
        over()

    def on_exit(sent: Status) -> None:
        taking.end(sent)
        brought()

    def on_stderr(stream: int, data: memoryview) -> int | None:
        return on_output(stream, data) if stream == 2 else None

    try:
        taking.begin()
    except OSError as error:
        taking.failure = str(error)
        brought()
        return None
    sender = stage.sender(spawn, status)
    return batch.start(sender, on_output=on_stderr, on_exit=on_exit, services=taking.services)


def let_go(answers: Services, held: list[int]) -> None:
    """Close what was made for a job."""
    answers.close()
    for fd in held:
        os.close(fd)
