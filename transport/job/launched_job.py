"""The node's handle of one launched job, from its order to its end, across replacements of the launcher.

Laws
1. The node holds the near ends from the beginning, so a job whose launcher is killed goes on. Its report says whether
   the process was ever made: if not, it is ordered again, from the next launcher.
2. A start that takes longer than DEADLINE is given up. The report stays open until the program is executed; so a
   process that is stopped while it is open certainly never ran.
3. A quick start has no report. Its entry in the table, where the launcher marks what it does, says the same, once no
   launcher can change it any more.
"""

from __future__ import annotations

import os
import signal
import socket

from transport import inherit
from transport.address import boot_clock
from transport.job import process
from transport.job.made import Made
from transport.launcher.child import Report, refusal
from transport.status import LOST, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.job.interface import Order, Owner
    from transport.job.made import Launching


DEADLINE = 30.0  # seconds for a start
SOON = 1.0  # seconds more for a start that is ordered again just when its deadline is over
TRIES = 5  # orders of one start: launchers may die, or have no room for it
NO_ROOM = "too much runs there at one time; see slots in the inventory"


class Child(Made):
    """Implements `transport.job.interface.Running`; its start."""

    def __init__(self, launching: Launching, number: int, order: Order, owner: Owner) -> None:
        super().__init__(launching, number, order, owner)
        self._ours: list[int] = []  # its near ends, until it has started
        self._report: Report | None = None
        self._asked = False  # a start without a report is under way
        self._is_slow = False  # it needs a report
        self._tries = 0
        self._since = 0.0  # of the last of them, in seconds since boot
        self._begun = False  # a process may have been made whose pid is not known
        self._deadline = self._loop.call_later(DEADLINE, self._give_up)
        self._loop.call_soon(self._send)

    # -- start -------------------------------------------------------------------------------------

    def _send(self) -> None:
        """Send the order to the launcher."""
        self._tries += 1
        self._since = boot_clock()
        if self._order.folder and not self._folder:
            self._folder = self._order.folder
            self._launching.join(self._folder)
        order, near = self._order, None
        fds: list[int] = []
        try:
            self._ours, fds = process.streams(order.size, order.merged)
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
                "umask": order.umask,
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
        if self._order.deadline:
            self.keep_time()
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

    # -- from the launcher, while it may not have started ------------------------------------------

    def wait(self) -> None:
        if self._report:
            self._heard()
        if self._begun:
            self._find()
        super().wait()

    def _ended(self, status: Status, left: int = -1) -> None:
        if self._report:
            self._heard()
        if (report := self._report) and self.made:
            # Nothing more comes from a process that has ended, whoever still has its end of the report: a fork of this
            # process, as it dials, has all descriptors until its exec.
            self._close_report()
            self._concluded(report)
        if self.made:
            super()._ended(status, left)
        elif self._begun and self._owner is None:
            self._release()  # it was given up before its launcher told the pid, and could tell nobody
        # otherwise see `_concluded`
