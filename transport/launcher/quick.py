"""Quick starts: the launcher makes a job's process by posix_spawn, which copies none of its memory.

A fork of the launcher costs 2 ms of a processor, most of it for pages that the child copies before its exec.

Laws
1. Here the launcher itself touches file systems: only such as a spare has found local within LIFE, for the same
   directory, command and PATH (of what the kernel opens, the loader of a program is not looked at: a node replaces a
   launcher that hangs). Whatever is not plain, or fails, is done by a process of its own: see `child`.
2. The report says that it begins before the process is made, and the pid after it. If the launcher is killed between
   the two, the node looks for a process with the job's memo, and otherwise says that the job is lost.
3. A program is searched at each start: one that was put before it in PATH since is not passed over.
"""

from __future__ import annotations

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
    from typing import Any

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

    def start(self, order: dict[str, Any], key: Key | None, fds: list[int]) -> int:
        """Start the job; return its pid, or 0 if that is left to a process of its own.

        `fds`: streams, report, memo. They stay the caller's, but the report's, once the process is made.
        """
        place, until = self._found.get(key, (0, 0.0)) if key else (0, 0.0)
        if not place or until < time.monotonic():
            return 0
        *earlier, program = child.candidates(order["argv"][0], order["env"])[:place]
        if any(map(os.path.lexists, earlier)):
            return 0
        folder = memo = -1
        try:
            if order["folder"]:
                if self._mounts.leads_elsewhere(order["folder"]):
                    return 0
                folder = workdir.enter_once(order["folder"])
                os.fchdir(folder)
            else:
                os.chdir(order["cwd"])
            memo = fcntl.fcntl(fds[4], fcntl.F_DUPFD, inherit.FIRST_FD)
            return self._spawn(program, order, fds, folder, memo)
        except (OSError, ValueError):
            return 0
        finally:
            os.chdir("/")
            for fd in (folder, memo):
                if fd >= 0:
                    os.close(fd)

    def _spawn(self, program: str, order: dict[str, Any], fds: list[int], folder: int, memo: int) -> int:
        report = socket.socket(fileno=fds[3])
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        pid = 0
        try:
            child.send_begun(report, folder)
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
            if not child.send_made(report, pid) and pid:
                termination.signal_group(pid, signal.SIGKILL)
            report.detach()
        if pid:
            os.close(fds.pop(3))
        return pid
