"""Starting a command on another host: the whole client process, the spawn alone, and a long line."""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Row, alternate, processor
from tests.lab import Lab, Process
from tests.support.installation import install, link_libraries

SYSTEM = "/usr/bin/python3"
RUN = "`quine run --on h -- true`, warm, installed"

SERIAL = """
import sys, time, statistics
from transport.client import client
from transport.spawn import Spawn
context = {"inventory": sys.argv[1], "cwd": "/", "ssh_agent": None}
times = []
for index in range(int(sys.argv[3])):
    begun = time.perf_counter()
    status = client.run(Spawn(["true"], where=sys.argv[2], context=context))
    assert status.code == 0, status
    times.append(time.perf_counter() - begun)
print(statistics.median(times))
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """An installation with a node of its own, as `pipx install .` makes it: its console script, and an environment."""

    script: Path
    env: dict[str, str]

    def run(self) -> None:
        self._call(self.script, "run", "--on", "h1", "--", "true")

    def python(self) -> None:
        self._call(self.script.with_name("python"), "-c", "pass")

    def _call(self, *argv: str | Path) -> None:
        subprocess.run(argv, env=self.env, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


@contextmanager
def installed(lab: Lab, name: str, python: str) -> Iterator[Installed]:
    """Install with a Python; its node is up, and ends with this."""
    folder, runtime = lab.tmp / name, lab.tmp / f"{name}-run"
    runtime.mkdir(mode=0o700)
    made = Installed(install(folder, python), {**lab.env, "XDG_RUNTIME_DIR": str(runtime)})
    link_libraries(folder)
    made.run()
    try:
        yield made
    finally:
        subprocess.run([made.script, "node", "--stop"], env=made.env, capture_output=True, check=True)


def systems_python() -> str:
    """Return the Python of the distribution, which pipx takes; this one, if that is missing or of another version."""
    about = "import sys, venv; print(sys.version_info[:2])"
    try:
        done = subprocess.run([SYSTEM, "-c", about], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return sys.executable
    return SYSTEM if done.stdout.strip() == str(sys.version_info[:2]) else sys.executable


def warm_client(lab: Lab) -> list[Row]:
    """`quine run --on h1 -- true` beside ssh, cold and through a ControlMaster.

    A Python built without optimisation by profile takes a fifth longer: so both are measured, the one that pipx takes
    and the one of this process.
    """
    master = ["-o", "ControlMaster=auto", "-o", f"ControlPath={lab.tmp}/cm", "-o", "ControlPersist=60"]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "env": lab.env, "check": True}

    def checkout() -> None:
        subprocess.run([lab.quine, "run", "--on", "h1", "--", "true"], **quiet)  # type: ignore[call-overload]

    def cold() -> None:
        subprocess.run([*lab.ssh("h1", "-c", "aes128-gcm@openssh.com"), "true"], **quiet)  # type: ignore[call-overload]

    def mux() -> None:
        subprocess.run([*lab.ssh("h1", *master), "true"], stderr=subprocess.DEVNULL, **quiet)  # type: ignore[call-overload]

    try:
        with (
            installed(lab, "system", systems_python()) as usual,
            installed(lab, "this", sys.executable) as this,
        ):
            # A figure and its peer alone: each command between them takes their caches, and 200 ms of ssh the most
            ours, mux_time, bare = (1000 * t for t in alternate(41, usual.run, mux, usual.python))
            own, editable, own_mux, own_bare = (
                1000 * t for t in alternate(25, this.run, checkout, mux, this.python)
            )
            (cold_time,) = (1000 * t for t in alternate(9, cold))
            busy, mux_busy = (1000 * t for t in processor(25, usual.run, mux))
        serial = 1000 * serial_spawn(lab, "h1", 200)
    finally:
        subprocess.run([*lab.ssh("h1", *master), "-O", "exit"], capture_output=True, env=lab.env, check=False)
    beside = "ssh ControlMaster"
    return [
        Row(f"{RUN}, whole process", ours, "ms", "ssh cold", cold_time, "≤ 60, aim 30", ours <= 60),
        Row(
            "the same beside a multiplexed ssh",
            ours,
            "ms",
            beside,
            mux_time,
            "≤ 2 ×, aim 1.6",
            ours <= 2 * mux_time,
        ),
        Row("its client alone, processor", busy, "ms", beside, mux_busy),
        Row("the same beside a Python that does nothing", ours, "ms", "python -c pass", bare),
        Row("the same with the Python of this process", own, "ms", beside, own_mux),
        Row("that beside a Python that does nothing", own, "ms", "python -c pass", own_bare),
        Row("the same of a checkout, whole process", editable, "ms", beside, own_mux),
        Row("spawn to exit record, serial, warm", serial, "ms", beside, mux_time, "≤ 4, aim 2", serial <= 4),
    ]


def serial_spawn(lab: Lab, where: str, count: int) -> float:
    """Return the median seconds of one client's spawns, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", SERIAL, str(lab.inventory), where, str(count)],
        env=lab.env,
        cwd=Path(__file__).parents[1],
        capture_output=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return float(done.stdout)


def long_line(lab: Lab) -> list[Row]:
    """A spawn over a link of 100 ms round trip beside a multiplexed ssh on the same line."""
    slow = lab.slow("h1", 0.05)
    lab.run(["run", "--on", slow, "--", "true"], check=True)
    ours = 1000 * serial_spawn(lab, slow, 15)
    port = lab["h1"].proxy.port
    master = [
        "-p",
        str(port),
        "-o",
        "ControlMaster=auto",
        "-o",
        f"ControlPath={lab.tmp}/cs",
        "-o",
        "ControlPersist=60",
    ]
    command = [*lab.ssh("h1")[:1], *master, *lab.ssh("h1")[1:]]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "env": lab.env, "check": True}
    try:
        (mux,) = alternate(9, lambda: subprocess.run([*command, "true"], **quiet))  # type: ignore[call-overload]
    finally:
        subprocess.run([*command, "-O", "exit"], capture_output=True, env=lab.env, check=False)
        lab["h1"].proxy.delay(0)
        lab.forget_aliases()
    return [
        Row("spawn over a line of 100 ms", ours, "ms", "ssh ControlMaster", 1000 * mux, "≤ 120", ours <= 120)
    ]


def idle_memory(lab: Lab) -> list[Row]:
    """Memory of the node over there and of the one here after some jobs (resident), and of its launcher (private)."""

    def is_node(process: Process) -> bool:
        return process.daemon and "--dial" not in process.argv

    def resident(processes: list[Process]) -> float:
        return statistics.median(_kilobytes(p, "status", "VmRSS") / 1024 for p in processes if is_node(p))

    there, here = resident(lab["h1"].processes()), resident(lab.processes())
    (guard,) = [process for process in lab["h1"].processes() if process.guard]
    own = _kilobytes(guard, "smaps_rollup", "Private_Dirty") / 1024
    return [
        Row("idle node over there, resident", there, "MB", reach="≤ 35, aim 20", met=there <= 35),
        Row("its launcher, private memory", own, "MB", reach="≤ 6", met=own <= 6),
        Row("idle node at the origin (with ssh loaded), resident", here, "MB"),
    ]


def _kilobytes(process: Process, file: str, field: str) -> int:
    text = Path(f"/proc/{process.pid}/{file}").read_text()
    return int(text.split(f"{field}:")[1].split()[0])
