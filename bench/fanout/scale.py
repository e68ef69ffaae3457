"""Where the origin of a batch saturates: its real client and its real node, and up to a thousand fake hosts.

The hosts are one process that speaks the protocol and lets each job take its time without starting anything, so that
their cost is not the origin's. All of the origin is real but ssh, whose cost a job is that of its bytes: see `batch`.

As a program it is a part of that: python -m bench.fanout.scale far SOCKET COUNTER SECONDS | near SOCKET.
"""

from __future__ import annotations

import asyncio
import mmap
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench import plot
from bench.fanout.peers import ROOT
from bench.measure import Form, Row, size
from tests.lab import Lab
from transport import address, this_build
from transport.carrier.duplex import ClientDuplex
from transport.carrier.handshake import Greeter
from transport.node.link import Link
from transport.node.served import Served
from transport.status import Status
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import STDERR, STDOUT

SLOTS = 4  # of each host
HOSTS = (10, 100, 300, 1000)
LENGTHS = (0.01, 1.0, 5.0)  # seconds of a job
WARM = 2.0  # seconds before anything is measured, and as many jobs as there are hosts: all links are up
WINDOW = 5.0  # seconds that are measured, and two lengths of a job at least
DIALS = 40.0  # seconds for that at most
IDLE = 3.0  # seconds for the share of the node with all links and no job
MILLION = 1_000_000
TICKS = os.sysconf("SC_CLK_TCK")


class Point(NamedTuple):
    """A measurement: jobs a second, and seconds of a processor a second of the client and of the node.

    `idle` is that of the node when no job is there: its heartbeats to all hosts.
    """

    hosts: int
    length: float
    rate: float
    client: float
    node: float
    idle: float = 0.0

    def cost(self, name: str) -> float:
        """Seconds of a processor that a job takes of the client, or of the node."""
        used = self.client if name == "client" else self.node - self.idle
        return max(used / self.rate, 1e-6) if self.rate else 1e-6

    @property
    def most(self) -> float:
        """Jobs a second with a processor for each of the two: where the origin saturates."""
        return min(1 / self.cost("client"), max(1 - self.idle, 0.01) / self.cost("node"))

    @property
    def wanted(self) -> float:
        """Jobs a second that the slots allow."""
        return self.hosts * SLOTS / self.length


# -- the hosts -------------------------------------------------------------------------------------


class FakeJob:
    """A job over there: it takes its turn and its time. Implements `transport.node.link.Handler`."""

    def __init__(self, host: FakeHost, link: Link, frame: Frame) -> None:
        self.host, self.link, self.number = host, link, frame.channel
        self.id = frame.body()["id"]

    def begin(self) -> None:
        self.link.session.tell(self.number, Kind.ATTACH, {"id": self.id, "pid": 7})
        self.link.wake()
        asyncio.get_running_loop().call_later(self.host.seconds, self.end)

    def end(self) -> None:
        session = self.link.session
        if self.number in session.channels:
            session.eof(self.number, STDOUT)
            session.eof(self.number, STDERR)
            session.tell(self.number, Kind.EXIT, Status("exited", 0, pid=7).to_json())
            self.link.wake()
        self.host.ended()

    def on_frame(self, frame: Frame) -> None:
        if frame.stream == LIFE and frame.kind == Kind.NOTE:
            self.host.waiting.remove(self)  # withdrawn
            self.link.session.tell(self.number, Kind.EXIT, Status("unreachable", 69).to_json())

    def on_down(self, why: str) -> None: ...

    def on_up(self) -> None: ...

    def on_lost(self, why: str) -> None: ...


class FakeHost:
    """One host: its link, the jobs that run there, and those that wait for their turn."""

    def __init__(self, far: Far) -> None:
        self.far, self.seconds = far, far.seconds
        self.waiting: deque[FakeJob] = deque()
        self.running = 0

    def open(self, link: Link, frame: Frame) -> FakeJob:
        job = FakeJob(self, link, frame)
        self.waiting.append(job)
        self._begin()
        return job

    def _begin(self) -> None:
        while self.waiting and self.running < SLOTS:
            self.running += 1
            self.waiting.popleft().begin()

    def ended(self) -> None:
        self.running -= 1
        self.far.count()
        self._begin()


