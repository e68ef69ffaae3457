"""The jobs of one node, in a file: what is to be ended when the node is gone, however it went.

Laws
1. The node alone writes its table, three writes (20 µs) for a job; its launcher reads it when the node has ended.
2. A job enters the table before its process is made, under the inode of its memo, which nobody but that process will
   hold: one whose number the node had no time to note is found by what it holds.
3. A table is somebody's as long as its lock is held, and node and launcher share that lock. One that nobody holds is of
   a node and a launcher that died both; the next launcher of this user ends what stands in it.
4. A folder of the user's is removed in a process of its own, which may hang.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time

from transport import address
from transport.job import inherit, termination
from transport.job import workdir as folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = "jobs"
HEADER = b"quine jobs 1"
NUMBER = b"%10d %20d "  # pid and start time, of a fixed width: written when the process is there
WIDTH = len(NUMBER % (0, 0))
SLOT = 256  # bytes of an entry; a multiple of it is a page, so that no entry is ever half written
ROOM = 256  # entries whose room is taken at once: a disk that fills later does not keep jobs from starting
PATIENCE = 5.0  # seconds for the folders of a dead node to be removed


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

    # -- the launcher's ----------------------------------------------------------------------------

    @staticmethod
    def is_name(name: str) -> bool:
        """Is it the name of a table?"""
        return name.endswith(f".{SUFFIX}")

    @classmethod
    def abandoned(cls, directory: str) -> Iterator[Table]:
        """The tables there that nobody holds, locked by us now."""
        names: list[str] = []
        with contextlib.suppress(FileNotFoundError):  # it went before a launcher that was slow to start
            names = os.listdir(directory)
        for name in names:
            if not cls.is_name(name):
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


# -- when a node is gone -----------------------------------------------------------------------------


def clear(table: Table, abandoned: bool = False) -> None:
    """End the jobs of a node that is gone, and remove what it left."""
    entries = table.entries()
    if entries:
        say(f"the node of {table.path} is gone: its {len(entries)} jobs are ended")
    for entry in entries:
        if not entry.pid and (found := holder(entry.memo)):
            entry.pid, entry.start = found, address.start_time(found)
    termination.end(lambda: {entry.pid for entry in entries if _is_same(entry, abandoned)})
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


def holder(memo: int) -> int:
    """The leader of those that hold the memo: it was started, and its node died before it knew the number. Else 0.

    This process is none of them."""
    held = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{fd}"
                with contextlib.suppress(OSError):
                    if inherit.NAME in os.readlink(path) and os.stat(path).st_ino == memo:
                        held.add(int(pid))
    held.discard(os.getpid())
    return min(held, key=address.start_time, default=0)


def _tidy(table: Table, entries: list[Entry]) -> None:
    """Remove the folders that were left empty, its socket unless that is a successor's by now, its table."""
    _leave({os.fsdecode(entry.folder) for entry in entries if entry.folder})
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


def _leave(paths: set[str]) -> None:
    """In a process of its own, as long as that does not hang."""
    if not paths:
        return
    pid = os.fork()
    if not pid:
        try:
            for path in paths:
                folder.leave(path)
        finally:
            os._exit(0)
    termination.wait_ended([pid], time.monotonic() + PATIENCE)
    with contextlib.suppress(ChildProcessError):  # where the kernel reaps it
        os.waitpid(pid, os.WNOHANG)


def say(text: str) -> None:
    """A line of the node's log, as the node would write it."""
    with contextlib.suppress(OSError):
        os.write(2, f"{time.strftime('%F %T')},000 quine.launcher[{os.getpid()}] {text}\n".encode())
