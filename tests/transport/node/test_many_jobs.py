"""A thousand jobs on one link, twenty links on one node: the resources that either node holds for them."""

from __future__ import annotations

import os
import resource
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, Process, peak_rss
from tests.support.clients import SECONDS, Clients
from transport.node.link import HEARTBEAT

JOBS = int(os.environ.get("QUINE_TEST_JOBS", 100))  # 1000 for the figure that is promised
LINKS = int(os.environ.get("QUINE_TEST_LINKS", 3))  # 20
MOST = 200 << 20  # bytes that either node ever had resident


@pytest.fixture(autouse=True)
def room() -> Iterator[None]:
    """For a socket each, here in the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_jobs_at_once_on_one_link_and_twenty_links(own_lab: Callable[..., Lab]) -> None:
    lab = own_lab(["h1"], lease=60)
    names = [lab.alias(f"a{index}", "h1") for index in range(LINKS)]
    lab.run(["run", "--on", names[0], "--", "true"], check=True)
    crowd = Clients(lab)
    try:
        others = [crowd.start(name, ["cat"]) for name in names[1:]]
        many = [crowd.start(names[0], ["cat"]) for _ in range(JOBS)]
        crowd.until(lambda: all(each.pid for each in crowd.members.values()))
        for index, each in enumerate([*others, *many]):
            each.say(b"%07d\n" % index * 1000, last=False)
        crowd.until(lambda: all(len(each.got) == 8000 for each in crowd.members.values()))
        for index, each in enumerate([*others, *many]):
            each.say(b"%07d\n" % index * 1000, last=True)
        crowd.until(lambda: all(each.over for each in crowd.members.values()))
        for index, each in enumerate([*others, *many]):
            assert bytes(each.got) == b"%07d\n" % index * 2000
            assert each.status and (each.status.state, each.status.code) == ("exited", 0)
        held = [peak_rss(node.pid) for node in nodes(lab)]
    finally:
        crowd.close()
    assert len(held) == 2 and max(held) < MOST, held


@pytest.mark.long
def test_a_thousand_readers_that_do_not_read(own_lab: Callable[..., Lab]) -> None:
    """The output of their producers is in pipes and windows, and both are bounded."""
    lab = own_lab(["h1"], lease=60)
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    crowd = Clients(lab)
    try:
        for _ in range(JOBS):
            crowd.start("h1", ["sh", "-c", "echo up; exec cat /dev/zero"])
        # served until each has begun; from then on nobody reads
        for each in crowd.members.values():
            while not each.pid:
                each.receive()
        settle(lambda: [seconds_used(node.pid) for node in nodes(lab)])
        held = [peak_rss(node.pid) for node in nodes(lab)]
    finally:
        crowd.close()
    assert lab.wait_idle(90) == []
    assert len(held) == 2 and max(held) < MOST, held


@pytest.mark.long
def test_an_idle_link_costs_its_heartbeat_and_no_more(own_lab: Callable[..., Lab]) -> None:
    """The cost of a day follows from these seconds: two nodes with an unused link between them."""
    lab = own_lab(["h1"], lease=60)
    lab.run(["run", "--on", "h1", "--", "true"], check=True)
    settle(lambda: [seconds_used(node.pid) for node in nodes(lab)])
    both = nodes(lab)
    before = [woken(node.pid) for node in both]
    select.select([], [], [], 2 * HEARTBEAT)
    after = [woken(node.pid) for node in both]
    # a ping and its answer each way, in a few wakings each, and a look at the clock now and then
    assert len(both) == 2 and all(0 <= now - then < 40 for then, now in zip(before, after, strict=True)), (
        after
    )


def woken(pid: int) -> int:
    """How often a process has waited and was woken so far, all its threads."""
    status = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/status")]
    return sum(int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0]) for text in status)


def nodes(lab: Lab) -> list[Process]:
    both = [*lab.processes(), *lab["h1"].processes()]
    return [process for process in both if process.daemon and "--dial" not in process.argv]


def seconds_used(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) // (os.sysconf("SC_CLK_TCK") // 10)


def settle(look: Callable[[], object]) -> None:
    """Until half a second changes nothing any more."""
    deadline = time.monotonic() + SECONDS
    before, now = None, look()
    while before != now:
        assert time.monotonic() < deadline, f"still at work after {SECONDS} s"
        select.select([], [], [], 0.5)
        before, now = now, look()
