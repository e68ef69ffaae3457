"""The state machine of many jobs without a process around it: a node's session at the other end, a clock of its own."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from transport.client import batch_core
from transport.client.batch_core import BatchCore
from transport.client.batch_job import BatchJob, Functions
from transport.client.feed import PAUSE, UNSTARTED
from transport.errors import Refused
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.flow import INITIAL_WINDOW
from transport.wire.frames import CHUNK, LIFE, Frame, Kind
from transport.wire.session import STDERR, STDIN, STDOUT, Session


class Served:
    """One job as the node of a test has it."""

    def __init__(self, number: int, spawn: dict[str, Any]) -> None:
        self.number = number
        self.spawn = spawn
        self.stdin = bytearray()
        self.ended = False  # its input
        self.signals: list[str] = []
        self.withdrawn = False  # its caller wants it back


class Node:
    """A core, the node's session at its other end, and what each of them has been told."""

    def __init__(self) -> None:
        self.core = BatchCore("/log")
        self.core.on_request = self.asked = list[Frame]().append
        self.served: dict[int, Served] = {}
        self.gone: list[Served] = []  # that nobody waits for any more
        self.exits: dict[str, list[Status]] = {}
        self.out: dict[str, bytearray] = {}
        self.reads = True
        self.connect()

    def connect(self) -> None:
        self.served = {}
        self.session = Session(opener=False, hello={})
        self.core.connected(Session(opener=True, hello={"build": "b"}))

    def add(
        self,
        argv: str = "true",
        where: str = "any",
        stdin: bytes | Callable[[int], bytes | None] = b"",
        output: Callable[[int, memoryview], int | None] | None = None,
        started: Callable[[int, str], None] | None = None,
        adopt: bool = False,
        **context: Any,
    ) -> BatchJob:
        spawn = Spawn([argv], where=where, adopt=adopt, keep=adopt, context=context)
        self.out[spawn.id] = got = bytearray()
        exits = self.exits[spawn.id] = []

        def take(stream: int, data: memoryview) -> int | None:
            got.extend(data)
            return None if self.reads else 0

        on = Functions(started, output or take, None, exits.append)
        return self.core.add(spawn, stdin, on, {})

    def status(self, job: BatchJob) -> Status | None:
        found = self.exits[job.spawn.id]
        assert len(found) <= 1
        return found[0] if found else None

    def carry(self) -> Node:
        """Move the bytes of both ends until neither has any."""
        moved = True
        while moved:
            moved = False
            self.core.pump()
            assert self.core.session
            while chunks := self.core.session.pull(1 << 16):
                moved = True
                for frame in self.session.receive(b"".join(chunks)):
                    self.on_frame(frame)
                self.core.pump()
            while chunks := self.session.pull(1 << 16):
                moved = True
                self.core.receive(b"".join(chunks))
            self.core.tell()
        return self

    def on_frame(self, frame: Frame) -> None:
        if frame.kind == Kind.SPAWN:
            self.served[frame.channel] = Served(frame.channel, frame.body())
            return
        served = self.served[frame.channel]
        if frame.kind == Kind.DATA:
            served.stdin += frame.payload
        elif frame.kind == Kind.EOF:
            served.ended = True
        elif frame.kind == Kind.SIGNAL:
            served.signals.append(str(frame.body()["signal"]))
        elif frame.kind == Kind.NOTE:
            served.withdrawn = "withdraw" in frame.body()
        elif frame.stream == LIFE and frame.kind in (Kind.ACK, Kind.STOP):
            del self.served[frame.channel]
            if frame.kind == Kind.STOP:
                self.gone.append(served)

    def of(self, job: BatchJob) -> Served:
        return next(each for each in self.served.values() if each.spawn["id"] == job.spawn.id)

    def start(self, job: BatchJob, pid: int = 7) -> Node:
        self.session.tell(self.of(job).number, Kind.ATTACH, {"pid": pid, "host": "h1"})
        return self.carry()

    def print(self, job: BatchJob, data: bytes) -> Node:
        self.session.data(self.of(job).number, STDOUT, data)
        return self.carry()

    def end(self, served: Served, status: Status) -> None:
        for stream in (STDOUT, STDERR):
            if not self.session.flow(served.number, stream).ended:
                self.session.eof(served.number, stream)
        self.session.tell(served.number, Kind.EXIT, status.to_json())

    def exit(self, job: BatchJob, status: Status | None = None) -> Node:
        self.end(self.of(job), status or Status("exited", 0))
        return self.carry()

    def full(self, job: BatchJob) -> None:
        served = self.of(job)
        self.session.tell(served.number, Kind.NOTE, {"full": True, "host": "h1"})
        self.end(served, Status("unreachable", 69, detail="no free slot"))


