"""The course of a batch: its items, its options, and what befalls it. A value, so that it can be shrunk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from tests.sim.scenario import ORIGIN, Fault, Job, Scenario
from tests.sim.world import weighted

APART, IN_PLACE = "apart", "in place"
# Drawn for no seed, so that each stays as it is: the files of all, with results of a run before; and one name for all.
AMONG, ALIKE = "among", "alike"
BATCH = "batch"  # where a fault of the client is
LEASES = ((5.0, 1), (30.0, 2), (600.0, 4))


@dataclass(frozen=True)
class Course(Scenario):
    """`slots` are those of each host, `most` is -P (0: as many as the hosts take), `rate` that of the output's reader.

    `full`: the origin's disk takes no returns. A fault at BATCH hits the client: `kill_client` (how "node": its node,
    too; number: once it has written so many lines of its log and its journal, or "instead" of the last of them),
    `stop_client`, `signal`. The next client goes on `again` seconds after one has ended before its items have.
    """

    items: tuple[Job, ...] = ()
    lease: float = 600.0
    most: int = 0
    retries: int = 1
    idempotent: bool = False
    reads: bool = False  # the jobs have their items on stdin
    rate: float = 0.0
    again: float = 1.0
    files: str = ""  # each item has a file to be sent and a result: "apart", "in place" of that file, …
    cleanup: bool = False
    moves: bool = False  # each client is of another tree, as a batch of agents that resume each other's
    halt: str = ""  # --halt of the first client that comes so far; the others have none
    bounded: bool = False  # `slots` are the processors of each host, and the inventory has no number

    def describe(self) -> str:
        words = [
            f"-P {self.most}",
            f"--retries {self.retries}",
            f"lease {self.lease:g}",
            f"rate {self.rate:g}",
        ]
        words += ["--idempotent"] * self.idempotent + ["--stdin item"] * self.reads
        words += ["by processors"] * self.bounded + ["--cleanup"] * self.cleanup
        words += [f"files {self.files}"] if self.files else []
        words += ["each client of another tree"] * self.moves
        words += [f"--halt {self.halt}"] if self.halt else []
        lines = [f"hosts: {' '.join(self.hosts)}; slots: {self.slots}; {', '.join(words)}"]
        lines += [f"again after {self.again:g} s; limits: {self.limits}"]
        for item in self.items:
            odd = "".join(f", {name}" for name in ("refused", "unsure") if getattr(item, name))
            lines.append(f"item {item.name}: term {item.on_term}{odd}, {item.steps}")
        return "\n".join([*lines, *(f"fault {fault}" for fault in self.faults)])


def draw(seed: int) -> Course:
    """The course of a seed."""
    random = Random(f"batch {seed}")
    hosts = tuple(f"h{n}" for n in range(1, weighted(random, ((3, 5), (4, 3), (5, 1)))))
    slots = weighted(random, ((1, 2), (2, 4), (4, 1)))
    count = weighted(random, ((6, 2), (15, 3), (40, 1)))
    quick = random.random() < 0.4  # many short jobs: they are sent ahead of their slots
    items = tuple(_item(random, f"i{n}", quick) for n in range(1 + random.randrange(count)))
    natural = sum(item.seconds - 5.0 for item in items) / (len(hosts) * slots) + 2.0
    faults: list[Fault] = []
    for _ in range(weighted(random, ((0, 1), (1, 3), (2, 4), (3, 3), (5, 1)))):
        fault = _fault(random, hosts, natural)
        if faults and random.random() < 0.5:  # while another one lasts, or is mended
            before = random.choice(faults)
            fault = replace(fault, at=round(before.at + (before.seconds + 3.0) * random.random(), 4))
        faults.append(fault)
    limits = {"UNSTARTED": random.choice((2, 5, 64)), "WAITING": random.choice((2, 8, 32))}
    limits |= {"UNRECORDED": random.choice((3, 4096)), "COMPACT": random.choice((0, 20_000))}
    lease, most = weighted(random, LEASES), weighted(random, ((0, 3), (1, 1), (5, 2)))
    others = Random(f"files {seed}")
    files, cleanup = weighted(others, (("", 5), (APART, 4), (IN_PLACE, 1))), others.random() < 0.7
    faults += _as_it_writes(others, natural, 0.5 if files == IN_PLACE else 0.1)
    items = tuple(_in_background(others, item) for item in items)
    halt = weighted(others, (("", 12), ("now,success=1", 1), ("now,fail=1", 1), ("soon,done=3", 1)))
    moves = bool(files) and others.random() < 0.2
    faults += _of_returns(others, hosts, natural) if files else []
    return Course(
        seed,
        hosts,
        (),
        tuple(sorted(faults, key=lambda fault: fault.at)),
        slots,
        limits=limits,
        items=items,
        lease=lease,
        most=most,
        retries=weighted(random, ((1, 4), (3, 1))),
        idempotent=random.random() < 0.1,
        reads=random.random() < 0.3,
        rate=weighted(random, ((0.0, 4), (4000.0, 1))),
        again=round(random.choice((0.2, 3.0, 12.0)) * random.uniform(0.5, 1.5), 3),
        bounded=not most and random.random() < 0.4,
        files=files,
        cleanup=cleanup,
        halt=halt,
        moves=moves,
    )


def _item(random: Random, name: str, quick: bool) -> Job:
    steps: list[tuple[object, ...]] = []
    for _ in range(random.randint(0, 2)):
        if random.random() < 0.6:
            size = weighted(random, ((10, 4), (3000, 2), (20_000, 1)))
            steps.append(("write", weighted(random, ((1, 4), (2, 1))), size))
        else:
            steps.append(("read", -1))
    longest = 0.1 if quick else weighted(random, ((0.2, 2), (3.0, 3), (15.0, 1)))
    steps.insert(random.randrange(len(steps) + 1), ("sleep", round(longest * random.random(), 3)))
    if code := weighted(random, ((0, 12), (1, 1), (7, 1))):
        steps.append(("exit", code))
    odd = random.random()
    term = weighted(random, ((("die",), 4), (("ignore",), 1), (("exit", (("write", 1, 70), ("exit", 0))), 1)))
    return Job(name, "", steps=tuple(steps), on_term=term, refused=odd < 0.02, unsure=0.02 < odd < 0.03)


def _in_background(random: Random, item: Job) -> Job:
    """Some leave a process that writes a file later, beside their own output."""
    if random.random() > 0.08:
        return item
    own = (("close", 0), ("close", 1), ("close", 2), ("sleep", round(4.0 * random.random(), 3)), ("late",))
    return replace(item, steps=(("fork", own), *item.steps))


def _fault(random: Random, hosts: tuple[str, ...], natural: float) -> Fault:
    at = round(1.0 + natural * random.random() * random.choice((0.3, 1.0, 1.3)), 4)
    short, long = round(random.uniform(0.1, 5.0), 3), round(random.uniform(5.0, 40.0), 3)
    seconds, host = random.choice((short, short, long)), random.choice(hosts)
    kind = weighted(
        random,
        (
            *(("cut", 3), ("cut_bytes", 3), ("hole", 2), ("down", 3), ("late", 2), ("leave", 2)),
            *(("stop_node", 3), ("suspend", 2), ("kill_node", 3), ("crash", 2)),
            *(("kill_client", 6), ("stop_client", 2), ("signal", 1)),
        ),
    )
    if kind == "cut":
        return Fault(at, kind, host, how=random.choice(("clean", "drop")))
    if kind == "cut_bytes":
        number = random.choice((20, 400, 4000)) * random.randint(1, 9)
        return Fault(at, kind, host, how=random.choice(("there", "back")), number=number)
    if kind == "hole":
        return Fault(at, kind, host, how=random.choice(("both", "there", "back")))
    if kind == "down":
        return Fault(at, kind, host, seconds, how=random.choice(("interrupted", "refused", "hang")))
    if kind == "late":
        return Fault(at, kind, host, seconds, how=random.choice(("cut", "hang")))
    if kind == "leave":
        return Fault(at, kind, hosts[-1], seconds) if len(hosts) > 1 else Fault(at, "cut", host, how="drop")
    if kind in ("stop_node", "suspend"):
        return Fault(at, kind, random.choice((host, "o")), seconds)
    if kind == "kill_node":
        return Fault(at, kind, random.choice((host, "o")))
    if kind == "crash":
        return Fault(at, kind, host, seconds)
    if kind == "signal":
        return Fault(at, kind, BATCH, how=random.choice(("TERM", "INT", "INT")))
    if kind == "kill_client":
        return Fault(at, kind, BATCH, how=random.choice(("", "", "node")))
    return Fault(at, kind, BATCH, seconds)


def _as_it_writes(random: Random, natural: float, share: float) -> list[Fault]:
    """A share of the clients are killed at a line that they write."""
    if random.random() > share:
        return []
    at, number = round(1.0 + natural * random.random(), 4), random.choice((1, 2, 3, 9))
    return [
        Fault(at, "kill_client", BATCH, how=random.choice(("", "instead", "instead", "node")), number=number)
    ]


def _of_returns(random: Random, hosts: tuple[str, ...], natural: float) -> list[Fault]:
    """Faults by which returns do not come: they cannot be written here, or a node that starts now finds no host."""
    kind = weighted(random, (("", 4), ("away", 1), ("full", 1)))
    at, seconds = round(1.0 + natural * random.random(), 4), round(random.uniform(2.0, 20.0), 3)
    if kind == "full":
        return [Fault(at, "full", ORIGIN, seconds)]
    if kind == "away":
        away = Fault(at, "down", random.choice(hosts), seconds, how="refused")
        return [away, Fault(round(at + random.random(), 4), "kill_node", ORIGIN)]
    return []


def lesser(course: Course) -> Iterator[Course]:
    """Courses that have a little less in them, those that have least first."""
    half = len(course.items) // 2
    if half > 1:
        yield replace(course, items=course.items[:half])
        yield replace(course, items=course.items[half:])
    for item in course.items if len(course.items) > 1 else ():
        yield replace(course, items=tuple(other for other in course.items if other is not item))
    for fault in course.faults:
        yield replace(course, faults=tuple(other for other in course.faults if other is not fault))
    plain = {
        "halt": "",
        "moves": False,
        "files": "",
        "cleanup": False,
        "rate": 0.0,
        "reads": False,
        "bounded": False,
        "most": 0,
        "retries": 1,
        "limits": {},
    }
    for name, least in plain.items():
        if getattr(course, name) != least:
            yield replace(course, **{name: least})
    for item in course.items:
        for number in range(len(item.steps)):
            less = replace(item, steps=item.steps[:number] + item.steps[number + 1 :])
            yield replace(course, items=tuple(less if other is item else other for other in course.items))
