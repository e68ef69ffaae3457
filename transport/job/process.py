"""Processes: start one with three pipes or a terminal, and know when it ended.

Laws
1. Every job is the leader of its own session, so that all its descendants can be found again: see `termination`.
2. Waiting is a pidfd; the status is consumed in exactly one place.
3. An argv is never joined and no shell is asked.
4. A command that could not be started has an exit status that says why: 127 not found, 126 not executable.
"""

from __future__ import annotations

import os

from transport.launcher import child, termination
from transport.lean import socket
from transport.status import LOST, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Child:
    """A started process. The holder of this object owns the three descriptors and `pidfd`."""

    __slots__ = ("pid", "pidfd", "stderr", "stdin", "stdout")

    def __init__(self, pid: int, pidfd: int, stdin: int, stdout: int, stderr: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr

    def reap(self, **facts: object) -> Status:
        """Consume the status of a process that has ended (the pidfd is readable)."""
        _, wait_status, usage = os.wait4(self.pid, 0)
        rusage = {"utime": usage.ru_utime, "stime": usage.ru_stime, "maxrss": float(usage.ru_maxrss)}
        return Status.from_wait(wait_status, pid=self.pid, rusage=rusage, **facts)


def limit_self(limits: Mapping[str, str]) -> None:
    """Set limits on this process, before it executes a program. ProtocolError names a limit that cannot be set."""
    from transport import rlimits

    child.set_limits(rlimits.parse(limits))


def launch(
    argv: list[str],
    env: Mapping[str, str],
    cwd: str,
    limits: list[tuple[int, int]],
    keep: tuple[int, ...] = (),
    size: tuple[int, int] | None = None,
    stdin: int | None = None,
    prepare: Callable[[], None] | None = None,
    at: int = -1,
) -> Child | Status:
    """Start `argv` with pipes at 0, 1, 2 and the descriptors `keep`; wait until it runs. A Status says why it does not.

    With `size` (rows, columns) it gets a terminal in place of the pipes; with `stdin` it reads that in place of its
    first pipe, which then has no reader. `prepare` runs in the new process, by then the leader of its session, before
    it executes anything. `at` is the directory `cwd`, if it is open. OSError if a pipe or a process cannot be made.
    """
    ours, theirs = streams(size)
    started = False
    try:
        given = [theirs[0] if stdin is None else stdin, *theirs[1:]]
        start = child.Start(
            argv, env, cwd, given, limits=limits, keep=keep, terminal=size is not None, prepare=prepare, at=at
        )
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            pid = child.fork(start, far)
            report = child.Report(near)
            while not report.over:
                report.read()
        finally:
            near.close()
            far.close()
        if report.status:
            os.waitpid(pid, 0)
            return report.status
        started = True
    finally:
        for fd in theirs if started else [*theirs, *ours]:
            os.close(fd)
    try:
        return Child(pid, os.pidfd_open(pid), *ours)
    except OSError as error:
        for fd in ours:
            os.close(fd)
        termination.kill_session(pid)
        os.waitpid(pid, 0)
        # It has run: reported as unreachable, it would be started a second time.
        detail = f"it was started and cannot be watched: {error.strerror}"
        return Status("lost", LOST, pid=pid, detail=detail)


def streams(size: tuple[int, int] | None, merged: bool = False) -> tuple[list[int], list[int]]:
    """The near and the far ends of three pipes, or of a terminal of this size. Raises OSError.

    `merged`: stdout and stderr are one pipe, so that the order of all writes is kept. As of a terminal, the near end of
    stderr is that of an empty pipe.
    """
    if size is None:
        return _merged(*pipes()) if merged else pipes()
    from transport import terminal

    return terminal.pair(*size)


def _merged(ours: list[int], theirs: list[int]) -> tuple[list[int], list[int]]:
    os.dup2(theirs[1], theirs[2], inheritable=False)  # its far end is closed, and nothing comes from it
    return ours, theirs


def pipes() -> tuple[list[int], list[int]]:
    """Our ends and the child's of three pipes."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            pipes.append(os.pipe2(os.O_CLOEXEC))
    except OSError:
        for pair in pipes:
            os.close(pair[0])
            os.close(pair[1])
        raise
    return [pipes[0][1], pipes[1][0], pipes[2][0]], [pipes[0][0], pipes[1][1], pipes[2][1]]
