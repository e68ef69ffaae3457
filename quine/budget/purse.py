"""A purse: caps on what all agents below one process spend together, and that can be raised while they run.

`quine budget -- CMD` and `quine xargs` make one. It is a memory file that its maker holds, and that all processes below
inherit. The spending is counted in the ledger that the purse belongs to: one of its own, or that of the tree or the
purse around it.

Laws
1. An agent reads the caps anew whenever it reserves, so that a raise reaches those that run already.
2. The caps are totals of the ledger. They are written under the lock of its numbers, and by nobody below the purse.
3. Nothing is registered. A purse exists as long as a process holds its file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time

from quine.base import procs
from quine.base.errors import Misconfigured
from quine.budget.shared_counters import MOST, Numbers, SharedCounters, amount, inherited
from transport.address import boot_clock
from transport.inherit import link, reopened
from transport.lean import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from transport.inherit import MemoryFile


NAME = "quine-purse"
LINK = link(NAME)
_RECORD = struct.Struct("<36s4xQQdQQddQdQQdQQH")
_SIZE = 4096  # bytes: one page
_TEXT = _SIZE - _RECORD.size  # of the command
_AMOUNTS = ("since", "cost", "deadline", "cost_before", "boot")  # those that are no whole numbers
_COUNTS = ("tokens_before", "agents_before", "raised")  # those that something is added to


class Cap(NamedTuple):
    """Caps on the totals of a ledger; 0 = no limit."""

    tokens: int = 0
    cost: float = 0.0
    deadline: float = 0.0  # seconds since boot


def least(one: Cap, other: Cap) -> Cap:
    """Return the narrower caps; 0 means no cap."""
    pairs = zip(one, other)
    tokens, cost, deadline = (min((value for value in pair if value), default=0) for pair in pairs)
    return Cap(int(tokens), float(cost), float(deadline))


class Purse(NamedTuple):
    ident: str
    pid: int  # of its maker
    started: int  # ticks since boot
    since: float  # seconds since the epoch
    ledger: int  # inode of the shared counters
    tokens: int  # caps, as in `Cap`
    cost: float
    deadline: float
    tokens_before: int  # totals of the ledger when the purse was made
    cost_before: float
    agents_before: int
    agents: int  # live agents; 0 = no limit
    boot: float  # seconds since boot, when it was made
    concurrent: int
    raised: int  # number of raises
    command: str

    @property
    def cap(self) -> Cap:
        return Cap(self.tokens, self.cost, self.deadline)

    def with_limits(self, tokens: float | None, cost: float | None, deadline: float | None) -> Purse:
        """Return the purse with other limits, as its user gives them: from its beginning on; 0 = none, None = kept."""
        changed = self
        if tokens is not None:
            changed = changed._replace(tokens=int(tokens and self.tokens_before + tokens))
        if cost is not None:
            changed = changed._replace(cost=cost and self.cost_before + cost)
        if deadline is not None:
            changed = changed._replace(deadline=deadline and self.boot + deadline)
        return changed

    def within(self, other: Purse) -> Purse:
        """Return this purse with the narrower limits of both, where 0 is none."""
        names = ("tokens", "cost", "deadline", "agents", "concurrent")
        limits: dict[str, Any] = {}
        for name in names:
            limits[name] = min(filter(None, (getattr(self, name), getattr(other, name))), default=0)
        return self._replace(**limits)

    @property
    def limits(self) -> tuple[int, float, float]:
        """(tokens, dollars, seconds) as its user gave them; 0 = no limit."""
        return (
            self.tokens and self.tokens - self.tokens_before,
            self.cost and self.cost - self.cost_before,
            self.deadline and self.deadline - self.boot,
        )


def create(
    book: SharedCounters, ident: str, command: str, limits: tuple[int, float, float], most: tuple[int, int]
) -> int:
    """Make a purse on a ledger; return a descriptor that all descendants inherit. `most`: (agents, concurrent)."""
    process = procs.look(os.getpid())
    facts = book.numbers()
    purse = Purse(
        ident,
        os.getpid(),
        process.started if process else 0,
        time.time(),
        os.fstat(book.fd).st_ino,
        0,
        0.0,
        0.0,
        facts.tokens,
        facts.cost,
        facts.born,
        most[0],
        boot_clock(),
        most[1],
        0,
        command,
    ).with_limits(*limits)
    fd = -1
    try:
        fd = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, _SIZE)
        write(fd, purse)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return inherited(f"/proc/self/fd/{fd}")
    except OSError as error:
        why = (error.strerror or "").lower()
        raise Misconfigured(f"the budget cannot be made: {why}", "see ulimit -n and -f") from None
    finally:
        if fd >= 0:
            os.close(fd)


def write(fd: int, purse: Purse) -> None:
    text = purse.command.encode("utf-8", "replace")[:_TEXT]
    values = list(purse[:-1])
    values[0] = purse.ident.encode()
    # One page, and one write: a reader never sees half of it, and a kill does not cut it.
    os.pwrite(fd, _RECORD.pack(*values, len(text)) + text.ljust(_TEXT, b"\0"), 0)


def read(fd: int) -> Purse | None:
    """Return the purse that a file holds; None if it is none, or another user's."""
    try:
        data = os.pread(fd, _SIZE, 0)
        if len(data) != _SIZE or os.fstat(fd).st_uid != os.getuid():
            return None
        ident, *values, size = _RECORD.unpack_from(data)
        text = data[_RECORD.size :][:size].decode("utf-8", "replace")
        found = Purse._make([ident.decode("ascii"), *values, text])
        amounts: dict[str, Any] = {name: amount(getattr(found, name)) for name in _AMOUNTS}
        counts: dict[str, Any] = {name: min(getattr(found, name), MOST) for name in _COUNTS}
        return found._replace(**amounts, **counts)
    except (OSError, ValueError):
        return None


