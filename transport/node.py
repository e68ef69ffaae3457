"""The node: one daemon per user and machine that starts jobs, owns the links to other nodes and routes between them.

Laws
1. It knows nothing of agents and nothing of inventories: where a job goes, and how its host is reached, is given
   as a `Place` function; without one it serves only jobs of its own machine.
2. One link per host, dialled once by whoever comes first, shared by all.
3. No peer can stop it: a bad frame ends the link it came on, a failed dial ends the jobs that waited for it.
4. It goes when nobody needs it: no client, no job, no link that was used lately.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import struct
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from transport import address, inherit, process
from transport.duplex import Duplex, FdDuplex
from transport.errors import ProtocolError, Refused
from transport.frames import Frame, Kind
from transport.job import PAUSE, Job
from transport.link import Handler, Link
from transport.router import Relay, Side
from transport.session import Session
from transport.spawn import Spawn
from transport.starter import CLIENT, DIAL, STATUS
from transport.status import NOT_STARTED, Status

log = logging.getLogger("quine.node")

IDLE = 300.0  # seconds without any use after which a link is closed, and then the node ends
BACKLOG = 1024  # clients that may connect in one turn of the loop: xargs -P 300 must not see a refusal
ACCEPT_PAUSE = 0.1  # seconds
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


class Host:
    """This node's view of another one: its link, being dialled or live, and the jobs that wait for a slot."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.link: asyncio.Task[Link] | None = None
        self.running = 0
        self.queue: deque[tuple[Relay, Spawn]] = deque()


