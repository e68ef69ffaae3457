"""kill -9 of whatever there is, at a random moment, while a stream, commands and agents run on two hosts: is what was
said true, is nothing left, and does the next command work?

CI kills each once. QUINE_TEST_KILLS=300 kills as often, at random; QUINE_TEST_SEED=n begins where another run failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, Process, processes
from tests.lab.machine import readable
from tests.support.agents import OK, call, says, sh
from tests.support.detached import folder, record
from tests.support.waiting import until
from transport.launcher.termination import PAUSE

KILLS = int(os.environ.get("QUINE_TEST_KILLS", 0))
SEED = int(os.environ.get("QUINE_TEST_SEED", 20261122))
LEASE = 6  # seconds: a link is back long before, on a busy machine too
DEADLINE = 60.0  # seconds for a round
COMMANDS = 6
DETACHED = 5  # the status of the detached job
# Of a prime length: a block twice, lost or out of place is seen.
PATTERN = random.Random(7).randbytes(1_000_003)
CHUNK = 16 << 10
AHEAD = 16 * CHUNK  # bytes of the stream under way: it is to be there all the time, not to take the machine
NODES = ("node here", "node there")


def pattern(offset: int, size: int) -> bytes:
    at = offset % len(PATTERN)
    return (PATTERN + PATTERN[:CHUNK])[at : at + size]


class Round:
    """Work that runs at the same time, and its results."""

    def __init__(self, lab: Lab, directory: Path, name: str) -> None:
        self.lab, self.directory, self.name = lab, directory, name
        directory.mkdir()
        self.marks = directory / "marks"  # a line by each command, written where it ran
        self.progress = threading.Condition()
        self.sent = 0
        self.torn = False
        self.passed = 0  # bytes of the stream that have come back
        # (mark, status that it was to end with), as they were started.
        self.commands: list[tuple[str, int]] = []
        self.over = threading.Event()  # the commands and the agents are done: the stream may end
        self.gates: dict[str, int] = {}
        for gate in ("up", "go", "detached"):
            os.mkfifo(directory / gate)
            self.gates[gate] = os.open(directory / gate, os.O_RDWR)  # both ends: nobody waits in open(2)
        self.job = self._detach()
        self.stream = self._start_stream()
        self.root = self._start_agents()
        self._threads = [threading.Thread(target=work) for work in (self._write, self._read, self._command)]
        for thread in self._threads:
            thread.start()

    # -- what runs ---------------------------------------------------------------------------------

    def _options(self, mark: str, where: str) -> list[str]:
        return ["run", "--report", str(self.directory / f"{mark}.report"), "--on", where, "--"]

    def _detach(self) -> str:
        """Start a detached job on the host; return its id."""
        script = (
            f"echo up; read line <{self.directory}/detached; echo detached >>{self.marks}; exit {DETACHED}"
        )
        done = self.lab.run(["run", "--detach", "--on", "left", "--", "sh", "-c", script], check=True)
        job = done.stdout.decode().strip()
        until((folder(job, self.lab["h1"].home) / "stdout").read_bytes, "it is up")
        return job

    def _start_stream(self) -> subprocess.Popen[bytes]:
        script = f"cat; echo stream >>{self.marks}"
        argv = [*self._options("stream", "left"), "sh", "-c", script]
        return self.lab.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _write(self) -> None:
        assert self.stream.stdin
        try:
            while not self.over.is_set():
                with self.progress:
                    self.progress.wait_for(
                        lambda: self.sent - self.passed < AHEAD or self.over.is_set(), DEADLINE
                    )
                self.sent += os.write(self.stream.stdin.fileno(), pattern(self.sent, CHUNK))
        except BrokenPipeError:
            pass
        self.stream.stdin.close()

    def _read(self) -> None:
        assert self.stream.stdout
        while data := os.read(self.stream.stdout.fileno(), CHUNK):
            self.torn |= data != pattern(self.passed, len(data))
            with self.progress:
                self.passed += len(data)
                self.progress.notify_all()
        self.stream.stdout.close()
        self.stream.wait()
        with self.progress:
            self.progress.notify_all()

    def _command(self) -> None:
        for number in range(COMMANDS):
            mark, code = f"command{number}", number % 3
            with self.progress:
                self.commands.append((mark, code))
                self.progress.notify_all()
            script = f"echo {mark} >>{self.marks}; exit {code}"
            where = "right" if number % 2 else "left"
            self.lab.run([*self._options(mark, where), "sh", "-c", script])

    def _start_agents(self) -> subprocess.Popen[bytes]:
        work = f"echo {{}} >>{self.marks}; echo {{}} >{self.directory}/up; read line <{self.directory}/go"
        children = [{"intent": f"{self.name} {side}", "host": side} for side in ("left", "right")]
        replies = [
            says(call("fork", children=children, wait=True), match="root"),
            *(says(sh(work.format(side, side)), match=side) for side in ("left", "right")),
            says(OK),
        ]
        env = {
            **self.lab.script(replies, f"{self.name}.jsonl"),
            "QUINE_DATA_DIR": str(self.directory / "data"),
        }
        return self.lab.popen([f"{self.name} root"], env=env, stderr=subprocess.DEVNULL)

    # -- the moment --------------------------------------------------------------------------------

    def wait_for(self, clock: str, value: int) -> None:
        """Wait until so many bytes have passed, so many commands have started, or so many agents work on hosts."""
        if clock == "agents":
            up = b""
            while up.count(b"\n") < value:
                assert readable(self.gates["up"], DEADLINE), f"only {up!r} came"
                up += os.read(self.gates["up"], 100)
            return
        with self.progress:
            assert self.progress.wait_for(
                lambda: self.passed >= value if clock == "stream" else len(self.commands) > value, DEADLINE
            )

    # -- the end -----------------------------------------------------------------------------------

    def finish(self) -> None:
        """Let everything come to its end."""
        os.write(self.gates["go"], b"\n\n")
        os.write(self.gates["detached"], b"\n")
        self._threads[2].join()
        self.root.wait(DEADLINE)
        self.over.set()
        with self.progress:
            self.progress.notify_all()
        self.stream.wait(DEADLINE)
        for thread in self._threads:
            thread.join()
        for fd in self.gates.values():
            os.close(fd)

    def report(self, mark: str) -> dict[str, Any]:
        path = self.directory / f"{mark}.report"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"state": "none"}
        return found

    def tapes(self) -> dict[str, list[dict[str, Any]]]:
        """By the last word of the mission."""
        found = {}
        for path in (self.directory / "data").glob("*.jsonl"):
            # of who outlives the root a line may be on its way
            entries = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
            if entries:
                found[entries[0]["data"]["mission"].split()[-1]] = entries
        return found


# -- the victims -----------------------------------------------------------------------------------


def agent_there(lab: Lab, now: Round) -> list[Process]:
    return [job for job in lab["h1"].jobs() if f"{now.name} left" in " ".join(job.argv)]


def proxy(lab: Lab, now: Round) -> list[Process]:
    return [process for process in lab.processes() if process.ppid == now.root.pid][:1]


def of(found: list[Process], kind: Callable[[Process], bool]) -> list[Process]:
    return [process for process in found if kind(process)]


def is_node(process: Process) -> bool:
    return process.daemon and "--dial" not in process.argv


def supervisor(lab: Lab, now: Round) -> list[Process]:
    return of(lab["h1"].jobs(), lambda p: p.pid == record(now.job, lab["h1"].home)["supervisor"])


VICTIMS: dict[str, Callable[[Lab, Round], list[Process]]] = {
    "client": lambda _, now: of([p for p in [processes.find(now.stream.pid)] if p], bool),
    "agent": lambda _, now: of([p for p in [processes.find(now.root.pid)] if p], bool),
    "agent there": agent_there,
    "proxy": proxy,
    "supervisor": supervisor,
    "dial": lambda lab, _: of(lab["h1"].processes(), lambda p: "--dial" in p.argv),
    "sshd": lambda lab, _: [p for pid in lab["h1"].sessions() if (p := processes.find(pid))],
    "guard here": lambda lab, _: of(lab.processes(), lambda p: p.guard),
    "guard there": lambda lab, _: of(lab["h1"].processes(), lambda p: p.guard),
    "node there": lambda lab, _: of(lab["h1"].processes(), is_node),
    "node here": lambda lab, _: of(lab.processes(), is_node),
}
# the work that each victim may harm; all other work ends as usual
HARMS = {
    "client": {"stream"},
    "agent": {"root", "left", "right"},
    "agent there": {"left"},
    "proxy": {"left", "right"},
    "node there": {"stream", "left", *(f"command{n}" for n in range(0, COMMANDS, 2))},
    "node here": {"stream", "left", "right", *(f"command{n}" for n in range(COMMANDS))},
}


# -- the rules -------------------------------------------------------------------------------------


def judge(now: Round, victim: str) -> None:
    """Nothing ran twice, every report is true, and jobs that the victim cannot harm end as usual."""
    marks = Counter(now.marks.read_text().split() if now.marks.exists() else [])
    harmed = HARMS.get(victim, set())
    assert max(marks.values(), default=0) <= 1, marks
    assert not now.torn
    for mark, code in [("stream", 0), *now.commands]:
        report, ran = now.report(mark), marks[mark]
        match report["state"]:
            case "exited":
                assert (report["code"], ran) == (code, 1), (mark, report, ran)
            case "unreachable":
                assert not ran, (mark, report)
                assert mark in harmed, (mark, report)
            case "lost":
                assert mark in harmed and victim in NODES, (mark, report)
            case _:
                assert (mark, victim) == ("stream", "client"), (mark, report)
    if now.report("stream")["state"] == "exited":
        assert now.passed == now.sent
    judge_agents(now, victim, marks)
    judge_detached(now, victim, marks)


def judge_agents(now: Round, victim: str, marks: Counter[str]) -> None:
    tapes = now.tapes()
    assert now.root.returncode == (-signal.SIGKILL if victim == "agent" else 0)
    for side in {"left", "right"} - HARMS.get(victim, set()):
        assert marks[side] == 1, marks
        assert tapes[side][-1]["type"] == "outcome" and tapes[side][-1]["data"]["exit_code"] == 0, tapes[
            side
        ][-1]
    if victim == "agent":
        return
    told = "".join(entry["data"]["content"] for entry in tapes["root"] if entry["type"] == "tool_result")
    if not {"left", "right"} & HARMS.get(victim, set()):
        assert told.count("[EXIT CODE] 0") == 2, told
    elif victim in ("agent there", "proxy"):
        assert "KILL" in told, told


def judge_detached(now: Round, victim: str, marks: Counter[str]) -> None:
    """The job outlives every victim but its supervisor, with which the kernel ends it; `quine wait` tells so."""
    told = now.lab.run(["wait", now.job]).returncode, now.lab.run(["logs", now.job]).stdout
    if victim == "supervisor":
        # lost: it may have come to its end before the kernel had ended its supervisor
        assert told == (74, b"up\n") or (told == (128 + signal.SIGTERM, b"up\n") and not marks["detached"]), (
            told
        )
        (now.lab["h1"].home / "quine" / now.job).rmdir()  # the empty folder that it would have removed
    else:
        assert (told, marks["detached"]) == ((DETACHED, b"up\n"), 1), (told, marks)


def settle(lab: Lab, left: Callable[[], list[str]], seconds: float) -> None:
    """Until nothing is left that should not be."""
    deadline = time.monotonic() + seconds
    while found := left():
        assert time.monotonic() < deadline, found
        processes.wait_gone(lab.jobs(), 0.1)


def leftovers(lab: Lab) -> Iterator[str]:
    ours = {process.pid for process in lab.processes()}
    for host in lab.hosts.values():
        ours |= {process.pid for process in host.processes()}
    for process in lab.jobs():
        yield f"job {process}"
    for host in lab.hosts.values():
        for path in (host.home / "quine").glob("*"):
            with contextlib.suppress(FileNotFoundError):  # it is removed just now
                if not list(path.iterdir()):
                    yield f"empty folder {path}"
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] == "Z" and int(fields[1]) in ours:
            yield f"zombie {pid} of {fields[1]}"
    for name, run, found in [
        ("here", Path(lab.env["XDG_RUNTIME_DIR"]), lab.processes()),
        *((host.name, host.run, host.processes()) for host in (lab["h1"], lab["h2"])),
    ]:
        counts = [
            len(of(found, is_node)),
            len(of(found, lambda process: process.guard)),
            *(len(list(run.glob(f"quine-*/*.{suffix}"))) for suffix in ("sock", "jobs")),
        ]
        if counts != [1, 1, 1, 1]:
            yield f"{name}: nodes, guards, sockets, tables: {counts}"


def next_commands(lab: Lab) -> None:
    """The next commands work at once, whatever the dead left: no stale socket, no lock."""
    for where in ("local", "left", "right"):
        done = lab.run(["run", "--on", where, "--", "echo", "next"], timeout=120)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"next\n", b""), (where, done)


def one_round(lab: Lab, directory: Path, victim: str, rng: random.Random) -> None:
    clock = rng.choice(("stream", "commands", "agents"))
    if victim in ("agent there", "proxy"):
        clock = "agents"  # they are there by then
    value = {
        "stream": rng.randrange(3 << 20),
        "commands": rng.randrange(COMMANDS),
        "agents": rng.randint(1, 2),
    }[clock]
    now = Round(lab, directory, directory.name)
    try:
        now.wait_for(clock, 2 if victim in ("agent there", "proxy") else value)
        found = VICTIMS[victim](lab, now)
        assert found, f"no {victim} at {clock} {value}"
        for process in found:
            processes.kill(process.pid)
    finally:
        now.finish()
    try:
        judge(now, victim)
    except AssertionError as error:
        error.add_note(f"victim {victim}, at {clock} {value}")
        raise
    next_commands(lab)


class Logs:
    """The lines that the nodes have logged since this was made."""

    def __init__(self, lab: Lab) -> None:
        self._runs = [Path(lab.env["XDG_RUNTIME_DIR"]), *(host.run for host in lab.hosts.values())]
        self._before = {path: len(text) for path, text in self._texts().items()}

    def _texts(self) -> dict[Path, str]:
        return {path: path.read_text() for run in self._runs for path in run.glob("quine-*/*.log")}

    def check(self) -> None:
        """No traceback."""
        for path, text in self._texts().items():
            before, traceback, after = text[self._before.get(path, 0) :].partition("Traceback")
            if traceback:
                pytest.fail(f"{path}: {before[-1000:]}{traceback}{after[:4000]}", pytrace=False)


@pytest.fixture
def arena(lab: Lab) -> Lab:
    """The lab, its hosts under names with a lease that a busy machine does not outlast."""
    for name, host in (("left", "h1"), ("right", "h2")):
        lab.alias(name, host, lease=LEASE)
        lab.run(["run", "--on", name, "--", "true"], check=True)  # the first one takes the binary there
    return lab


@pytest.mark.whole
@pytest.mark.long
@pytest.mark.timeout(400)  # half a minute where nobody else works
@pytest.mark.skipif(bool(KILLS), reason="the long form runs")
def test_each_killed_once(arena: Lab, tmp_path: Path) -> None:
    rng, logs = random.Random(SEED), Logs(arena)
    before = set(leftovers(arena))  # folders of jobs whose launcher another test has killed
    for number, victim in enumerate(VICTIMS):
        one_round(arena, tmp_path / f"r{number}", victim, rng)
    settle(arena, lambda: [found for found in leftovers(arena) if found not in before], LEASE + PAUSE + 20)
    logs.check()


@pytest.mark.timeout(0)
@pytest.mark.skipif(not KILLS, reason="QUINE_TEST_KILLS=N")
def test_killed_at_random(arena: Lab, tmp_path: Path) -> None:
    logs = Logs(arena)
    for number in range(KILLS):
        rng = random.Random(SEED + number)
        victim = rng.choice(sorted(VICTIMS))
        print(f"QUINE_TEST_SEED={SEED + number}: {victim}", flush=True)
        one_round(arena, tmp_path / f"r{number}", victim, rng)
        settle(arena, lambda: list(leftovers(arena)), LEASE + PAUSE + 20)
        logs.check()
