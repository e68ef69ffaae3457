"""The items under way: their numbers {%}, and the ways in which all of them are ended.

Laws
1. An item that waits for another one is ended before it, so none is started meanwhile.
2. A job whose time is over may have its end behind output that nobody reads: it is waited for, until the batch ends.
3. Agents whose tree has no time left end by themselves. Those that do not are ended as by --timeout.
4. If the end of a job is not heard of in time, the next run asks its host for it, provided that the host keeps the job.
   Any other job is not waited for any longer.
"""

from __future__ import annotations

import heapq
import time

from quine.fanout.tasks import GRACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.fanout.messages import Messages
    from quine.fanout.progress import Progress
    from quine.fanout.starter import Starter
    from quine.fanout.tasks import Task
    from quine.fanout.timers import Timeout


class UnderWay:
    """The tasks whose tries have no end yet, in the order of their starts. `at` calls a function at a time."""

    def __init__(
        self,
        starter: Starter,
        progress: Progress,
        timeout: Timeout,
        messages: Messages,
        at: Callable[[float, Callable[[], None]], None],
    ) -> None:
        self._starter, self._progress, self._timeout, self._messages = starter, progress, timeout, messages
        self._at = at
        self._tasks: dict[Task, None] = {}
        self._places = Places()
        self._ends = False  # all of them

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: Task) -> bool:
        return task in self._tasks

    def __iter__(self) -> Iterator[Task]:
        """From the last one to the first."""
        return reversed(list(self._tasks))

    def take(self, task: Task) -> None:
        """A try begins."""
        task.item.slot = self._places.take()
        self._tasks[task] = None

    def give(self, task: Task) -> None:
        """A try has its end, or is looked for."""
        del self._tasks[task]
        self._timeout.ended(task)
        self._places.give(task.item.slot)
        if task.running:
            self._progress.stopped(task.entry.host)

    def time_out(self, task: Task) -> None:
        """The time of a try is over."""
        if not task.settled:
            task.timed_out = True
            task.end(self._at, self._tasks, self._late)

    def keep_deadline(self) -> None:
        """End the agents that outlive the deadline of their tree, which may be raised: it is asked for again."""
        left = self._starter.left()
        if left is None:
            return
        if left + GRACE <= 0:
            for task in self:
                self.time_out(task)
            left = 0.0  # others may still be on their way
        self._at(time.monotonic() + left + GRACE, self.keep_deadline)

    def _late(self, task: Task) -> None:
        """It was killed, and its end is not heard of."""
        job = task.job
        if job and task.output and task.output.awaits_reader and not self._ends:
            again = time.monotonic() + GRACE
            self._at(again, lambda: self._late(task) if task in self._tasks and task.job is job else None)
        elif job:
            job.abandon()

    def withdraw(self) -> None:
        """Have back what has not begun."""
        for task in self:
            task.withdraw()

    def end_all(self) -> None:
        self._ends = True
        for task in self:
            self.end(task)

    def end(self, task: Task) -> None:
        self._starter.end(task, self._at, self._tasks, self._give_up)

    def abandon(self) -> None:
        """Wait for nothing any longer."""
        for task in self:
            self._give_up(task)

    def leave_kept(self) -> None:
        """Leave the jobs that their hosts keep to --resume."""
        for task in self:
            broken = task.output and task.output.broken
            if task.job and task.job is task.kept and not (task.settled or broken):
                self.leave(task)

    def leave(self, task: Task) -> None:
        """Leave a job to --resume, which asks for its end; of one that has ended, the files that are on their way."""
        job = task.after if task.over else task.job
        if job and not job.over:
            job.go_on()
            self.give(task)
            task.leave()

    def give_up_files(self, now: float) -> None:
        """Files that are being brought or removed for items that have ended have as much time as jobs have to end."""
        self._at(now + 2 * GRACE, self._files_late)

    def _files_late(self) -> None:
        for task in self:
            if task.over:
                self._give_up(task)

    def _give_up(self, task: Task) -> None:
        """The end of a job is not waited for any longer, or its files are not."""
        if not task.kept or task.job is not task.kept:
            task.abandon()
            return
        if task.over or (task.job and not task.job.over):
            self._messages.left_behind(task)
        self.leave(task)


class Places:
    """The numbers {%} of the items under way: each has the lowest that is free."""

    def __init__(self) -> None:
        self._free: list[int] = []  # a heap, of those up to _most
        self._most = 0

    def take(self) -> int:
        if not self._free:
            self._most += 1
            return self._most
        return heapq.heappop(self._free)

    def give(self, number: int) -> None:
        heapq.heappush(self._free, number)
