"""The node: one daemon per user and machine that starts jobs, owns the links to other nodes and routes between them.

Laws
1. It knows nothing of agents: it starts processes, moves bytes, and carries requests to the opener of a job.
2. No peer can stop it: a bad frame ends the link it came on and nothing else.
3. It ends when it is not needed: no client, no job, no link that was used lately. A node whose socket was removed
   makes it anew; where it cannot, it goes on with its jobs and links.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from transport import address, inherit, node_socket, this_build
from transport.carrier.child import end_all
from transport.carrier.duplex import ClientDuplex, DialDuplex, Duplex, descriptors
from transport.carrier.handshake import Greeter
from transport.carrier.timeouts import timeout
from transport.errors import LinkLost, ProtocolError, Refused
from transport.job.job import Job
from transport.launcher.termination import PAUSE
from transport.node import rendezvous
from transport.node.door import BACKLOG, Door
from transport.node.hosts import TOLD, Hosts, Place
from transport.node.kept import Attic, way
from transport.node.link import Handler, Link
from transport.node.relay import Relay
from transport.node.served import Served
from transport.node.side import Side
from transport.node.turns import Turns
from transport.node_socket import CLIENT, DIAL, STATUS, TAKEN
from transport.spawn import LONGEST_CAPABILITY, Spawn
from transport.status import DENIED, NOT_STARTED, Status
from transport.wire.frames import Frame, Kind
from transport.wire.session import Session

if TYPE_CHECKING:
    from transport.job.interface import Launcher

log = logging.getLogger("quine.node")

IDLE = 300.0  # seconds without any use after which a link is closed, and then the node ends
ACCEPT_PAUSE = 0.1  # seconds
STATUS_DEADLINE = 10.0  # seconds for the requester of a status to read it
LONGEST_NAME = 64  # characters of the name of a request


class Node:
    """The daemon. `run` serves until idle or stopped."""

    def __init__(
        self,
        launcher: Launcher,
        place: Place | None = None,
        idle: float = IDLE,
        seat: Mapping[str, object] | None = None,
        told: Mapping[str, object] | None = None,
    ) -> None:
        """`seat` identifies this node to the nodes that it dials: see `rendezvous.seat`. All are `told` the others."""
        self._launcher = launcher
        self._facts: dict[str, object] = {
            **(told or {}),
            "build": this_build.build_hash(),
            "node": os.uname().nodename,
            "system": f"{os.uname().sysname} {os.uname().machine}",
            "processors": os.cpu_count() or 1,
            **{"boot": address.boot_id(), "pid": os.getpid()},
        }
        self._hosts = Hosts(place, self._link, {**self._facts, **(seat or {})})
        self._idle, self._path = idle, node_socket.socket_path()
        self._links: dict[Link, None] = {}  # in their order
        self._served = Served(self._facts, self._link)
        self._turns: dict[Link, Turns] = {}
        self._jobs: dict[str, Job] = {}  # by token
        self._ids: set[str] = set()  # of these jobs
        self._attic = Attic()
        self._tasks: set[asyncio.Task[None]] = set()  # greetings, and answers to status requests
        self._stopped, self._job_gone = asyncio.Event(), asyncio.Event()
        self._last_use = self._started = asyncio.get_running_loop().time()
        found = inherit.scrubbed(os.environ).items()  # the base of jobs from elsewhere: that of the login
        self._environ = {name: value for name, value in found if rendezvous.PYPY.get(name) != value}

    # -- running -----------------------------------------------------------------------------------

    async def run(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._door, self._hidden = Door(listener), False
        self._launcher.watch()
        self._listen()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._stopped.set)
        watch = asyncio.create_task(self._watch_idle())
        await self._stopped.wait()
        watch.cancel()
        loop.remove_reader(self._door.listener.fileno())
        self._door.close()
        await self._close()

    async def _close(self) -> None:
        """End every link and every job; the jobs get their pause."""
        links = list(self._links)
        for link in links:
            link.close("the node was stopped")
        for task in self._tasks:
            task.cancel()
        for job in list(self._jobs.values()):
            job.end("the node was stopped")
        await asyncio.gather(*(link.parted for link in links if link.parted))
        with contextlib.suppress(TimeoutError):
            async with timeout(PAUSE + 5):
                while self._jobs:
                    self._job_gone.clear()
                    await self._job_gone.wait()
        self._hosts.close()
        await end_all()
        await self._launcher.close()

    async def _watch_idle(self) -> None:
        """Close links that were not used lately; stop once the node itself is idle or unreachable."""
        while not self._stopped.is_set():
            self._served.cut_if_removed()  # at once, since a removal fails in which the note of its use is made
            await asyncio.sleep(min(self._idle / 4, 15))
            now = asyncio.get_running_loop().time()
            self._hosts.close_idle(self._idle, now)
            reached = self._door.is_there() or self._reopened()
            if self._links or self._jobs or self._hosts.busy or self._attic.jobs:
                self._last_use = now
            elif now - self._last_use > self._idle or not reached:
                self._stopped.set()
            rendezvous.rotate_log()

    def _listen(self) -> None:
        asyncio.get_running_loop().add_reader(self._door.listener.fileno(), self._accept)

    def _reopened(self) -> bool:
        asyncio.get_running_loop().remove_reader(self._door.listener.fileno())
        done = self._door.reopen()
        if done or not self._hidden:
            what = "it is made anew" if done else "nobody can reach this node"
            log.info("the socket was removed: %s", what)
        self._hidden = not done
        self._listen()
        return done

    # -- links that come in ------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(BACKLOG):
            try:
                connection, _ = self._door.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # Out of descriptors: queued connections are served when some are free again.
                log.error("accept: %s", error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._door.listener.fileno())
                loop.call_later(ACCEPT_PAUSE, self._listen)
                return
            connection.setblocking(False)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", credentials)[1] not in (os.getuid(), 0):
                connection.close()
                continue
            asyncio.get_running_loop().add_reader(connection.fileno(), self._first_byte, connection)

    def _first_byte(self, connection: socket.socket) -> None:
        """A client sends C; a dial sends D and hands over its stdin and stdout; S asks for one line of status."""
        asyncio.get_running_loop().remove_reader(connection.fileno())
        try:
            first, ancillary, _, _ = connection.recvmsg(1, socket.CMSG_SPACE(2 * 4), socket.MSG_CMSG_CLOEXEC)
        except OSError:
            first, ancillary = b"", []
        fds = descriptors(ancillary)
        if first == CLIENT and not fds:
            self.serve_client(ClientDuplex(connection), borrows=True)
        elif first == DIAL and len(fds) == 2:
            with contextlib.suppress(OSError):
                connection.send(TAKEN)
            self.serve_dial(DialDuplex(fds[0], fds[1], connection))
        else:
            for fd in fds:
                os.close(fd)
            if first == STATUS and not fds:
                self._keep(self._tell_status(connection))
            else:
                connection.close()

    def serve_client(self, duplex: Duplex, borrows: bool = False) -> None:
        """Serve a client of this machine; with `borrows` it may lend descriptors."""
        link = self._link(Session(False, self._facts), "client")
        link.session.borrows = borrows
        link.start(duplex)

    def serve_dial(self, duplex: Duplex) -> None:
        """Serve a connection that another node has dialled."""
        self._keep(self._served.serve(Greeter(duplex)))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell_status(self, connection: socket.socket) -> None:
        text = json.dumps(self.status()).encode() + b"\n"
        with connection, contextlib.suppress(OSError):  # the requester has left, or does not read
            async with timeout(STATUS_DEADLINE):
                await asyncio.get_running_loop().sock_sendall(connection, text)

    def _link(self, session: Session, name: str, on_down: Callable[[Link, str], None] | None = None) -> Link:
        link = Link(session, name, self._on_open, self._on_link_lost, on_down)
        self._links[link] = None
        return link

    def _on_link_lost(self, link: Link, why: str) -> None:
        self._links.pop(link, None)
        self._turns.pop(link, None)
        self._attic.forget(link)
        self._served.forget(link)

    # -- what peers ask for ------------------------------------------------------------------------

    def _on_open(self, link: Link, frame: Frame) -> Handler:
        if link.session.peer.get("build") != this_build.build_hash():
            raise ProtocolError("spawn or request from another build")
        if frame.kind == Kind.REQUEST:
            return self._request(link, frame)
        spawn = Spawn.from_json(frame.body(), frame.template)
        if link.dialled:
            return self._from_afar(link, frame, spawn)
        if not link.remote and isinstance(batch := spawn.context.get("batch"), str):
            self._attic.take_over(batch, link)
        if spawn.where in ("", "local"):
            return self._local(link, frame, spawn)
        job = None if link.remote else self._jobs.get(str(spawn.context.get("token")))
        if job and job.remote:
            return self._to_origin(link, frame.channel, spawn, job)
        return self._hosts.start(link, frame.channel, spawn).near

    def _to_origin(self, link: Link, number: int, spawn: Spawn, job: Job) -> Handler:
        """Pass a spawn for another host, from a job here, to the job's origin: that has the inventory and the keys."""
        relay = self._asked_by(job, link, number)
        relay.lease, relay.keep = job.spawn.lease, spawn.keep
        if spawn.context.get("control") is not True:
            relay.facts = {**spawn.facts(), "host": spawn.where}
            relay.since = asyncio.get_running_loop().time()
        up, number = way(job)
        spawn.context = {"job": number, **{name: spawn.context.get(name) for name in TOLD}}
        try:
            if not isinstance(up, Link) or job.orphan:
                raise LinkLost("it has gone")
            relay.connect(up, Kind.SPAWN, spawn.to_json())
        except (ValueError, LinkLost, Refused) as error:
            relay.refuse(Status("unreachable", NOT_STARTED, detail=f"the origin cannot be asked: {error}"))
            relay.end()
        return relay.near

    @staticmethod
    def _asked_by(job: Job, link: Link, number: int) -> Relay:
        relay = Relay(link, number, "", job.answered)
        job.asking[relay] = None
        relay.asker = job.asker
        return relay

    def _from_afar(self, link: Link, frame: Frame, spawn: Spawn) -> Handler:
        """Take a spawn from a node that we have dialled: never for here, and only from a job that it runs for us."""
        if spawn.where in ("", "local"):
            # Otherwise that node could run anything here.
            raise ProtocolError("spawn from a node that was dialled to serve")
        parent = self._job_over_there(link, spawn.context.get("job"))
        if parent is None or not parent.may_have(len(frame.payload)):
            link.complain(f"asks for a job on {spawn.where[:80]!r} and may not")
            relay = Relay(link, frame.channel, "", lambda _: None)
            relay.refuse(Status("denied", DENIED, detail="no such job, or too much was asked for by it"))
            return relay.near
        relay = self._hosts.start(link, frame.channel, spawn, parent)
        relay.size = len(frame.payload)
        return relay.near

    @staticmethod
    def _job_over_there(link: Link, number: object) -> Relay | None:
        """The job of ours that the node behind `link` runs on channel `number`, or None."""
        side = link.handlers.get(number) if isinstance(number, int) else None
        relay = side.relay if isinstance(side, Side) else None
        if not isinstance(relay, Relay) or side is not relay.far or relay.request or relay.ended:
            return None
        return relay

    def _local(self, link: Link, frame: Frame, spawn: Spawn) -> Handler:
        if spawn.adopt:
            return self._attic.adopt(link, frame.channel, spawn)
        turns = self._turns.setdefault(link, Turns(link)) if link.remote and spawn.slots else None

        def ended(job: Job) -> None:
            self._job_ended(job)
            if turns:
                turns.ended(job)

        taken = spawn.id in self._ids or spawn.id in self._attic.jobs
        keeper = self._attic.keeper(link, frame.channel, spawn) if spawn.keep and not taken else None
        job = Job(keeper or link, frame.channel, spawn, self._environ, self._path, ended, self._launcher)
        if taken:
            job.refuse("a job with its id runs already")
            return job
        self._jobs[job.token] = job
        self._ids.add(spawn.id)
        handler: Handler = turns.submit(job, spawn.slots) if turns else job
        if not turns:
            job.start()
        if keeper:
            keeper.behind = handler
        return keeper or handler

    def _job_ended(self, job: Job) -> None:
        if self._jobs.pop(job.token, None):
            self._ids.discard(job.spawn.id)
        self._job_gone.set()

    def _request(self, link: Link, frame: Frame) -> Handler:
        """Relay a request: from a job here up its own link, from the node over there to the job's opener."""
        body = frame.body()
        name, asking = body.get("name"), body.get("job")
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise ProtocolError("request without a name")
        capability = body.get("capability", "")
        if not isinstance(capability, str) or len(capability) > LONGEST_CAPABILITY:
            raise ProtocolError("request with a bad capability")  # it would wait here until the client reads
        up, number, relay = None, 0, Relay(link, frame.channel, "", lambda _: None)
        if not link.remote:
            if (job := self._jobs.get(str(body.get("token")))) and not job.orphan:
                up, number = way(job)
                relay = self._asked_by(job, link, frame.channel)
        elif over_there := self._job_over_there(link, asking):
            up, number = over_there.near.link, over_there.near.number
            over_there.asked(relay)
        if not isinstance(up, Link) or up.dead or up.session.clogged:
            if link.remote:
                link.complain("a request of a job that it does not run")
            relay.refuse(Status("denied", NOT_STARTED, detail="no such job, or its origin is gone"))
            relay.end()
            return relay.near
        asked = {"name": name, "job": number, "capability": capability}
        try:
            relay.connect(up, Kind.REQUEST, asked)
        except Refused as error:
            relay.refuse(Status("denied", NOT_STARTED, detail=str(error)))
            relay.end()
        return relay.near

    # -- for people --------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        names = self._hosts.names()
        return {
            **self._facts,
            "seconds": round(asyncio.get_running_loop().time() - self._started, 3),
            "cpu": round(usage.ru_utime + usage.ru_stime, 3),
            **{"launcher": self._launcher.pid, "jobs": len(self._jobs), "links": len(self._links)},
            "hosts": self._hosts.status(),
            "lines": [{**link.status(), "host": names.get(link)} for link in self._links if link.remote],
            "kept": {**self._attic.status(), "settling": self._served.settling},
            "running": [job.status() for job in self._jobs.values()],
            "proxies": [
                relay.status()
                for link in self._links
                if not link.remote
                for side in link.handlers.values()
                if isinstance(side, Side) and isinstance(relay := side.relay, Relay)
                if side is relay.near and relay.facts
            ],
            "home": os.environ.get("HOME", ""),
        }


def serve(
    launcher: Launcher,
    place: Place | None,
    listener: socket.socket,
    idle: float,
    seat: Mapping[str, object],
    told: Mapping[str, object],
) -> None:
    """Run a node on a bound and listening socket (see `rendezvous.bind`) until it is stopped or idle."""
    listener.setblocking(False)

    async def main() -> None:
        await Node(launcher, place, idle, seat, told).run(listener)

    asyncio.run(main())
