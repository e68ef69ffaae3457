"""Requests that a job on another host may have open here, and their end when that job ends."""

from __future__ import annotations

import asyncio

import pytest

from transport.errors import ProtocolError
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
