"""A session over the socket of a process that waits in a poll: nothing here blocks.

Laws
1. What the socket does not take now waits here, at most one `pull`; the session keeps the rest.
2. A peer that has gone is noticed by reading, never by writing: what came before its end still counts.
"""

from __future__ import annotations

import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.session import Session

RECEIVE = 512 * 1024  # bytes taken from the socket at once; with the frames made of it, the client's memory
ROUND = 256 * 1024  # bytes pulled at once
IOV_MAX = 512


class Wire:
    """`unsent` is what waits for the socket to be writable."""

    def __init__(self, connection: socket.socket, session: Session, first: bytes) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.unsent = [first]
        self._session = session

    def receive(self) -> bytes | None:
        """What has come; None at the end."""
        try:
            return self.socket.recv(RECEIVE) or None
        except BlockingIOError:
            return b""
        except ConnectionResetError:
            return None

    def flush(self) -> None:
        """Give the socket what it takes now."""
        while True:
            if not self.unsent:
                self.unsent = self._session.pull(ROUND)
                if not self.unsent:
                    return
            try:
                sent = self.socket.sendmsg(self.unsent[:IOV_MAX])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                self.unsent.clear()
                return
            while sent and sent >= len(self.unsent[0]):
                sent -= len(self.unsent.pop(0))
            if sent:
                self.unsent[0] = self.unsent[0][sent:]
