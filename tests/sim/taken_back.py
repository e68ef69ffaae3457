"""Fixes that the simulator has to miss: each takes one back, for as long as it is entered.

A row of TAKEN_BACK says what the product did before, which rules that breaks, and within how many seeds it is caught.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.sim.process import Launcher
from transport.job.job import Job
from transport.node.link import Link
from transport.node.served import KEPT, Served
from transport.status import NOT_STARTED, Status
from transport.wire import session
from transport.wire.session import Session


@dataclass(frozen=True)
class TakenBack:
    restore: Callable[[], contextlib.AbstractContextManager[None]]
    rules: frozenset[str]
    seeds: int


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner).get(name)  # None if only instances have it; then the class gets it
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is None:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def lease_output() -> contextlib.AbstractContextManager[None]:
    """Output that a lease cut is not said to be incomplete: the client reports the status of the process."""
    lose = Job._lose

    def restored(self: Job, how: str) -> None:
        if "incomplete" not in how:
            lose(self, how)

    return replaced(Job, "_lose", restored)


def lease_status() -> contextlib.AbstractContextManager[None]:
    """A job that its lease ended is reported with the status that its process had then."""
    return replaced(Job, "_lose", lambda self, how: None)


def launch_unsure() -> contextlib.AbstractContextManager[None]:
    """A process that was started, and could not be taken hold of, is said never to have been started."""
    return replaced(
        Launcher,
        "unsure",
        lambda self: Status("unreachable", NOT_STARTED, detail="cannot start: too many files"),
    )


def late_hello() -> contextlib.AbstractContextManager[None]:
    """A dial that comes after its successor cuts the connection of that."""
    serve = Served.serve

    async def restored(self: Served, greeter: Any) -> None:
        with contextlib.suppress(Exception):
            peer = await greeter.hello(30.0)
            if link := self.links.get(peer["link"]):
                link.line.attempt = -1  # type: ignore[union-attr]
        await serve(self, greeter)

    return replaced(Served, "serve", restored)


def requests_bound() -> contextlib.AbstractContextManager[None]:
    """Requests over one link have no bound but that of each stream."""
    return replaced(Session, "asked", property(lambda self: 0, lambda self, value: None))


def clogged() -> contextlib.AbstractContextManager[None]:
    """Frames for a peer that does not read are queued without a bound."""
    return replaced(Session, "clogged", False)


def channels_bound() -> contextlib.AbstractContextManager[None]:
    """A channel is opened without regard to the peer's limit."""
    open_channel = Session.open

    def restored(self: Session, kind: int, *rest: Any, **named: Any) -> int:
        with replaced(session, "MAX_CHANNELS", 1 << 30):
            return open_channel(self, kind, *rest, **named)

    return replaced(Session, "open", restored)


def kept_record() -> contextlib.AbstractContextManager[None]:
    """A link that is down is kept for running jobs, but not for records that no client has taken."""

    def restored(self: Served, link: Link, why: str) -> None:
        jobs = [job for job in link.handlers.values() if isinstance(job, Job)]
        leases = [job.spawn.lease for job in jobs if not job.ended]
        wait = max(leases, default=0.0) + KEPT
        asyncio.get_running_loop().call_later(wait, self._give_up, link, link.counters.reconnects)

    return replaced(Served, "_wait_for", restored)


def lease_stopped() -> contextlib.AbstractContextManager[None]:
    """The lease of a job runs on when its link is back."""
    return replaced(Job, "on_up", lambda self: None)


def job_lease() -> contextlib.AbstractContextManager[None]:
    """A job on a host outlives its lease."""
    return replaced(Job, "on_down", lambda self, why: None)


TAKEN_BACK = {
    "lease-stopped": TakenBack(lease_stopped, frozenset({"lost"}), 500),
    "job-lease": TakenBack(job_lease, frozenset({"orphans", "lost"}), 500),
    "requests-bound": TakenBack(requests_bound, frozenset({"memory"}), 400),
    "clogged": TakenBack(clogged, frozenset({"memory"}), 400),
    "channels-bound": TakenBack(channels_bound, frozenset({"lost"}), 60),
    "kept-record": TakenBack(kept_record, frozenset({"lost"}), 400),
    "lease-output": TakenBack(lease_output, frozenset({"whole"}), 100),
    "lease-status": TakenBack(lease_status, frozenset({"truth"}), 60),
    "launch-unsure": TakenBack(launch_unsure, frozenset({"retry"}), 200),
    "late-hello": TakenBack(late_hello, frozenset({"lost"}), 500),
}
