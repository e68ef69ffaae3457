"""A TCP proxy between the origin and a host, which can be slow, cut, silent, half open or refuse: a process of its own.

Laws
1. It delays, it does not throttle: only `IN_FLIGHT` bounds the bytes under way, as on a long fat line.
2. It runs outside the process that tests, so that its descriptors are not that process's and its work does
   not take that process's interpreter lock. Orders go over one socket pair, a line of JSON each way.
3. Silence (`blackhole`) forwards nothing and closes nothing; a cut is a reset of both ends at once.
4. A cut at a byte (`cut_after`) is decided in the proxy, at that byte and not a buffer later: an order would come
   after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

IN_FLIGHT = 64 << 20  # bytes under way in one direction: 100 ms at 640 MB/s
CHUNK = 256 << 10
ANSWER = 30.0  # seconds in which an order is answered; a proxy that does not is a defect


class Proxy:
    """The handle: starts the process, sends orders. Use `port` in place of the host's."""

    def __init__(self, target: int, address: str = "127.0.0.1") -> None:
        # not above: this file is the process, too, which knows no `tests`
        from tests.lab.machine import free_port

        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(Path(__file__).resolve()),
                    address,
                    str(target),
                    str(theirs.fileno()),
                    str(free_port()),  # it is still ours when it was refused for a while
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        ours.settimeout(ANSWER)
        self._socket = ours
        self._lines = ours.makefile("rb")
        self.port = int(self._answer()["port"])

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    def _answer(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise RuntimeError("the proxy died")
        answer = json.loads(line)
        if not isinstance(answer, dict):
            raise RuntimeError(f"the proxy said {line!r}")
        return answer

    def _order(self, verb: str, value: object = None) -> dict[str, Any]:
        self._socket.sendall(json.dumps([verb, value]).encode() + b"\n")
        return self._answer()

    def delay(self, seconds: float) -> None:
        """Every byte takes `seconds` each way from now on; a round trip takes twice that."""
        self._order("delay", seconds)

    def cut(self) -> int:
        """Reset every connection; new ones are welcome. Returns how many were cut."""
        return int(self._order("cut")["cut"])

    def cut_after(self, *sizes: int) -> None:
        """Cut when so many more bytes were delivered, both ways together, then again after the next number of them.

        Bytes of handshakes count. The plan replaces an earlier one; without sizes there is no plan any more.
        """
        self._order("plan", sizes)

    def cuts(self) -> int:
        """Return how many cuts of a plan have come."""
        return int(self._order("facts")["cuts"])

    def half_open(self) -> int:
        """Make present connections carry nothing any more, not even their end; new ones work. Return their number.

        A middle box that forgot its connections does so, and a machine that came back with another state.
        """
        return int(self._order("half open", True)["cut"])

    def blackhole(self) -> None:
        """Carry nothing any more, say nothing: a pulled cable. New connections are accepted and silent."""
        self._order("blackhole", True)

    def heal(self) -> None:
        """Undo `blackhole`, `half_open` and `refuse`, deliver the bytes held back, and drop every plan."""
        self._order("plan", [])
        self._order("half open", False)
        self._order("blackhole", False)
        self._order("refuse", False)

    def refuse(self) -> None:
        """Refuse new connections; present ones go on."""
        self._order("refuse", True)

    def accepted(self) -> int:
        """How many connections it has accepted since it started."""
        return int(self._order("facts")["accepted"])

    def carried(self) -> int:
        """How many bytes it has delivered, both ways together."""
        return int(self._order("facts")["carried"])

    def connections(self) -> int:
        """How many are open, at either end."""
        return int(self._order("facts")["open"])

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._lines.close()
        self._socket.close()


class _Way:
    """One direction of one connection: chunks with their time of arrival, then perhaps an end of file."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self.chunks: deque[tuple[float, memoryview]] = deque()
        self.size = 0
        self.ended = False  # the source said end of file
        self.done = False  # and the sink was told
        self.frozen = False  # half open


class _Line:
    """The process: one selector over the listener, the orders and every connection."""

    def __init__(self, target: tuple[str, int], orders: socket.socket, port: int) -> None:
        self.target = target
        self.orders = orders
        self.buffer = b""
        self.seconds = 0.0
        self.silent = False
        self.accepted = self.carried = self.cuts = 0
        self.plan: deque[int] = deque()  # bytes until the next cut, and between those after it
        self.ways: dict[socket.socket, tuple[_Way, _Way]] = {}  # by either end: (from it, to it)
        self.selector = selectors.DefaultSelector()
        self.listener = self.listen(port)
        self.address = self.listener.getsockname()
        self.selector.register(orders, selectors.EVENT_READ)
        self.say({"port": self.address[1]})

    def listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port), backlog=512)
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ)
        return listener

    def say(self, answer: dict[str, object]) -> None:
        self.orders.sendall(json.dumps(answer).encode() + b"\n")

    def run(self) -> None:
        # One clock reading per pass: were a chunk due for one step and not yet for the next, nobody would
        # wait for it.
        now = time.monotonic()
        while True:
            for key, events in self.selector.select(self.patience(now)):
                if key.fileobj is self.orders:
                    data = self.orders.recv(4096)
                    if not data:
                        return  # whoever started us is gone
                    self.buffer += data
                    while b"\n" in self.buffer:
                        line, _, self.buffer = self.buffer.partition(b"\n")
                        self.obey(*json.loads(line))
                elif key.fileobj is self.listener:
                    self.accept()
                elif key.fileobj in self.ways and events & selectors.EVENT_READ:
                    self.receive(self.ways[key.fileobj][0])
            now = time.monotonic()
            if not self.silent:
                for source in list(self.ways):
                    if source in self.ways:
                        self.deliver(self.ways[source][0], now)
            for end in list(self.ways):
                if end in self.ways:
                    self.interest(end, now)

    def patience(self, now: float) -> float | None:
        """Return the seconds until the next chunk is due. A chunk waits for a full sink, not for a time."""
        if self.silent:
            return None
        live = [w[0] for w in self.ways.values() if w[0].chunks and not w[0].frozen]
        due = [way.chunks[0][0] for way in live if way.chunks[0][0] > now]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def obey(self, verb: str, value: Any) -> None:
        cut = 0
        if verb == "delay":
            self.seconds = float(value)
        elif verb == "cut":
            cut = self.cut()
        elif verb == "plan":
            self.plan = deque(int(size) for size in value)
        elif verb == "half open":
            cut = len(self.ways) // 2
            for way, _ in self.ways.values():
                way.frozen = bool(value)
        elif verb == "blackhole":
            self.silent = bool(value)
        elif verb == "refuse" and value and self.listener.fileno() >= 0:
            self.selector.unregister(self.listener)
            self.listener.close()
        elif verb == "refuse" and not value and self.listener.fileno() < 0:
            self.listener = self.listen(self.address[1])
        facts = {"accepted": self.accepted, "carried": self.carried, "open": len(self.ways) // 2}
        self.say({"cut": cut, "cuts": self.cuts, **facts})

    def cut(self) -> int:
        count = len(self.ways) // 2
        for end in list(self.ways):
            self.reset(end)
        return count

    def accept(self) -> None:
        try:
            near, _ = self.listener.accept()
        except OSError:
            return  # an order of the same round has closed the listener, or the newcomer is gone again
        self.accepted += 1
        try:
            far = socket.create_connection(self.target, timeout=5)
        except OSError:
            abort(near)
            return
        for end in (near, far):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        out, back = _Way(near, far), _Way(far, near)
        self.ways[near] = (out, back)
        self.ways[far] = (back, out)

    def receive(self, way: _Way) -> None:
        try:
            data = way.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self.reset(way.source)
            return
        way.ended = not data
        way.size += len(data)
        way.chunks.append((time.monotonic() + self.seconds, memoryview(data)))

    def deliver(self, way: _Way, now: float) -> None:
        if way.frozen:
            return
        try:
            while way.chunks and way.chunks[0][0] <= now:
                due, data = way.chunks[0]
                if not data:
                    way.chunks.popleft()
                    way.done = True
                    way.sink.shutdown(socket.SHUT_WR)
                    continue
                sent = way.sink.send(data[: self.plan[0]] if self.plan else data)
                self.carried += sent
                way.size -= sent
                if self.plan and self.planned(sent):
                    return
                if sent == len(data):
                    way.chunks.popleft()
                else:
                    way.chunks[0] = (due, data[sent:])
        except BlockingIOError:
            return
        except OSError:
            self.reset(way.source)
            return
        if way.done and self.ways[way.source][1].done:
            self.forget(way.source, way.sink)

    def planned(self, sent: int) -> bool:
        """Count delivered bytes against the plan. At the last byte before a cut, cut and return True."""
        self.plan[0] -= sent
        if self.plan[0] > 0:
            return False
        self.plan.popleft()
        self.cuts += 1
        self.cut()
        return True

    def interest(self, end: socket.socket, now: float) -> None:
        """Watch this end for reading while there is room, and for writing while bytes are stuck."""
        out, back = self.ways[end]
        events = 0
        if not self.silent and not out.frozen:
            if not out.ended and out.size < IN_FLIGHT:
                events |= selectors.EVENT_READ
            if back.chunks and back.chunks[0][0] <= now:
                events |= selectors.EVENT_WRITE
        known = self.selector.get_map().get(end)
        if known is None and events:
            self.selector.register(end, events)
        elif known is not None and not events:
            self.selector.unregister(end)
        elif known is not None and known.events != events:
            self.selector.modify(end, events)

    def forget(self, *ends: socket.socket) -> None:
        for end in ends:
            self.ways.pop(end, None)
            with contextlib.suppress(KeyError, ValueError):
                self.selector.unregister(end)
            end.close()

    def reset(self, end: socket.socket) -> None:
        if end not in self.ways:
            return
        for other in (end, self.ways[end][0].sink):
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.forget(other)


def abort(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[3])) as _orders, contextlib.suppress(KeyboardInterrupt):
        os.set_inheritable(_orders.fileno(), False)
        _Line((sys.argv[1], int(sys.argv[2])), _orders, int(sys.argv[4])).run()
