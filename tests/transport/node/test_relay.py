"""Requests that a job on another host may have open here, and their end when that job ends."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from transport.errors import ProtocolError
from transport.node.host import START, STEP, Starts
from transport.node.link import Link
from transport.node.relay import MAX_ASKED, Relay
from transport.wire.frames import GREETING, Frame, Kind, encode
from transport.wire.session import ASKED, Session


def made() -> Relay:
    """Return a relay for a job that another job has asked for."""
    session = Session(False, None)
    session.peer = {"build": "x"}
    (spawn,) = session.receive(GREETING + encode(Frame(Kind.SPAWN, 1, payload=b"{}")))
    link = Link(session, "near", lambda *_: relay.near, lambda *_: None)
    relay = Relay(link, spawn.channel, "h1", lambda _: None)
    return relay


def test_no_more_requests_of_one_job_are_open_than_it_may_have() -> None:
    async def main() -> None:
        job = made()
        open_ = [made() for _ in range(MAX_ASKED)]
        for request in open_:
            job.asked(request)
        open_[0].end()
        job.asked(made())
        with pytest.raises(ProtocolError, match=f"more than {MAX_ASKED} requests of one job"):
            job.asked(made())

    asyncio.run(main())


def test_the_jobs_that_one_job_asks_for_are_bounded_by_number_and_by_what_waits() -> None:
    async def main() -> None:
        job = made()
        assert job.may_have(ASKED) and not job.may_have(ASKED + 1)
        large = made()
        large.size = ASKED
        job.children[large] = None
        assert not job.may_have(1)
        large.started = True  # by then nothing of it waits here
        assert job.may_have(ASKED)
        for _ in range(MAX_ASKED - 1):
            job.children[made()] = None
        assert not job.may_have(0)

    asyncio.run(main())


def test_what_a_job_has_asked_for_ends_with_it() -> None:
    """It ends also if the node of the job keeps the link, and the channel of the request."""

    async def main() -> None:
        job, child = made(), made()
        child.parent, job.children[child] = job, None
        far = Link(Session(True, {}), "far", lambda *_: child.near, lambda *_: None)
        child.connect(far, Kind.SPAWN, {})
        assert child.far
        child.from_side(child.far, Frame(Kind.ATTACH, 1, payload=b'{"pid":7}'))
        job.end()
        assert b"the job that asked for it has ended" in b"".join(child.near.link.session.pull(1 << 16))
        assert child.ended and not job.children
        assert not far.handlers and not far.session.channels  # abandoned: ended over there

    asyncio.run(main())


class Slotted:
    def __init__(self, begun: int) -> None:
        self.begun = begun


class Mute:
    """A host whose link is up, and which answers the starts that this test has it answer."""

    def __init__(self) -> None:
        self.up = True
        self.starts = Starts(lambda: self.up)
        self.link = Link(Session(True, {}), "far", lambda *_: cast(Any, None), lambda *_: None)

    def sent(self, seconds: float = START, begun: int = -1) -> Relay:
        """`begun` is the number of jobs that run there, of one that may."""
        relay = made()
        relay.connect(self.link, Kind.SPAWN, {})
        relay.watcher = cast(Any, Slotted(begun)) if begun >= 0 else None
        self.starts.add(relay, seconds, int(begun >= 0))
        return relay

    def look(self, seconds: float) -> None:
        for _ in range(int(seconds // STEP)):
            self.starts._look()

    @staticmethod
    def answer(relay: Relay) -> None:
        assert relay.far
        frame = Frame(Kind.ATTACH, relay.far.number, payload=b'{"pid":7}')
        relay.far.link.session.channels[relay.far.number].state = "running"
        relay.from_side(relay.far, frame)


def test_a_start_that_its_host_does_not_answer_is_lost() -> None:
    async def main() -> None:
        host = Mute()
        answered, job, short = host.sent(), host.sent(), host.sent(12.0)
        host.answer(answered)
        host.look(12 + 2 * STEP)
        assert short.ended and not job.ended
        told = b"".join(short.near.link.session.pull(1 << 16))
        assert b'"state":"lost"' in told and b'"host":"h1"' in told
        assert b"has not answered for 12 s; the command was sent, whether it was started is not known" in told
        host.look(START)
        assert job.ended and not answered.ended
        assert list(host.link.session.channels) == [1], "the others are abandoned, and end"
        host.starts.close()

    asyncio.run(main())


def test_a_start_has_time_while_the_link_is_down_its_turn_has_not_come_or_one_before_it_is_answered() -> None:
    async def main() -> None:
        host = Mute()
        first, second, waits, last = host.sent(), host.sent(), host.sent(begun=1), host.sent()
        host.up = False
        host.look(2 * START)
        host.up = True
        host.look(START - STEP)
        host.answer(first)
        host.look(START - STEP)
        assert not (second.ended or waits.ended or last.ended)
        host.look(3 * STEP)
        assert second.ended and last.ended and not waits.ended
        cast(Any, waits.watcher).begun = 0
        host.look(START + 2 * STEP)
        assert waits.ended
        host.starts.close()

    asyncio.run(main())
