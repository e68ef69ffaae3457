"""Items as a batch takes them: one by one, when there is room, and without waiting for those that are not there yet.

Laws
1. Items that have their ends from a run before are left out, at most SKIPPED in one turn: a signal waits for its end.
2. Items are read on for their number, where a view is shown: at most COUNTED of them, or some LARGEST bytes, are held.
3. A job that was found holds its slot until its item is read: its output and its stdin wait for that. So items are read
   ahead of their room then, one in a turn. At most AHEAD of them, or some LARGEST bytes, are held in memory.
"""

from __future__ import annotations

import select

from transport.lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from quine.fanout.input.items import Item, Items
    from quine.fanout.progress import Progress
    from quine.fanout.tasks import Task
    from transport.client.batch import Batch

SKIPPED = 256
AHEAD, COUNTED = 1 << 16, 10_000
LARGEST = 64 << 20


class Intake:
    """`exhausted`: there are no more items; because of a `fault`, perhaps."""

    def __init__(
        self,
        items: Items,
        batch: Batch,
        make: Callable[[Item], Task],
        leave_out: Callable[[Task], bool],
        at: Callable[[float, Callable[[], None]], None],
        counts: bool = False,
    ) -> None:
        """`leave_out` is called once with each, and tells whether it is not to be started. `at` calls at a time.

        `counts`: items are read on for their number.
        """
        self._source = items
        self._items: Iterator[Item | None] = iter(items)
        self._batch, self._make, self._leave_out, self._at = batch, make, leave_out, at
        self._waits, self._counts = False, counts
        self.ahead: deque[Task] = deque()
        self._size = 0  # bytes of those
        self.exhausted = False
        self.fault: Exception | None = None

    def next(self) -> Task | None:
        """Return the next item to be started; None if none has come yet, or no more come. A new one ends the poll."""
        if not self.ahead:
            return self._unstarted()
        task = self.ahead.popleft()
        self._size -= task.item.size
        return task

    def read_ahead(self) -> None:
        """Read one more, to be started later."""
        if not self._is_full and (task := self._unstarted()):
            self.ahead.append(task)
            self._size += task.item.size
            self._at(0.0, lambda: None)

    def count(self, progress: Progress) -> None:
        """Set the number of items once it is known."""
        if self.exhausted and not self.fault and progress.total is None:
            progress.total = progress.read
        elif self._counts and not self.exhausted and len(self.ahead) < COUNTED:
            self.read_ahead()

    @property
    def reads_no_more(self) -> bool:
        """Whether no items are read behind those that were read ahead, as long as none of these has been started."""
        return self.exhausted or self._is_full

    @property
    def _is_full(self) -> bool:
        return len(self.ahead) >= AHEAD or self._size >= LARGEST

    @property
    def is_over(self) -> bool:
        return self.exhausted and not self.ahead

    def _unstarted(self) -> Task | None:
        for _ in range(SKIPPED):
            task = self._read()
            if task is None or not self._leave_out(task):
                return task
        self._at(0.0, lambda: None)  # the next turn is at once
        return None

    def _read(self) -> Task | None:
        if not self.exhausted:
            try:
                item = next(self._items)
                if item is None:
                    self._wait(True)
                    return None
                return self._make(item)
            except StopIteration:
                self.exhausted = True
            except Exception as error:
                self.fault, self.exhausted = error, True
        self.close()
        return None

    def close(self) -> None:
        """Wait for no more input."""
        self._counts = False
        self._wait(False)

    def _wait(self, waits: bool) -> None:
        if self._source.fd < 0 or waits == self._waits:
            return
        self._waits = waits
        if waits:
            self._batch.watch(self._source.fd, select.POLLIN, lambda _: self._wait(False))
        else:
            self._batch.unwatch(self._source.fd)
