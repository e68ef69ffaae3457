"""The tier over a link that is cut at random, and with whoever has a part in it killed: nothing half, nothing lost.

Laws
1. An acknowledged put is there, whole, from the moment of its acknowledgement on; one that was not is there whole or
   not at all. A reader gets one version, whole, or an error.
2. CI runs a short form; QUINE_TEST_BREAKS=200 is the long one: that many cuts.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from quine.files.api import BLOCK, OutcomeUnknown, Tier
from tests.files import job_stores
from tests.files.job_stores import Door
from tests.files.tiers import get, marked, put, whole
from tests.lab import Lab, processes
from tests.support.agents import until
from tests.system import breaks
from tests.system.breaks import CUTS, LONG

pytestmark = pytest.mark.timeout(300 + 15 * CUTS)

ROUNDS = 60 if LONG else 12
LARGEST = 8 * BLOCK if LONG else 2 * BLOCK


def works(tier: Tier, worker: int, rounds: int, wrong: list[str], kept: dict[str, bytes]) -> None:
    """Put, get, list, rename and remove, and look each time whether it is as it should be."""
    drawn = random.Random(worker)
    for turn in range(rounds):
        name = f"w{worker}/{drawn.randrange(4)}"
        data = marked(f"{worker}.{turn}", drawn.choice((0, 900, 70_000, LARGEST)))
        put(tier, name, data)
        kept[name] = data
        if get(tier, name) != data:
            wrong.append(f"{name} is not what was put")
        if drawn.random() < 0.3:
            other = f"w{worker}/x{turn}"
            tier.rename(name, other)
            kept[other] = kept.pop(name)
        found = {entry.path: entry.size for entry in tier.list(f"w{worker}")}
        if found != {path: len(data) for path, data in kept.items()}:
            wrong.append(f"worker {worker} lists {sorted(found)} for {sorted(kept)}")
        if len(kept) > 3:
            gone = sorted(kept)[0]
            tier.remove(gone)
            del kept[gone]


def together(door: Door, rounds: int) -> list[dict[str, bytes]]:
    """Run four workers at one time; return the files that each has left."""
    wrong: list[str] = []
    kept: list[dict[str, bytes]] = [{} for _ in range(4)]
    failed: list[BaseException] = []

    def work(number: int) -> None:
        tier = door.tier()
        try:
            works(tier, number, rounds, wrong, kept[number])
        except BaseException as error:
            failed.append(error)
        finally:
            tier.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]
    assert not wrong
    return kept


@pytest.mark.long
def test_cut_at_random(lab: Lab, through: Callable[..., str], tmp_path: Path) -> None:
    host, proxy = through("h1", lease=120), lab["h1"].proxy
    cuts = CUTS or 10
    with job_stores.opened(lab, host, tmp_path / "uncut") as door:
        before = proxy.carried()
        together(door, ROUNDS)
        carried = proxy.carried() - before
    with job_stores.opened(lab, host, tmp_path / "cut") as door:
        done = proxy.cuts()
        proxy.cut_after(*breaks.plan(5, cuts, carried))
        kept = together(door, ROUNDS)
        assert proxy.cuts() - done == cuts
        wanted = {path: data for each in kept for path, data in each.items()}
        door.settled(*wanted)
        assert {path: (door.root / path).read_bytes() for path in wanted} == wanted


def test_readers_see_one_version_whatever_is_cut(
    lab: Lab, through: Callable[..., str], tmp_path: Path
) -> None:
    host, proxy = through("h2", lease=120), lab["h2"].proxy
    wrong: list[str] = []
    over = threading.Event()

    def read(tier: Tier) -> None:
        while not over.is_set():
            data = get(tier, "f")
            if not whole(data):
                wrong.append(f"{len(data)} bytes that are no version")

    with job_stores.opened(lab, host, tmp_path / "fs") as door:
        tiers = [door.tier() for _ in range(3)]
        put(tiers[0], "f", marked("first", 1000))
        threads = [threading.Thread(target=read, args=(tier,)) for tier in tiers[1:]]
        for thread in threads:
            thread.start()
        try:
            for turn in range(ROUNDS):
                put(tiers[0], "f", marked(str(turn), (turn * 99_991) % LARGEST))
                if turn % 3 == 1:
                    proxy.cut()
        finally:
            over.set()
            for thread in threads:
                thread.join()
        for tier in tiers:
            tier.close()
    assert not wrong


# -- who is killed -----------------------------------------------------------------------------------

WRITER = """import sys
sys.path.insert(0, sys.argv[1])
from quine.files.select import tier_here
from tests.files.tiers import marked
tier, data = tier_here(), marked("new", 20_000_000)
put = 0
while True:
    with tier.create("f") as writer:
        writer.write(data)
        writer.commit()
    put += 1
    print(put, flush=True)
