"""The rules of a batch: its log is compared with the runs of its items on the hosts."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tests.sim.batch import files
from tests.sim.scenario import ORIGIN
from tests.sim.world import Violation

if TYPE_CHECKING:
    from tests.sim.batch.simulation import BatchSimulation
    from tests.sim.process import Process
    from tests.sim.scenario import Job

REACH = 20.0  # seconds of outage in all, after which a host may not be asked in time: adoption.SETTLES
HOST, CODE, SIGNAL, COMMAND, STATE = 1, 6, 7, 8, 12  # columns of the log
ENDS = ("done", "failed", "killed")  # states of items that have run to an end


def launches(sim: BatchSimulation) -> dict[str, list[Process]]:
    """All runs of each item, in their order."""
    found: dict[str, list[Process]] = {item.name: [] for item in sim.course.items}
    for machine in sim.machines.values():
        for name, process in machine.launches:
            if name in found:
                found[name].append(process)
    for processes in found.values():
        processes.sort(key=lambda process: (process.started, process.pid))
    return found


def check(sim: BatchSimulation) -> None:
    """Check the log against what has run. Raises Violation."""
    rows = [line.split("\t") for line in Path(sim.log).read_text().splitlines()[1:]]
    counts = Counter(row[COMMAND] for row in rows)
    for item in sim.course.items:
        if counts[item.name] != 1:
            raise Violation("line", f"{item.name} has {counts[item.name]} lines in the log")
    ran, by_name = launches(sim), {row[COMMAND]: row for row in rows}
    for item in sim.course.items:
        _check_runs(sim, item, ran[item.name])
        _check_end(sim, item, by_name[item.name], ran[item.name])
    if sim.texts:
        files.check(sim.texts, by_name, STATE, ran)


def _check_runs(sim: BatchSimulation, item: Job, runs: list[Process]) -> None:
    """An item runs again only if its run before has failed and may be tried again, or was ended with the batch."""
    course = sim.course
    if course.idempotent:
        return
    # An item that was ended with the batch is run again by the next client.
    most = course.retries * (1 + sim.told + sim.halted + (sim.deaths if course.retries > 1 else 0))
    if len(runs) > most:
        raise Violation("twice", f"{item.name} ran {len(runs)} times")
    for before, after in pairwise(runs):
        # A client that was told to end twice waits for nothing: a host is ending its jobs when the next one begins.
        left = sim.told > 1 and before.ended_by_node
        if not left and (before.alive or before.ended > after.started):
            raise Violation("twice", f"{item.name} runs twice at one time")
        # With results a job that was told to end has not finished, whatever it says.
        ended = bool(sim.texts) and (sim.told or sim.halted or before.signals)
        if before.wait_status == 0 and not (left or ended):
            raise Violation("twice", f"{item.name} was run again after a success")
        if before.ended_by_node and not left:
            raise Violation("twice", f"{item.name} was run again, although it was lost")


def _check_end(sim: BatchSimulation, item: Job, row: list[str], runs: list[Process]) -> None:
    if sim.course.idempotent and row[STATE] in ENDS:
        # Another try may start late, on another host, after the item has ended. That host ends it.
        runs = [run for run in runs if run.machine.name == row[HOST]]
    state, last = row[STATE], runs[-1] if runs else None
    code, number = int(row[CODE]), int(row[SIGNAL])
    said = f"{item.name} is {state} ({code}, signal {number})"
    if state in ENDS:
        if last is None or item.refused:
            raise Violation("truth", f"{said} and has not run")
        if last.alive or last.wait_status != (number or code << 8):
            raise Violation(
                "done" if state == "done" else "truth", f"{said}, its end was {last.wait_status:#x}"
            )
        if last.ended_by_node and sim.told < 2:
            raise Violation("done", f"{said}, and its node has ended it")
        if sim.shown.get(item.name) != last.at_exit[1:]:
            raise Violation(
                "whole", f"{said}; passed on {sim.shown.get(item.name)} of {last.at_exit[1:]} bytes"
            )
    elif state == "never-started":
        if runs and not (sim.course.retries > 1 or sim.told or item.unsure):
            raise Violation("truth", f"{said}, and it has run")
        if not (item.refused or sim.course.faults):
            raise Violation("truth", f"{said} without a cause")
    elif state == "lost":
        if not item.unsure and not excused(sim) and not _heard_late(sim, runs):
            raise Violation("lost", f"{said} without a cause")
    else:
        raise Violation("truth", said)


def excused(sim: BatchSimulation) -> bool:
    """Whether an item may be lost. Where a disk is full, a client that was killed comes back only when it is not."""
    known = ("kill_client", "signal", *(() if sim.deaths else ("full",)))
    faults = [fault for fault in sim.course.faults if fault.kind not in known]
    if any(fault.kills and fault.where != ORIGIN for fault in faults):
        return True
    away = sum(fault.outage + fault.seconds for fault in faults) + sim.deaths * sim.course.again
    # A client that was told to end twice waits for nothing, and says that it does not know.
    return away >= min(sim.course.lease, REACH) or sim.told > 1


def _heard_late(sim: BatchSimulation, runs: list[Process]) -> bool:
    """Whether hosts may seem to have forgotten a job that never began: their asker was stopped, and read them late.

    An answer says for how long its host knows of all jobs, and is counted from when it was read. Hosts here are young.
    """
    stopped = any(fault.kind == "stop_client" for fault in sim.course.faults)
    return stopped and sim.deaths > 0 and (not runs or sim.course.retries > 1 or sim.told > 0)


def check_slots(sim: BatchSimulation) -> None:
    """See the rule `slots`. A process that is being ended has given its slot back."""
    most = sim.course.slots * (1 + sim.deaths)
    for machine in sim.machines.values():
        if len(machine.launches) == machine.judged or machine.name == ORIGIN:
            continue
        machine.judged = len(machine.launches)
        running = [
            process
            for name, process in machine.launches
            if process.alive and not (process.signals or process.ended_by_node) and name != "node"
        ]
        if len(running) > most:
            sim.world.violated(
                "slots", f"{machine.name} runs {len(running)} items in {sim.course.slots} slots"
            )
