"""The zygote: a process with a program's modules loaded, which forks for each start in place of a new interpreter.

An interpreter and its imports are most of the work of a short agent: 45 ms of a processor. The two forks take one.

Laws
1. Its environment is that of the jobs, as their exec would have given it, so all that an interpreter takes from it is
   theirs. Secrets are not in it; those of a job come with the order.
2. It has one thread, no event loop, and no descriptor but its channel. It touches no file system: see `child.run`.
3. The launcher is the parent of a job before that begins: the process between them has ended by then. The launcher is
   told of its pid before that, so it knows whose end it sees.
4. A job waits until the launcher has closed the report, see `child.fork`. If this process is killed before that, the
   job ends, and the node sees that it never began.
5. It ends when the launcher closes the channel, or has ended.

Messages to it:
    S and the launcher's own message, with its descriptors   a start, which waits
    G                                                        the launcher has closed the report: go on
Messages from it:
    R                                                        it is ready
    M number pid                                             a job is made, or could not be: pid 0
"""

from __future__ import annotations

import errno
import gc
import os

from transport import inherit
from transport.launcher import child, orders, spare
from transport.lean import signal, socket
from transport.status import NOT_STARTED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    # Given the argv of a job: does its work in this process, and ends it.
    Become = Callable[[list[str]], None]

START, GO, READY, MADE = b"S", b"G", b"R", b"M"
NAME = b"quine-zygote"
MEMO = inherit.FIRST_FD  # the number of a job's memo, which its environment names


def main(channel: int, files: int, become: Become) -> int:
    """Serve the launcher, which is the parent of this process. `files`: soft limit of open files of a job."""
    launcher = os.getppid()
    low = os.dup(channel)  # below MEMO, as all that comes later
    inherit.close_others({low})
    own = socket.socket(fileno=low)
    name = _rename(NAME)
    if not _is_left_to(launcher):
        return NOT_STARTED
    gc.collect()
    gc.freeze()  # a collection in a job would write to every page that is still shared
    own.send(READY, socket.MSG_NOSIGNAL)
    waiting: tuple[bytes, list[int]] = b"", []
    while True:
        data, fds = spare.receive(own)
        if data[:1] == START:
            waiting = data[1:], fds
        elif data[:1] == GO:
            _make(*waiting, own, files, name, become)
        else:
            return 0


def _make(data: bytes, fds: list[int], own: socket.socket, files: int, name: bytes, become: Become) -> None:
    """Make the process of a start, tell the launcher, and let it go on. Closes the descriptors."""
    _, number, order = orders.read(data, fds)
    report = socket.socket(fileno=fds.pop(spare.REPORT))

    def run() -> None:
        os.dup2(fds[3], MEMO)
        _rename(name)
        inherit.stand_first()
        env = {**order["env"], inherit.VARIABLE: str(MEMO)}
        start = child.Start(
            order["argv"],
            env,
            order["cwd"],
            fds[:3],
            keep=(MEMO,),
            folder=order["folder"],
            files=files,
            umask=order["umask"],
            inside=lambda: become(order["argv"]),
        )
        child.run(start, report)

    gate = -1
    try:
        pid, gate = _fork_apart(run)
        report.close()
        own.send(MADE + b"%d %d" % (number, pid), socket.MSG_NOSIGNAL)
        os.write(gate, b"go")
    except OSError as error:
        if report.fileno() >= 0:
            own.send(MADE + b"%d 0" % number, socket.MSG_NOSIGNAL)
            why = f"cannot start: {error.strerror}"
            child.tell(
                report, child.refusal(why, "too much runs there at one time; see slots in the inventory")
            )
            report.close()
    finally:
        for fd in (gate, *fds):
            if fd >= 0:
                os.close(fd)


def _fork_apart(work: Callable[[], None]) -> tuple[int, int]:
    """Fork a process whose parent has ended; return its pid and a gate, a descriptor.

    It does the work once something is written to the gate, and ends if that is closed without. OSError if not made.
    """
    closed, gate = os.pipe2(os.O_CLOEXEC)
    found, told = os.pipe2(os.O_CLOEXEC)
    # A signal to the child, while it has the handlers of this process, would be handled as one to this process.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    made = False
    try:
        between = os.fork()
        if not between:
            _stand_between(closed, gate, told, work)
        made = os.waitpid(between, 0)[1] == 0
        if not made:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return int(os.read(found, 16)), gate
    finally:
        for fd in (closed, found, told) if made else (closed, found, told, gate):
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _stand_between(closed: int, gate: int, told: int, work: Callable[[], None]) -> None:
    """The process between: fork, tell the pid and end. It is its fork that goes through the gate."""
    status = NOT_STARTED
    try:
        pid = os.fork()
        if pid:
            os.write(told, b"%d" % pid)
            status = 0
        else:
            os.close(gate)
            if os.read(closed, 1):
                work()
    finally:
        os._exit(status)


def _is_left_to(launcher: int) -> bool:
    """True if it is the launcher that becomes the parent of a process whose own has ended."""
    found, told = os.pipe2(os.O_CLOEXEC)

    def tell() -> None:
        os.write(told, b"%d" % os.getppid())

    try:
        _, gate = _fork_apart(tell)
        os.write(gate, b"go")
        os.close(gate)
        os.close(told)
        told = -1
        return os.read(found, 16) == b"%d" % launcher
    finally:
        for fd in (found, told):
            if fd >= 0:
                os.close(fd)


def _rename(name: bytes) -> bytes:
    """Give this process another name; return the one before."""
    fd = os.open("/proc/self/comm", os.O_RDWR)
    try:
        before = os.read(fd, 64).rstrip(b"\n")
        os.write(fd, name)
    finally:
        os.close(fd)
    return before
