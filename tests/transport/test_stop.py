"""A process stops itself at SIGTSTP, and never after the SIGCONT that followed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from tests.transport.client.test_signals import ended, stopped_by
from transport import stop


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
