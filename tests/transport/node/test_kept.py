"""A job behind its keeper, whose openers die at any moment: all bytes both ways, each once, and the exit record."""

from __future__ import annotations

import asyncio
import os
import random
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from transport.node.kept import Attic, Keeper
from transport.spawn import Spawn
from transport.wire.frames import LIFE, Frame, Kind
from transport.wire.session import GOES_ON, STDERR, STDIN, STDOUT, Session

SEEDS = int(os.environ.get("QUINE_TEST_KEPT", 300))  # courses of events
OUTPUT, INPUT = 200_000, 100_000  # bytes of each stream, at most
HELD = 30_000  # bytes that an opener has and has not on record, at most


class Job:
    """A job as its keeper sees it: it takes stdin, and writes as much as it has credit for."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.keeper: Any = None
        self.taken = bytearray()
        self.ended_input = False
        self.told: list[str] = []
        self.outputs = [b"", rng.randbytes(rng.randrange(OUTPUT)), rng.randbytes(rng.randrange(OUTPUT // 10))]
        self.written = [0, 0, 0]

    def on_frame(self, frame: Frame) -> None:
        if frame.stream == STDIN and frame.kind == Kind.DATA:
            self.taken += frame.payload
        elif frame.stream == STDIN and frame.kind == Kind.EOF:
            self.ended_input = True
        elif frame.stream == LIFE:
            self.told.append(f"stop {frame.offset}")

    def on_down(self, why: str) -> None:
        self.told.append("down")

    def on_up(self) -> None:
        self.told.append("up")

    def on_lost(self, why: str) -> None:
        self.told.append("lost")

    def work(self) -> bool:
        """Do something; return whether all is done."""
        keeper = self.keeper
        keeper.took(keeper.number, STDIN, len(self.taken))
        for stream in (STDOUT, STDERR):
            left = self.outputs[stream][self.written[stream] :]
            if piece := left[: min(keeper.flow(keeper.number, stream).credit, self.rng.randrange(1, 60_000))]:
                keeper.data(keeper.number, stream, piece)
                self.written[stream] += len(piece)
            elif not left and not keeper.flow(keeper.number, stream).ended:
                keeper.eof(keeper.number, stream)
        whole = [len(output) for output in self.outputs]
        return self.written == whole and self.ended_input


class Opener:
    """One end of a link with the job's channel, and what of it is on record at its client."""

    def __init__(self, rng: random.Random, data: bytes, record: list[bytearray]) -> None:
        self.rng, self.input, self.record = rng, data, record
        self.near, self.far = Session(True, {}), Session(False, {})
        self.link: Any = SimpleNamespace(
            session=self.far, dead="", remote=True, name="l", wake=lambda: None, forget=lambda number: None
        )
        self.keeper: Any = None
        self.got = [bytearray(part) for part in record]
        self.base = [0, 0, 0]
        self.skip = [0, 0, 0]
        self.sent = -1
        self.exit: Any = None
        self.number = 0

    def open(self, attic: Attic, spawn: Spawn, job: Job | None) -> None:
        """Start the job, or adopt it."""
        self.deliver()
        self.number = self.near.open(Kind.SPAWN, spawn.to_json())
        for part in self.near.pull(1 << 20):
            for _ in self.far.receive(part):
                if job:
                    self.keeper = attic.keeper(self.link, self.number, spawn)
                    self.keeper.behind, job.keeper = job, self.keeper
                else:
                    self.keeper = attic.adopt(self.link, self.number, spawn)

    def deliver(self, most: int = 1 << 30) -> None:
        """Carry some bytes each way."""
        for part in self.near.pull(most):
            for frame in self.far.receive(part):
                if self.keeper:
                    self.keeper.on_frame(frame)
        for part in self.far.pull(most):
            for frame in self.near.receive(part):
                self.take(frame)

    def take(self, frame: Frame) -> None:
        if frame.kind == Kind.ATTACH:
            facts = frame.body().get("kept") or {"base": [0, 0, 0], "input": True}
            self.base, self.sent = facts["base"], facts["base"][STDIN] if facts["input"] else 1 << 30
            self.skip = [0] + [len(self.record[stream]) - self.base[stream] for stream in (1, 2)]
            assert min(self.skip) >= 0, "bytes are gone that no opener had on record"
        elif frame.kind == Kind.DATA:
            again = min(self.skip[frame.stream], len(frame.payload))
            self.skip[frame.stream] -= again
            self.got[frame.stream] += frame.payload[again:]
        elif frame.kind == Kind.EXIT:
            self.exit = frame.body()

    def work(self) -> None:
        """Put on record what has come, acknowledge it, and send some input."""
        for stream in (STDOUT, STDERR):
            if self.rng.random() < 0.5 or len(self.got[stream]) - len(self.record[stream]) > HELD:
                self.record[stream][:] = self.got[stream]
                come = self.near.flow(self.number, stream).offset
                self.near.took(self.number, stream, min(len(self.record[stream]) - self.base[stream], come))
        if 0 <= self.sent <= len(self.input):
            credit = self.near.flow(self.number, STDIN).credit
            piece = self.input[self.sent : self.sent + min(credit, self.rng.randrange(1, 30_000))]
            if piece:
                self.near.data(self.number, STDIN, piece)
                self.sent += len(piece)
            elif self.sent == len(self.input):
                self.near.eof(self.number, STDIN)
                self.sent = 1 << 30

    @property
    def whole(self) -> bool:
        return bool(self.exit) and self.near.channels[self.number].finished


