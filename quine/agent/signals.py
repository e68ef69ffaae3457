"""Signals of an agent: handlers record them at once, and the loop acts on them where it is safe.

An exception raised at any point would leave a half-written tape entry or a half-started child. So handlers only record,
and raise in one place: inside `interruptible()`, which is open exactly while the loop waits.

Laws
1. A handler raises `Terminated` only inside `interruptible()`, and never after the end of the agent has begun.
2. A signal that was ignored when the process was started (nohup, `&` in a shell) stays ignored.
3. SIGINT ends the agent: a script that goes on after ^C, since a command had been interrupted and the agent ended well,
   has deployed what nobody had looked at. With --interrupt=command it goes to the running command or children, if there
   are any, and a line says so; a second one within a second ends the agent.
4. A program that replaces this one (execve) gets the mask back and no disposition of Python's: CPython ignores SIGPIPE
   and SIGXFSZ, and an ignored signal stays ignored through execve.
5. A write of this process to a peer that has gone raises SIGPIPE, too. `block_sigpipe()` tells it from a sent one.
6. A signal also interrupts calls that wait in other code: see `wake_if_stuck()`. The polls of the agent include `fd`,
   and so does the wait for the origin, `until_ready()`.
7. A peer that does not answer delays the end of an agent by at most `HURRY` seconds: see `ready()`.
"""

from __future__ import annotations

import _thread
import os
import select
import time

from quine.base import procs
from quine.base.errors import say
from transport.lean import contextlib, signal
from transport.status import signal_name
from transport.stop import TOGETHER, stop_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from transport.lean import socket

FATAL = (
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGPIPE,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGXCPU,
)
HANDLED = (*FATAL, signal.SIGINT, signal.SIGALRM, signal.SIGTSTP, signal.SIGCONT)
PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)
KICK = signal.SIGURG  # sent by this process to itself; ignored by default
KICKS = (200, 1000, 5000)  # milliseconds to wait for a call to end by itself before each kick
TWICE = 1.0  # seconds between two SIGINT that together end the agent
HURRY = 3.0  # seconds without a byte from a peer after a fatal signal; a node sends KILL 5 s after TERM
INTERRUPTED = "quine: the running command was interrupted; ^C twice ends the agent\n"
STEP = 0.25  # seconds between two checks of `fatal`
# minimum and maximum seconds for the last answer of the guest after the deadline of the tree
ANSWER = (10.0, 60.0)


class Terminated(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"terminated by SIG{signal_name(number)}")
        self.number = number


