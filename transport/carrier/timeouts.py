"""`timeout`: asyncio.timeout, also on a Python that has none (before 3.11)."""

from __future__ import annotations

import asyncio

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["timeout"]


class Timeout:
    """Cancel the task within after `seconds`, never if None, and raise TimeoutError in place of that cancellation.

    A task counts no cancellations here. If another one comes in the same turn of the loop in which the time is over,
    TimeoutError is raised for both.
    """

    def __init__(self, seconds: float | None) -> None:
        self._when = None if seconds is None else asyncio.get_running_loop().time() + seconds
        self._task: asyncio.Task[object] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._over = False

    async def __aenter__(self) -> Timeout:
        self._task = asyncio.current_task()
        self.reschedule(self._when)
        return self

    def when(self) -> float | None:
        """Return the time of the loop at which the task is cancelled."""
        return self._when

    def reschedule(self, when: float | None) -> None:
        assert self._task
        if self._timer:
            self._timer.cancel()
        self._when = when
        self._timer = None if when is None else self._task.get_loop().call_at(when, self._end, self._task)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer:
            self._timer.cancel()
        if self._over and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _end(self, task: asyncio.Task[object]) -> None:
        self._over = True
        task.cancel()


timeout = getattr(asyncio, "timeout", Timeout)
