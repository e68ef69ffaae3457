"""Messages of the launcher to its node: those that are at hand together are sent as one, and none is waited for."""

from __future__ import annotations

import os
import sys
import time

from transport import quickjson
from transport.launcher import spare
from transport.lean import deque, socket

MOST = 16384  # bytes from which on a message is full
AGAIN = 0.05  # seconds until a message that the kernel did not take, though there is room, is sent again


class Outgoing:
    """`waits`: for the channel to be writable; `due`: time at which what is held back is to be sent, or None."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._queue: deque[tuple[bytes, int]] = deque()  # a message, and the copy of a descriptor, or -1
        self._until = 0.0
        self.waits = False

    @property
    def due(self) -> float | None:
        return self._until if self._queue and not self.waits else None

    def put(self, words: tuple[object, ...], fd: int = -1, until: float = 0.0) -> None:
        """Queue a message, which is sent by a `turn` after the time `until`, or with a later one. OSError: no copy."""
        self._until = until if not self._queue else min(until, self._until)
        self._queue.append((quickjson.dumps(words).encode(), os.dup(fd) if fd >= 0 else -1))

    def turn(self, now: float) -> None:
        if self._queue and now >= self._until:
            self.flush()

    def flush(self) -> None:
        """Send what the kernel takes now."""
        self.waits = False
        while self._queue:
            count, data, fds = self._next()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, b"".join(fds))] if fds else []
            try:
                self._channel.sendmsg([data], rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self.waits = True
                return
            except OSError:
                # Too many descriptors are on their way, or memory is short: the channel is writable all the same. Or
                # the node is gone, and the next poll reports that.
                self._until = time.monotonic() + AGAIN
                return
            for _ in range(count):
                fd = self._queue.popleft()[1]
                if fd >= 0:
                    os.close(fd)

    def _next(self) -> tuple[int, bytes, list[bytes]]:
        """Return how many messages go together, as one message, and their descriptors."""
        count = size = 0
        fds: list[bytes] = []
        for data, fd in self._queue:
            if count and (size + len(data) > MOST or len(fds) == spare.RIGHTS):
                break
            count, size = count + 1, size + len(data)
            if fd >= 0:
                fds.append(fd.to_bytes(4, sys.byteorder))
        if count == 1:
            return 1, self._queue[0][0], fds
        return count, b"[" + b",".join(self._queue[at][0] for at in range(count)) + b"]", fds
