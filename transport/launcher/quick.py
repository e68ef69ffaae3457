"""Quick starts: the launcher makes a job's process by posix_spawn, which copies none of its memory.

A fork of the launcher costs 2 ms of a processor, most of it for pages that the child copies before its exec.

Laws
1. Here the launcher itself touches file systems: only such as a spare has found local within LIFE, for the same
   directory, command and PATH (of what the kernel opens, the loader of a program is not looked at: a node replaces a
   launcher that hangs). Whatever is not plain, or fails, is done by a process of its own: see `child`.
2. The table, or a report, says that it begins before the process is made, and the pid after it. If the launcher is
   killed between the two, the node looks for a process with the job's memo, and otherwise says that the job is lost.
3. A program is searched at each start: one that was put before it in PATH since is not passed over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
import time

from transport import file_systems, inherit
from transport.launcher import child, termination, workdir
from transport.lean import signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    from transport.launcher.folders import Folders
    from transport.launcher.table import Table

    class Way(Protocol):
        """How the node learns of a start, whatever happens to the launcher meanwhile."""

        def enter(self, folder: str) -> int:
            """Make the folder if it is missing, and return its descriptor. Raises OSError."""

        def begun(self) -> None:
            """The process is about to be made. Raises OSError: then it is not."""

        def made(self, pid: int) -> bool:
            """It was made, or with 0 not. False if nobody wants it any more."""

        def close(self) -> None: ...

    Key = tuple[str, str, str]  # directory that is entered, or in which one is made; command; PATH

LIFE = 2.0  # seconds that a finding is used
MOST = 64  # findings that are kept


def key_of(order: dict[str, Any]) -> Key | None:
    """Return the question that is to be answered before a quick start of this order; None: it is not plain."""
    if order["own"] or order["limits"] or order["terminal"]:
        return None
    directory = order["cwd"]
    if order["folder"]:
        if os.path.normpath(directory) != os.path.normpath(order["folder"]):
            return None  # a link that a job has made may lead anywhere
        directory = os.path.dirname(order["folder"])
    return directory, order["argv"][0], order["env"].get("PATH", os.defpath)


def find(key: Key) -> int:
    """Return the place, from 1, of the command among its candidates, if all that a start touches is local; 0 if not.

    May hang.
    """
    directory, command, path = key
    if "/" in command and not os.path.isabs(command):
        return 0  # below a directory of its own for each job
    touched = [directory]
    for place, candidate in enumerate(child.candidates(command, {"PATH": path})[:254], 1):
        touched.append(candidate)
        try:
            head = _head(candidate)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return 0
        if head[:2] == b"#!":
            words = head[2:].split(b"\n")[0].split()
            touched += [os.fsdecode(words[0])] if words else []
        executable = os.access(candidate, os.X_OK) and os.path.isdir(directory)
        return place if executable and file_systems.is_local(touched) else 0
    return 0


def _head(path: str) -> bytes:
    """Return the first bytes of a regular file. Raises OSError. Opening a FIFO would wait, and let its writer go on."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return os.read(fd, 256)
    finally:
        os.close(fd)


class Quick:
    """`files`: soft limit of open files of a job."""

    def __init__(self, files: int) -> None:
        self._files = files
        self._found: dict[Key, tuple[int, float]] = {}  # place, and the time until which it holds
        self._directories: dict[str, float] = {}
        # An exec keeps what is ignored; the interpreter ignores two.
        self._ignored = [n for n in signal.valid_signals() if signal.getsignal(n) is signal.SIG_IGN]
        self._mounts = file_systems.Mounts()
        self._able = hasattr(os, "posix_spawn")

    def is_due(self, key: Key | None) -> bool:
        """True if a spare shall look: nothing is known, or not for much longer."""
        return (
            self._able and key is not None and self._found.get(key, (0, 0.0))[1] < time.monotonic() + LIFE / 2
        )

    def learn(self, key: Key, place: int) -> None:
        """Take the answer of `find`."""
        if len(self._found) >= MOST:
            self._found.clear()
            self._directories.clear()
        until = time.monotonic() + LIFE
        self._found[key] = place, until
        if place:
            self._directories[key[0]] = until

    def is_local(self, folder: str) -> bool:
        """True if a folder for jobs can be left without a process for it."""
        known = self._directories.get(os.path.dirname(folder), 0.0) > time.monotonic()
        return known and not self._mounts.leads_elsewhere(folder)

    def start(self, order: dict[str, Any], key: Key | None, fds: list[int], way: Way) -> int:
        """Start the job; return its pid, or 0 if that is left to a process of its own.

        `fds`: three streams, and the memo as the last one. They stay the caller's.
        """
        place, until = self._found.get(key, (0, 0.0)) if key else (0, 0.0)
        if not place or until < time.monotonic():
            return 0
        *earlier, program = child.candidates(order["argv"][0], order["env"])[:place]
        if any(map(os.path.lexists, earlier)):
            return 0
        memo = -1
        try:
            if order["folder"]:
                if self._mounts.leads_elsewhere(order["folder"]):
                    return 0
                os.fchdir(way.enter(order["folder"]))
            else:
                os.chdir(order["cwd"])
            memo = fcntl.fcntl(fds[-1], fcntl.F_DUPFD, inherit.FIRST_FD)
            return self._spawn(program, order, fds, memo, way)
        except (OSError, ValueError):
            return 0
        finally:
            os.chdir("/")
            way.close()
            if memo >= 0:
                os.close(memo)

    def _spawn(self, program: str, order: dict[str, Any], fds: list[int], memo: int, way: Way) -> int:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        pid, umask = 0, order["umask"]
        if umask >= 0:
            umask = os.umask(umask)
        try:
            way.begun()
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._files, hard[1]))
            pid = os.posix_spawn(
                program,
                order["argv"],
                {**order["env"], inherit.VARIABLE: str(memo)},
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(fds[:3])],
                setsid=True,
                setsigmask=(),
                setsigdef=self._ignored,
            )
        except NotImplementedError:
            self._able = False  # a C library without a flag for sessions
            self._found.clear()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, hard)
            if umask >= 0:
                os.umask(umask)
            if not way.made(pid) and pid:
                termination.signal_group(pid, signal.SIGKILL)
        return pid


class Reported:
    """The report of a start, as the way by which the node learns of it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._report: socket.socket | None = None
        self._folder = -1

    def enter(self, folder: str) -> int:
        self._folder = workdir.enter_once(folder)
        return self._folder

    def begun(self) -> None:
        self._report = socket.socket(fileno=self._fd)
        child.send_begun(self._report, self._folder)

    def made(self, pid: int) -> bool:
        return self._report is not None and child.send_made(self._report, pid)

    def close(self) -> None:
        if self._report:
            self._report.detach()
        if self._folder >= 0:
            os.close(self._folder)


class Marked:
    """The entry of a job in the table, which the node reads if it hears of it no more."""

    def __init__(self, table: Table, slot: int, folders: Folders) -> None:
        self._table = table
        self._slot = slot
        self._folders = folders
        self.entered = -1  # the descriptor of a folder that was not held before,
        self.state = -1  # and 1 if it was empty, else 0

    def enter(self, folder: str) -> int:
        fd, new = self._folders.enter(folder)
        if new:
            self.entered, self.state = fd, int(workdir.state(fd))
        return fd

    def begun(self) -> None:
        self._table.mark(self._slot, True)

    def made(self, pid: int) -> bool:
        if pid:
            with contextlib.suppress(OSError):
                self._table.made(self._slot, pid)  # if that fails, the memo still identifies the job
        else:
            self._table.mark(self._slot, False)
        return True

    def close(self) -> None:
        pass
