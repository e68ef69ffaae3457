"""Visiting hosts of the inventory, all at the same time: `quine hosts check` and `quine deploy`.

Laws
1. One host's trouble never hides another's result.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from quine.exits import NOT_STARTED, OK, complain
from quine.text import table

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from deploy.dial import Visit
    from deploy.inventory import Host, Inventory
    from transport.errors import Refused

    Call = Callable[..., Awaitable[Visit]]


def check(chosen: Sequence[Host], known: Inventory, verbose: bool) -> int:
    from deploy import dial

    results = visit(chosen, known, dial.check, verbose)
    rows = [["HOST", "STATE", "SYSTEM", "PYTHON", "BUILD", "FREE", "SLOTS", "SECONDS"]]
    for host, result in results:
        slots = str(host.slots or "-")
        if isinstance(result, Exception):
            rows.append([host.name, "unusable", "-", "-", "-", "-", slots, "-"])
            continue
        facts = result.facts
        assert facts is not None  # a check always tells them
        build = "same" if facts.have else "none"
        free = f"{facts.free >> 20} MB"
        system = f"{facts.system} {facts.machine}"
        rows.append([host.name, "ok", system, facts.version, build, free, slots, f"{result.seconds:.2f}"])
    print(table(rows), end="")
    return complaints(results)


def visit(
    chosen: Sequence[Host], known: Inventory, call: Call, verbose: bool
) -> list[tuple[Host, Visit | Refused]]:
    """`call` for all hosts at the same time; each one's result or refusal, in order."""
    import asyncio

    from transport.errors import Refused

    agent = os.environ.get("SSH_AUTH_SOCK")

    async def one(host: Host) -> tuple[Host, Visit | Refused]:
        def note(text: str) -> None:
            if verbose:
                os.write(2, f"quine: {host.name}: {text}\n".encode())

        try:
            return host, await call(host, known, ssh_agent=agent, note=note)
        except Refused as refused:
            return host, refused

    async def all_of_them() -> list[tuple[Host, Visit | Refused]]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(host)) for host in chosen]
        return [task.result() for task in tasks]

    return asyncio.run(all_of_them())


def complaints(results: Sequence[tuple[Host, Visit | Refused]]) -> int:
    """Say each host's trouble; the exit status of the whole."""
    refused = [(host, result) for host, result in results if isinstance(result, Exception)]
    for host, why in refused:
        complain(why.detail, why.hint, host.name)
    return NOT_STARTED if refused else OK
