"""Signals of an agent: noted the moment they come, acted upon where the loop can bear it.

A handler that raises anywhere would tear a half-written entry or a half-made child. So handlers only note, and
raise in one place: inside `interruptible()`, which the loop holds open exactly while it waits.

Laws
1. `Terminated` comes out of `interruptible()` and out of nothing else; and no more once the end has begun.
2. A signal that was ignored when we were started (nohup, `&` in a shell) stays ignored.
3. SIGINT goes to what runs, if something runs; the second within a second ends the agent.
4. Whoever takes our place (execve) gets the mask back and no disposition of Python's: CPython ignores SIGPIPE
   and SIGXFSZ, and an ignored signal stays ignored through execve.
5. Our own write to a peer that has gone raises SIGPIPE too. `quiet()` tells it from one that was sent.
6. A call that waits in code that is not ours is not slept through: see `insistent()`. Our own polls hold `fd`.
7. A peer that does not answer holds up the end of an agent for `HURRY` seconds at most: see `ready()`.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from signal import Signals as S
from types import FrameType

from quine.base import procs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.lean import socket

FATAL = (S.SIGTERM, S.SIGHUP, S.SIGPIPE, S.SIGQUIT, S.SIGUSR1, S.SIGUSR2, S.SIGXCPU)
HANDLED = (*FATAL, S.SIGINT, S.SIGALRM, S.SIGTSTP, S.SIGCONT)
PYTHON_IGNORES = (S.SIGPIPE, S.SIGXFSZ)
KICK = S.SIGURG  # from ourselves, and ignored by whoever does not expect it
KICKS = (200, 1000, 5000)  # milliseconds after a signal in which a call should have ended by itself
TWICE = 1.0  # seconds between two SIGINT that mean the agent
HURRY = 3.0  # seconds without a byte of a peer after a fatal signal; a node's KILL follows its TERM after 5
STEP = 0.25  # seconds between two looks at `fatal`
# seconds that a guest has at least and at most to answer when the time of the tree is over
ANSWER = (10.0, 60.0)


class Terminated(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"terminated by {S(number).name}")
        self.number = number


class Signals:
    """One per process; made at the start, and made anew in a forked child by `renew`."""

    def __init__(self) -> None:
        self.fatal = 0
        self.alarm = False
        self.interrupts = 0  # SIGINTs for what runs, since it was begun
        self.others: Callable[[], list[int]] = list  # processes that stop and go on with us
        self._running = False
        self._open = 0
        self._ending = False
        self._last = -TWICE
        self._over = float("inf")
        self._wake = (-1, -1)
        self.tied = -1  # what tells us, by TERM, that who waits for us was killed (fork.py)
        self.mask: set[int] = set()

    def install(self, mask: set[int] | None = None) -> None:
        """Take over. `mask` is the one to restore in others, where a former life of ours had it changed."""
        self.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, ())) if mask is None else mask
        self._pipe()
        for number in HANDLED:
            # SIGPIPE is ignored by Python itself, so whether it was before cannot be known.
            if number == S.SIGPIPE or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        signal.signal(KICK, self._again)
        # Ignored by who started us, it would make the kernel reap our children before we learn how they ended.
        signal.signal(S.SIGCHLD, signal.SIG_DFL if os.getpid() > 1 else _wake)
        if os.isatty(0):
            # The shell is a background group: without this, reading the terminal would stop it for ever.
            signal.signal(S.SIGTTIN, signal.SIG_IGN)
            signal.signal(S.SIGTTOU, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def renew(self) -> None:
        """In a forked child: nothing has happened to this process yet, and it wakes itself."""
        self.fatal = self.interrupts = self._open = 0
        self.alarm = self._running = self._ending = False
        self._last = -TWICE
        self.others = list
        for fd in (*self._wake, self.tied):
            if fd >= 0:
                os.close(fd)
        self.tied = -1
        self._pipe()

    def arm(self, left: float | None, limit: float) -> None:
        """SIGALRM when the time of the tree is over in `left` seconds; and the end, where that is not heeded.

        A timer goes with its process through execve and not into a forked child, so each life arms its own. `limit`
        is the whole time, of which a tenth is added for the answer.
        """
        if left is not None:
            left = max(left, 0.001)
            grace = min(max(limit / 10, ANSWER[0]), ANSWER[1])
            self._over = time.monotonic() + left + grace - 0.01
            signal.setitimer(signal.ITIMER_REAL, left, grace)

    def remove(self) -> None:
        """Give every disposition and the mask back, for code that is not ours (a foreign program, a face)."""
        signal.set_wakeup_fd(-1)
        for fd in self._wake:
            os.close(fd)
        self._wake = (-1, -1)
        for number in (*HANDLED, *PYTHON_IGNORES):
            if signal.getsignal(number) == self._note or number in PYTHON_IGNORES:
                signal.signal(number, signal.SIG_DFL)
        for number in (S.SIGTTIN, S.SIGTTOU, S.SIGCHLD, KICK):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    @property
    def fd(self) -> int:
        """Readable when a signal came; every poll of ours holds it."""
        return self._wake[0]

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake[0], 512):
                pass
        procs.reap_orphans()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """While this is open, a fatal signal raises Terminated."""
        self._open += 1
        try:
            if self.fatal:
                raise Terminated(self.fatal)
            yield
        finally:
            self._open -= 1

    @contextlib.contextmanager
    def insistent(self) -> Iterator[None]:
        """Interruptible, for a call that may wait in code that is not ours; it must be in the main thread.

        A signal ends a system call that waits, but not one that is just about to: Python looked for signals before
        that, and looks again when the call ends, for a server that is silent in ten minutes. And what a handler raises
        in a destructor is dropped. So a thread looks whether a signal came, and kicks us if we are still in here.
        """
        over, leave = os.pipe2(os.O_CLOEXEC)
        try:
            with self.held():  # for the thread for ever: one that we hold back would be delivered to it
                _thread.start_new_thread(self._insist, (over, _thread.get_ident()))
        except RuntimeError:  # no more threads: it is as likely as ever to go well
            os.close(over)
        try:
            with self.interruptible():
                yield
        finally:
            os.close(leave)

    def _insist(self, over: int, main: int) -> None:
        """In the thread, which ends when `over` does."""
        poll = select.poll()
        poll.register(over, 0)
        poll.register(self.fd, select.POLLIN)
        ended = over in dict(poll.poll())
        poll.unregister(self.fd)  # what came is for our own polls, later
        for pause in KICKS:
            ended = ended or bool(poll.poll(pause))
            if not ended:
                signal.pthread_kill(main, KICK)
        os.close(over)

    def _again(self, number: int, frame: FrameType | None) -> None:
        if self.fatal and self._open and not self._ending:
            raise Terminated(self.fatal)

    def end(self) -> None:
        """From here on a signal is noted, and interrupts nothing.

        `_open` alone would not do: where Terminated came between a `with` and its manager, that has not been closed.
        """
        self._ending = True

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While this is open, SIGINT is counted for what runs.

        The waiting in it is interruptible, what it does in between is not: a child that was reaped and not noted
        would be waited for once more, by the end of the agent.
        """
        self.interrupts = 0
        self._running = True
        try:
            yield
        finally:
            self._running = False

    @contextlib.contextmanager
    def calling_out(self) -> Iterator[None]:
        """A call that writes to a peer and may take long: quiet and insistent."""
        with self.insistent():
            with self.quiet():
                yield
            if self.fatal:
                raise Terminated(self.fatal)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """While we write to a peer: a SIGPIPE of our own making is dropped, one that was sent counts afterwards."""
        # First: a handler that raises in a call loses its answer.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, [S.SIGPIPE])
            yield
        finally:
            self._sift(before)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _sift(self, before: set[int]) -> None:
        """Take the pending SIGPIPEs, and note one that somebody sent."""
        if S.SIGPIPE in before:
            return  # another quiet() is open around us
        while (info := signal.sigtimedwait([S.SIGPIPE], 0)) is not None:
            if info.si_pid != os.getpid():  # the kernel names the writer itself
                self.fatal = self.fatal or S.SIGPIPE

    def ready(self, channel: socket.socket, event: int) -> None:
        """Wait until `channel` is ready for `event` of poll(2), which no signal interrupts.

        After a fatal signal, also one that came before, that takes HURRY seconds at most. Raises TimeoutError.
        """
        poll = select.poll()
        poll.register(channel, event)
        over = float("inf")
        # `fd` would have to be drained for this poll, and another poll of ours may wait for what it tells.
        while not poll.poll(STEP * 1000):
            if self.fatal:
                over = min(over, time.monotonic() + HURRY)
            if time.monotonic() >= over:
                raise TimeoutError(f"no answer for {HURRY:g} s")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is delivered while this is open: around fork() and execve()."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _pipe(self) -> None:
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == S.SIGALRM and time.monotonic() < self._over:
            self.alarm = True
        elif number == S.SIGTSTP:
            _tell(self.others(), S.SIGTSTP)
            os.kill(os.getpid(), signal.SIGSTOP)
        elif number == S.SIGCONT:
            _tell(self.others(), S.SIGCONT)
        elif number == S.SIGINT and self._running and time.monotonic() - self._last >= TWICE:
            self._last = time.monotonic()
            self.interrupts += 1
        else:
            self.fatal = self.fatal or number
            if self._open and not self._ending:
                raise Terminated(self.fatal)


def _wake(number: int, frame: FrameType | None) -> None:
    """PID 1 is to learn of the end of orphans; that a handler was called makes `fd` readable."""


def _tell(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
