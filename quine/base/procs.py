"""Processes of this machine: read from /proc, ended through pidfds, and assigned to the command that started them.

Laws
1. A pid alone identifies no process: it is used together with a start time or a pidfd.
2. A process that adopts orphans, as PID 1 adopts those of a container, reaps them, and never a child that is registered
   by `own`. An adopted process in a session of its own is not ended with the process that has adopted it.
3. Ending means TERM, a pause, KILL. It reaches descendants in any process group, because timeout(1) and `set -m` make
   their own. A process in a session of its own is left alone: that is how a program asks to stay.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import time

from transport import inherit
from transport.address import boot_clock
from transport.lean import NamedTuple, contextlib, signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


LONGEST = 1e6  # seconds of one poll(2), which takes milliseconds in 32 bits
_LONGEST_STAT = 4096  # bytes; 52 numbers and a name of 64 bytes at most
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    pid: int
    state: str
    ppid: int
    group: int
    session: int
    started: int  # ticks since boot


def look(pid: int) -> Process | None:
    fields = _stat(pid)
    return _process(pid, fields) if fields else None


def _stat(pid: int) -> list[bytes]:
    """Return what follows the name in /proc/PID/stat; [] if the process is gone.

    By plain system calls: agents look at all processes of a machine, and a file object costs four more of them each.
    """
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(fd, _LONGEST_STAT).rpartition(b")")[2].split()  # the name before it may hold anything
    except OSError:
        return []
    finally:
        os.close(fd)


def _process(pid: int, fields: list[bytes]) -> Process:
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def exit_word(pid: int) -> int | None:
    """Return the wait status of a process of ours that is not reaped yet, or None if it is not a zombie."""
    fields = _stat(pid)
    return int(fields[49]) if fields and fields[0] == b"Z" else None


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores the signal `number`; False if the process is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            mask = file.read().partition(b"\nSigIgn:")[2].split(maxsplit=1)[0]
    except (OSError, IndexError):
        return False
    return bool(int(mask, 16) >> (number - 1) & 1)


_owned: set[int] = set()  # children that some code of this process waits for
_adopter = 0  # pid of the process that has called `adopt_orphans`: a fork adopts nobody


def own(pid: int) -> None:
    """Register a child that this process will wait for itself."""
    _owned.add(pid)


def reap(pid: int) -> int:
    """Wait for a child, and return its wait status."""
    _, word = os.waitpid(pid, 0)
    _owned.discard(pid)
    return word


def adopt_orphans() -> None:
    """Become the parent of processes below that lose theirs: so the kernel shows them to be below this one."""
    global _adopter
    if _adopter != os.getpid():
        inherit.adopt_orphans()
        _adopter = os.getpid()


def adopt_no_more() -> None:
    """Leave later orphans to a process above this one."""
    global _adopter
    if _adopter == os.getpid():
        inherit.adopt_orphans(False)
        _adopter = 0


def reap_orphans() -> None:
    """Reap orphans that have ended. Do not call it while a child is started: `own` does not know it yet."""
    if os.getpid() not in (1, _adopter):
        return
    with contextlib.suppress(ChildProcessError):
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
    for pid in children(os.getpid()) - _owned:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def set_parent_death_signal(fd: int, whom: int, on: bool = True) -> None:
    """Make the kernel send TERM to `whom` (a pid, or minus a group) when the last opposite end of `fd` is closed.

    That happens when its holder ends, also by SIGKILL, where no handler runs; at once if that has happened. `fd` is an
    end of a pipe that `whom`, or a process of that group, holds open too. Writes also send the signal (reads, if `fd`
    is a writing end), so it may be `on` only while there are none.
    """
    with contextlib.suppress(OSError):
        if on:
            fcntl.fcntl(fd, fcntl.F_SETOWN, whom)
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGTERM)
        flags = fcntl.fcntl(fd, fcntl.F_GETFL)
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | fcntl.FASYNC if on else flags & ~fcntl.FASYNC)
        ended = select.poll()
        ended.register(fd, 0)  # the end of the opposite side is told unasked
        if on and ended.poll(0):
            os.kill(whom, signal.SIGTERM)


def pids() -> frozenset[int]:
    """The pids of all processes, zombies too."""
    return frozenset(int(name) for name in os.listdir("/proc") if name.isdigit())


def everyone(session: int | None = None) -> list[Process]:
    """All processes but zombies, or those of one session."""
    own = b"" if session is None else b"%d" % session
    found = ((pid, _stat(pid)) for pid in pids())
    return [_process(pid, f) for pid, f in found if f and f[0] != b"Z" and (not own or f[3] == own)]


def ancestors() -> set[int]:
    """The pids of all processes above this one."""
    pids: set[int] = set()
    process = look(os.getpid())
    while process and process.ppid not in pids:
        pids.add(process.ppid)
        process = look(process.ppid)
    return pids


def now() -> int:
    """The current time in the unit of `Process.started`."""
    return int(boot_clock() * _TICKS)


def children(pid: int) -> frozenset[int]:
    """The children of a single-threaded process; empty if /proc does not list them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return frozenset(map(int, file.read().split()))
    except OSError:
        return frozenset()


