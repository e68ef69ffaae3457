"""The supervisor of one detached job: a small process that outlives the caller and records how the job ends.

The directory of a job holds
    job             what was started, when, as which process, and who supervises it
    stdout, stderr  what it has written, byte for byte: the offset in the file is the offset in the stream
    status          the exit record, once it is over
    socket          where it can be signalled, fed, and asked for news (`control.py`)

Laws
1. The exit record is on the disk before anybody is told, and after all output.
2. Nothing is cut and nothing dropped. When the unread output is as large as the quota, or the disk is full, the pipes
   are not read. So the job waits in its write(2) until output has been read or room has been made. The exception is a
   job that somebody ends: output that a full disk does not take then is dropped. The exit record tells how much, and
   is never a success.
3. Nothing that happens to the caller, or to an attached client, ends the job: that is what `signal` is for.
4. Room for all that the job needs is taken before it is launched. A job that was launched is never told as not started,
   or it would be started a second time: it is lost then.
5. If the supervisor itself is killed, the kernel sends TERM to the job's group, as nothing could record its end. A
   reader then finds a record without a status, whose process is gone: lost.
6. The job's directory, if it is one that jobs of a tree share, is held by this process as a node holds those of its
   jobs (`launcher/workdir.py`): another job that leaves it does not remove it.
7. Standard library only, no event loop.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import time
from collections import deque

from transport import address, inherit, quickjson, this_build
from transport.detached import control, spool
from transport.detached.leash import Leash
from transport.errors import ProtocolError, Refused
from transport.job import process
from transport.job.deadline import NEVER, Deadline
from transport.launcher import termination, workdir
from transport.status import LOST, NOT_STARTED, Status, signal_number
from transport.wire.frames import LIFE, Frame, Kind, pack
from transport.wire.session import STDERR, STDIN, STDOUT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from transport.detached.order import Order

HELD_GRACE = 1.0  # seconds a stream may be held open by a grandchild after the job's own end
AGAIN = 1.0  # seconds until a full disk is tried again
ROOM = 4096  # bytes of an exit record, and of the growth of a job's record
PEERS = 64  # connections at one time
LEAVING = 5.0  # seconds for all of them to take the exit record
LAUNCHES, RUNS = b"?", b"+"  # first and last news for the process that starts the job
ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL})


class Supervisor:
    """The process; its current directory is the job's."""

    def __init__(self, directory: str, order: Order, tell: int) -> None:
        os.chdir(directory)
        self._order = order
        self._tell = tell
        self._peers: list[control.Peer] = []
        # Frames of stdin that wait for the job, with their peers.
        self._feed: deque[tuple[control.Peer, Frame]] = deque()
        self._status: Status | None = None
        self._again = False  # the disk was full at the last try
        self._told: frozenset[int] = frozenset()  # signals of ENDING that the job got from us
        self._given_up = False  # somebody ends the job: its end does not wait for room on a full disk
        self._patience = 0.0  # until when streams may be held open
        self._wake, self._wake_in = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._leash = Leash()
        self._time = Deadline(order.deadline, time.monotonic())
        # The caller's, for its job; our own is as far up as it may be: a spool is longer than a file of the caller.
        self._file_size = resource.getrlimit(resource.RLIMIT_FSIZE)

    def run(self) -> None:
        inherit.close_others(
            {self._tell, self._wake, self._wake_in, self._leash.fd, self._leash.held, *self._order.keep}
            | {self._order.at}
            | ({self._order.stdin} if self._order.stdin is not None else set())
        )
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        self._hear()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._file_size[1], self._file_size[1]))
        try:
            child = self._start()
        except (Refused, ProtocolError) as error:
            child = Status("unreachable", NOT_STARTED, detail=str(error), hint=getattr(error, "hint", ""))
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = spool.FULL if full else ""
            why = (error.strerror or "").lower()
            child = Status("unreachable", NOT_STARTED, detail=f"cannot start: {why}", hint=hint)
        failed = isinstance(child, Status)
        if failed:
            self._leave_folder()
        self._say(quickjson.dumps(child.to_json()).encode() if isinstance(child, Status) else RUNS)
        os.close(self._tell)
        if not failed:
            while not self._over():
                self._turn()
            self._leave()

    def _say(self, data: bytes) -> None:
        """Tell the process that starts the job."""
        try:
            os.write(self._tell, data)
        except BrokenPipeError:
            pass  # the caller was killed; the job has its id all the same

    def _hear(self) -> None:
        """Catch signals that would end this process, with handlers: an ignored signal would stay ignored in the job."""
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        for number in (ENDING - {signal.SIGKILL}) | {signal.SIGPIPE, signal.SIGXFSZ}:
            signal.signal(number, self._caught)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        signal.set_wakeup_fd(self._wake_in, warn_on_full_buffer=False)

    def _caught(self, number: int, _frame: FrameType | None) -> None:
        # The machine goes down: tell the job, and stay to record its end.
        if number == signal.SIGTERM:
            self._signal(number)

    # -- start -------------------------------------------------------------------------------------

    def _start(self) -> process.Child | Status:
        order = self._order
        facts = {
            **order.facts,
            "pid": 0,
            "started": 0,
            "boot_id": address.boot_id(),
            "pid_space": address.pid_space(),
            "node": os.uname().nodename,
            "begun": round(time.time(), 6),
            "supervisor": os.getpid(),
            "supervisor_started": address.start_time(os.getpid()),
            "protocol": 1,
        }
        try:
            self._listener = control.listen()
        except OSError as error:
            detail = f"no socket can be made in {os.getcwd()}: {error.strerror}"
            raise Refused(detail, "set XDG_STATE_HOME") from None
        spool.reserve("status", ROOM)
        spool.record("job", facts)
        spool.reserve("job", len(quickjson.dumps(facts)) + ROOM)
        spool.settle("..")
        self._spools = [spool.Spool("stdout"), spool.Spool("stderr")]
        self._say(LAUNCHES)
        self._child = child = process.launch(
            order.argv,
            order.env,
            order.cwd,
            order.limits,
            (*order.keep, self._leash.fd),
            stdin=order.stdin,
            prepare=self._prepare,
            at=order.at,
        )
        if isinstance(child, Status):
            return child
        for each, pipe in zip(self._spools, (child.stdout, child.stderr)):
            each.attach(pipe)
        try:
            spool.record("job", {**facts, "pid": child.pid, "started": address.start_time(child.pid)})
        except OSError as error:
            termination.kill_session(child.pid)
            child.reap()
            detail = f"it was started and ended again: its record cannot be written: {error.strerror}"
            return Status("lost", LOST, pid=child.pid, detail=detail)
        self._stdin = child.stdin
        os.set_blocking(self._stdin, False)
        if order.stdin is not None:
            self._close_stdin()
            os.close(order.stdin)
        for fd in order.keep:
            os.close(fd)
        return child

    def _prepare(self) -> None:
        """In the new process: give it the caller's limit of file size, or a lower one that it was told of."""
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if (soft, hard) == (self._file_size[1], self._file_size[1]):
            resource.setrlimit(resource.RLIMIT_FSIZE, self._file_size)
        self._leash.arm()

    # -- the loop ----------------------------------------------------------------------------------

    def _turn(self) -> None:
        assert isinstance(self._child, process.Child)
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if len(self._peers) < PEERS:
            poll.register(self._listener, select.POLLIN)
        if self._status is None:
            poll.register(self._child.pidfd, select.POLLIN)
        for each in self._spools if self._room() and not self._again else ():
            if each.pipe >= 0:
                poll.register(each.pipe, select.POLLIN)
        if self._stdin >= 0:
            poll.register(self._stdin, select.POLLOUT if self._feed else 0)
        for peer in self._peers:
            poll.register(peer.socket, peer.events)
        ready = dict(poll.poll(self._pause()))
        this_build.note_use("job")
        if number := self._time.tick(time.monotonic()):
            self._signal(number)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if self._child.pidfd in ready and self._status is None:
            self._ended()
        if self._stdin in ready:
            self._feed_stdin(bool(ready[self._stdin] & select.POLLERR))
        self._again = False
        for each in self._spools:
            if each.full or (each.pipe in ready and self._room()):
                self._copy(each)
        for peer in [peer for peer in self._peers if peer.fileno in ready]:
            self._serve(peer, ready[peer.fileno])
        if self._listener.fileno() in ready:
            self._accept()
        for peer in list(self._peers):
            peer.news(self._spools[0].size, self._spools[1].size)
            if not peer.send():
                self._drop(peer)

    def _room(self) -> int:
        """Return the bytes of output that may be taken now."""
        return max(0, self._order.quota - sum(max(0, each.size - each.read) for each in self._spools))

    def _pause(self) -> int:
        """Return the milliseconds until the next step that no event announces."""
        # On a full disk the next try is due, also when nothing is waited for any longer.
        due = min(self._time.due, NEVER if self._again else self._patience or NEVER)
        pauses = [int((AGAIN if self._again else this_build.NOTE_SECONDS) * 1000)]
        if due != NEVER:
            pauses.append(max(0, int((due - time.monotonic()) * 1000) + 1))
        return min(pauses)

    def _copy(self, each: spool.Spool) -> None:
        try:
            each.copy(self._room())
        except OSError:
            self._again = True  # a full disk, a quota of the file system, a limit on the size of a file

    def _ended(self) -> None:
        assert isinstance(self._child, process.Child)
        os.close(self._child.pidfd)
        self._status = self._time.of(self._child.reap())
        self._time.due = NEVER
        # A job that claims success keeps all its output. One that lived on after a HUP, a reload, was not ended.
        ended = self._told if self._status.state == "signaled" else self._told - {signal.SIGHUP}
        self._given_up = bool(ended) and self._status.code != 0
        self._stopped = self._given_up or bool(ended - {signal.SIGINT})  # after INT a success has gone on
        self._close_stdin()
        self._patience = time.monotonic() + HELD_GRACE

    def _over(self) -> bool:
        """Return whether the job has ended and all its output and its exit record are on the disk."""
        if self._status is None or (self._again and not self._given_up):
            return False
        if self._again:
            self._again = False
            spool.drop(self._spools, self._status)
        if self._patience and time.monotonic() >= self._patience:
            try:
                for each in self._spools:
                    each.drain()
            except OSError:
                self._again = True
                return self._given_up and self._over()
        if any(each.pipe >= 0 or each.full for each in self._spools):
            return False
        try:
            for each in self._spools:
                spool.settle_output(each, self._status, self._given_up)
            spool.record("status", self._status.to_json() | ({"stopped": True} if self._stopped else {}))
        except OSError:
            self._again = True
            return not os.stat(".").st_nlink  # the directory was removed: there is nobody to tell
        return True

    def _leave(self) -> None:
        """Send the exit record to all peers, then go."""
        assert self._status is not None and isinstance(self._child, process.Child)
        self._leash.disarm()
        try:
            os.unlink(control.NAME)
        except OSError:
            pass
        self._leave_folder()
        deadline = time.monotonic() + LEAVING
        for peer in self._peers:
            peer.tell(Kind.EXIT, payload=pack(self._status.to_json()))
            try:
                peer.send_all(deadline - time.monotonic())
            except OSError:
                pass  # it has gone; the record is there for it

    def _leave_folder(self) -> None:
        """Release the job's directory. The last one that leaves it removes it if it is empty."""
        child = getattr(self, "_child", None)
        if self._order.at >= 0 and not (isinstance(child, process.Child) and termination.lives(child.pid)):
            workdir.leave(self._order.cwd, self._order.at)

    # -- the job -----------------------------------------------------------------------------------

    def _signal(self, number: int) -> None:
        if self._status is not None:
            self._given_up = self._given_up or number in ENDING
            return
        self._told |= ENDING & {number}
        # Not reaped yet, so no other process has its pid.
        if isinstance(child := getattr(self, "_child", None), process.Child):
            termination.signal_group(child.pid, number)
            if number in termination.WOKEN_BY:
                termination.signal_group(child.pid, signal.SIGCONT)

    def _feed_stdin(self, unread: bool) -> None:
        while self._feed and self._stdin >= 0 and not unread:
            peer, frame = self._feed[0]
            if frame.kind == Kind.EOF:
                self._close_stdin()
                return
            try:
                sent = os.write(self._stdin, frame.payload)
            except BlockingIOError:
                return
            except OSError:
                break
            frame.offset += sent
            frame.payload = frame.payload[sent:]
            if not frame.payload:
                self._feed.popleft()
                peer.feeds -= 1
                peer.tell(Kind.ACK, STDIN, frame.offset)
        if self._feed or unread:
            self._close_stdin()  # the job has closed it

    def _close_stdin(self) -> None:
        """Close the job's stdin, and tell all peers that nobody reads it."""
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1
        for peer, _ in self._feed:
            peer.feeds -= 1
        self._feed.clear()
        for peer in self._peers:
            peer.tell(Kind.STOP, STDIN)

    # -- peers -------------------------------------------------------------------------------------

    def _accept(self) -> None:
        if peer := control.accept(self._listener):
            self._peers.append(peer)
            if self._stdin < 0:
                peer.tell(Kind.STOP, STDIN)

    def _serve(self, peer: control.Peer, events: int) -> None:
        if events & ~select.POLLOUT:
            try:
                for frame in peer.receive():
                    self._frame(peer, frame)
            except (ProtocolError, EOFError):
                self._drop(peer)

    def _drop(self, peer: control.Peer) -> None:
        """Close the connection. Frames that came whole still go to the job."""
        peer.socket.close()
        if peer in self._peers:
            self._peers.remove(peer)

    def _frame(self, peer: control.Peer, frame: Frame) -> None:
        if frame.kind == Kind.SIGNAL:
            try:
                self._signal(signal_number(str(frame.body().get("signal"))))
            except ValueError:
                raise ProtocolError("no such signal") from None
            peer.tell(Kind.ACK, LIFE, frame.offset)
        elif frame.kind in (Kind.DATA, Kind.EOF) and frame.stream == STDIN:
            if self._stdin >= 0 and (frame.payload or frame.kind == Kind.EOF):
                self._feed.append((peer, frame))
                peer.feeds += 1
        elif frame.kind == Kind.ACK and frame.stream in (STDOUT, STDERR):
            taken = self._spools[frame.stream - 1]
            taken.read = max(taken.read, min(frame.offset, taken.size))
            peer.follow()
        else:
            raise ProtocolError("not a frame for a supervisor")
