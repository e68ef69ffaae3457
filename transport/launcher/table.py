"""The table of a node: a file that lists its jobs, so that they can be ended after any death of the node.

Laws
1. The node writes an entry, and its launcher marks there what it has done; so what a dead launcher did is known by the
   node, and the jobs of a dead node by the launcher. A mark wakes nobody, unlike a message.
2. A job enters the table before its process is made, under the inode of its memo, which only that process and its
   descendants will hold. So a job whose pid the node had no time to note is found by that memo.
3. A table is in use as long as its lock is held, and node and launcher share that lock. A table without a holder
   belonged to a node and a launcher that both died; the next launcher of this user ends the jobs in it.
4. A folder of the user's is removed in a process of its own, which may hang.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from transport import address, inherit, node_socket
from transport.launcher import termination, workdir

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = "jobs"
HEADER = b"quine jobs 1"
NUMBER = b"%10d %20d "  # pid and start time, of a fixed width: written when the process exists
WIDTH = len(NUMBER % (0, 0))
SLOT = 256  # bytes of an entry; a multiple of it is a page, so that no entry is ever half written
TAIL = 16  # bytes of an entry for the marks of the launcher
BEGUN, CLEAR = b"B", b"\0"
ROOM = 256  # entries for which space is allocated at once: a disk that fills later must not prevent starts
PATIENCE = 5.0  # seconds for the folders of a dead node to be removed


class Entry:
    """One line of a table. `pid` and `start` are 0 if there was no time to note them.

    begun  a quick start has begun: the process may have been made
    ended  its wait status, None if it was not reaped
    """

    __slots__ = ("begun", "ended", "folder", "memo", "pid", "start")

    def __init__(self, line: bytes) -> None:
        """Parse an entry. Raises ValueError."""
        self.pid, self.start = map(int, line[:WIDTH].split())
        memo, _, self.folder = line[WIDTH:-TAIL].rstrip(b"\0").partition(b" ")
        self.memo = int(memo)
        marks = line[-TAIL:].rstrip(CLEAR)
        self.begun = marks[:1] == BEGUN
        self.ended = int(marks[1:]) if len(marks) > 1 else None


class Table:
    """The jobs of one node, one line each, in a file of the runtime directory; the first line has the boot id."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.path = os.readlink(f"/proc/self/fd/{fd}")
        self._free: list[int] = []
        self._size = 1

    @classmethod
    def create(cls) -> Table:
        """Make an empty table, locked before it gets its name."""
        path = f"{address.runtime_directory()}/{node_socket.node_name()}.{os.getpid()}.{SUFFIX}"
        aside = f"{path}.new"
        fd = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            os.posix_fallocate(fd, 0, ROOM * SLOT)
            os.pwrite(fd, HEADER + b" " + address.boot_id().encode(), 0)
            os.rename(aside, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside)
            os.close(fd)
            raise
        return cls(fd)

    # -- the node's -------------------------------------------------------------------------------

    def expect(self, memo: int, folder: str = "") -> int:
        """Enter a job that is about to start, by the descriptor of its memo and its folder; returns its slot."""
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._size = self._size, self._size + 1
        line = NUMBER % (0, 0) + b"%d " % os.fstat(memo).st_ino
        if len(line) + len(name := os.fsencode(folder)) <= SLOT - TAIL:
            line += name  # a folder with a longer path is not removed after the node's death
        try:
            os.pwrite(self.fd, line.ljust(SLOT, b"\0"), slot * SLOT)
        except OSError:
            self._free.append(slot)
            raise
        return slot

    def started(self, slot: int, pid: int) -> None:
        """Note the pid of a job that runs. If the write fails, the memo still identifies the job."""
        with contextlib.suppress(OSError):
            os.pwrite(self.fd, NUMBER % (pid, address.start_time(pid)), slot * SLOT)

    def entry(self, slot: int) -> Entry:
        return Entry(os.pread(self.fd, SLOT, slot * SLOT))

    def forget(self, slot: int) -> None:
        """Remove a job that is over, or was never started."""
        with contextlib.suppress(OSError):
            os.pwrite(self.fd, bytes(SLOT), slot * SLOT)
        self._free.append(slot)

    # -- the launcher's ----------------------------------------------------------------------------

    def mark(self, slot: int, begun: bool, ended: int | None = None) -> None:
        """Mark a quick start as begun or, after that, as not begun; or the wait status of its process. OSError."""
        text = (BEGUN if begun else CLEAR) + (b"" if ended is None else b"%d" % ended)
        os.pwrite(self.fd, text, slot * SLOT + SLOT - TAIL)

    def made(self, slot: int, pid: int) -> None:
        """Note the pid of a quick start at once. Its start time, which takes longer, is noted by `started`."""
        os.pwrite(self.fd, NUMBER % (pid, 0), slot * SLOT)

    @staticmethod
    def is_name(name: str) -> bool:
        """True for the file name of a table."""
        return name.endswith(f".{SUFFIX}")

    @classmethod
    def abandoned(cls, directory: str) -> Iterator[Table]:
        """Yield the tables in `directory` that have no holder, each locked by this process."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # removed before a launcher that was slow to start
            names = os.listdir(directory)
        for name in names:
            if not cls.is_name(name):
                continue
            with contextlib.suppress(OSError):  # removed since, or still held
                fd = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(fd).st_nlink:
                        yield cls(fd)
                finally:
                    os.close(fd)

    def entries(self) -> list[Entry]:
        """The entries of a table; [] if it is of another boot or layout."""
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


# -- when a node is gone -----------------------------------------------------------------------------


def clear(table: Table, abandoned: bool = False) -> None:
    """End the jobs of a node that is gone, and remove their empty folders, its socket and its table."""
    entries = table.entries()
    if entries:
        say(f"the node of {table.path} is gone: its {len(entries)} jobs are ended")
    for entry in entries:
        if not entry.pid:
            entry.pid = holder(entry.memo)
        elif not entry.start and abandoned and entry.pid not in holders(entry.memo):
            entry.pid = 0  # another process may have the number by now
        if (
            entry.pid and not entry.start and entry.ended is None
        ):  # once it was reaped its number is free for others
            entry.start = address.start_time(entry.pid)
    termination.end(lambda: {entry.pid for entry in entries if _is_same(entry, abandoned)})
    _tidy(table, entries)


def _is_same(entry: Entry, abandoned: bool) -> bool:
    """True if the entry's pid is still that of the job, or of the session that the job led.

    A leader that is gone leaves its number to its session as long as that has members. In an abandoned table another
    process may have had the number since.
    """
    if not entry.pid:
        return False
    now = address.start_time(entry.pid)
    return now == entry.start or (not now and not abandoned)


def holder(memo: int) -> int:
    """Pid of the first process that holds the memo, 0 if there is none.

    This finds a job that was started by a node that died before it knew the pid.
    """
    return min(holders(memo), key=address.start_time, default=0)


def holders(memo: int) -> set[int]:
    """Pids of the processes that hold the memo, other than this one."""
    held = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                with contextlib.suppress(OSError):
                    if os.readlink(path) == inherit.LINK and inherit.inode_at(path, inherit.LINK) == memo:
                        held.add(int(pid))
    return held - {os.getpid()}


def _tidy(table: Table, entries: list[Entry]) -> None:
    """Remove the folders that were left empty, the node's socket unless a successor has it by now, and the table."""
    _leave({os.fsdecode(entry.folder) for entry in entries if entry.folder})
    name = table.path.rpartition("/")[2].partition(".")[0]
    own = f"{os.path.dirname(table.path)}/{name}"
    with contextlib.suppress(OSError):
        lock = os.open(f"{own}.lock", os.O_WRONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a node holds it until it ends
            os.unlink(f"{own}.sock")
        finally:
            os.close(lock)
    table.remove()


def _leave(paths: set[str]) -> None:
    """Leave the folders, in a process of its own; waits for it at most PATIENCE seconds."""
    if not paths:
        return
    pid = os.fork()
    if not pid:
        try:
            for path in paths:
                workdir.leave(path)
        finally:
            os._exit(0)
    termination.wait_ended([pid], time.monotonic() + PATIENCE)
    with contextlib.suppress(ChildProcessError):  # where the kernel reaps it
        os.waitpid(pid, os.WNOHANG)


def say(text: str) -> None:
    """Write a line to the node's log (stderr), in the node's format."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%F %T')},000 quine.launcher[{os.getpid()}] {text}\n".encode())


def sweep(own: Table) -> None:
    """End the jobs in tables without a holder, in a child process because that takes a pause."""
    directory = os.path.dirname(own.path)
    try:
        others = [name for name in os.listdir(directory) if Table.is_name(name)]
    except OSError:
        return  # the directory was removed
    if others in ([], [os.path.basename(own.path)]) or os.fork():
        return
    try:
        inherit.close_others(set())
        for other in Table.abandoned(directory):
            clear(other, abandoned=True)
    finally:
        os._exit(0)
