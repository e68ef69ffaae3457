"""The processes that a broker serves, as the kernel knows them, and the ledgers that pay for them.

Laws
1. A process that proved the keys is admitted, with the ledger that it brought. Any other one is admitted by a process
   above it that is: the kernel says who is above whom, and when each of them started. Where any process can prove the
   keys, as those of a command, a proof serves only a process that is below no member.
2. A process that was admitted by one above it pays from the same ledger, within the caps of both, and from the purses
   of both. A command can close the descriptors of its purses, and mark itself as a daemon.
3. An orphan whose starter has ended is refused, whatever descriptors it holds: a daemon of a command infers no more
   when its agent has ended, whenever it was admitted. The supervisor of a detached job is admitted while its starter
   lives, and a child that is not waited for when it is forked; and so is all below. Any process below an agent may be
   named as one. An orphan of a child that was not admitted before has the cap of the agent above, which adopts it.
4. The right of a connection is that of the process which has opened it, and ends with that process.
5. The numbers of ledgers and purses are kept here, since a command can rewrite both: see quine/budget/kept_counters.py.
   A purse is raised by a request, from a living process that the kernel shows outside of it. These numbers are
   forgotten when nothing needs them: no member, no connection, and no living maker of a purse, each looked for again.
   The purses of a tree are bounded.
6. This knowledge outlives a worker: it is in memory that the keeper made (quine/budget/kept_records.py), and each
   worker reads it first. A change that could not be noted there is not made: the process, or the payment, is refused.
   The members and purses of one tree have a SHARE of what others leave. A process without room there is refused.
"""

from __future__ import annotations

import os
from collections import Counter
from functools import partial

from quine.base import errors
from quine.budget import caller, purse
from quine.budget.kept_counters import KeptCounters, KeptLedger, inode_of
from quine.budget.pinned import PinnedProcess, pinned
from quine.budget.purse import Cap, Purse, least
from transport.lean import contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any

    from quine.budget.kept_records import KeptRecords
    from quine.budget.ledger import Ledger
    from quine.budget.makers import Maker


MOST_PURSES = 1024  # of a tree; each has a descriptor here
SHARE = 0.25  # of the free room in the records, for each tree; a tree alone may have ten thousand agents


class Denied(Exception):
    """A process may not ask. str() is the reason."""


class Member:
    """A living process that was admitted. All but that is by the inode of a ledger, as it may serve many trees."""

    def __init__(self, process: PinnedProcess) -> None:
        self.process = process
        self.caps: dict[int, Cap] = {}
        self.purses: dict[int, tuple[int, ...]] = {}  # inodes
        self.above: dict[int, Member | None] = {}  # by which it was admitted; None: by itself
        self.ends: dict[int, list[Callable[[], None]]] = {}  # of its connections

    def join(self, inode: int, cap: Cap, purses: tuple[int, ...], above: Member | None) -> None:
        self.caps[inode] = cap
        self.purses[inode] = purses
        self.above[inode] = above

    def leave(self, inode: int) -> None:
        """Take the right away, and end the connections that had it."""
        for known in (self.caps, self.purses, self.above):
            known.pop(inode, None)
        for end in self.ends.pop(inode, ()):
            end()


