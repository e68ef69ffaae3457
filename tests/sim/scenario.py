"""The events of a simulation: jobs and faults, drawn from a seed (`drawing`) or written down by hand.

A scenario is a value. Taking a fault or a job out of it leaves everything else as it was, so that it can be shrunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

ORIGIN = "o"
ENDLESS = 100_000.0  # seconds that only a client's end ends
CHILD = 20.0  # seconds that a job waits for one that it has asked for, more or less
SPARE = 5.0  # seconds that a job takes beyond what its script says
BACK = 3.0  # seconds in which a link that was cut is back
NOTICE = 15.0  # seconds after which an end knows of a break at the latest: SILENCE, and a heartbeat
PAUSE = 8.0  # seconds between two dials at most: LAST_PAUSE, and half of it by chance
HANG = 30.0  # seconds that a dial waits for a greeting: transport.node.host.HELLO_DEADLINE


@dataclass(frozen=True)
class Job:
    """One job of a client at the origin. `at`: seconds from the beginning; `host` "" is the origin itself."""

    name: str
    host: str
    at: float = 0.0
    lease: float = 60.0
    steps: tuple[Any, ...] = ()
    on_term: tuple[Any, ...] = ("die",)
    stdin: int = 0
    rate: float = 0.0  # bytes a second that the reader of its output takes; 0: all at once
    refused: bool = False  # the process cannot be started
    unsure: bool = False  # it is started, and then the launcher cannot take hold of it
    parent: str = (
        ""  # the job that asks for it, by a step ("spawn", name), where it is not a client at the origin
    )

    @property
    def seconds(self) -> float:
        """As long as it may take by itself."""
        return (
            _seconds(self.steps)
            + _seconds(self.on_term[1:])
            + (_bytes(self.steps) / self.rate if self.rate else 0)
            + SPARE
        )


def _seconds(steps: Any) -> float:
    total = 0.0
    for step in steps:
        if step and isinstance(step[0], tuple):
            total += _seconds(step)
        elif step[0] == "sleep":
            total += step[1] if step[1] < ENDLESS else 0
        elif step[0] == "ask":
            total += 1
        elif step[0] == "spawn":
            total += CHILD
    return total


def _bytes(steps: Any) -> int:
    return sum(step[2] for step in steps if step[0] == "write")


@dataclass(frozen=True)
class Fault:
    """`where` is a host, ORIGIN, or the name of a job whose client the fault hits."""

    at: float
    kind: str
    where: str
    seconds: float = 0.0
    how: str = ""
    number: int = 0

    @property
    def end(self) -> float:
        """The time when all is well again, if every break is noticed at once."""
        # A connection that had not greeted when the machine went is not closed by anybody: it hangs, too.
        hangs = self.kind in ("late", "hole", "crash") or (self.kind == "down" and self.how == "hang")
        return self.at + self.seconds + (HANG if hangs else 0.0)

    @property
    def outage(self) -> float:
        """Seconds for which it keeps a link down at most."""
        if self.kind in ("stop_client", "signal", "full"):
            return 0.0
        if self.kind in ("cut", "cut_bytes"):
            return BACK
        if self.kind == "late" and self.how == "cut":
            return 2 * BACK + 1.0  # once more when it comes, for a product that takes it
        if self.kind in ("late", "hole"):
            return NOTICE + HANG + self.seconds + BACK
        if self.kind == "down":
            return self.seconds + (NOTICE + HANG if self.how == "hang" else PAUSE) + BACK
        return self.seconds + NOTICE + BACK

    @property
    def kills(self) -> bool:
        """Whether a running job may be lost, whatever its lease."""
        return self.kind in ("kill_node", "kill_client", "crash")

    def __str__(self) -> str:
        parts = [f"{self.at:.3f} {self.kind} {self.where}"]
        parts += [f"for {self.seconds:.3f} s"] if self.seconds else []
        parts += [self.how] if self.how else []
        parts += [str(self.number)] if self.number else []
        return " ".join(parts)


@dataclass(frozen=True)
class Scenario:
    """`limits`: constants of the product that are smaller here, by name."""

    seed: int
    hosts: tuple[str, ...]
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...] = ()
    slots: int = 0
    hostile: str = ""  # the behaviour of the last host, in place of a node's work
    limits: dict[str, int] = field(default_factory=dict)
    idle: float = 0.0  # seconds without use after which the origin closes a link; 0: never

    def job(self, name: str) -> Job:
        return next(job for job in self.jobs if job.name == name)

    def without(self, fault: Fault | None = None, job: Job | None = None) -> Scenario:
        """Return the scenario less one fault; or less one job, its children, its start, and its faults."""
        if job is None:
            return replace(self, faults=tuple(f for f in self.faults if f is not fault))
        return replace(
            self,
            faults=tuple(f for f in self.faults if f.where != job.name),
            jobs=tuple(
                replace(j, steps=tuple(step for step in j.steps if step != ("spawn", job.name)))
                for j in self.jobs
                if j is not job and j.parent != job.name
            ),
        )

    def describe(self) -> str:
        lines = [f"hosts: {' '.join(self.hosts)}; slots: {self.slots or 'any'}"]
        lines += [f"idle links are closed after {self.idle:g} s"] if self.idle else []
        lines += [f"hostile: {self.hosts[-1]} {self.hostile}"] if self.hostile else []
        lines += [f"limits: {self.limits}"] if self.limits else []
        for job in self.jobs:
            facts = f"at {job.at:.3f}, lease {job.lease:g}, stdin {job.stdin}, rate {job.rate:g}"
            odd = "".join(f", {name}" for name in ("refused", "unsure") if getattr(job, name))
            odd += f", asked for by {job.parent}" if job.parent else ""
            lines.append(
                f"job {job.name} on {job.host or ORIGIN}: {facts}, term {job.on_term}{odd}, {job.steps}"
            )
        lines += [f"fault {fault}" for fault in self.faults]
        return "\n".join(lines)
