"""The child's part of a start: the work of a forked process before it executes its program.

Laws
1. The parent only forks. The folder, the directory and the program are accessed here, so a file system that does not
   answer holds up this process and no other.
2. It reports over a socket that the exec closes. `P` with its pid and its parent's comes first: if that cannot be
   sent, nothing is executed. `F` has the folder's descriptor and whether it is empty, `S` the status of a failed
   start. An end without `S` is the exec. A launcher that makes the process without a fork reports itself: `B` with its
   own pid and the folder, then `P`, or `N` if it was not made: see `quick`.
3. Before it touches a file system, it closes all descriptors of its parent except those that it was given.
4. It leads a session of its own, so that all its descendants can be found again: see `termination`.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import sys

from transport import inherit, quickjson
from transport.launcher import workdir
from transport.lean import signal, socket
from transport.status import NOT_STARTED, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PID, FOLDER, STATUS, BEGUN, NOT_BEGUN = b"P", b"F", b"S", b"B", b"N"
MESSAGE = 65536  # bytes of one message; a status is clipped to less
_GONE = (errno.ENOENT, errno.ENOTDIR)
# Faults of the command, which no other host and no other time would mend. All others are of the host.
_ITS_OWN = (
    *(errno.EACCES, errno.ENOEXEC, errno.EPERM, errno.EISDIR),
    *(errno.E2BIG, errno.ELOOP, errno.ENAMETOOLONG),
)


class Start:
    """The parameters of a start.

    streams   descriptors for 0, 1 and 2
    keep      further descriptors, which keep their numbers
    folder    directory to make, "" for none
    files     soft limit of open files, 0 for that of the parent
    terminal  the streams are a terminal, which becomes the controlling one
    umask     of the job, -1 for that of the parent
    prepare   called in the child before it touches a file system
    inside    does the work of `argv` in the child itself, and ends it
    at        descriptor of the directory `cwd`, as it was judged; -1 for none
    """

    __slots__ = (
        *("argv", "at", "cwd", "env", "files", "folder", "inside"),
        *("keep", "limits", "prepare", "streams", "terminal", "umask"),
    )

    def __init__(
        self,
        argv: list[str],
        env: Mapping[str, str],
        cwd: str,
        streams: list[int],
        *,
        limits: list[tuple[int, int]] | None = None,
        keep: tuple[int, ...] = (),
        folder: str = "",
        files: int = 0,
        terminal: bool = False,
        umask: int = -1,
        prepare: Callable[[], None] | None = None,
        inside: Callable[[], None] | None = None,
        at: int = -1,
    ) -> None:
        self.argv = argv
        self.at = at
        self.env = env
        self.cwd = cwd
        self.streams = streams
        self.limits = limits or []
        self.keep = keep
        self.folder = folder
        self.files = files
        self.terminal = terminal
        self.umask = umask
        self.prepare = prepare
        self.inside = inside


class _Refused(Exception):
    """The start has failed, with `status`."""

    def __init__(self, status: Status) -> None:
        self.status = status


def refusal(detail: str, hint: str = "") -> Status:
    return Status("unreachable", NOT_STARTED, detail=detail, hint=hint)


def fork(start: Start, report: socket.socket) -> int:
    """Make the process and return its pid; `report` is its end of the socket, and closed here then.

    The process waits until it is closed: so an open report means that the program was not executed. Without that, a
    slow parent held the report of a process that had run and ended, which was then reported as never started.

    OSError if no process can be made; then `report` stays open.
    """
    closed, gate = os.pipe2(os.O_CLOEXEC)
    # A signal to the child, while it has the parent's handlers, would be handled as one to the parent.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            try:
                os.close(gate)
                os.read(closed, 1)  # to its end
                run(start, report)
            finally:
                os._exit(NOT_STARTED)
        report.close()
    finally:
        os.close(gate)
        os.close(closed)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def run(start: Start, report: socket.socket) -> None:
    """In the process itself: become the program. Returns if that has failed, or if nobody wants it any more."""
    try:
        if os.getsid(0) != os.getpid():
            os.setsid()
        report.send(PID + b"%d %d" % (os.getpid(), os.getppid()), socket.MSG_NOSIGNAL)
    except OSError:
        return  # the node wants it no more
    try:
        _part(start, report)
        _enter(start, report)
        _limit(start)
        if start.inside:
            _stand_for_a_program(start, report)
            start.inside()
        else:
            _execute(start)
    except _Refused as refused:
        tell(report, refused.status)
    except Exception as error:
        if report.fileno() < 0:
            raise
        detail = f"a defect in quine while starting it: {type(error).__name__}: {error}"
        tell(report, refusal(detail))


def tell(report: socket.socket, status: Status) -> None:
    """Send the status of a failed start over a report."""
    try:
        report.send(STATUS + quickjson.dumps(status.to_json()).encode(), socket.MSG_NOSIGNAL)
    except OSError:
        pass  # nobody waits for it any more


def _part(start: Start, report: socket.socket) -> None:
    """Take the streams and default signals of a program, and close the rest of the parent's descriptors."""
    default_signals()
    if start.prepare:
        start.prepare()
    for number, fd in enumerate(start.streams):
        os.dup2(fd, number)
    inherit.close_others({*start.keep, report.fileno(), start.at})
    for fd in start.keep:
        os.set_inheritable(fd, True)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def default_signals() -> None:
    """Take back the handlers of the parent, and what it ignores."""
    signal.set_wakeup_fd(-1)
    for number in map(int, signal.valid_signals()):
        if signal.getsignal(number) not in (signal.SIG_DFL, None):
            signal.signal(number, signal.SIG_DFL)