def caps(fds: tuple[int, ...]) -> list[Purse]:
    return [purse for fd in fds if (purse := read(fd)) is not None]


def above(held: Sequence[MemoryFile], ledger: int) -> tuple[int, ...]:
    """Return descriptors, which descendants inherit, of the purses in `held` that belong to this ledger (an inode).

    `held` is the part of `inherit.held_above`. Raises OSError if none of its holders has one of them any more.
    """
    found: dict[int, int] = {}
    lost: dict[int, OSError] = {}
    opened = []
    for each in held:
        if each.inode in found:
            continue
        try:
            if each.pid == os.getpid():
                fd = each.number
            else:
                fd = each.opened(os.O_RDONLY)
                opened.append(fd)
        except OSError as error:
            lost[each.inode] = error
            continue
        lost.pop(each.inode, None)
        purse = read(fd)
        if purse is not None and purse.ledger == ledger:
            os.set_inheritable(fd, True)
            found[each.inode] = fd
    for fd in opened:
        if lost or fd not in found.values():
            os.close(fd)
    for why in lost.values():
        raise why
    return tuple(found.values())


def change(
    path: str,
    inode: int,
    book: SharedCounters,
    to: tuple[float | None, float | None, float | None],
    check: Callable[[Purse, Purse], None],
) -> tuple[Purse, Purse]:
    """Write other limits into this file; return the purse before and after.

    Raises OSError, or ValueError for a file that is no purse.

    `check` gets both before anything is written, and while nobody else can write; it may raise.
    """
    fd = reopened(path, os.O_RDWR, inode, LINK)
    try:
        with book.changing():
            before = read(fd)
            if before is None:
                raise ValueError("not a budget")
            after = before.with_limits(*to)._replace(raised=before.raised + 1)
            check(before, after)
            write(fd, after)
            return before, after
    finally:
        os.close(fd)


def used(purse: Purse, facts: Numbers) -> tuple[int, int, float]:
    """(agents, tokens, dollars) since the purse was made."""
    return (
        facts.born - purse.agents_before,
        facts.tokens - purse.tokens_before,
        max(0.0, facts.cost - purse.cost_before),
    )
