"""The node's end of the socket to its launcher: messages with descriptors, without waiting; see `launcher`."""

from __future__ import annotations

import asyncio
import os
import socket

from transport.carrier.unix import rights
from transport.job.launcher import MESSAGE
from transport.wire import quickjson

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

AGAIN = 0.05  # seconds until what the kernel did not take is sent again


class Channel:
    """Messages to the launcher and from it. What it does not take now waits, a start also for the next launcher."""

    def __init__(self, hear: Callable[[list[int | float | str]], None]) -> None:
        self._hear = hear
        self._socket: socket.socket | None = None
        # Each with its descriptors, which are ours to close, and the number of a start, or 0.
        self._queue: list[tuple[bytes, list[int], int]] = []
        self._again: asyncio.TimerHandle | None = None

    def attach(self, fd: int) -> None:
        """`fd` is this channel's from now on."""
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket, self.read)
        self._flush()

    def detach(self) -> None:
        """The launcher is gone. What it had said before is heard."""
        self.read()
        self._close()
        self._keep(lambda number: number > 0)

    def withdraw(self, number: int) -> None:
        """A start that was given up, if it has not left: its descriptors would wait for ever."""
        self._keep(lambda other: other != number)

    def _keep(self, wanted: Callable[[int], bool]) -> None:
        for _, fds, number in self._queue:
            for fd in () if wanted(number) else fds:
                os.close(fd)
        self._queue = [message for message in self._queue if wanted(message[2])]

    def _close(self) -> None:
        if self._again:
            self._again.cancel()
            self._again = None
        if self._socket:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket)
            loop.remove_writer(self._socket)
            self._socket.close()
            self._socket = None

    def read(self) -> None:
        while self._socket:
            try:
                data = self._socket.recv(MESSAGE)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # it went with something unread, which the kernel says once; what it had said comes then
            if not data:
                self._close()
                return
            self._hear(quickjson.loads(data))

    def send(self, words: list[object], fds: list[int] | None = None) -> None:
        """Send it soon; the descriptors are closed then. OSError where a large one finds no room."""
        fds = fds or []
        data = quickjson.dumps(words).encode()
        if len(data) > MESSAGE // 2:
            large = os.memfd_create("order", os.MFD_CLOEXEC)
            fds.append(large)
            view = memoryview(data)
            while view:
                view = view[os.write(large, view) :]
            data = b'["large"]'
        self._queue.append((data, fds, int(str(words[1])) if words[0] == "start" else 0))
        if len(self._queue) == 1:
            self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        if self._again:
            self._again.cancel()
            self._again = None
        while self._queue and self._socket:
            data, fds, _ = self._queue[0]
            try:
                self._socket.sendmsg([data], rights(fds), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                loop.add_writer(self._socket, self._flush)
                return
            except (BrokenPipeError, ConnectionResetError):
                self.read()  # it is gone, and there is another one soon
                return
            except OSError:
                # too many descriptors are on their way, or memory is short
                loop.remove_writer(self._socket)
                self._again = loop.call_later(AGAIN, self._flush)
                return
            self._queue.pop(0)
            for fd in fds:
                os.close(fd)
        if self._socket:
            loop.remove_writer(self._socket)
