"""The files of a batch in the simulator: on the hosts names with a text, at the origin real files in a directory.

Scripted parts
    `SimulatedStaging` is the Staging of the product, but its jobs are scripts: an item carries the texts of its files
    in its argv, and the job that sends returns leaves them with the simulation for `SimulatedTaking`. The removal of
    files is a script, too. The product's code decides when these jobs run, and what their ends mean.

The text of a result says which process of which item wrote it, whether it is whole, and the text of its input:

    i3 200017 whole of input of i3
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from quine.fanout.tasks import Work
from quine.staging import spec
from quine.staging.caller_side import Staging
from tests.sim.batch.course import ALIKE, AMONG, APART, IN_PLACE
from tests.sim.world import Violation
from transport.spawn import LEASE, Spawn

if TYPE_CHECKING:
    from quine.fanout.input.items import Item
    from tests.sim.batch.simulation import BatchSimulation
    from tests.sim.machine import Machine
    from tests.sim.process import Process
    from tests.sim.scenario import Job
    from transport.status import Status

FILES = {  # --files, the input of an item there, and --returns
    APART: ("in/{}", "in/{}", "out/{}"),
    IN_PLACE: ("in/{}", "in/{}", "in/{}"),
    AMONG: ("in", "in/{}", "in/{}.out"),
    ALIKE: ("in/{}:in", "in", "out/{}"),
}
OLD = "old"  # result of a run before
SENT, REMOVED = 0.05, 0.02  # seconds that the jobs take which send returns, and which remove files


def with_results(item: Job) -> Job:
    """Return a job that writes a part of its result when it begins, and the whole before it exits."""
    steps = list(item.steps)
    end = [steps.pop()] if steps and steps[-1][0] == "exit" else []
    return replace(item, steps=(("result", "part"), *steps, ("result", "whole"), *end))


class Texts:
    """The files of one simulation. `here` is the caller's directory."""

    def __init__(self, sim: BatchSimulation, here: str) -> None:
        self.sim = sim
        self.here = Path(here)
        self.there: dict[str, dict[str, str]] = {}  # by the folder
        self.places: dict[str, str] = {}  # folders of the jobs that send them
        self.full_until = 0.0  # nothing can be written here
        self.sent: dict[str, dict[str, str]] = {}  # by the id of the job that sends them
        self.files, self.there_as, self.returns = FILES[sim.course.files]
        self.around: dict[str, Any] = {}  # by item, for its latest job
        for item in sim.course.items:
            for name, text in (("in/{}", self.input(item.name)), (self.returns, "")):
                path = self._path(name, item.name)
                path.parent.mkdir(exist_ok=True)
                if text or sim.course.files == AMONG:
                    path.write_text(text or OLD)
        for machine in sim.machines.values():
            machine.texts = self

    @staticmethod
    def input(item: str) -> str:
        return f"input of {item}"

    def _path(self, pattern: str, item: str) -> Path:
        return self.here / pattern.format(item)

    def result(self, item: str) -> str:
        """The result of an item that is here; "" if there is none."""
        path = self._path(self.returns, item)
        text = path.read_text() if path.exists() else ""
        return "" if text in (self.input(item), OLD) else text

    # -- on a host ---------------------------------------------------------------------------------

    def staged(self, machine: Machine, cwd: str, words: list[str]) -> None:
        """A job of an item begins, with these files."""
        for word in words:
            item, found = json.loads(word)
            there = self.there.setdefault(f"{machine.name}:{cwd}", {})
            if around := self.around.get(item):
                around.begin(False)
                begun, told = map(set, around.of_others())
                found = {
                    name: text
                    for name, text in found.items()
                    if name not in begun and not (name in told and name in there)
                }
                around.begin(True)
            there.update(found)

    def _folder(self, process: Process) -> dict[str, str]:
        return self.there.setdefault(f"{process.machine.name}:{process.cwd}", {})

    def write(self, process: Process, how: str) -> None:
        """A process writes its result."""
        there = self._folder(process)
        text = there.get(self.there_as.format(process.name), "nothing")
        # in place the second result would be made of the first
        process.read = process.read if process.read and self.sim.course.files != ALIKE else text
        there[self.returns.format(process.name)] = f"{process.name} {process.pid} {how} of {process.read}"

    def script(self, argv: list[str]) -> Any:
        """The script of a job of staging; None if it is none."""
        if argv[:2] != ["node", "--stage"]:
            return None
        phase, *words = argv[2:]
        if phase == "unbegun":  # whether an item ended before it had its files: here it has them at once
            return SimpleNamespace(steps=(("exit", 1),), on_term=("die",), refused=False, unsure=False)
        act, seconds = {"out": (self._send, SENT), "clean": (self._remove, REMOVED)}[phase]
        begin = ("call", lambda process: self.places.update({words[0]: process.cwd}))
        steps = (begin, ("sleep", seconds), ("call", lambda process: act(process, words)))
        return SimpleNamespace(steps=steps, on_term=("die",), refused=False, unsure=False)

    def _send(self, process: Process, words: list[str]) -> None:
        id, *names = words
        there = self._folder(process)
        self.sent[id] = {name: there[name] for name in names if name in there}

    def _remove(self, process: Process, words: list[str]) -> None:
        count, _, *names = words
        there = self._folder(process)
        for name in names[: int(count)]:
            text = there.pop(name, "")
            self._check_removed(process.machine, name, text)

    def _check_removed(self, machine: Machine, name: str, text: str) -> None:
        item, pid, how, *_ = [*text.split(), "", "", ""]
        if how != "whole" or name != self.returns.format(item):
            return
        writer = machine.processes.get(int(pid))  # None: it was brought there
        own = writer and not (writer.alive or writer.signals or writer.ended_by_node)
        if own and self.result(item) != text and not self._is_superseded(item, writer):
            raise_in(self.sim, "removed", f"{name} of {item} is removed on {machine.name} and is not here")

    def _is_superseded(self, item: str, writer: Process) -> bool:
        """Whether the result of a later try is here, or one has begun on the files that this one was to replace."""
        launches = [each for machine in self.sim.machines.values() for each in machine.launches]
        later = [run for name, run in launches if name == item and run.started > writer.started]
        came = [f"{item} {run.pid}" for run in later]
        return (
            bool(later)
            if self.sim.course.files in (IN_PLACE, AMONG)
            else self.result(item).startswith((*came,))
        )

    # -- here --------------------------------------------------------------------------------------

    def take(self, stage: SimulatedStaging, found: dict[str, str]) -> str:
        """The returns of an item appear here. Return an error, or ""."""
        item, aside = stage._item, self.here / "aside"
        aside.mkdir(exist_ok=True)
        lies = [(name, aside / name.replace("/", "-")) for name in found]
        for name, path in lies:
            path.write_text(found[name])
        if why := stage.on_put and stage.on_put(
            (os.fsencode(name), os.fsencode(path)) for name, path in lies
        ):
            return why
        for name, text in found.items():
            writer = self._writer(text)
            told = writer and (writer.signals or writer.ended_by_node) and writer.wait_status
            if told and " part of " in text:
                raise_in(self.sim, "part", f"{name} of {item} is from a job that was told to end")
            (self.here / name).write_text(text)
        return ""

    def _writer(self, text: str) -> Process | None:
        pid = int([*text.split(), "0", "0"][1]) if " of " in text and not text.startswith("input") else 0
        machines = self.sim.machines.values()
        return next((m.processes[pid] for m in machines if pid in m.processes), None)


