"""Payment of inferences from the ledgers of many trees, without blocking: one tree cannot stop the others.

Laws
1. A call of a ledger runs in a thread. Another process, which may be a stopped one, can hold the lock of its numbers,
   and a command can lock so many of its bytes that each call takes a second. Each tree makes one call at a time,
   so such a ledger takes one thread.
2. A call that was begun is finished, whatever becomes of its caller. A reservation whose caller was cancelled is given
   back.
3. Of requests with the same limit of concurrency the first one is served first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

from quine.base.messages import Remaining
from quine.budget.ledger import Ledger, Reservation
from quine.budget.shared_counters import LONGEST, SHORTEST
from quine.providers.metering import Due
from transport.lean import Any

THREADS = 64  # trees whose calls may be under way before others wait for them


def tree_of(ledger: Ledger) -> int:
    """Return the number of the tree that pays by `ledger`: the inode of its counters."""
    return os.fstat(ledger.fd).st_ino


class _Tree:
    def __init__(self) -> None:
        self.users = 0
        self.calling = asyncio.Lock()
        self.freed = asyncio.Event()  # set when an inference was settled here
        self.queues: dict[
            int, asyncio.Lock
        ] = {}  # by limit of concurrency: the first one looks, the others wait


class Payments:
    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "ledger")
        self._trees: dict[int, _Tree] = {}
        self._unfinished: set[asyncio.Task[Any]] = set()

    async def reserve(self, ledger: Ledger, concurrent: int, due: Due) -> Reservation:
        """Reserve one inference, and wait until the tree can pay it. Raises Spent or Failure."""
        async with self._tree(ledger) as tree, tree.queues.setdefault(concurrent, asyncio.Lock()):
            pause = SHORTEST
            while True:
                tree.freed.clear()
                arguments = (concurrent, due.prompt, due.money, due.within)
                hold: Reservation | None = await self._call(
                    ledger, ledger.try_reserve, *arguments, undo=lambda hold: _give_back(ledger, hold)
                )
                if hold is not None:
                    return hold
                # The end of an inference elsewhere is not told: it has to be looked for.
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(tree.freed.wait(), pause)
                pause = min(2 * pause, LONGEST)

    async def settle(
        self, ledger: Ledger, hold: Reservation, tokens: int, cost: float
    ) -> tuple[Remaining, Remaining]:
        """Record the usage; return the remaining amounts: less all reservations, less only the certain part of them."""

        def settled() -> tuple[Remaining, Remaining]:
            ledger.settle(hold, tokens, cost)
            return ledger.left(), ledger.left(surely=True)

        async with self._tree(ledger) as tree:
            try:
                amounts: tuple[Remaining, Remaining] = await self._call(ledger, settled)
                return amounts
            finally:
                tree.freed.set()

    @property
    def trees(self) -> list[int]:
        return list(self._trees)

    async def close(self) -> None:
        """Finish what was begun."""
        while self._unfinished:
            await asyncio.wait(self._unfinished)
        self._pool.shutdown(wait=False)

    @contextlib.asynccontextmanager
    async def _tree(self, ledger: Ledger) -> AsyncIterator[_Tree]:
        name = tree_of(ledger)
        tree = self._trees.setdefault(name, _Tree())
        tree.users += 1
        try:
            yield tree
        finally:
            tree.users -= 1
            if not tree.users:
                del self._trees[name]

    async def _call(
        self,
        ledger: Ledger,
        function: Callable[..., Any],
        *arguments: Any,
        undo: Callable[[Any], None] | None = None,
    ) -> Any:
        """Call `function` in a thread. If the caller was cancelled, `undo` gets its result."""

        # These outlive a caller that is cancelled, and so does the tree: the next one must not call beside them.
        async def in_turn() -> Any:
            async with self._tree(ledger) as same, same.calling:
                return await asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

        async def undone() -> None:
            async with self._tree(ledger) as same:
                if undo is not None and (result := await task) is not None:
                    async with same.calling:
                        await asyncio.get_running_loop().run_in_executor(self._pool, undo, result)

        task = self._begun(in_turn())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._begun(undone())
            raise

    def _begun(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._unfinished.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._unfinished.discard(task)
        if not task.cancelled():
            task.exception()  # looked at: its caller may be gone


def _give_back(ledger: Ledger, hold: Reservation) -> None:
    ledger.settle(hold, 0)
