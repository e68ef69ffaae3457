"""A job's line to its origin: a call by name, through the node it runs on; one that blocks, is posted, or streams.

Laws
1. The token that names the job and the capability that its origin asks for come from the inherited memo, die with
   the job, and go nowhere else.
2. A connection belongs to the process that opened it: after a fork the child opens its own.
3. A call that was interrupted leaves no half-read connection behind: it is closed.
"""

from __future__ import annotations

import fcntl
import os

from transport import address, inherit, starter
from transport.errors import ProtocolError, RequestError
from transport.frames import CHUNK, Kind
from transport.lean import socket
from transport.outgoing import DEADLINE, Asked, Pool
from transport.session import STDIN, STDOUT, Session

POST_DEADLINE = 5.0  # seconds for the node of this machine to take a request that is posted


class Relay:
    """Requests to the origin of the job that this process belongs to."""

    def __init__(self, path: str, token: str, capability: str) -> None:
        self._path = path
        self._token = token
        self._capability = capability
        self._socket: socket.socket | None = None
        self._session: Session | None = None
        self._pid = 0
        self._pool = Pool(path)

    @classmethod
    def from_environment(cls) -> Relay | None:
        """None where this process was not started by a node."""
        memo = inherit.read()
        path, token, capability = (memo.get(name) for name in ("socket", "token", "capability"))
        if not (isinstance(path, str) and isinstance(token, str) and isinstance(capability, str)):
            return None
        return cls(path, token, capability)

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
        self._pool.close()

    def stream(self, name: str) -> Asked:
        """Ask by a request whose body is written and whose answer is read piece by piece, from any thread.

        Close it, or use it as a context manager: what was not ended by then is given up.
        """
        try:
            return Asked(self._pool.take(), self._asked(name), self._pool.give_back)
        except OSError as error:
            raise RequestError(f"the origin cannot be reached: {error}") from None

    def _asked(self, name: str) -> dict[str, object]:
        return {"name": name, "token": self._token, "capability": self._capability}

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
        call = _Call(session, self._asked(name), body)
        while not call.finished:
            connection.sendall(call.output())
            data = connection.recv(256 * 1024)
            if not data:
                raise ConnectionResetError("the node ended")
            call.feed(data)
        connection.sendall(call.output())
        return call.reply()

    def post(self, name: str, body: bytes, wake: int) -> Posted:
        """Ask without waiting, on a connection of its own: this process gets the signal `wake` when something has come.

        Raises RequestError. What came before the signal could be sent is there at once: look for it.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(POST_DEADLINE)
            connection.connect(self._path)
            connection.sendall(starter.CLIENT)
            session = Session(opener=True, hello={"build": address.build_hash(), "pid": os.getpid()})
            call = _Call(session, self._asked(name), body)
            connection.sendall(call.output())
            connection.setblocking(False)
            fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(connection, fcntl.F_SETSIG, wake)
            fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
        except (OSError, ProtocolError) as error:
            connection.close()
            raise RequestError(f"the origin cannot be reached: {error}") from None
        except BaseException:
            connection.close()
            raise
        return Posted(connection, call)


class Posted:
    """A request whose answer nobody waits for."""

    def __init__(self, connection: socket.socket, call: _Call) -> None:
        self._connection = connection
        self._call = call

    def answer(self) -> bytes | None:
        """The reply, or None where it has not come yet. Raises RequestError."""
        try:
            while not self._call.finished:
                data = self._connection.recv(CHUNK)
                if not data:
                    raise ConnectionResetError("the node ended")
                self._call.feed(data)
                self._connection.sendall(self._call.output())
        except BlockingIOError:
            return None
        except (OSError, ProtocolError) as error:
            raise RequestError(f"the origin cannot be reached: {error}") from None
        return self._call.reply()

    def close(self) -> None:
        self._connection.close()


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
        self._said = False  # the last word, after which the channel is forgotten

    def output(self) -> bytes:
        """What can be sent now; the last word, once it is finished."""
        session, number, flow = self._session, self._number, self._channel.flows[STDIN]
        if self.finished and not self._said:
            self._said = True
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
