"""The verb `budget`: its command line, and the purse that it makes.

Laws
1. Values are checked before anything is started: a wrong one is exit 2.
2. A budget inside another one, or inside an agent, is a part of that: it draws on the same ledger, within its own caps.
"""

from __future__ import annotations

import os

from quine.base import dirs, sizes
from quine.base.cli_options import parse, parse_around
from quine.base.errors import OK, Misconfigured
from quine.cli.budget.values import MOST, limits, whole
from transport import inherit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.base.cli_options import RunOptions

EXAMPLE = "quine budget [OPTIONS] -- CMD [ARG…]"


def main(words: list[str]) -> int:
    """Return the exit status, unless the process dies of the command's signal."""
    if words[:1] in (["show"], ["raise"]):
        options, ids = parse_around("budget", words[1:])
        if options.help:
            return _help()
        refuse = _only(options, ("json",) if words[0] == "show" else ("max_tokens", "max_cost", "deadline"))
        if refuse:
            raise Misconfigured(f"budget {words[0]} takes no --{refuse}", "quine budget --help")
        if words[0] == "show":
            from quine.cli.budget.listing import show

            return show(options, ids)
        from quine.cli.budget.raising import change

        return change(options, ids)
    options, command = parse("budget", words)
    if options.help:
        return _help()
    if options.json:
        raise Misconfigured("--json goes with show", "quine budget show --json")
    if not command or not command[0]:
        raise Misconfigured("no command", EXAMPLE)
    tokens, cost, deadline = limits(options)
    for name, value in zip(("max-tokens", "max-cost", "deadline"), (tokens, cost, deadline)):
        if value == 0:
            raise sizes.spent(f"--{name}")
    agents, concurrent = (whole(options, name) for name in ("max_agents", "concurrent"))
    if "command" in (state := inherit.renewed(inherit.read())):
        from quine.cli.budget.running import wait

        return wait(state["command"])
    purse = _make((tokens or 0, cost or 0.0, deadline or 0.0), agents, concurrent, command)
    from quine.cli.budget.running import run

    return run(command, purse)


def _help() -> int:
    from quine.cli.help import usage

    print(usage("budget"))
    return OK


def _only(options: RunOptions, names: tuple[str, ...]) -> str:
    """Return the first option that was given and is none of `names`."""
    given = [name for name, value in vars(options).items() if value and name not in names]
    return given[0].replace("_", "-") if given else ""


def _make(limits: tuple[int, float, float], agents: int, concurrent: int, command: list[str]) -> int:
    """Make the purse, on the ledger above or on one of its own; return a descriptor that the command inherits."""
    from shlex import join

    from quine.agent import personas
    from quine.base.sessions import new_session
    from quine.budget import purse
    from quine.budget.ledger import Ledger
    from quine.budget.limits import Limits, stored
    from quine.budget.shared_counters import AGENT

    nothing = Limits(depth=MOST, agents=0, concurrent=0)
    ledger = Ledger.join(None, nothing)
    if ledger is None:
        # A place is taken also where the number is unlimited, so that the agents which run can be counted.
        made = nothing._replace(
            agents=agents or AGENT.most,
            concurrent=concurrent or Limits().concurrent,
            stored=stored(os.environ),
        )
        ledger = Ledger.create(made, False, personas.now(), personas.identities(dirs.here()))
    return purse.create(ledger.book, new_session(), join(command), limits, (agents, concurrent))