@pytest.fixture
def node() -> Node:
    return Node().carry()


def test_jobs_on_one_connection_have_their_own_input_output_and_end(node: Node) -> None:
    jobs = [node.add(stdin=b"in %d" % index) for index in range(10)]
    node.carry()
    for index, job in enumerate(jobs):
        assert bytes(node.of(job).stdin) == b"in %d" % index and node.of(job).ended
    for index, job in reversed(list(enumerate(jobs))):
        node.start(job, pid=100 + index).print(job, b"out %d" % index).exit(job, Status("exited", index))
    for index, job in enumerate(jobs):
        status = node.status(job)
        assert status and status.code == index and node.out[job.spawn.id] == b"out %d" % index
        assert job.pid == 100 + index and job.host == "h1"
    assert len(node.core) == 0 and not node.served


def test_what_runs_and_ends_is_told_in_order_and_from_within_nothing_else() -> None:
    node = Node()
    heard: list[str] = []
    job = node.add(
        started=lambda pid, host: heard.append(f"started {pid} {host}"),
        output=lambda stream, data: heard.append(f"{stream} {bytes(data)!r}"),
    )
    node.carry().start(job)
    node.session.data(node.of(job).number, STDERR, b"x")
    assert heard == ["started 7 h1"]
    node.exit(job)
    assert heard == ["started 7 h1", "2 b'x'"] and node.status(job)
    other = node.add()
    other.abandon()
    assert node.status(other) is None and len(node.core) == 1  # its caller is in the middle of a call
    node.carry()
    assert node.status(other) and len(node.core) == 0


def test_nothing_is_sent_to_a_node_that_has_not_greeted() -> None:
    node = Node()
    job = node.add(stdin=b"x")
    node.core.pump()
    assert node.core.waiting == 1 and not job.number
    node.core.lost("")
    assert node.core.waiting == 1 and not job.over
    node.connect()
    node.carry().start(job).exit(job)
    assert node.status(job) == Status("exited", 0)


def test_a_node_that_ends_loses_what_was_sent_and_nothing_that_waits(node: Node) -> None:
    jobs = [node.add() for _ in range(UNSTARTED + 2)]
    node.carry()
    node.start(jobs[0])  # one more is sent for it
    assert node.core.waiting == 1 and node.core.under_way == UNSTARTED + 1
    node.core.lost("")
    node.core.tell()
    first, second, last = (node.status(job) for job in (jobs[0], jobs[1], jobs[-1]))
    assert first and first.state == "lost" and "was started (pid 7)" in first.detail and "/log" in first.hint
    assert second and second.state == "lost" and "whether it was started is not known" in second.detail
    assert last is None
    node.connect()
    node.carry().start(jobs[-1]).exit(jobs[-1])
    assert node.status(jobs[-1]) == Status("exited", 0) and len(node.core) == 0


def test_a_job_of_an_earlier_connection_touches_none_of_the_next(node: Node) -> None:
    old = node.add()
    node.carry().start(old)
    node.core.lost("")
    node.connect()
    new = node.add()
    node.carry().start(new)
    assert new.number == old.number
    for call in (old.abandon, old.more, lambda: old.consumed(STDOUT, 0), lambda: old.refuse(STDOUT)):
        call()
    old.signal(signal.SIGTERM)
    node.carry()
    assert not new.over and not node.of(new).signals and node.core.under_way == 1


def test_without_a_node_nothing_was_started(node: Node) -> None:
    jobs = [node.add(), node.add(where="other")]
    withdrawn = node.add()
    withdrawn.abandon()
    node.core.lost("")
    node.core.refuse(Refused("no node", "start one"))
    node.core.tell()
    for job in jobs:
        status = node.status(job)
        assert status and (status.state, status.code, status.hint) == ("unreachable", 69, "start one")
    assert len(node.core) == 0 and (found := node.status(withdrawn)) and "withdrawn" in found.detail


