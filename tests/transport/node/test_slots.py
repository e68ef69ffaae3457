"""The slots of a host, as its node gives them out, and the turns of the jobs that wait on that host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transport.errors import Refused
from transport.node.host import Host, Met
from transport.node.link import Link
from transport.node.relay import Relay
from transport.node.slots import FRESH, FULL, LATELY, MOST_AHEAD, SILENCE, Slots
from transport.node.turns import Turns
from transport.spawn import Spawn
from transport.status import Status
from transport.wire.frames import GREETING, LIFE, Frame, Kind, encode
from transport.wire.session import Session


class Caller:
    """One client of the node, whose jobs go to a host that this test plays."""

    def __init__(self, limit: int, elsewhere: bool = False) -> None:
        self.slots = Slots("h1", lambda groups: elsewhere)
        self.slots.limit = limit
        self.processors = 0  # this is the host, too
        self.sent: list[Relay] = []
        self.session = Session(False, None)
        self.session.peer = {"build": "x"}
        self.link = Link(self.session, "client", lambda *_: cast(Any, None), lambda *_: None)
        self._first = GREETING
        self._number = -1
        self.loop = asyncio.get_running_loop()
        self.now = 100.0
        self.loop.time = lambda: self.now  # type: ignore[method-assign]

    def begin(self, relay: Relay, spawn: Spawn, unreachable: Callable[..., None]) -> None:
        self.sent.append(relay)

    def job(self, late: bool = True, bounded: bool = False) -> Relay:
        self._number += 2
        tuple(self.session.receive(self._first + encode(Frame(Kind.SPAWN, self._number, payload=b"{}"))))
        self._first = b""
        relay = Relay(self.link, self._number, "h1", lambda _: None)
        host, spawn = cast(Host, self), Spawn(["true"])
        if late:
            self.slots.submit_late(relay, host, spawn, bounded)
        else:
            self.slots.submit(relay, host, spawn)
        return relay

    def start(self, relay: Relay) -> None:
        relay.started = True
        self.slots.started(relay)

    async def wait(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(2):
            await asyncio.sleep(0)

    def run(self, relay: Relay, way: float, seconds: float) -> None:
        """Start and end a job; the news of its start comes `way` after it was sent."""
        self.now += way
        relay.started = True
        self.slots.started(relay)
        self.now += seconds
        self.slots.exiting(relay)
        relay.end()

    def notes(self, name: str) -> list[Any]:
        """The values of one key of all notes since the last call."""
        words = b"".join(self.session.pull(1 << 20))
        peer = Session(True, {})
        tuple(peer.receive(GREETING + encode(Frame(Kind.HELLO, payload=b'{"version":2}'))))
        peer._next = self._number + 2
        for number in range(1, self._number + 1, 2):
            peer.channels[number] = type(self.session.channels[1])(number, True, False)
        found = [frame.body() for frame in peer.receive(words) if frame.kind == Kind.NOTE]
        return [body[name] for body in found if name in body]


def test_a_late_job_without_a_slot_is_given_back_and_another_waits() -> None:
    async def main() -> None:
        caller = Caller(2)
        one, _, three = (caller.job() for _ in range(3))
        assert len(caller.sent) == 2 and three.ended and caller.notes("full") == [True]
        four = caller.job(late=False)
        assert four.queued and caller.slots.used == 3
        one.end()
        assert caller.sent[-1] is four and caller.slots.used == 2

    asyncio.run(main())


def test_a_host_without_slots_has_as_many_late_jobs_as_processors_once_it_has_told_of_them() -> None:
    async def main() -> None:
        caller = Caller(0)
        first, second = (caller.job(bounded=True) for _ in range(2))
        assert caller.sent == [first] and second.ended and caller.notes("full") == [True]
        assert caller.slots.load(caller.link, True, True) > caller.slots.load(caller.link, True, False) == 1
        plain = caller.job(late=False)
        assert caller.sent == [first, plain], "it is no late job"
        caller.processors = 4
        caller.start(first)
        assert caller.notes("room") == [4], "one of four is taken, and one of the room is that of the first"
        late = [caller.job(bounded=True) for _ in range(4)]
        assert caller.sent[2:] == late[:3] and late[3].ended and caller.notes("full") == [True]
        assert not caller.job().ended, "its caller has named a number"

    asyncio.run(main())


def test_a_caller_that_was_refused_gets_the_places_that_the_other_one_leaves_until_it_has_as_many() -> None:
    async def main() -> None:
        one, other = Caller(4), Caller(4)
        other.slots = one.slots
        held = [one.job() for _ in range(4)]
        assert other.job().ended and other.notes("full") == [True]
        for share in (1, 2):
            held.pop().end()
            assert one.job().ended, "the place is for the one that waits"
            assert not other.job().ended and len(other.sent) == share
            assert other.job().ended, "all are taken"
        held.pop().end()
        assert not one.job().ended, "each has half of them"
        held.pop().end()
        one.now = other.now = one.now + LATELY
        assert not one.job().ended, "the other one has not asked for long"

    asyncio.run(main())


def test_two_callers_take_turns_in_one_slot() -> None:
    """Jobs of 0.3 s: the caller of one that ends asks at once, the other one each 0.5 s. Most of the time is used."""

    async def main() -> None:
        callers = one, other = Caller(1), Caller(1)
        other.slots = one.slots
        ran, owner, under_way, ends = [1, 0], 0, one.job(), 0.3
        for tick in range(1, 600):
            one.now = other.now = 100.0 + tick / 10
            if under_way and tick / 10 >= ends:
                under_way.end()
                under_way = None
            asks = ([owner] if not under_way else []) + ([1 - owner] if tick % 5 == 0 else [])
            for number in asks:
                job = callers[number].job()
                if not job.ended:
                    owner, under_way, ends = number, job, tick / 10 + 0.3
                    ran[number] += 1
        assert sum(ran) > 0.7 * 200 and min(ran) > 0.3 * sum(ran), ran

    asyncio.run(main())


@pytest.mark.parametrize("first", ["plain", "numbered"])
def test_only_jobs_whose_number_is_left_to_the_host_count_against_its_processors(first: str) -> None:
    async def main() -> None:
        caller = Caller(0)
        caller.processors = caller.slots.processors = 2
        for _ in range(5):
            assert not caller.job(late=first == "numbered").ended
        assert [caller.job(bounded=True).ended for _ in range(3)] == [False, False, True]

    asyncio.run(main())


def test_a_job_that_ends_in_the_queue_leaves_it() -> None:
    async def main() -> None:
        caller = Caller(1)
        first, second, third = (caller.job(late=False) for _ in range(3))
        assert caller.notes("ahead") == [0, 1]
        second.end()
        assert caller.slots.used == 2
        first.end()
        assert caller.sent == [first, third] and caller.slots.used == 1

    asyncio.run(main())


@pytest.mark.parametrize(
    ("way", "seconds", "ahead"),
    [(1 / 8, 1 / 64, 64), (1 / 8, 16.0, 0), (1 / 8, 1 / 2, 2), (8.0, 1 / 64, MOST_AHEAD)],
)
def test_a_host_is_given_what_it_begins_in_a_round_trip_beyond_its_slots(
    way: float, seconds: float, ahead: int
) -> None:
    async def main() -> None:
        caller = Caller(8)
        first = [caller.job() for _ in range(9)]
        assert len(caller.sent) == 8 and caller.notes("full") == [True]
        caller.run(first[0], way, seconds)
        assert caller.notes("room") == ([ahead + 1] if ahead else [])
        while not caller.job().ended:
            pass
        assert caller.slots.used == 8 + ahead

    asyncio.run(main())


def test_a_job_that_is_not_late_waits_here_where_its_caller_is_told() -> None:
    async def main() -> None:
        caller = Caller(1)
        caller.run(caller.job(), 1 / 8, 1 / 64)
        holder, sent_ahead = caller.job(), caller.job()
        assert caller.sent[-2:] == [holder, sent_ahead]
        job = caller.job(late=False)
        assert job.queued and caller.notes("waiting") == [True]
        behind = caller.job()
        assert behind.queued, "jobs are served in order"
        holder.end()
        assert job.queued
        sent_ahead.end()
        assert caller.sent[-2:] == [job, behind]

    asyncio.run(main())


def test_a_job_that_never_started_says_nothing_of_durations() -> None:
    async def main() -> None:
        caller = Caller(1)
        job = caller.job()
        caller.slots.exiting(job)
        job.refuse(Status("unreachable", 69))
        job.end()
        caller.job()
        assert caller.job().ended and not caller.slots._began.keys() - set(caller.sent)

    asyncio.run(main())


@pytest.mark.parametrize("limit", [0, 8])
def test_a_silent_host_keeps_one_late_job_of_a_caller_until_it_is_reached(limit: int) -> None:
    async def main() -> None:
        caller = Caller(limit, elsewhere=True)
        plain, first, *others = caller.job(late=False), *(caller.job() for _ in range(5))
        await caller.wait(SILENCE / 2)
        assert caller.slots.used == 6 and not caller.slots.silent
        await caller.wait(SILENCE / 2)
        assert not (plain.ended or first.ended) and all(job.ended for job in others)
        assert caller.job().ended and not caller.job(late=False).ended
        loads = [caller.slots.load(caller.link, late, False) for late in (True, False)]
        assert loads == [2 * FULL + 3, 3], "it comes after those that are full"
        caller.start(first)
        assert caller.slots.load(caller.link, True, False) == 3 and not caller.job().ended
        assert caller.notes("room") == [5, 6 if limit else FULL + 1]

    asyncio.run(main())


def test_jobs_that_a_silent_host_gives_back_are_not_said_to_have_failed() -> None:
    async def main() -> None:
        caller = Caller(0, elsewhere=True)
        for _ in range(5):
            caller.job()
        await caller.wait(SILENCE)
        assert caller.notes("full") == [True] * 4

    asyncio.run(main())


def test_jobs_that_can_go_nowhere_else_wait_for_a_silent_host_together() -> None:
    async def main() -> None:
        caller = Caller(0)
        jobs = [caller.job() for _ in range(5)]
        await caller.wait(SILENCE)
        assert caller.slots.silent and not any(job.ended for job in [*jobs, caller.job()])

    asyncio.run(main())


def test_a_job_that_was_sent_over_a_link_is_not_given_back() -> None:
    async def main() -> None:
        caller = Caller(0, elsewhere=True)
        jobs = [caller.job() for _ in range(3)]
        for job in jobs:
            job.far = job.near
        await caller.wait(SILENCE)
        assert not caller.slots.silent and not any(job.ended for job in jobs)

    asyncio.run(main())


def test_a_host_whose_dial_has_failed_is_silent_from_the_next_one_on() -> None:
    async def main() -> None:
        caller = Caller(0, elsewhere=True)
        first = caller.job()
        caller.slots.refuse_waiting(Refused("no route"))
        assert not caller.slots.silent, "the dial may have been that of another job"
        first.end()
        second = caller.job()
        assert not second.ended and caller.slots.silent and caller.job().ended
        second.end()
        third = caller.job()
        caller.start(third)
        third.end()
        assert not any(caller.job().ended for _ in range(2)), "it was reached"

    asyncio.run(main())


def test_a_host_whose_dial_has_just_failed_is_the_last_choice_of_a_job_that_is_not_late() -> None:
    async def main() -> None:
        caller = Caller(0)
        load, failed = partial(caller.slots.load, caller.link, False, False), Refused("no route")
        first = caller.job(late=False)
        caller.slots.refuse_waiting(failed)
        first.end()
        assert load() == FULL
        caller.now += FRESH
        assert load() == 0, "it may be up again"
        caller.slots.refuse_waiting(failed)
        caller.start(caller.job(late=False))
        assert load() == 1, "it was reached"

    asyncio.run(main())


class Job:
    """A job as the turns of its host see it."""

    def __init__(self, number: int, made: list[str]) -> None:
        self.number = number
        self.made = made

    def start(self) -> None:
        self.made.append(f"start {self.number}")

    def on_frame(self, frame: Frame) -> None:
        self.made.append(f"{frame.kind} {self.number}")

    def on_lost(self, why: str) -> None:
        self.made.append(f"lost {self.number}")

    def on_not_started(self, status: Status) -> None:
        self.made.append(f"{status.state} {self.number}")


def test_jobs_that_wait_on_their_host_begin_in_order_with_the_frames_that_came_meanwhile() -> None:
    async def main() -> None:
        made: list[str] = []
        link = SimpleNamespace(down="", handlers={})
        turns = Turns(cast(Link, link))
        jobs = [Job(number, made) for number in range(5)]
        handlers = [turns.submit(cast(Any, job), 2) for job in jobs]
        assert made == ["start 0", "start 1"] and handlers[:2] == jobs[:2]
        link.handlers[2] = handlers[2]
        handlers[2].on_frame(Frame(Kind.DATA, 2, 0, 0, b"x"))
        handlers[3].on_frame(Frame(Kind.STOP, 3, LIFE))
        turns.ended(cast(Any, jobs[3]))  # as it does when it is stopped
        link.down = "broken"
        handlers[2].on_down("broken")
        turns.ended(cast(Any, jobs[0]))
        await asyncio.sleep(0)
        assert made[2:] == [f"{Kind.STOP} 3"]
        link.down = ""
        handlers[2].on_up()
        assert made[3:] == ["start 2", f"{Kind.DATA} 2"] and link.handlers == {2: jobs[2]}
        turns.ended(cast(Any, jobs[1]))
        await asyncio.sleep(0)
        assert made[5:] == ["start 4"]
        handlers[4].on_frame(Frame(Kind.NOTE, 4, LIFE))
        assert made[6:] == [f"{Kind.NOTE} 4"], "it has begun, and is not withdrawn"

    asyncio.run(main())


def test_a_job_that_waits_on_its_host_is_withdrawn() -> None:
    async def main() -> None:
        made: list[str] = []
        turns = Turns(cast(Link, SimpleNamespace(down="", handlers={})))
        jobs = [Job(number, made) for number in range(2)]
        handlers = [turns.submit(cast(Any, job), 1) for job in jobs]
        handlers[1].on_frame(Frame(Kind.NOTE, 1, LIFE))
        assert made == ["start 0", "unreachable 1"]

    asyncio.run(main())


def test_a_host_is_vouched_for_since_its_node_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    met = Met(7.0)
    monkeypatch.setattr("transport.node.host.boot_clock", lambda: 9.0)
    for life, since in (("one", 7.0), ("one", 7.0), ("two", 9.0), ("two", 9.0)):
        met.greeted(life)
        assert met.since == since
