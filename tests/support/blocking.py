"""An HTTP guest for a caller that blocks: its event loop runs in a thread of its own.

A forked child makes a loop, a thread and connections of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from quine.base.messages import Reply, Request, unheard

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from quine.providers.http import HttpGuest


class BlockingGuest:
    def __init__(self, make: Callable[[], HttpGuest]) -> None:
        self.note: Callable[[str], None] = unheard
        self._make = make
        self._guest = make()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()

    def infer(self, request: Request) -> Reply:
        reply: Reply = self._run(lambda: self._guest.infer(request, self.note))
        return reply

    def close(self) -> None:
        if self._loop is None or self._thread is None or self._owner != os.getpid():
            return
        self._run(self._guest.close)
        self._run(self._loop.shutdown_asyncgens)  # as asyncio.run does at its end
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._loop = None

    def _run(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        if self._owner != os.getpid():
            self._guest, self._loop, self._owner = self._make(), None, os.getpid()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
            self._thread.start()
        future: Future[Any] = asyncio.run_coroutine_threadsafe(make(), self._loop)
        try:
            return future.result()
        except BaseException:  # a signal's: the request is closed before it goes on
            future.cancel()
            raise