def test_output_that_the_caller_has_not_taken_is_not_acknowledged_and_delays_the_end(node: Node) -> None:
    node.reads = False
    job = node.add()
    node.carry().start(job)
    number, sent = node.of(job).number, 0
    while size := min(CHUNK, node.session.flow(number, STDOUT).credit):
        node.print(job, bytes(size))
        sent += size
    assert sent == INITIAL_WINDOW
    node.exit(job)
    assert not job.over
    job.consumed(STDOUT, sent - 1)
    assert not job.over
    with pytest.raises(ValueError):
        job.consumed(STDOUT, 2)
    job.consumed(STDOUT, 1)
    assert job.over and node.carry().status(job) == Status("exited", 0)


def test_a_caller_that_takes_nothing_stops_no_other_job(node: Node) -> None:
    slow, quick = node.add(output=lambda stream, data: 0), node.add()
    node.carry().start(slow).start(quick)
    node.print(slow, bytes(CHUNK))
    sent = 0
    while sent < 20 * INITIAL_WINDOW:
        size = min(CHUNK, node.session.flow(node.of(quick).number, STDOUT).credit)
        assert size
        node.print(quick, bytes(size))
        sent += size
    assert (
        len(node.out[quick.spawn.id]) == sent and node.session.flow(node.of(slow).number, STDOUT).acked == 0
    )


def test_a_caller_that_takes_no_more_ends_the_stream_over_there(node: Node) -> None:
    gone, failed = node.add(output=lambda stream, data: 0), node.add(output=lambda stream, data: 0)
    node.carry().start(gone).start(failed)
    node.print(gone, b"abc").print(failed, b"abc")
    gone.refuse(STDOUT)
    failed.refuse(STDOUT, "No space left on device")
    node.carry()
    assert all(node.session.flow(node.of(job).number, STDOUT).stopped for job in (gone, failed))
    node.exit(gone, Status("signaled", 141, "PIPE")).exit(failed)
    assert node.status(gone) == Status("signaled", 141, "PIPE")
    status = node.status(failed)
    assert (
        status and status.state == "lost" and status.detail == "cannot write stdout: no space left on device"
    )


def test_input_from_a_function_is_asked_for_when_the_job_runs_and_as_far_as_there_is_room(node: Node) -> None:
    asked: list[int] = []
    more = iter([b"abc", None, b"d" * CHUNK, b""])

    def give(room: int) -> bytes | None:
        asked.append(room)
        return next(more)

    job = node.add(stdin=give)
    assert node.carry().of(job).stdin == b"" and not asked
    node.start(job)
    assert node.of(job).stdin == b"abc" and len(asked) == 2
    job.more()
    node.carry()
    assert bytes(node.of(job).stdin) == b"abc" + b"d" * CHUNK and node.of(job).ended
    assert asked == [CHUNK, CHUNK, CHUNK, INITIAL_WINDOW - CHUNK - 3]


def test_endless_input_takes_turns_with_that_of_others_and_a_bounded_queue(node: Node) -> None:
    jobs = [node.add(stdin=lambda room: bytes(room)) for _ in range(40)]
    for job in jobs:
        node.carry().start(job)
    for job in jobs:
        node.session.ack(node.of(job).number, STDIN, len(node.of(job).stdin))
    while chunks := node.session.pull(1 << 16):
        node.core.receive(b"".join(chunks))
    node.core.pump()
    assert node.core.session
    assert batch_core.QUEUED <= node.core.session.pending < batch_core.QUEUED + CHUNK and not node.core.busy
    node.carry()
    assert {len(node.of(job).stdin) for job in jobs} == {3 * INITIAL_WINDOW}  # the window has grown


def test_input_that_nobody_reads_is_not_asked_for(node: Node) -> None:
    class Source:
        closed = False

        def __call__(self, room: int) -> bytes:
            return bytes(room)

        def close(self) -> None:
            self.closed = True

    source = Source()
    job = node.add(stdin=source)
    node.carry().start(job)
    node.session.stop(node.of(job).number, STDIN)
    node.carry()
    assert source.closed and job.room == 0
    node.exit(job)
    assert node.status(job) == Status("exited", 0)


def test_a_signal_reaches_its_job_or_ends_one_that_has_not_started(node: Node) -> None:
    runs, sent, waits = (node.add(where=where) for where in ("a", "a", "b"))
    node.carry().start(runs)
    waits = node.add(where="b")
    runs.signal(signal.SIGUSR1)
    runs.signal(signal.SIGTERM)
    for job in (sent, waits):
        job.signal(signal.SIGUSR1)
        assert not job.over
        job.signal(signal.SIGTERM)
    node.carry()
    assert node.of(runs).signals == ["USR1", "TERM"] and not runs.over
    assert node.status(sent) == Status("signaled", 143, "TERM")
    never = node.status(waits)
    assert never and (never.state, never.code) == ("unreachable", 69), "it was not even sent"
    assert [each.spawn["id"] for each in node.gone] == [sent.spawn.id]


