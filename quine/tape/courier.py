"""The courier: a process that sends the tapes of a job which infers by itself to the origin, when that can be reached.

An agent writes its tape to a file of the job's folder, and calls at the courier's socket. The courier reads what is new
and sends it. While the link is down its request waits, and the agents go on.

    agent: "n"   there is something new; it does not wait
    agent: "f"   answered with "+" once all that was written before has arrived
    agent: "e"   the first agent of the job ends: answered with "+" once everything has arrived and the budget is
                 returned, else with the reason why not

Laws
1. Sessions are sent in the order of their first lines, one request at a time: a session never arrives before the one
   that it descends from.
2. A line is sent once: the node repeats what a broken link has lost.
3. The files are removed when everything has arrived, and else stay.
4. It leads a process group of its own in the session of the job: signals to the agent do not reach it, and the end of
   the job does. When the first agent is gone it has LINGER seconds, or twice that if a request waits for the link.
"""

from __future__ import annotations

import os
import select

from quine.base import dirs, procs
from quine.base.errors import LOST, Failure
from quine.base.sessions import is_session, tape_path
from quine.tape.lines import lines_of, opened
from quine.tape.writer import FileSink
from transport import quickjson
from transport.errors import RequestError
from transport.lean import contextlib, signal, socket
from transport.provenance import regular_file
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import NoReturn

BACKLOG = 1024
INDEX = "sessions"  # file of the folder: the sessions in the order of their first lines, one a line
MOST_LINES, MOST_BYTES = 5_000, 4 << 20  # of one request; a longer line goes alone
LINGER = 10  # seconds after the end of the first agent, which has not waited
TRIES = 10
PATIENCE = 5.0  # seconds for a client to say what it wants
NEW, FLUSH, END = b"n", b"f", b"e"
DONE = b"+"
SUFFIX, MAKING = ".tapes", "~"  # of a socket's name, and of one that is not bound and listened at yet
LOOKS = 8  # sockets of others that one start looks at: with many jobs, all of them would be looked at by each
GONE = "the process that sends it has ended"


class SpooledSink:
    """A tape in the folder of a job, which its courier sends."""

    def __init__(self, folder: str, path: str, session: str, begins: bool = True) -> None:
        self._folder = folder
        self._path = path  # of the courier's socket
        self._session = session
        self._file = FileSink(tape_path(folder, session), begins)
        self._begun = False

    def put(self, lines: Sequence[bytes]) -> None:
        self._file.put(lines)
        if not self._begun:
            self._begin()
        call(self._path)

    def _begin(self) -> None:
        """Name the session in the index. Raises Failure."""
        path = os.path.join(self._folder, INDEX)
        try:
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                write_all(fd, f"{self._session}\n".encode())
            finally:
                os.close(fd)
        except OSError as error:
            raise Failure(LOST, f"the tape {path} cannot be written: {error.strerror}") from None
        self._begun = True

    def close(self) -> None:
        self._file.close()


def call(path: str) -> None:
    """Tell the courier that there is something new."""
    with contextlib.suppress(OSError):  # it is busy with the origin, and looks again; or it shows at the end
        _call(path, NEW, wait=False).close()


def ask(path: str, what: bytes, wait: Callable[[socket.socket, int], None]) -> str:
    """Have the courier send everything (FLUSH), and end (END). Return "" once that is done, else the reason.

    `wait` returns when a socket is ready for an event of poll(2), or raises OSError.
    """
    try:
        line = _call(path, what)
        try:
            answer = b""
            while True:
                wait(line, select.POLLIN)
                data = line.recv(4096)
                if not data:
                    break
                answer += data
        finally:
            line.close()
    except OSError as error:
        return str(error) if isinstance(error, TimeoutError) else GONE
    return "" if answer == DONE else answer.decode(errors="replace") or GONE


def _call(path: str, what: bytes, wait: bool = True) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        line.setblocking(wait)
        line.connect(path)
        line.send(what)
        line.setblocking(True)
    except BaseException:
        line.close()
        raise
    return line


def start(
    folder: str,
    path: str,
    send: Callable[[str, bytes], bytes],
    report: Callable[[], None],
    return_rest: Callable[[], None],
) -> None:
    """Make the courier of this process: of the tapes in `folder`, called at the socket `path`. Raises OSError, Failure.

    `send` is a request to the origin. `report` tells it what was used so far, `return_rest` also gives back the rest.
    """
    _make_index(folder)
    _remove_stale(os.path.dirname(path))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path + MAKING)
        listener.listen(BACKLOG)
        os.rename(path + MAKING, path)  # where a socket is seen, somebody listens or has ended
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pidfd = os.pidfd_open(os.getpid())  # here: it may be killed before the courier runs
            try:
                pid = os.fork()
                if not pid:
                    _become(_Courier(folder, path, listener, pidfd, send, report, return_rest))
            finally:
                os.close(pidfd)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    finally:
        listener.close()


