"""The answer of a host to a question that a job puts there: the stdout of that job, within bounds of size and time."""

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
    seconds: float,
    on_note: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Start a job; `answered` is called with its status and its stdout.

    That is None if it has more than `most` bytes, those of stderr counted: it may never end, so that its job is ended,
    and its end is lost. So is the end of a job that takes longer than `seconds`, as `BatchJob.limit` counts them.
    """
    answer = bytearray()
    left = most

    def on_output(stream: int, data: memoryview) -> None:
        nonlocal left
        left -= len(data)
        if left < 0:
            job.abandon()
        elif stream == 1:
            answer.extend(data)

    def on_exit(status: Status) -> None:
        answered(status, bytes(answer) if left >= 0 else None)

    job = batch.start(spawn, on_output=on_output, on_exit=on_exit, on_note=on_note)
    job.limit(seconds)