def test_a_job_that_is_not_waited_for_is_ended_over_there(node: Node) -> None:
    job = node.add()
    node.carry().start(job)
    job.abandon()
    node.carry()
    status = node.status(job)
    assert status and status.state == "lost" and status.pid == 7 and len(node.gone) == 1
    assert len(node.core) == 0 and not node.core.session.channels  # type: ignore[union-attr]


def test_a_job_that_is_given_up_while_its_output_is_handed_over_ends_once(node: Node) -> None:
    job = node.add(output=lambda stream, data: job.abandon())
    node.carry().start(job)
    node.session.data(node.of(job).number, STDOUT, b"x")
    node.session.data(node.of(job).number, STDERR, b"x")
    node.carry()
    assert len(node.exits[job.spawn.id]) == 1 and len(node.gone) == 1 and len(node.core) == 0


def test_a_spawn_that_no_node_would_take_ends_alone(node: Node) -> None:
    bad, good = node.add("a\0b"), node.add()
    node.carry().start(good).exit(good)
    status = node.status(bad)
    assert status and (status.state, status.code) == ("unreachable", 2) and node.status(good)


# ------------------------------------------------------------------------------------------ late binding


def test_only_so_many_are_sent_that_have_not_started(node: Node) -> None:
    jobs = [node.add() for _ in range(3 * UNSTARTED)]
    other = node.add(where="other")
    node.carry()
    assert len(node.served) == UNSTARTED + 1 and node.of(other)
    node.start(jobs[0]).start(jobs[1])
    assert len(node.served) == UNSTARTED + 3
    node.exit(jobs[0])  # it had started: its end makes no room
    assert len(node.served) == UNSTARTED + 2
    node.exit(jobs[2], Status("unreachable", 69))
    assert len(node.served) == UNSTARTED + 2


def test_a_full_node_gives_jobs_back_and_gets_them_when_others_end(node: Node) -> None:
    jobs = [node.add(stdin=b"%d" % index) for index in range(4)]
    node.carry().start(jobs[0])
    for index in (2, 1, 3):
        node.full(jobs[index])
    node.carry()
    assert node.core.waiting == 3 and all(not job.over and not job.number for job in jobs[1:])
    node.exit(jobs[0])
    assert [each.spawn["id"] for each in node.served.values()] == [jobs[1].spawn.id]
    assert bytes(node.of(jobs[1]).stdin) == b"1" and node.of(jobs[1]).ended
    node.session.tell(node.of(jobs[1]).number, Kind.NOTE, {"room": 3, "seen": node.of(jobs[1]).number})
    node.carry()
    assert node.core.waiting == 0, "one of these places is that of the job itself"
    assert [each.spawn["id"] for each in node.served.values()] == [job.spawn.id for job in jobs[1:]]
    for job in jobs[1:]:
        node.start(job).exit(job)
    assert all(node.status(job) == Status("exited", 0) for job in jobs)


def test_places_that_a_node_tells_of_are_not_taken_twice(node: Node) -> None:
    """The same places are told of with each end, until the node has seen the jobs that take them."""
    jobs = [node.add() for _ in range(12)]
    node.carry()
    for job in jobs[:4]:
        node.start(job)
    for job in reversed(jobs[4:]):
        node.full(job)
    node.carry()
    seen = node.session.highest
    for job in jobs[:2]:
        node.session.tell(node.of(job).number, Kind.NOTE, {"room": 4, "seen": seen})
        node.carry()
        assert len(node.served) == 7, "4 that have started, and 3 beside the place of the job"
    node.exit(jobs[0])
    assert len(node.served) == 7, "its own place"


def test_a_full_node_is_tried_again_when_the_slots_belong_to_others(node: Node) -> None:
    job = node.add()
    assert node.carry().core.due is None
    for _ in range(2):
        node.full(job)
        node.carry()
        assert not node.served and node.core.due == node.core.now + PAUSE
        node.core.now += PAUSE
        node.carry()
        assert node.of(job)
    node.start(job).exit(job)
    assert node.status(job) == Status("exited", 0) and node.core.due is None