def _enter(start: Start, report: socket.socket) -> None:
    """Make the folder, and go to the directory. Errors are a refusal, not an exit status of the command.

    A directory that was judged is entered by its descriptor, and one in it from there: its path may mean another one
    by now. Links in it are followed, which the user has made, or a job of his.
    """
    at, path = start.at, "" if start.at >= 0 else start.cwd
    if start.folder:
        try:
            fd = workdir.enter(start.folder)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise _Refused(
                refusal(f"cannot make {start.folder}: {why}", "set workdir in the inventory")
            ) from None
        report.sendmsg([FOLDER + workdir.state(fd)], _rights(fd), socket.MSG_NOSIGNAL)
        if (inner := _within(start.cwd, start.folder)) is not None:
            at, path = fd, inner
        else:
            os.close(fd)
    try:
        if at >= 0:
            os.fchdir(at)
            os.close(at)
        if path:
            os.chdir(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        hint = "make it there, or choose another one with --cwd; a ~ in quotes is the home there"
        raise _Refused(refusal(f"no such directory: {start.cwd}", hint)) from None
    except OSError as error:
        why = (error.strerror or "").lower()
        hint = "choose another directory with --cwd"
        raise _Refused(refusal(f"cannot start in {start.cwd}: {why}", hint)) from None


def _within(cwd: str, folder: str) -> str | None:
    """Return the path of a directory from the folder that it is in, "" for the folder itself; None elsewhere."""
    head = folder.rstrip("/") + "/"
    return cwd[len(head) :].lstrip("/") if (cwd + "/").startswith(head) else None


def _rights(fd: int) -> list[tuple[int, int, bytes]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fd.to_bytes(4, sys.byteorder))]


def send_begun(report: socket.socket, folder: int) -> None:
    """Say that this process is about to start the job, in `folder` if that is not negative. Raises OSError."""
    state, rights = (workdir.state(folder), _rights(folder)) if folder >= 0 else (b"0", [])
    report.sendmsg([BEGUN + state + b"%d" % os.getpid()], rights, socket.MSG_NOSIGNAL)


def send_made(report: socket.socket, pid: int) -> bool:
    """Say that it was started, or with 0 that it was not. False if the node does not want it any more."""
    try:
        report.send(PID + b"%d %d" % (pid, os.getpid()) if pid else NOT_BEGUN, socket.MSG_NOSIGNAL)
    except OSError:
        return False
    return True