class Far:
    """All hosts, in one process. `counter` is a file whose first eight bytes are the jobs that have ended."""

    def __init__(self, counter: str, seconds: float) -> None:
        self.seconds = seconds
        with open(counter, "r+b") as file:
            self._memory = mmap.mmap(file.fileno(), 8)
        self._count = 0
        self._facts = {"build": this_build.build_hash(), "node": "fake", "boot": address.boot_id(), "pid": 7}
        self._tasks: set[asyncio.Task[None]] = set()

    def count(self) -> None:
        self._count += 1
        self._memory[:] = self._count.to_bytes(8, "little")

    async def serve(self, path: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(4096)
            listener.setblocking(False)
            while True:
                connection, _ = await asyncio.get_running_loop().sock_accept(listener)
                connection.setblocking(False)
                task = asyncio.create_task(self._host(connection))
                self._tasks.add(task)

    async def _host(self, connection: socket.socket) -> None:
        host = FakeHost(self)

        def join(line: Any, name: str, down: Callable[[Link, str], None]) -> Link:
            return Link(line, name, host.open, lambda link, why: None, down)

        await Served(self._facts, join).serve(Greeter(ClientDuplex(connection)))


def near(path: str) -> None:
    """The node of the origin: the real one, with a real inventory, but for the last step to a host."""
    from quine.remote.placement import Placer
    from transport.node import rendezvous
    from transport.node.daemon import serve

    class Near(Placer):
        def __call__(self, spawn: Any, running: Any) -> Any:
            target = super().__call__(spawn, running)
            target.dial, target.met = dial, lambda facts: None
            return target

    async def dial() -> ClientDuplex:
        connection = socket.socket(socket.AF_UNIX)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, path)
        return ClientDuplex(connection)

    class NoLauncher:
        pid = 0

        def watch(self) -> None: ...

        async def close(self) -> None: ...

    bound = rendezvous.bind()
    assert bound
    serve(NoLauncher(), Near(), bound[0], 600.0, bound[1], {})  # type: ignore[arg-type]


# -- the measurement -------------------------------------------------------------------------------


