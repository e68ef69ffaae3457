"""The handler of the request `hosts`: the hosts that the jobs of a host may use.

Laws
1. A remote job hears only of hosts that may_fork of its host allows: of others not even a name.
2. The host that a job names is not trusted. The answer is for the host that the node here has put it on, or for hosts
   that its children and theirs could be put on, whose requests come through it.
"""

from __future__ import annotations

import os

from deploy.hosts_for_agents import of_reach, told
from quine.base.allowed_hosts import NAME
from quine.base.strict import Strict, parse, text
from transport import quickjson
from transport.errors import Refused, RequestError
from transport.lean import Callable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deploy.inventory import Inventory

Ask = Callable[[str, bytes], bytes]


_read: dict[tuple[str, int, int, int], Inventory] = {}  # one


LONGEST_NAME = 1000  # characters of a host's name


class HostsRequest(Strict):
    host: str = text(LONGEST_NAME, default="")


def answer(body: bytes, host: str, inventory: str | None, ask: Ask | None, named: str = "") -> bytes:
    """Return the list for a job on `host`; an empty `host` is this machine. Raises RequestError.

    `ask` asks our own origin, if that places the jobs started here; else `inventory` is the file, and `named` the WHERE
    of the user, which may name hosts beside it.
    """
    asked = parse(HostsRequest, body).host or host
    if ask is not None:
        return ask(NAME, quickjson.dumps({"host": asked} if asked else {}).encode())
    if inventory is None and not named:
        return b"[]"
    # A host of the inventory has at least itself in its list.
    if (
        inventory
        and asked == host
        and (kept := of_reach(inventory, host)) is not None
        and (kept or not named)
    ):
        return quickjson.dumps(kept).encode()
    try:
        known = _inventory(inventory, named)
    except Refused as error:
        raise RequestError(error.detail) from None
    if host and asked != host and asked not in _closure(known, host):
        raise RequestError("hosts: not a host of this job")
    if asked in known.everyone:
        known = known.within_reach(asked)
    elif asked:
        return b"[]"  # it was removed from the inventory
    able = [each for each in known.everyone.values() if not each.unbuilt()]
    return quickjson.dumps(told(able, asked)).encode()


def _inventory(path: str | None, named: str) -> Inventory:
    """Return the inventory with the hosts that the WHERE `named` names beside it. Raises Refused."""
    from deploy.inventory import Inventory

    known = _whole(path) if path else Inventory({})
    return known.naming(named) if named else known


def _whole(path: str) -> Inventory:
    """Read the inventory, or take it as it was read before if its file is the same: a batch answers for each agent."""
    from pathlib import Path

    from deploy.inventory import load

    try:
        facts = os.stat(path)
    except OSError:
        return load(Path(path), {})  # which says why
    version = (path, facts.st_mtime_ns, facts.st_ino, facts.st_size)
    known = _read.get(version)
    if known is None:
        known = load(Path(path), {})
        _read.clear()
        _read[version] = known
    return known


def _closure(known: Inventory, host: str) -> set[str]:
    """The hosts that a job on `host`, its children and theirs can reach."""
    found: set[str] = set()
    todo = [host] if host in known.everyone else []
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += known.within_reach(name).everyone
    return found
