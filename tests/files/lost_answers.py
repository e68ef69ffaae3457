"""A line to a server of the tests on which the answer to one request gets lost: it was done, and nobody is told."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Losing:
    """Passes bytes on to `port`; of the first request that begins with `first` the answer is not passed on."""

    def __init__(self, port: int, first: bytes) -> None:
        self.lost = 0
        self.most = 1
        self._port, self._first = port, first
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                with self._lock:
                    self._open += [near, far]
                losing = threading.Event()
                threading.Thread(target=self._asked, args=(near, far, losing), daemon=True).start()
                threading.Thread(target=self._answered, args=(near, far, losing), daemon=True).start()

    def _asked(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(1 << 16):
                with self._lock:
                    if data.startswith(self._first) and self.lost < self.most:
                        self.lost += 1
                        losing.set()
                far.sendall(data)

    def _answered(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := far.recv(1 << 16)) and not losing.is_set():
                near.sendall(data)
            for end in (near, far):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with self._lock:
            for each in (self._listener, *self._open):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()


@contextlib.contextmanager
def losing(port: int, first: bytes) -> Iterator[Losing]:
    line = Losing(port, first)
    try:
        yield line
    finally:
        line.close()
