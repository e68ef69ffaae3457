"""The node's end of the socket to its launcher: messages with descriptors, sent without waiting; see `launcher`."""

from __future__ import annotations

import asyncio
import os
import socket

from transport import quickjson
from transport.carrier.unix import rights
from transport.launcher import spare
from transport.launcher.launcher import MESSAGE
from transport.launcher.outgoing import AGAIN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Channel:
    """Messages to and from the launcher. A message that it does not take now waits; a start waits for the next one."""

    def __init__(self, hear: Callable[[list[int | float | str], list[int]], None]) -> None:
        """`hear` is called with each message, and the descriptors that came; it takes those that are for it."""
        self._hear = hear
        self._socket: socket.socket | None = None
        # (message, its descriptors, which are closed here, and the number of a start, or 0)
        self._queue: list[tuple[bytes, list[int], int]] = []
        self._again: asyncio.TimerHandle | None = None
        self._waits = False  # for the socket to be writable

    def attach(self, fd: int) -> None:
        """Use the socket `fd`, which belongs to this channel from now on."""
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self.read)
        self._flush()

    def detach(self) -> None:
        """The launcher is gone: read its last messages, close the socket, keep only queued starts."""
        self.read(again=True)
        self._close()
        self._keep(lambda number: number > 0)

    def withdraw(self, number: int) -> None:
        """Remove a start that was given up from the queue, where its descriptors would stay open for ever."""
        self._keep(lambda other: other != number)

    def has(self, number: int) -> bool:
        """True if a start waits here, and no launcher has it."""
        return any(other == number for _, _, other in self._queue)

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
            loop.remove_reader(self._socket.fileno())
            self._wait_for_room(False)
            self._socket.close()
            self._socket = None

    def read(self, again: bool = False) -> None:
        """Handle the next message, with `again` all that have come."""
        while self._socket:
            try:
                data, fds = spare.receive(self._socket)
            except BlockingIOError:
                return
            except ConnectionResetError:
                continue  # reported once if it left messages unread; its own messages can still be read
            if not data:
                self._close()
                return
            words = quickjson.loads(data)
            for each in words if isinstance(words[0], list) else [words]:
                self._hear(each, fds)
            if not again:
                return  # more of them make the socket readable again

    def send(self, words: list[object], fds: list[int] | None = None) -> None:
        """Queue a message; `fds` are closed once it is sent. OSError if there is no memory for a large one."""
        fds = fds or []
        data = quickjson.dumps(words).encode()
        if len(data) > MESSAGE // 2:
            large = os.memfd_create("order", os.MFD_CLOEXEC)
            fds.append(large)
            view = memoryview(data)
            while view:
                view = view[os.write(large, view) :]
            data = b'["large"]'
        self._queue.append((data, fds, int(str(words[1])) if words[0] in ("start", "quick") else 0))
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
                self._wait_for_room(True)
                return
            except (BrokenPipeError, ConnectionResetError):
                self.read(again=True)  # the launcher is gone, and will be replaced
                return
            except OSError:
                # Too many descriptors are on their way, or memory is short.
                self._wait_for_room(False)
                self._again = loop.call_later(AGAIN, self._flush)
                return
            self._queue.pop(0)
            for fd in fds:
                os.close(fd)
        self._wait_for_room(False)

    def _wait_for_room(self, waits: bool) -> None:
        if self._socket and waits != self._waits:
            self._waits = waits
            loop = asyncio.get_running_loop()
            if waits:
                loop.add_writer(self._socket.fileno(), self._flush)
            else:
                loop.remove_writer(self._socket.fileno())
