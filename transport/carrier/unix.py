"""A session over the socket of a process that waits in a poll: nothing here blocks.

Laws
1. Bytes that the socket does not take now wait here, at most one `pull`; the session keeps the rest.
2. A peer that has gone is noticed by reading, never by writing: the bytes before its end still count.
"""

from __future__ import annotations

import errno
import os
import struct

from transport.errors import ProtocolError
from transport.lean import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.wire.session import Session

RECEIVE = 512 * 1024  # bytes taken from the socket at once; with the frames made of it, the client's memory
LITTLE = (
    16 * 1024
)  # while no more comes than this: the memory for more is mapped and given back with each call
ROUND = 256 * 1024  # bytes pulled at once
ROOM = (
    1024 * 1024
)  # of the socket, once it has been full: with the usual room each frame is a wakeup of both ends
IOV_MAX = 512
MOST = 200  # descriptors of one message; Linux takes 253


class Wire:
    """One end of a connection. `unsent` holds the chunks that wait for the socket to be writable."""

    def __init__(self, connection: socket.socket, session: Session, first: bytes) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.unsent: list[bytes | memoryview] = [first] if first else []
        self._session = session
        self._fds: list[int] = []  # sent with the next message
        self._count = 0
        self._roomy = False
        self._most = LITTLE  # bytes of the next read

    def attach(self, fd: int) -> int:
        """Send a copy of a descriptor, before all bytes queued from now on. Return its number on this connection.

        Raises OSError if too many wait to be sent.
        """
        if len(self._fds) >= MOST:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self._fds.append(os.dup(fd))  # a copy, so that its owner need not wait
        self._count += 1
        return self._count - 1

    def receive(self) -> bytes | None:
        """Return the bytes that have come, b"" if there are none, None at the end."""
        try:
            data = self.socket.recv(self._most)
            self._most = RECEIVE if len(data) >= LITTLE else LITTLE
            return data or None
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            return None

    def flush(self) -> None:
        """Send what the socket takes now."""
        while True:
            if not self.unsent:
                self.unsent = list(self._session.pull(ROUND))
                if not self.unsent:
                    return
            try:
                sent = self.socket.sendmsg(self.unsent[:IOV_MAX], rights(self._fds))
            except BlockingIOError:
                if not self._roomy:
                    self._roomy = True
                    self.socket.setsockopt(
                        socket.SOL_SOCKET, socket.SO_SNDBUF, ROOM
                    )  # or as much as is allowed
                    continue
                return
            except (BrokenPipeError, ConnectionResetError):
                self.unsent.clear()
                return
            self.drop()
            while sent and sent >= len(self.unsent[0]):
                sent -= len(self.unsent.pop(0))
            if sent:
                self.unsent[0] = memoryview(self.unsent[0])[sent:]

    def skip(self, sent: bytes) -> None:
        """Take from the session the bytes that were sent before it was made. Raises ProtocolError if it has others."""
        if b"".join(self._session.pull(ROUND)) != sent:
            raise ProtocolError("the session begins with other bytes than were sent")

    def drop(self) -> None:
        """Close the queued descriptors: they were sent, or never will be."""
        while self._fds:
            os.close(self._fds.pop())


def rights(fds: list[int]) -> list[tuple[int, int, bytes]]:
    """Return the ancillary data of a message that passes descriptors."""
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))] if fds else []