def seconds_of(pid: int) -> float:
    """Seconds of a processor that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measure(hosts: int, length: float, warm: float = WARM, window: float = WINDOW, items: int = 0) -> Point:
    """One batch over so many hosts, for a while; with `items` to its end."""
    with tempfile.TemporaryDirectory(prefix="qs") as name:
        folder = Path(name)
        (folder / "counter").write_bytes(bytes(8))
        tables = "".join(f'[hosts.h{n}]\naddress = "x"\nslots = {SLOTS}\n' for n in range(hosts))
        (folder / "inventory.toml").write_text(tables)
        (folder / "run").mkdir(mode=0o700)
        env = {**os.environ, "XDG_RUNTIME_DIR": str(folder / "run"), "PYTHONPATH": str(ROOT), "HOME": name}
        env["QUINE_INVENTORY"] = str(folder / "inventory.toml")
        there = str(folder / "far")
        program = [sys.executable, "-m", "bench.fanout.scale"]
        quiet: dict[str, Any] = {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        quine = [str(Path(sys.executable).with_name("quine"))]
        far = subprocess.Popen([*program, "far", there, str(folder / "counter"), str(length)], **quiet)
        node = subprocess.Popen([*program, "near", there], **quiet)
        client = None
        try:
            _until(lambda: os.path.exists(there) and any((folder / "run").rglob("*.sock")))
            given = f"seq {items or MILLION * 100}"
            words = [*quine, "xargs", "-P", str(min(4096, 2 * hosts * SLOTS)), "--on", "any", "--", "true"]
            with subprocess.Popen(given.split(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as feed:
                client = subprocess.Popen(words, stdin=feed.stdout, **quiet)
                assert feed.stdout
                feed.stdout.close()
                empty = Point(hosts, length, 0, 0, 0)
                point = _watched(folder, (client, node), empty, warm, max(window, 2 * length), items)
                client.kill()
            if not items:
                point = point._replace(idle=_idle(node.pid))
        finally:
            for process in (client, node, far):
                if process:
                    process.kill()
                    process.wait()
    return point


def _watched(
    folder: Path,
    pair: tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]],
    point: Point,
    warm: float,
    window: float,
    items: int,
) -> Point:
    def ended() -> int:
        return int.from_bytes((folder / "counter").read_bytes(), "little")

    _until(lambda: ended() > 0)
    if not items:
        time.sleep(warm)
        with suppress(TimeoutError):  # a busy machine: the other dials count as cost of the jobs
            _until(lambda: ended() > point.hosts, DIALS)
    began, jobs, used = time.monotonic(), ended(), [seconds_of(process.pid) for process in pair]
    if items:
        _until(lambda: ended() >= items, 3600.0)
    else:
        time.sleep(window)
    took, done = time.monotonic() - began, ended() - jobs
    client, node = (seconds_of(process.pid) - before for process, before in zip(pair, used, strict=True))
    return point._replace(rate=done / took, client=client / took, node=node / took)


def _idle(pid: int) -> float:
    """The share of a node once the jobs of a client that was killed are over."""
    time.sleep(IDLE / 2)
    before = seconds_of(pid)
    time.sleep(IDLE)
    return (seconds_of(pid) - before) / IDLE


def _until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)


def run(_: Lab) -> list[Row]:
    """All numbers of hosts and all lengths of jobs, and the plots of them; in the long form a million items, too.

    The cost of a job is processor time, which a busy machine changes little; the rate beside it is that of the machine.
    """
    points = [measure(hosts, length) for length in LENGTHS for hosts in HOSTS[:: size(4, 1)]]
    if Form.plots:
        draw(points, Form.plots)
    rows = []
    for point in points:
        figure = f"{point.hosts} hosts of {SLOTS} slots, jobs of {point.length:g} s"
        share = " and ".join(f"{1e6 * point.cost(name):.0f} µs of the {name}" for name in ("client", "node"))
        figure += f", a job takes {share}; idle {100 * point.idle:.0f} %; saturates at {point.most:.0f}/s"
        rows.append(Row(figure, point.rate, "jobs/s", "the slots allow", point.wanted))
    if size(0, 0, 1):
        whole = measure(HOSTS[-1], LENGTHS[0], items=MILLION)
        rows.append(Row(f"{MILLION} items over {HOSTS[-1]} hosts", whole.rate, "jobs/s"))
    return rows


def draw(points: list[Point], directory: Path) -> None:
    """Write two plots: jobs a second, and the processor that a job takes of client and node."""
    lengths = sorted({point.length for point in points})
    lines = []
    for length in lengths:
        mine = [point for point in points if point.length == length]
        lines.append(
            plot.Line(f"slots: jobs of {length:g} s", [(p.hosts, p.wanted) for p in mine], dashed=True)
        )
    counts = sorted({point.hosts for point in points})
    most = [(count, max(point.most for point in points if point.hosts == count)) for count in counts]
    lines.append(plot.Line("the origin", most))
    title = f"Jobs a second that the origin serves, and that hosts of {SLOTS} slots take"
    plot.write_lines(directory / "scale-rate.svg", title, "hosts", "jobs/s", lines)
    lines = []
    for length in lengths:
        mine = [point for point in points if point.length == length and point.rate]
        for name in ("client", "node"):
            used = [(p.hosts, 1e6 * p.cost(name)) for p in mine]
            lines.append(plot.Line(f"{name}, jobs of {length:g} s", used, dashed=name == "client"))
    title = "Processor time of one job at the origin"
    plot.write_lines(directory / "scale-cost.svg", title, "hosts", "µs", lines)


def main(role: str, *words: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1 << 16), hard))
    if role == "near":
        near(words[0])
    else:
        asyncio.run(_far(*words))


async def _far(path: str, counter: str, seconds: str) -> None:
    await Far(counter, float(seconds)).serve(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
