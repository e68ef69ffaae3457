"""The guard: a small process beside a node, which ends the node's jobs when the node itself is gone, however it went.

Laws
1. While the node lives its guard sleeps. What there is to end stands in a table, a file that both hold open, and the
   kernel says when the node has ended.
2. A job enters the table before its process is made, under the inode of its memo, which nobody but that process will
   hold: one whose number the node had no time to note is found by what it holds.
3. A table is somebody's as long as its lock is held, and node and guard share that lock. One that nobody holds is of a
   node and a guard that died both; the next guard of this user ends what stands in it.
4. It is the node's parent where it can be, and the reaper of what the jobs leave. One that had to be replaced is the
   node's child and reaps nothing; it ends jobs all the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
import time

from transport import address, ending, folder, inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

SUFFIX = "jobs"
HEADER = b"quine jobs 1"
NUMBER = b"%10d %20d "  # pid and start time, of a fixed width: written when the process is there
WIDTH = len(NUMBER % (0, 0))
SLOT = 256  # bytes of an entry; a multiple of it is a page, so that no entry is ever half written
ROOM = 256  # entries whose room is taken at once: a disk that fills later does not keep jobs from starting
PR_SET_CHILD_SUBREAPER = 36
RETRY = 1.0, 60.0  # seconds before a guard that dies at once is started again, the first time and at most


class Entry:
    """One line of a table. `pid` is 0 where the node had no time to note it."""

    __slots__ = ("folder", "memo", "pid", "start")

    def __init__(self, line: bytes) -> None:
        """ValueError where it is none of ours."""
        self.pid, self.start = map(int, line[:WIDTH].split())
        memo, _, self.folder = line[WIDTH:].rstrip(b"\0").partition(b" ")
        self.memo = int(memo)


class Table:
    """The jobs of one node, one line each, in a file of the runtime directory; the first line says whose."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.path = os.readlink(f"/proc/self/fd/{fd}")
        self._free: list[int] = []
        self._size = 1

    @classmethod
    def create(cls) -> Table:
        """An empty one, locked before anybody can find it."""
        path = f"{address.runtime_directory()}/{address.node_name()}.{os.getpid()}.{SUFFIX}"
        aside = f"{path}.new"
        fd = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.posix_fallocate(fd, 0, ROOM * SLOT)
            os.pwrite(fd, HEADER + b" " + address.boot_id().encode(), 0)
            os.rename(aside, path)
        except BaseException:
            os.close(fd)
            raise
        return cls(fd)

    # -- the node's -------------------------------------------------------------------------------

    def expect(self, memo: int, folder: str = "") -> int:
        """A job is about to start, with the memo on this descriptor and in a folder made for it; returns its slot."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._size = self._size, self._size + 1
        line = NUMBER % (0, 0) + b"%d " % os.fstat(memo).st_ino
        if len(line) + len(name := os.fsencode(folder)) <= SLOT:
            line += name  # one that is too deep is left where it is
        try:
            os.pwrite(self.fd, line.ljust(SLOT, b"\0"), slot * SLOT)
        except OSError:
            self._free.append(slot)
            raise
        return slot

    def started(self, slot: int, pid: int) -> None:
        """It runs, under this number. Where that cannot be written, its memo still stands there."""
        with contextlib.suppress(OSError):
            os.pwrite(self.fd, NUMBER % (pid, address.start_time(pid)), slot * SLOT)

    def forget(self, slot: int) -> None:
        """It is over, or was never started."""
        with contextlib.suppress(OSError):
            os.pwrite(self.fd, bytes(SLOT), slot * SLOT)
        self._free.append(slot)

    # -- the guard's ------------------------------------------------------------------------------

    @classmethod
    def abandoned(cls, directory: str) -> Iterator[Table]:
        """The tables there that nobody holds, locked by us now."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # it went before a guard that was slow to start
            names = os.listdir(directory)
        for name in names:
            if not name.endswith(f".{SUFFIX}"):
                continue
            with contextlib.suppress(OSError):  # removed since, or held by the living
                fd = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(fd).st_nlink:
                        yield cls(fd)
                finally:
                    os.close(fd)

    def entries(self) -> list[Entry]:
        """Those of this boot, in a layout that we know."""
        data = os.pread(self.fd, os.fstat(self.fd).st_size, 0)
        header, _, boot = data[:SLOT].rstrip(b"\0").rpartition(b" ")
        if (header, boot) != (HEADER, address.boot_id().encode()):
            return []
        found = []
        for at in range(SLOT, len(data), SLOT):
            if data[at] != 0:
                with contextlib.suppress(ValueError):
                    found.append(Entry(data[at : at + SLOT]))
        return found

    def remove(self) -> None:
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == os.fstat(self.fd).st_ino:
                os.unlink(self.path)


# -- beside the node -------------------------------------------------------------------------------


