"""The hosts of an inventory as one of them dials the others: by its own ssh program, with its own keys.

Laws
1. No key and no command of this machine goes with them, only names and places: user, address and port as this machine
   resolves them, by the inventory and by ~/.ssh/config.
2. A host that cannot be reached so is refused, with the cure.
3. A jump host that is on the way to the dialling host, or is that host, is left out: it is behind it already.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from deploy.host import KEYS, Host
from deploy.inventory import Inventory, jump_of
from transport.carrier.ssh.config import SYSTEM_CONFIG, Asked, Config, hop, read
from transport.errors import Misconfigured
from transport.provenance.safe_path import Unsafe

HERE = ["env"]  # the command of a host that reaches itself
# Keys that say how to get there from this machine, or are about files of it.
OURS = ("name", "address", "port", "user", "identity", "jump", "transport", "command", "wheels", "may_fork")


class Place(NamedTuple):
    """An sshd, and the user there."""

    user: str
    address: str
    port: int

    @property
    def server(self) -> tuple[str, int]:
        return self.address, self.port

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}:{self.port}"


def tables(start: Host, hosts: Iterable[Host], inventory: Inventory) -> dict[str, Any]:
    """Return the tables of an inventory by which `start` dials `hosts`. Raises Misconfigured."""
    try:
        behind = {place.server for place in _way(start, inventory)}
    except Misconfigured:
        behind = set()  # whatever leads there leads nowhere else
    hosts = list(hosts)
    found = {host.name: _table(start, host, behind, inventory) for host in hosts}
    wanting = [host for host in hosts if host.mount and "mount" not in host.own]
    if not wanting:
        return {"hosts": found}
    for host in hosts:  # a mount of the defaults is one that a host can do without
        found[host.name]["mount"] = host.mount
    for host in wanting:
        del found[host.name]["mount"]
    return {"defaults": {"mount": True}, "hosts": found}


def _table(start: Host, host: Host, behind: set[tuple[str, int]], inventory: Inventory) -> dict[str, Any]:
    plain = Host(host.name)
    kept = {key: getattr(host, key) for key in KEYS if key not in OURS}
    table = {key: value for key, value in kept.items() if value != getattr(plain, key)}
    if host.name == start.name:
        return {**table, "transport": "command", "command": HERE}
    *before, place = _way(host, inventory)
    jumps = [hop for hop in before if hop.server not in behind]
    if len(jumps) > 1:
        raise _refused(host, f"is behind {len(jumps)} jump hosts, and {start.name} can pass one")
    table.update(transport="openssh", user=place.user, address=place.address, port=place.port)
    return {**table, "jump": str(jumps[0])} if jumps else table


def _way(host: Host, inventory: Inventory) -> list[Place]:
    """Return the sshds on the way to a host, its own at the end. Raises Misconfigured."""
    if host.transport not in ("ssh", "openssh"):
        raise _refused(host, f'is reached by transport = "{host.transport}", which is of this machine')
    config = _config(host, re.sub(r"^\[(.*)\]$", r"\1", host.destination), host.user, host.port)
    before: list[Place] = []
    if jump := jump_of(host, inventory):
        before = _way(jump, inventory)
    elif (named := config.get("ProxyJump")).lower() not in ("", "none"):
        before = [_hop(host, text.strip(), not n) for n, text in enumerate(config.expand(named).split(","))]
    elif config.get("ProxyCommand").lower() not in ("", "none"):
        raise _refused(host, "is reached by a ProxyCommand of this machine")
    return [*before, Place(config.user, config.hostname, config.port)]


def _hop(host: Host, text: str, first: bool) -> Place:
    """Return the sshd of a jump host. As with ssh, the `first` one is reached by its own way."""
    try:
        at = hop(text)
    except ValueError:
        raise _refused(host, f"has a ProxyJump that is no host: {text!r}") from None
    config = _config(host, at.host, at.user, at.port)
    for way in ("ProxyJump", "ProxyCommand") if first else ():
        if config.get(way).lower() not in ("", "none"):
            raise _refused(host, f"is behind {text}, which is itself reached by a {way}")
    return Place(config.user, config.hostname, config.port)


def _config(host: Host, address: str, user: str | None, port: int | None) -> Config:
    try:
        return read(Asked(address, user or "", port), Path("~/.ssh/config").expanduser(), SYSTEM_CONFIG)
    except (ValueError, OSError) as error:
        why = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
        hint = error.hint if isinstance(error, Unsafe) else "see ~/.ssh/config"
        raise Misconfigured(f"cannot use its configuration: {why}", hint, host.name) from None


def _refused(host: Host, why: str) -> Misconfigured:
    hint = "leave it out of --on; or start the batch there by hand, with an inventory of that machine"
    return Misconfigured(f"it {why}", hint, host.name)
