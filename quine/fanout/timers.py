"""Calls that are due at a time, and the time that each job may take.

Law: no clock: the time is given.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort

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
        # Starts of tries that run, numbered, in order: the first one is the first to run out of time. One that was
        # adopted began long ago. No heap: most end in time, from its middle.
        self._starts: list[tuple[float, int, Task]] = []
        self._running: dict[Task, tuple[float, int, Task]] = {}
        self._count = 0

    @property
    def _most(self) -> float:
        if not self._share:
            return self._seconds or float("inf")
        median = self._median.value
        return float("inf") if median is None else self._share * median

    def started(self, task: Task) -> None:
        if self._seconds or self._share:
            self.ended(task)
            self._count += 1
            self._running[task] = start = task.began, self._count, task
            insort(self._starts, start)

    def ended(self, task: Task) -> None:
        if start := self._running.pop(task, None):
            del self._starts[bisect_left(self._starts, start)]

    @property
    def due(self) -> float:
        return self._starts[0][0] + self._most if self._starts else float("inf")

    def late(self, now: float) -> Iterator[Task]:
        """Yield the tasks whose time is over, each once."""
        while self.due <= now:
            task = self._starts[0][2]
            self.ended(task)
            yield task