class Guarded:
    """A node's end of it: its table, and the process that it must never be without."""

    def __init__(self) -> None:
        self.table = Table.create()
        self.pid = 0
        self._pidfd = -1
        self._born = 0.0
        self._pause = 0.0

    def part(self) -> None:
        """Fork: the child goes on as the node, the parent becomes its guard. To be called early, while we are small."""
        self._attach(os.getpid())  # before the fork: it may die before we look, its number be somebody else's
        if below := os.fork():
            _become(self.table.fd, below)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on there is always one."""
        if self._pidfd < 0:
            self._start(loop)
        else:
            loop.add_reader(self._pidfd, self._died, loop)

    def _attach(self, pid: int) -> None:
        self.pid, self._pidfd = pid, os.pidfd_open(pid)
        self._born = time.monotonic()

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """One below us: what the jobs leave goes to another reaper, the table is the same."""
        node = os.pidfd_open(os.getpid())
        try:
            for fd in (self.table.fd, node):
                os.set_inheritable(fd, True)
            argv = _command(self.table.fd, node)
            self._attach(os.posix_spawn(sys.executable, argv, os.environ, setsigmask=[]))
            loop.add_reader(self._pidfd, self._died, loop)
        except OSError as error:
            say(f"no guard can be started: {error}")
            self._later(loop)
        finally:
            os.close(node)
            os.set_inheritable(self.table.fd, False)

    def _died(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        say(f"guard {self.pid} has died, another is started")
        if time.monotonic() - self._born > RETRY[1]:
            self._pause = 0.0
        self._later(loop)

    def _later(self, loop: asyncio.AbstractEventLoop) -> None:
        pause = self._pause
        self._pause = min(RETRY[1], 2 * pause or RETRY[0])
        if pause:
            loop.call_later(pause, self._start, loop)
        else:
            self._start(loop)


def _command(table: int, node: int) -> list[str]:
    return [*address.own_command(), "node", "--guard", str(table), str(node)]


def _become(table: int, child: int) -> None:
    """Be the guard of `child`, as a program of its own: small, and named as what it is. Does not return."""
    try:
        node = os.pidfd_open(child)
        _be_the_reaper()
        for fd in (table, node):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, _command(table, node))
    except OSError as error:
        say(f"the guard of {child} does not start: {error}")
    finally:
        os._exit(1)


def _be_the_reaper() -> None:
    """Orphans below us come to us and not to process 1, which in many a container reaps nobody. It outlives exec."""
    with contextlib.suppress(ImportError, OSError, AttributeError):  # a Python without it: process 1 it is
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them for us


# -- the guard -------------------------------------------------------------------------------------


def main(words: list[str]) -> int:
    """`quine node --guard TABLE NODE`: descriptors of the table and of the node's process."""
    table, node = int(words[0]), int(words[1])
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # we go when the node is gone, and not before
    own = Table(table)
    for other in Table.abandoned(os.path.dirname(own.path)):
        clear(other, abandoned=True)
    poll = select.poll()
    poll.register(node, select.POLLIN)
    poll.poll()
    clear(own)
    return 0


def clear(table: Table, abandoned: bool = False) -> None:
    """End the jobs of a node that is gone, and remove what it left."""
    entries = table.entries()
    if entries:
        say(f"the node of {table.path} is gone: its {len(entries)} jobs are ended")
    for entry in entries:
        if not entry.pid and (found := _holder(entry.memo)):
            entry.pid, entry.start = found, address.start_time(found)
            _wait_for_session(found)
    ending.end(lambda: {entry.pid for entry in entries if _is_same(entry, abandoned)})
    _tidy(table, entries)


def _is_same(entry: Entry, abandoned: bool) -> bool:
    """Is its number still that of the job, or of the session that the job led?

    A leader that is gone leaves its number to its session as long as that has members; in an old table it may have come
    and gone since.
    """
    if not entry.pid:
        return False
    now = address.start_time(entry.pid)
    return now == entry.start or (not now and not abandoned)


def _holder(memo: int) -> int:
    """The leader of those that hold the memo: it was started, and its node died before it knew the number. Else 0."""
    held = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                with contextlib.suppress(OSError):
                    if inherit.NAME in os.readlink(path) and os.stat(path).st_ino == memo:
                        held.add(int(pid))
    return min(held, key=address.start_time, default=0)


def _wait_for_session(pid: int) -> None:
    """A process just made leads no session yet; it does in a moment, or is gone."""
    deadline = time.monotonic() + 1
    with contextlib.suppress(ProcessLookupError):
        while os.getsid(pid) != pid and time.monotonic() < deadline:
            time.sleep(0.001)


def _tidy(table: Table, entries: list[Entry]) -> None:
    """Remove the folders that were left empty, its socket unless that is a successor's by now, its table."""
    for path in {entry.folder for entry in entries if entry.folder}:
        folder.leave(os.fsdecode(path))
    name = table.path.rpartition("/")[2].partition(".")[0]
    own = f"{os.path.dirname(table.path)}/{name}"
    with contextlib.suppress(OSError):
        lock = os.open(f"{own}.lock", os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a node holds it for its life
            os.unlink(f"{own}.sock")
        finally:
            os.close(lock)
    table.remove()


def say(text: str) -> None:
    """A line of the node's log, as the node would write it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%F %T')},000 quine.guard[{os.getpid()}] {text}\n".encode())
