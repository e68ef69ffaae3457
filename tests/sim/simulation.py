"""Runs one scenario and watches the invariants."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tests.sim.client import Client
from tests.sim.hostile import Hostile
from tests.sim.machine import Machine
from tests.sim.network import End, connect
from tests.sim.process import PERIOD, Process, pattern
from tests.sim.scenario import HANG, NOTICE, ORIGIN, Fault, Job, Scenario
from tests.sim.world import Violation, World
from transport import address, node_socket, this_build
from transport.errors import Interrupted, Unreachable
from transport.launcher.termination import PAUSE
from transport.node import host
from transport.node.served import KEPT
from transport.spawn import Spawn
from transport.wire import flow, resume, session

HOSTILITY = 40.0  # seconds in which a hostile node does what it does, and is hung up on
FORKED = 6.0  # seconds that a child of a job may live on
FRAME = 64 * 1024  # bytes: one that comes is counted before anybody can be held back
QUIET = 60.0  # seconds after the last event in which everything that was held is let go
SCALE = {  # windows of a sixteenth, so that little data meets every bound
    "INITIAL_WINDOW": 4096,
    "QUICK_WINDOW": 16 * 1024,
    "ACK_QUANTUM": 8192,
    "MAX_WINDOW": 64 * 1024,
    "GROWTH_BUDGET": 256 * 1024,
    "KEEP": 128 * 1024,
    "QUANTUM": 4096,
    "ROUND": 16 * 1024,
    "ASKED": 64 * 1024,
    "MOST_ASKED": 192 * 1024,
    "MAX_CONTROL": 400,
    "MAX_ASKED": 16,
    "SLICE": 0.0002,
}


class Route:
    """The way from the origin to a host, and its faults."""

    def __init__(self, sim: Simulation, host: str) -> None:
        self.sim = sim
        self.host = host
        self.random = sim.world.random("route", host)
        self.near: End | None = None  # of the latest connection
        self.dials = 0
        self.down_until = 0.0
        self.down_how = ""
        self.late: list[Fault] = []  # for the next dials

    async def dial(self) -> End:
        sim, world = self.sim, self.sim.world
        self.dials += 1
        random = world.random("dial", self.host, self.dials)
        await asyncio.sleep(random.uniform(0.02, 0.4))
        if world.now < self.down_until:
            if self.down_how == "hang":
                await asyncio.sleep(20.0)
            if self.down_how == "interrupted":
                raise Interrupted(self.host, "the connection was lost")
            raise Unreachable(self.host, "no route to host")
        there, back = random.uniform(0.001, 0.1), random.uniform(0.001, 0.1)
        machine, origin = sim.machines[self.host], sim.machines[ORIGIN]
        near, far = connect(world, origin.loop.call_soon, machine.loop.call_soon, there, back)
        origin.ends.append(near)
        self.near = near
        if self.late:
            fault = self.late.pop(0)
            near.late = fault.seconds
            if fault.how == "cut":
                world.clock.after(random.uniform(0.05, 1.0), near.lose, "connection reset by peer")
        world.clock.after(random.uniform(0.0, 0.2), machine.dialled, far)
        return near

    def target(self, slots: int) -> Any:
        return host.Target(self.host, self.host, self.host, self.dial, lambda spawn: None, slots)


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, world: World) -> None:
        self.scenario = scenario
        self.world = world
        self.scripts: dict[str, Any] = {job.name: job for job in scenario.jobs}
        self.machines: dict[str, Machine] = {}
        for number, name in enumerate((ORIGIN, *scenario.hosts), 1):
            hostile = scenario.hostile if scenario.hosts and name == scenario.hosts[-1] else ""
            make = (lambda *a, h=hostile: Hostile(*a, h)) if hostile else Machine
            self.machines[name] = make(world, name, number, self.scripts)
        self.routes = {name: Route(self, name) for name in scenario.hosts}
        self.origin = self.machines[ORIGIN]
        self.clients: dict[str, Client] = {}
        self.origin.place = self._place
        self.origin.node = None
        self.origin.start_node()
        world.watchers.append(self._watch)
        for machine in self.machines.values():
            machine.spawn = self._ask
        for job in scenario.jobs:
            if not job.parent:
                self.origin.clock.after(job.at, self._begin, job)
        if scenario.idle:
            self.origin.clock.after(1.0, self._close_idle)
        for fault in scenario.faults:
            world.clock.after(fault.at, self._befall, fault)
        self._check_at = 0

    def _place(self, spawn: Spawn, loads: Any) -> Any:
        return self.routes[spawn.where].target(self.scenario.slots)

    def _close_idle(self) -> None:
        """Close idle links, as the origin's node does now and then."""
        origin = self.origin
        if origin.node and not origin.loop.stopped:
            origin.loop.do(lambda: origin.node._hosts.close_idle(self.scenario.idle, origin.loop.time()))
        origin.clock.after(1.0, self._close_idle)

    def _ask(self, name: str, process: Process) -> Client:
        """A job asks for another, through the node that it runs on and its origin."""
        return self._begin(self.scenario.job(name), process)

    def _begin(self, job: Job, asker: Process | None = None) -> Client:
        random = self.world.random("job", job.name)
        spawn = Spawn(
            [job.name],
            id=f"{random.getrandbits(128):032x}",
            where=job.host,
            cwd="/",
            lease=job.lease,
            capability=f"{random.getrandbits(128):032x}",
            context={"token": asker.memo["token"]} if asker else {},
        )
        client = self.clients[job.name] = Client(
            asker.machine if asker else self.origin,
            job.name,
            spawn,
            job.rate,
            job.stdin,
            checks=not self._is_hostile(job),
        )
        return client

    # -- faults -------------------------------------------------------------------------------------

    def _befall(self, fault: Fault) -> None:
        self.world.say(f"FAULT {fault}")
        getattr(self, "_" + fault.kind)(fault)

    def _ends(self, fault: Fault) -> tuple[End, End] | None:
        near = self.routes[fault.where].near
        return (near, near.peer) if near else None

    def _cut(self, fault: Fault) -> None:
        if ends := self._ends(fault):
            if fault.how == "drop":
                for end in ends:
                    end.lose("connection reset by peer")
            else:
                ends[0].cut("connection reset by peer")

    def _cut_bytes(self, fault: Fault) -> None:
        if ends := self._ends(fault):
            ends[fault.how == "back"].limit = fault.number

    def _hole(self, fault: Fault) -> None:
        if ends := self._ends(fault):
            for end, way in zip(ends, ("there", "back"), strict=True):
                end.hole = end.hole or fault.how in (way, "both")

    def _down(self, fault: Fault) -> None:
        route = self.routes[fault.where]
        route.down_until, route.down_how = self.world.now + fault.seconds, fault.how
        if fault.how == "hang":
            self._hole(Fault(0, "hole", fault.where, how="both"))
        else:
            self._cut(fault)

    def _late(self, fault: Fault) -> None:
        self.routes[fault.where].late.append(fault)
        self._cut(fault)

    def _stop_node(self, fault: Fault) -> None:
        self.machines[fault.where].stop_node(fault.seconds)

    def _suspend(self, fault: Fault) -> None:
        self.machines[fault.where].suspend(fault.seconds)

    def _kill_node(self, fault: Fault) -> None:
        self.machines[fault.where].kill_node()

    def _crash(self, fault: Fault) -> None:
        route = self.routes[fault.where]
        route.down_until, route.down_how = self.world.now + fault.seconds, "refused"
        self.machines[fault.where].crash()

    def _kill_client(self, fault: Fault) -> None:
        if client := self.clients.get(fault.where):
            client.kill()
        elif self.origin.clock.asleep or self.origin.clock.lag:  # it has not begun yet
            self.world.clock.after(1.0, self._kill_client, fault)

    def _stop_client(self, fault: Fault) -> None:
        if client := self.clients.get(fault.where):
            client.stop(fault.seconds)

    def _signal(self, fault: Fault) -> None:
        if client := self.clients.get(fault.where):
            client.signal(getattr(signal, f"SIG{fault.how}"))

    # -- the run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Raises Violation."""
        scenario, world = self.scenario, self.world
        begin = world.now
        bounds = {job.name: begin + self._bound(job) for job in scenario.jobs if not job.parent}
        for name in sorted(bounds, key=bounds.__getitem__):
            if not world.run(
                bounds[name], lambda name=name: name in self.clients and self.clients[name].over
            ):
                raise Violation("ends", f"{name} has not ended at {bounds[name] - begin:.1f}")
        for name in self.clients:
            self._judge(scenario.job(name))
        last = max([begin + fault.end for fault in scenario.faults], default=begin)
        lease = max((job.lease for job in scenario.jobs), default=0.0)
        silent = any(fault.kind == "kill_node" and fault.where == ORIGIN for fault in scenario.faults)
        until = max(world.now, last) + NOTICE + (max(lease, HANG) if silent else HANG) + 2 * PAUSE + FORKED
        if not world.run(until, lambda: not self._alive()):
            raise Violation("orphans", f"alive and nobody hears of it: {', '.join(self._alive())}")
        for name in self.clients:
            self._judge_process(scenario.job(name))
        if not world.run(max(world.now, last) + lease + NOTICE + QUIET + 15, lambda: not self._held()):
            raise Violation("held", "; ".join(self._held()))

    def _on_path(self, job: Job) -> list[Fault]:
        places = {ORIGIN}
        jobs = [job] if not job.parent else [job, self._asker(job)]
        jobs += [other for other in self.scenario.jobs if other.parent == job.name]
        for other in jobs:
            places |= {other.name, *([other.host] if other.host else [])}
        return [fault for fault in self.scenario.faults if fault.where in places]

    def _bound(self, job: Job) -> float:
        """Seconds within which its client has ended."""
        path = self._on_path(job)
        others = self._rivals(job)
        together = others if self.scenario.slots else [job]
        names = {other.name for other in together}
        asked = [o for o in self.scenario.jobs if o.parent in names and o.name not in names]
        together = [*together, *asked]
        natural = sum(other.seconds for other in together)
        if self.scenario.slots:
            path = [fault for other in others for fault in self._on_path(other)]
        if not path and not self._is_hostile(job):
            return max(other.at for other in together) + natural
        lease = max(other.lease for other in together)
        last = max([job.at, *(min(fault.end, _given_up(fault, lease)) for fault in path)])
        # A timer takes longer on a machine that is away meanwhile.
        last += sum(fault.seconds for fault in path if fault.kind in ("stop_node", "suspend"))
        if self.scenario.hostile:
            last += HOSTILITY
        return last + lease + NOTICE + natural

    def _rivals(self, job: Job) -> list[Job]:
        """Return the jobs that may hold a slot for which `job`, or a job asked for from its host, waits."""
        hosts = {job.host}
        hosts |= {
            other.host for other in self.scenario.jobs if other.parent and self._asker(other).host in hosts
        }
        return [other for other in self.scenario.jobs if other.host in hosts]

    def _asker(self, job: Job) -> Job:
        return self.scenario.job(job.parent)

    def _is_hostile(self, job: Job) -> bool:
        return bool(self.scenario.hostile) and job.host == self.scenario.hosts[-1]

    def _launched(self, job: Job) -> list[Any]:
        return [p for machine in self.machines.values() for name, p in machine.launches if name == job.name]

    def _judge(self, job: Job) -> None:
        """Check that the client's report is true."""
        client = self.clients[job.name]
        status = client.status
        processes = self._launched(job)
        if len(processes) > 1:
            raise Violation("twice", f"{job.name} was started {len(processes)} times")
        if client.dead or status is None or self._is_hostile(job):  # a child may still run
            return
        signalled = any(f.kind == "signal" for f in self._on_path(job))
        if status.state in ("exited", "signaled") and not signalled:
            if not processes:
                raise Violation("truth", f"{job.name} never ran and is said to have {status}")
            (process,) = processes
            if process.alive or process.wait_status != _wait_status(status):
                raise Violation("truth", f"{job.name} ended with {process.wait_status:#x}, said is {status}")
            if process.ended_by_node:
                raise Violation("truth", f"{job.name} was ended by its node, said is {status}")
            for stream in (1, 2):
                if not process.at_exit[stream] <= client.delivered[stream] <= process.pipes[stream].count:
                    raise Violation(
                        "whole",
                        f"{job.name} wrote {process.at_exit[stream]} bytes to {stream}, "
                        f"{client.delivered[stream]} were delivered with {status}",
                    )
            if process.got != typed(len(process.got)) or len(process.got) > job.stdin:
                raise Violation("bytes", f"{job.name}: its stdin differs")
        elif status.state in ("unreachable", "denied"):
            if job.unsure:
                self._judge_process(job)
            self._judge_refused(job, status)
        elif status.state == "lost" and not self._lost_is_excused(job):
            raise Violation("lost", f"{job.name} is lost without a cause: {status}")

    def _judge_refused(self, job: Job, status: Any) -> None:
        excuses = (
            job.refused
            or self.scenario.limits
            or self._on_path(job)
            or any(self._on_path(other) for other in self.scenario.jobs if other.host == job.host)
        )
        if not excuses:
            raise Violation("refused", f"{job.name} was not started, without a cause: {status}")

    def _lost_is_excused(self, job: Job) -> bool:
        path = self._on_path(job)
        if job.unsure or any(fault.kills for fault in path):
            return True
        if job.parent and not all(p.alive and not p.ended_by_node for p in self._launched(self._asker(job))):
            return True  # it ends with the job that asked for it, or has its TERM, whatever that makes of it
        # A node that has heard of no job keeps a link that is down no longer than this.
        kept = job.lease if self._launched(job) else min(job.lease, KEPT)
        return sum(fault.outage for fault in path) >= kept

    def _judge_process(self, job: Job) -> None:
        """A retry never runs a job that may have run. A job reported as never started has no process."""
        client, processes = self.clients[job.name], self._launched(job)
        if len(processes) > 1:
            raise Violation("twice", f"{job.name} was started {len(processes)} times")
        refused = client.status and client.status.state in ("unreachable", "denied")
        if refused and processes and not self._is_hostile(job):
            raise Violation(
                "retry", f"{job.name} ran and is said never to have been started: {client.status}"
            )

    def _alive(self) -> list[str]:
        return [
            f"{process.name} on {machine.name}"
            for machine in self.machines.values()
            for process in machine.processes.values()
            if process.alive
        ]

    def _held(self) -> list[str]:
        """Return the things that nodes still hold although everything has ended."""
        found = []
        for machine in self.machines.values():
            node = machine.node
            if node is None or isinstance(machine, Hostile):
                continue
            if node._jobs:
                found.append(f"{machine.name}: jobs {[job.spawn.argv[0] for job in node._jobs.values()]}")
            if node._hosts.busy:
                found.append(f"{machine.name}: slots")
            for link in node._links:
                if link.down:
                    continue
                if link.handlers or link.session.channels:
                    found.append(f"{machine.name}: link {link.name} with {len(link.handlers)} handlers")
                if link.session.pending:
                    found.append(f"{machine.name}: link {link.name} with {link.session.pending} bytes")
        return found

    def _watch(self) -> None:
        """Check after every step that the bytes which one link makes a node hold are bounded."""
        self._check_at += 1
        if self._check_at % 4:
            return
        for machine in self.machines.values():
            if machine.node is None:
                continue
            for link in machine.node._links:
                own = link.session
                jobs = sum(not channel.request for channel in own.channels.values())
                bound = session.MOST_ASKED + session.GROWTH_BUDGET + 3 * jobs * flow.INITIAL_WINDOW + FRAME
                if own.pending > bound:
                    self.world.violated("memory", f"{machine.name}: {own.pending} bytes wait for {link.name}")
                if len(own._outbox.control) > session.MAX_CONTROL + 200:
                    self.world.violated(
                        "memory", f"{machine.name}: {len(own._outbox.control)} words for {link.name}"
                    )
                if link.line and link.line.kept > resume.KEEP + 2 * 65536:
                    self.world.violated(
                        "memory", f"{machine.name}: {link.line.kept} bytes kept for {link.name}"
                    )

    def close(self) -> None:
        for machine in self.machines.values():
            for process in machine.processes.values():
                process.end(0)
            machine.close()
        self.world.close()


