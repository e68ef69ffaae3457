"""The launcher: a small process beside a node, which starts the node's jobs, reaps them, and ends their sessions.

Laws
1. It starts and waits, and touches no file system of the user's but a local one (`quick`): a call that may hang is
   made in a child (`child`, `spare`).
2. One thread, one poll(2). It never blocks on the node: messages that cannot be sent wait here.
3. It is the parent of the jobs, so a pid that it signals cannot be reused before it has reaped it.
4. When the node is gone it ends the jobs in the node's table, and then itself. It ignores HUP, INT, QUIT and TERM.
5. The standard library only, and little of that: it lives as long as a node does.

Messages from the node are JSON lists:
    ["start", number, order]             with descriptors: three streams, the report, the memo
    ["quick", number, order, slot, hurry]  the same without a report: marks in the table stand for it
    ["large"]                            the message is in a memfd, which is the last descriptor
    ["signal", number, signal]
    ["end", number, pid, pause, adopted]  after its TERM, or a hang-up; adopted: by the node, from a dead launcher
    ["reaped", number]                   the node has reaped an adopted job
    ["leave", number, path]              with its descriptor: remove a folder if it is empty
Messages to the node, one or a list of them:
    ["started", number, pid, folder]     of a quick start; folder: -1, or with a descriptor 1 if it was empty, else 0
    ["slow", number]                     it needs a report
    ["signalled", number]                the signal was sent, or the job has ended
    ["ended", number, wait status]       sent before a job without a slot is reaped: no status is lost with this process
    ["exited", number, wait status, utime, stime, maxrss, left], ["gone", number], ["left", number, left]
        left: the result of `workdir.leave`, -1 if the folder is still to be left
"""

from __future__ import annotations

import os
import resource
import select
import time

from transport import inherit
from transport.launcher import child, orders, quick, spare, termination, workdir, zygotes
from transport.launcher.folders import Folders
from transport.launcher.orders import Made
from transport.launcher.outgoing import Outgoing
from transport.launcher.sessions import Session, Sessions
from transport.launcher.table import Table, clear, say, sweep
from transport.lean import deque, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from transport.launcher.orders import Inside

