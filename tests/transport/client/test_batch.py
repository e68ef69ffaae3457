"""Many jobs from this process, through the node of a lab's origin to its hosts."""

from __future__ import annotations

import errno
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, Proxy, clear_peak, peak_rss
from tests.support.machine import only_node
from transport.client.batch import Batch, BatchJob
from transport.spawn import Spawn
from transport.status import Status

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 240.0


class Jobs:
    """The jobs of one batch, with what they wrote and how they ended."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.batch = Batch()
        self.out: dict[BatchJob, bytearray] = {}
        self.status: dict[BatchJob, Status] = {}

    def start(self, argv: list[str], where: str = "local", stdin: Any = None, **functions: Any) -> BatchJob:
        got = bytearray()

        def take(stream: int, data: memoryview) -> None:
            got.extend(data)

        def ended(status: Status) -> None:
            assert job not in self.status
            self.status[job] = status

        env = {"PYTHONPATH": str(ROOT)} | (dict(os.environ) if where == "local" else {})
        spawn = Spawn(argv, where=where, env=env, context={"inventory": str(self.lab.inventory)})
        functions.setdefault("on_output", take)
        job = self.batch.start(spawn, stdin, on_exit=ended, **functions)
        self.out[job] = got
        return job

    def until(self, done: Callable[[], object]) -> None:
        expired: list[bool] = []
        timer = threading.Timer(SECONDS, lambda: (expired.append(True), os.write(self.batch.waker, b"\0")))
        timer.start()
        try:
            while not done():
                self.batch.turn()
                assert not expired, f"not done in {SECONDS} s"
        finally:
            timer.cancel()

    def all(self) -> None:
        self.until(lambda: not len(self.batch))


def origin(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """This process becomes one of the origin of a lab."""
    for name in set(os.environ) - {"PYTEST_CURRENT_TEST"}:
        monkeypatch.delenv(name)
    for name, value in lab.env.items():
        monkeypatch.setenv(name, value)
    return lab


@pytest.fixture
def line(lab: Lab) -> Proxy:
    """The way to h1 that can be slow, made before this process is one of the origin: it is none of the lab's jobs."""
    return lab["h1"].proxy


