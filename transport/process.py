"""Processes: start one with three pipes or a terminal, and know when it ended.

Laws
1. Every job is the leader of its own session, so that all it started can be found again: see `ending`.
2. Waiting is a pidfd; the status is consumed in exactly one place.
3. An argv is never joined and no shell is asked.
4. What could not be started has an exit status that says why: 127 not found, 126 not executable.
5. A forked copy of this process is a process like any other: it holds nothing of ours but what it was given, and
   never comes back to where it was forked.
"""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import subprocess
from collections.abc import Callable, Mapping

from transport import inherit, terminal
from transport.errors import ProtocolError, Refused
from transport.status import NOT_STARTED, Status

_LIMITS = {
    "as": resource.RLIMIT_AS,
    "core": resource.RLIMIT_CORE,
    "cpu": resource.RLIMIT_CPU,
    "data": resource.RLIMIT_DATA,
    "fsize": resource.RLIMIT_FSIZE,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "stack": resource.RLIMIT_STACK,
}
_CGROUP_LIMITS = ("mem", "pids")
_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Child:
    """A started process. The three descriptors and `pidfd` belong to whoever holds this."""

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


def parse_limits(limits: Mapping[str, str]) -> list[tuple[int, int]]:
    """{"nofile": "4096", "as": "8G"} to (RLIMIT_*, value) pairs; ProtocolError names what cannot be set."""
    pairs = []
    for name, text in limits.items():
        if name in _CGROUP_LIMITS:
            raise ProtocolError(f"limit {name} needs a cgroup: not built yet")
        if name not in _LIMITS:
            raise ProtocolError(f"unknown limit {name[:40]!r}; known are {', '.join(sorted(_LIMITS))}")
        digits, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in _UNITS else (text, "")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            raise ProtocolError(f"limit {name} is no number: {text[:40]!r}")
        pairs.append((_LIMITS[name], int(digits) * _UNITS.get(unit, 1)))
    return pairs


_room = resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # of this process, now; its jobs keep the first value
_stock = _room
MARGIN = 64  # descriptors that a spawn, a dial and the loop may need at one time


def make_room(highest: int) -> None:
    """Raise this process's soft limit of open files when `highest`, a new descriptor, comes near it.

    Not before: a job must see the limit of its login, and giving that back in each child costs a real fork.
    """
    global _room
    if highest < _room - MARGIN or _room > _stock:
        return
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    _room = min(hard, 1 << 20) if hard != resource.RLIM_INFINITY else 1 << 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (_room, hard))


def _setter(pairs: list[tuple[int, int]], with_terminal: bool = False) -> Callable[[], None] | None:
    if not pairs and _room == _stock and not with_terminal:
        return None  # keeps vfork usable: a fork of the node costs a millisecond more

    def apply() -> None:
        if with_terminal:
            terminal.take()
        resource.setrlimit(resource.RLIMIT_NOFILE, (_stock, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        for number, value in pairs:
            hard = resource.getrlimit(number)[1]
            if hard != resource.RLIM_INFINITY:
                value = min(value, hard)
            resource.setrlimit(number, (value, value))

    return apply


def limit_self(limits: Mapping[str, str]) -> None:
    """Set limits on this process, before it becomes another. ProtocolError names what cannot be set."""
    if apply := _setter(parse_limits(limits)):
        apply()


def launch(
    argv: list[str],
    env: Mapping[str, str],
    cwd: str,
    limits: list[tuple[int, int]],
    keep: tuple[int, ...] = (),
    size: tuple[int, int] | None = None,
    stdin: int | None = None,
    inside: Callable[[], None] | None = None,
) -> Child | Status:
    """Start `argv` with pipes at 0, 1, 2 and the descriptors `keep`. A Status says why it did not start.

    With `size` (rows, columns) it gets a terminal in place of the pipes; with `stdin` it reads that in place of its
    first pipe, which then has no reader. `inside` is what a copy of this process can do in the place of `argv`: it has
    been started and has imported all already. It ends the process itself.
    """
    _check_directory(cwd)
    pid = 0
    ours, theirs = terminal.pair(*size) if size else _pipes()
    make_room(max(ours))
    try:
        streams = [theirs[0] if stdin is None else stdin, *theirs[1:]]
        how = env, cwd, streams, keep, _setter(limits, size is not None)
        is_plain = not limits and size is None and stdin is None
        pid = _fork(inside, *how) if inside and is_plain else _spawn(argv, *how)
    except OSError as error:
        return _not_started(argv[0], error)
    except subprocess.SubprocessError as error:
        raise Refused(f"limits cannot be set: {error}") from None
    finally:
        for fd in theirs:
            os.close(fd)
        if not pid:
            for fd in ours:
                os.close(fd)
    try:
        return Child(pid, os.pidfd_open(pid), *ours)
    except OSError:
        for fd in ours:
            os.close(fd)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _spawn(
    argv: list[str],
    env: Mapping[str, str],
    cwd: str,
    streams: list[int],
    keep: tuple[int, ...],
    apply: Callable[[], None] | None,
) -> int:
    stdin, stdout, stderr = streams
    process = subprocess.Popen(
        argv,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=cwd,
        env=env,
        pass_fds=keep,
        start_new_session=True,
        preexec_fn=apply,
    )
    process.returncode = 0  # Popen's finalizer must not wait for it: the status is consumed by `reap` alone
    return process.pid


def _fork(
    inside: Callable[[], None],
    env: Mapping[str, str],
    cwd: str,
    streams: list[int],
    keep: tuple[int, ...],
    apply: Callable[[], None] | None,
) -> int:
    """The pid of a copy of this process, once it leads its session. Raises OSError where it could not be started."""
    heard, told = os.pipe2(os.O_CLOEXEC)
    # A signal that comes to the copy while our handlers are its own would be taken for one that came to us.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            try:
                _part(env, cwd, streams, keep, told)
                if apply:
                    apply()
                os.close(told)
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            except OSError as error:
                os.write(told, b"%d" % (error.errno or errno.EIO))
            else:
                inside()
            finally:
                os._exit(NOT_STARTED)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(told)
        with open(heard, "rb") as pipe:
            why = pipe.read(16)
    if why:
        os.waitpid(pid, 0)
        raise OSError(int(why), os.strerror(int(why)))
    return pid


def _part(env: Mapping[str, str], cwd: str, streams: list[int], keep: tuple[int, ...], told: int) -> None:
    """In the copy: be what a program is that was started anew."""
    gc.freeze()  # a collection would write to every page that is still shared
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in range(1, signal.NSIG):
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
    inherit.close_others({*keep, told})
    for fd in keep:
        os.set_inheritable(fd, True)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)


def _check_directory(cwd: str) -> None:
    """Before the start, which would blame the command for it. Raises Refused."""
    try:
        os.stat(os.path.join(cwd, "."))  # asks for the right to be in it, too
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise Refused(
            f"no such directory: {cwd}",
            "make it there, or choose another one with --cwd; a ~ in quotes is the home there",
        ) from None
    except OSError as error:
        why = (error.strerror or "").lower()
        raise Refused(f"cannot start in {cwd}: {why}", "choose another directory with --cwd") from None


def _pipes() -> tuple[list[int], list[int]]:
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


def _not_started(command: str, error: OSError) -> Status:
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Status("exited", 127, detail=f"command not found: {command}")
    if error.errno in (errno.EACCES, errno.ENOEXEC, errno.EPERM, errno.EISDIR):
        return Status("exited", 126, detail=f"cannot execute {command}: {error.strerror}")
    return Status("unreachable", 69, detail=f"cannot start {command}: {error.strerror}")
