"""The answer of a host to a question that a job puts there: the stdout of that job, up to a bound."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from transport.client.batch import Batch
    from transport.spawn import Spawn
    from transport.status import Status


def ask(
    batch: Batch,
    spawn: Spawn,
    most: int,
    answered: Callable[[Status, bytes | None], None],
    on_note: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Start a job; `answered` is called with its status and its stdout.

    That is None if it has more than `most` bytes: it may never end, so that its job is ended, and its end is lost.
    """
    answer = bytearray()

    def on_output(stream: int, data: memoryview) -> None:
        if stream == 1:
            answer.extend(data[: most + 1 - len(answer)])
        if len(answer) > most:
            job.abandon()

    def on_exit(status: Status) -> None:
        answered(status, bytes(answer) if len(answer) <= most else None)

    job = batch.start(spawn, on_output=on_output, on_exit=on_exit, on_note=on_note)