class Register:
    """The living members. `watch(pidfd, call)` calls once that process has ended; `changed` is called after each."""

    def __init__(
        self,
        records: KeptRecords,
        watch: Callable[[int, Callable[[], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._records = records
        self._watch = watch
        self._changed = changed
        self.members: dict[int, Member] = {}
        self._purses: dict[int, dict[int, int]] = {}  # descriptors, by the inodes of ledger and purse
        self.books: dict[int, KeptCounters] = {}
        self._kept: dict[int, Purse] = {}  # by the inodes of purses
        self._former: dict[int, dict[str, Any]] = {}  # states of ledgers that an earlier worker has kept
        self.makers: dict[Maker, PinnedProcess] = {}  # the living ones of the purses that are kept
        self._users: Counter[int] = Counter()  # connections, by the inode of the ledger
        self._unused: set[int] = set()
        self._read()

    # -- admission ---------------------------------------------------------------------------------

    def admit(
        self, process: PinnedProcess, inode: int, own: Cap, proved: bool, around: Sequence[int] = ()
    ) -> tuple[Cap, tuple[int, ...]]:
        """Admit a process. Return the caps on what it spends, and the inodes of the purses that it spends from.

        `around` are descriptors of purses, of this ledger or of others, which this takes over. Raises Denied.
        """
        left = list(around)
        try:
            above = self._above(process, inode, proved)
            # A process with a key may have wider caps than the agent above it.
            cap = least(above.caps[inode], own) if above and not proved else own
            handed = above.purses[inode] if above else ()
            purses = tuple(dict.fromkeys((*handed, *self._purses_of(inode, left))))
            member = self._member(process)
            giver = None if proved else member.above[inode] if above is member else above
            self._join(member, inode, cap, purses, giver)
            return cap, purses
        finally:
            for fd in left:
                os.close(fd)

    def is_below_a_member(self, process: PinnedProcess) -> bool:
        """Return whether a living member is above a process, or the processes above it are not known."""
        chain = process.chain()
        return not chain or any(map(self._living, chain[1:]))

    def connected(self, process: PinnedProcess, inode: int, end: Callable[[], None]) -> Callable[[], None]:
        """Note a connection of a process that was admitted: `end` is called if it loses the right.

        Return the function to call when it is closed. Until then its ledger stays open.
        """
        member = self.members[process.pid]
        ends, used = member.ends.setdefault(inode, []), (inode, *member.purses[inode])
        ends.append(end)
        self._users.update(used)

        def closed() -> None:
            self._users.subtract(used)
            if end in ends:
                ends.remove(end)

        return closed

    def detach(self, process: PinnedProcess, pid: int) -> bool:
        """Admit a process for which one below a member vouches, also after the end of that. Return whether it was done.

        It is the supervisor of a detached job, or a child for which its parent does not wait. A cap that it has already
        stays: a child may greet before its parent has vouched for it.
        """
        other = pinned(pid)
        known = other.chain() if other else []
        try:
            for each, start in process.chain():
                member = self.members.get(each)
                if other and member and member.process.start == start and (each, start) in known:
                    admitted = self._member(other)
                    for inode, cap in list(member.caps.items()):
                        cap = least(cap, admitted.caps.get(inode, cap))
                        purses = dict.fromkeys((*member.purses[inode], *admitted.purses.get(inode, ())))
                        self._join(admitted, inode, cap, tuple(purses), None)
                    return True
            return False
        finally:
            if other:
                other.close()

    def _purses_of(self, inode: int, around: list[int]) -> list[int]:
        """Return the inodes of the purses in `around` that belong to this ledger. Raises Denied if there are too many.

        The descriptors that this takes over are removed from `around`.
        """
        known = self._purses.setdefault(inode, {})
        found = []
        for fd in tuple(around):
            each = os.fstat(fd).st_ino
            kept = self._kept.get(each) or purse.read(fd)
            if kept is not None and kept.ledger == inode and each not in known:
                if sum(other.ledger == inode for other in self._kept.values()) >= MOST_PURSES:
                    raise Denied(f"there are {MOST_PURSES} budgets in its tree already")
                self._keep(each, kept)
                known[each] = fd
                around.remove(fd)
            if each in known:
                found.append(each)
        return found

    def _above(self, process: PinnedProcess, inode: int, proved: bool) -> Member | None:
        """Return the nearest member with this ledger, the process or one above. Raises Denied unless it is `proved`."""
        chain = process.chain()
        if not chain:
            raise Denied(caller.UNKNOWN)
        found = [member for member in map(self._living, chain) if member]
        nearest = next((member for member in found if inode in member.caps), None)
        if nearest or proved:
            return nearest
        if found:
            raise Denied("its ledger is not that of the agent above it")
        raise Denied("no living agent of this broker is above it")

    def _living(self, one: tuple[int, int]) -> Member | None:
        """Return the member with this pid and start."""
        member = self.members.get(one[0])
        return member if member and member.process.start == one[1] else None

    def _member(self, process: PinnedProcess) -> Member:
        if known := self._living((process.pid, process.start)):
            return known
        if not process.lives:
            raise Denied("it has ended")
        # One that had the number before has ended, which is still to be heard.
        member = self.members[process.pid] = Member(process.copy())
        self._watch(member.process.pidfd, lambda: self._gone(member))
        return member

    def _join(
        self, member: Member, inode: int, cap: Cap, purses: tuple[int, ...], above: Member | None
    ) -> None:
        try:
            self._note(_key(member, inode), [list(cap), list(purses), above is not None])
        except BaseException:
            self._remove_without_right(member)
            raise
        member.join(inode, cap, purses, above)

    def _gone(self, member: Member) -> None:
        member.process.close()
        for inode in list(member.caps):
            self._leave(member, inode)
        self._remove_without_right(member)
        self._changed()

    def _remove_without_right(self, member: Member) -> None:
        if not member.caps and self.members.get(member.process.pid) is member:
            del self.members[member.process.pid]

    def _leave(self, member: Member, inode: int) -> None:
        """Take its right from a member, and from those that it had given it to and that no other member is above."""
        member.leave(inode)
        self._records.forget(_key(member, inode))
        self._remove_without_right(member)
        for other in list(self.members.values()):
            if other.above.get(inode) is member:
                self._hold(other, inode)

    def _hold(self, member: Member, inode: int) -> None:
        """Find another member above one that was admitted by one above it; else take the right away."""
        above = map(self._living, member.process.chain()[1:])
        if giver := next((each for each in above if each and inode in each.caps), None):
            member.above[inode] = giver
        else:
            self._leave(member, inode)

    # -- ledgers -----------------------------------------------------------------------------------

    def ledger(self, inode: int, cap: Cap, purses: tuple[int, ...]) -> Ledger:
        """Return a ledger that was taken over by `book`, as the broker keeps it, for a process with this cap."""
        return KeptLedger(self.books[inode], cap, purses, self._around)

    def _around(self, purses: tuple[int, ...]) -> list[Purse]:
        """Return purses as they were first seen, or raised by `lift`; or narrower, as their files say now."""
        found = []
        for inode in purses:
            kept = self._kept.get(inode)
            if kept is None:
                raise errors.Denied("the broker has forgotten its budget")
            fd = self._purses.get(kept.ledger, {}).get(inode, -1)  # an earlier worker had it
            told = purse.read(fd)
            found.append(kept.within(told) if told else kept)
        return found

    def unwatched(self) -> dict[Maker, set[int]]:
        """Return the inodes of purses, by the makers that they name and that are not watched yet."""
        named: dict[Maker, set[int]] = {}
        for inode, kept in self._kept.items():
            if (kept.pid, kept.started) not in self.makers:
                named.setdefault((kept.pid, kept.started), set()).add(inode)
        return named

    def _watch_makers(self, living: Collection[Maker]) -> None:
        for name in living:
            maker = pinned(name[0])
            if maker and maker.start == name[1] and name not in self.makers:
                self.makers[name] = maker
                self._watch(maker.pidfd, partial(self._maker_gone, name))
            elif maker:
                maker.close()

    def _maker_gone(self, name: tuple[int, int]) -> None:
        self.makers.pop(name).close()
        self._changed()

    def _keep(self, inode: int, known: Purse) -> None:
        # Without the command, which needs more room than all else and counts for nothing here.
        self._note(("purse", inode, known.ledger), list(known._replace(command="")))
        self._kept[inode] = known

    def _note(self, key: tuple[str | int, ...], value: list[Any]) -> None:
        try:
            self._records.put(key, value, SHARE)
        except OSError as full:
            raise Denied(full.strerror) from None

    def lift(self, process: PinnedProcess, inode: int, limits: Sequence[float | None]) -> bool:
        """Raise the limits of a purse for a process that asks for it; False if it is unknown here. Raises Denied."""
        known = self._kept.get(inode)
        if known is None:
            return False
        if why := caller.may_not_raise(known, inode, process):
            raise Denied(why)
        tokens, cost, deadline = limits
        known = self._kept.get(inode, known)  # another raise may have been made meanwhile
        self._keep(inode, known.with_limits(tokens, cost, deadline)._replace(raised=known.raised + 1))
        return True

    def book(self, fd: int) -> tuple[int, KeptCounters]:
        """Take over the descriptor of a ledger; return its inode and the counters. Raises Denied."""
        inode = inode_of(fd)
        if not inode:
            os.close(fd)
            raise Denied("its ledger is none")
        if inode in self.books:
            os.close(fd)
        else:
            former = self._former.pop(inode, None)
            self.books[inode] = KeptCounters(fd, partial(self._records.put, ("ledger", inode)), former)
        return inode, self.books[inode]

    def forget_books(self, living: Collection[Maker], busy: Collection[int] = ()) -> None:
        """Close ledgers and purses that nothing used at the last call either. `busy`: those with payments under way.

        `living`: of the makers that were `unwatched`, see `makers.living`.
        """
        self._watch_makers(living)
        used = {inode for inode, count in self._users.items() if count > 0} | set(busy)
        for member in self.members.values():
            used |= {*member.caps, *(each for purses in member.purses.values() for each in purses)}
        for inode, kept in self._kept.items():
            if (kept.pid, kept.started) in self.makers:
                used |= {inode, kept.ledger}
        idle = {inode for inode, kept in self._kept.items() if inode not in used and kept.ledger not in busy}
        unused = (self.books.keys() | self._former.keys() | self._purses.keys()) - used | idle
        for inode in unused & self._unused:
            if inode in self._kept:
                self._forget_purse(inode)
            else:
                self._forget_book(inode)
        self._unused = set(unused)

    def _forget_purse(self, inode: int) -> None:
        ledger = self._kept.pop(inode).ledger
        if (fd := self._purses.get(ledger, {}).pop(inode, -1)) >= 0:
            os.close(fd)
        self._users.pop(inode, None)
        self._records.forget(("purse", inode, ledger))

    def _forget_book(self, inode: int) -> None:
        for each in [each for each, kept in self._kept.items() if kept.ledger == inode]:
            self._forget_purse(each)
        if inode in self.books:
            os.close(self.books.pop(inode).fd)
        self._former.pop(inode, None)
        self._purses.pop(inode, None)
        self._users.pop(inode, None)
        self._records.forget(("ledger", inode))

    # -- the knowledge of the worker before --------------------------------------------------------

    def _read(self) -> None:
        for (what, *names), value in self._records.read().items():
            if what == "member":
                pid, start, inode = map(int, names)
                self._take(pid, start, inode, value)
            elif what == "purse":
                self._kept[int(names[0])] = Purse._make(value)
            else:
                value["numbers"]["ident"] = bytes.fromhex(value["numbers"]["ident"])
                self._former[int(names[0])] = value
        for member in list(self.members.values()):
            for inode in [inode for inode, above in member.above.items() if above is member]:
                self._hold(member, inode)

    def _take(self, pid: int, start: int, inode: int, value: Any) -> None:
        process = pinned(pid)
        try:
            if process is None or process.start != start:
                self._records.forget(("member", pid, start, inode))
                return
            cap, purses, below = value
            with contextlib.suppress(Denied, OSError):  # it has ended since
                member = self._member(process)
                giver = member if below else None  # until all are read
                member.join(inode, Cap._make(cap), tuple(purses), giver)
        finally:
            if process:
                process.close()


def _key(member: Member, inode: int) -> tuple[str | int, ...]:
    return "member", member.process.pid, member.process.start, inode