async def course(seed: int) -> None:
    rng = random.Random(seed)
    attic, job, data = Attic(), Job(rng), rng.randbytes(rng.randrange(INPUT))
    record = [bytearray(), bytearray(), bytearray()]
    spawn = Spawn(["x"], id="id", keep=True)
    opener = Opener(rng, data, record)
    opener.open(attic, spawn, job)
    keeper = opener.keeper
    started = exited = False
    while not opener.whole:
        if not started and rng.random() < 0.3:
            started = True
            keeper.tell(keeper.number, Kind.ATTACH, {"id": "id", "pid": 5})
        if started and job.work() and not exited:
            exited = True
            keeper.tell(keeper.number, Kind.EXIT, {"state": "exited", "code": 0})
        opener.deliver(rng.choice([1000, 100_000]))
        opener.work()
        if rng.random() < 0.08:  # the opener dies; the job goes on for a while
            if rng.random() < 0.5:
                opener.near.abandon(opener.number, GOES_ON)
                opener.deliver()
            else:
                opener.link.dead = "gone"
                keeper.on_lost("gone")
            for _ in range(rng.randrange(3)):
                if started and job.work() and not exited:
                    exited = True
                    keeper.tell(keeper.number, Kind.EXIT, {"state": "exited", "code": 0})
            opener = Opener(rng, data, record)
            opener.open(attic, Spawn(["-"], id="id", adopt=True), None)
            assert opener.keeper is keeper
    assert [bytes(part) for part in opener.got[1:]] == job.outputs[1:] and bytes(job.taken) == data
    assert "lost" not in job.told
    opener.near.last_word(opener.number)
    opener.deliver()
    assert not attic.jobs and cast(float, attic.status()["remembers"]) >= 0


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS // 3))
def test_openers_that_die_lose_no_byte(first: int) -> None:
    async def main() -> None:
        for seed in range(first, first + SEEDS // 3):
            try:
                await course(seed)
            except BaseException:
                print(f"seed {seed}")
                raise

    asyncio.run(main())


def test_a_job_that_had_not_begun_is_dropped_and_one_that_had_is_not_forgotten_silently() -> None:
    async def main() -> None:
        rng = random.Random(1)
        attic = Attic()
        waiting, running = Job(rng), Job(rng)
        cast(Any, waiting).begun = False
        for name, job in (("waits", waiting), ("runs", running)):
            Opener(rng, b"", [bytearray()] * 3).open(attic, Spawn(["x"], id=name, keep=True), job)
        await asyncio.sleep(0.2)
        waiting.keeper.on_lost("gone")
        assert waiting.told == ["lost"] and list(attic.jobs) == ["runs"]
        assert cast(float, attic.status()["remembers"]) >= 0.2, "it never ran"
        stopped = time.monotonic()
        running.keeper.on_frame(Frame(Kind.STOP, running.keeper.place, LIFE))
        assert running.told == ["stop 0"] and not attic.jobs
        remembers = cast(float, attic.status()["remembers"])
        assert remembers <= time.monotonic() - stopped + 0.001, (
            "the lost end of a job that ran must start the memory anew"
        )

    asyncio.run(main())


def test_a_job_that_waits_for_its_turn_is_not_taken_over_but_never_runs() -> None:
    """Its link has died unnoticed, and with it its turn: it would wait for ever."""

    async def main() -> None:
        rng, attic = random.Random(1), Attic()
        waiting = Job(rng)
        cast(Any, waiting).begun = False
        Opener(rng, b"", [bytearray()] * 3).open(attic, Spawn(["x"], id="id", keep=True), waiting)
        after = Opener(rng, b"", [bytearray()] * 3)
        after.open(attic, Spawn(["-"], id="id", adopt=True), None)
        after.keeper = None
        after.deliver()
        assert waiting.told == ["lost"] and not attic.jobs and after.exit["state"] == "unreachable"

    asyncio.run(main())


def test_a_batch_has_one_client() -> None:
    async def main() -> None:
        attic, failed = Attic(), []
        first, second = (cast(Any, SimpleNamespace(fail=failed.append)) for _ in range(2))
        attic.take_over("batch", first)
        attic.take_over("batch", first)
        attic.take_over("other", second)
        assert not failed
        attic.take_over("batch", second)
        assert failed == ["another client goes on with its batch"]
        attic.forget(second)
        attic.take_over("batch", first)
        assert len(failed) == 1

    asyncio.run(main())


def test_an_id_that_is_not_kept_is_said_to_be_lost() -> None:
    async def main() -> None:
        opener = Opener(random.Random(1), b"", [bytearray()] * 3)
        opener.open(Attic(), Spawn(["-"], id="id", adopt=True), None)
        assert not isinstance(opener.keeper, Keeper)
        opener.keeper = None
        opener.deliver()
        assert (opener.exit["state"], opener.exit["code"]) == ("lost", 74)

    asyncio.run(main())
