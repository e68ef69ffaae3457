"""The processes that a broker serves, as the kernel knows them, and the ledgers that pay for them.

Laws
1. A process that proved the keys is admitted, with the ledger that it brought. Any other one is admitted by a process
   above it that is: the kernel says who is above whom, and when each of them started.
2. A process that was admitted by one above it pays from the same ledger, within the caps of both.
3. An orphan whose starter has ended (a detached agent) is admitted by the ledger of its tree, within the narrowest
   caps and all purses that were ever seen on it: it holds the descriptor from the starter.
4. This knowledge outlives a worker: it is in a memory file that the keeper made, and each worker reads it first.
"""

from __future__ import annotations

import fcntl
import os

from quine.budget import purse
from quine.budget.purse import Cap
from quine.budget.shared_counters import NAME, PUT, SharedCounters
from transport import inherit, quickjson
from transport.address import start_time
from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

HIGHEST = 256  # processes above one that are looked at
LINES = 4096  # of the memory file, after which it is written anew, at the earliest


class Denied(Exception):
    """A process may not ask. str() is the reason."""


class Member:
    """A living process that was admitted. `caps`: by the inode of the ledger, as one process may serve many trees."""

    def __init__(self, pid: int, start: int, pidfd: int) -> None:
        self.pid = pid
        self.start = start
        self.pidfd = pidfd
        self.caps: dict[int, Cap] = {}
        self.lines: dict[int, bytes] = {}  # of the memory file, for each of these


class Register:
    """The living members. `watch(pidfd, call)` calls once that process has ended; `changed` is called after each."""

    def __init__(
        self, memory: int, watch: Callable[[int, Callable[[], None]], None], changed: Callable[[], None]
    ) -> None:
        self._memory = memory
        self._watch = watch
        self._changed = changed
        self._lines, self._most = 0, LINES
        self.members: dict[int, Member] = {}
        self._narrowest: dict[int, Cap] = {}
        self._narrow_lines: dict[int, bytes] = {}
        self._purses: dict[int, dict[int, int]] = {}  # descriptors, by the inodes of ledger and purse
        self.books: dict[int, SharedCounters] = {}
        self._unused: set[int] = set()
        self._read()

    # -- admission ---------------------------------------------------------------------------------

    def admit(
        self, pid: int, inode: int, own: Cap, proved: bool, around: Sequence[int] = ()
    ) -> tuple[Cap, tuple[int, ...]]:
        """Admit a process. Return the caps on what it spends, and descriptors of the purses that it spends from.

        `around` are descriptors of purses of this ledger, which this takes over in any case. Raises Denied.
        """
        try:
            cap, orphan = (own, False) if proved else self._above(pid, inode, own)
            member = self._member(pid)
        except Denied:
            for fd in around:
                os.close(fd)
            raise
        purses = self._purses_of(inode, around)
        if orphan:
            purses = tuple(self._purses[inode].values())
        member.caps[inode] = cap
        line = member.lines[inode] = _line(pid, member.start, inode, cap)
        self._narrow(inode, cap)
        self._write(line)
        return cap, purses

    def _purses_of(self, inode: int, around: Sequence[int]) -> tuple[int, ...]:
        known = self._purses.setdefault(inode, {})
        found = []
        for fd in around:
            each = os.fstat(fd).st_ino
            if each in known:
                os.close(fd)
            known.setdefault(each, fd)
            found.append(known[each])
        return tuple(found)

    def _above(self, pid: int, inode: int, own: Cap) -> tuple[Cap, bool]:
        """Return the caps of a process by those above it, and whether there is none."""
        path, found = [], False
        for each, start in _ancestors(pid):
            path.append(each)
            member = self.members.get(each)
            if member and member.start == start:
                if inode in member.caps:
                    return least(member.caps[inode], own), False
                # A node that an agent was the first to need is below it, and its jobs are of any tree.
                found = found or not any(map(inherit.is_apart, path))
        if found:
            raise Denied("its ledger is not that of the agent above it")
        if inode in self._narrowest:
            return least(self._narrowest[inode], own), True
        raise Denied("no agent of this broker is above it")

    def _member(self, pid: int) -> Member:
        start = start_time(pid)
        known = self.members.get(pid)
        if known and known.start == start:
            return known
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            raise Denied("it has ended") from None
        if start_time(pid) != start:  # it has ended in between, and another one has its number
            os.close(pidfd)
            raise Denied("it has ended")
        if known:
            self._gone(known)
        member = self.members[pid] = Member(pid, start, pidfd)
        self._watch(pidfd, lambda: self._gone(member))
        return member

    def _gone(self, member: Member) -> None:
        if self.members.get(member.pid) is member:
            del self.members[member.pid]
        if member.pidfd >= 0:
            os.close(member.pidfd)
            member.pidfd = -1
        self._changed()

    # -- ledgers -----------------------------------------------------------------------------------

    def book(self, fd: int) -> tuple[int, SharedCounters]:
        """Take over the descriptor of a ledger; return its inode and the counters. Raises Denied."""
        try:
            facts = os.fstat(fd)
            seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
            name = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            os.close(fd)
            raise Denied("its ledger is none") from None
        needed = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
        if name != f"/memfd:{NAME} (deleted)" or seals & needed != needed or facts.st_size < PUT.end:
            os.close(fd)
            raise Denied("its ledger is none")
        if facts.st_ino in self.books:
            os.close(fd)
        else:
            self.books[facts.st_ino] = SharedCounters(fd)
        return facts.st_ino, self.books[facts.st_ino]

    def forget_books(self) -> None:
        """Close the ledgers of trees that had no living member at the last call either: orphans may come late."""
        used = {inode for member in self.members.values() for inode in member.caps}
        unused = self.books.keys() - used
        for inode in unused & self._unused:
            os.close(self.books.pop(inode).fd)
            self._narrowest.pop(inode, None)
            self._narrow_lines.pop(inode, None)
            for fd in self._purses.pop(inode, {}).values():
                os.close(fd)
        self._unused = set(unused)

    # -- the memory file ---------------------------------------------------------------------------

    def _narrow(self, inode: int, cap: Cap) -> None:
        """Note caps that were seen on a ledger."""
        known = self._narrowest.get(inode)
        narrowest = cap if known is None else least(known, cap)
        if narrowest != known:
            self._narrowest[inode] = narrowest
            self._narrow_lines[inode] = _line(0, -1, inode, narrowest)

    def _write(self, line: bytes) -> None:
        self._lines += 1
        if self._lines > self._most:
            self._compact()
        os.write(self._memory, line)

    def _compact(self) -> None:
        """Write anew what still counts. A worker that is killed in between leaves lines that are torn.

        The lines are kept as they are written: to make 4096 of them takes 40 ms, in which nothing else would be served.
        """
        lines = [*self._narrow_lines.values()]
        for member in self.members.values():
            lines += member.lines.values()
        os.ftruncate(self._memory, 0)
        os.write(self._memory, b"".join(lines))
        self._lines = len(lines)
        self._most = max(LINES, 2 * len(lines))  # as many again, so that each line is copied once or twice

    def _read(self) -> None:
        data = os.pread(self._memory, os.fstat(self._memory).st_size, 0)
        for raw in data.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, Denied, OSError):
                self._take(quickjson.loads(raw))
        self._lines = data.count(b"\n")

    def _take(self, line: dict[str, Any]) -> None:
        pid, inode = int(line["p"]), int(line["i"])
        cap = Cap(int(line["m"][0]), float(line["m"][1]), float(line["m"][2]))
        self._narrow(inode, cap)
        if pid and start_time(pid) == line["s"]:
            member = self._member(pid)
            member.caps[inode] = cap
            member.lines[inode] = _line(pid, member.start, inode, cap)


