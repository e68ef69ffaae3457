"""The control socket of a supervisor: its two ends, the same frames as between nodes.

Both sides greet. Then an attached client
    sends     signal; data and eof of stdin; ack of stdout and stderr: "I have these, tell me of more"
    receives  ack of life: the signal was sent; ack of stdin: the job's pipe took it; stop of stdin: nobody reads it;
              ack of stdout and stderr: the file has so many bytes; exit: the record is written

Laws
1. Only a process with our user id, or root's, is heard, and is spoken to; root speaks to all.
2. Bytes that the other end does not read are bounded: past the bound `send` gives the connection up.
3. The two ends may be of different builds, as after an upgrade: these frames keep their form and their meaning.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct

from transport.wire.frames import GREETING, Decoder, Frame, Kind, encode
from transport.wire.session import STDERR, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAME = "socket"
BACKLOG = 64
MOST = 1 << 20  # bytes that wait to be sent


class Wire:
    """One end of a connection; never blocks."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.socket = connection
        self.fileno = connection.fileno()
        self._unsent = bytearray(GREETING)
        self._decoder = Decoder()

    @property
    def events(self) -> int:
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    def tell(self, kind: int, stream: int = 0, offset: int = 0, payload: bytes = b"") -> None:
        self._unsent += encode(Frame(kind, stream=stream, offset=offset, payload=payload))

    def send(self) -> bool:
        """Send what the socket takes now. Return False if the other end has gone, or has long read nothing."""
        try:
            while self._unsent:
                del self._unsent[: self.socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return len(self._unsent) <= MOST

    def send_all(self, seconds: float) -> None:
        """Send everything before we end. Raises OSError if it is not taken within `seconds`."""
        self.socket.settimeout(max(0.01, seconds))
        self.socket.sendall(self._unsent)

    def receive(self) -> list[Frame]:
        """Return the frames that have come. Raises EOFError at the end, ProtocolError for bytes that are no frame."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            raise EOFError
        return list(self._decoder.feed(data))


class Peer(Wire):
    """The supervisor's end of one connection."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self.feeds = 0  # frames of its stdin that wait for the job; the peer is not read meanwhile
        self._follows = False
        self._announced = (-1, -1)

    @property
    def events(self) -> int:
        return super().events & ~(select.POLLIN if self.feeds else 0)

    def follow(self) -> None:
        self._follows = True

    def news(self, out: int, err: int) -> None:
        """Send the sizes of both outputs, if they have changed and nothing waits to be sent."""
        if self._follows and self._announced != (out, err) and not self._unsent:
            self._announced = (out, err)
            self.tell(Kind.ACK, STDOUT, out)
            self.tell(Kind.ACK, STDERR, err)


def listen() -> socket.socket:
    """Listen in the current directory: its path may be longer than an address. Raises OSError if it cannot."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(listener.fileno(), 0o600)  # its file gets that mode
        listener.bind(NAME)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def accept(listener: socket.socket) -> Peer | None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    if _uid(connection) not in (os.getuid(), 0):
        connection.close()
        return None
    return Peer(connection)


def _uid(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    credentials: Any = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", credentials)[1])


def connect(directory: str) -> Wire:
    """Connect to the supervisor of the job in that directory. Raises OSError if none listens."""
    folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{NAME}")
        if os.getuid() and _uid(connection) not in (os.getuid(), 0):
            raise PermissionError(errno.EPERM, "the socket of the job belongs to another user", directory)
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(folder)
    return Wire(connection)
