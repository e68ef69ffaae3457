"""Questions to all brokers of a user, among which may be strangers that refuse, or keep silent, for the true ones."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Event, Thread

import pytest

from quine.broker import asking, wire
from tests.support.agents import PATIENCE

DENIED = {"error": "denied", "detail": "no"}


class Brokers:
    """Brokers of this test in a runtime directory. Each one takes one client, and answers as it is told to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()

    def __enter__(self) -> Brokers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, name: str, answer: dict[str, object], met: Barrier, cuts: int = 0) -> str:
        """Add a broker that answers as soon as all at the barrier were asked, and before that cuts some connections.

        Return its path.
        """
        listener = self.silent(name)

        def serve() -> None:
            for _ in range(cuts):
                listener.accept()[0].close()
            line, _ = listener.accept()
            with line:
                wire.send(line, wire.packed({"nonce": "n"}))
                wire.receive_json(line)
                listener.close()  # another question finds that it has ended
                met.wait(PATIENCE)
                wire.send(line, wire.packed(answer))

        self._run(Thread(target=serve))
        return str(listener.getsockname())

    def dribbling(self, name: str) -> Event:
        """Add a broker that sends a byte now and then, of a frame that has no end. The event ends it."""
        listener, over = self.silent(name), Event()

        def serve() -> None:
            line, _ = listener.accept()
            with line:
                line.sendall(wire.SIZE.pack(wire.LONGEST_HELLO))
                while not over.wait(0.01):
                    line.sendall(b" ")

        self._run(Thread(target=serve))
        return over

    def silent(self, name: str) -> socket.socket:
        listener = self._stack.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(f"{self._directory}/{name}.broker")
        listener.listen()
        return listener

    def _run(self, thread: Thread) -> None:
        thread.start()
        self._stack.callback(thread.join)


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    with tempfile.TemporaryDirectory(prefix="q-", dir="/tmp") as short, Brokers(Path(short)) as made:
        monkeypatch.setattr(asking, "runtime_directory", lambda: short)
        monkeypatch.setattr(asking, "ANSWER", PATIENCE)
        monkeypatch.setattr(asking, "PATIENCE", PATIENCE)
        yield made


def test_a_refusal_counts_if_no_broker_has_raised(brokers: Brokers) -> None:
    """Nothing tells the two apart, so one that refuses what another one says that it has done is named."""
    for raised, why in ((True, ""), (False, "no")):
        met = Barrier(2)  # both are asked before one of them answers
        path = brokers.add(f"a{raised}", DENIED, met)
        brokers.add(f"b{raised}", {"raised": raised}, met)
        opposed = (path,) if raised else ()
        assert asking.raise_purse(1, (None, 2.0, None)) == (raised, why, [], opposed)


def test_strangers_keep_no_broker_from_being_asked(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """More silent ones than are asked at one time, before it in the directory."""

    def asked(path: str, question: dict[str, object], seconds: float) -> dict[str, object]:
        if path == true:
            return {"raised": True}
        Event().wait(seconds)
        raise TimeoutError

    monkeypatch.setattr(asking, "AT_ONCE", 2)
    monkeypatch.setattr(asking, "SOON", 0.01)
    monkeypatch.setattr(asking, "PATIENCE", 0.5)
    monkeypatch.setattr(asking, "_asked", asked)
    *strangers, true = [brokers.silent(name).getsockname() for name in "abcde"]
    assert asking.raise_purse(1, (None, 2.0, None)) == (True, "", strangers, ())


def test_a_broker_that_has_not_answered_has_not_agreed(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that was not asked, as there are more silent ones than are asked at one time."""
    monkeypatch.setattr(asking, "PATIENCE", 0.5)
    monkeypatch.setattr(asking, "AT_ONCE", 2)
    silent = [brokers.silent(name).getsockname() for name in "bcd"]
    assert asking.raise_purse(1, (None, 2.0, None)) == (False, "", silent, ())


def test_a_broker_that_cuts_a_question_is_asked_again(brokers: Brokers) -> None:
    """Its worker was killed, and the next one knows the purse."""
    brokers.add("a", {"raised": True}, Barrier(1), cuts=1)
    assert asking.raise_purse(1, (None, 2.0, None)) == (True, "", [], ())


def test_brokers_that_do_not_answer_have_one_time_for_all(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "ANSWER", 0.5)
    over = brokers.dribbling("a")
    brokers.silent("b")
    try:
        first, second = asking.status()
    finally:
        over.set()
    assert first["error"] == second["error"] == "timed out"
    assert first["path"].endswith("/a.broker") and second["path"].endswith("/b.broker")