def purses_around(pid: int, ledger: int) -> tuple[int, ...]:
    """Return descriptors of the purses that a process and those above it hold; it looks through /proc."""
    return purse.above(inherit.held_above(purse.NAME, pid=pid)[purse.NAME], ledger)


def purses_of(given: Sequence[int], ledger: int) -> list[int]:
    """Return those of a client's descriptors that are purses of this ledger, and close the others.

    A process that has a key is closed to others, also to this one, so that its purses cannot be looked for.
    """
    found = []
    for fd in given:
        known = purse.read(fd)
        if known is not None and known.ledger == ledger:
            found.append(fd)
        else:
            os.close(fd)
    return found


def _line(pid: int, start: int, inode: int, cap: Cap) -> bytes:
    """Return a line of the memory file: a member, or with no pid the narrowest caps of a ledger."""
    return quickjson.dumps({"p": pid, "s": start, "i": inode, "m": list(cap)}).encode() + b"\n"


def least(one: Cap, other: Cap) -> Cap:
    """Return the narrower caps, where 0 is none."""
    pairs = zip(one, other)
    tokens, cost, deadline = (min((value for value in pair if value), default=0) for pair in pairs)
    return Cap(int(tokens), float(cost), float(deadline))


def _ancestors(pid: int) -> Iterator[tuple[int, int]]:
    """Yield (pid, start) of a process and of all above it, as far as the kernel shows them."""
    for _ in range(HIGHEST):
        try:
            with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
                fields = file.read(4096).rpartition(b") ")[2].split()
        except OSError:
            return
        yield pid, int(fields[19])
        pid = int(fields[1])
        if pid <= 0:
            return
