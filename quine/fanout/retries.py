"""Items that are tried again: which, and after how long a pause. Those that could not be started yet wait here, too."""

from __future__ import annotations

import time

from quine.base import backoff
from quine.fanout.outcome import DENIED, DONE, LOST, NEVER, STOPPABLE
from transport.lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.fanout.options import Options
    from quine.fanout.tasks import Task
    from quine.fanout.timers import Timers
    from transport.status import Status

# Failed starts of an item, after which it has its end: nothing ran, so --retries does not count them.
STARTS = 4
# Seconds before a host that failed to start an item is tried again with it.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0


class Retries:
    """`ready` are those that may be started now, the first one first."""

    def __init__(self, options: Options, timers: Timers) -> None:
        """Raises Misconfigured."""
        self._most = options.number("retries", 1, 1)
        self._idempotent = options.spawn.idempotent
        self._timers = timers
        self.ready: deque[Task] = deque()
        self._resting: dict[Task, None] = {}

    def __len__(self) -> int:
        return len(self.ready) + len(self._resting)

    def may(self, task: Task, status: Status, kind: str) -> bool:
        """Whether an item whose try has ended so is tried again."""
        if kind in (DONE, DENIED):
            return False
        if task.cut_short and kind in STOPPABLE:
            return True
        if kind == NEVER:
            # a fault of no host is the same at the next try
            return bool(status.host) and task.unstarted < STARTS
        return task.tries - task.unstarted < self._most and (kind != LOST or self._idempotent)

    def add(self, task: Task, host: str, kind: str) -> None:
        task.adopted = None  # the next try is ours, whatever becomes of its start
        failed = task.failed_on.count(host)
        task.failed_on.append(host)
        if kind != NEVER or not failed:
            self.ready.append(task)
            return
        self._resting[task] = None
        pause = backoff.pause(failed, FIRST_PAUSE, LONGEST_PAUSE, jitter=(0.5, 1))
        self._timers.at(time.monotonic() + pause, lambda: self._rested(task))

    def _rested(self, task: Task) -> None:
        if self._resting.pop(task, False) is None:
            self.ready.append(task)

    def drop(self) -> list[Task]:
        """Return all of them, of which none is tried again."""
        tasks = [*self.ready, *self._resting]
        self.ready.clear()
        self._resting.clear()
        return tasks
