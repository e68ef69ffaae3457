"""The threads of an executor: one that drives its jobs, and one for the functions of callers.

Laws
1. Each of them lives while it has work and no longer. None is a daemon, so the interpreter's exit waits for both.
2. A handler of a signal may call `close` and `join` in the middle of any other call of its thread. `join` waits for
   nothing then: the threads may need the lock that this call holds until the handler has returned.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from typing import Any

    from quine.python.crew import Crew

    Callback = Callable[[Future[Any]], object]

log = logging.getLogger("concurrent.futures")


def held(lock: threading.Condition) -> bool:
    """Return whether this thread is in a section of the lock already."""
    try:
        lock.notify(0)
    except RuntimeError:
        return False
    return True


class Loop:
    """Drives a crew. All other threads reach the crew by `call`."""

    def __init__(self, make: Callable[[], Crew]) -> None:
        self._make = make
        self._crew: Crew | None = make()
        self._owner = os.getpid()
        self._lock = threading.Condition()  # of an RLock: the garbage collector may call `close` anywhere
        self._calls: deque[tuple[Callable[[Crew], None], Callable[[Exception], None]]] = deque()
        self._thread: threading.Thread | None = None  # the last one
        self._active = False  # it takes calls
        self._closed = False
        self.callbacks = Callbacks()

    def call(
        self,
        function: Callable[[Crew], None],
        last: bool = False,
        fail: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        """Have `function` called with the crew, in its thread; with `last` even after `close`. Raises RuntimeError.

        If there is no crew and none can be made, `fail` is called with the reason in its place.
        """
        if self._owner != os.getpid():
            raise RuntimeError("this executor belongs to the process that this one was forked from")
        with self._lock:
            if self._closed and not last:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._active:
                if self._crew:
                    self._crew.wake()
            elif last:
                return  # nothing is under way
            else:
                self._active = True  # first: `close` may come from a handler of a signal
                try:
                    self._thread = threading.Thread(target=self._run, name="quine.Executor")
                    self._thread.start()  # it waits for the lock
                except BaseException:
                    self._active = False
                    if self._closed and self._crew:
                        self._crew.close()
                    raise
            self._calls.append((function, fail))

    def close(self) -> None:
        """Take no more calls. The connection is closed once nothing is under way."""
        if self._owner != os.getpid():
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                if not self._active and self._crew:
                    self._crew.close()

    def join(self) -> None:
        """Wait until nothing is under way, and all functions of callers have returned: but see law 2."""
        if held(self._lock) or self.callbacks.held:
            return
        for thread in (self._thread, self.callbacks.thread):
            if thread and thread.ident and thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        self._try(lambda crew: crew.look())
        while self._more():
            self._try(self._turn)

    def _try(self, turn: Callable[[Crew], None]) -> None:
        try:
            with self._lock:
                crew = self._crew = self._crew or self._make()
            turn(crew)
        except Exception as error:
            self._fail(error)

    def _turn(self, crew: Crew) -> None:
        while self._calls:
            self._calls.popleft()[0](crew)
        crew.turn()

    def _more(self) -> bool:
        with self._lock:
            if self._calls or (self._crew and not self._crew.idle):
                return True
            self._active = False
            if self._closed and self._crew:
                self._crew.close()
            return False

    def _fail(self, error: Exception) -> None:
        """A turn has failed: its jobs have ended with it, and the next turn makes another crew.

        Not this one: where descriptors have run out, a new crew needs those of the failed one. If a crew cannot be
        made, the calls that wait for it fail.
        """
        with self._lock:
            failed, self._crew = self._crew, None
        if failed:
            failed.fail(error)
        else:
            while self._calls:
                self._calls.popleft()[1](error)


class Callbacks:
    """Calls functions one after the other, each with its future.

    Its thread is started with the first function that is expected: at the exit of an interpreter none can be.
    """

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._expected = 0  # functions that were not called yet
        self._queue: deque[tuple[Callback, Future[Any]]] = deque()
        self.thread: threading.Thread | None = None  # the last one

    @property
    def held(self) -> bool:
        return held(self._change)

    def expect(self) -> None:
        """A function will be given to `call`."""
        with self._change:
            if not self._expected:
                self.thread = threading.Thread(target=self._run, name="quine.Executor callbacks")
                self.thread.start()  # it waits for the lock
            self._expected += 1

    def call(self, function: Callback, future: Future[Any]) -> None:
        with self._change:
            self._queue.append((function, future))
            self._change.notify()

    def _run(self) -> None:
        called = 0
        while True:
            with self._change:
                self._expected -= called
                if not self._expected:
                    return
                while not self._queue:
                    self._change.wait()
                function, future = self._queue.popleft()
            try:
                function(future)
            except BaseException:  # as concurrent.futures has it: logged, and no concern of others
                log.exception("exception calling callback for %r", future)
            del function, future
            called = 1