def _limit(start: Start) -> None:
    if start.umask >= 0:
        os.umask(start.umask)
    if start.terminal:
        from transport import terminal

        terminal.take()
    try:
        if start.files:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (start.files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            )
        set_limits(start.limits)
    except (OSError, ValueError) as error:
        raise _Refused(refusal(f"limits cannot be set: {error}")) from None


def set_limits(pairs: list[tuple[int, int]]) -> None:
    """Set (RLIMIT_*, value) pairs on this process, soft and hard, reduced to the present hard limits."""
    for number, value in pairs:
        hard = resource.getrlimit(number)[1]
        if hard != resource.RLIM_INFINITY:
            value = min(value, hard)
        resource.setrlimit(number, (value, value))


def _stand_for_a_program(start: Start, report: socket.socket) -> None:
    import gc

    gc.freeze()  # a collection would write to every page that is still shared
    os.environ.clear()
    os.environ.update(start.env)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_IGN)  # as the interpreter has them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    report.close()


def _execute(start: Start) -> None:
    """Execute the first candidate that can be executed."""
    saved = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    command = start.argv[0]
    for path in candidates(command, start.env):
        try:
            os.execve(path, start.argv, start.env)
        except ValueError as error:
            raise _Refused(refusal(f"cannot start {command}: {error}")) from None
        except OSError as error:
            if saved.errno in _GONE:
                saved = error
    raise _Refused(_not_started(command, saved))


def candidates(command: str, env: Mapping[str, str]) -> list[str]:
    """Paths at which the command may be, by the PATH of its own environment."""
    if "/" in command:
        return [command]
    return [os.path.join(folder or ".", command) for folder in env.get("PATH", os.defpath).split(":")]


def _not_started(command: str, error: OSError) -> Status:
    if error.errno in _GONE:
        return Status("exited", 127, detail=f"command not found: {command}")
    if error.errno in _ITS_OWN:
        return Status("exited", 126, detail=f"cannot execute {command}: {error.strerror}")
    return refusal(f"cannot start {command}: {error.strerror}")


# -- the other end of the socket -------------------------------------------------------------------


class Report:
    """The messages of one start, as they come. `over`: the child has closed its end.

    `begun`: the process may have been made, by `parent`, and its pid was not told yet.
    """

    def __init__(self, near: socket.socket) -> None:
        self.socket = near
        self.pid = self.parent = 0  # of the child, and of its parent at that time
        self.folder = -1  # the descriptor of the folder, owned by the caller
        self.empty = False  # the folder was empty
        self.status: Status | None = None
        self.begun = False
        self.over = False
        self._refused = False

    def refuse(self) -> None:
        """Close the receiving direction: a child that has not sent its pid cannot send it, and executes nothing."""
        self.socket.shutdown(socket.SHUT_RD)
        self._refused = True

    def read(self, flags: int = 0) -> bool:
        """Receive one message. False if there is none, and the socket or `flags` does not block."""
        try:
            data, rights, _, _ = self.socket.recvmsg(MESSAGE, 64, flags | socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return self.read(flags)  # reported once if the order was thrown away unread
        for _, _, numbers in rights:
            self.folder = int.from_bytes(numbers[:4], sys.byteorder, signed=True)
        if not data and self._refused and not self._is_closed_there():
            return False  # the end of file comes from `refuse`
        if not data:
            self.over = True
        elif data[:1] == PID:
            self.pid, self.parent = map(int, data[1:].split())
        elif data[:1] == BEGUN:
            self.begun, self.empty, self.parent = True, data[1:2] == b"1", int(data[2:])
        elif data[:1] == NOT_BEGUN:
            self.begun, self.parent = False, 0
        elif data[:1] == FOLDER:
            self.empty = data[1:] == b"1"
        elif data[:1] == STATUS:
            self.status = Status.from_json(quickjson.loads(data[1:]))
        return True

    def _is_closed_there(self) -> bool:
        poll = select.poll()
        poll.register(self.socket, 0)
        return any(events & select.POLLHUP for _, events in poll.poll(0))
