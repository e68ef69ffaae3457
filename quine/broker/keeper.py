"""The keeper: a fork of the first agent that holds the keys and the socket, and makes a new worker if one is killed.

Laws
1. It is forked and not executed: it has the keys already, and it is the code that its maker runs, whatever has since
   been put in the place of a file. It loads all that a worker needs before it makes one, for the same reason.
2. It reads the prices for the same reason before it can be asked, and its workers have them from it.
3. It is closed to other processes of its user from its first instruction, and so is the worker, its fork.
4. It ends when a worker has ended by itself, or when workers die as soon as they are made.
"""

from __future__ import annotations

import os
import select
import time

from quine.broker import memory, wire
from quine.broker.keeper_log import Log
from quine.budget import prices
from quine.budget.kept_records import KeptRecords
from transport import inherit
from transport.lean import contextlib, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import NoReturn

    from quine.broker import server

BACKLOG = 1024
TRIES = 5  # workers that may die within SOON seconds of their start, one after the other
SOON = 2.0
LIMITS = ("FSIZE", "CPU", "AS", "DATA", "NPROC")  # those of the first agent do not bind later ones
LOADS = 60.0  # seconds that the keeper may take to load its modules


def make(path: str, key: bytes, keys: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Make a broker that listens at `path`. Raises OSError. Return when it can be asked."""
    beside = f"{path}.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    ready, told = os.pipe2(os.O_CLOEXEC)
    try:
        os.fchmod(
            listener.fileno(), 0o600
        )  # its file gets that mode; the umask belongs to all threads of a program
        with wire.reachable(beside) as name:
            listener.bind(name)
        node = os.stat(beside).st_ino
        if _has_threads():
            # A thread that is not in the fork may hold the lock of an import there, for ever.
            _load()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            pid = os.fork()
            if not pid:
                _become(listener.fileno(), told, path, key, keys, environ, node)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(told)
        told = -1
        with contextlib.suppress(
            ChildProcessError
        ):  # where SIGCHLD is ignored, or the program reaps all its children
            os.waitpid(pid, 0)
        poll = select.poll()  # select(2) takes no descriptor from 1024 on, and a program may have as many
        poll.register(ready, select.POLLIN)
        poll.poll(1000 * LOADS)
        os.set_blocking(ready, False)
        if _read(ready) != b"+":
            os.unlink(beside)
            raise OSError("the broker cannot be started")
        os.rename(beside, path)
    finally:
        listener.close()
        os.close(ready)
        if told >= 0:
            os.close(told)


def _read(ready: int) -> bytes:
    try:
        return os.read(ready, 1)
    except BlockingIOError:
        return b""


def _become(
    listener: int,
    told: int,
    path: str,
    key: bytes,
    keys: Mapping[str, str],
    environ: Mapping[str, str],
    node: int,
) -> NoReturn:
    log = None
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        memory.close_to_others()
        if memory.is_traced():
            os._exit(1)
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for limit in LIMITS:
            number = getattr(resource, f"RLIMIT_{limit}")
            hard = resource.getrlimit(number)[1]
            resource.setrlimit(number, (hard, hard))
        _let_go({listener, told})
        log = Log(path)
        memory.show(["quine", "broker"])
        records = KeptRecords()
        server = _load()
        prices.settle(environ)
        line = socket.socket(fileno=os.dup(listener))
        line.listen(BACKLOG)  # by this process: the kernel names the one that listens to its clients
        os.write(told, b"+")
        os.close(told)
        _keep(server.Seat(listener, records, path, key, dict(keys), dict(environ), os.getpid(), node, log))
    except BaseException as error:
        if log is not None:
            log.write(error)
    finally:
        os._exit(1)


def _load() -> ModuleType:
    """Load all that a keeper and its workers need; return the module of the workers."""
    import resource  # noqa: F401

    from quine.broker import server
    from quine.providers import vendors

    vendors.load()
    with contextlib.suppress(ImportError):  # `prices.settle` says what is missing
        prices.parser()
    return server


def _has_threads() -> bool:
    """Return whether this is a program of threads, as one that uses `quine.Executor` or whose requests have a pool.

    Asked of the kernel: threads that were started by `_thread` are unknown to `threading`.
    """
    try:
        return len(os.listdir("/proc/self/task")) > 1
    except OSError:
        return True


def _let_go(keep: set[int]) -> None:
    """Leave behind the descriptors, the directory, the signals, the job and the variables of the maker."""
    inherit.close_others(keep)
    inherit.stand_nowhere()
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.close(null)
    os.chdir("/")
    os.umask(0o077)
    signal.set_wakeup_fd(-1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _keep(seat: server.Seat) -> None:
    from quine.broker import server

    for name in [name for name in os.environ if name.startswith("QUINE_") and name not in server.KEPT]:
        del os.environ[name]
    early = 0
    while early < TRIES:
        begun = time.monotonic()
        pid = os.fork()
        if not pid:
            try:
                server.work(seat)
                os._exit(0)
            except BaseException as error:
                seat.log.write(error)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        if status == 0:
            os._exit(0)
        early = early + 1 if time.monotonic() - begun < SOON else 0
    seat.log.write(f"{TRIES} workers have died as soon as they were made")
