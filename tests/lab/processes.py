"""Processes that belong to a lab: found by a mark in their environment, ended and waited for by pidfd.

Laws
1. A process is found by what it inherited (one environment variable), so whatever a job leaves behind is
   found, whoever its parent is now. A process that cleared its own environment escapes; none of ours does.
2. Waiting is on pidfds, nothing sleeps. Only who waits for processes of a kind looks again for those still to come.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

PROC = Path("/proc")
LONG = 1 << 17  # bytes of one read
AGAIN = 0.5  # seconds between two looks
EXEC = 0.5  # seconds that one may be in the middle of its exec


@dataclass(frozen=True, slots=True)
class Process:
    """One process as /proc showed it; `start` (ticks since boot) tells it from a later one with its pid."""

    pid: int
    ppid: int
    start: int
    argv: tuple[str, ...]
    copy: bool = False  # forked from one with the same argv that is still there, and no other program so far
    name: str = ""

    @property
    def daemon(self) -> bool:
        """A node or the dial that leads to one: they outlive the command that started them, by design."""
        return self._is_node and "--launcher" not in self.argv and not self.spare

    @property
    def carrier(self) -> bool:
        """An ssh that carries a link of a node, or leads to its host: it lives as long as the link does."""
        of_link = "-oBatchMode=yes" in self.argv or "-W" in self.argv
        return os.path.basename((self.argv or ("",))[0]) == "ssh" and of_link

    @property
    def guard(self) -> bool:
        """The process beside a node that outlives it, to start and to end its jobs. A copy of it is a job."""
        return self._is_node and "--launcher" in self.argv and not self.copy and not self.spare

    @property
    def spare(self) -> bool:
        """A process that a guard has made ahead of starts: it is gone some seconds after the last of them."""
        return self.name == "quine-spare" or "--zygote" in self.argv

    @property
    def stays(self) -> bool:
        """Whether it belongs to a node, and is no job of it."""
        return self.daemon or self.guard or self.spare or self.carrier

    @property
    def broker(self) -> bool:
        """A keeper or worker of a broker."""
        return self.argv[:2] == ("quine", "broker")

    @property
    def _is_node(self) -> bool:
        return "node" in self.argv and any("quine" in word or "transport" in word for word in self.argv)

    def __str__(self) -> str:
        return f"{self.pid} {' '.join(self.argv) or '(no argv)'}"


def _read(pid: int, name: str) -> bytes:
    """A file of /proc/PID; by the calls of the kernel alone, for the watch reads thousands of them a second."""
    fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        read = os.read(fd, LONG)
        while read and len(read) % LONG == 0 and (more := os.read(fd, LONG)):
            read += more
        return read
    finally:
        os.close(fd)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(command name, ppid, start time), None for a process that is gone or a zombie."""
    try:
        text = _read(pid, "stat").decode(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")  # the name may hold spaces and brackets
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    return name, int(fields[1]), int(fields[19])


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()]


def find(pid: int) -> Process | None:
    facts = _stat(pid)
    if facts is None:
        return None
    try:
        raw = _read(pid, "cmdline")
    except OSError:
        return None
    argv = tuple(os.fsdecode(word) for word in raw.split(b"\0")[:-1])
    return Process(pid, facts[1], facts[2], argv, name=facts[0])


def _environment(pid: int) -> bytes:
    """Return the environment of a process at its exec. In the middle of one, environment and argv are empty: wait."""
    deadline = time.monotonic() + EXEC
    while True:
        environment = _read(pid, "environ")
        if environment or _read(pid, "cmdline") or time.monotonic() > deadline:
            return environment
        os.readlink(PROC / str(pid) / "exe")  # OSError: a zombie, or a thread of the kernel's
        os.sched_yield()


def marked(*marks: str, brokers: bool = False) -> list[Process]:
    """Return every live process whose environment at its exec held one of `marks` ("NAME=value").

    Brokers outlive the agents that they serve, by design: they are found only if they are asked for.
    """
    needles = {os.fsencode(mark) for mark in marks}
    found = []
    for pid in _pids():
        try:
            environment = _environment(pid)
        except OSError:
            continue  # gone, or of another user
        if not any(needle in environment for needle in needles):
            continue  # most of them
        if not needles.isdisjoint(environment.split(b"\0")) and (process := find(pid)):
            found.append(process)
    found = [process for process in found if brokers or not process.broker]
    words = {process.pid: process.argv for process in found}
    return [
        replace(process, copy=True) if words.get(process.ppid) == process.argv else process
        for process in found
    ]


def is_below(process: Process, pid: int) -> bool:
    """Return whether a process is a descendant of another one, or that one itself."""
    above: Process | None = process
    while above and above.pid != pid:
        above = find(above.ppid)
    return above is not None


def children(pid: int) -> dict[int, str]:
    """Live children of a process and their command names, {} if it is gone.

    The kernel lists them; to look through all processes for them takes far longer.
    """
    found: list[bytes] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):  # a thread that has just ended
                found += _read(pid, f"task/{task}/children").split()
    facts = ((int(child), _stat(int(child))) for child in found)
    return {child: fact[0] for child, fact in facts if fact}


def descendants(root: int, name: str = "") -> list[int]:
    """Return live processes below `root`; with `name`, only along a line of processes whose name begins so."""
    found, todo = [], [root]
    while todo:
        below = [pid for pid, own in children(todo.pop()).items() if own.startswith(name)]
        found += below
        todo += below
    return found


def wait_gone(processes: Iterable[Process], seconds: float) -> list[Process]:
    """Wait until all have ended, at most `seconds`; returns those that have not."""
    deadline = time.monotonic() + seconds
    waiting: dict[int, Process] = {}
    poll = select.poll()
    try:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                fd = os.pidfd_open(process.pid)
                waiting[fd] = process
                poll.register(fd, select.POLLIN)
                now = find(process.pid)
                if now is None or now.start != process.start:  # pid used again, or a zombie
                    poll.unregister(fd)
                    del waiting[fd]
                    os.close(fd)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(max(1, int(left * 1000))):
                poll.unregister(fd)
                del waiting[fd]
                os.close(fd)
        return list(waiting.values())
    finally:
        for fd in waiting:
            os.close(fd)


def wait_none(look: Callable[[], list[Process]], seconds: float) -> list[Process]:
    """Wait until `look` finds no process any more; return those that stay.

    It looks again at intervals: processes may have started since. A process on the way to its exec may also become one
    that is not looked for, as the login shell that becomes a dial.
    """
    deadline = time.monotonic() + seconds
    while (found := look()) and (left := deadline - time.monotonic()) > 0:
        wait_gone(found, min(left, AGAIN))
    return found


def kill_marked(mark: str, seconds: float = 30) -> list[Process]:
    """SIGKILL every process with `mark` and wait for it; repeat until no fork of them is left.

    Two looks must find none: during the first a process may have forked another and gone.
    """
    deadline = time.monotonic() + seconds
    while (
        processes := marked(mark, brokers=True) or marked(mark, brokers=True)
    ) and time.monotonic() < deadline:
        # stopped first: as when a machine is switched off, none of them sees another one die
        for process in processes:
            kill(process.pid, signal.SIGSTOP)
        for process in processes:
            kill(process.pid)
        wait_gone(processes, deadline - time.monotonic())
    return processes


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def peak_rss(pid: int) -> int:
    """The most memory a live process ever had resident, in bytes (VmHWM)."""
    for line in (PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(pid)


def clear_peak(pid: int) -> int:
    """Reset the peak memory of a process; return its present memory."""
    (PROC / str(pid) / "clear_refs").write_text("5")
    return peak_rss(pid)