def raise_in(sim: BatchSimulation, rule: str, what: str) -> None:
    """Report a violation, from within a process or a client of the simulation."""
    sim.world.violated(rule, what)


class SimulatedStaging(Staging):
    """The staging of one try. `item` is its name."""

    def __init__(self, texts: Texts, item: str) -> None:
        super().__init__([texts.files.format(item)], [texts.returns.format(item)], str(texts.here))
        self._texts, self._item = texts, item
        self._sender = ""

    def dressed(self, spawn: Spawn, services: Any) -> Spawn:
        job = Spawn(**spawn.to_json())
        found = {}
        for path, name in self.sources:
            top = Path(os.fsdecode(path))
            for each in sorted(top.iterdir()) if top.is_dir() else [top]:
                found[os.fsdecode(name) + str(each)[len(str(top)) :]] = each.read_text()
        if self.around:
            self.around.where = lambda: None  # the host is not known here
            self._texts.around[self._item] = self.around
        job.argv = [self._item, json.dumps([self._item, found])]
        return job

    def begin(self) -> None: ...

    def sender(self, job: Spawn, status: Status) -> Spawn:
        sender = super().sender(job, status)
        self._sender = sender.id
        sender.argv = ["node", "--stage", "out", sender.id, self._texts.returns.format(self._item)]
        return sender

    def taking(self, claim: Any = None) -> Any:
        return SimulatedTaking(self)


