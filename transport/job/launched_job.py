"""The node's handle of one launched job, from its order to its end, across replacements of the launcher.

Laws
1. The node holds the near ends from the beginning, so a job whose launcher is killed goes on. Its report says whether
   the process was ever made: if not, it is ordered again, from the next launcher.
2. A start that takes longer than DEADLINE is given up. The report stays open until the program is executed; so a
   process that is stopped while it is open certainly never ran.
3. A quick start has no report. Its entry in the table, where the launcher marks what it does, says the same, once no
   launcher can change it any more.
4. A signal that a launcher has not confirmed as sent is sent by the node once that launcher is dead.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections import deque

from transport import inherit
from transport.job import process
from transport.launcher import termination
from transport.launcher.child import Report, refusal
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


DEADLINE = 30.0  # seconds for a start
SOON = 1.0  # seconds more for a start that is ordered again just when its deadline is over
TRIES = 5  # orders of one start: launchers may die, or have no room for it
NO_ROOM = "too much runs there at one time; see slots in the inventory"


class Child:
    """Implements `transport.job.interface.Running`."""

    def __init__(self, launching: Launching, number: int, order: Order, owner: Owner) -> None:
        self.pid, self.stdin, self.stdout, self.stderr = 0, -1, -1, -1
        self._launching = launching
        self._number = number
        self._order = order
        self._owner: Owner | None = owner
        self._loop = asyncio.get_running_loop()
        self._ours: list[int] = []  # its near ends, until it has started
        self._report: Report | None = None
        self._asked = False  # a start without a report is under way
        self._is_slow = False  # it needs a report
        self._tries = 0
        self._since = 0.0  # of the last of them, in seconds since boot
        self._slot = 0
        self._folder = ""  # joined, and to be left
        self.made = 0  # pid of the process, known before it has started
        self.known: int | None = None  # its wait status, from a launcher that has not reaped it yet
        self._parent = 0
        self._begun = False  # a process may have been made whose pid is not known
        self._exited = False
        self._reaped = False
        self._signals: deque[int] = deque()  # signals that the launcher has not confirmed yet
        self._ending: bool | None = None  # `hung_up` of `end`, once that was called
        self._deadline = self._loop.call_later(DEADLINE, self._give_up)
        self._loop.call_soon(self._send)

    # -- start -------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send the order to the launcher."""
        self._tries += 1
        self._since = time.clock_gettime(time.CLOCK_BOOTTIME)
        if self._order.folder and not self._folder:
            self._folder = self._order.folder
            self._launching.join(self._folder)
        order, near = self._order, None
        fds: list[int] = []
        try:
            self._ours, fds = process.streams(order.size)
            memo = inherit.write(order.memo)
            fds = [*fds, memo]
            quick = not self._is_slow and self._launching.quick(order)
            if not quick:
                near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                near.setblocking(False)
                fds.insert(3, far.detach())
            if self._slot:
                self._launching.table.forget(self._slot)
                self._slot = 0  # the next call may fail, and a slot freed twice would be given to two jobs
            self._slot = self._launching.table.expect(memo, order.folder)
            words = {
                "argv": order.argv,
                "env": dict(order.env),
                "cwd": order.cwd,
                "folder": order.folder,
                "limits": order.limits,
                "own": order.own,
                "terminal": order.size is not None,
            }
            what = (
                ["quick", self._number, words, self._slot, order.hurry]
                if quick
                else ["start", self._number, words]
            )
            self._launching.channel.send(what, fds)
        except OSError as error:
            for fd in fds:
                os.close(fd)
            if near:
                near.close()
            self._fail(refusal(f"cannot start: {error.strerror}", NO_ROOM))
            return
        self._asked = quick
        if near:
            self._report = Report(near)
            self._loop.add_reader(near.fileno(), self._heard)

    def _heard(self) -> None:
        """Handle messages of the start's report."""
        report = self._report
        while report and not report.over and report.read():
            self._parent = report.parent or self._parent
            if report.pid and not self.made:
                self._made(report.pid)
            if report.folder >= 0:
                self._launching.enter(self._folder, report.folder, report.empty)
                report.folder = -1
        if report and report.over:
            self._close_report()
            self._concluded(report)

    def _made(self, pid: int) -> None:
        self.made = pid
        self._launching.table.started(self._slot, pid)

    def _concluded(self, report: Report) -> None:
        if report.status:
            self._fail(report.status)
        elif report.begun and not self.made:
            self._begun = True  # the launcher was killed before it told the pid
            self._find()
        elif self.made:
            if report.begun:
                self._launching.were_quick()
            self._started()
        else:
            self._order_again()

    def _order_again(self) -> None:
        """The launcher with the order is gone, or had no room, or the process was killed before it had the order.

        The end of that process, which may be told later, must not be taken for that of the next.
        """
        if self._tries < TRIES:
            self._number = self._launching.renumber(self._number)
            self._close_ours()
            self._loop.call_soon(self._send)
        else:
            self._fail(
                refusal("cannot start: the launcher beside the node does not take it", "see the node's log")
            )

    def was_quick(self, pid: int, folder: int = -1, empty: bool = False) -> None:
        """A start without a report has been made; `folder` is the descriptor of its folder if that is new."""
        if folder >= 0:
            self._launching.enter(self._folder, folder, empty)
        self._asked = False
        self._parent = self._launching.pid or -1
        self.made = pid
        self._launching.were_quick()
        self._started()

    def slow(self) -> None:
        """The launcher wants a report for this start."""
        self._asked, self._is_slow = False, True
        self._tries -= 1
        self._close_ours()
        self._send()

    def unanswered(self) -> None:
        """A launcher has died: if it had the order of a quick start, the table says what has become of that."""
        if not self._asked or self._launching.channel.has(self._number):
            return
        entry = self._launching.table.entry(self._slot)
        if entry.pid:
            self.was_quick(entry.pid)
        elif entry.begun:
            self._asked, self._begun, self._parent = False, True, -1
        else:
            self._asked = False
            self._order_again()

    def _started(self) -> None:
        self._deadline.cancel()
        self.pid = self.made
        wanted, self._ending = self._ending, None
        if self._owner:
            self.stdin, self.stdout, self.stderr = self._ours
            self._ours = []
            self._owner.on_started()
        if wanted is not None or not self._owner:
            self.end(bool(wanted))
        if self._is_adopted:
            self._launching.reap()

    def _find(self) -> None:
        """Find the process that a killed launcher may have made: this node inherits it when the launcher has ended."""
        pid = self._launching.find(self._slot, self._order.argv[0], self._since)
        if not (pid or self._is_adopted):
            return
        self._begun = False
        if pid:
            self._made(pid)
            self._started()
        elif self._owner:
            self._fail(Status("lost", LOST, detail="the launcher was killed while it started the job"))
        else:
            self._release()

    def _give_up(self) -> None:
        """The start takes too long. It hangs in the directory or the program, which are the caller's choice."""
        if self._report and not self.made:
            self._tries = TRIES  # not ordered again
            self._report.refuse()
            self._heard()
        if self._report and self.made:
            self._stop()
        if self._asked:
            self._stop_asking()
            return
        if self._report is None:
            if self._owner and not self.pid:  # it is ordered again just now
                self._deadline = self._loop.call_later(SOON, self._give_up)
            return  # otherwise it has started, or failed
        detail = f"cannot start in {self._order.cwd}: no answer from the file system for {DEADLINE:g} s"
        hint = "see whether a mount there is dead"
        if not self.made:
            detail, hint = (
                f"cannot start: the launcher does not answer for {DEADLINE:g} s",
                "see the node's log",
            )
            self._launching.silent(self._number, DEADLINE)
        self._begun = self._report.begun and not self.made
        self._close_report()
        self._fail(Status("lost", LOST, detail=detail, hint=hint) if self._begun else refusal(detail, hint))

    def _stop_asking(self) -> None:
        """Give up a quick start: the launcher is killed, so that no mark can follow those that are in the table."""
        had = not self._launching.channel.has(self._number)
        self._launching.silent(self._number, 0.0 if had else DEADLINE)
        self._asked = False
        entry = self._launching.table.entry(self._slot)
        self.made, self._begun = entry.pid, entry.begun and not entry.pid
        self._parent = self._launching.pid
        detail, hint = f"cannot start: the launcher does not answer for {DEADLINE:g} s", "see the node's log"
        if self.made:
            self._started()
        elif self._begun:
            self._fail(Status("lost", LOST, detail=detail, hint=hint))
        else:
            self._fail(refusal(detail, hint))

    def _stop(self) -> None:
        """Kill the process, unless it has executed its program. If that is impossible, it is ended, and lost."""
        pidfd = -1
        try:
            pidfd = os.pidfd_open(self.made)
            self._heard()
            if self._report is None:
                return
            # It exists, because its report is open. Once it is stopped, the report tells whether it has executed.
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
            self._heard()
            signal.pidfd_send_signal(pidfd, signal.SIGKILL if self._report else signal.SIGCONT)
        except ProcessLookupError:
            self._heard()  # it has ended
        except OSError as error:
            self._close_report()
            self.pid = self.made
            self.end()
            why = f"it hangs before its start and cannot be stopped: {error.strerror}"
            self._fail(Status("lost", LOST, pid=self.made, detail=why))
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def _close_report(self) -> None:
        if self._report:
            self._loop.remove_reader(self._report.socket.fileno())
            self._report.socket.close()
            self._report = None

    def _close_ours(self) -> None:
        for fd in self._ours:
            os.close(fd)
        self._ours = []

    def _fail(self, status: Status) -> None:
        """It has not started. Its folder and table entry stay until a process that was made has ended."""
        self._deadline.cancel()
        self._close_ours()
        owner, self._owner = self._owner, None
        if self._exited or not (self.made or self._begun):
            self._release()
        if owner:
            owner.on_not_started(status)

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
        if self._report:
            self._heard()
        if self._begun:
            self._find()
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
        if self._report:
            self._heard()  # the report is complete by now
        if not self.made:
            if self._begun and self._owner is None:
                self._release()  # it was given up before its launcher told the pid, and could tell nobody
            return  # see `_concluded`
        self._reaped = True
        if self._exited:
            return
        self._exited = True
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
