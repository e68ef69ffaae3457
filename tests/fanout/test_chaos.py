"""A batch over hosts that are killed, cut, stopped and added at random, while its origin is killed and goes on.

Each execution of an item adds a line to a file, so that "exactly once" is counted. QUINE_TEST_BATCH=100000 is the long
form, QUINE_TEST_SEED another course of events. The verdict does not depend on how fast things go. The deaths that may
lose something bound the number of items that are *lost*; jobs that the next run took over are counted.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.fanout.test_xargs import SH
from tests.lab import Lab
from tests.lab.processes import kill
from tests.support.machine import nodes
from tests.support.waiting import until

ITEMS = int(os.environ.get("QUINE_TEST_BATCH", 0))
SEED = int(os.environ.get("QUINE_TEST_SEED", 1))
SHORT = 600
KILLS = 10
EACH = 500  # items, of which there is one event
JOBS = 12
SCRIPT = 'echo "$0" >>"$1"; sleep "0.$(($0 % 4))"; echo "out $0"'
ENDS = {"done", "lost"}
CALM = ("cut", "stop")  # beside the deaths of the origin
DEADLY = ("kill", "node", "crash", "add")  # jobs may be lost by these
WILD = (*DEADLY, *CALM, "leave")


class Chaos:
    """One batch and its course of events, with so many deaths of its origin."""

    def __init__(
        self, lab: Lab, path: Path, items: int, seed: int, events: Sequence[str], kills: int = KILLS
    ) -> None:
        self.lab, self.path, self.items, self.may_happen, self.kills = lab, path, items, events, kills
        self.rng = random.Random(seed)
        self.events: list[str] = []
        self.shown = path / "shown"
        self.sent: dict[
            str, int
        ] = {}  # ids of jobs that had no end when the origin was killed, and its event
        self._counted = (0, 0, 0)  # inode of the log, bytes and lines of it
        words = ["xargs", f"-P{JOBS}", "--on", "any", "--joblog", "log", "--resume", "-a", "items"]
        self.words = [*words, *SH, SCRIPT, "{}", str(path / "ran")]
        (path / "items").write_text("".join(f"{number}\n" for number in range(items)))

    def start(self) -> subprocess.Popen[bytes]:
        with self.shown.open("ab") as out, (self.path / "errors").open("ab") as err:
            return self.lab.popen(self.words, stdout=out, stderr=err, cwd=self.path)

    def ended(self) -> int:
        """Lines of the log. A part that was counted is not read again."""
        try:
            with (self.path / "log").open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                before, size, lines = self._counted
                if inode != before:
                    size = lines = 0
                file.seek(size)
                data = file.read()
        except FileNotFoundError:
            return 0
        self._counted = inode, size + len(data), lines + data.count(b"\n")
        return self._counted[2]

    def round(self) -> None:
        """Run the batch until some more items have their ends; meanwhile things happen; then kill it."""
        more = self.items // (self.kills + 2)
        before = self.ended()
        happen = sorted(self.rng.randrange(more) for _ in range(max(1, more // EACH)))
        with self.start() as process:
            while self.ended() < before + more and process.poll() is None:
                if happen and self.ended() >= before + happen[0]:
                    del happen[0]
                    self.happen()
                time.sleep(0.01)
            if (
                process.poll() is not None
            ):  # while this process waited for something: then all items have their ends
                whole = self.ended() == self.items + 1
                assert whole and process.poll() in (0, 74), (self.path / "errors").read_text()[-2000:]
            if self.rng.random() < 0.3:
                self.say("the origin's node killed")
                for node in nodes(self.lab.processes()):
                    kill(node.pid)
            process.kill()
        self.say(f"origin killed at {self.ended()}")
        self.sent |= dict.fromkeys(self.under_way(), len(self.events) - 1)

    def under_way(self) -> set[str]:
        """Ids of the jobs that were sent, and have no line in the log."""
        if not (self.path / "log.started").exists():
            return set()
        rows = [line.split() for line in (self.path / "log.started").read_text().splitlines()[1:]]
        ended = {line.split("\t")[10] for line in (self.path / "log").read_text().splitlines()}
        gone = {row[3] for row in rows if len(row) == 4}
        return {row[0] for row in rows if len(row) == 4} - ended - gone

    def happen(self) -> None:
        host = self.lab[self.rng.choice(sorted(self.lab.hosts))]
        what = self.rng.choice(self.may_happen)
        self.say(f"{what} {host.name}")
        if what == "kill":
            host.kill_processes()
        elif what == "node":
            for node in nodes(host.processes()):
                kill(node.pid)
        elif what == "crash":
            host.crash()
            host.start()
        elif what == "cut":
            host.kill_sessions()
        elif what == "stop":
            host.stop()
            host.start()
        elif what == "add" and "h4" not in self.lab.hosts:
            self.lab.add("h4")
        elif what == "leave":
            entry = self.lab.hosts.pop(host.name)
            self.lab._write_inventory()
            time.sleep(0.2)
            self.lab.hosts[host.name] = entry
            self.lab._write_inventory()

    def say(self, event: str) -> None:
        self.events.append(event)
        print(event, flush=True)

    def check(self) -> None:
        rows = [line.split("\t") for line in (self.path / "log").read_text().splitlines()[1:]]
        ran = Counter((self.path / "ran").read_text().split())
        shown = set(self.shown.read_text().splitlines())
        items = [str(number) for number in range(self.items)]
        states = {shlex.split(row[8].replace("\\\\", "\\"))[3]: row[12] for row in rows}
        assert (len(rows), states.keys()) == (self.items, set(items)), "one final line an item"
        assert not [item for item, count in ran.items() if count > 1], "no item ran twice"
        print(Counter(states.values()))
        assert set(states.values()) <= ENDS
        for item, state in states.items():
            assert state != "done" or (ran[item] == 1 and f"out {item}" in shown), item
        lost = sum(state == "lost" for state in states.values())
        found = {row[10]: row[12] for row in rows}
        fate = Counter((event, found.get(job, "begun anew")) for job, event in self.sent.items())
        print(f"{lost} lost of {self.events}")
        for (event, state), count in sorted(fate.items()):
            print(f"{count} under way at event {event}, {self.events[event]!r}, are {state}")
        # A node that is killed takes what runs there. The next one, as any new one, cannot say what was never begun.
        ends = sum(event.split()[0] in DEADLY for event in self.events)
        assert lost <= 2 * JOBS * ends, "a cut, a stop, and a death of the origin lose nothing"


def course(lab: Lab, path: Path, items: int, seed: int, events: Sequence[str]) -> None:
    print(f"QUINE_TEST_SEED={seed}", flush=True)
    for host in lab.hosts:  # a node knows of all jobs since its start
        until(lambda host=host: age(lab, host) > 1, f"a node on {host}")
    chaos, began = Chaos(lab, path, items, seed, events), time.monotonic()
    for _ in range(KILLS):
        chaos.round()
    with chaos.start() as process:
        assert process.wait() in (0, 74), (path / "errors").read_text()[-2000:]
    print(f"{items} items in {time.monotonic() - began:.0f} s")
    chaos.check()


def age(lab: Lab, host: str) -> float:
    """Seconds since the start of the node of a host."""
    done = lab.run(["run", "--on", host, "--", "quine", "node", "--status", "--json"], check=True)
    return float(json.loads(done.stdout)["kept"]["remembers"])


@pytest.mark.long
@pytest.mark.parametrize(
    "events", [pytest.param(CALM, id="calm", marks=pytest.mark.whole), pytest.param(WILD, id="wild")]
)
@pytest.mark.timeout(400)  # half a minute where nobody else works
@pytest.mark.skipif(bool(ITEMS), reason="the long form runs")
def test_every_item_runs_once_or_is_lost(
    own_lab: Callable[..., Lab], tmp_path: Path, events: Sequence[str]
) -> None:
    course(own_lab(("h1", "h2", "h3")), tmp_path, SHORT, SEED, events)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.skipif(not ITEMS, reason="QUINE_TEST_BATCH=N")
def test_every_item_of_many_runs_once_or_is_lost(own_lab: Callable[..., Lab], tmp_path: Path) -> None:
    course(own_lab(("h1", "h2", "h3")), tmp_path, ITEMS, SEED, WILD)
