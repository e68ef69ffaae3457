"""Signals of a client: noted by the handler, taken by the loop; and how it is stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from transport.client import signals
from transport.client.signals import Caught

FATAL = (signal.SIGTERM, signal.SIGHUP)


def child(body: Callable[[Caught], int]) -> int:
    """The pid of a process that catches FATAL and CONT, runs `body` and exits with what it returns."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)  # in an orphaned group, as that of these tests may be, nothing is stopped
        status = 99
        try:
            one = Caught()
            one.install((*FATAL, signal.SIGCONT))
            status = body(one)
        finally:
            os._exit(status)
    return pid


def stopped_by(pid: int) -> int:
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), status
    return os.WSTOPSIG(status)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_stop_lasts_until_the_cont_which_is_noted() -> None:
    def body(one: Caught) -> int:
        went_on = one.stop(signal.SIGTTOU, FATAL)
        os.kill(os.getpid(), signal.SIGTERM)  # noted again, not the end
        return 7 if went_on and [one.take(), one.take()] == [signal.SIGCONT, signal.SIGTERM] else 1

    pid = child(body)
    assert stopped_by(pid) == signal.SIGTTOU
    os.kill(pid, signal.SIGCONT)
    assert ended(pid) == 7


def test_what_was_noted_before_the_stop_prevents_it() -> None:
    """The CONT of a shell may be taken before the TERM that it belongs to, and would stop a background client anew."""

    def body(one: Caught) -> int:
        os.kill(os.getpid(), signal.SIGCONT)
        os.kill(os.getpid(), signal.SIGTERM)
        return 8 if one.take() == signal.SIGCONT and not one.stop(signal.SIGTTOU, FATAL) else 1

    assert ended(child(body)) == 8


def test_what_comes_between_the_look_and_the_stop_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted only, it would wait for a CONT that nobody sends to a process that was not stopped when it was killed."""

    def body(one: Caught) -> int:
        def late(pid: int, number: int) -> None:
            kill(pid, signal.SIGTERM)
            kill(pid, number)

        kill = os.kill
        monkeypatch.setattr(signals.os, "kill", late)
        one.stop(signal.SIGTTOU, FATAL)
        return 1

    assert ended(child(body)) == -signal.SIGTERM


def test_what_comes_while_it_is_stopped_ends_the_process_when_it_goes_on() -> None:
    pid = child(lambda one: 1 if one.stop(signal.SIGTSTP, FATAL) else 2)
    assert stopped_by(pid) == signal.SIGTSTP
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGCONT)
    assert ended(pid) == -signal.SIGHUP


def test_an_ignored_stop_is_none_and_an_ignored_signal_stays_ignored() -> None:
    def body(one: Caught) -> int:
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        if not one.stop(signal.SIGTTOU, FATAL):
            return 1
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        one.stop(signal.SIGTTIN, FATAL)
        return 9 if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else 2

    pid = child(body)
    assert stopped_by(pid) == signal.SIGTTIN
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGCONT)
    assert ended(pid) == 9
