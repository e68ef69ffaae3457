"""The processes that a broker serves, as the kernel knows them, and the ledgers that pay for them.

Laws
1. A process that proved the keys is admitted, with the ledger that it brought. Any other one is admitted by a process
   above it that is: the kernel says who is above whom, and when each of them started.
2. A process that was admitted by one above it pays from the same ledger, within the caps of both, and from the purses
   of both. A command can close the descriptors of its purses, and mark itself as a daemon.
3. An orphan whose starter has ended is refused, whatever descriptors it holds: a daemon of a command infers no more
   when its agent has ended. The supervisor of a detached job is admitted while its starter lives, and so is all below.
4. The numbers of ledgers and purses are kept here, since a command can rewrite both: see quine/budget/kept_counters.py.
   A purse is raised by a request, from a process that the kernel shows outside of it.
5. This knowledge outlives a worker: it is in a memory file that the keeper made, and each worker reads it first.
"""

from __future__ import annotations

import fcntl
import os
import threading
from itertools import islice

from quine.budget import caller, purse
from quine.budget.kept_counters import KeptCounters
from quine.budget.ledger import Ledger
from quine.budget.purse import Cap, Purse
from quine.budget.shared_counters import NAME, PUT, release
from transport import inherit, quickjson
from transport.address import closed_since, start_time
from transport.errors import Unseen
from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

HIGHEST = 256  # processes above one that are looked at
LINES = 4096  # of the memory file, after which it is written anew, at the earliest


class Denied(Exception):
    """A process may not ask. str() is the reason."""


