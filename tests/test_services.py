"""The origin's side of requests against who asks too much: bodies, requests, handlers that are still at work."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Iterator

import pytest

from transport import services
from transport.frames import Kind
from transport.services import Services
from transport.session import STDIN, Session


class Asker:
    """A node's session and a face's, joined, and the services between them."""

    def __init__(self, handlers: dict[str, Callable[[bytes], bytes]]) -> None:
        self.read, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        self.face, self.node = Session(True, {}), Session(False, {})
        self.services = Services(self.face, handlers, self.wake, "c")
        self.answers: dict[int, str | None] = {}
        self.carry()

    def carry(self) -> None:
        while self.face.has_output or self.node.has_output:
            for frame in self.face.receive(b"".join(self.node.pull(1 << 20))):
                self.services.on_frame(frame)
            for frame in self.node.receive(b"".join(self.face.pull(1 << 20))):
                if frame.kind == Kind.REPLY:
                    self.answers[frame.channel] = frame.body()["error"]

    def ask(self, body: bytes, whole: bool = True) -> int:
        number = self.node.open(Kind.REQUEST, {"name": "work", "capability": "c"})
        self.carry()
        for at in range(0, len(body), 50_000):
            if number in self.answers:
                break
            self.node.data(number, STDIN, body[at : at + 50_000])
            self.carry()
        if whole and number not in self.answers:
            self.node.eof(number, STDIN)
            self.carry()
        return number

    def take_back(self, number: int) -> None:
        self.node.abandon(number)
        self.carry()

    def wait(self, count: int) -> None:
        """Until so many handlers have answered."""
        while count:
            assert select.select([self.read], [], [], 60)[0]
            count -= len(os.read(self.read, count))
        self.services.send()
        self.carry()


@pytest.fixture
def gate() -> threading.Event:
    return threading.Event()


@pytest.fixture
def asker(gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asker]:
    monkeypatch.setattr(services, "MAX_BODY", 100_000)
    monkeypatch.setattr(services, "HELD", 250_000)
    monkeypatch.setattr(services, "MAX_OPEN", 4)

    def work(body: bytes) -> bytes:
        assert gate.wait(120)
        return b"%d" % len(body)

    made = Asker({"work": work})
    yield made
    gate.set()
    made.services.close()
    assert made.services._pool is None or made.services._pool.shutdown(wait=True) is None
    os.close(made.read)
    os.close(made.wake)


def test_one_body_has_a_bound(asker: Asker) -> None:
    assert asker.answers[asker.ask(b"x" * 150_000)] == "a request of more than 100000 bytes"


def test_what_was_taken_back_counts_while_it_is_worked_on(asker: Asker, gate: threading.Event) -> None:
    for _ in range(4):
        asker.take_back(asker.ask(b"x" * 50_000))
    late = asker.ask(b"x")
    assert asker.answers[late] == "too many requests at one time"
    gate.set()
    asker.wait(4)
    last = asker.ask(b"x")
    asker.wait(1)
    assert asker.answers[last] is None and asker.services._held == 0
