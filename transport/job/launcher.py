"""The launcher: a small process beside a node, which starts the node's jobs, reaps them, and ends their sessions.

Laws
1. It forks and waits, and touches no file system of the user's: a call that may hang is made in a child (`child`).
2. One thread, one poll(2). It never blocks on the node: messages that cannot be sent wait here.
3. It is the parent of the jobs, so a pid that it signals cannot be reused before it has reaped it.
4. When the node is gone it ends the jobs in the node's table, and then itself. It ignores HUP, INT, QUIT and TERM.
5. The standard library only, and little of that: it lives as long as a node does.

Messages from the node are JSON lists:
    ["start", number, order]             with descriptors: three streams, the report, the memo
    ["large"]                            the message is in a memfd, which is the last descriptor
    ["signal", number, signal]
    ["end", number, pid, pause, adopted]  sent after its TERM; adopted: by the node, from a launcher that died
    ["reaped", number]                   the node has reaped an adopted job
    ["leave", number, path]              remove a folder if it is empty; with its descriptor, if the node has that
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
import sys
import time

from transport import address, inherit, quickjson
from transport.job import child, termination, workdir
from transport.job.sessions import Session, Sessions
from transport.job.table import Table, clear, say
from transport.lean import deque, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Given the arguments of an `own` job: does its work in a forked child; None if a new program is needed.
    Inside = Callable[[list[str]], Callable[[], None] | None]

MESSAGE = 1 << 16  # bytes of one message; a larger one goes in a memfd
RIGHTS = 8  # most descriptors with one message
IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def main(words: list[str], inside: Inside = lambda words: None) -> int:
    """Run `quine node --launcher TABLE CHANNEL FILES`: two descriptors, and the soft limit of open files of a job."""
    table, channel, files = map(int, words)
    for fd in (table, channel):
        os.set_inheritable(fd, False)
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    raise_open_files()
    own = Table(table)
    _sweep(own)
    launcher = Launcher(socket.socket(fileno=channel), files, inside)
    launcher.run()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # from now on the kernel reaps what ends
    launcher.reap()
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
    def __init__(self, channel: socket.socket, files: int, inside: Inside) -> None:
        self._channel = channel
        self._files = files
        self._inside = inside
        self._numbers: dict[int, int] = {}  # by the pid of a job
        self._pids: dict[int, int] = {}  # and the other way
        self._leaving: dict[int, int] = {}  # numbers of folders, by the pid of the child that removes one
        self._sessions = Sessions()
        self._ending: dict[int, Session] = {}  # by number
        self._queue: deque[bytes] = deque()
        self._wake, told = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the node is gone."""
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        while True:
            poll.register(self._channel, select.POLLIN | (select.POLLOUT if self._queue else 0))
            due = self._sessions.due()
            pause = None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)
            ready = dict(poll.poll(pause))
            if self._wake in ready:
                os.read(self._wake, 4096)
                self.reap()
            if self._channel.fileno() in ready and not self._hear():
                return
            if due is not None and time.monotonic() >= due:
                self._sessions.turn(time.monotonic())
            self._flush()

    # -- the channel -------------------------------------------------------------------------------

    def _hear(self) -> bool:
        """Handle the messages that the node has sent. False: it is gone."""
        while True:
            flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            try:
                data, rights, _, _ = self._channel.recvmsg(MESSAGE, socket.CMSG_SPACE(4 * RIGHTS), flags)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                continue  # reported once if it left messages unread; its own messages can still be read
            if not data:
                return False
            fds = [
                int.from_bytes(numbers[at : at + 4], sys.byteorder)
                for _, _, numbers in rights
                for at in range(0, len(numbers), 4)
            ]
            try:
                self._do(data, fds)
            finally:
                for fd in fds:
                    os.close(fd)

    def _do(self, data: bytes, fds: list[int]) -> None:
        what, *rest = quickjson.loads(data)
        if what == "large":
            what, *rest = quickjson.loads(os.pread(fds[-1], os.fstat(fds[-1]).st_size, 0))
        if what == "start":
            self._start(rest[0], rest[1], fds)
        elif what == "signal":
            if pid := self._pids.get(rest[0]):
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

    def _start(self, number: int, order: dict[str, Any], fds: list[int]) -> None:
        if len(fds) < 5:
            return  # no room for the descriptors: the node sees the report closed, and tries again
        # Taken out of `fds`. With a second descriptor here, the report of a program that had run was still open, and
        # the node reported that program as never started.
        report, memo = socket.socket(fileno=fds.pop(3)), -1
        try:
            memo = fcntl.fcntl(fds[3], fcntl.F_DUPFD_CLOEXEC, inherit.FIRST_FD)
            start = self._prepared(order, fds[:3], memo)
            pid = child.fork(start, report)
            self._numbers[pid], self._pids[number] = number, pid
        except Exception as error:
            why = getattr(error, "strerror", None) or f"a defect in quine: {type(error).__name__}: {error}"
            hint = (
                "too much runs there at one time; see slots in the inventory"
                if isinstance(error, OSError)
                else ""
            )
            child.tell(report, child.refusal(f"cannot start: {why}", hint))
        finally:
            report.close()
            if memo >= 0:
                os.close(memo)

    def _prepared(self, order: dict[str, Any], streams: list[int], memo: int) -> child.Start:
        argv, inside = order["argv"], None
        if order["own"]:
            inside = self._inside(argv)
            argv = [*address.own_command(), *argv]
        return child.Start(
            argv,
            {**order["env"], inherit.VARIABLE: str(memo)},
            order["cwd"],
            streams,
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
        if not (adopted or number in self._pids):
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
            number = self._numbers.pop(ended.si_pid, 0)
            if number:  # otherwise a child that removed a folder, or an orphan of a job
                # Sent before the status is consumed: this process may be killed at any moment.
                dumped = 0x80 if ended.si_code == os.CLD_DUMPED else 0
                exited = ended.si_code == os.CLD_EXITED
                self._tell("ended", number, ended.si_status << 8 if exited else ended.si_status | dumped)
            _, status, usage = os.wait4(ended.si_pid, 0)
            if left := self._leaving.pop(ended.si_pid, 0):
                self._tell("left", left, os.WEXITSTATUS(status))
            if number:
                del self._pids[number]
                self._tell("exited", number, status, usage.ru_utime, usage.ru_stime, usage.ru_maxrss)
                if session := self._ending.get(number):
                    self._sessions.reaped(session, time.monotonic())

    def _leave(self, number: int, path: str, fds: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            say(f"{path} is not removed: {error.strerror}")
            pid = -1
        if not pid:
            try:
                inherit.close_others(set(fds))
                os._exit(workdir.leave(path, fds[0] if fds else -1))
            finally:
                os._exit(0)
        if pid < 0:
            self._tell("left", number, workdir.GONE)
        else:
            self._leaving[pid] = number
