"""`quine budget raise`: higher limits for a purse, and so for the agents that run below it already.

Laws
1. A purse is raised from outside. A process below it cannot buy itself more: the brokers, which pay, keep the limits
   themselves, and look at the kernel's list of the processes above the one that asks. Nothing tells any more when the
   maker of the purse has ended: then nobody raises it.
2. A raise lowers nothing, also where two come at one time: the limits are compared under the lock by which they are
   written.
3. Where no broker has raised the purse, and one has not answered, nothing is changed: the purse would show limits that
   its broker may not have. It is an error also where another one says that it has done it, and where one refuses what
   another one says that it has done.
"""

from __future__ import annotations

import os

from quine.base.cli_options import RunOptions
from quine.base.errors import OK, TRY_AGAIN, Denied, Failure, Misconfigured
from quine.broker import asking
from quine.budget import caller, purse
from quine.budget.pinned import pinned
from quine.budget.purse import Purse
from quine.cli.budget.listing import matching
from quine.cli.budget.values import limits

LIST = "quine node --status lists the brokers"
OUTSIDE = "a shell of the same user outside can do it"
OPTIONS = (("--max-tokens", "tokens"), ("--max-cost", "cost"), ("--deadline", "deadline"))


def change(options: RunOptions, ids: list[str]) -> int:
    if len(ids) != 1:
        raise Misconfigured("raise takes one id", "quine budget show")
    to = limits(options)
    if to == (None, None, None):
        raise Misconfigured("nothing to raise", f"quine budget raise {ids[0]} --max-cost USD")
    (found,) = matching(ids)
    _refuse(caller.may_not_raise(found.purse, found.inode, me := pinned(os.getpid())))
    if me:
        me.close()

    def check(before: Purse, after: Purse) -> None:
        for at, (option, name) in enumerate(OPTIONS):
            wanted, old, new = to[at], getattr(before, name), getattr(after, name)
            if wanted is not None and new and (not old or new < old):
                now = f"{before.limits[at]:g}" if old else "no limit"
                raise Misconfigured(
                    f"{option} {wanted:g} is less than now, which is {now}", "see quine budget show"
                )

    check(found.purse, found.purse.with_limits(*to))
    asked = asking.raise_purse(found.inode, to)
    _refuse(asked.refused)
    if not asked.done:
        _complain(asked.silent)
    try:
        purse.change(found.path, found.inode, found.book, to, check)
    except (OSError, ValueError):
        raise Misconfigured(f"{found.purse.ident} has just ended") from None
    asking.resume(found.purse.ledger)
    _complain(asked.silent)
    if asked.opposed:
        detail = (
            f"a broker says that it is raised, and {asked.opposed[0]} refuses: it may have its former limits"
        )
        raise Failure(TRY_AGAIN, detail, LIST)
    return OK


def _complain(silent: list[str]) -> None:
    if silent:
        more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
        detail = f"no answer from the broker {silent[0]}{more}: the budget may have its former limits"
        raise Failure(TRY_AGAIN, detail, f"raise it once more; {LIST}")


def _refuse(why: str) -> None:
    if why:
        cure = "start a new one for what is still to be done" if why == caller.ORPHANED else OUTSIDE
        raise Denied(why, cure)