def below(root: int) -> dict[int, Process]:
    """The descendants of `root` that are in our session, by pid. Not every process of the machine is looked at for it.

    Where the kernel lists no children, the result is that of `of_session`, without `root`.
    """
    session, found, parents = os.getsid(0), {}, [root]
    for pid in parents:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{task}/children", "rb", buffering=0) as file:
                    parents += map(int, file.read().split())
        except PermissionError:
            continue  # of another user, as a set-user-id program is, where /proc is mounted with hidepid=1
        except (FileNotFoundError, ProcessLookupError):
            if os.path.exists(f"/proc/{pid}/task"):
                return {pid: process for pid, process in of_session(root).items() if pid != root}
    for pid in parents[1:]:
        process = look(pid)
        if process and process.session == session and process.state != "Z":
            found[pid] = process
    return found


def is_empty(group: int) -> bool:
    """Return whether no process is in a group, not even one that is not reaped yet."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except OSError:  # it belongs to somebody else
        pass
    return False


def of_command(shell: int, begun: int, older: frozenset[int]) -> list[int]:
    """The processes of the command that `shell` runs since `begun`: its descendants, and orphans of its group.

    Background processes of an earlier command descend from one of the `older` children of the shell. Start times
    alone cannot separate them: their resolution is a hundredth of a second. Parents come before their children.
    """
    table = {process.pid: process for process in everyone()}
    mine = []
    for process in table.values():
        if process.pid == shell:
            continue
        top = process
        while top.ppid != shell and top.ppid in table and top.ppid > 1:
            top = table[top.ppid]
        if top.ppid == shell:
            if top.pid not in older and top.started >= begun:
                mine.append(process.pid)
        elif process.group == shell and process.started >= begun:
            mine.append(process.pid)
    return parents_first(mine, table)


def parents_first(pids: Iterable[int], table: dict[int, Process]) -> list[int]:
    """Sort `pids` to be signalled: a shell whose child has ended goes on with its list until it gets its own signal."""

    def depth(pid: int) -> int:
        above = {pid}
        while (process := table.get(pid)) and process.ppid not in above:
            pid = process.ppid
            above.add(pid)
        return len(above)

    return sorted(pids, key=depth)


def tree(root: int) -> list[int]:
    """The pids of a process and its descendants, as far as they are in our session.

    Any agent among them may have adopted daemons, whose commands asked for them to stay (setsid).
    """
    below: dict[int, list[int]] = {}
    for process in everyone(os.getsid(0)):
        below.setdefault(process.ppid, []).append(process.pid)
    found = [root]
    for pid in found:
        found += below.get(pid, ())
    return found


def wait(pidfds: Sequence[int], seconds: float) -> bool:
    """Wait until all these processes have ended. Return False if the time is over first."""
    deadline = time.monotonic() + seconds
    left = set(pidfds)
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    while left:
        pause = max(0.0, deadline - time.monotonic())
        ended = poll.poll(int(min(pause, LONGEST) * 1000) + (pause > 0))
        if not ended and not pause:
            return False
        for fd, _ in ended:
            poll.unregister(fd)
            left.discard(fd)
    return True


def of_session(root: int) -> dict[int, Process]:
    """`root`, its group and the descendants of both, as far as they are in our session; by pid."""
    table = {process.pid: process for process in everyone(os.getsid(0))}
    mine = {pid for pid, process in table.items() if root in (pid, process.group)}
    return {pid: table[pid] for pid in _grown(mine, table)}


def _grown(pids: set[int], table: dict[int, Process]) -> set[int]:
    """Return `pids` and all their descendants."""
    while more := {pid for pid, process in table.items() if process.ppid in pids} - pids:
        pids |= more
    return pids


def end_all(found: dict[int, Process], root: int | None, grace: float) -> None:
    """Send TERM, after `grace` seconds KILL, to `found`, to the group `root`, and to their descendants.

    A `root` of None is no group. 0 is one: that of a process put into this PID namespace from outside, maybe our own.
    A process of `found` can fork just before it takes its TERM: its child is then an orphan of ours in its group. That
    may be a new one, with its own number, as timeout(1) makes it.
    """
    session, ours = os.getsid(0), os.getpid()
    groups: set[int] = set()  # of those that were seen alive, or that they can make

    def left() -> dict[int, Process]:
        table = {p.pid: p for p in everyone(session) if p.pid != ours}
        mine = {pid for pid, p in found.items() if pid in table and table[pid].started == p.started}
        groups.update(({found[pid].group for pid in mine} | mine) - {os.getpgrp()})
        mine |= {pid for pid, p in table.items() if p.group == root or (p.ppid == ours and p.group in groups)}
        return {pid: table[pid] for pid in parents_first(_grown(mine, table), table)}

    for number, pause in ((signal.SIGTERM, grace), (signal.SIGKILL, 1.0)):
        found = left()
        fds = []
        for pid in found:
            with contextlib.suppress(OSError):
                fds.append(os.pidfd_open(pid))
        for each in (number, signal.SIGCONT):  # CONT, because a stopped process does not take its TERM
            for fd in fds:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(fd, each)
        done = not fds or wait(fds, pause)
        for fd in fds:
            os.close(fd)
        if done and not left():
            return


def raise_open_files(most: int) -> int:
    """Raise the soft limit of open files of this process to `most`, or the hard limit if that is less. Return it."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(soft, limit)


def opened_at_once(path: str, flags: int, mode: int = 0o666) -> int:
    """Open a file, but no named pipe: nobody may ever open its other end. Raises OSError."""
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        raise OSError(errno.EINVAL, "a named pipe, or a socket", path) from None
    if stat.S_ISFIFO(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "a named pipe, or a socket", path)
    os.set_blocking(fd, True)
    return fd


def opened_file(path: str, flags: int = 0) -> int:
    """Open a file to be read as a stdin. Raises OSError, also for a directory or a file that only a read finds to fail.

    So the process that is to read it does not start on nothing.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        if not stat.S_ISREG(mode := os.fstat(fd).st_mode) and not stat.S_ISDIR(mode):
            return fd
        os.pread(fd, 1, 0)
    except OSError as error:
        os.close(fd)
        raise OSError(error.errno, error.strerror, path) from None
    return fd


def umask() -> int | None:
    """Return the umask of this process: a node has that of the command that started it. None if it cannot be read.

    Not by os.umask, which changes it: other threads of a program make files meanwhile.
    """
    try:
        with open("/proc/self/status") as file:
            return next((int(line.split()[1], 8) for line in file if line.startswith("Umask:")), None)
    except OSError:
        return None
