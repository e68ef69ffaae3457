"""An SFTP session for blocking callers: an event loop in its own thread, and failures as OSError.

Laws
1. Host keys are checked as everywhere (transport/carrier/ssh/connect.py): the same connection, the same files, no
   switch.
2. The session opens on first use, and again after it broke. A forked process opens its own.
3. A change whose answer was lost is OutcomeUnknown. A broken connection is not said to have refused it.
4. Version 3 says "failure" for EEXIST and for ENOSPC. The caller of a failed request looks up which one it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from quine.files.api import OutcomeUnknown, error
from transport.carrier.dialer import SshTarget, unheard
from transport.carrier.timeouts import timeout
from transport.errors import Unreachable

CONNECT = 60.0  # seconds, including the handshakes of jumps and retries
T = TypeVar("T")

# Codes of the protocol, version 3. Every other error is a FAILURE.
NO_SUCH_FILE, DENIED, FAILURE, BAD_MESSAGE, NO_CONNECTION, LOST, UNSUPPORTED = 2, 3, 4, 5, 6, 7, 8
_ERRNO = {
    NO_SUCH_FILE: errno.ENOENT,
    DENIED: errno.EACCES,
    BAD_MESSAGE: errno.EINVAL,
    UNSUPPORTED: errno.ENOTSUP,
    11: errno.EEXIST,
    14: errno.ENOSPC,
    15: errno.EDQUOT,
    18: errno.ENOTEMPTY,
    19: errno.ENOTDIR,
    21: errno.ELOOP,
    24: errno.EISDIR,
}


class _Repeated(logging.Filter):
    """Leaves out what asyncio warns of at each further write to a connection that broke: the callers have an error."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "socket.send() raised exception."


logging.getLogger("asyncio").addFilter(_Repeated())


class Broken(OSError):
    """The connection is gone, and what it was asked for may have been done."""


def code_of(fault: BaseException) -> int:
    """Return the error code of the protocol; 0 for any other exception."""
    return getattr(fault, "code", 0)


class Session:
    """Blocking calls, by any number of threads."""

    def __init__(self, target: SshTarget) -> None:
        self.target = target
        self._start()
        os.register_at_fork(after_in_child=self._forked)

    def _start(self) -> None:
        self._guard = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._opening: asyncio.Lock | None = None
        self._client: Any = None
        self._connections: list[Any] = []

    def _forked(self) -> None:
        # Kept: a collected object would close itself, and these connections are the parent's.
        self._parents = (self._loop, self._client, self._connections)
        self._start()

    def run(
        self,
        act: Callable[[Any], Coroutine[Any, Any, T]],
        path: str,
        again: bool = True,
        changes: bool = False,
    ) -> T:
        """Run `act(client)` in the loop. `again`: repeat it once if the session broke; it must be safe to repeat.

        `changes`: it changes names or attributes, so if the session broke the outcome is not known.
        """
        loop = self._running()
        future = asyncio.run_coroutine_threadsafe(self._act(act, path, again), loop)
        try:
            return future.result()
        except Broken as broken:
            if changes:
                text = f"{broken.strerror}; {OutcomeUnknown.TEXT}"
                raise OutcomeUnknown(broken.errno, text, path) from None
            raise
        except BaseException:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._guard:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._loop.set_exception_handler(_unheard)
                self._opening = asyncio.Lock()
                self._thread = threading.Thread(target=self._loop.run_forever, name="quine-sftp", daemon=True)
                self._thread.start()
            return self._loop

    async def _act(self, act: Callable[[Any], Coroutine[Any, Any, T]], path: str, again: bool) -> T:
        try:
            return await self._said(act, path)
        except Broken:
            if not again:
                raise
            return await self._said(act, path)

    async def _said(self, act: Callable[[Any], Coroutine[Any, Any, T]], path: str) -> T:
        client = await self._opened(path)
        try:
            return await act(client)
        except Exception as fault:
            raise await self._fault(fault, client, path) from None

    def _say(self, text: str) -> None:
        from quine.base.errors import say

        say(f"quine: {self.target.name}: {text}\n")

    async def _opened(self, path: str) -> Any:
        from transport.carrier.ssh import connect

        assert self._opening is not None
        async with self._opening:
            if self._client is None:
                try:
                    async with timeout(CONNECT):
                        self._client, self._connections = await connect.files(self.target, unheard, self._say)
                except TimeoutError:
                    text = f"{self.target.name}: no answer in {CONNECT:.0f} s"
                    raise OSError(errno.EHOSTUNREACH, text, path) from None
                except Unreachable as fault:
                    hint = f" ({fault.hint})" if fault.hint else ""
                    raise OSError(errno.EHOSTUNREACH, f"{self.target.name}: {fault}{hint}", path) from None
            return self._client

    async def _fault(self, fault: Exception, client: Any, path: str) -> Exception:
        """Return the exception to raise for `fault`; after a broken connection drop the client."""
        code = getattr(fault, "code", None)
        gone = isinstance(fault, (ConnectionError, asyncio.IncompleteReadError)) or (
            type(fault).__module__.startswith("asyncssh") and not type(fault).__name__.startswith("SFTP")
        )
        if gone or (code in (NO_CONNECTION, LOST) and type(fault).__name__.startswith("SFTP")):
            if self._client is client:
                await self._drop()
            return Broken(errno.EIO, f"the connection to {self.target.name} broke", path)
        if isinstance(fault, OSError) or not isinstance(code, int):
            return fault
        if code in _ERRNO:
            return error(_ERRNO[code], path)
        return OSError(errno.EIO, f"{self.target.name} refuses: {str(fault)[:200].lower()}", path)

    async def _drop(self) -> None:
        client, self._client = self._client, None
        connections, self._connections = self._connections, []
        if client is not None:
            client.exit()
        for connection in reversed(connections):
            connection.abort()
        for connection in reversed(connections):
            with contextlib.suppress(Exception):  # broken already
                await connection.wait_closed()

    def close(self) -> None:
        with self._guard:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        with contextlib.suppress(Exception):  # a connection that hangs ends with the process
            asyncio.run_coroutine_threadsafe(self._drop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Report the exception of a task without a waiter. Connection errors are left out: callers have got them."""
    fault = context.get("exception")
    if not isinstance(fault, OSError) and not type(fault).__module__.startswith("asyncssh"):
        loop.default_exception_handler(context)
