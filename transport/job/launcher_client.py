"""The node's side of the launcher: starts it, replaces it when it has died, and holds the folders that jobs share.

Law: the event loop touches no file system of the user's, and never blocks. It makes pipes, a terminal, a memo in
memory, and keeps the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time

from transport.address import start_time
from transport.job.launched_job import Child
from transport.job.launcher_channel import Channel
from transport.launcher import quick, workdir
from transport.launcher.launcher import raise_open_files
from transport.launcher.table import holders, say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from transport.job.interface import Order, Owner
    from transport.job.launcher_process import Beside

log = logging.getLogger("quine.launching")

# Seconds before a launcher that dies at once is started again, first and longest. Less than the deadline of a start:
# otherwise a job would be refused because of launchers that were killed before it.
RETRY = 1.0, 10.0
NAME = 15  # characters of the name of a process
# Seconds for which starts without a report are ordered after a quick one: less than a launcher uses a finding for.
QUICKLY = quick.LIFE - 0.5
UNCLAIMED = 60.0  # seconds after which an ended child that nobody waited for is reaped here
READINGS = 10  # of the list of children, at most


class Folders:
    """Folders made for jobs of this node: one locked descriptor each, whatever the number of jobs in it.

    A job counts from its order on, not from its start. A job that was being started once held the folder's lock
    against the last one that left, and found the folder full. So neither reported that files are left in it.
    """

    def __init__(self) -> None:
        self._held: dict[
            str, list[int]
        ] = {}  # descriptor or -1, jobs ordered there, whether one of them found it empty

    def join(self, path: str) -> None:
        self._held.setdefault(path, [-1, 0, False])[1] += 1

    def enter(self, path: str, fd: int, empty: bool) -> None:
        held = self._held[path]
        held[2] |= empty  # jobs that start together report in any order
        if held[0] < 0:
            held[0] = fd
        else:
            os.close(fd)

    def was_empty(self, path: str) -> None:
        """Record that the folder was empty before jobs that have left it: a job that came then found their files."""
        if held := self._held.get(path):
            held[2] = True

    def removed(self, path: str) -> None:
        """The launcher has removed the folder: a job that comes makes it anew."""
        held = self._held[path]
        if held[0] >= 0:
            os.close(held[0])
            held[0] = -1

    def leave(self, path: str) -> tuple[int, bool]:
        """A job leaves. The last one gets the descriptor, which it owns, and whether the folder was empty; else -1."""
        held = self._held[path]
        held[1] -= 1
        if held[1]:
            return -1, False
        del self._held[path]
        return held[0], bool(held[2])


class Leaving:
    """A folder that its last job has left; `on_left` is called with whether it was empty before, and is not now."""

    __slots__ = ("empty", "fd", "on_left", "path")

    def __init__(self, path: str, fd: int, empty: bool, on_left: Callable[[bool], None] | None) -> None:
        self.path = path
        self.fd = fd
        self.empty = empty
        self.on_left = on_left


class Launching:
    """Implements `transport.job.interface.Launcher`."""

    def __init__(self, beside: Beside) -> None:
        raise_open_files()  # jobs are started by the launcher, which gives them the limit of the login
        self.table = beside.table
        self.channel = Channel(self._hear)
        self._beside = beside
        self._children: dict[int, Child] = {}
        self._number = 0
        self._folders = Folders()
        self._left: dict[int, Leaving] = {}  # folders that are to be removed
        self._pause = 0.0
        self._has_died = False  # a launcher: its jobs, and their orphans, are children of this process
        self._looking: asyncio.TimerHandle | None = None
        self._closed = False
        self._quick_until = 0.0  # starts are ordered without a report

    @property
    def pid(self) -> int:
        return self._beside.pid

    def watch(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_signal_handler(signal.SIGCHLD, self._some_child_ended)
        if self._beside.pid:
            self._attached()
        else:
            self._start()

    def start(self, order: Order, owner: Owner) -> Child:
        number = self.next_number()
        child = self._children[number] = Child(self, number, order, owner)
        return child

    async def close(self) -> None:
        """Stop watching the launcher, which notices by itself that the node is gone."""
        self._closed = True
        if self._beside.pid:
            self._loop.remove_reader(self._beside.pidfd)
        self._loop.remove_signal_handler(signal.SIGCHLD)
        if self._looking:
            self._looking.cancel()
        self.channel.detach()

    def next_number(self) -> int:
        self._number += 1
        return self._number

    # -- the launcher ------------------------------------------------------------------------------

    def _attached(self) -> None:
        assert self._beside.channel
        self._quick_until = 0.0
        self._loop.add_reader(self._beside.pidfd, self._died)
        self.channel.attach(self._beside.channel.detach())
        self._beside.channel = None

    def _start(self) -> None:
        if self._closed:
            return
        try:
            self._beside.again()
        except OSError as error:
            say(f"no launcher can be started: {error}")
            self._later()
            return
        self._attached()
        for child in list(self._children.values()):
            child.again()
        for number, leaving in list(self._left.items()):
            self._remove(number, leaving)

    def _died(self) -> None:
        self._loop.remove_reader(self._beside.pidfd)
        self.channel.detach()
        say(f"launcher {self._beside.pid} has died, another is started")
        long = time.monotonic() - self._beside.born > RETRY[1]
        self._beside.forget()
        self._has_died = True
        for child in list(self._children.values()):
            child.unanswered()
        self.reap()
        for child in list(self._children.values()):
            child.adopt()
        if long:
            self._pause = 0.0
        self._later()

    def _later(self) -> None:
        pause = self._pause
        self._pause = min(RETRY[1], 2 * pause or RETRY[0])
        if pause:
            self._loop.call_later(pause, self._start)
        else:
            self._start()

    def silent(self, number: int, seconds: float) -> None:
        """A start was not answered for `seconds`: kill the launcher. A stopped one is worse than a dead one."""
        self.channel.withdraw(number)
        if self._beside.pid and time.monotonic() - self._beside.born >= seconds:
            say(f"launcher {self._beside.pid} does not answer, and is killed")
            signal.pidfd_send_signal(self._beside.pidfd, signal.SIGKILL)

    def _some_child_ended(self) -> None:
        if self._has_died:
            self.reap()
        # A scan that is due finds this child, too: endings that follow each other must not put it off.
        if not self._looking:
            self._look(())

    def _look(self, before: Collection[int]) -> None:
        """Reap inherited children that had ended at the scan before, such as those of a ProxyCommand.

        Code that starts a child of its own waits for it, and has UNCLAIMED seconds to do so.
        """
        ended = {pid for pid in _children() if pid != self._beside.pid and _has_ended(pid)}
        for pid in ended.intersection(before):
            os.waitpid(pid, os.WNOHANG)
        self._looking = None
        if left := ended.difference(before):
            self._looking = self._loop.call_later(UNCLAIMED, self._look, left)

    def reap(self) -> None:
        """Reap ended jobs of a launcher that has died, and their orphans: they are children of this process now."""
        ended = [
            pid for pid in _children() if pid != self._beside.pid and _is_of_a_job(pid) and _has_ended(pid)
        ]
        children = list(self._children.values())
        for child in children:
            child.wait()
        for pid in set(ended) - {child.made for child in children}:
            with contextlib.suppress(
                ChildProcessError
            ):  # a job that was heard to have started called this, too
                os.waitpid(pid, os.WNOHANG)

    def find(self, slot: int, command: str, since: float) -> int:
        """Return the pid of the process that a killed launcher has made for an entry of the table; 0 if there is none.

        It is a child of this process, and holds the job's memo. It leads a session, or is about to: it is still in ours
        then. An orphan of the job is in the job's session. Of one that has ended its name is left, and that it started
        after `since` (seconds since boot).
        """
        holding = holders(self.table.entry(slot).memo)
        known = {child.made for child in self._children.values()}
        name = os.path.basename(command)[:NAME]
        found = [
            pid
            for pid in _children() - known
            if (_is_leader(pid) and (pid in holding or (_has_ended(pid) and _name(pid) == name)))
            or (pid in holding and not _is_of_a_job(pid))
        ]
        tick = int(since * os.sysconf("SC_CLK_TCK"))
        return min((pid for pid in found if start_time(pid) >= tick), key=start_time, default=0)

    def _hear(self, words: list[int | float | str], fds: list[int]) -> None:
        what, number = words[0], int(words[1])
        if what == "left":
            if leaving := self._left.pop(number, None):
                os.close(leaving.fd)
                if leaving.empty and words[2] == workdir.HELD:
                    self._folders.was_empty(leaving.path)
                if leaving.on_left:
                    leaving.on_left(leaving.empty and words[2] == workdir.KEPT)
            return
        fd = fds.pop(0) if what == "started" and int(words[3]) >= 0 else -1
        child = self._children.get(number)
        if not child:
            if fd >= 0:
                os.close(fd)
        elif what == "started":
            child.was_quick(int(words[2]), fd, bool(words[3]))
        elif what == "slow":
            self._quick_until = 0.0
            child.slow()
        else:
            if what == "ended":
                child.known = int(words[2])
            elif what == "signalled":
                child.signalled()
            elif what == "exited":
                child.exited(*words[2:])  # type: ignore[arg-type]
            elif what == "gone":
                child.gone()

    # -- for a child -------------------------------------------------------------------------------

    def forget(self, number: int) -> None:
        self._children.pop(number, None)

    def renumber(self, number: int) -> int:
        """Give a job another number, and return it: news under the old one are ignored."""
        child = self._children.pop(number)
        number = self.next_number()
        self._children[number] = child
        return number

    def join(self, path: str) -> None:
        self._folders.join(path)

    def enter(self, path: str, fd: int, empty: bool) -> None:
        self._folders.enter(path, fd, empty)

    def quick(self, order: Order) -> bool:
        """True if a start is to be tried without a report."""
        plain = not (order.own or order.limits or order.size)
        return plain and self._loop.time() < self._quick_until

    def were_quick(self) -> None:
        """A start was a quick one."""
        self._quick_until = self._loop.time() + QUICKLY

    def leave(self, path: str, on_left: Callable[[bool], None] | None, left: int = -1) -> None:
        """A job has left its folder; `left` is what the launcher has made of it, -1 if nothing."""
        if left == workdir.GONE:
            self._folders.removed(path)
        fd, empty = self._folders.leave(path)
        if left in (workdir.GONE, workdir.KEPT) and fd >= 0:
            os.close(fd)
            fd = -1
        if fd >= 0:
            number = self.next_number()
            leaving = self._left[number] = Leaving(path, fd, empty, on_left)
            self._remove(number, leaving)
        elif on_left:
            on_left(empty and left == workdir.KEPT)

    def _remove(self, number: int, leaving: Leaving) -> None:
        try:
            self.channel.send(["leave", number, leaving.path], [os.dup(leaving.fd)])
        except OSError as error:
            log.warning("%s is not removed: %s", leaving.path, error.strerror)
            del self._left[number]
            os.close(leaving.fd)
            if leaving.on_left:
                self._loop.call_soon(leaving.on_left, False)


def _has_ended(pid: int) -> bool:
    """True if this child is a zombie."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return False


def _is_leader(pid: int) -> bool:
    """True for the leader of a session, also if it has ended."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm", errors="replace") as file:
            return file.read().rstrip("\n")
    except OSError:
        return ""


def _is_of_a_job(pid: int) -> bool:
    """True if this child has another session than this process: children that the node starts for itself do not."""
    try:
        return os.getsid(pid) != os.getsid(0)
    except ProcessLookupError:
        return False


def _children() -> set[int]:
    """Pids of the children of this process, also of ended ones; none if the kernel has no such list.

    It leaves out some while others end: a job that ran was lost. So the list is read until two readings agree.
    """
    found: set[int] = set()
    last: list[int] = [-1]
    for _ in range(READINGS):
        now = sorted(_listed())
        found.update(now)
        if now == last:
            break
        last = now
    return found


def _listed() -> list[int]:
    """The children of all threads, as far as the kernel lists them."""
    found = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children") as file:
                found += [int(pid) for pid in file.read().split()]
        except OSError:
            pass
    return found
