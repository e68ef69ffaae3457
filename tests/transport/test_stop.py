"""A process stops itself at SIGTSTP, and never after the SIGCONT that followed."""

from __future__ import annotations

import ctypes
import os
import select
import signal
from collections.abc import Callable

import pytest

from quine.agent.signals import Signals
from tests.support.agents import PATIENCE
from tests.transport.client.test_signals import ended, stopped_by
from transport import stop
from transport.client import signals
from transport.client.signals import Caught


def child(body: Callable[[list[int]], None], orphaned: bool = False) -> int:
    """The pid of a process that notes CONT, runs `body` and exits with the number of those that it noted."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            os.setsid() if orphaned else os.setpgid(0, 0)
            noted: list[int] = []
            signal.signal(signal.SIGCONT, lambda number, _: noted.append(number))
            body(noted)
            handler = signal.getsignal(signal.SIGTSTP)
            status = len(noted) if handler is signal.SIG_DFL and not signal.sigpending() else 98
        finally:
            os._exit(status)
    return pid


@pytest.mark.parametrize(("orphaned", "number"), [(False, signal.SIGTSTP), (True, signal.SIGSTOP)])
def test_stopped_until_cont(orphaned: bool, number: int) -> None:
    pid = child(lambda noted: stop.stop_process(lambda: bool(noted)), orphaned)
    assert stopped_by(pid) == number
    os.kill(pid, signal.SIGCONT)
    assert ended(pid) == 1


def test_not_after_a_cont() -> None:
    def body(noted: list[int]) -> None:
        os.kill(os.getpid(), signal.SIGCONT)
        stop.stop_process(lambda: bool(noted))

    assert ended(child(body)) == 1


@pytest.mark.parametrize("orphaned", [False, True])
def test_not_if_cont_comes_after_the_look(orphaned: bool) -> None:
    """It would have stayed stopped: nobody sends a second one."""

    def body(noted: list[int]) -> None:
        def look() -> bool:
            before = bool(noted)
            if not before:
                os.kill(os.getpid(), signal.SIGCONT)
            return before

        stop.stop_process(look)

    assert ended(child(body, orphaned)) == 1


def test_not_by_a_handler_that_raises() -> None:
    """A SIGTERM between the two ends the process: it must not be stopped before it does."""

    def body(noted: list[int]) -> None:
        def look() -> bool:
            raise TimeoutError

        with pytest.raises(TimeoutError):
            stop.stop_process(look)

    assert ended(child(body)) == 0


def test_of_two_that_came_together_the_cont_is_the_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python calls the handlers of signals that came together by their numbers: CONT, then the TSTP before it."""
    now = 100.0
    monkeypatch.setattr(signals.time, "monotonic", lambda: now)
    for gap, order in ((0.0, [signal.SIGTSTP, signal.SIGCONT]), (1.0, [signal.SIGCONT, signal.SIGTSTP])):
        caught = Caught()
        try:
            caught._note(signal.SIGCONT, None)
            now += gap
            caught._note(signal.SIGTSTP, None)
            assert [caught.take(), caught.take(), caught.take()] == [*order, 0]
        finally:
            caught.close()


def test_a_cont_that_came_before_the_handlers_ran(agent_signals: Callable[[], None]) -> None:
    """The agent was stopped for good when both came within one long call."""

    def body(noted: list[int]) -> None:
        signal.signal(signal.SIGCONT, signal.SIG_DFL)
        agent_signals()
        noted.append(1)

    assert ended(child(body)) == 1


@pytest.fixture
def agent_signals() -> Callable[[], None]:
    def both() -> None:
        own = Signals()
        own.install()
        for number in (signal.SIGTSTP, signal.SIGCONT):
            signal.siginterrupt(number, False)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            os.kill(parent, signal.SIGTSTP)
            select.select([own.fd], [], [], PATIENCE)  # the C handler has run when the byte is there
            os.kill(parent, signal.SIGCONT)
            os._exit(0)
        # One call, which signals do not interrupt, until both have come; the handlers of Python run behind it.
        assert ctypes.CDLL(None).waitpid(pid, None, 0) == pid
        own.remove()

    return both


def test_an_ignored_cont_resumes_at_once() -> None:
    def body(noted: list[int]) -> None:
        signal.signal(signal.SIGCONT, signal.SIG_IGN)
        stop.stop_process(lambda: False)

    pid = child(body)
    assert stopped_by(pid) == signal.SIGTSTP
    os.kill(pid, signal.SIGCONT)
    assert ended(pid) == 0