class Member:
    """A living process that was admitted. `caps`, `purses`: by the inode of the ledger, as it may serve many trees."""

    def __init__(self, pid: int, start: int, pidfd: int) -> None:
        self.pid = pid
        self.start = start
        self.pidfd = pidfd
        self.caps: dict[int, Cap] = {}
        self.purses: dict[int, tuple[int, ...]] = {}  # inodes
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
        self._writing = threading.Lock()  # of the memory file, to which the threads of payments write, too
        self.members: dict[int, Member] = {}
        self._purses: dict[int, dict[int, int]] = {}  # descriptors, by the inodes of ledger and purse
        self.books: dict[int, KeptCounters] = {}
        self._kept: dict[int, Purse] = {}  # by the inodes of purses
        self._kept_lines: dict[tuple[str, int], bytes] = {}  # of ledgers and purses
        self._former: dict[int, dict[str, Any]] = {}  # states of ledgers that an earlier worker has kept
        self._unused: set[int] = set()
        self._read()

    # -- admission ---------------------------------------------------------------------------------

    def admit(
        self, pid: int, inode: int, own: Cap, proved: bool, around: Sequence[int] = ()
    ) -> tuple[Cap, tuple[int, ...]]:
        """Admit a process. Return the caps on what it spends, and the inodes of the purses that it spends from.

        `around` are descriptors of purses, of this ledger or of others, which this takes over. Raises Denied.
        """
        try:
            above = self._above(pid, inode, proved)
            member = self._member(pid)
        except (Denied, Unseen):
            for fd in around:
                os.close(fd)
            raise
        # A process with a key may have wider caps than the agent above it.
        cap = least(above.caps[inode], own) if above and not proved else own
        handed = above.purses[inode] if above else ()
        purses = tuple(dict.fromkeys((*handed, *self._purses_of(inode, around))))
        self._join(member, inode, cap, purses)
        return cap, purses

    def detach(self, pid: int, supervisor: int) -> bool:
        """Admit the supervisor of a job that a process below a member has detached. Return whether that was done."""
        known = list(islice(inherit.ancestors(supervisor), HIGHEST))
        for each, start in islice(inherit.ancestors(pid), HIGHEST):
            member = self.members.get(each)
            if member and member.start == start and (each, start) in known:
                admitted = self._member(supervisor)
                for inode, cap in member.caps.items():
                    self._join(admitted, inode, cap, member.purses[inode])
                return True
        return False

    def _join(self, member: Member, inode: int, cap: Cap, purses: tuple[int, ...]) -> None:
        member.caps[inode] = cap
        member.purses[inode] = purses
        line = member.lines[inode] = _line(member, inode)
        self._write(line)

    def _purses_of(self, inode: int, around: Sequence[int]) -> list[int]:
        """Take over descriptors of purses. Return the inodes of those that belong to this ledger."""
        known = self._purses.setdefault(inode, {})
        found = []
        for fd in around:
            each = os.fstat(fd).st_ino
            kept = self._kept.get(each) or purse.read(fd)
            if kept is None or kept.ledger != inode or each in known:
                os.close(fd)
            else:
                known[each] = fd
                self._keep(each, kept)
            if each in known:
                found.append(each)
        return found

    def _above(self, pid: int, inode: int, proved: bool) -> Member | None:
        """Return the nearest member with this ledger, the process or one above. Raises Denied unless it is `proved`."""
        found = False
        for each, start in islice(inherit.ancestors(pid), HIGHEST):
            member = self.members.get(each)
            if member and member.start == start:
                if inode in member.caps:
                    return member
                found = True
        if proved:
            return None
        if found:
            raise Denied("its ledger is not that of the agent above it")
        raise Denied("no living agent of this broker is above it")

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

    def ledger(self, inode: int, cap: Cap, purses: tuple[int, ...]) -> Ledger:
        """Return a ledger that was taken over by `book`, as the broker keeps it, for a process with this cap."""
        return _KeptLedger(self.books[inode], cap, purses, self._around)

    def _around(self, purses: tuple[int, ...]) -> list[Purse]:
        """Return purses as they were first seen, or raised by `lift`; or narrower, as their files say now."""
        found = []
        for inode in purses:
            kept = self._kept.get(inode)
            if kept:  # else forgotten with the tree, whose last process has ended
                fd = self._purses.get(kept.ledger, {}).get(inode, -1)  # an earlier worker had it
                told = purse.read(fd)
                found.append(kept.within(told) if told else kept)
        return found

    def _keep(self, inode: int, known: Purse) -> None:
        self._kept[inode] = known
        self._save("purse", inode, list(known))

    def lift(self, pid: int, inode: int, limits: Sequence[float | None]) -> bool:
        """Raise the limits of a purse for a process that asks for it; False if it is unknown here. Raises Denied."""
        known = self._kept.get(inode)
        if known is None:
            return False
        if why := caller.may_not_raise(known, inode, pid):
            raise Denied(why)
        tokens, cost, deadline = limits
        self._keep(inode, known.with_limits(tokens, cost, deadline)._replace(raised=known.raised + 1))
        return True

    def book(self, fd: int) -> tuple[int, KeptCounters]:
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
            inode = facts.st_ino
            former = self._former.pop(inode, None)
            self.books[inode] = KeptCounters(fd, lambda state: self._save("ledger", inode, state), former)
        return facts.st_ino, self.books[facts.st_ino]

    def forget_books(self) -> None:
        """Close the ledgers of trees that had no living member at the last call either."""
        used = {inode for member in self.members.values() for inode in member.caps}
        unused = self.books.keys() - used
        for inode in unused & self._unused:
            os.close(self.books.pop(inode).fd)
            self._kept_lines.pop(("ledger", inode), None)
            for fd in self._purses.pop(inode, {}).values():
                os.close(fd)
            for each in [each for each, kept in self._kept.items() if kept.ledger == inode]:
                del self._kept[each]
                self._kept_lines.pop(("purse", each), None)
        self._unused = set(unused)
        if self._lines > self._most:
            self._compact()

    # -- the memory file ---------------------------------------------------------------------------

    def _write(self, line: bytes) -> None:
        self._append(line)
        if self._lines > self._most:
            self._compact()

    def _save(self, what: str, inode: int, state: object) -> None:
        """Note what is kept of a ledger or a purse. Called by any thread."""
        line = quickjson.dumps({"k": what, "i": inode, "v": state}).encode() + b"\n"
        with self._writing:
            self._kept_lines[what, inode] = line
        self._append(line)

    def _append(self, line: bytes) -> None:
        with self._writing:
            self._lines += 1
            os.write(self._memory, line)

    def _compact(self) -> None:
        """Write anew what still counts. A worker that is killed in between leaves lines that are torn.

        The lines are kept as they are written: to make 4096 of them takes 40 ms, in which nothing else would be served.
        """
        with self._writing:
            lines = [line for member in self.members.values() for line in member.lines.values()]
            lines += self._kept_lines.values()
            os.ftruncate(self._memory, 0)
            os.write(self._memory, b"".join(lines))
            self._lines = len(lines)
            # As many again, so that each line is copied once or twice.
            self._most = max(LINES, 2 * len(lines))

    def _read(self) -> None:
        data = os.pread(self._memory, os.fstat(self._memory).st_size, 0)
        for raw in data.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError, Denied, OSError):
                self._take(quickjson.loads(raw))
        self._lines = data.count(b"\n")

    def _take(self, line: dict[str, Any]) -> None:
        if "k" in line:
            self._take_kept(str(line["k"]), int(line["i"]), line["v"])
            return
        pid, inode = int(line["p"]), int(line["i"])
        cap = Cap(int(line["m"][0]), float(line["m"][1]), float(line["m"][2]))
        purses = tuple(int(each) for each in line["u"])
        if start_time(pid) == line["s"]:
            member = self._member(pid)
            member.caps[inode] = cap
            member.purses[inode] = purses
            member.lines[inode] = _line(member, inode)

    def _take_kept(self, what: str, inode: int, state: Any) -> None:
        self._kept_lines[what, inode] = quickjson.dumps({"k": what, "i": inode, "v": state}).encode() + b"\n"
        if what == "purse":
            self._kept[inode] = Purse._make(state)
        else:
            state["numbers"]["ident"] = bytes.fromhex(state["numbers"]["ident"])
            self._former[inode] = state