def typed(size: int) -> bytes:
    """Return the bytes that a client reads from its stdin."""
    return b"".join(pattern(at, min(PERIOD, size - at)) for at in range(0, size, PERIOD))


def _given_up(fault: Fault, lease: float) -> float:
    """Return the time at which the origin no longer waits for the end of a fault that keeps a host away."""
    return fault.at + lease + HANG if fault.kind in ("down", "crash") else fault.end


def _wait_status(status: Any) -> int:
    if status.state == "signaled":
        return int(getattr(signal, f"SIG{status.signal}"))
    return int(status.code) << 8


class Defects(logging.Handler):
    """A log handler: each defect that the product logs is a violation."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG)
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and record.exc_info[1]:
            text += f": {record.exc_info[1]!r}"
        self.world.say(f"{record.name}: {text}")
        if record.levelno >= logging.ERROR:
            self.world.violated("defect", text)


@contextlib.contextmanager
def patched(scenario: Scenario, world: World) -> Iterator[None]:
    """Constants scaled down, and chance and identity from the seed, for as long as it takes."""
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    modules = [module for key, module in sys.modules.items() if key.startswith("transport.")]
    for name, value in {**SCALE, **scenario.limits}.items():
        for module in modules:
            if name in vars(module):
                put(module, name, value)
    random = world.random("product")
    put(os, "urandom", random.randbytes)
    put(host, "random", random)
    build = this_build.build_hash()
    for module, name, value in (
        (this_build, "build_hash", build),
        (address, "boot_id", "b" * 36),
        (node_socket, "socket_path", "/run/node.sock"),
    ):
        put(module, name, lambda value=value: value)
    handler, logger = Defects(world), logging.getLogger("quine")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO if world.trace is not None else logging.ERROR)
    logger.propagate = False
    collecting = gc.isenabled()
    gc.disable()  # collections, and their moments, are no part of the seed
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def simulate(
    scenario: Scenario, trace: list[str] | None = None, mutation: Callable[[], Any] | None = None
) -> Violation | None:
    """Run a scenario; return its violation, or None. `trace` gets the events."""
    world = World(scenario.seed)
    if trace is not None:
        world.trace = trace
    with patched(scenario, world), mutation() if mutation else contextlib.nullcontext():
        sim = Simulation(scenario, world)
        try:
            sim.run()
            return None
        except Violation as violation:
            world.say(f"VIOLATION {violation}")
            return violation
        finally:
            sim.close()
