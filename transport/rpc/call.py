"""A job's requests to its origin, by name and through the node of its host; a call blocks or streams.

Laws
1. The token names the job, and the capability is demanded by its origin. Both come from the inherited memo, die with
   the job, and go nowhere else.
2. A connection belongs to the process that opened it: after a fork the child opens its own.
3. An interrupted call closes its connection, so none is left half-read.
"""

from __future__ import annotations

import os
import select

from transport import inherit
from transport.errors import ProtocolError, RequestError
from transport.rpc.outgoing import RECEIVE, Asked, Connection, Pool
from transport.wire.frames import CHUNK, Kind
from transport.wire.session import STDIN, STDOUT, Session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from transport.lean import socket

    # Waits until a socket is ready for an event of poll(2). OSError: the origin is out of reach; others are passed on.
    Wait = Callable[[socket.socket, int], None]


class Relay:
    """Requests to the origin of the job that this process belongs to."""

    def __init__(self, path: str, token: str, capability: str, wait: Wait | None = None) -> None:
        """`wait`: for the requests that are given none."""
        self._wait = wait or _wait
        self._path = path
        self._token = token
        self._capability = capability
        self._line: Connection | None = None
        self._pool = Pool(path)

    @classmethod
    def from_environment(cls, wait: Wait | None = None) -> Relay | None:
        """The relay of this process's job; None if no node started it."""
        memo = inherit.read()
        path, token, capability = (memo.get(name) for name in ("socket", "token", "capability"))
        if not (isinstance(path, str) and isinstance(token, str) and isinstance(capability, str)):
            return None
        return cls(path, token, capability, wait)

    def request(self, name: str, body: bytes, wait: Wait | None = None) -> bytes:
        """Ask the origin. Raises RequestError: refused, failed there, given up by `wait`, or out of reach.

        A request that is given up reaches the origin all the same, if it was sent whole and the link comes back.
        """
        try:
            return self._request(name, body, wait or self._wait)
        except (OSError, ProtocolError) as error:
            self.close()
            raise RequestError(f"the origin cannot be reached: {error}") from None
        except BaseException:
            self.close()  # a signal's exception came in the middle of a frame
            raise

    def close(self) -> None:
        if self._line:
            self._line.close()
        self._line = None
        self._pool.close()

    def stream(self, name: str) -> Asked:
        """Open a request whose body is written and whose answer is read piece by piece, from any thread.

        Close it, or use it as a context manager: a request that has not ended by then is given up.
        """
        try:
            return Asked(self._pool.take(), self._asked(name), self._pool.give_back)
        except OSError as error:
            raise RequestError(f"the origin cannot be reached: {error}") from None

    def _asked(self, name: str) -> dict[str, object]:
        return {"name": name, "token": self._token, "capability": self._capability}

    def _request(self, name: str, body: bytes, wait: Wait) -> bytes:
        if self._line and self._line.pid != os.getpid():
            self.close()
        line = self._line = self._line or Connection(self._path)
        call = _Call(line.session, self._asked(name), body)
        while not call.finished:
            data = call.output()
            while data:
                wait(line.socket, select.POLLOUT)
                data = data[line.socket.send(data) :]
            wait(line.socket, select.POLLIN)
            data = line.socket.recv(RECEIVE)
            if not data:
                raise ConnectionResetError("the node ended")
            call.feed(data)
        line.socket.sendall(call.output())
        return call.reply()


def _wait(channel: socket.socket, event: int) -> None:
    """Return at once: calls of the socket wait by themselves, until its deadline."""


class _Call:
    """One request of a session, sans-IO."""

    def __init__(self, session: Session, asked: dict[str, object], body: bytes) -> None:
        self._session = session
        self._number = session.open(Kind.REQUEST, asked)
        self._channel = session.channels[self._number]
        self._left = memoryview(body)
        self._reply = bytearray()
        self._error: str | None = None
        self.finished = False
        self._end_sent = False  # the last frame was sent, after which the channel is forgotten

    def output(self) -> bytes:
        """Bytes that can be sent now; the last frame once the request is finished."""
        session, number, flow = self._session, self._number, self._channel.flows[STDIN]
        if self.finished and not self._end_sent:
            self._end_sent = True
            session.last_word(number)
        while not self.finished and self._left and (size := min(CHUNK, flow.credit, len(self._left))):
            session.data(number, STDIN, bytes(self._left[:size]))
            self._left = self._left[size:]
        if not self.finished and not self._left and not flow.ended:
            session.eof(number, STDIN)
        chunks = []
        while more := session.pull(CHUNK):
            chunks += more
        return b"".join(chunks)

    def feed(self, data: bytes) -> None:
        for frame in self._session.receive(data):
            if frame.kind == Kind.DATA:
                self._reply += frame.payload
                self._session.took(self._number, STDOUT, len(self._reply))
            elif frame.kind == Kind.REPLY:
                text = frame.body().get("error")
                self._error = None if text is None else str(text)
        self.finished = self._channel.finished

    def reply(self) -> bytes:
        if self._error is not None:
            raise RequestError(self._error)
        return bytes(self._reply)
