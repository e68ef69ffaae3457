"""The links that other nodes have dialled: the first connection of each, the next ones, and how long a link is kept.

Law: a link that is down is kept for the longest lease of its jobs and KEPT more: only this node can tell the other one
that nothing was lost. Link and jobs end at once when the next holder of the other node's lock dials: that node has
certainly ended.
"""

from __future__ import annotations

import asyncio
import logging
import os

from transport import this_build
from transport.errors import ProtocolError
from transport.job.job import Job
from transport.node.host import HELLO_DEADLINE
from transport.node.kept import Keeper
from transport.wire.resume import Line, hello

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from transport.carrier.handshake import Greeter
    from transport.node.host import Join
    from transport.node.link import Link

log = logging.getLogger("quine.node")

KEPT = 60.0  # seconds that a link is kept beyond the longest lease on it, so that its other end learns how all ended


class Served:
    """Links that other nodes have dialled, by their names."""

    def __init__(self, facts: Mapping[str, object], join: Join) -> None:
        """`facts` are the facts about this node in a hello."""
        self.links: dict[str, Link] = {}
        self._facts = {**facts, "life": os.urandom(8).hex()}  # of this node, and of no other
        self._join = join

    def forget(self, link: Link) -> None:
        """A link of this node has ended, dialled by another one or not."""
        if link.line:
            self.links.pop(link.line.name, None)

    async def serve(self, greeter: Greeter) -> None:
        """Greet on a connection that another node has dialled: the first one of a link, or the next one."""
        try:
            peer = await greeter.hello(HELLO_DEADLINE)
        except ProtocolError as error:
            log.info("origin: %s", error)
            return
        name, again = peer["link"], peer.get("resume") is True
        link = self.links.get(name)
        if link and link.line and again and peer["attempt"] <= link.line.attempt:
            log.info("origin: attempt %d came after attempt %d", peer["attempt"], link.line.attempt)
            greeter.duplex.close()  # before anything else: its sender has given it up
            return
        if link and again:
            link.cut("the other end has dialled again")  # this end may not have noticed the break yet
            link = self.links.get(name)  # `cut` has ended it if its other end had said goodbye
        if (link is not None) != again:
            log.info("origin: %s", "a link that is not known here" if again else "a second link of one name")
            greeter.duplex.write(hello(self._facts, name, 0, resume=False))
            greeter.duplex.close()
            return
        if link is None:
            link = self.links[name] = self._join(Line(False, name), "origin", self._wait_for)
        assert link.line
        link.line.attempt = peer["attempt"]
        greeter.duplex.write(hello(self._facts, name, link.line.received, again, peer["attempt"]))
        link.connect(greeter)
        for other in list(self.links.values()):
            if other.down:
                self._end_if_replaced(other)

    def cut_if_removed(self) -> None:
        """Cut the links if this build was removed: nodes that dial again put it back, and nothing is lost by a cut."""
        this_build.note_use()
        if this_build.removed():
            for link in list(self.links.values()):
                link.cut("the files of quine were removed here")

    def _end_if_replaced(self, link: Link) -> None:
        """End a link that is down if a later holder of its node's lock has dialled: its node cannot come back."""
        peer = link.session.peer
        if any(is_later(other.session.peer, peer) for other in self.links.values()):
            link.fail(f"{link.down}; its node has ended, and another one of the same place has dialled")

    @property
    def settling(self) -> bool:
        """Whether a link is still up whose node has ended: frames of it may still come."""
        links = list(self.links.values())
        return any(
            is_later(one.session.peer, other.session.peer)
            for one in links
            for other in links
            if not other.down
        )

    def _wait_for(self, link: Link, why: str) -> None:
        """Give up a link that is down, KEPT after its longest lease; an ended job counts until its record is taken."""
        self._end_if_replaced(link)
        if link.dead:
            return
        handlers = link.handlers.values()
        leases = [handler.spawn.lease for handler in handlers if isinstance(handler, Job)]
        leases += [handler.lease for handler in handlers if isinstance(handler, Keeper)]
        asyncio.get_running_loop().call_later(
            max(leases, default=0.0) + KEPT, self._give_up, link, link.counters.reconnects
        )

    def _give_up(self, link: Link, reconnects: int) -> None:
        if link.down and link.counters.reconnects == reconnects:
            link.fail(f"{link.down}, and nobody came back")


def is_later(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """True if the node with the hello `one` has the lock that the node with the hello `other` had before it."""
    return "origin" in other and one.get("origin") == other["origin"] and one["began"] > other["began"]
