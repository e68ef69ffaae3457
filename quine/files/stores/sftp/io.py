"""Reader and writer of a file over SFTP. The laws are in store.py."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import stat
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from quine.files.api import BLOCK, Entry, Reader, Writer, error, stale
from quine.files.stores.sftp.session import FAILURE, UNSUPPORTED, Session, code_of
from quine.files.stores.spool import MEMORY

IN_FLIGHT = 4  # blocks requested or sent at a time

Opened = Callable[[Any], Coroutine[Any, Any, tuple[Any, Entry]]]


def known(path: str, found: Any) -> Entry:
    mode, mtime = (found.permissions or 0) & 0o777, float(found.mtime or 0)
    if stat.S_ISDIR(found.permissions or 0):
        return Entry(path, "directory", 0, mtime, mode)
    size = found.size or 0
    return Entry(path, "file", size, mtime, mode, f"{found.mtime or 0:x}-{size:x}")


class SftpReader(Reader):
    """Requests up to `IN_FLIGHT` blocks ahead of the caller."""

    def __init__(
        self, session: Session, again: Opened, file: Any, entry: Entry, offset: int, length: int | None
    ) -> None:
        super().__init__(entry, offset, length)
        self._session, self._again, self._file = session, again, file
        self._place, self._end = offset, offset + self.length
        self._ahead: deque[tuple[int, asyncio.Task[bytes]]] = deque()
        self._left = b""

    def data(self, size: int) -> bytes:
        if self._place >= self._end or size <= 0:
            return b""
        if not self._left:
            self._left = self._session.run(self._block, self.entry.path)
            if not self._left:
                raise stale(self.entry.path)
        block, self._left = self._left[:size], self._left[size:]
        self._place += len(block)
        return block

    async def _block(self, client: Any) -> bytes:
        """Return the next block, and request the blocks after it."""
        if self._file is None:
            self._file, now = await self._again(client)
            if now.version != self.entry.version:
                raise stale(self.entry.path)
        try:
            if not self._ahead:
                self._ask(self._place)
            while (
                len(self._ahead) < (1 if MEMORY.is_full else IN_FLIGHT)
                and self._ahead[-1][0] + BLOCK < self._end
            ):
                self._ask(self._ahead[-1][0] + BLOCK)
            block = await self._ahead[0][1]
        except BaseException:
            self._forget()
            self._file = None
            raise
        self._ahead.popleft()
        return block

    def _ask(self, at: int) -> None:
        reading = self._file.read(min(BLOCK, self._end - at), at)
        self._ahead.append((at, asyncio.ensure_future(reading)))

    def _forget(self) -> None:
        while self._ahead:
            task = self._ahead.popleft()[1]
            task.cancel()
            task.add_done_callback(lambda task: task.cancelled() or task.exception())

    def close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return

        async def act(client: Any) -> None:
            self._forget()
            await file.close()

        with contextlib.suppress(OSError):  # a broken connection has closed it
            self._session.run(act, self.entry.path, again=False)


class SftpWriter(Writer):
    """Sends up to `IN_FLIGHT` blocks behind the caller. Holes are never sent."""

    def __init__(
        self,
        session: Session,
        path: str,
        file: Any,
        part: bytes,
        mode: int | None,
        mtime: float | None,
        arrive: Callable[[Any], Coroutine[Any, Any, None]],
    ) -> None:
        self._session, self._path, self._file, self._part = session, path, file, part
        self._mode, self._mtime, self._arrive = mode, mtime, arrive
        self._held = bytearray()
        self._size = 0  # includes `_held`
        self._sent = 0
        self._behind: deque[asyncio.Task[int]] = deque()
        self._done = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._held += data
        self._size += len(data)
        if len(self._held) >= BLOCK:
            self._session.run(self._flush, self._path, again=False)

    def hole(self, length: int) -> None:
        if self._held:
            self._session.run(self._flush, self._path, again=False)
        self._size += length
        self._sent = self._size

    async def _flush(self, client: Any) -> None:
        block = bytes(self._held)
        self._held.clear()
        for start in range(0, len(block), BLOCK):
            piece = block[start : start + BLOCK]
            MEMORY.add(len(piece))
            writing = asyncio.ensure_future(self._file.write(piece, self._sent + start))
            writing.add_done_callback(functools.partial(_give_back, len(piece)))
            self._behind.append(writing)
        self._sent += len(block)
        while len(self._behind) > (1 if MEMORY.is_full else IN_FLIGHT):
            await self._arrived(client)

    async def _arrived(self, client: Any) -> None:
        try:
            await self._behind.popleft()
        except Exception as fault:
            raise await self._full(client, fault) from None

    async def _full(self, client: Any, fault: Exception) -> Exception:
        """Return ENOSPC if the disk is full, else `fault`: version 3 reports a full disk as "failure"."""
        if code_of(fault) == FAILURE:
            with contextlib.suppress(Exception):  # not every server reports free space
                room = await client.statvfs(self._part)
                if room.bavail * room.frsize < BLOCK:
                    return error(errno.ENOSPC, self._path)
        return fault

    def commit(self) -> Entry:
        if self._done:
            raise error(errno.EINVAL, self._path)
        try:
            entry = self._session.run(self._complete, self._path, again=False)
            self._session.run(self._arrive, self._path, again=False, changes=True)
            self._done = True
            return entry
        finally:
            self.abort()

    async def _complete(self, client: Any) -> Entry:
        """Put the rest into the part, and sync it."""
        await self._flush(client)
        while self._behind:
            await self._arrived(client)
        if (await self._file.stat()).size != self._size:
            await self._file.truncate(self._size)  # a hole at the end
        if self._mode is not None:
            await self._file.chmod(self._mode & 0o777)
        if self._mtime is not None:
            await self._file.utime((time.time(), self._mtime))  # a sweep goes by the later
        try:
            await self._file.fsync()
        except Exception as fault:
            if code_of(fault) != UNSUPPORTED:
                raise await self._full(client, fault) from None
        entry = known(self._path, await self._file.stat())
        await self._file.close()
        self._file = None
        return entry

    def abort(self) -> None:
        if self._done:
            return
        self._done = True

        async def act(client: Any) -> None:
            for task in self._behind:
                task.cancel()
            await asyncio.gather(*self._behind, return_exceptions=True)
            if self._file is not None:
                with contextlib.suppress(Exception):  # on a broken connection
                    await self._file.close()
            await client.remove(self._part)

        self._held.clear()
        with contextlib.suppress(OSError):  # the server is gone: a later sweep removes the part
            self._session.run(act, self._path)


def _give_back(size: int, _: object) -> None:
    MEMORY.give(size)