def _remove_stale(directory: str) -> None:
    """Remove the sockets of couriers that were killed."""
    for name in [name for name in os.listdir(directory) if name.endswith(SUFFIX)][:LOOKS]:
        try:
            _call(os.path.join(directory, name), NEW, wait=False).close()
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(directory, name))
        except OSError:
            pass  # it is busy


def _make_index(folder: str) -> None:
    """Make the folder and its index. Another job may remove the empty folder above in between."""
    for tries in range(TRIES, 0, -1):
        try:
            dirs.make_inside(folder, 1)
            os.close(regular_file.written(os.path.join(folder, INDEX), 0))
            return
        except FileNotFoundError:
            if tries == 1:
                raise


def _become(courier: _Courier) -> NoReturn:
    try:
        if os.fork():
            os._exit(0)
        os.setpgid(0, 0)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1):  # stderr stays: the job's last second is a chance to send the rest
            os.dup2(null, standard)
        os.close(null)
        signal.set_wakeup_fd(-1)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        courier.serve()
    finally:
        os._exit(1)


class _Tape:
    def __init__(self, session: str) -> None:
        self.session = session
        self.sent = 0  # bytes that have arrived
        self.fault = ""


class _Courier:
    def __init__(
        self,
        folder: str,
        path: str,
        listener: socket.socket,
        pidfd: int,
        send: Callable[[str, bytes], bytes],
        report: Callable[[], None],
        return_rest: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._path = path
        self._listener = listener
        self._pidfd = pidfd  # of the first agent
        self._send = send
        self._report = report
        self._return_rest = return_rest
        self._tapes: list[_Tape] = []
        self._read = 0  # bytes of the index
        self._gone = False  # the first agent

    def serve(self) -> None:
        """Send until the first agent ends."""
        import socket

        signal.signal(signal.SIGALRM, self._on_alarm)
        listener = socket.socket(fileno=self._listener.detach())
        listener.setblocking(False)
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        while True:
            self._gone = self._pidfd in dict(poll.poll())
            signal.setitimer(signal.ITIMER_REAL, LINGER, LINGER)
            waiting = _callers(listener)
            self._flush()
            ends = self._gone or any(what == END for what, _ in waiting)
            fault = next((tape.fault for tape in self._tapes if tape.fault), "")
            if ends:
                fault = self._end() or fault
            for _, line in waiting:
                with contextlib.suppress(OSError):
                    line.send(fault.encode() or DONE)
                line.close()
            if ends:
                os._exit(0)
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_alarm(self, *_: object) -> None:
        """End if the first agent has been gone for LINGER seconds. It may go while a request waits for the link."""
        if self._gone:
            os._exit(1)
        self._gone = procs.wait([self._pidfd], 0)

    def _flush(self) -> None:
        """Send all that has been written."""
        with opened(os.path.join(self._folder, INDEX)) as index:
            index.seek(self._read)
            data = index.read()
        for raw in data.splitlines():
            if is_session(session := raw.decode("ascii", "replace")):
                self._tapes.append(_Tape(session))
        self._read += len(data)
        for tape in self._tapes:
            if not tape.fault:
                try:
                    self._send_new(tape)
                except (RequestError, OSError, ValueError) as error:  # commands can write to the file
                    tape.fault = f"{tape_path(self._folder, tape.session)} has not arrived: {error}"
        with contextlib.suppress(OSError, Failure):
            self._report()

    def _send_new(self, tape: _Tape) -> None:
        while lines := self._lines(tape):
            body = {"session": tape.session, "lines": [line.decode() for line in lines]}
            self._send("tape", quickjson.dumps(body).encode())
            tape.sent += sum(len(line) + 1 for line in lines)

    def _lines(self, tape: _Tape) -> list[bytes]:
        """Return the next lines: whole ones, as many as go into one request."""
        with opened(tape_path(self._folder, tape.session)) as file:
            file.seek(tape.sent)
            found: list[bytes] = []
            size = 0
            for line in lines_of(file):
                whole = line.endswith(b"\n")
                if not whole or len(found) == MOST_LINES or (found and size + len(line) > MOST_BYTES):
                    break
                found.append(line[:-1])
                size += len(line)
            return found

    def _end(self) -> str:
        """Give back the rest of the budget, and remove what has arrived. Return what went wrong, or ""."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        fault = ""
        try:
            self._return_rest()
        except (OSError, Failure) as error:
            fault = f"the rest of the budget was not given back: {error}"
        for tape in self._tapes:
            if not tape.fault:
                with contextlib.suppress(OSError):
                    os.unlink(tape_path(self._folder, tape.session))
        if not any(tape.fault for tape in self._tapes):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._folder, INDEX))
                os.rmdir(self._folder)
        return fault


def _callers(listener: socket.socket) -> list[tuple[bytes, socket.socket]]:
    """Return the calls that want an answer."""
    found: list[tuple[bytes, socket.socket]] = []
    while True:
        try:
            line, _ = listener.accept()
        except OSError:
            return found
        try:
            line.settimeout(PATIENCE)
            what = line.recv(1)
        except OSError:
            what = b""
        if what in (FLUSH, END):
            found.append((what, line))
        else:
            line.close()
