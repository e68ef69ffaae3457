"""`quine budget show`: the purses of this user, found by the memory files that their processes hold.

Laws
1. Nothing is registered, so nothing is stale. A purse is listed as long as a process holds it.
2. Any process of the user can make memory files with these names. A file that is no purse, or no ledger, is left
   out; it neither ends the verb nor makes it wait for long. If several purses have one id, the true one is that of the
   maker which lives, holds it, and was the last to start before the time that is in the id. A forger knows the id
   later. It may have an older process hold its file, as a server does that takes descriptors.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

from quine.base.cli_options import RunOptions
from quine.base.errors import OK, Misconfigured
from quine.base.sessions import SHORT, created, is_session
from quine.budget import purse, shared_counters
from quine.budget.ledger import Ledger
from quine.budget.purse import Purse
from quine.budget.shared_counters import AGENT, INFER, PUT, SHORTEST, Locked, SharedCounters
from quine.jobs import census
from transport import quickjson
from transport.address import boot_clock, start_time
from transport.inherit import inode_at, reopened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HEAD = ("ID", "PID", "SECONDS", "AGENTS", "RUNNING", "INFERRING", "TOKENS", "COST", "COMMAND")
PATIENCE = 1.0  # seconds for the lock of a ledger, which is held for microseconds
COMMAND = 60  # characters of a command in the table
MOST = 1 << 12  # ranges of locks that are counted in a ledger


class Found:
    """A purse with its ledger, both open for reading."""

    def __init__(self, purse: Purse, path: str, inode: int, book: SharedCounters, by_maker: bool) -> None:
        self.purse = purse
        self.path = path  # that opens it anew
        self.inode = inode
        self.book = book
        self.by_maker = by_maker  # its maker lives and holds it

    def _collect(self) -> None:
        """Charge what killed processes have reserved, unless another one holds the lock for longer than PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.book.at_once(Ledger(self.book).collect)
                return
            except Locked:
                if time.monotonic() > deadline:
                    return
            time.sleep(SHORTEST)

    def facts(self) -> dict[str, Any]:
        self._collect()
        numbers = self.book.numbers()
        agents, tokens, cost = purse.used(self.purse, numbers)
        most_tokens, most_cost, deadline = self.purse.limits
        return {
            "id": self.purse.ident,
            "pid": self.purse.pid,
            "since": round(self.purse.since, 3),
            "seconds": round(boot_clock() - self.purse.boot, 1),
            "deadline": round(deadline, 3) or None,
            "agents": agents,
            "running": self.book.count(AGENT, MOST),
            "max_agents": self.purse.agents or None,
            "inferring": self.book.count(INFER, MOST),
            "concurrent": self.purse.concurrent or None,
            "tokens": tokens,
            "max_tokens": most_tokens or None,
            "cost": cost,
            "max_cost": most_cost or None,
            "command": self.purse.command,
        }


def show(options: RunOptions, ids: list[str]) -> int:
    found = matching(ids) if ids else everyone()
    rows, lines = [], []
    for one in found:
        # A ledger that is sealed against writes, or cut; a number that is none.
        with contextlib.suppress(OSError, ValueError, OverflowError, struct.error):
            lines.append(quickjson.dumps(facts := one.facts()) + "\n")
            rows.append(facts)
    if options.json:
        print("".join(lines), end="")
        return OK
    from quine.base.text import plain, table

    ids = [row["id"] for row in rows]
    width = SHORT if len({ident[:SHORT] for ident in ids}) == len(ids) else None
    cells = [HEAD]
    for row in rows:
        command = plain(row["command"], newlines=False)
        cells.append(
            (
                row["id"][:width],
                str(row["pid"]),
                _of(f"{row['seconds']:.0f}", row["deadline"], "{:.0f}"),
                str(row["agents"]),
                _of(str(row["running"]), row["max_agents"], "{}"),
                _of(str(row["inferring"]), row["concurrent"], "{}"),
                _of(str(row["tokens"]), row["max_tokens"], "{}"),
                _of(f"{row['cost']:.4f}", row["max_cost"], "{:.4f}"),
                command if len(command) <= COMMAND else command[: COMMAND - 1] + "…",
            )
        )
    print(table(cells, right=(1, 2, 3, 4, 5, 6, 7)), end="")
    return OK


def _of(used: str, limit: float | None, form: str) -> str:
    return f"{used}/{form.format(limit)}" if limit else used


# -- finding ---------------------------------------------------------------------------------------


def everyone() -> list[Found]:
    """Return the purses that a process of this user, home and runtime directory holds, the oldest first."""
    held = census.open_files()
    ledgers: dict[int, str] = {}
    purses: dict[int, str] = {}
    holders: dict[int, set[int]] = {}
    for one in held:
        into = {purse.LINK: purses, shared_counters.LINK: ledgers}.get(one.target)
        if into is not None:
            try:
                inode = inode_at(one.path, one.target)
            except OSError:
                continue  # closed since, or of a file system: the name alone tells nothing
            into.setdefault(inode, one.path)
            holders.setdefault(inode, set()).add(one.pid)
    found = [_opened(inode, path, ledgers, holders[inode]) for inode, path in purses.items()]
    return sorted(_true_ones([one for one in found if one]), key=lambda one: one.purse.since)


def _true_ones(found: list[Found]) -> list[Found]:
    """Return one purse of each id, or all where nothing tells which of them is the true one."""
    booted = time.time() - boot_clock()
    groups: dict[str, list[Found]] = {}
    for one in found:
        groups.setdefault(one.purse.ident, []).append(one)
    chosen = []
    for ident, group in groups.items():
        by_maker = [one for one in group if one.by_maker]
        before = (created(ident) - booted) * os.sysconf("SC_CLK_TCK")
        last = max((one.purse.started for one in by_maker if one.purse.started <= before), default=0)
        chosen += [one for one in by_maker if one.purse.started == last] or by_maker or group
    return chosen


def _opened(inode: int, path: str, ledgers: dict[int, str], holders: set[int]) -> Found | None:
    try:
        fd = reopened(path, os.O_RDONLY, inode)
        try:
            facts = purse.read(fd)
        finally:
            os.close(fd)
        if facts is None or not is_session(facts.ident) or facts.ledger not in ledgers:
            return None
        fd = reopened(ledgers[facts.ledger], os.O_RDONLY, facts.ledger)
        if os.fstat(fd).st_size < PUT.end:
            os.close(fd)
            return None
        book = SharedCounters(fd)
    except OSError:
        return None  # its process has just ended
    by_maker = facts.pid in holders and start_time(facts.pid) == facts.started
    return Found(facts, path, inode, book, by_maker)


def matching(ids: list[str]) -> list[Found]:
    """Return the purse of each id, or beginning of one. Raises Misconfigured if there is not exactly one."""
    known = everyone()
    chosen = []
    for text in ids:
        found = [one for one in known if text and one.purse.ident.startswith(text)]
        if len(found) != 1:
            what = f"{len(found)} budgets begin with {text}" if found else f"no such budget: {text}"
            raise Misconfigured(what, "quine budget show")
        chosen += found
    return chosen
