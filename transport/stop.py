"""Stopping this process, as SIGTSTP does, for a process that has a handler for it and for SIGCONT.

Laws
1. A SIGCONT that comes after the SIGTSTP prevents the stop, or ends it. Nobody sends a second one: a process that
   stopped itself after it would stay stopped, and take no SIGTERM.
2. Of two that came together, within TOGETHER, the SIGCONT counts as the later one. Python calls their handlers in the
   order of their numbers, SIGCONT first, and the kernel may run the C handler of the later one first. A lost stop can
   be asked for again; an agent that stays stopped takes no other signal.
3. The kernel discards a pending SIGCONT when a process sends itself a stop. So the stop comes PAUSE after the SIGTSTP:
   a SIGCONT that follows at once has been handled by then.
4. In an orphaned process group, where the kernel does not stop by SIGTSTP, the process is stopped by SIGSTOP.
"""

from __future__ import annotations

import _thread
import os
import time

from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

TOGETHER = 0.001  # seconds between two handlers
PAUSE = 0.02  # seconds


def stop_process(continued: Callable[[], bool]) -> None:
    """Stop this process until SIGCONT. To be called in the main thread.

    `continued`: returns whether SIGCONT was handled after the SIGTSTP that is being handled.
    """
    time.sleep(PAUSE)
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