class Node:
    """See the module. `run` serves until idle or stopped."""

    def __init__(self, place: Place | None = None, idle: float = IDLE) -> None:
        self._place = place
        self._idle = idle
        self._links: set[Link] = set()
        self._jobs: dict[str, Job] = {}  # by token
        self._dials: dict[Link, socket.socket] = {}  # kept open: its end is the end of the dial over there
        self._relays: dict[Relay, Host] = {}
        self._hosts: dict[str, Host] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()
        self._job_gone = asyncio.Event()
        self._last_use = time.monotonic()
        self._socket_path = address.socket_path()
        # What every job starts from: the environment of this user's login, less what looks like a secret.
        self._environ = inherit.scrubbed(os.environ)
        self._environ["PATH"] = address.path_with_own(self._environ.get("PATH", os.defpath))

    # -- life --------------------------------------------------------------------------------------

    async def run(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(listener.fileno(), self._accept, listener)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        watch = asyncio.create_task(self._watch_idle())
        await self._stopped.wait()
        watch.cancel()
        loop.remove_reader(listener.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket_path)
        listener.close()
        await self._close()

    async def _close(self) -> None:
        """End every link and every job; the jobs get their pause."""
        for link in list(self._links):
            link.fail("the node was stopped")
        for job in list(self._jobs.values()):
            job.end("the node was stopped")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PAUSE + 5):
                while self._jobs:
                    self._job_gone.clear()
                    await self._job_gone.wait()
        for task in self._tasks:
            task.cancel()

    async def _watch_idle(self) -> None:
        """Close links that nobody used lately; then stop."""
        while not self._stopped.is_set():
            await asyncio.sleep(min(self._idle / 4, 15))
            now = time.monotonic()
            for host in self._hosts.values():
                link = self._live(host)
                if link and not link.handlers and not host.running and now - link.idle_since > self._idle:
                    link.fail("idle")
            if self._links or self._jobs or self._tasks:
                self._last_use = now
            elif now - self._last_use > self._idle:
                self._stopped.set()

    # -- links that come in ------------------------------------------------------------------------

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors: whoever waits in the queue is served when some are free again.
                log.error("accept: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listener.fileno())
                loop.call_later(ACCEPT_PAUSE, loop.add_reader, listener.fileno(), self._accept, listener)
                return
            process.make_room(connection.fileno())
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", credentials)[1] not in (os.getuid(), 0):
                connection.close()
                continue
            asyncio.get_running_loop().add_reader(connection.fileno(), self._first_byte, connection)

    def _first_byte(self, connection: socket.socket) -> None:
        """A client says C; a dial says D and hands over its stdin and stdout; S asks for one line of status."""
        asyncio.get_running_loop().remove_reader(connection.fileno())
        fds: list[int] = []
        try:
            first, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(2 * 4), socket.MSG_CMSG_CLOEXEC)
        except OSError:
            first, ancillary = b"", []
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds += array.array("i", data[: len(data) - len(data) % 4])
        if first == CLIENT and not fds:
            fd = connection.detach()
            self._link(FdDuplex(fd, fd), opener=False, name="client", remote=False)
        elif first == DIAL and len(fds) == 2:
            link = self._link(FdDuplex(*fds), opener=False, name="origin", remote=True)
            asyncio.get_running_loop().add_reader(connection.fileno(), self._dial_gone, connection, link)
            self._dials[link] = connection
        else:
            if first == STATUS:
                with contextlib.suppress(OSError):  # it asked and left
                    connection.send(json.dumps(self.status()).encode() + b"\n")
            for fd in fds:
                os.close(fd)
            connection.close()

    def _dial_gone(self, connection: socket.socket, link: Link) -> None:
        link.fail("the dial process ended")

    def _link(self, duplex: Duplex, opener: bool, name: str, remote: bool) -> Link:
        hello = {
            "build": address.build_hash(),
            "node": os.uname().nodename,
            "boot": address.boot_id(),
            "pid": os.getpid(),
        }
        session = Session(opener, hello)
        link = Link(duplex, session, name, self._on_open, self._on_link_lost, remote)
        self._links.add(link)
        return link

    def _on_link_lost(self, link: Link, why: str) -> None:
        self._links.discard(link)
        if connection := self._dials.pop(link, None):
            asyncio.get_running_loop().remove_reader(connection.fileno())
            connection.close()  # the dial over there ends with it

    # -- what peers ask for ------------------------------------------------------------------------

    def _on_open(self, link: Link, frame: Frame) -> Handler:
        if link.session.peer.get("build") != address.build_hash():
            raise ProtocolError("spawn or request from another build")
        if frame.kind == Kind.REQUEST:
            return self._request(link, frame)
        spawn = Spawn.from_json(frame.body())
        if not link.remote and spawn.where not in ("", "local"):
            return self._remote(link, frame, spawn)
        return self._local(link, frame, spawn)

    def _local(self, link: Link, frame: Frame, spawn: Spawn) -> Handler:
        job = Job(link, frame.channel, spawn, self._environ, self._socket_path, self._job_ended)
        if any(other.spawn.id == spawn.id for other in self._jobs.values()):
            raise ProtocolError("spawn with the id of a job that runs already")
        self._jobs[job.token] = job
        job.start()
        return job

    def _job_ended(self, job: Job) -> None:
        self._jobs.pop(job.token, None)
        self._job_gone.set()

    def _request(self, link: Link, frame: Frame) -> Handler:
        """From a job of ours: up its own link. From the node over there: down to the job's opener."""
        body = frame.body()
        relay = Relay(link, frame.channel, "", lambda _: None)
        if not link.remote:
            job = self._jobs.get(str(body.get("token")))
            up, number = (job.link, job.number) if job else (None, 0)
        else:
            side = link.handlers.get(body.get("job", 0))
            up, number = (
                (side.relay.near.link, side.relay.near.number) if isinstance(side, Side) else (None, 0)
            )
        if up is None or up.dead:
            relay.refuse(Status("denied", NOT_STARTED, detail="no such job, or its origin is gone"))
            return relay.near
        relay.connect(up, Kind.REQUEST, {"name": body.get("name"), "job": number})
        return relay.near

    # -- jobs that go elsewhere --------------------------------------------------------------------

    def _remote(self, link: Link, frame: Frame, spawn: Spawn) -> Handler:
        relay = Relay(link, frame.channel, "", self._relay_ended)
        try:
            if self._place is None:
                raise Refused("this node has no inventory")
            target = self._place(spawn, self._running())
        except Refused as refused:
            self._refuse(relay, refused)
            return relay.near
        host = self._hosts.setdefault(target.key, Host(target))
        relay.host = target.name
        target.settings(spawn)
        self._relays[relay] = host
        host.queue.append((relay, spawn))
        self._begin_next(host)
        return relay.near

    def _running(self) -> Counter[str]:
        """Jobs at each host, those that wait for a slot included."""
        counts: Counter[str] = Counter()
        for host in self._hosts.values():
            counts[host.target.name] += host.running + len(host.queue)
        return counts

    def _begin_next(self, host: Host) -> None:
        """Give free slots to those who wait, in their order."""
        while host.queue and (not host.target.slots or host.running < host.target.slots):
            relay, spawn = host.queue.popleft()
            if not relay.ended:
                self._begin(host, relay, spawn)

    def _begin(self, host: Host, relay: Relay, spawn: Spawn) -> None:
        """Take a slot and go; with a live link at once, in this turn of the loop."""
        host.running += 1
        relay.holds_slot = True
        if link := self._live(host):
            self._connect(relay, link, spawn)
            return
        task = asyncio.create_task(self._begin_later(host, relay, spawn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _begin_later(self, host: Host, relay: Relay, spawn: Spawn) -> None:
        try:
            link = await self._host_link(host)
        except Refused as refused:
            self._refuse(relay, refused)
        except Exception:
            log.exception("%s: defect while dialling", host.target.name)
            self._refuse(
                relay, Refused("a defect in quine while dialling; see the node's log", host=host.target.name)
            )
        else:
            self._connect(relay, link, spawn)

    def _connect(self, relay: Relay, link: Link, spawn: Spawn) -> None:
        if relay.ended:
            return  # whoever asked has gone meanwhile
        spawn.where, spawn.context = "", {}
        try:
            relay.connect(link, Kind.SPAWN, spawn.to_json())
        except ValueError as error:
            self._refuse(relay, Refused(f"argument list too long: {error}", host=relay.host))

    def _refuse(self, relay: Relay, refused: Refused) -> None:
        status = Status(
            "unreachable",
            refused.status,
            host=refused.host or relay.host,
            detail=refused.detail,
            hint=refused.hint,
        )
        relay.refuse(status)
        relay.end()

    def _relay_ended(self, relay: Relay) -> None:
        host = self._relays.pop(relay, None)
        if host is None or not relay.holds_slot:
            return
        host.running -= 1
        self._begin_next(host)

    @staticmethod
    def _live(host: Host) -> Link | None:
        task = host.link
        if task is None or not task.done() or task.cancelled() or task.exception():
            return None
        link = task.result()
        return None if link.dead else link

    async def _host_link(self, host: Host) -> Link:
        """The link to a host: live, or the dial under way, or a new one. Raises Refused."""
        task = host.link
        if task is None or (task.done() and self._live(host) is None):
            task = host.link = asyncio.create_task(self._dial(host.target))
        return await asyncio.shield(task)

    async def _dial(self, target: Target) -> Link:
        duplex = await target.dial()
        link = self._link(duplex, opener=True, name=target.name, remote=True)
        try:
            async with asyncio.timeout(HELLO_DEADLINE):
                peer = await asyncio.shield(link.ready)
        except (ProtocolError, TimeoutError) as error:
            noise = link.session.noise.decode(errors="replace").strip()
            link.fail(str(error) or "no greeting")
            raise Refused(
                f"the node over there does not answer: {error or 'no greeting'}"
                + (f": {noise}" if noise else ""),
                f"see quine -v; remove ~/.cache/quine on {target.name} to start afresh",
                target.name,
            ) from None
        if peer.get("build") != address.build_hash():
            link.fail("another build")
            raise Refused("the node over there is another build", f"quine deploy {target.name}", target.name)
        return link

    # -- for people --------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        hosts = {
            host.target.name: {
                "up": self._live(host) is not None,
                "running": host.running,
                "queued": len(host.queue),
            }
            for host in self._hosts.values()
        }
        return {"pid": os.getpid(), "jobs": len(self._jobs), "links": len(self._links), "hosts": hosts}


def serve(place: Place | None, listener: socket.socket, idle: float = IDLE) -> None:
    """Run a node on a bound and listening socket (see starter.bind) until it is stopped or idle."""
    listener.setblocking(False)

    async def main() -> None:
        await Node(place, idle).run(listener)

    asyncio.run(main())
