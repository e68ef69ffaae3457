"""`quine deploy` on hosts: put the binary there, tell what would be done, or remove it.

Laws
1. A line on stdout for each host that was reached; the trouble of the others is on stderr, with its cure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quine.cli.visits import complaints, visit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deploy.dial import Visit
    from deploy.inventory import Host, Inventory


def put(chosen: Sequence[Host], known: Inventory, verbose: bool) -> int:
    """Put the binary on hosts; return the exit status."""
    from deploy import dial

    results = visit(chosen, known, dial.deploy, verbose)
    for host, result in results:
        if not isinstance(result, Exception):
            state = "deployed" if result.deployed else "already there"
            print(f"{host.name}: {state}, {result.seconds:.2f} s")
    return complaints(results)


def plan(chosen: Sequence[Host], known: Inventory, verbose: bool) -> int:
    """Print what `put` would do on each host; change nothing."""
    from deploy import dial

    results = visit(chosen, known, dial.check, verbose)
    for host, result in results:
        print(f"{host.name}: {_cannot(result) if isinstance(result, Exception) else _would(result)}")
    return complaints(results)


def _would(found: Visit) -> str:
    return f"send {_kilobytes(found.size)}" if found.size else "already there"


def _cannot(why: Exception) -> str:
    from deploy.host_requirements import NeedsPython

    return "needs Python" if isinstance(why, NeedsPython) else "cannot be deployed to"


def _kilobytes(size: int) -> str:
    return f"{(size + 1023) >> 10} kB"


def remove(chosen: Sequence[Host], known: Inventory, verbose: bool) -> int:
    """Remove builds and interpreters of ours from hosts, but those in use; name these."""
    from deploy import dial
    from transport.errors import Unreachable

    results = visit(chosen, known, dial.undeploy, verbose)
    for number, (host, result) in enumerate(results):
        if isinstance(result, Exception) or result.removal is None:
            continue
        removal, cache = result.removal, host.cache or "~/.cache/quine"
        print(f"{host.name}: {_removed(removal.count)}")
        for name in removal.used:
            print(f"{host.name}: in use, not removed: {cache}/{name}")
        if removal.left:
            paths = ", ".join(f"{cache}/{name}" for name in removal.left)
            refused = Unreachable(host.name, f"cannot be removed: {paths}", "look at owners and modes there")
            results[number] = host, refused
    return complaints(results)


def _removed(count: int) -> str:
    return "nothing to remove" if not count else f"removed {count} installation{'s' * (count > 1)}"
