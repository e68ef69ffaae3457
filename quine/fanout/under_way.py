"""The items under way: their slots {%}, and the ways in which all of them are ended.

Laws
1. An item that waits for another one is ended before it, so none is started meanwhile.
2. A job whose time is over may have its end behind output that nobody reads: it is waited for, until the batch ends.
3. Agents whose tree has no time left end by themselves. Those that do not are ended as by --timeout.
4. If the end of a job is not heard of in time, the next run asks its host for it, provided that the host keeps the job.
   Any other job is not waited for any longer.
5. No two jobs that run have one slot, also where one of them was started by the run before. It keeps its slot: its
   command has that in its words.
"""

from __future__ import annotations

import time
from bisect import insort
from collections import Counter

from quine.fanout.tasks import GRACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

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
        self.most = 0  # tasks at one time, by -P; 0: any number
        self.held: Callable[[], Collection[int]] = (
            tuple  # returns the slots of jobs that run and are not among them
        )
        self._ends = False  # all of them

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, task: Task) -> bool:
        return task in self._tasks

    def __iter__(self) -> Iterator[Task]:
        """From the last one to the first."""
        return reversed(list(self._tasks))

    def take(self, task: Task) -> None:
        """A try begins, as a job of this run."""
        task.entry.number = task.item.job = 0
        task.item.slot = self._places.take_lowest(self.held(), self.most)
        self._tasks[task] = None

    def go_on(self, task: Task) -> None:
        """A try that has begun goes on, with the numbers of its job if they are known."""
        if task.item.slot:
            self._places.take(task.item.slot)
        else:
            task.item.slot = self._places.take_lowest(self.held(), self.most)
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
    """The slots {%} of the items under way: each has the lowest that is free, or the one that its job has already."""

    def __init__(self) -> None:
        self._free: list[int] = []  # sorted, of those up to _most
        self._most = 0
        self._taken: Counter[int] = Counter()

    def take_lowest(self, held: Collection[int] = (), most: int = 0) -> int:
        """Return the lowest that is free, and not `held` unless all up to `most` are."""
        while not (found := next((each for each in self._free if each not in held), 0)):
            if self._free and 0 < most <= self._most:
                found = self._free[0]
                break
            self._most += 1
            if self._most not in self._taken:
                self._free.append(self._most)
        self.take(found)
        return found

    def take(self, number: int) -> None:
        """A job has this one already; two may have it for a while."""
        self._taken[number] += 1
        if number in self._free:
            self._free.remove(number)

    def give(self, number: int) -> None:
        self._taken[number] -= 1
        if not self._taken[number]:
            del self._taken[number]
            if number <= self._most:
                insort(self._free, number)
