"""Signals caught by a process that waits in one poll: noted by the handler, taken by the loop.

Laws
1. A handler only notes its signal; the descriptor `fd` is readable then, so no poll sleeps over it.
2. A signal that is ignored in this process (nohup, a background job) stays ignored.
3. Handlers are put back as they were found.
"""

from __future__ import annotations

import os
import time

from transport.lean import deque, signal
from transport.stop import TOGETHER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


class Caught:
    """The signals noted. To be used in the main thread; other threads may write to `fd_in` to wake the poll."""

    def __init__(self) -> None:
        self._noted: deque[int] = deque()
        self._previous: dict[int, Any] = {}
        self._wakeup = -1
        self._resumed = 0.0  # when SIGCONT was noted last
        self.fd, self.fd_in = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self.fd_in, False)

    def install(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self._previous[number] = signal.signal(number, self._note)
            if self._previous[number] is signal.SIG_IGN:
                signal.signal(number, signal.SIG_IGN)
        self._wakeup = signal.set_wakeup_fd(self.fd_in, warn_on_full_buffer=False)

    def ignore(self, number: int) -> None:
        """Ignore a signal until `uninstall`."""
        self._previous[number] = signal.signal(number, signal.SIG_IGN)

    def uninstall(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, action in self._previous.items():
            signal.signal(number, action if action is not None else signal.SIG_DFL)
        self._previous.clear()

    def _note(self, number: int, _frame: object) -> None:
        if (
            number == signal.SIGTSTP
            and signal.SIGCONT in self._noted
            and time.monotonic() - self._resumed < TOGETHER
        ):
            noted = list(self._noted)
            self._noted.insert(len(noted) - 1 - noted[::-1].index(signal.SIGCONT), number)
            return
        if number == signal.SIGCONT:
            self._resumed = time.monotonic()
        self._noted.append(number)

    def __contains__(self, number: int) -> bool:
        """Whether the signal has been noted and not been taken."""
        return number in self._noted

    def take(self) -> int:
        """Return the next signal, 0 if there is none."""
        return self._noted.popleft() if self._noted else 0

    def drain(self) -> bool:
        """Make `fd` unreadable again; return False if nothing was in it."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return False
        return True

    def stop(self, number: int, fatal: Iterable[int]) -> bool:
        """Stop this process by `number`, as the kernel does. Return False if a `fatal` signal was noted before.

        Returns when the process is continued; at once if `number` is ignored, and in an orphaned process group, which
        nobody could continue. A fatal signal that was only noted just before the stop would wait for the next SIGCONT.
        So such signals get their default action before the noted ones are checked, and end the process.
        """
        if signal.getsignal(number) is signal.SIG_IGN:
            return True
        numbers = [number, *(one for one in fatal if signal.getsignal(one) is not signal.SIG_IGN)]
        # Blocked while they change: Python drops a signal whose handler is replaced after it came and before it ran.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
        try:
            previous = [(one, signal.signal(one, signal.SIG_DFL)) for one in numbers]
            ended = any(one in self for one in numbers[1:])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if not ended:
            os.kill(os.getpid(), number)
        for one, action in previous:
            signal.signal(one, signal.SIG_DFL if action is None else action)
        return not ended

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.fd_in)
