"""Calls that are due at a time, and the time that each job may take.

Law: no clock: the time is given.
"""

from __future__ import annotations

import heapq

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.fanout.progress import Median
    from quine.fanout.tasks import Task


class Timers:
    """Functions to be called, each once."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def at(self, when: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, call))

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def due(self) -> float:
        return self._heap[0][0] if self._heap else float("inf")

    def pause(self, now: float, longest: float = float("inf")) -> float | None:
        """Return the seconds until the next one is due, at most `longest`; None if there is none."""
        return min(longest, max(0.0, self._heap[0][0] - now)) if self._heap else None

    def tick(self, now: float) -> None:
        """Call those that are due."""
        while self._heap and self._heap[0][0] <= now:
            heapq.heappop(self._heap)[2]()


class Timeout:
    """--timeout: so many seconds, or so large a share of the median of what is done; 0 and 0: none."""

    def __init__(self, seconds: float, share: float, median: Median) -> None:
        self._seconds = seconds
        self._share = share
        self._median = median
        # tasks whose tries run, by their starts: the first one is the first to run out of time
        self._running: dict[Task, None] = {}

    @property
    def _most(self) -> float:
        if not self._share:
            return self._seconds or float("inf")
        median = self._median.value
        return float("inf") if median is None else self._share * median

    def started(self, task: Task) -> None:
        if self._seconds or self._share:
            last = next(reversed(self._running), task)
            self._running[task] = None
            if task.began < last.began:  # it was adopted, and began long ago
                self._running = dict.fromkeys(sorted(self._running, key=lambda each: each.began))

    def ended(self, task: Task) -> None:
        self._running.pop(task, None)

    @property
    def due(self) -> float:
        return next(iter(self._running)).began + self._most if self._running else float("inf")

    def late(self, now: float) -> Iterator[Task]:
        """Yield the tasks whose time is over, each once."""
        while self.due <= now:
            task = next(iter(self._running))
            del self._running[task]
            yield task
