"""The loads of hosts, as a node tells them to the choice of a host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from deploy.host import Host


def idle(hosts: Sequence[object]) -> list[int]:
    """No job runs on any of them."""
    return [0] * len(hosts)


def jobs(**running: int) -> Callable[[Sequence[Host]], list[int]]:
    """So many jobs run there, by the names of the hosts."""
    return lambda hosts: [running.get(host.name, 0) for host in hosts]