@pytest.fixture
def jobs(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    made = Jobs(origin(lab, monkeypatch))
    yield made
    made.batch.close()


@pytest.fixture
def own_jobs(own_lab: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    made = Jobs(origin(own_lab(["h1", "h2"]), monkeypatch))
    yield made
    made.batch.close()


def test_100_jobs_over_three_hosts_have_each_their_own_bytes(jobs: Jobs) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    given = {}
    for index in range(100):
        where, data = f"h{index % 3 + 1}", b"%d\n" % index * (index * 100)
        given[jobs.start(["cat"] if index % 5 else ["true"], where, data)] = data
    jobs.all()
    assert {
        repr(status) for status in jobs.status.values() if status.state != "exited" or status.code
    } == set()
    assert {status.host for status in jobs.status.values()} == {"h1", "h2", "h3"}
    for job, data in given.items():
        assert bytes(jobs.out[job]) == (data if job.spawn.argv == ["cat"] else b"")
    assert len(os.listdir("/proc/self/fd")) == fds + 1  # the connection


def test_input_from_a_pipe_is_read_when_there_is_some_and_an_endless_one_until_the_reader_ends(
    jobs: Jobs,
) -> None:
    near, far = os.pipe()
    try:
        piped = jobs.start(["cat"], stdin=near)
        endless = jobs.start(["head", "-c", "3000000"], stdin=lambda room: b"y" * room)
        jobs.until(lambda: endless in jobs.status and piped.pid)
        assert bytes(jobs.out[endless]) == b"y" * 3_000_000
        os.write(far, b"late")
        jobs.until(lambda: jobs.out[piped])
    finally:
        os.close(far)
    jobs.all()
    assert bytes(jobs.out[piped]) == b"late" and jobs.status[piped].code == 0
    os.close(near)


def test_a_file_is_the_input_of_a_job(jobs: Jobs) -> None:
    path = jobs.lab.work / "input"
    path.write_bytes(os.urandom(1_000_000))
    with path.open("rb") as file:
        job = jobs.start(["cat"], "h1", file.fileno())
        jobs.all()
    assert bytes(jobs.out[job]) == path.read_bytes()


def test_an_input_that_fails_midway_is_no_end_of_it(jobs: Jobs) -> None:
    """The job gets a part, and what it makes of that is no success."""

    def failing(room: int) -> bytes:
        if chunks:
            return chunks.pop()
        raise OSError(errno.ESTALE, "Stale file handle")

    chunks = [b"part"]
    with open("/proc/self/mem", "rb") as file:
        ended = [jobs.start(["cat"], stdin=stdin) for stdin in (failing, file.fileno())]
        jobs.all()
    assert [(job.status.state, job.status.code, job.status.detail) for job in ended if job.status] == [
        ("lost", 74, "cannot read stdin: stale file handle"),
        ("lost", 74, f"cannot read /proc/{os.getpid()}/mem: input/output error"),
    ]


def test_a_signal_ends_one_job_and_its_neighbour_goes_on(jobs: Jobs) -> None:
    one, other = jobs.start(["sleep", "600"], "h1"), jobs.start(["cat"], "h1", lambda room: None)
    jobs.until(lambda: one.pid and other.pid)
    one.signal(signal.SIGTERM)
    jobs.until(lambda: one in jobs.status)
    assert (jobs.status[one].state, jobs.status[one].signal) == ("signaled", "TERM") and not other.over
    other.signal(signal.SIGKILL)
    jobs.all()
    assert jobs.status[other].signal == "KILL"


def test_descriptors_of_the_caller_are_watched_in_the_same_poll(jobs: Jobs) -> None:
    near, far = os.pipe()
    heard: list[bytes] = []
    jobs.batch.watch(near, select.POLLIN, lambda events: heard.append(os.read(near, 10)))
    with pytest.raises(ValueError):
        jobs.batch.watch(near, select.POLLIN, print)
    job = jobs.start(["sleep", "600"])
    jobs.until(lambda: job.pid)
    os.write(far, b"x")
    jobs.until(lambda: heard)
    jobs.batch.unwatch(near)
    job.abandon()
    jobs.all()
    assert heard == [b"x"] and jobs.status[job].state == "lost"
    os.close(near)
    os.close(far)


def test_a_fault_of_a_function_is_its_callers_and_loses_no_job(jobs: Jobs) -> None:
    def fail(stream: int, data: memoryview) -> None:
        raise OSError("no space left on the caller's device")

    other = jobs.start(["cat"], stdin=lambda room: None)
    jobs.until(lambda: other.pid)
    job = jobs.start(["echo", "x"], on_output=fail)
    with pytest.raises(OSError, match="the caller's device"):
        jobs.all()
    job.abandon()
    other.signal(signal.SIGTERM)
    jobs.all()
    assert jobs.status[other].signal == "TERM"


def test_a_connection_that_cannot_be_made_is_told_of_as_such(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said that a file could not be written."""

    def connect() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("transport.client.batch.connect", connect)
    job = jobs.start(["true"])
    jobs.all()
    status = jobs.status[job]
    assert (status.state, status.code) == ("unreachable", 69)
    assert status.detail == "the node of this machine cannot be connected to: too many open files"


def test_a_job_that_is_withdrawn_before_a_node_is_needed_starts_none(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    job = jobs.start(["true"])
    job.abandon()
    jobs.all()
    assert jobs.status[job].detail == "withdrawn before it was sent" and not list(tmp_path.iterdir())
    job = jobs.start(["true"])
    job.withdraw()
    jobs.all()
    status = jobs.status[job]
    assert (status.state, status.detail) == ("unreachable", ""), "it is no fault"


@pytest.mark.parametrize("where", ["local", "h1"])
def test_a_job_that_asks_gets_the_answers_of_its_own_services(jobs: Jobs, where: str) -> None:
    ask = (
        "import sys; from transport.rpc.call import Relay;"
        "sys.stdout.buffer.write(Relay.from_environment().request('number', b'?'))"
    )
    made = []
    for index in range(3):
        services = {"number": lambda body, index=index: body + b"%d" % index}
        made.append(jobs.start([sys.executable, "-c", ask], where, services=services))
    jobs.all()
    assert [bytes(jobs.out[job]) for job in made] == [b"?0", b"?1", b"?2"]


def test_jobs_are_held_back_by_a_caller_that_takes_nothing_and_memory_stays_flat(
    jobs: Jobs,
) -> None:
    count, size, taken, owed = 6, 12_000_000, [0], dict[int, int]()

    def slowly(index: int) -> Callable[[int, memoryview], int]:
        def take(stream: int, data: memoryview) -> int:
            taken[0] += len(data)
            owed[index] = owed.get(index, 0) + len(data)
            return 0

        return take

    made = [
        jobs.start(["head", "-c", str(size), "/dev/zero"], f"h{index % 3 + 1}", on_output=slowly(index))
        for index in range(count)
    ]
    jobs.until(lambda: all(job.pid for job in made) and len(owed) == count)
    quick = jobs.start(["echo", "quick"], "h1")
    jobs.until(lambda: quick in jobs.status)
    assert bytes(jobs.out[quick]) == b"quick\n" and taken[0] <= count * 65536
    both = (os.getpid(), only_node(jobs.lab).pid)
    before = [clear_peak(pid) for pid in both]

    def step() -> bool:
        for index, size in list(owed.items()):
            del owed[index]
            made[index].consumed(1, size)
        return not len(jobs.batch)

    jobs.until(step)
    assert taken[0] == count * size and all(jobs.status[job].code == 0 for job in made)
    grown = [peak_rss(pid) - held for pid, held in zip(both, before, strict=True)]
    assert max(grown) < 50 << 20, grown


def test_a_killed_node_loses_what_runs_and_the_next_one_gets_what_waits(jobs: Jobs) -> None:
    running = jobs.start(["sleep", "600"], "h1")
    jobs.until(lambda: running.pid)
    os.kill(only_node(jobs.lab).pid, signal.SIGKILL)
    jobs.until(lambda: running in jobs.status)
    waiting = jobs.start(["echo", "later"], "h1")
    jobs.all()
    lost = jobs.status[running]
    assert (lost.state, lost.code, lost.pid) == ("lost", 74, running.pid) and "was started" in lost.detail
    assert bytes(jobs.out[waiting]) == b"later\n" and jobs.status[waiting].code == 0


@pytest.mark.long
def test_a_killed_host_loses_its_own_jobs_and_no_other(own_jobs: Jobs) -> None:
    jobs = own_jobs
    here, there = jobs.start(["cat"], "h1", lambda room: None), jobs.start(["sleep", "600"], "h2")
    jobs.until(lambda: here.pid and there.pid)
    jobs.lab["h2"].crash()
    jobs.until(lambda: there in jobs.status)
    assert jobs.status[there].state == "lost" and jobs.status[there].host == "h2" and not here.over
    never = jobs.start(["true"], "h2")
    jobs.until(lambda: never in jobs.status)
    assert (jobs.status[never].state, jobs.status[never].code) == ("unreachable", 69)
    here.signal(signal.SIGTERM)
    jobs.all()
    assert jobs.status[here].signal == "TERM"


def test_jobs_wait_for_a_slot_of_any_host_and_are_bound_to_none_of_them(jobs: Jobs) -> None:
    """Bound when they came, half of them would wait for the jobs that hold the slots of the first host."""
    names = [jobs.lab.alias(f"s{index}", f"h{index}", slots=2) for index in (1, 2)]
    holders = [jobs.start(["cat"], "s1", lambda room: None) for _ in range(2)]
    jobs.until(lambda: all(job.pid for job in holders))
    many = [jobs.start(["sh", "-c", "echo $0", str(index)], ",".join(names)) for index in range(30)]
    jobs.until(lambda: all(job in jobs.status for job in many))
    assert [bytes(jobs.out[job]) for job in many] == [b"%d\n" % index for index in range(30)]
    assert {jobs.status[job].host for job in many} == {"s2"}
    for job in holders:
        job.signal(signal.SIGTERM)
    jobs.all()


def test_no_more_jobs_run_on_a_host_than_it_has_slots(jobs: Jobs) -> None:
    name = jobs.lab.alias("s3", "h3", slots=2)
    count = "mkdir $$.runs && set -- *.runs && echo $#; sleep 0.02; rmdir $$.runs"
    where = str(jobs.lab["h3"].path_of("counted"))
    jobs.start(["mkdir", "-p", where], "h3")
    jobs.all()
    many = [jobs.start(["sh", "-c", f"cd {where} && {count}"], name) for _ in range(12)]
    jobs.all()
    assert all(jobs.status[job].code == 0 for job in many)
    assert {int(jobs.out[job]) for job in many} <= {1, 2}


def test_slots_that_others_hold_are_asked_for_again(jobs: Jobs) -> None:
    name = jobs.lab.alias("s4", "h1", slots=1)
    other = Jobs(jobs.lab)
    holder = other.start(["cat"], name, lambda room: None)
    other.until(lambda: holder.pid)
    job = jobs.start(["true"], name)
    jobs.until(lambda: jobs.batch._core.due is not None)
    assert not job.over and jobs.batch.waiting == 1
    holder.signal(signal.SIGTERM)
    other.all()
    other.batch.close()
    jobs.all()
    assert jobs.status[job].code == 0


def test_what_a_host_has_not_begun_goes_to_one_that_appears(line: Proxy, jobs: Jobs, tmp_path: Path) -> None:
    """Short jobs make the node send more than there are slots for; then two long ones hold the slots."""
    lab, go = jobs.lab, tmp_path / "go"
    line.delay(0.03)
    lab.alias("far", "h1", line, tags=["x"], slots=2)
    for _ in range(40):
        jobs.start(["true"], "@x")
    jobs.all()
    held = ["sh", "-c", f"echo up; until test -e {go}; do sleep 0.02; done"]
    long = [jobs.start(held, "@x") for _ in range(2)]
    jobs.until(lambda: all(jobs.out[job] for job in long))
    short = [jobs.start(["true"], "@x") for _ in range(8)]
    while jobs.batch.waiting == 8:
        jobs.batch.turn(1)
    lab.alias("near", "h2", tags=["x"], slots=4)
    jobs.batch.recall("far")
    jobs.until(lambda: all(job in jobs.status for job in short))
    assert {jobs.status[job].host for job in short} == {"near"} and not any(job.over for job in long)
    go.touch()
    jobs.all()
    assert {status.state for status in jobs.status.values()} == {"exited"}


def test_a_host_that_dies_takes_what_it_was_given_and_no_more(jobs: Jobs) -> None:
    """Its caller tries again what was never started: each item runs once, or is lost and may have run."""
    names = [jobs.lab.alias(f"s{index}", f"h{index}", slots=2) for index in (1, 2)]
    for name in names:  # both are dialled, so that each gets its share
        jobs.start(["true"], name)
    jobs.all()
    log = jobs.lab.work / "ran"
    ended: dict[int, Status] = {}
    avoid: list[str] = []

    def start(item: int) -> None:
        def over(status: Status) -> None:
            if status.state == "unreachable":
                avoid.append(status.host)
                start(item)
                return
            ended[item] = status
            if [each.host for each in ended.values()].count("s2") == 5 and status.host == "s2":
                jobs.lab["h2"].crash()

        spawn = Spawn(
            ["sh", "-c", f"echo $0 >>{log}; sleep 0.05", str(item)],
            where=",".join(names),
            context={"inventory": str(jobs.lab.inventory), "avoid": avoid},
        )
        jobs.batch.start(spawn, on_exit=over)

    for item in range(60):
        start(item)
    jobs.all()
    ran = [int(line) for line in log.read_text().split()]
    lost = {item for item, status in ended.items() if status.state == "lost"}
    done = {item for item, status in ended.items() if status.state == "exited" and status.code == 0}
    assert len(ended) == 60 and lost | done == set(range(60))
    assert all(ended[item].host == "s2" for item in lost) and {ended[item].host for item in done} == {
        "s1",
        "s2",
    }
    assert len(ran) == len(set(ran)) and done <= set(ran)
