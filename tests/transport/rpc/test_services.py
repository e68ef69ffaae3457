"""The origin's side of requests against who asks too much: bodies, requests, handlers that are still at work."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from tests.lab.machine import readable
from transport.rpc import services
from transport.rpc.services import Services
from transport.wire.frames import Kind
from transport.wire.session import STDIN, Session


class Asker:
    """A node's session and a proxy's, joined, and the services between them."""

    def __init__(self, handlers: dict[str, Callable[[bytes], bytes]]) -> None:
        self.read, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        self.proxy, self.node = Session(True, {}), Session(False, {})
        self.notes: list[str] = []
        self.services = Services(self.proxy, handlers, self.wake, "c", self.notes.append)
        self.answers: dict[int, str | None] = {}
        self.carry()

    def carry(self) -> None:
        while self.proxy.has_output or self.node.has_output:
            for frame in self.proxy.receive(b"".join(self.node.pull(1 << 20))):
                self.services.on_frame(frame)
            for frame in self.node.receive(b"".join(self.proxy.pull(1 << 20))):
                if frame.kind == Kind.REPLY:
                    self.answers[frame.channel] = frame.body()["error"]

    def ask(self, body: bytes, whole: bool = True, name: str = "work") -> int:
        number = self.node.open(Kind.REQUEST, {"name": name, "capability": "c"})
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
            assert readable(self.read, 60)
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

    def fail(body: bytes) -> bytes:
        raise SystemExit(3) if body == b"leave" else ValueError(f"no such {body!r}")

    made = Asker({"work": work, "tape": lambda body: b"", "fail": fail})
    yield made
    gate.set()
    made.services.close()
    for pool in made.services._pools.values():
        pool.shutdown()
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


def test_a_cheap_request_does_not_wait_for_those_that_block(
    asker: Asker, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "THREADS", 2)
    for _ in range(3):  # one more than there are threads for it
        asker.ask(b"x")
    written = asker.ask(b"x", name="tape")
    asker.wait(1)
    assert asker.answers == {written: None}
    gate.set()
    asker.wait(3)
    assert len(asker.answers) == 4


def test_where_no_thread_can_be_started_a_request_is_refused_and_never_runs(
    asker: Asker, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    gate.set()
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refuse)
        first = asker.ask(b"a")
    assert asker.answers == {first: "no thread can be started at the origin"}
    second = asker.ask(b"b")  # its thread finds the first in the queue
    asker.wait(1)
    assert asker.answers[second] is None


def test_the_traceback_of_a_handlers_defect_is_for_the_log(asker: Asker) -> None:
    failed = asker.ask(b"x", name="fail")
    asker.wait(1)
    assert asker.answers[failed] == "no such b'x'"
    assert any("Traceback" in note and "in fail" in note for note in asker.notes), asker.notes


def test_a_handler_that_wants_to_end_the_process_is_answered_for_and_its_thread_goes_on(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "THREADS", 1)
    for body, answer in ((b"leave", "3"), (b"x", "no such b'x'")):
        failed = asker.ask(body, name="fail")
        asker.wait(1)
        assert asker.answers[failed] == answer


def test_of_many_jobs_each_has_its_capability_and_its_services(asker: Asker) -> None:
    """The capability of one job opens nothing of another, and nothing of a job that is over."""
    rights = {1: ("c", {"work": lambda body: b""}), 3: ("d", {"tape": lambda body: b""})}
    asker.services._rights = lambda job: rights.get(job) if isinstance(job, int) else None  # type: ignore[assignment]

    def ask(job: object, name: str, capability: str) -> str | None:
        number = asker.node.open(Kind.REQUEST, {"name": name, "capability": capability, "job": job})
        asker.node.eof(number, STDIN)
        asker.carry()
        if number not in asker.answers:
            asker.wait(1)
        return asker.answers[number]

    assert ask(1, "work", "c") is None and ask(3, "tape", "d") is None
    wrong = "the capability is not that of this job"
    for job, name, capability in ((3, "tape", "c"), (1, "work", "d"), (5, "work", "c"), (None, "work", "c")):
        assert ask(job, name, capability) == wrong
    assert ask(3, "work", "d") == "no service named 'work' at the origin"