MESSAGE = spare.MESSAGE
SOON = 0.002  # seconds by which news of a start wait for those of its end: a short job costs one message
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(
    words: list[str], inside: Inside = lambda words: None, forks: zygotes.Forks = lambda words: False
) -> int:
    """Run `quine node --launcher TABLE CHANNEL FILES`: two descriptors, and the soft limit of open files of a job."""
    table, channel, files = map(int, words)
    inherit.close_others({table, channel})  # a job has what it is given, and nothing else that is open here
    for fd in (table, channel):
        os.set_inheritable(fd, False)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    raise_open_files()
    own = Table(table)
    sweep(own)
    launcher = Launcher(socket.socket(fileno=channel), files, inside, own, forks)
    launcher.run()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # from now on the kernel reaps what ends
    launcher.reap()
    launcher.close()
    clear(own)
    return 0


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one: a process with many jobs needs it. Jobs get the old limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    soft = min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Launcher:
    def __init__(
        self,
        channel: socket.socket,
        files: int,
        inside: Inside,
        table: Table | None = None,
        forks: zygotes.Forks = lambda words: False,
    ) -> None:
        """`files`: soft limit of open files of a job; `table`: that of the node, None if all starts are reported."""
        self._channel = channel
        self._table = table
        self._folders = Folders()
        self._files = files
        self._quick = quick.Quick(files)
        self._sought: quick.Key | None = None  # to be looked for when the messages are handled
        self._inside = inside
        self._made: dict[int, Made] = {}  # by the pid of a job
        self._pids: dict[int, int] = {}  # and the other way
        self._ordered: dict[int, str] = {}  # the folders of jobs that zygotes make, by number
        self._told_to_end: set[int] = set()  # numbers of jobs that were signalled
        self._young: deque[tuple[float, int]] = (
            deque()
        )  # when the start time of a job is to be noted, and its pid
        self._spares = spare.Spares(self._prepared)
        self._zygotes = zygotes.Zygotes(files, forks)
        self._slow = False  # a start has come since the last wait that took, or needed, a spare
        self._sessions = Sessions()
        self._ending: dict[int, Session] = {}  # by number
        self._out = Outgoing(channel)
        self._wake, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the node is gone."""
        while True:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._out.waits else 0))
            for fd in (*self._spares.out, *self._zygotes.open):
                poll.register(fd, select.POLLIN)
            ready = dict(poll.poll(self._pause()))
            self._hear_zygotes()
            if self._wake in ready:
                os.read(self._wake, 4096)
                self.reap()
            if self._channel.fileno() in ready and not self._hear():
                return
            for fd in self._spares.out:
                if fd in ready:
                    self._done(*self._spares.done(fd))
            now = time.monotonic()
            if (due := self._sessions.due()) is not None and now >= due:
                self._sessions.turn(now)
            self._spares.dismiss(now)
            self._zygotes.dismiss(now)
            self._note_starts(now)
            for number, path, fds in self._folders.turn(now):
                self._leave(number, path, fds)
                for fd in fds:
                    os.close(fd)
            self._out.turn(now)
            self._prepare()

    def close(self) -> None:
        self._folders.close()
        self._spares.close()
        self._zygotes.close()

    def _note_starts(self, now: float) -> None:
        """Note the start times of jobs that live for longer: the table outlives them if this process is killed."""
        while self._young and (self._young[0][0] <= now or self._young[0][1] not in self._made):
            pid = self._young.popleft()[1]
            if (made := self._made.get(pid)) and self._table:
                self._table.started(made.slot, pid)

    def _prepare(self) -> None:
        """Make ready for the next start, now that this one is reported."""
        if self._slow:
            self._slow = False
            self._spares.make()
        self._zygotes.make()
        sought, self._sought = self._sought, None
        if sought:
            try:
                self._spares.find(sought)
            except OSError:
                pass  # no room for a process: starts go on without

    def _done(self, errand: int | quick.Key, result: int) -> None:
        if isinstance(errand, int):
            self._tell("left", errand, result)
        else:
            self._quick.learn(errand, result)

    def _pause(self) -> int | None:
        """Milliseconds until something is due, None if nothing is."""
        young = self._young[0][0] if self._young else None
        others = (
            self._sessions.due(),
            self._spares.due(),
            self._zygotes.due(),
            self._out.due,
            self._folders.due,
            young,
        )
        due = [at for at in others if at is not None]
        return max(0, int((min(due) - time.monotonic()) * 1000) + 1) if due else None

    # -- the channel -------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Handle the messages that the node has sent. False: it is gone."""
        while True:
            try:
                data, fds = spare.receive(self._channel, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                continue  # reported once if it left messages unread; its own messages can still be read
            if not data:
                return False
            try:
                self._do(data, fds)
            finally:
                for fd in fds:
                    os.close(fd)

    def _do(self, data: bytes, fds: list[int]) -> None:
        what, *rest = orders.read(data, fds)
        if what == "start":
            self._start(rest[0], rest[1], data, fds)
        elif what == "quick":
            self._start_quick(rest, fds)
        elif what == "signal":
            if pid := self._pid(rest[0]):
                self._told_to_end.add(rest[0])
                termination.signal_group(pid, rest[1])
            self._tell("signalled", rest[0])
        elif what == "end":
            self._end(*rest)
        elif what == "reaped":
            if session := self._ending.get(rest[0]):
                self._sessions.reaped(session, time.monotonic())
        elif what == "leave":
            self._leave(rest[0], rest[1], fds)

    def _tell(self, *words: object) -> None:
        self._out.put(words)
        self._out.flush()

    # -- jobs --------------------------------------------------------------------------------------

    def _start(self, number: int, order: dict[str, Any], data: bytes, fds: list[int]) -> None:
        if len(fds) < 5:
            return  # no room for the descriptors: the node sees the report closed, and tries again
        self._folders.join(order["folder"])
        if self._zygotes.start(number, order, data, fds):
            self._ordered[number] = order["folder"]
            return  # its pid comes from the zygote
        key = quick.key_of(order)
        pid = self._quick.start(order, key, [*fds[:3], fds[4]], quick.Reported(fds[spare.REPORT]))
        if pid:
            os.close(fds.pop(spare.REPORT))
        if self._quick.is_due(key):
            self._sought = key
        self._slow |= not pid
        if not (pid or order["own"]):
            # An agent is a fork of this process: with a spare, its memory would be that of an earlier moment.
            pid = self._spares.start(data, fds)
        if not pid:
            # Taken out of `fds`. With a second descriptor here, the report of a program that had run was still open,
            # and the node reported that program as never started.
            pid = self._fork(socket.socket(fileno=fds.pop(spare.REPORT)), data, fds)
        if pid:
            self._made[pid], self._pids[number] = Made(number, order["folder"]), pid
        else:
            self._folders.left(order["folder"], removes=False)

    def _start_quick(self, words: list[Any], fds: list[int]) -> None:
        """Start a job that has no report. Without `hurry` its node can hear of its start and its end together."""
        number, order, slot, hurry = words
        if len(fds) < 4 or self._table is None:
            self._tell("slow", number)
            return
        folder, way = order["folder"], quick.Marked(self._table, slot, self._folders)
        self._folders.join(folder)
        key = quick.key_of(order)
        pid = self._quick.start(order, key, fds[:4], way)
        if self._quick.is_due(key):
            self._sought = key
        if not pid:
            self._folders.left(folder, removes=False)
            self._tell("slow", number)
            return
        self._made[pid], self._pids[number] = Made(number, folder, slot), pid
        soon = time.monotonic() + SOON
        self._young.append((soon, pid))
        until = 0.0 if hurry else soon
        try:
            self._out.put(("started", number, pid, way.state), way.entered, until)
        except OSError:  # no descriptor is free: the node holds the folder no longer than this process does
            self._out.put(("started", number, pid, -1), -1, until)

    def _hear_zygotes(self) -> None:
        for number, pid in self._zygotes.hear():
            folder = self._ordered.pop(number, "")
            if pid:
                self._made[pid], self._pids[number] = Made(number, folder), pid
            else:
                self._folders.left(folder, removes=False)

    def _pid(self, number: int) -> int:
        """The pid of a job that runs, or 0. The node may know it before the zygote's message is read here."""
        if number not in self._pids:
            self._hear_zygotes()
        return self._pids.get(number, 0)

    def _fork(self, report: socket.socket, data: bytes, fds: list[int]) -> int:
        """Start a job without a spare: return its pid, or 0 if the report has the reason why that failed."""
        memo = -1
        try:
            start = self._prepared(data, fds)
            (memo,) = start.keep
            return child.fork(start, report)
        except Exception as error:
            why = getattr(error, "strerror", None) or f"a defect in quine: {type(error).__name__}: {error}"
            hint = (
                "too much runs there at one time; see slots in the inventory"
                if isinstance(error, OSError)
                else ""
            )
            child.tell(report, child.refusal(f"cannot start: {why}", hint))
            return 0
        finally:
            report.close()
            if memo >= 0:
                os.close(memo)

    def _prepared(self, data: bytes, fds: list[int]) -> child.Start:
        return orders.start_of(data, fds, self._inside, self._files)

    def _end(self, number: int, pid: int, pause: float, adopted: bool) -> None:
        if number in self._ending:
            return
        now = time.monotonic()
        self._told_to_end.add(number)
        session = self._ending[number] = Session(pid, now, pause, lambda: self._gone(number))
        self._sessions.end(session)
        if not (adopted or self._pid(number)):
            self._sessions.reaped(session, now)  # the node does not know that yet

    def _gone(self, number: int) -> None:
        del self._ending[number]
        self._told_to_end.discard(number)
        self._tell("gone", number)

    def reap(self) -> None:
        """Take the status of everything that has ended."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid not in self._made:
                self._hear_zygotes()
            made = self._made.pop(ended.si_pid, None)
            if made:  # otherwise a spare, a zygote, or an orphan of a job
                # Told before the status is consumed: this process may be killed at any moment.
                dumped = 0x80 if ended.si_code == os.CLD_DUMPED else 0
                exited = ended.si_code == os.CLD_EXITED
                self._keep(made, ended.si_status << 8 if exited else ended.si_status | dumped)
            _, status, usage = os.wait4(ended.si_pid, 0)
            if made:
                del self._pids[made.number]
                # The folder of a job that is being ended may still have descendants of it in it.
                told = made.number in self._told_to_end
                self._told_to_end.discard(made.number)
                removes = not told and bool(made.slot) and self._quick.is_local(made.folder)
                left = self._folders.ended(made.folder, ended.si_pid, removes, told)
                self._out.put(
                    ("exited", made.number, status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss, left)
                )
                if session := self._ending.get(made.number):
                    self._sessions.reaped(session, time.monotonic())
                self._out.flush()

    def _keep(self, made: Made, status: int) -> None:
        """Have a wait status known to the node, whatever happens to this process."""
        if made.slot and self._table:
            try:
                self._table.mark(made.slot, True, status)
                return
            except OSError:
                pass  # a disk that fails
        self._tell("ended", made.number, status)

    def _leave(self, number: int, path: str, fds: list[int]) -> None:
        if self._folders.is_used(path):
            if fds and self._folders.waits(number, path, fds[-1]):
                fds.pop()
            else:
                self._tell("left", number, workdir.KEPT)
            return
        if self._quick.is_local(path):
            self._tell("left", number, workdir.leave(path, fds.pop() if fds else -1))
            return
        try:
            self._spares.leave(number, path, fds)
        except OSError as error:
            say(f"{path} is not removed: {error.strerror}")
            self._tell("left", number, workdir.GONE)
