"""The courier of tapes: one request at a time, in order, again after an error, and what was killed is cleared away."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from quine.base.errors import LOST, Failure
from quine.base.sessions import new_session
from quine.tape import courier
from tests.lab.machine import readable
from tests.support.waiting import until
from transport.errors import RequestError


class Origin:
    """The other end: a file that the courier's process appends to, and what it answers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.refuses = path.with_name("refuses")
        path.touch()

    def send(self, name: str, body: bytes) -> bytes:
        if self.refuses.exists():
            raise RequestError("tape: not now")
        with self.path.open("ab") as file:
            file.write(body + b"\n")
        return b""

    def report(self) -> None: ...

    def return_rest(self) -> None:
        with self.path.open("ab") as file:
            file.write(b"null\n")

    @property
    def lines(self) -> list[tuple[str, str]]:
        """(session, line) in the order of their arrival; ("", "") where the rest was returned."""
        found = []
        for raw in self.path.read_text().splitlines():
            body = json.loads(raw)
            found += [(body["session"], line) for line in body["lines"]] if body else [("", "")]
        return found


def wait(line: socket.socket, event: int) -> None:
    poll = select.poll()
    poll.register(line, event)
    assert poll.poll(60_000)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[tuple[Origin, str, str]]:
    origin, folder, path = (
        Origin(tmp_path / "arrived"),
        str(tmp_path / "data" / "direct"),
        str(tmp_path / "a.tapes"),
    )
    courier.start(folder, path, origin.send, origin.report, origin.return_rest)
    yield origin, folder, path
    courier.ask(path, courier.END, wait)


def test_all_of_it_arrives_in_order_and_nothing_stays(made: tuple[Origin, str, str]) -> None:
    origin, folder, path = made
    first, second = new_session(), new_session()
    sinks = {session: courier.SpooledSink(folder, path, session) for session in (first, second)}
    for number in range(3):
        for session, sink in sinks.items():
            sink.put([b"%d" % number])
            assert session
    for sink in sinks.values():
        sink.close()
    assert courier.ask(path, courier.FLUSH, wait) == ""
    assert origin.lines[0] == (first, "0"), "the first session is the one that the others descend from"
    for session in sinks:
        assert [line for each, line in origin.lines if each == session] == ["0", "1", "2"]
    assert courier.ask(path, courier.END, wait) == ""
    assert origin.lines[-1] == ("", "") and not os.path.exists(folder) and not os.path.exists(path)
    assert courier.ask(path, courier.FLUSH, wait) == courier.GONE


def test_an_index_that_cannot_be_written_is_a_tape_that_is_lost(
    made: tuple[Origin, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder, path = made
    monkeypatch.setattr(courier, "INDEX", "no/index")  # of this process; the courier has read its own
    sink = courier.SpooledSink(folder, path, new_session())
    with pytest.raises(Failure, match="no/index cannot be written: No such file") as caught:
        sink.put([b"{}"])
    assert caught.value.status == LOST
    sink.close()


def test_a_line_under_way_is_not_sent(made: tuple[Origin, str, str]) -> None:
    origin, folder, path = made
    session = new_session()
    sink = courier.SpooledSink(folder, path, session)
    sink.put([b"whole"])
    with open(f"{folder}/{session}.jsonl", "ab") as file:
        file.write(b"half")
        file.flush()
        assert courier.ask(path, courier.FLUSH, wait) == ""
        assert origin.lines == [(session, "whole")]
        file.write(b" and half\n")
    assert courier.ask(path, courier.FLUSH, wait) == ""
    assert origin.lines == [(session, "whole"), (session, "half and half")]
    sink.close()


def test_a_tape_that_is_refused_stays_and_is_told_of(made: tuple[Origin, str, str]) -> None:
    origin, folder, path = made
    session = new_session()
    origin.refuses.touch()
    sink = courier.SpooledSink(folder, path, session)
    sink.put([b"line"])
    sink.close()
    said = courier.ask(path, courier.END, wait)
    assert said == f"{folder}/{session}.jsonl has not arrived: tape: not now"
    assert Path(folder, f"{session}.jsonl").read_bytes() == b"line\n"


def test_bytes_that_are_no_text_end_one_tape_and_not_the_courier(made: tuple[Origin, str, str]) -> None:
    origin, folder, path = made
    first, second = new_session(), new_session()
    for session, line in ((first, b"\xff"), (second, b"text")):
        sink = courier.SpooledSink(folder, path, session)
        sink.put([line])
        sink.close()
    said = courier.ask(path, courier.END, wait)
    assert said.startswith(f"{folder}/{first}.jsonl has not arrived: 'utf-8' codec can't decode")
    assert origin.lines == [(second, "text"), ("", "")]
    assert Path(folder, f"{first}.jsonl").read_bytes() == b"\xff\n"


def test_sockets_of_couriers_that_were_killed_are_removed_and_no_others(tmp_path: Path) -> None:
    stale, alive, begun, other = (tmp_path / name for name in ("a.tapes", "b.tapes", "c.tapes~", "d.sock"))
    lines = []
    for path in (stale, alive, begun, other):
        lines.append(socket.socket(socket.AF_UNIX))
        lines[-1].bind(str(path))
    lines[1].listen()
    for line in (lines[0], *lines[2:]):
        line.close()
    courier._remove_stale(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.tapes", "c.tapes~", "d.sock"]
    lines[1].close()


def test_it_ends_with_the_first_agent_that_has_not_asked_it_to(tmp_path: Path) -> None:
    """The agent was killed: all that it has written arrives, and the rest of the budget goes back."""
    origin, folder, path = Origin(tmp_path / "arrived"), str(tmp_path / "data"), str(tmp_path / "a.tapes")
    session = new_session()
    agent = os.fork()
    if not agent:
        try:
            courier.start(folder, path, origin.send, origin.report, origin.return_rest)
            courier.SpooledSink(folder, path, session).put([b"last words"])
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(agent, 0)
    until(lambda: origin.lines[-1:] == [("", "")], "the rest was returned")
    assert origin.lines == [(session, "last words"), ("", "")]
    until(lambda: not os.path.exists(folder), "the folder is gone")


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_it_does_not_wait_for_ever_for_a_link_that_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The first agent is killed before or while a request waits."""
    monkeypatch.setattr(courier, "LINGER", 0.1)
    folder, path, session = str(tmp_path / "data"), str(tmp_path / "a.tapes"), new_session()
    alive, held = os.pipe()  # its end is that of the last process that holds it
    waits = tmp_path / "waits"
    go, end = os.pipe()

    def never(name: str, body: bytes) -> bytes:
        waits.touch()
        while True:
            readable(alive, 60)

    agent = os.fork()
    if not agent:
        try:
            courier.start(folder, path, never, lambda: None, lambda: None)
            courier.SpooledSink(folder, path, session).put([b"line"])
            if when == "meanwhile":
                os.read(go, 1)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.close(held)
    until(waits.exists, "a request waits")
    os.write(end, b"x")
    os.waitpid(agent, 0)
    assert readable(alive, 60) and os.read(alive, 1) == b""
    assert Path(folder, f"{session}.jsonl").read_bytes() == b"line\n"
    for fd in (alive, go, end):
        os.close(fd)