"""


@contextlib.contextmanager
def writing(lab: Lab, host: str, root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A job on the host that replaces `f` again and again, and prints a line each time."""
    script = [sys.executable, "-P", "-c", WRITER, str(Path(__file__).parents[3])]
    words = ["run", "--on", host, "--fs", f"origin:{root}", "--", *script]
    with lab.popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as proxy:
        try:
            yield proxy
        finally:
            proxy.kill()


def half(root: Path) -> bool:
    """A part is being written."""
    with contextlib.suppress(FileNotFoundError):  # it was kept meanwhile
        return any(path.stat().st_size for path in hidden(root))
    return False


def hidden(root: Path) -> list[Path]:
    found = []
    for path in root.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path != root / "f":
                found.append(path)
    return found


@pytest.mark.long
@pytest.mark.parametrize("victim", ["job", "proxy", "node over there", "node here"])
def test_killed_while_it_puts(victim: str, own_lab: Callable[..., Lab], tmp_path: Path) -> None:
    lab, root = own_lab(["h1"]), tmp_path / "fs"
    with writing(lab, "h1", root) as proxy:
        assert proxy.stdout and proxy.stdout.readline(), proxy.stderr and proxy.stderr.read()
        until(lambda: half(root))
        if victim == "proxy":
            proxy.kill()
        else:
            there = processes.marked(lab["h1"].mark)
            if victim == "job":
                killed = [process for process in there if any("tier_here" in word for word in process.argv)]
            else:
                nodes = there if victim == "node over there" else lab.processes()
                killed = [process for process in nodes if process.daemon and "--dial" not in process.argv]
            assert killed
            for process in killed:
                os.kill(process.pid, signal.SIGKILL)
        proxy.wait(120)
        acknowledged = proxy.stdout.read().splitlines()
    data = (root / "f").read_bytes()
    assert whole(data) and len(data) == 20_000_032, acknowledged
    until(lambda: not lab.jobs(), 90)
    if victim != "proxy":
        assert hidden(root) == []  # it has dropped the part before it left
    from quine.files.stores.registry import open_store

    def swept() -> bool:
        put(open_store(f"origin:{root}", {}, ""), "g", b"after")  # which sweeps what nobody holds any more
        return sorted(path.name for path in hidden(root)) == ["g"]

    until(swept)  # a process that starts a job holds the descriptors of its parent for a moment
    tier = open_store(f"origin:{root}", {}, "")
    assert sorted(entry.path for entry in tier.list("")) == ["f", "g"]


def test_an_origin_that_is_gone_is_told(lab: Lab, tmp_path: Path) -> None:
    with job_stores.opened(lab, "h1", tmp_path / "fs") as door:
        tier = door.tier()
        put(tier, "f", b"x" * 3 * BLOCK)
        with tier.open("f") as reader, tier.create("g") as writer:
            reader.data(10)
            writer.write(b"x" * BLOCK)
            door.proxy.kill()
            door.proxy.wait()
            for act in (lambda: tier.stat("f"), writer.commit, lambda: get(tier, "f")):
                with pytest.raises(OSError) as caught:
                    act()
                assert caught.value.errno == errno.ENOTCONN and caught.value.strerror
        with pytest.raises(OSError) as caught:
            tier.remove("f")
        assert not isinstance(caught.value, OutcomeUnknown), "it could not even be asked for"
        tier.close()
        assert {path.name for path in door.root.iterdir() if path.is_file()} == {"f"}
