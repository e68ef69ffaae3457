"""The link of a job and its requests to the origin, as a job uses them; the node has them, `transport.node`."""

from __future__ import annotations

from typing import Protocol

from transport.wire.session import Session


class Link(Protocol):
    """`transport.node.link.Link`."""

    session: Session
    name: str
    dead: str  # the reason, or ""
    down: str  # the same, of a line without a connection at the moment
    down_since: float  # of the loop's clock

    @property
    def remote(self) -> bool: ...
    def wake(self) -> None: ...


class Asked(Protocol):
    """A request or a spawn of the job that is under way: `transport.node.relay.Relay`."""

    def revoke(self, why: str) -> None: ...
