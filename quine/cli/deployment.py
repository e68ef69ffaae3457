"""`quine deploy` on hosts: put the binary there, tell what would be done, or remove it.

Laws
1. A line on stdout for each host that was reached; the trouble of the others is on stderr, with its cure.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quine.cli.progress import Bar
from quine.cli.visits import complaints, visit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from deploy.host import Host
    from deploy.inventory import Inventory


IN_USE = "quine deploy --remove --now {host} ends a node without work; if it stays: quine ps --on {host}; quine kill ID"


def put(chosen: Sequence[Host], known: Inventory, verbose: bool, python: Path | None) -> int:
    """Put the binary on hosts, and the Python of a file on those that have none; return the exit status."""
    from deploy.upkeep import interpreter

    call = partial(interpreter.deploy, python=interpreter.read(python) if python else None)
    results = visit(chosen, known, call, verbose, None if verbose else Bar(len(chosen)))
    for host, result in results:
        if not isinstance(result, Exception):
            state = "deployed" if result.deployed else "already there"
            print(f"{host.name}: {state}{' with a Python' * result.brought}, {result.seconds:.2f} s")
    return complaints(results)


def plan(chosen: Sequence[Host], known: Inventory, verbose: bool, python: Path | None) -> int:
    """Print what `put` would do on each host; change nothing."""
    from deploy import dial
    from deploy.build import build
    from deploy.host_requirements import NeedsPython
    from deploy.upkeep import interpreter

    brought = interpreter.read(python) if python else None
    troubles = []
    for host, result in visit(chosen, known, dial.check, verbose):
        if not isinstance(result, Exception):
            text = f"send {_kilobytes(result.size)}" if result.size else "already there"
        elif brought and isinstance(result, NeedsPython) and not host.python:
            text = f"send {_kilobytes(brought.size)} of Python and {_kilobytes(build().size)}"
        else:
            needs = isinstance(result, NeedsPython) and not host.python
            text = "needs Python" if needs else "cannot be deployed to"
            troubles.append((host, result))
        print(f"{host.name}: {text}")
    return complaints(troubles)


def _kilobytes(size: int) -> str:
    return f"{(size + 1023) >> 10} kB"


def remove(chosen: Sequence[Host], known: Inventory, verbose: bool, now: bool) -> int:
    """Remove builds and interpreters of ours from hosts, but those in use; name these. `now`: end idle nodes before."""
    from deploy.upkeep.remove import remove as take_away
    from transport.errors import Unreachable

    results = visit(chosen, known, partial(take_away, now=now), verbose)
    for number, (host, result) in enumerate(results):
        if isinstance(result, Exception):
            continue
        cache = host.cache or "~/.cache/quine"
        stays = bool(result.left or result.used)
        print(f"{host.name}: {_removed(result.removed, stays)}")
        kept = {"cannot be removed": result.left, "in use, not removed": result.used}
        paths = {why: ", ".join(f"{cache}/{name}" for name in names) for why, names in kept.items() if names}
        if paths:
            detail = "; ".join(f"{why}: {them}" for why, them in paths.items())
            cure = "look at owners and modes there" if result.left else IN_USE.format(host=host.name)
            results[number] = host, Unreachable(host.name, detail, cure)
    return complaints(results)


def _removed(count: int, stays: bool) -> str:
    if not count:
        return "removed nothing" if stays else "nothing to remove"
    return f"removed {count} installation{'s' * (count > 1)}"
