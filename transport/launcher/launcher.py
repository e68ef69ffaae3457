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
    ["large"]                            the message is in a memfd, which is the last descriptor
    ["signal", number, signal]
    ["end", number, pid, pause, adopted]  after its TERM, or a hang-up; adopted: by the node, from a dead launcher
    ["reaped", number]                   the node has reaped an adopted job
    ["leave", number, path]              with its descriptor: remove a folder if it is empty
Messages to the node:
    ["signalled", number]                the signal was sent, or the job has ended
    ["ended", number, wait status]       sent before the job is reaped: no status is lost with this process
    ["exited", number, wait status, utime, stime, maxrss], ["gone", number], ["left", number, `workdir.leave` result]
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import time

from transport import inherit, quickjson, this_build
from transport.launcher import child, quick, spare, templates, termination, workdir
from transport.launcher.sessions import Session, Sessions
from transport.launcher.table import Table, clear, say
from transport.lean import deque, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Given the arguments of an `own` job: does its work in a forked child; None if a new program is needed.
    Inside = Callable[[list[str]], Callable[[], None] | None]

MESSAGE = spare.MESSAGE
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(
    words: list[str], inside: Inside = lambda words: None, forks: templates.Forks = lambda words: False
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
    _sweep(own)
    launcher = Launcher(socket.socket(fileno=channel), files, inside, forks)
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


def _sweep(own: Table) -> None:
    """End the jobs in tables without a holder, in a child process because that takes a pause."""
    directory = os.path.dirname(own.path)
    try:
        others = [name for name in os.listdir(directory) if Table.is_name(name)]
    except OSError:
        return  # the directory was removed
    if others in ([], [os.path.basename(own.path)]) or os.fork():
        return
    try:
        inherit.close_others(set())
        for other in Table.abandoned(directory):
            clear(other, abandoned=True)
    finally:
        os._exit(0)


class Launcher:
    def __init__(
        self, channel: socket.socket, files: int, inside: Inside, forks: templates.Forks = lambda words: False
    ) -> None:
        self._channel = channel
        self._files = files
        self._quick = quick.Quick(files)
        self._sought: quick.Key | None = None  # to be looked for when the messages are handled
        self._inside = inside
        self._numbers: dict[int, int] = {}  # by the pid of a job
        self._pids: dict[int, int] = {}  # and the other way
        self._spares = spare.Spares(self._prepared)
        self._templates = templates.Templates(files, forks)
        self._slow = False  # a start has come since the last wait that took, or needed, a spare
        self._sessions = Sessions()
        self._ending: dict[int, Session] = {}  # by number
        self._queue: deque[bytes] = deque()
        self._wake, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the node is gone."""
        while True:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._queue else 0))
            for fd in (*self._spares.out, *self._templates.open):
                poll.register(fd, select.POLLIN)
            ready = dict(poll.poll(self._pause()))
            self._hear_templates()
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
            self._templates.dismiss(now)
            self._flush()
            self._prepare()

    def close(self) -> None:
        self._spares.close()
        self._templates.close()

    def _prepare(self) -> None:
        """Make ready for the next start, now that this one is reported."""
        if self._slow:
            self._slow = False
            self._spares.make()
        self._templates.make()
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
        found = (self._sessions.due(), self._spares.due(), self._templates.due())
        due = [at for at in found if at is not None]
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
        what, *rest = spare.read(data, fds)
        if what == "start":
            self._start(rest[0], rest[1], data, fds)
        elif what == "signal":
            if pid := self._pid(rest[0]):
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
        self._queue.append(quickjson.dumps(words).encode())
        self._flush()

    def _flush(self) -> None:
        while self._queue:
            try:
                self._channel.send(self._queue[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                return  # the node is gone: the next poll reports that
            self._queue.popleft()

    # -- jobs --------------------------------------------------------------------------------------

    def _start(self, number: int, order: dict[str, Any], data: bytes, fds: list[int]) -> None:
        if len(fds) < 5:
            return  # no room for the descriptors: the node sees the report closed, and tries again
        if self._templates.start(order, data, fds):
            return  # its pid comes from the template
        key = quick.key_of(order)
        pid = self._quick.start(order, key, fds)
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
            self._numbers[pid], self._pids[number] = number, pid

    def _hear_templates(self) -> None:
        for number, pid in self._templates.hear():
            self._numbers[pid], self._pids[number] = number, pid

    def _pid(self, number: int) -> int:
        """The pid of a job that runs, or 0. The node may know it before the template's message is read here."""
        if number not in self._pids:
            self._hear_templates()
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
        """Return the start of a message, with its descriptors less the report. The caller owns `keep`."""
        order = spare.read(data, fds)[2]
        argv, inside = order["argv"], None
        if order["own"]:
            inside = self._inside(argv)
            argv = [*this_build.own_command(), *argv]
        memo = fcntl.fcntl(fds[3], fcntl.F_DUPFD_CLOEXEC, inherit.FIRST_FD)
        return child.Start(
            argv,
            {**order["env"], inherit.VARIABLE: str(memo)},
            order["cwd"],
            fds[:3],
            limits=[(number, value) for number, value in order["limits"]],
            keep=(memo,),
            folder=order["folder"],
            files=self._files,
            terminal=order["terminal"],
            inside=inside,
        )

    def _end(self, number: int, pid: int, pause: float, adopted: bool) -> None:
        if number in self._ending:
            return
        now = time.monotonic()
        session = self._ending[number] = Session(pid, now, pause, lambda: self._gone(number))
        self._sessions.end(session)
        if not (adopted or self._pid(number)):
            self._sessions.reaped(session, now)  # the node does not know that yet

    def _gone(self, number: int) -> None:
        del self._ending[number]
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
            if ended.si_pid not in self._numbers:
                self._hear_templates()
            number = self._numbers.pop(ended.si_pid, 0)
            if number:  # otherwise a spare, a template, or an orphan of a job
                # Sent before the status is consumed: this process may be killed at any moment.
                dumped = 0x80 if ended.si_code == os.CLD_DUMPED else 0
                exited = ended.si_code == os.CLD_EXITED
                self._tell("ended", number, ended.si_status << 8 if exited else ended.si_status | dumped)
            _, status, usage = os.wait4(ended.si_pid, 0)
            if number:
                del self._pids[number]
                self._tell("exited", number, status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
                if session := self._ending.get(number):
                    self._sessions.reaped(session, time.monotonic())

    def _leave(self, number: int, path: str, fds: list[int]) -> None:
        if self._quick.is_local(path):
            self._tell("left", number, workdir.leave(path, fds.pop() if fds else -1))
            return
        try:
            self._spares.leave(number, path, fds)
        except OSError as error:
            say(f"{path} is not removed: {error.strerror}")
            self._tell("left", number, workdir.GONE)
