"""The tree that a process belongs to: by the processes above it, or by the caller of the job that it is a part of.

A job of this machine is below its node, and its caller may be below a purse. The client of a job lives as long as that.
Its environment names it to the job, by boot, pid and start.

Laws
1. The kernel has the last word: the variable is read only where there is no ledger above a process.
2. A caller that has ended, or is on another machine, is none.
3. A file that is gone before it is opened is looked for anew: the processes above end, and begin trees.
4. A variable holds a command to its budget, not an adversary: one that takes it away is below no budget, as any process
   that a node has started. So no job of a node may raise a purse: nothing tells for whom the node has started it.
5. A purse is raised for a living process whose ancestors are known up to the top. Above a process that has ended the
   kernel shows nothing, and so no maker of a purse.
"""

from __future__ import annotations

import fcntl
import os

from quine.base import procs
from quine.base.errors import LOST, Failure
from quine.budget import beginning, purse
from quine.budget.beginning import Beginning
from quine.budget.shared_counters import NAME, release
from transport.address import boot_id, closed_since, start_time
from transport.errors import Unseen
from transport.inherit import APART, held_above

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from quine.budget.pinned import PinnedProcess
    from quine.budget.purse import Purse
    from transport.inherit import MemoryFile

    Walk = Callable[[], dict[str, list[MemoryFile]]]

VARIABLE = "QUINE_CALLER"
FILES = (NAME, purse.NAME, beginning.NAME)  # of a tree
WALKS = 100  # of some milliseconds each
MOST_AROUND = 64  # purses that a process and those above it may hold
MOST_FILES = 1 << 18  # descriptors of them that are looked at, a second or two
ORPHANED = "the process that has made the budget has ended, so its limits stay as they are"
UNKNOWN = "the process that asks has ended, or the processes above it are not known"


def told() -> dict[str, str]:
    """Return the variable for the jobs of this process on this machine; {} where no purse is above it.

    A process whose purse is that of its own caller passes the variable on, as it does others.
    """
    if not held_above(purse.NAME)[purse.NAME]:
        return {}
    pid = os.getpid()
    return {VARIABLE: f"{boot_id()}:{pid}:{start_time(pid)}"}


def walk() -> dict[str, list[MemoryFile]]:
    """Return the files of trees above, as `inherit.held_above`; those of the caller where there is no ledger."""
    return with_those_of_caller(held_above(*FILES))


def joined(look: Walk) -> tuple[int, tuple[int, ...], Beginning] | None:
    """Return the ledger that the topmost process above holds, its purses, its beginning; None without one.

    `look` is `walk`, or does as that. All descendants inherit the descriptors of these files. Raises Failure.
    """
    for _ in range(WALKS):
        held = look()
        if not held[NAME]:
            return None
        top = [each for each in held[NAME] if each.inode == held[NAME][-1].inode]
        begun = Beginning()
        purses: tuple[int, ...] = ()
        try:
            begun = beginning.above(held.get(beginning.NAME, ()), top[-1].inode, top[-1].pid)
            purses = purse.above(held[purse.NAME], top[-1].inode)
            return _ledger(top), purses, begun
        except OSError:
            own = {each.number for name in FILES for each in held.get(name, ()) if each.pid == os.getpid()}
            release([fd for fd in (begun.fd, *purses) if fd not in {-1, *own}])
    raise Failure(LOST, f"the ledger of the tree was gone {WALKS} times before it was opened")


def _ledger(holders: Sequence[MemoryFile]) -> int:
    """Return a read-only descriptor of a ledger. Raises OSError if none of its holders has it any more."""
    # The places of agents are descriptors of the same file, but open for writing.
    ours = [each.number for each in holders if each.pid == os.getpid()]
    reading = [fd for fd in ours if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY]
    if reading:
        return reading[0]
    error = OSError()
    for each in holders:
        try:
            fd = each.opened(os.O_RDONLY)
        except OSError as why:
            error = why
            continue
        os.set_inheritable(fd, True)
        return fd
    raise error


def with_those_of_caller(found: dict[str, list[MemoryFile]]) -> dict[str, list[MemoryFile]]:
    """Return what `inherit.held_above` has found, with the files of the caller's tree where there is no ledger."""
    pid = 0 if found.get(NAME) else _caller()
    try:
        return {**found, **held_above(*FILES, pid=pid)} if pid else found
    except Unseen:
        if _caller():
            raise
        return found  # it has ended since


def may_not_raise(of: Purse, inode: int, asker: PinnedProcess | None) -> str:
    """Return why a process, None if it has ended, may not raise a purse: it is below it, or may be; "" if it may.

    The purse is the file with this inode. Whoever holds it is below it, and so is all that is below its maker, which
    adopts the orphans. When the maker has ended, an orphan that holds nothing is below no process of the budget.
    """
    chain = asker.chain() if asker else []
    if not asker or not chain:
        return UNKNOWN
    held = held_above(purse.NAME, APART, pid=asker.pid, whole=True, most=MOST_FILES)
    if held[APART]:
        return "a job of a node cannot raise a budget"
    if (of.pid, of.started) in chain or inode in {each for _, each, _ in held[purse.NAME]}:
        return "a budget cannot be raised from inside"
    if asker.chain() != chain:  # so a process may have been left out
        return UNKNOWN
    living = procs.look(of.pid)
    return "" if living and living.state != "Z" and living.started == of.started else ORPHANED


def purses_around(asker: PinnedProcess) -> list[int]:
    """Return descriptors of the purses that a process and those above it hold; it looks through /proc.

    Also of those above a daemon, since a command can mark itself as one. A purse of another ledger is of no use. Raises
    Unseen, also if there are more than MOST_AROUND, or MOST_FILES descriptors.
    """
    held = held_above(purse.NAME, pid=asker.pid, whole=True, most=MOST_FILES)[purse.NAME]
    if len({each.inode for each in held}) > MOST_AROUND:
        raise Unseen(f"more than {MOST_AROUND} budgets are above it")
    found: dict[int, int] = {}
    for each in held:
        if each.inode not in found:
            try:
                found[each.inode] = each.opened(os.O_RDONLY)
            except OSError as error:
                if not closed_since(error):
                    release(list(found.values()))
                    raise Unseen(f"a budget above it cannot be opened: {error.strerror}") from None
    return list(found.values())


def _caller() -> int:
    boot, _, rest = os.environ.get(VARIABLE, "").partition(":")
    pid, _, started = rest.partition(":")
    if not (pid.isascii() and pid.isdigit() and started.isascii() and started.isdigit() and len(rest) < 40):
        return 0
    return int(pid) if boot == boot_id() and started != "0" and start_time(int(pid)) == int(started) else 0
