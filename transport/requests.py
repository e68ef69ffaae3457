"""A job's line to its origin: one blocking call, by name, through the node it runs on.

Laws
1. The token that allows it comes from the inherited memo and dies with the job.
2. A connection belongs to the process that opened it: after a fork the child opens its own.
3. A call that was interrupted leaves no half-read connection behind: it is closed.
"""

from __future__ import annotations

import os
import socket

from transport import address, inherit, starter
from transport.errors import ProtocolError, RequestError
from transport.frames import CHUNK, Kind
from transport.session import STDIN, STDOUT, Session

DEADLINE = 3600.0  # seconds without a byte; a dead link is noticed by the node long before


class Relay:
    """Requests to the origin of the job that this process belongs to."""

    def __init__(self, path: str, token: str) -> None:
        self._path = path
        self._token = token
        self._socket: socket.socket | None = None
        self._session: Session | None = None
        self._pid = 0

    @classmethod
    def from_environment(cls) -> Relay | None:
        """None where this process was not started by a node."""
        memo = inherit.read()
        path, token = memo.get("socket"), memo.get("token")
        return cls(path, token) if isinstance(path, str) and isinstance(token, str) else None

    def request(self, name: str, body: bytes) -> bytes:
        """Ask the origin. Raises RequestError: refused, failed there, or the origin cannot be reached."""
        try:
            return self._request(name, body)
        except (OSError, ProtocolError) as error:
            self.close()
            raise RequestError(f"the origin cannot be reached: {error}") from None
        except BaseException:
            self.close()  # a signal's exception came in the middle of a frame
            raise

    def close(self) -> None:
        if self._socket:
            self._socket.close()
        self._socket = self._session = None

    def _connect(self) -> tuple[socket.socket, Session]:
        if self._pid != os.getpid():
            self.close()
        if self._socket is None or self._session is None:
            self._pid = os.getpid()
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(DEADLINE)
            self._socket.connect(self._path)
            self._socket.sendall(starter.CLIENT)
            self._session = Session(opener=True, hello={"build": address.build_hash(), "pid": self._pid})
        return self._socket, self._session

    def _request(self, name: str, body: bytes) -> bytes:
        connection, session = self._connect()
        number = session.open(Kind.REQUEST, {"name": name, "token": self._token})
        channel = session.channels[number]
        left = memoryview(body)
        reply = bytearray()
        error: str | None = None
        while not channel.finished:
            flow = channel.flows[STDIN]
            while left and (size := min(CHUNK, flow.credit, len(left))):
                session.data(number, STDIN, bytes(left[:size]))
                left = left[size:]
            if not left and not flow.ended:
                session.eof(number, STDIN)
            while chunks := session.pull(CHUNK):
                connection.sendall(b"".join(chunks))
            data = connection.recv(256 * 1024)
            if not data:
                raise ConnectionResetError("the node ended")
            for frame in session.receive(data):
                if frame.kind == Kind.DATA:
                    reply += frame.payload
                    session.took(number, STDOUT, len(reply))
                elif frame.kind == Kind.REPLY:
                    text = frame.body().get("error")
                    error = None if text is None else str(text)
        session.last_word(number)
        connection.sendall(b"".join(session.pull(CHUNK)))
        if error is not None:
            raise RequestError(error)
        return bytes(reply)