class SimulatedTaking:
    """The receiver of returns: quine.staging.returns_receiver.Taking."""

    services: Any = None
    place = signal = stopped = ""
    beaten = is_too_much = late = _settled = False
    patience = LEASE

    def __init__(self, stage: SimulatedStaging) -> None:
        self._stage = stage
        self.failure = "nothing came"
        self.missing: list[str] = []
        self.came: list[str] = []

    def begin(self) -> None: ...

    def heard(self) -> object:
        return None

    def end(self, sent: Status) -> None:
        stage = self._stage
        self.place = stage._texts.places.get(stage._sender, self.place)
        if (sent.state, sent.code) != ("exited", 0):
            self.failure, self._settled = sent.detail or sent.state, self.late
            return
        if stage._texts.full_until > stage._texts.sim.world.now:
            self.failure, self._settled = "no space left on device", True
            return
        found = stage._texts.sent.pop(stage._sender)
        self.missing = [] if found else [stage._texts.returns.format(stage._item)]
        self.failure = stage._texts.take(stage, found)

    def close(self) -> None: ...

    @property
    def is_cut(self) -> bool:
        return bool(self.failure) and not self._settled

    @property
    def fault(self) -> str:
        return f"the returns did not come: {self.failure}" if self.failure else spec.not_there(self.missing)

    def note(self, host: str) -> str:
        return ""


class SimulatedWork(Work):
    """The work of a command line whose files are those of a simulation."""

    texts: Texts

    def stage(self, item: Item, begun: bool = False) -> Staging | None:
        found = SimulatedStaging(self.texts, item.args[0])
        found.alone = [] if self.texts.sim.course.files == AMONG else found.sources
        found.varying = found.patterns
        return found


def check(texts: Texts, rows: dict[str, list[str]], state: int, runs: dict[str, list[Process]]) -> None:
    """Check the results that are here against the log, and against the runs of its items. Raises Violation."""
    for item, row in rows.items():
        found = texts.result(item).split()
        # With --idempotent a run that was lost may end after the one that counts.
        last = runs[item] if texts.sim.course.idempotent else runs[item][-1:]
        whole = [[item, str(run.pid), "whole"] for run in last]
        if row[state] in ("done", "failed") and found[:3] not in whole:
            raise Violation("returns", f"{item} is {row[state]}, and its result here is {found}")
        # With --idempotent an item that is lost runs again, also on a result that has replaced its input.
        if found and " ".join(found[4:]) != texts.input(item) and not texts.sim.course.idempotent:
            raise Violation("input", f"{item}: its result is one of {' '.join(found[4:])!r}")
        if row[state] in ("killed", "lost", "timeout") and found[2:3] == ["part"]:
            raise Violation("part", f"{item} is {row[state]}, and a part of its result is here")