class _KeptLedger(Ledger):
    """A ledger whose purses are those that the broker keeps; `purses` are their inodes."""

    def __init__(
        self,
        book: KeptCounters,
        cap: Cap,
        purses: tuple[int, ...],
        around: Callable[[tuple[int, ...]], list[Purse]],
    ) -> None:
        super().__init__(book, cap, purses)
        self._around = around

    def around(self) -> list[Purse]:
        return self._around(self.purses)


def purses_around(pid: int) -> list[int]:
    """Return descriptors of the purses that a process and those above it hold; it looks through /proc.

    Also of those above a daemon, since a command can mark itself as one. A purse of another ledger is of no use. Raises
    Denied and Unseen.
    """
    held = inherit.held_above(purse.NAME, pid=pid, whole=True)[purse.NAME]
    found: dict[int, int] = {}
    for each in held:
        if each.inode not in found:
            try:
                found[each.inode] = each.opened(os.O_RDONLY)
            except OSError as error:
                if not closed_since(error):
                    release(list(found.values()))
                    raise Denied(f"a budget above it cannot be opened: {error.strerror}") from None
    return list(found.values())


def _line(member: Member, inode: int) -> bytes:
    """Return a line of the memory file: a member with its caps and purses on a ledger."""
    facts = {"p": member.pid, "s": member.start, "i": inode, "m": list(member.caps[inode])}
    return quickjson.dumps({**facts, "u": list(member.purses[inode])}).encode() + b"\n"


def least(one: Cap, other: Cap) -> Cap:
    """Return the narrower caps, where 0 is none."""
    pairs = zip(one, other)
    tokens, cost, deadline = (min((value for value in pair if value), default=0) for pair in pairs)
    return Cap(int(tokens), float(cost), float(deadline))
