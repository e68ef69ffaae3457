"""`quine budget raise`: higher limits for a purse, and so for the agents that run below it already.

Laws
1. A purse is raised from outside. A process below it cannot buy itself more.
2. A raise lowers nothing, also where two come at one time: the limits are compared under the lock by which they are
   written.
"""

from __future__ import annotations

from quine.base.cli_options import RunOptions
from quine.base.errors import OK, Denied, Misconfigured
from quine.broker import asking
from quine.budget import caller, purse
from quine.budget.purse import Purse
from quine.budget.shared_counters import NAME
from quine.cli.budget.listing import matching
from quine.cli.budget.values import limits

OPTIONS = (("--max-tokens", "tokens"), ("--max-cost", "cost"), ("--deadline", "deadline"))


def change(options: RunOptions, ids: list[str]) -> int:
    if len(ids) != 1:
        raise Misconfigured("raise takes one id", "quine budget show")
    to = limits(options)
    if to == (None, None, None):
        raise Misconfigured("nothing to raise", f"quine budget raise {ids[0]} --max-cost USD")
    (found,) = matching(ids)
    if found.inode in {inode for _, inode, _ in caller.held(NAME, purse.NAME)[purse.NAME]}:
        raise Denied("a budget cannot be raised from inside", "another shell of the same user can do it")

    def check(before: Purse, after: Purse) -> None:
        for at, (option, name) in enumerate(OPTIONS):
            wanted, old, new = to[at], getattr(before, name), getattr(after, name)
            if wanted is not None and new and (not old or new < old):
                now = f"{before.limits[at]:g}" if old else "no limit"
                raise Misconfigured(
                    f"{option} {wanted:g} is less than now, which is {now}", "see quine budget show"
                )

    try:
        purse.change(found.path, found.book, to, check)
    except (OSError, ValueError):
        raise Misconfigured(f"{found.purse.ident} has just ended") from None
    asking.resume(found.purse.ledger)
    return OK
