"""`--report FILE|FD`: one JSON object on how an agent or a command ended.

Laws
1. A target that cannot be written is refused before anything starts: exit 2.
2. The report of an earlier run is emptied before anything starts. So a file holds this run's report, whole, or none.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import stat

from quine.base.errors import DENIED, NOT_STARTED, Failure, Misconfigured, complain
from transport import quickjson
from transport.writes import write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from transport.status import Status

HINT = "--report FILE|FD: a file in a directory that is there, or the number of a descriptor open for writing"
STDOUT = "--report 1 for stdout, 2 for stderr, ./- for a file of that name"


def begin(target: str) -> str:
    """Empty what an earlier run left there. Return the target, a path made absolute. Raises Misconfigured."""
    if target == "-":  # as if it were stdout, which many programs mean by it
        raise Misconfigured("a report goes to a file or a descriptor, and - is neither", STDOUT)
    try:
        if target.isdecimal():
            _check_descriptor(int(target))
            return target
        path = os.path.abspath(os.path.expanduser(target))
        _check_file(path)
        return path
    except (OSError, OverflowError) as error:
        raise Misconfigured(f"cannot write the report to {target}: {_why(error)}", HINT) from None


def _check_descriptor(fd: int) -> None:
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        raise OSError(errno.EBADF, "it is not open for writing")


def _check_file(path: str) -> None:
    from transport.atomic import Aside

    try:
        there = os.stat(path)
    except FileNotFoundError:
        there = None
    if there and not stat.S_ISREG(there.st_mode):
        # Opening a pipe would wait for its reader, and closing it would give that reader an end of file.
        if stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return
    if there and (there.st_dev, there.st_ino) in [(fact.st_dev, fact.st_ino) for fact in _outputs()]:
        # The report takes its name, and what is written to the old file would be in none.
        raise OSError(errno.EBUSY, "stdout or stderr is that file")
    with Aside(path) as file:
        if there and there.st_size:
            file.commit()


def _outputs() -> list[os.stat_result]:
    found = []
    for fd in (1, 2):
        with contextlib.suppress(OSError):
            found.append(os.fstat(fd))
    return found


def write(target: str, status: Status, where: str = "local", **facts: object) -> bool:
    """Write the report of an agent or a command; see `put`."""
    return put(target, record(status, where, **facts))


def put(target: str, record: dict[str, object]) -> bool:
    """Write a report, whole, to a descriptor number or to a file (transport/atomic.py).

    False if that fails, which is printed: then no status of the caller is 0.
    """
    data = (quickjson.dumps(record) + "\n").encode()
    try:
        if target.isdecimal():
            write_all(int(target), data)
        else:
            from transport import atomic

            atomic.write(target, data)
    except OSError as error:
        complain(f"cannot write the report to {target}: {_why(error)}")
        return False
    return True


def is_replaced(target: str) -> bool:
    """Return whether a later report takes the place of an earlier one. A descriptor or a pipe would get both."""
    return not target.isdecimal() and (os.path.isfile(target) or not os.path.exists(target))


def may_arrive(target: str) -> bool:
    """Return False, and print it, if a report to this descriptor would surely be lost: its reader has gone."""
    if target.isdecimal():
        poll = select.poll()
        poll.register(int(target), select.POLLOUT)
        if any(events & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, events in poll.poll(0)):
            complain(f"cannot write the report to {target}: {os.strerror(errno.EPIPE).lower()}")
            return False
    return True


def put_after_exec(target: str, record: dict[str, object]) -> int:
    """Write a report once this process has become another program. Return a descriptor: a byte there prevents it.

    Whether execve succeeds is known when it has: a pipe that it closes tells a process that is no child of this one.
    """
    import signal

    ended, end = os.pipe2(os.O_CLOEXEC)
    try:
        between = os.fork()
        if between == 0:
            try:
                signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
                os.close(end)
                if not os.fork() and not os.read(ended, 1):
                    put(target, record)
            finally:
                os._exit(0)
        os.waitpid(between, 0)
    except OSError:
        os.close(end)
        raise
    finally:
        os.close(ended)
    return end


def record(status: Status, where: str = "local", **facts: object) -> dict[str, object]:
    """Return the report. `where` is the requested host, recorded if none was chosen.

    `cost` and `agents` are null if no ledger counts them. For a plain command all fields about agents are null.
    """
    found = {name: value for name, value in status.to_json().items() if name != "hint" or value}
    found["host"] = status.host or where
    return found | dict.fromkeys(("session", "tokens_in", "tokens_out", "cost", "agents")) | facts


def failed(target: str, failure: Failure, where: str, began: float) -> None:
    """Write the report of an agent that was refused before it started."""
    import time

    from transport.status import Status

    state = {DENIED: "denied", NOT_STARTED: "unreachable"}.get(failure.status, "exited")
    status = Status(state, failure.status, host=failure.host, detail=failure.detail)
    write(target, status, where, started=began, seconds=time.time() - began)


def _why(error: OSError | OverflowError) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else "no such descriptor"
