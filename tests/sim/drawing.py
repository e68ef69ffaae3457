"""Draws the scenario of a seed.

The weights matter: events that are rare alone have to be likely together, or a thousand seeds do not meet the
combination. `taken_back` says how many seeds each known bug takes.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from tests.sim.scenario import ENDLESS, ORIGIN, SPARE, Fault, Job, Scenario
from tests.sim.world import weighted

LEASES = ((1.0, 5), (5.0, 2), (30.0, 1), (600.0, 5))


def draw(seed: int) -> Scenario:
    """The scenario of a seed."""
    random = Random(f"scenario {seed}")
    hosts = tuple(f"h{n}" for n in range(1, weighted(random, ((2, 5), (3, 3), (4, 1), (5, 1)))))
    idle = 20.0 if random.random() < 0.1 else 0.0  # longer than a break takes to be noticed
    limits = {"MAX_CHANNELS": 4} if random.random() < 0.05 else {}
    many = 6 if limits else 1 + min(random.randrange(4), random.randrange(4))
    jobs = [_job(random, f"j{n}", hosts, limits) for n in range(many)]
    faults: list[Fault] = []
    for _ in range(weighted(random, ((0, 1), (1, 5), (2, 4), (3, 2), (4, 1)))):
        fault = _fault(random, hosts, jobs)
        if faults and random.random() < 0.5:  # while another one lasts, or is mended
            before = random.choice(faults)
            fault = replace(fault, at=round(before.at + (before.seconds + 3.0) * random.random(), 4))
        faults.append(fault)
    hostile = ""
    if random.random() < 0.05:
        hostile = random.choice(("requests", "taken", "overrun", "flood", "noise", "silent"))
        jobs[0] = replace(jobs[0], host=hosts[-1])
        faults.append(Fault(jobs[0].at + round(random.random(), 3), "stop_client", "j0", 30.0))
    for n, job in enumerate(jobs):
        if random.random() < 0.04:
            job = replace(job, **{random.choice(("refused", "unsure")): True})
        if any(f.kind == "kill_client" and f.where == job.name and f.at > job.at for f in faults):
            job = replace(job, steps=(*job.steps, ("sleep", ENDLESS)))
        jobs[n] = job
    remote = [n for n, job in enumerate(jobs) if job.host]
    if remote and len(hosts) > 1 and not hostile and not limits and random.random() < 0.12:
        n = random.choice(remote)
        child = replace(_job(random, f"{jobs[n].name}c", hosts, limits), parent=jobs[n].name, at=0.0)
        child = replace(child, host=random.choice([host for host in hosts if host != jobs[n].host]))
        jobs[n] = replace(jobs[n], steps=(("spawn", child.name), *jobs[n].steps))
        jobs.append(child)
    slots = 0 if limits else weighted(random, ((0, 8), (1, 1), (2, 1)))
    faults.sort(key=lambda fault: fault.at)
    return Scenario(seed, hosts, tuple(jobs), tuple(faults), slots, hostile, limits, idle)


def _job(random: Random, name: str, hosts: tuple[str, ...], limits: dict[str, int]) -> Job:
    host = random.choice(hosts) if random.random() < 0.93 else ""
    if limits:
        host = hosts[0]
    steps: list[Any] = []
    stdin = random.choice((0, 0, 100, 3000, 20_000))
    if random.random() < 0.35:  # one that tells a little all the time
        pause = round(random.choice((0.3, 2.0, 4.0)) * random.random(), 3)
        steps += [("write", 1, random.choice((10, 1000, 6000))), ("sleep", pause)] * random.randint(4, 14)
    for _ in range(random.randint(1, 3)):
        kind = weighted(random, (("write", 5), ("sleep", 4), ("read", 1), ("ask", 1), ("fork", 0.5)))
        if kind == "write":
            stream = weighted(random, ((1, 4), (2, 1)))
            steps.append(("write", stream, weighted(random, ((10, 2), (3000, 2), (12_000, 3), (40_000, 2)))))
        elif kind == "sleep":
            steps.append(
                ("sleep", round(weighted(random, ((1.0, 3), (8.0, 3), (45.0, 2))) * random.random(), 3))
            )
        elif kind == "read":
            steps.append(("read", random.choice((-1, 50, 3000))))
        elif kind == "ask":
            steps.append(("ask", random.choice((10, 5000, 30_000))))
        else:
            steps.append(("fork", (("sleep", round(5 * random.random(), 3)), ("write", 1, 500))))
    if random.random() < 0.1:
        steps.insert(random.randrange(len(steps) + 1), ("close", random.choice((0, 1))))
    code = random.choice((0, 0, 1, 7))
    if code:
        steps.append(("exit", code))
    on_term = weighted(
        random,
        (
            (("die",), 4),
            (("ignore",), 1),
            (("exit", (("write", 1, 700), ("exit", 0))), 2),
            (("exit", (("sleep", 2.0),)), 1),
        ),
    )
    if on_term[0] == "exit":
        on_term = ("exit", on_term[1])
    return Job(
        name,
        host,
        at=round(weighted(random, ((0.0, 3), (5.0, 1))) * random.random(), 3),
        lease=weighted(random, LEASES),
        steps=tuple(steps),
        on_term=on_term,
        stdin=stdin,
        rate=random.choice((0.0, 1000.0, 2000.0, 5000.0, 20_000.0)),
    )


def _fault(random: Random, hosts: tuple[str, ...], jobs: list[Job]) -> Fault:
    job = random.choice(jobs)
    host = job.host or random.choice(hosts)  # where something runs
    busy = job.seconds - SPARE  # while it runs, or its output is read
    at = job.at + random.choice((0.5, busy / 2, busy, busy + 2.0)) * random.random()
    at = round(at, 4)
    short, long = round(random.uniform(0.1, 5.0), 3), round(random.uniform(5.0, 40.0), 3)
    seconds = random.choice((short, long, long))
    if random.random() < 0.15:  # the origin is away for longer than most leases, and does not know it
        return Fault(
            at, random.choice(("stop_node", "suspend")), ORIGIN, round(random.uniform(16.0, 40.0), 3)
        )
    kind = weighted(
        random,
        (
            ("cut", 4),
            ("cut_bytes", 4),
            ("hole", 3),
            ("down", 3),
            ("late", 5),
            ("stop_node", 6),
            ("suspend", 3),
            ("kill_node", 1.5),
            ("crash", 1),
            ("kill_client", 1.5),
            ("stop_client", 1.5),
            ("signal", 1),
        ),
    )
    where = weighted(random, ((host, 1), (ORIGIN, 3)))
    if kind == "cut":
        return Fault(at, kind, host, how=random.choice(("clean", "drop")))
    if kind == "cut_bytes":
        return Fault(
            at,
            kind,
            host,
            how=random.choice(("there", "back")),
            number=random.choice((20, 400, 9000)) * random.randint(1, 9),
        )
    if kind == "hole":
        return Fault(at, kind, host, how=random.choice(("both", "there", "back")))
    if kind == "down":
        seconds *= random.choice((1.0, 1.0, 4.0))
        return Fault(at, kind, host, seconds, how=random.choice(("interrupted", "refused", "hang")))
    if kind == "late":
        return Fault(at, kind, host, seconds=seconds, how=random.choice(("cut", "hang")))
    if kind == "crash":
        return Fault(at, kind, host, seconds)
    if kind in ("stop_node", "suspend"):
        return Fault(at, kind, where, seconds)
    if kind == "kill_node":
        return Fault(at, kind, where)
    if kind == "stop_client":
        return Fault(at, kind, job.name, seconds)
    if kind == "signal":
        return Fault(at, kind, job.name, how=random.choice(("TERM", "INT")))
    return Fault(at, kind, job.name)
