"""A batch with files over hosts that are killed and cut, resumed by one client after another: no result is nowhere.

The course of events is that of `test_chaos`. QUINE_TEST_BATCHES=20 is the long form, of so many batches of 200 items;
QUINE_TEST_SEED is its first one. Each item has an input that is sent and a result that is brought; every seventh one
fails at its first try.
"""

from __future__ import annotations

import os
import random
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fanout.test_chaos import CALM, SEED, Chaos
from tests.fanout.test_xargs import SH
from tests.lab import Lab

BATCHES = int(os.environ.get("QUINE_TEST_BATCHES", 0))
ITEMS, FEW = 200, 40
EVENTS = ("kill", "node", "crash", *CALM)
SCRIPT = (
    'echo "$0" >>"$1/ran"; sleep "0.0$(($0 % 4))"; mkdir -p out; '
    'if [ $(($0 % 7)) = 0 ] && [ ! -e "$1/failed/$0" ]; then echo partial >"out/$0"; : >"$1/failed/$0"; exit 1; fi; '
    'cat "in/$0" "in/$0" >"out/$0"'
)


class Filed(Chaos):
    """Chaos with an input and a result for each item, and the check of the results."""

    def __init__(self, lab: Lab, path: Path, items: int, seed: int, kills: int) -> None:
        super().__init__(lab, path, items, seed, EVENTS, kills)
        at = self.words.index(SH[0])
        files = ["--files", "in/{}", "--returns", "out/{}", "--cleanup", "--retries", "2"]
        self.words = [*self.words[:at], *files, *SH, SCRIPT, "{}", str(path)]
        (path / "in").mkdir()
        (path / "failed").mkdir()
        data = random.Random(seed)
        self.inputs = {str(number): data.randbytes(data.randrange(1, 30_000)) for number in range(items)}
        for name, content in self.inputs.items():
            (path / "in" / name).write_bytes(content)

    def states(self) -> dict[str, str]:
        """The last state of each item in the log, by its name."""
        rows = [line.split("\t") for line in (self.path / "log").read_text().splitlines()[1:]]
        return {shlex.split(row[8].replace("\\\\", "\\"))[3]: row[12] for row in rows}

    def results(self) -> dict[str, bytes]:
        """The results that are here."""
        return {path.name: path.read_bytes() for path in (self.path / "out").glob("[0-9]*")}

    def check(self) -> None:
        states, ran, found = self.states(), Counter((self.path / "ran").read_text().split()), self.results()
        assert states.keys() == self.inputs.keys() and set(states.values()) <= {"done", "lost", "failed"}, (
            states
        )
        print(Counter(states.values()), self.events)
        for name, content in self.inputs.items():
            tries = 2 if int(name) % 7 == 0 else 1
            if states[name] == "done":
                assert found.get(name) == 2 * content, f"the result of item {name} is not here"
                assert ran[name] == tries, f"item {name} ran {ran[name]} times"
            else:
                assert states[name] == "lost" or tries == 2, (
                    f"item {name} has failed"
                )  # no host took its second try
                # Of a try that has failed the returns are brought, too; the next one was lost.
                assert ran[name] <= tries and found.get(name) in (None, b"partial\n", 2 * content), name

    def mend(self) -> None:
        """Run what is lost again, on hosts that nothing happens to."""
        at = self.words.index("--resume")
        words = [*self.words[:at], "--resume-failed", "--idempotent", *self.words[at + 1 :]]
        done = self.lab.run(words, cwd=self.path)
        assert done.returncode == 0, done.stderr
        assert set(self.states().values()) == {"done"}
        assert self.results() == {name: 2 * content for name, content in self.inputs.items()}


def course(lab: Lab, path: Path, items: int, seed: int, kills: int) -> None:
    print(f"QUINE_TEST_SEED={seed}", flush=True)
    for host in lab.hosts:
        lab.run(["run", "--on", host, "--", "true"], check=True)
    chaos = Filed(lab, path, items, seed, kills)
    for _ in range(kills):
        chaos.round()
    for _ in range(3):  # a result that a fault has cut is asked for again by the next one
        with chaos.start() as process:
            code = process.wait()
        assert code in (0, 74), (path / "errors").read_text()[-2000:]
    chaos.check()
    chaos.mend()


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(bool(BATCHES), reason="the long form runs")
def test_every_result_is_here_or_its_item_is_lost(own_lab: Callable[..., Lab], tmp_path: Path) -> None:
    course(own_lab(("h1", "h2")), tmp_path, FEW, SEED, 2)


@pytest.mark.long
@pytest.mark.timeout(0)
@pytest.mark.skipif(not BATCHES, reason="QUINE_TEST_BATCHES=N")
@pytest.mark.parametrize("seed", range(SEED, SEED + BATCHES))
def test_every_result_of_many_batches_is_here_or_its_item_is_lost(
    own_lab: Callable[..., Lab], tmp_path: Path, seed: int
) -> None:
    course(own_lab(("h1", "h2", "h3")), tmp_path, ITEMS, seed, 6)