def test_a_full_node_is_tried_again_while_a_job_that_it_took_runs_on(node: Node) -> None:
    """Others may have left their slots, and the job may run for hours. A start shows that there is room for more."""
    jobs = [node.add() for _ in range(3)]
    node.carry()
    for job in reversed(jobs):
        node.full(job)
    assert not node.carry().served
    node.core.now += PAUSE
    node.carry().start(jobs[0])
    assert len(node.served) == 2, "the next one follows the start"
    node.full(jobs[1])
    assert len(node.carry().served) == 1
    node.core.now += PAUSE
    node.carry().start(jobs[1])
    node.carry().start(jobs[2])
    assert node.core.waiting == 0


def test_a_try_that_avoids_a_host_and_finds_the_others_full_holds_up_no_other_job(node: Node) -> None:
    first, picky, other, more = (node.add(avoid=["h1"] if index == 1 else []) for index in range(4))
    node.carry().start(first)
    node.full(more)
    node.full(other)
    node.full(picky)
    assert len(node.carry().served) == 1
    node.exit(first)
    assert [each.spawn["id"] for each in node.served.values()] == [picky.spawn.id, other.spawn.id]
    node.full(picky)
    node.carry().start(other).exit(other)
    assert [each.spawn["id"] for each in node.served.values()] == [picky.spawn.id, more.spawn.id]
    node.start(more).start(picky).exit(more).exit(picky)
    assert node.core.waiting == 0 and node.core.due is None


def test_what_takes_no_slot_does_not_wait_for_one(node: Node) -> None:
    jobs = [node.add() for _ in range(2)]
    node.carry().start(jobs[0]).full(jobs[1])
    assert len(node.carry().served) == 1
    control, adopted = node.add(control=True), node.add(adopt=True)
    assert {each.spawn["id"] for each in node.carry().served.values()} > {control.spawn.id, adopted.spawn.id}
    node.core.recall("h1")
    node.carry()
    assert not node.of(control).withdrawn and not node.of(adopted).withdrawn


def test_a_job_that_is_withdrawn_while_it_waits_for_a_slot_holds_up_none_that_comes_later(node: Node) -> None:
    one, two = (node.add() for _ in range(2))
    node.carry().start(one).full(two)
    node.carry()
    two.withdraw()
    node.core.now += PAUSE
    node.carry()
    three, four = (node.add() for _ in range(2))
    node.core.now += PAUSE
    node.carry()
    node.core.now += PAUSE
    node.carry()
    assert {three.spawn.id, four.spawn.id} < {each.spawn["id"] for each in node.served.values()}


def test_a_node_that_refuses_for_another_reason_ends_the_job(node: Node) -> None:
    job = node.add()
    node.carry().exit(job, Status("unreachable", 69, detail="no such host"))
    assert node.status(job) == Status("unreachable", 69, detail="no such host")


# --------------------------------------------------------------------------------------------- at random