class Signals:
    """Signal state of this process; a forked child resets it with `renew`."""

    def __init__(self) -> None:
        self.fatal = 0
        self.alarm = False
        self._resumed = -TWICE  # when SIGCONT was handled; -TWICE: not since the last SIGTSTP
        self._stopping = False
        self.commands_first = False  # SIGINT is for the running command, if there is one
        self.interrupts = 0  # SIGINTs for the running command, since it began
        self.others: Callable[[], list[int]] = list  # pids stopped and continued with this process
        self._running = False
        self._open = 0
        self._ending = False
        self._last = -TWICE
        self._over = float("inf")
        self._due = float("inf")  # when the timer rings
        self._left: Callable[[], float | None] = _none
        self._limit = 0.0
        self._wake = (-1, -1)
        self.tied = -1  # pipe tied to this process: TERM if the waiting parent is killed (fork.py)
        self.mask: set[int] = set()

    def install(self, mask: set[int] | None = None) -> None:
        """Install the handlers. `mask`: the original signal mask, if a previous session of this process changed it."""
        self.mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, ())) if mask is None else mask
        self._pipe()
        for number in HANDLED:
            # Python itself ignores SIGPIPE, so its disposition at the start is unknown.
            if number == signal.SIGPIPE or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)
        signal.signal(KICK, self._again)
        # If the caller ignored SIGCHLD, the kernel would reap children and their statuses would be lost.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if os.getpid() > 1 else _wake)
        if os.isatty(0):
            # The shell is a background process group: otherwise reading the terminal would stop it for ever.
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)
            signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    def renew(self) -> None:
        """In a forked child: forget the signals of the parent and make a new wake-up pipe."""
        self.fatal = self.interrupts = self._open = 0
        self.alarm = self._running = self._ending = False
        self._last = -TWICE
        self.others = list
        for fd in (*self._wake, self.tied):
            if fd >= 0:
                os.close(fd)
        self.tied = -1
        self._pipe()

    def arm(self, left: Callable[[], float | None], limit: float) -> None:
        """Set SIGALRM for the deadline of the tree, in `left()` seconds, and a second one that ends the agent.

        A timer survives execve and is not inherited by a forked child, so each session arms its own. A tenth of
        `limit`, the whole time in seconds, is added for the last answer (within ANSWER). `left` is asked again when
        the time is over: the deadline of a purse can have been raised.
        """
        self._left, self._limit = left, limit
        seconds = left()
        if seconds is not None:
            seconds = max(seconds, 0.001)
            grace = last_answer(limit or seconds)
            self._due = time.monotonic() + seconds
            self._over = self._due + grace - 0.01
            signal.setitimer(signal.ITIMER_REAL, seconds, grace)

    def _postponed(self) -> bool:
        """Whether the time is over by the timer, and there is some left after all: then the timer is set anew.

        A SIGALRM that comes earlier is from another process, and means what it says.
        """
        if time.monotonic() < self._due:
            return False
        left = self._left()
        if left is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self._due = float("inf")
        elif left > 0:
            self.arm(self._left, self._limit)
        else:
            return False
        self.alarm = False
        return True

    def remove(self) -> None:
        """Restore dispositions and mask, for another program or a proxy."""
        signal.set_wakeup_fd(-1)
        for fd in self._wake:
            os.close(fd)
        self._wake = (-1, -1)
        for number in (*HANDLED, *PYTHON_IGNORES):
            if signal.getsignal(number) == self._note or number in PYTHON_IGNORES:
                signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGCHLD, KICK):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self.mask)

    @property
    def fd(self) -> int:
        """Descriptor that is readable after a signal; every poll of the agent includes it."""
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
    def wake_if_stuck(self) -> Iterator[None]:
        """Like `interruptible`, for a call that may wait in other code; main thread only.

        A signal interrupts a system call that waits, but not one about to begin: Python checks for signals before it,
        and again only when it ends, which for a silent server is in ten minutes. And Python drops exceptions that a
        handler raises in a destructor. So a thread waits for a signal, and kicks the main thread while it is in here.
        """
        over, leave = os.pipe2(os.O_CLOEXEC)
        try:
            with (
                self.block_signals()
            ):  # the thread keeps this mask, or it would get signals blocked in the main one
                _thread.start_new_thread(self._wake_if_stuck, (over, _thread.get_ident()))
        except RuntimeError:  # no more threads: then without kicks
            os.close(over)
        try:
            with self.interruptible():
                yield
        finally:
            os.close(leave)

    def _wake_if_stuck(self, over: int, main: int) -> None:
        """Body of the thread, which ends when the other end of `over` is closed."""
        poll = select.poll()
        poll.register(over, 0)
        poll.register(self.fd, select.POLLIN)
        ended = over in dict(poll.poll())
        poll.unregister(self.fd)  # not read: the polls of the agent need it later
        for pause in KICKS:
            ended = ended or bool(poll.poll(pause))
            if not ended:
                with contextlib.suppress(
                    ProcessLookupError
                ):  # it has ended, and the process with it in a moment
                    signal.pthread_kill(main, KICK)
        os.close(over)

    def _again(self, number: int, frame: FrameType | None) -> None:
        if self.fatal and self._open and not self._ending:
            raise Terminated(self.fatal)

    def end(self) -> None:
        """From now on signals are recorded and interrupt nothing.

        `_open` is not enough: it stays raised if Terminated came between a `with` and its context manager.
        """
        self._ending = True

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While this is open, SIGINT is counted for the running command or children, and orphans are reaped.

        Only the waits inside are interruptible. Otherwise a child could be reaped without being recorded as reaped,
        and the end of the agent would wait for it again.
        """
        self.interrupts = 0
        self._running = True
        # A process that a command leaves behind stays below this one: so it is known to be of this tree, whatever its
        # session, environment and descriptors are.
        procs.adopt_orphans()
        signal.signal(signal.SIGCHLD, _wake)
        try:
            yield
        finally:
            self._running = False
            if os.getpid() > 1:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    @contextlib.contextmanager
    def calling_out(self, elsewhere: bool = False) -> Iterator[None]:
        """Combine `wake_if_stuck` and `block_sigpipe`, for a call that writes to a peer and may take long.

        With `elsewhere` the peer is the origin, and the wait for it is `until_ready`, which needs no thread to end it.
        """
        with self.interruptible() if elsewhere else self.wake_if_stuck():
            with self.block_sigpipe():
                yield
            if self.fatal:
                raise Terminated(self.fatal)

    @contextlib.contextmanager
    def block_sigpipe(self) -> Iterator[None]:
        """Block SIGPIPE. One caused by a write of this process is dropped; one that was sent is recorded at the end."""
        # Read first: if a handler raised in the blocking call, the old mask would be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
            yield
        finally:
            self._sift(before)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _sift(self, before: set[int]) -> None:
        """Consume pending SIGPIPEs, and record one sent by another process."""
        if signal.SIGPIPE in before:
            return  # an outer block_sigpipe() is open
        while (info := signal.sigtimedwait([signal.SIGPIPE], 0)) is not None:
            if info.si_pid != os.getpid():  # for a write, the kernel gives the pid of the writer
                self.fatal = self.fatal or signal.SIGPIPE

    def ready(self, channel: socket.socket, event: int) -> None:
        """Wait until `channel` is ready for `event` of poll(2); signals do not interrupt the wait.

        After a fatal signal, also an earlier one, the wait lasts HURRY seconds at most. Raises TimeoutError.
        """
        poll = select.poll()
        poll.register(channel, event)
        over = float("inf")
        # `fd` is not in this poll: it would have to be drained, and another poll may wait for it.
        while not poll.poll(STEP * 1000):
            if self.fatal:
                over = min(over, time.monotonic() + HURRY)
            if time.monotonic() >= over:
                raise TimeoutError(f"no answer for {HURRY:g} s")

    def until_ready(self, channel: socket.socket, event: int) -> None:
        """Wait until `channel` is ready for `event`, for as long as its timeout. Raises TimeoutError.

        Within `interruptible` a fatal signal ends the wait, also one that came just before: it has written to `fd`.
        """
        poll = select.poll()
        poll.register(channel, event)
        if poll.poll(0):
            return
        patience = channel.gettimeout()
        over = float("inf") if patience is None else time.monotonic() + patience
        if self.fd >= 0:
            both = select.poll()
            both.register(channel, event)
            both.register(self.fd, select.POLLIN)  # not read: the polls of the agent need it later
            both.poll(None if patience is None else patience * 1000)
        while not poll.poll(STEP * 1000):
            if self.fatal and self._open and not self._ending:
                raise Terminated(self.fatal)
            if time.monotonic() >= over:
                raise TimeoutError("timed out")

    @contextlib.contextmanager
    def block_signals(self) -> Iterator[None]:
        """Block all handled signals, around fork() and execve()."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _pipe(self) -> None:
        self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)

    def _for_command(self) -> bool:
        """Whether SIGINT is for the running command."""
        return self.commands_first and self._running and time.monotonic() - self._last >= TWICE

    def _stop(self) -> None:
        """Stop this process and the others until SIGCONT; within another call, leave it to that one."""
        if self._stopping:
            return
        self._stopping = True
        try:
            _tell(self.others(), signal.SIGTSTP)
            stop_process(lambda: self._resumed > -TWICE)
            _tell(
                self.others(), signal.SIGCONT
            )  # again: a SIGCONT may have come while they were being stopped
        finally:
            self._stopping = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGALRM and self._postponed():
            pass
        elif number == signal.SIGALRM and time.monotonic() < self._over:
            self.alarm = True
        elif number == signal.SIGTSTP:
            if self._resumed < time.monotonic() - TOGETHER:
                self._resumed = -TWICE
                self._stop()
        elif number == signal.SIGCONT:
            _tell(self.others(), signal.SIGCONT)
            self._resumed = time.monotonic()
        elif number == signal.SIGINT and self._for_command():
            self._last = time.monotonic()
            self.interrupts += 1
            say(INTERRUPTED)
        else:
            self.fatal = self.fatal or number
            if self._open and not self._ending:
                raise Terminated(self.fatal)


def last_answer(limit: float) -> float:
    """Return the seconds that an agent has for its last answer, after a deadline of `limit` seconds."""
    return min(max(limit / 10, ANSWER[0]), ANSWER[1])


def _none() -> None:
    """The time left of an agent that has no deadline."""


def _wake(number: int, frame: FrameType | None) -> None:
    """Handler of SIGCHLD: its call makes `fd` readable, so that orphans are reaped. PID 1 always has it."""


def _tell(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
