"""The slots of a host: how many of its jobs run at one time, and the queue of the others.

Law: a job takes a slot when it begins and gives it back when its relay ends, however it ends; jobs that wait for one
are served in order.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from transport.errors import Refused
from transport.node.host import refuse
from transport.node.relay import LONG

if TYPE_CHECKING:
    from transport.node.host import Host
    from transport.node.relay import Relay
    from transport.spawn import Spawn


class Slots:
    """The jobs of one host: at most `limit` at a time (0: no limit), the others queued in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.limit = 0
        self.running = 0
        self._queue: deque[tuple[Relay, Host, Spawn]] = deque()

    @property
    def used(self) -> int:
        """Jobs that run or wait."""
        return self.running + sum(not relay.ended for relay, _, _ in self._queue)

    def submit(self, relay: Relay, host: Host, spawn: Spawn) -> None:
        self._queue.append((relay, host, spawn))
        relay.queued = True
        self._begin()
        if relay.queued:
            self._note(relay)
            asyncio.get_running_loop().call_later(LONG, self._note, relay)

    def _note(self, relay: Relay) -> None:
        """Tell the client of a job that it waits for a slot."""
        if relay.queued and not relay.ended:
            waiting = [other for other, _, _ in self._queue if not other.ended]
            ahead = waiting.index(relay) if relay in waiting else 0
            seconds = asyncio.get_running_loop().time() - relay.since
            relay.near.note(
                {"waiting": True, "host": self.name, "seconds": round(seconds, 3), "ahead": ahead}
            )

    def _begin(self) -> None:
        while self._queue and (not self.limit or self.running < self.limit):
            relay, host, spawn = self._queue.popleft()
            relay.queued = False
            if not relay.ended:
                self.running += 1
                relay.on_end = self._ended
                host.begin(relay, spawn, self.refuse_waiting)

    def _ended(self, _: Relay) -> None:
        self.running -= 1
        self._begin()

    def refuse_waiting(self, refused: Refused) -> None:
        """The host cannot be reached: refuse the queued jobs, which would only dial it again, one after the other."""
        waiting, self._queue = self._queue, deque()
        for relay, _, _ in waiting:
            if not relay.ended:
                refuse(relay, refused)
