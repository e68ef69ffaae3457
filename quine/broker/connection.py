"""The broker's end of a connection to a client: frames in an event loop, with the descriptors that come with them.

Laws
1. The kernel notes the pid of a process when it connects. That process may have ended when the broker takes the
   connection, and the number may be another one's: a command can wait until a shell outside of its tree has it. So the
   broker pins the process with that number, which must itself send the request: the kernel names the sender.
2. A client speaks after the broker has. Data that was there before may be that of an earlier process with this number,
   so then no process counts as the client.
3. A client gives memory files alone. Another descriptor is not even looked at: its file system may not answer, and a
   close may ask it, too, or wait for a peer, as of a socket with SO_LINGER. The event loop would wait for that, and all
   clients with it. So no descriptor is closed there that may be such a one, by the kernel neither: all that come are
   taken, and a line is closed apart if something is left in it.
4. A worker holds a bounded part for one tree: its connections, the bytes of its requests, and the threads that
   look at the processes above its clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Thread
from weakref import WeakValueDictionary

from quine.broker import wire
from quine.broker.admission import Denied
from quine.budget.caller import UNKNOWN, purses_around
from quine.budget.pinned import pinned
from quine.budget.shared_counters import release
from transport import quickjson
from transport.errors import Unseen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Any

    from quine.broker.admission import Member
    from quine.budget.pinned import PinnedProcess

FDS = struct.Struct("253i")  # SCM_MAX_FD of Linux: the kernel itself closes those that come without room
ANCILLARY = socket.CMSG_SPACE(wire.CREDENTIALS.size) + socket.CMSG_SPACE(FDS.size)

WALKERS, FEW = 16, 2  # threads that look at the processes above clients; those of them that one tree may have

_waiting: deque[Callable[[], None]] = deque()  # closes that may take long, see `_apart`


class Client:
    """One connection, and the process at its other end."""

    def __init__(self, line: socket.socket) -> None:
        line.setblocking(False)
        # Else the kernel closes the descriptors that come with such data when it skips it.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE, 1)
        self.line = line
        self.pid, self.uid = wire.peer(line)
        wire.name_senders(line)
        self._process = pinned(self.pid) if self.pid else None
        self._speaks = not _readable_now(
            line
        )  # False: data came before the pin, perhaps from another process
        self.fds: list[int] = []  # received, and not yet handed on: they are closed at the end
        self.proved = False
        self.over = False  # see `end`
        self.closed: Callable[[], None] | None = None  # called when it is closed
        self.room: Room | None = None  # of its tree, once it is admitted
        self._rest = b""

    @property
    def process(self) -> PinnedProcess:
        """The process that has connected. Raises Denied if it has ended, or another one has sent the frames so far."""
        if self._process is None or not self._process.lives:
            raise Denied("it has ended")
        if not self._speaks:
            raise Denied("another process has sent its request")
        return self._process

    async def size(self, most: int) -> int:
        """Return the size of the next frame; 0 at the end. Raises OSError."""
        head = await self._exactly(wire.SIZE.size)
        if not head:
            return 0
        (size,) = wire.SIZE.unpack(head)
        if not 0 < size <= most:
            raise OSError(f"a frame of {size} bytes")
        return int(size)

    async def body(self, size: int) -> bytes:
        """Return the body of a frame whose `size` was read. Raises OSError."""
        body = await self._exactly(size)
        if not body:
            raise ConnectionResetError("the client has gone in the middle of a frame")
        return body

    async def receive_json(self) -> dict[str, Any]:
        """Return the next frame as an object, {} at the end. Raises OSError."""
        size = await self.size(wire.LONGEST_GREETING)
        body = await self.body(size) if size else b""
        try:
            value = quickjson.loads(body) if body else {}
        except (ValueError, RecursionError):
            raise OSError("a frame that is no JSON") from None
        if not isinstance(value, dict):
            raise OSError("a frame that is no object")
        return value

    async def _exactly(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            data = await self._some(min(size - len(got), 1 << 18))
            if not data:
                if got:
                    raise ConnectionResetError("the client has gone in the middle of a frame")
                return b""
            got += data
        return bytes(got)

    async def _some(self, most: int) -> bytes:
        while True:
            try:
                data, messages, _, _ = self.line.recvmsg(most, ANCILLARY, socket.MSG_CMSG_CLOEXEC)
                break
            except BlockingIOError:
                await _readable(self.line)
        if data and wire.sender(messages) != self.pid:
            self._speaks = False
        for level, kind, value in messages:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._take(struct.unpack(f"{len(value) // 4}i", value[: len(value) // 4 * 4]))
        if len(self.fds) > 1 + wire.MOST_PURSES:
            raise OSError("more descriptors than a client has to give")
        return data

    def _take(self, received: Sequence[int]) -> None:
        others = [fd for fd in received if not _is_memory_file(fd)]
        self.fds += [fd for fd in received if fd not in others]
        if others:
            _apart(partial(release, others))
            raise OSError("a descriptor that is no memory file")

    async def send(self, body: bytes) -> None:
        data, self._rest = self._rest + wire.frame(body), b""
        await asyncio.get_running_loop().sock_sendall(self.line, data)

    def note(self, text: str) -> None:
        """Send a note now, as far as the client takes it; it is for a log, and may be lost."""
        try:
            data = self._rest + wire.packed({"note": text})
            self._rest = data[self.line.send(data) :]
        except OSError:
            pass

    async def gone(self) -> None:
        """Return once the client has gone, or has said what it may not say during an inference."""
        await _readable(self.line)

    @property
    def ledger(self) -> int:
        """The descriptor of a ledger, which came before those of purses. All of them stay in `fds`. Raises Denied."""
        if not self.fds:
            raise Denied("it has given no ledger")
        return self.fds[0]

    def end(self) -> None:
        """End the connection, for all that have a copy of it. Nothing that was sent before is obeyed any more."""
        self.over = True
        with contextlib.suppress(OSError):
            self.line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        close_line(self.line)
        if self._process:
            self._process.close()
        if self.closed:
            self.closed()
        if self.room:
            self.room.lines -= 1


class Room:
    """The connections of one tree, and the bytes of its requests: `size` at one time, or one request that is longer."""

    def __init__(self, size: int) -> None:
        self.lines = 0
        self._size = size
        self._held = 0
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room for a request of this size, and hold that."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._held or self._held + size <= self._size)
            self._held += size
        try:
            yield
        finally:
            self._held -= size
            async with self._changed:
                self._changed.notify_all()


class Walks:
    """Looks at the processes above clients, which may take long, by threads of its own. `members`: see `Register`."""

    def __init__(self) -> None:
        self.members: Mapping[int, Member] = {}
        self._pool = ThreadPoolExecutor(WALKERS, "walk")
        self._turns: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()

    async def run(
        self, process: PinnedProcess, function: Callable[..., Any], *arguments: Any, proved: bool = False
    ) -> Any:
        """Call a function in a thread, on behalf of a process: FEW at a time for all below the same topmost member.

        All processes below no member share FEW; one that has `proved` its keys has FEW of its own. Raises Unseen if
        the processes above it are not known.
        """
        top = self._top(process) or (process.pid if proved else 0)
        turn = self._turns.get(top)
        if turn is None:
            turn = self._turns[top] = asyncio.Semaphore(FEW)
        await turn.acquire()
        try:
            work = asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)
        except BaseException:
            turn.release()
            raise
        work.add_done_callback(lambda _: turn.release())  # the thread goes on if its caller is cancelled
        return await asyncio.shield(work)

    async def purses(self, process: PinnedProcess, proved: bool) -> list[int]:
        """Return descriptors of the purses around a process. Those of a greeting that was given up are closed."""
        looking = asyncio.ensure_future(self.run(process, purses_around, process, proved=proved))
        try:
            return list(await asyncio.shield(looking))
        except asyncio.CancelledError:
            looking.add_done_callback(_let_go)
            raise

    async def release(self, client: Client) -> None:
        """Close what a client has given, by a thread: a close looks at all locks that a command has made on it."""
        given, client.fds = client.fds, []
        if given:
            try:
                closing = asyncio.get_running_loop().run_in_executor(self._pool, release, given)
            except RuntimeError:  # the worker ends, or there are no more threads
                release(given)
            else:
                await asyncio.shield(closing)

    def close(self) -> None:
        self._pool.shutdown(wait=False)

    def _top(self, process: PinnedProcess) -> int:
        """Return the pid of the topmost member above a process, 0 if it is below none."""
        if not (chain := process.chain()):
            raise Unseen(UNKNOWN)
        for pid, start in reversed(chain):
            member = self.members.get(pid)
            if member and member.process.start == start:
                return pid
        return 0


def _let_go(looking: asyncio.Future[list[int]]) -> None:
    if not looking.cancelled() and not looking.exception():
        release(looking.result())


def close_line(line: socket.socket) -> None:
    """Close a line that was not read to its end: the kernel closes the descriptors in the unread data."""
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RD)  # so nothing comes after the look at it
    if _readable_now(line):
        _apart(line.close)
    else:
        line.close()


def _apart(close: Callable[[], None]) -> None:
    """Have a thread do what may take long. Each has one, so that none waits for another."""
    _waiting.append(close)
    with contextlib.suppress(RuntimeError):  # no more threads: the next one does this as well
        Thread(target=_close_waiting, daemon=True).start()


def _close_waiting() -> None:
    with contextlib.suppress(IndexError):
        while True:
            _waiting.popleft()()


def _readable_now(line: socket.socket) -> bool:
    try:
        return bool(line.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


def _is_memory_file(fd: int) -> bool:
    """Return whether a file is a memfd. No other file system is asked.

    The numbers of these files are kept as their names. Files of a tmpfs, which have seals as well, and of huge pages
    are counted anew on each device: a command can make one with any number.
    """
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) >= 0 and os.fstat(fd).st_dev == _device()
    except OSError:
        return False


@cache
def _device() -> int:
    fd = os.memfd_create("quine-place", os.MFD_CLOEXEC)
    try:
        return os.fstat(fd).st_dev
    finally:
        os.close(fd)


async def _readable(line: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def settle() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(line.fileno(), settle)
    try:
        await ready
    finally:
        loop.remove_reader(line.fileno())