@pytest.mark.parametrize("seed", range(40))
def test_whatever_happens_each_job_ends_once_with_its_own_bytes(seed: int) -> None:
    """Jobs of several WHEREs, a node that starts, prints, ends and refuses at random and is lost now and then."""
    random = Random(seed)
    node = Node()
    jobs: dict[str, BatchJob] = {}
    given: dict[str, bytes] = {}
    printed: dict[str, bytearray] = {}
    lost: set[str] = set()
    owed: dict[str, int] = {}

    def output(name: str) -> Callable[[int, memoryview], int | None]:
        def take(stream: int, data: memoryview) -> int | None:
            node.out[name].extend(data)
            taken = random.choice([None, 0, len(data) // 2, len(data)])
            owed[name] = owed.get(name, 0) + (0 if taken is None else len(data) - taken)
            return taken

        return take

    def add() -> None:
        data = random.randbytes(random.choice([0, 10, 1000, 100_000]))
        job = node.add(where=random.choice("abc"), stdin=data if random.random() < 0.5 else pieces(data))
        job.on.output = output(job.spawn.id)
        jobs[job.spawn.id], given[job.spawn.id], printed[job.spawn.id] = job, data, bytearray()

    def pieces(data: bytes) -> Callable[[int], bytes | None]:
        at = 0

        def give(room: int) -> bytes | None:
            nonlocal at
            if random.random() < 0.2:
                return None
            at += (size := random.randint(1, room))
            return data[at - size : at]

        return give

    def serve(served: Served, all_of_it: bool) -> None:
        name, number = served.spawn["id"], served.number
        channel, flow = node.session.channels[number], node.session.flow(number, STDOUT)
        if channel.state == "opening":
            if not all_of_it and random.random() < 0.3:
                return node.full(jobs[name])
            node.session.tell(number, Kind.ATTACH, {"pid": 7})
        elif channel.state == "running":
            node.session.took(number, STDIN, len(served.stdin))
            if size := min(flow.credit, random.choice([1, 5000, CHUNK])):
                data = random.randbytes(size)
                printed[name] += data
                node.session.data(number, STDOUT, data)
            if served.ended and (all_of_it or random.random() < 0.3):
                assert served.stdin == given[name]
                node.end(served, Status("exited", 3))
        return None

    def turn(all_of_it: bool) -> None:
        node.carry()
        for served in list(node.served.values()):
            if all_of_it or random.random() < 0.4:
                serve(served, all_of_it)
        node.carry()
        for name, job in jobs.items():
            if owed.get(name) and (all_of_it or random.random() < 0.5):
                count, owed[name] = owed[name], 0
                if not job.over:
                    job.consumed(STDOUT, count)
            job.more()
        node.core.now += 0.1

    for _ in range(60):
        if random.random() < 0.5:
            add()
        turn(all_of_it=False)
        if random.random() < 0.03:
            lost |= {each.spawn["id"] for each in node.served.values()}
            node.core.lost(random.choice(["", "broken"]))
            node.core.tell()
            node.connect()
    while len(node.core):
        turn(all_of_it=True)
    node.carry()
    assert not node.served and node.core.session and not node.core.session.channels
    assert not node.core._feeds and not node.core._full and not node.core._ready
    for name, job in jobs.items():
        status = node.status(job)
        assert status and (status.state == "exited" or name in lost), status
        if status.state == "exited":
            assert node.out[name] == printed[name] and status.code == 3


def test_a_kept_job_that_was_severed_before_it_was_answered_is_forgotten_without_a_word() -> None:
    node = Node()
    job = node.add()
    job.spawn.keep = True
    node.carry()
    assert node.served and not job.pid
    node.core.lost("")
    assert job.over and job.severed
    job.forget()
    assert not job.session.pull(1 << 16)


def test_a_kept_job_whose_start_was_not_heard_of_ends_as_its_host_says(node: Node) -> None:
    """It may have run, and ended. It gets the signals, or is withdrawn and not sent again."""
    back, ended = node.add(), node.add()
    for job in (back, ended):
        job.spawn.keep = True
    node.carry()
    for job in (back, ended):
        job.signal(signal.SIGTERM)
        job.signal(signal.SIGKILL)
    node.carry()
    assert not back.over and not ended.over
    assert node.of(back).withdrawn and node.of(ended).signals == ["TERM", "KILL"]
    node.full(back)
    node.start(ended).exit(ended)
    assert node.status(back) == Status("unreachable", 69)
    assert node.status(ended) == Status("exited", 0)
    assert len(node.core) == 0


@pytest.mark.parametrize(
    "kept",
    [
        *(
            None,
            [],
            {"base": [0, 0], "seconds": 1},
            {"base": [0, 0, 1 << 62], "seconds": 1},
            {"base": [0] * 3},
        ),
        *({"base": [0] * 3, "seconds": seconds} for seconds in (10**400, 1e308, -1, True, "1")),
    ],
)
def test_an_adopted_job_of_a_host_that_lies_is_lost_and_the_others_go_on(node: Node, kept: object) -> None:
    adopted, other = node.add(adopt=True), node.add()
    node.carry().session.tell(node.of(adopted).number, Kind.ATTACH, {"pid": 7, "host": "h1", "kept": kept})
    node.carry()
    status = node.status(adopted)
    assert status and (status.state, status.pid, status.host) == ("lost", 7, "h1"), status
    assert "no facts" in status.detail and [each.spawn["id"] for each in node.gone] == [adopted.spawn.id]
    node.start(other).exit(other)
    assert node.status(other) == Status("exited", 0)


def test_a_job_that_was_never_sent_is_forgotten_without_a_word(node: Node) -> None:
    """It has no session: the client died of it."""
    job = node.add(adopt=True)
    job.abandon()
    job.forget()
    assert job.over and not node.carry().served
