"""A batch over hosts that are killed, cut, stopped and added at random, while its origin is killed and goes on.

Each execution of an item adds a line to a file, so that "exactly once" is counted. QUINE_TEST_BATCH=100000 is the long
form, QUINE_TEST_SEED another course of events. The verdict does not depend on how fast things go.
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
JOBS = 12
SCRIPT = 'echo "$0" >>"$1"; sleep "0.$(($0 % 4))"; echo "out $0"'
ENDS = {"done", "lost"}
CALM = ("cut", "stop")  # beside the deaths of the origin
WILD = ("kill", "node", "cut", "stop", "add", "leave")


class Chaos:
    """One batch and its course of events."""

    def __init__(self, lab: Lab, path: Path, items: int, seed: int, events: Sequence[str]) -> None:
        self.lab, self.path, self.items, self.may_happen = lab, path, items, events
        self.rng = random.Random(seed)
        self.events: list[str] = []
        self.shown = path / "shown"
        words = ["xargs", f"-P{JOBS}", "--on", "any", "--joblog", "log", "--resume", "-a", "items"]
        self.words = [*words, *SH, SCRIPT, "{}", str(path / "ran")]
        (path / "items").write_text("".join(f"{number}\n" for number in range(items)))

    def start(self) -> subprocess.Popen[bytes]:
        with self.shown.open("ab") as out, (self.path / "errors").open("ab") as err:
            return self.lab.popen(self.words, stdout=out, stderr=err, cwd=self.path)

    def ended(self) -> int:
        """Lines of the log."""
        try:
            return (self.path / "log").read_bytes().count(b"\n")
        except FileNotFoundError:
            return 0

    def round(self) -> None:
        """Run the batch until some more items have their ends; meanwhile something happens; then kill it."""
        more = self.items // (KILLS + 2)
        before, happens = self.ended(), self.rng.randrange(more)
        with self.start() as process:
            while self.ended() < before + more and process.poll() is None:
                if happens >= 0 and self.ended() >= before + happens:
                    happens = -1
                    self.happen()
                time.sleep(0.01)
            if self.rng.random() < 0.3:
                self.say("the origin's node killed")
                for node in nodes(self.lab.processes()):
                    kill(node.pid)
            process.kill()
        self.say(f"origin killed at {self.ended()}")

    def happen(self) -> None:
        host = self.lab[self.rng.choice(sorted(self.lab.hosts))]
        what = self.rng.choice(self.may_happen)
        self.say(f"{what} {host.name}")
        if what == "kill":
            host.kill_processes()
        elif what == "node":
            for node in nodes(host.processes()):
                kill(node.pid)
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
        # A node that is killed takes what runs there. The next one, as any new one, cannot say what was never begun.
        ends = sum(event.split()[0] in ("kill", "node", "add") for event in self.events)
        assert lost <= 2 * JOBS * ends, "a cut, a stop, and a death of the origin lose nothing"


def course(lab: Lab, path: Path, items: int, seed: int, events: Sequence[str]) -> None:
    print(f"QUINE_TEST_SEED={seed}", flush=True)
    for host in lab.hosts:  # a node knows of all jobs since its start
        until(lambda host=host: age(lab, host) > 1, f"a node on {host}")
    chaos = Chaos(lab, path, items, seed, events)
    for _ in range(KILLS):
        chaos.round()
    with chaos.start() as process:
        assert process.wait() in (0, 74), (path / "errors").read_text()
    chaos.check()


def age(lab: Lab, host: str) -> float:
    """Seconds since the start of the node of a host."""
    done = lab.run(["run", "--on", host, "--", "quine", "node", "--status"], check=True)
    return float(json.loads(done.stdout)["kept"]["remembers"])


@pytest.mark.long
@pytest.mark.parametrize("events", [CALM, WILD], ids=["calm", "wild"])
@pytest.mark.timeout(400)  # half a minute where nobody else works
@pytest.mark.skipif(bool(ITEMS), reason="the long form runs")
def test_every_item_runs_once_or_is_lost(
    own_lab: Callable[..., Lab], tmp_path: Path, events: Sequence[str]
) -> None:
    course(own_lab(("h1", "h2", "h3")), tmp_path, SHORT, SEED, events)


@pytest.mark.timeout(0)
@pytest.mark.skipif(not ITEMS, reason="QUINE_TEST_BATCH=N")
def test_every_item_of_many_runs_once_or_is_lost(own_lab: Callable[..., Lab], tmp_path: Path) -> None:
    course(own_lab(("h1", "h2", "h3")), tmp_path, ITEMS, SEED, WILD)
