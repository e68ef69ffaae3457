"""Stopping this process, as SIGTSTP does, for a process that has a handler for it and for SIGCONT.

Laws
1. A SIGCONT that comes after the SIGTSTP prevents the stop, or ends it. Nobody sends a second one: a process that
   stopped itself after it would stay stopped, and take no SIGTERM.
2. The order of the two is that of the bytes of the wakeup descriptor. Python calls the handlers of signals that came
   together in the order of their numbers, SIGCONT first.
3. In an orphaned process group, where the kernel does not stop by SIGTSTP, the process is stopped by SIGSTOP. Only
   there a SIGCONT between the last look and that signal is lost: some microseconds.
"""

from __future__ import annotations

import _thread
import os

from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_PAIR = (signal.SIGTSTP, signal.SIGCONT)


class Latest:
    """Which of SIGTSTP and SIGCONT came last, by the bytes of a wakeup descriptor. All of them are read here."""

    def __init__(self) -> None:
        self.number = 0  # 0: neither has come

    def read(self, fd: int, again: int = -1) -> bool:
        """Read all bytes from `fd`, non-blocking; return False if there were none.

        With `again`, the other end, one byte is written back, so that a poll of `fd` still finds it readable.
        """
        # Blocked: a handler that ran between the read and the loop would take later bytes, and be overruled by these.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PAIR)
        found = False
        try:
            while True:
                try:
                    data = os.read(fd, 4096)
                except BlockingIOError:
                    break
                if not data:
                    break
                found = True
                for byte in data:
                    if byte in _PAIR:
                        self.number = byte
            if found and again >= 0:
                os.write(again, b"\0")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return found


def stop_process(continued: Callable[[], bool]) -> None:
    """Stop this process until SIGCONT. To be called in the main thread.

    `continued`: returns whether SIGCONT was handled after the SIGTSTP that is being handled.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTSTP])
    previous = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    stops = False
    try:
        # Blocked, it waits, and the kernel discards it at a SIGCONT from here on.
        signal.pthread_kill(_thread.get_ident(), signal.SIGTSTP)
        stops = not continued()
    finally:
        if not stops:
            signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # discards it
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGTSTP, signal.SIG_DFL if previous is None else previous)
    if signal.getsignal(signal.SIGCONT) is not signal.SIG_IGN and not continued():
        os.kill(os.getpid(), signal.SIGSTOP)
