"""The carriers by the name of `transport` in the inventory: each opens the duplex to a command on a host.

Law: a carrier's library is imported when a host needs it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Awaitable, Callable
from functools import partial

from deploy.host import Host
from deploy.inventory import Inventory, jump_of
from transport.carrier.dialer import Note, SshTarget
from transport.carrier.duplex import Bootstrap

Connect = Callable[
    [str, Note, Callable[[str], None]], Awaitable[Bootstrap]
]  # command, phases, messages for the user


def to(host: Host, inventory: Inventory, ssh_agent: str | None) -> Connect:
    """Return the function that starts a command on `host`; it raises Unreachable."""
    if host.transport == "command":
        from transport.carrier import program

        return partial(program.connect, host.name, host.command, program.environment(os.environ, ssh_agent))
    target = target_of(host, inventory, ssh_agent)
    if host.transport == "openssh":
        from transport.carrier import openssh

        return partial(openssh.connect, target)
    from transport.carrier.ssh import connect

    return partial(connect.connect, target)


def by_hand(host: Host) -> str:
    """Return the command by which a person tries the way to `host`."""
    if host.transport == "command":
        from transport.carrier import program

        return f"echo true | {shlex.join(program.with_shell(host.command))}"
    port = f"-p {host.port} " if host.port else ""
    return f"ssh {port}{host.destination} true"


def target_of(host: Host, inventory: Inventory, ssh_agent: str | None, shown: str = "") -> SshTarget:
    """Return the host and its way as the inventory gives them. Messages call it by its name, or as `shown`."""
    through = jump_of(host, inventory)
    return SshTarget(
        name=shown or host.name,
        address=host.destination,
        user=host.user,
        port=host.port,
        identity=host.identity,
        jump=target_of(through, inventory, ssh_agent, _shown(through, inventory)) if through else None,
        agent=ssh_agent,
    )


def _shown(jump: Host, inventory: Inventory) -> str:
    """Return what messages call a jump host: the name of its table, or the address that stands in its place."""
    return jump.name if jump.name in inventory.hosts else jump.destination
