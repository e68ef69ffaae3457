"""The other machines as a node sees them: which one a job goes to, its slots, and the one link to each.

Laws
1. Where a job goes and how its host is reached is given as a `Place`: no inventory and no ssh is known here.
2. One link per host, dialled once by whoever comes first, shared by all. A failed dial ends the jobs that
   waited for it, with its reason, and nothing else.
3. A job takes a slot when it begins and gives it back when its relay ends, however it ends; who waits
   for one is served in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from transport import address
from transport.duplex import Duplex
from transport.errors import ProtocolError, Refused
from transport.frames import Kind
from transport.link import Link
from transport.router import Relay
from transport.spawn import Spawn
from transport.status import Status

log = logging.getLogger("quine.hosts")

HELLO_DEADLINE = 30.0  # seconds for the node over there to greet once its duplex is open


class Target:
    """A host chosen for a job, and how to get there. `key` is equal when one link can serve both."""

    __slots__ = ("dial", "key", "name", "settings", "slots")

    def __init__(
        self,
        name: str,
        key: str,
        dial: Callable[[], Awaitable[Duplex]],
        settings: Callable[[Spawn], None],
        slots: int = 0,
    ) -> None:
        self.name = name
        self.key = key
        self.dial = dial
        self.settings = settings  # puts the host's defaults (workdir, env, limits, lease) into a spawn
        self.slots = slots  # jobs at one time, 0 = no limit


# (spawn, running jobs per host name) -> target; raises Refused.
Place = Callable[[Spawn, Mapping[str, int]], Target]
# (duplex, name) -> the link that this node now drives over it.
Join = Callable[[Duplex, str], Link]


class Hosts:
    """All of them, by the key of their target."""

    def __init__(self, place: Place | None, join: Join) -> None:
        self._place = place
        self._join = join
        self._hosts: dict[str, Host] = {}

    def start(self, link: Link, number: int, spawn: Spawn) -> Relay:
        """Send the job of a client's channel on its way; what prevents it becomes its exit record."""
        relay = Relay(link, number, "", lambda _: None)
        try:
            if self._place is None:
                raise Refused("this node has no inventory")
            target = self._place(spawn, self._running())
        except Refused as refused:
            refuse(relay, refused)
            return relay
        relay.host = target.name
        target.settings(spawn)
        host = self._hosts.get(target.key)
        if host is None:
            host = self._hosts[target.key] = Host(target, self._join)
        host.submit(relay, spawn)
        return relay

    def _running(self) -> Counter[str]:
        """Jobs at each host, those that wait for a slot included."""
        counts: Counter[str] = Counter()
        for host in self._hosts.values():
            counts[host.target.name] += host.running + len(host.queue)
        return counts

    @property
    def busy(self) -> bool:
        return any(host.running or host.queue for host in self._hosts.values())

    def close_idle(self, seconds: float, now: float) -> None:
        """End the links that nobody used lately."""
        for host in self._hosts.values():
            link = host.live()
            if link and not link.handlers and not host.running and now - link.idle_since > seconds:
                link.fail("idle")

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()

    def status(self) -> dict[str, Any]:
        return {
            host.target.name: {
                "up": host.live() is not None,
                "running": host.running,
                "queued": len(host.queue),
            }
            for host in self._hosts.values()
        }


class Host:
    """One of them: its link, being dialled or live, and the jobs that wait for a slot."""

    def __init__(self, target: Target, join: Join) -> None:
        self.target = target
        self.running = 0
        self.queue: deque[tuple[Relay, Spawn]] = deque()
        self._join = join
        self._link: asyncio.Task[Link] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, relay: Relay, spawn: Spawn) -> None:
        """Begin now, or when a slot is free."""
        self.queue.append((relay, spawn))
        self._begin_next()

    def _begin_next(self) -> None:
        while self.queue and (not self.target.slots or self.running < self.target.slots):
            relay, spawn = self.queue.popleft()
            if not relay.ended:
                self._begin(relay, spawn)

    def _begin(self, relay: Relay, spawn: Spawn) -> None:
        """Take a slot and go; with a live link at once, in this turn of the loop."""
        self.running += 1
        relay.on_end = self._ended
        if link := self.live():
            self._connect(relay, link, spawn)
            return
        task = asyncio.create_task(self._begin_later(relay, spawn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _ended(self, _: Relay) -> None:
        self.running -= 1
        self._begin_next()

    async def _begin_later(self, relay: Relay, spawn: Spawn) -> None:
        try:
            link = await self._reach()
        except Refused as refused:
            refuse(relay, refused)
        except Exception:
            log.exception("%s: defect while dialling", self.target.name)
            detail = "a defect in quine while dialling; see the node's log"
            refuse(relay, Refused(detail, host=self.target.name))
        else:
            self._connect(relay, link, spawn)

    def _connect(self, relay: Relay, link: Link, spawn: Spawn) -> None:
        if relay.ended:
            return  # whoever asked has gone meanwhile
        spawn.where, spawn.context = "", {}
        try:
            relay.connect(link, Kind.SPAWN, spawn.to_json())
        except ValueError as error:
            refuse(relay, Refused(f"argument list too long: {error}", host=relay.host))

    def live(self) -> Link | None:
        task = self._link
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        link = task.result()
        return None if link.dead else link

    async def _reach(self) -> Link:
        """The link: live, or the dial under way, or a new one. Raises Refused."""
        task = self._link
        if task is None or (task.done() and self.live() is None):
            task = self._link = asyncio.create_task(self._dial())
        return await asyncio.shield(task)

    async def _dial(self) -> Link:
        target = self.target
        link = self._join(await target.dial(), target.name)
        try:
            async with asyncio.timeout(HELLO_DEADLINE):
                peer = await asyncio.shield(link.ready)
        except (ProtocolError, TimeoutError) as error:
            noise = link.session.noise.decode(errors="replace").strip()
            said = f"{error or 'no greeting'}{': ' if noise else ''}{noise}"
            link.fail(said)
            hint = f"remove ~/.cache/quine on {target.name} to start afresh"
            raise Refused(f"the node over there does not answer: {said}", hint, target.name) from None
        if peer.get("build") != address.build_hash():
            link.fail("another build")
            raise Refused("the node over there is another build", f"quine deploy {target.name}", target.name)
        return link

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._link:
            self._link.cancel()


def refuse(relay: Relay, refused: Refused) -> None:
    """Nothing was started: the reason becomes the exit record."""
    host = refused.host or relay.host
    relay.refuse(Status("unreachable", refused.status, host=host, detail=refused.detail, hint=refused.hint))
    relay.end()
