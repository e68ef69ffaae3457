"""Streaming requests without a node: both ends in this process, joined by two bounded pipes and a thread.

Laws
1. It has the interface of transport's Asked and Incoming, and their promises: a body ends with `end` and with nothing
   else, who gives up is Abandoned, what a handler raises is the answer's error.
2. It counts: requests, and times that the asker had to wait for the other side after it had said something new.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from transport.errors import Abandoned, RequestError, RequestLost


class Pipe:
    """A bounded buffer with three ways to end: whole, broken off by its writer, not read any more."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.data = bytearray()
        self.whole = self.broken = self.deaf = False
        self.change = threading.Condition()

    def set(self, name: str) -> None:
        with self.change:
            setattr(self, name, True)
            self.change.notify_all()

    def put(self, data: bytes | bytearray | memoryview) -> bool:
        """False where nobody reads it."""
        left = memoryview(data)
        with self.change:
            while left:
                self.change.wait_for(lambda: len(self.data) < self.room or self.deaf)
                if self.deaf:
                    return False
                size = self.room - len(self.data)
                self.data += left[:size]
                left = left[size:]
                self.change.notify_all()
        return not self.deaf

    def get(self, size: int) -> bytes:
        """b"" at its end, whichever."""
        with self.change:
            self.change.wait_for(lambda: self.data or self.whole or self.broken)
            found = bytes(self.data[:size])
            del self.data[:size]
            self.change.notify_all()
            return found


class Relay:
    """In place of transport.rpc.call.Relay."""

    def __init__(self, handler: Callable[[Any], None], room: int = 100_000) -> None:
        self.handler = handler
        self.room = room
        self.requests = 0
        self.waits = 0
        self.lost = ""  # why the origin cannot be reached any more
        self.threads: list[threading.Thread] = []

    def stream(self, name: str) -> Asked:
        assert name == "fs"
        if self.lost:
            raise RequestError(self.lost)
        self.requests += 1
        return Asked(self)

    def close(self) -> None:
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive(), "a handler that does not end"


class Asked:
    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.body, self.answer = Pipe(relay.room), Pipe(relay.room)
        self.error: str | None = None
        self.said = False  # something since it last waited
        thread = threading.Thread(target=self._run, name="handler")
        relay.threads.append(thread)
        thread.start()

    def _run(self) -> None:
        try:
            self.relay.handler(Incoming(self))
        except Exception as error:
            self.error = str(error) or type(error).__name__
        self.body.set("deaf")
        self.answer.set("whole")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._check()
        self.said = True
        if not self.body.put(data):
            raise BrokenPipeError("the handler reads no more")

    def end(self) -> None:
        self._check()
        self.body.set("whole")

    def read(self, size: int) -> bytes:
        self._check()
        if self.said:
            self.relay.waits += 1
            self.said = False
        data = self.answer.get(size)
        self._check()
        if not data and self.error is not None:
            raise RequestError(self.error)
        return data

    def send_file(self, fd: int, length: int) -> int:
        return carry(lambda size: os.read(fd, size), self.write, length)

    def receive_file(self, fd: int, length: int) -> int:
        return carry(self.read, lambda data: os.write(fd, data), length)

    def close(self) -> None:
        if not self.body.whole:
            self.body.set("broken")
        self.answer.set("deaf")

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self) -> None:
        if self.relay.lost:
            self.close()
            raise RequestLost(self.relay.lost)


class Incoming:
    def __init__(self, asked: Asked) -> None:
        self.asked = asked

    def read(self, size: int) -> bytes:
        data = self.asked.body.get(size)
        if not data and not self.asked.body.whole:
            raise Abandoned("the requester has gone")
        return data

    def write(self, data: bytes) -> None:
        if not self.asked.answer.put(data):
            raise Abandoned("the requester has gone")

    def send_file(self, fd: int, length: int) -> int:
        return carry(lambda size: os.read(fd, size), self.write, length)

    def receive_file(self, fd: int, length: int) -> int:
        return carry(self.read, lambda data: os.write(fd, data), length)


def carry(read: Callable[[int], bytes], write: Callable[[bytes], object], length: int) -> int:
    left = length
    while left and (data := read(min(left, 50_000))):
        write(data)
        left -= len(data)
    return length - left


@contextlib.contextmanager
def joined(handler: Callable[[Any], None], room: int = 100_000) -> Any:
    """A relay whose handlers have ended at the end."""
    relay = Relay(handler, room)
    try:
        yield relay
    finally:
        relay.close()
