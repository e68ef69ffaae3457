"""Items as a batch takes them: one by one, when there is room, and without waiting for those that are not there yet."""

from __future__ import annotations

import select

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from quine.fanout.input.items import Item, Items
    from transport.client.batch import Batch

    Made = TypeVar("Made")


class Intake:
    """`exhausted`: there are no more items; because of a `fault`, perhaps."""

    def __init__(self, items: Items, batch: Batch) -> None:
        self._source = items
        self._items: Iterator[Item | None] = iter(items)
        self._batch = batch
        self._waits = False
        self.exhausted = False
        self.fault: Exception | None = None

    def next(self, make: Callable[[Item], Made]) -> Made | None:
        """Return what `make` makes of the next item; None if there is none now. The poll of the batch wakes for it."""
        if not self.exhausted:
            try:
                item = next(self._items)
                if item is None:
                    self._wait(True)
                    return None
                return make(item)
            except StopIteration:
                self.exhausted = True
            except Exception as error:
                self.fault, self.exhausted = error, True
        self.close()
        return None

    def close(self) -> None:
        """Wait for no more input."""
        self._wait(False)

    def _wait(self, waits: bool) -> None:
        if self._source.fd < 0 or waits == self._waits:
            return
        self._waits = waits
        if waits:
            self._batch.watch(self._source.fd, select.POLLIN, lambda _: self._wait(False))
        else:
            self._batch.unwatch(self._source.fd)
