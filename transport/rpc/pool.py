"""Threads that call functions. concurrent.futures has them too, and loads logging, re and queue: 1.6 MB of each proxy.

Laws
1. A thread is started for a call only if none is idle. There are `most` of them, and a call that finds none waits.
2. No thread keeps its process from ending.
"""

from __future__ import annotations

import _thread

from transport.lean import contextlib, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Threads:
    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = _thread.allocate_lock()
        self._calls: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._idle: list[_thread.LockType] = []  # one for each idle thread, which it waits for
        self._running: list[_thread.LockType] = []  # one for each thread, locked until it ends
        self._over = False

    def submit(self, work: Callable[..., object], /, *args: Any) -> None:
        """Have a thread call `work`, which handles its errors. RuntimeError if this machine has no thread left."""
        with self._lock:
            self._calls.append((work, args))
            if self._idle:
                self._idle.pop().release()
                return
            if len(self._running) >= self._most:
                return
            runs = _thread.allocate_lock()
            runs.acquire()
            self._running.append(runs)
        try:
            _thread.start_new_thread(self._run, (runs,))
        except RuntimeError:
            with self._lock:
                self._running.remove(runs)
                if self._running:  # one of the others takes it
                    return
                with contextlib.suppress(ValueError):
                    self._calls.remove((work, args))
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end, and with `cancel_futures` make none of the calls that wait. `wait` for their end."""
        with self._lock:
            self._over = True
            if cancel_futures:
                self._calls.clear()
            idle, self._idle = self._idle, []
            running = list(self._running)
        for waits in idle:
            waits.release()
        for runs in running if wait else ():
            runs.acquire()
            runs.release()

    def _run(self, runs: _thread.LockType) -> None:
        waits = _thread.allocate_lock()
        waits.acquire()
        while True:
            with self._lock:
                call = self._calls.popleft() if self._calls else None
                if call is None and self._over:
                    self._running.remove(runs)
                    runs.release()
                    return
                if call is None:
                    self._idle.append(waits)
            if call is None:
                waits.acquire()
                continue
            with contextlib.suppress(Exception):
                call[0](*call[1])
            del call  # an idle thread holds no body of a request
