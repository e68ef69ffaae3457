"""The server of a mount: one thread reads requests of the kernel, others wait for the store.

Laws
1. The reading thread answers requests that wait for nothing, and never waits itself. Every other request has a thread,
   at most THREADS at a time.
2. Every request gets one answer. A process being killed is answered at once, and a later result is undone.
3. Any failure is an errno for the requester; the server goes on.
"""

from __future__ import annotations

import errno
import fcntl
import os
import queue
import select
import threading
import time

from quine.mount import dispatch, protocol
from quine.mount.handles import is_dying
from quine.mount.locks import Waiting
from quine.mount.protocol import Op, Request
from quine.mount.reading import Parts
from quine.mount.state import State

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 32  # concurrent operations of the store
LOOK = 0.2  # seconds between checks of interrupted requests


class Server:
    def __init__(self, fd: int, state: State) -> None:
        self._fd = fd
        self._state = state
        self._work: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[int, Request] = {}  # handed to a thread and not answered
        self._interrupted: dict[int, int] = {}  # unique -> the thread that was sent a signal
        self._threads = self._idle = 0
        self._buffer = bytearray(protocol.BUFFER)
        self.ended = False
        state.given = self._given
        os.set_blocking(fd, False)

    def serve(self, also: list[int], woken: Callable[[int], bool]) -> None:
        """Serve until unmounted, or until `woken`, called for a readable descriptor of `also`, returns True."""
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        for fd in also:
            poll.register(fd, select.POLLIN)
        looked = time.monotonic()
        while not self.ended:
            pause = self._state.reserved.rest()
            if self._interrupted:
                pause = LOOK
            for fd, _ in poll.poll(None if pause is None else pause * 1000):
                if fd != self._fd:
                    if woken(fd):
                        return
                    poll.unregister(fd)
            for _ in range(64):
                if not self._one():
                    break
            if self._interrupted and time.monotonic() - looked > LOOK:
                looked = time.monotonic()
                self._free_the_dying()

    def stop(self) -> None:
        """End the threads that wait for work."""
        with self._lock:
            self.ended = True
            count = self._threads
        for _ in range(count):
            self._work.put(None)

    def wait(self, seconds: float) -> bool:
        """Wait for the operations under way; return False if they are not done by then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with self._lock:
                if not self._waiting:
                    return True
            time.sleep(0.01)
        return False

    def _one(self) -> bool:
        """Take one request; return False if there is none now."""
        try:
            count = os.readv(self._fd, [self._buffer])
        except OSError as error:
            if error.errno == errno.ENODEV:
                self.ended = True
            return error.errno in (errno.EINTR, errno.ENOENT)  # withdrawn before we had read it
        if not count:
            self.ended = True
            return False
        message = memoryview(self._buffer)[:count]
        try:
            request = protocol.parse(message)
        except ValueError as wrong:
            self._state.note(f"not understood: {wrong}")
            if count >= protocol.HEADER.size:
                self._write(protocol.failure(protocol.HEADER.unpack_from(message)[2], errno.EIO))
            return True
        if not self._told(request):
            if dispatch.is_quick(self._state, request):
                self._answer(request)
            else:
                self._hand_over(request)
        return True

    def _told(self, request: Request) -> bool:
        """Handle messages that are no operation: forget, interrupt, locks and INIT. Return False for all others."""
        if request.op in (Op.FORGET, Op.BATCH_FORGET):
            try:
                with self._state.lock:
                    for node, count in protocol.forgotten(request):
                        self._state.nodes.forget(node, count)
            except ValueError as wrong:
                self._state.note(f"not understood: {wrong}")
        elif request.op == Op.INTERRUPT:
            with self._lock:
                asked = self._waiting.get(request.args[0])
                if asked is not None:
                    self._interrupted[asked.unique] = asked.pid
            with self._state.lock:
                if self._state.locks.give_up(request.args[0]):
                    self._write(protocol.failure(request.args[0], errno.EINTR))
            self._free_the_dying()
        elif request.op in (Op.SETLK, Op.SETLKW):
            self._lock_asked(request)
        elif request.op == Op.INIT:
            answer, agreed = protocol.initial(request)
            if not agreed and request.args[0] == protocol.MAJOR:
                self._write(protocol.failure(request.unique, errno.EPROTO))
            else:
                self._write(protocol.answer(request.unique, answer))
        else:
            return False
        return True

    def _given(self, unique: int) -> None:
        self._write(protocol.answer(unique))

    def _lock_asked(self, request: Request) -> None:
        """Answer a lock request, or leave it waiting; a later release answers it."""
        number, kind, flags = request.args[0], request.args[4], request.args[6]
        with self._state.lock:
            handle, locks = self._state.handles.get(number), self._state.locks
            if handle is None or not flags & protocol.IS_FLOCK:
                self._write(protocol.failure(request.unique, errno.EBADF))
            elif locks.ask(handle.node.path, number, kind):
                self._write(protocol.answer(request.unique))
            elif request.op == Op.SETLK:
                self._write(protocol.failure(request.unique, errno.EAGAIN))
            else:
                exclusive = kind == fcntl.F_WRLCK
                locks.wait(Waiting(request.unique, handle.node.path, number, exclusive))
        self._state.next_locks()

    def _free_the_dying(self) -> None:
        """Answer requests of dying processes: the kernel lets none of them die before."""
        with self._lock:
            dying = [unique for unique, pid in self._interrupted.items() if is_dying(pid)]
            for unique in dying:
                del self._interrupted[unique]
                if self._waiting.pop(unique, None) is not None:
                    self._write(protocol.failure(unique, errno.EINTR))

    def _hand_over(self, request: Request) -> None:
        if not isinstance(request.data, bytes):
            request = request._replace(data=bytes(request.data))  # the buffer is reused meanwhile
        with self._lock:
            self._waiting[request.unique] = request
            more = self._idle < self._work.qsize() + 1 and self._threads < THREADS
            if more:
                self._threads += 1
        self._work.put(request)
        if more:
            threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            request = self._work.get()
            with self._lock:
                self._idle -= 1
            if request is None:
                return
            self._answer(request, handed=True)

    def _answer(self, request: Request, handed: bool = False) -> None:
        if handed:
            with self._lock:
                if request.unique not in self._waiting and request.op not in (Op.RELEASE, Op.RELEASEDIR):
                    return  # it was answered while it waited for a thread
        parts: Parts = ()
        try:
            parts = dispatch.perform(self._state, request)
            message = protocol.answer(request.unique, *parts)
        except OSError as error:
            message = protocol.failure(request.unique, error.errno or errno.EIO)
        except Exception as error:
            self._state.note(f"{type(error).__name__}: {error}")
            message = protocol.failure(request.unique, errno.EIO)
        wanted = True
        if handed:
            with self._lock:
                self._interrupted.pop(request.unique, None)
                wanted = self._waiting.pop(request.unique, None) is not None
        if not wanted or not self._write(message):
            dispatch.undo(self._state, request, parts)

    def _write(self, message: list[bytes | memoryview]) -> bool:
        try:
            os.writev(self._fd, message)
        except OSError as error:
            if error.errno == errno.ENODEV:
                self.ended = True
            return False
        return True
