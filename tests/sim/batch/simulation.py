"""Runs the course of one batch: client after client, until one has come to its end; then the rules are checked."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from deploy.host import Host
from deploy.inventory import Inventory
from quine.base import backoff
from quine.fanout import joblog, journal, outcome
from quine.fanout.files import replaced
from quine.fanout.input.items import Items
from quine.fanout.joblog import UNRETURNED, Joblog
from quine.fanout.main import template
from quine.fanout.options import Options
from quine.fanout.output import sinks
from quine.fanout.output.sinks import Output, Sink
from quine.fanout.progress import Progress
from quine.fanout.run import Run
from quine.fanout.starter import Starter
from quine.fanout.tasks import Task, Work
from quine.fanout.view import View
from quine.jobs import remote
from tests.sim.batch.batch import Killed, SimulatedBatch
from tests.sim.batch.course import Course, draw, lesser
from tests.sim.batch.files import SimulatedWork, Texts, with_results
from tests.sim.batch.judge import STATE, check, check_slots
from tests.sim.batch.streams import SimulatedReport, SimulatedStreams
from tests.sim.folders import scripted
from tests.sim.scenario import HANG, NOTICE, ORIGIN, Fault
from tests.sim.shrink import Kind
from tests.sim.simulation import PAUSE, QUIET, Simulation, patched
from tests.sim.world import Violation, World
from transport import address
from transport.node.hosts import Loads
from transport.node.kept import BEYOND
from transport.node.served import KEPT as KEPT_LINK
from transport.spawn import Spawn

CLIENTS = 12  # one after the other
AWAY = 20.0  # seconds
SETTLED = 120.0  # seconds for an orphan to be looked for, and for starts to be tried again
KEPT = {outcome.DONE, outcome.LOST, outcome.FAILED, outcome.KILLED, outcome.TIMEOUT}  # by --resume
MEMORY = 3500  # bytes of an output that are kept in memory: less than a window, which is not acknowledged till then


class BatchSimulation(Simulation):
    """`log` is the path of the log of the batch; `shown` the outputs that were passed on, by item."""

    def __init__(self, course: Course, world: World, log: str) -> None:
        self.course, self.log = course, log
        super().__init__(course, world)
        for machine in self.machines.values():
            machine.tell_processors(course.slots)
        self.scripts.update(
            (item.name, with_results(item) if course.files else item) for item in course.items
        )
        self.texts = Texts(self, os.path.dirname(log)) if course.files else None
        self.shown: dict[str, list[int]] = {}
        self.batch: SimulatedBatch | None = None
        self.run_under_way: Run | None = None
        self.deaths = self.told = 0  # of clients and of nodes at the origin; signals to clients
        self._begun = 0  # clients so far
        self.halted = False  # a client has ended items by --halt
        self.open = False  # the last client has left items open, as a host did not answer
        self._fatal: list[Fault] = []  # each is due once a client has written so many lines
        self._away: dict[str, float] = {}  # hosts that the inventory does not have, and until when
        world.watchers.append(lambda: check_slots(self))

    # -- placement ---------------------------------------------------------------------------------

    @property
    def slots(self) -> int:
        """As the inventory has them."""
        return 0 if self.course.bounded else self.course.slots

    def inventory(self) -> Inventory:
        known = [name for name in self.course.hosts if self._away.get(name, 0.0) <= self.world.now]
        return Inventory({name: Host(name, slots=self.slots) for name in known})

    def _place(self, spawn: Spawn, loads: Loads) -> Any:
        avoid = spawn.context.get("avoid") or []
        inventory = self.inventory()
        if spawn.where in self.course.hosts:
            name = inventory.host(spawn.where).name
        else:
            name = inventory.select(
                spawn.where, lambda hosts: loads([host.name for host in hosts]), avoid, spawn.own
            ).name
        target = self.routes[name].target(self.slots)

        def settings(spawn: Spawn) -> None:
            spawn.lease, spawn.workdir = self.course.lease, "/work"

        target.settings = settings
        return target

    # -- faults ------------------------------------------------------------------------------------

    def _leave(self, fault: Fault) -> None:
        """The inventory has no such host for a while."""
        self._away[fault.where] = self.world.now + fault.seconds

    def _full(self, fault: Fault) -> None:
        """Returns cannot be written here for a while."""
        if self.texts:
            self.texts.full_until = self.world.now + fault.seconds

    def _kill_node(self, fault: Fault) -> None:
        self.deaths += fault.where == ORIGIN
        super()._kill_node(fault)

    def writes(self, write: Callable[[], None]) -> None:
        """A client writes a line of its log or of its journal."""
        fault = None
        if self.run_under_way and self._fatal:
            fault = self._fatal[0] = replace(self._fatal[0], number=self._fatal[0].number - 1)
        if not (fault and not fault.number and fault.how == "instead"):
            write()
        if fault and not fault.number:
            self._kill_client(self._fatal.pop(0))
            raise Killed

    def _kill_client(self, fault: Fault) -> None:
        if fault.number:
            self._fatal.append(fault)
            return
        if self.batch is not None:
            self.deaths += 1
            self.world.say("the client is killed")
            self.batch.kill()
        if fault.how == "node":
            self._kill_node(Fault(0.0, "kill_node", ORIGIN))

    def _stop_client(self, fault: Fault) -> None:
        if self.batch is not None:
            self.batch.stop(fault.seconds)

    def _signal(self, fault: Fault) -> None:
        if self.batch is not None and (run := self.run_under_way):
            self.told += 1
            self.batch.soon(lambda: run.signalled(getattr(signal, f"SIG{fault.how}")))

    # -- the run -----------------------------------------------------------------------------------

    @property
    def natural(self) -> float:
        """Seconds that the items take one after the other."""
        return sum(item.seconds for item in self.course.items) * self.course.retries

    def run(self) -> None:
        """Raises Violation."""
        world, course = self.world, self.course
        world.run(world.now + 0.9, lambda: False)  # all nodes run, and know of all jobs from then on
        last = world.now + max([fault.end + fault.seconds for fault in course.faults], default=0.0)
        pauses = CLIENTS * (course.again + AWAY + SETTLED)
        until = last + self.natural + 2 * course.lease + pauses + NOTICE + HANG
        for _ in range(CLIENTS):
            if self._client(until):
                break
            # A user who is told that results, or ends, are on a host that is away tries again when that is back.
            world.run(world.now + course.again + AWAY * (self.open or self._awaits_returns()), lambda: False)
        else:
            raise Violation("drains", f"none of {CLIENTS} clients came to its end")
        check(self)
        if os.path.exists(f"{self.log}.started"):
            raise Violation("journal", "it is still there, and all items have their lines and their returns")
        until = max(world.now, last) + course.lease + NOTICE + HANG + 2 * PAUSE
        if not world.run(until, lambda: not self._alive()):
            raise Violation("orphans", f"alive and nobody hears of it: {', '.join(self._alive())}")
        check(self)
        # The word that a record was taken may be lost with its link: then the host keeps that, and after it the record.
        until = max(world.now, last) + 2 * course.lease + KEPT_LINK + BEYOND + NOTICE + QUIET + 15
        if not world.run(until, lambda: not self._held()):
            raise Violation("held", "; ".join(self._held()))

    def _held(self) -> list[str]:
        attics = [(m.name, list(m.node._attic.jobs)) for m in self.machines.values() if m.node]
        return [*super()._held(), *(f"{name}: kept jobs {jobs}" for name, jobs in attics if jobs)]

    def _options(self) -> Options:
        """The line of one client."""
        course = self.course
        words = {
            "joblog": self.log,
            "resume": True,
            "on": "any",
            "quiet": True,
            "retries": str(course.retries),
        }
        words |= {"jobs": str(course.most), "stdin": "item" if course.reads else ""}
        words["halt"] = "" if self.halted else course.halt
        if self.texts:
            words |= {
                "files": (self.texts.files,),
                "returns": (self.texts.returns,),
                "cleanup": course.cleanup,
            }
        return Options(**words, idempotent=course.idempotent)

    def _client(self, until: float) -> bool:
        """One process of `quine xargs --resume`. Return whether it came to its end, and all items with it."""
        course, world = self.course, self.world
        options = self._options()
        items = Items(options, ["{}", ":::", *(item.name for item in course.items)])
        kind = SimulatedWork if self.texts else Work
        work = kind(options, template(options, items.command), items.command)
        work.texts = self.texts
        self.batch = batch = SimulatedBatch(self.origin, until, course.bounded)
        report = SimulatedReport(options, work, world, self.shown)
        outputs: list[Output] = []
        opened = report.open

        def opening(task: Task, to: Sink, by_lines: bool = False) -> Output:
            outputs.append(opened(task, to, by_lines))
            return outputs[-1]

        report.open = opening  # type: ignore[method-assign]
        streams: Any = SimulatedStreams(batch, course.rate)
        sink = Sink(streams, False)
        self._begun += 1
        os.environ["QUINE_ROOT_SESSION"] = f"{self._begun:032x}" if course.moves else ""
        starter = Starter(options, batch, work, sink, report)
        log = Joblog(self.log, KEPT - ({outcome.LOST} if course.idempotent else set()))
        starter.record(log.journal)
        work.contents.replaced = log.replaced
        now = self.origin.clock.time()
        view = View(streams, Progress(outcome.Tally(), now), items, options, batch, now, {})
        view.close()  # its state is published for nobody
        run = self.run_under_way = Run(options, batch, starter, work, items, sink, report, log, view)
        world.say("a client begins")
        try:
            run.run()
        except Killed:
            log._close()
            return False
        except BaseException as error:
            log._close()
            if isinstance(error, Violation):
                raise
            raise Violation("defect", repr(error)) from error
        finally:
            self.batch = self.run_under_way = None
            halts = run.stopped and not run.ended_by
            self.halted = self.halted or halts
            for output in outputs:
                output._spool.leave()  # as the kernel does
        batch.close(goes_on=not run.killed)
        log.close()
        world.say(f"the client ends: {run.text()}")
        if run.fault:
            raise Violation("defect", repr(run.fault))
        self.open = bool(run.tally.open)
        return not (run.ended_by or halts or self.open or self._awaits_returns())

    def _awaits_returns(self) -> bool:
        """Whether results are still on a host, so that the next client asks for them."""
        lines = Path(self.log).read_text().splitlines()[1:]
        return any(line.split("\t")[STATE] == UNRETURNED for line in lines)


@contextlib.contextmanager
def fanned(course: Course, world: World, sim: Callable[[], BatchSimulation]) -> Iterator[None]:
    """Give the code of a batch the clock, the chance, the constants and the hosts of a simulation."""
    undo: list[tuple[Any, str, Any]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        undo.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    clock = SimpleNamespace(
        monotonic=lambda: sim().origin.clock.time(),
        time=lambda: world.now,
        time_ns=lambda: int(world.now * 1e9),
        clock_gettime=lambda _: world.now,
        CLOCK_BOOTTIME=7,
        CLOCK_MONOTONIC=1,
    )
    for name, module in list(sys.modules.items()):
        if name.startswith(("quine.fanout", "quine.jobs.adoption", "quine.jobs.staged")):
            if getattr(module, "time", None) is time:
                put(module, "time", clock)
            for constant, value in {**course.limits, "MEMORY": MEMORY}.items():
                if constant in vars(module):
                    put(module, constant, value)
    for module in list(sys.modules.values()):
        if getattr(module, "boot_clock", None) is address.boot_clock and module is not address:
            put(module, "boot_clock", lambda: world.now)
    written = journal.written

    def writing(fd: int, text: str, path: str, lasting: bool = False) -> None:
        sim().writes(lambda: written(fd, text, path, lasting))

    put(journal, "written", writing)
    put(joblog, "written", writing)
    put(replaced, "written", writing)
    put(backoff, "random", world.random("backoff"))
    put(sinks, "QUEUED", 4)
    put(os, "fsync", lambda fd: None)
    put(os, "getcwd", lambda: os.path.dirname(sim().log))
    put(sys.modules[Starter.__module__], "version_of", lambda path: tuple(sim().inventory().hosts))
    put(remote, "hosts", lambda where, options: list(sim().inventory().hosts))
    try:
        yield
    finally:
        for owner, name, value in reversed(undo):
            setattr(owner, name, value)


def simulate(
    course: Course, trace: list[str] | None = None, mutation: Callable[[], Any] | None = None
) -> Violation | None:
    """Run a course; return its violation, or None. `trace` gets the events."""
    world = World(course.seed)
    world.trace = trace
    made: list[BatchSimulation] = []
    folder = tempfile.mkdtemp(prefix="quine-sim-")
    with (
        patched(course, world),
        fanned(course, world, lambda: made[0]),
        mutation() if mutation else contextlib.nullcontext(),
        mock.patch.dict(os.environ),
        contextlib.ExitStack() as around,
    ):
        sim = BatchSimulation(course, world, os.path.join(folder, "log"))
        made.append(sim)
        around.enter_context(scripted(world, sim.machines))
        try:
            sim.run()
            return None
        except Violation as violation:
            world.say(f"VIOLATION {violation}")
            return violation
        finally:
            sim.close()
            shutil.rmtree(folder)


BATCHES = Kind(draw, simulate, lesser, " --batch")
