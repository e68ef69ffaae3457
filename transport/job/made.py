"""The node's handle of a process that was made for a job: its signals and its end, across replacements of the launcher.

Law: a signal that a launcher has not confirmed as sent is sent by the node once that launcher is dead.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque

from transport.job.deadline import NEVER, Deadline
from transport.launcher import termination
from transport.status import LOST, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from transport.job.interface import Order, Owner
    from transport.job.launcher_channel import Channel
    from transport.launcher.table import Table

    class Launching(Protocol):
        """`transport.job.launcher_client.Launching`, as its jobs use it."""

        table: Table
        channel: Channel

        @property
        def pid(self) -> int: ...
        def reap(self) -> None: ...
        def find(self, slot: int, command: str, since: float) -> int: ...
        def quick(self, order: Order) -> bool: ...
        def were_quick(self) -> None: ...
        def silent(self, number: int, seconds: float) -> None: ...
        def forget(self, number: int) -> None: ...
        def renumber(self, number: int) -> int: ...
        def join(self, path: str) -> None: ...
        def enter(self, path: str, fd: int, empty: bool) -> None: ...
        def leave(self, path: str, on_left: Callable[[bool], None] | None, left: int = -1) -> None: ...


class Made:
    """The part of `transport.job.interface.Running` that does not start it."""

    def __init__(self, launching: Launching, number: int, order: Order, owner: Owner) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = 0, -1, -1, -1
        self._launching = launching
        self._number = number
        self._order = order
        self._owner: Owner | None = owner
        self._loop = asyncio.get_running_loop()
        self._slot = 0
        self._folder = ""  # joined, and to be left
        self.made = 0  # pid of the process, known before it has started
        self.known: int | None = None  # its wait status, from a launcher that has not reaped it yet
        self._parent = 0
        self._exited = False
        self._reaped = False
        self._signals: deque[int] = deque()  # signals that the launcher has not confirmed yet
        self._ending: bool | None = None  # `hung_up` of `end`, once that was called
        self._time: Deadline | None = None  # from its start, if it has one
        self._alarm: asyncio.TimerHandle | None = None

    # -- from the node -----------------------------------------------------------------------------

    @property
    def _is_adopted(self) -> bool:
        """True if its launcher has died: the node is its parent."""
        return self._parent != self._launching.pid

    def signal(self, number: int) -> None:
        if not self.pid or self._exited:
            return
        if self._is_adopted:
            termination.signal_group(self.pid, number)
            self._loop.call_soon(self._tell_signalled)
        else:
            self._signals.append(number)
            self._launching.channel.send(["signal", self._number, number])

    def end(self, hung_up: bool = False) -> None:
        if self._exited or (self.pid and self._ending is not None):
            return
        self._ending = hung_up
        if not self.pid:
            return  # ended once it has started
        if not hung_up:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
        self._tell_end()

    def keep_time(self) -> None:
        """Start to count the time that it may run."""
        self._time = Deadline(self._order.deadline, self._loop.time())
        self._alarm = self._loop.call_at(self._time.due, self._late)

    def _late(self) -> None:
        if not self._time or self._exited:
            return
        if number := self._time.tick(self._loop.time()):
            for each in (number, signal.SIGCONT):  # a stopped process takes TERM only when it goes on
                self.signal(each)
        if self._time.due != NEVER:
            self._alarm = self._loop.call_at(self._time.due, self._late)

    def _tell_end(self) -> None:
        words = [self._number, self.pid, termination.PAUSE, self._is_adopted]
        self._launching.channel.send(["end", *words])

    # -- from the launcher -------------------------------------------------------------------------

    def signalled(self) -> None:
        self._signals.popleft()
        self._tell_signalled()

    def _tell_signalled(self) -> None:
        if self._owner and not self._exited and not self._signals:
            self._owner.on_signalled()

    def adopt(self) -> None:
        """Its launcher has died: the process is the node's child now. Send the signals that were not confirmed."""
        while self._signals and not self._exited:
            termination.signal_group(self.pid, self._signals[0])
            self.signalled()

    def again(self) -> None:
        """There is another launcher: give it the end that the last one had to carry out."""
        if self.pid and self._ending is not None:
            self._tell_end()
            if self._reaped:
                self._launching.channel.send(["reaped", self._number])

    def wait(self) -> None:
        """Reap the process if it has ended, and if the node is its parent."""
        if not (self.made and self._is_adopted) or self._reaped:
            return
        try:
            pid, status, usage = os.wait4(self.made, os.WNOHANG)
        except ChildProcessError:
            self._reaped = True
            known = self.known if self.known is not None else self._launching.table.entry(self._slot).ended
            if known is not None:
                self._ended(Status.from_wait(known, pid=self.made))
                return
            detail = "the launcher that knew how it ended was killed"
            self._ended(Status("lost", LOST, pid=self.made, detail=detail))
            return
        if pid:
            self._reaped = True
            self.exited(status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
            if self._ending is not None:
                self._launching.channel.send(["reaped", self._number])

    def exited(self, status: int, utime: float, stime: float, maxrss: float, left: int = -1) -> None:
        """It has ended, and its launcher has left its folder with the result `left`, if that is not negative."""
        rusage = {"utime": utime, "stime": stime, "maxrss": float(maxrss)}
        self._ended(Status.from_wait(status, pid=self.made, rusage=rusage), left)

    def _ended(self, status: Status, left: int = -1) -> None:
        self._reaped = True
        if self._exited:
            return
        self._exited = True
        if self._time and self._alarm:
            self._alarm.cancel()
            status = self._time.of(status)
        if self._owner is None:
            self._release(left=left)
            return
        self._owner.on_exited(status)
        if self._ending is None:
            self._release(self._owner.on_left if self._order.folder else None, left)

    def gone(self) -> None:
        owner, self._owner = self._owner, None
        self._release()
        if owner:
            owner.on_gone()

    def _release(self, on_left: Callable[[bool], None] | None = None, left: int = -1) -> None:
        """Release its folder and its table entry; `on_left` is called with whether the folder is kept."""
        self._launching.forget(self._number)
        if self._folder:
            self._launching.leave(self._folder, on_left, left)
            self._folder = ""
        elif on_left:
            self._loop.call_soon(on_left, False)
        if self._slot:
            self._launching.table.forget(self._slot)
            self._slot = 0
