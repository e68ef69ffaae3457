"""Very much output through one process: memory stays flat, and no byte is lost.

Here with few items; QUINE_SOAK_ITEMS=20000 is the soak, of 20 GB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.lab import Lab, peak_rss
from tests.support.agents import PATIENCE

ITEMS = int(os.environ.get("QUINE_SOAK_ITEMS", "100"))
SIZE = 1_000_000  # bytes of an output
SCRIPT = 'test "$0" = "$1" && until test -e go; do sleep 0.05; done; touch "s/$0"; yes "$0" | head -c 1000000'
WAITS = ITEMS // 4  # the item that takes long
FLAT = 24 << 20  # bytes that the process may grow after the first outputs

# returns when no more items have ended for a second; prints how many there are
STEADY = """
import os, sys, time
seen = -1
while seen != len(os.listdir(sys.argv[1])):
    seen = len(os.listdir(sys.argv[1]))
    time.sleep(1)
print(seen)
"""


def steady(place: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", STEADY, str(place / "s")], capture_output=True, timeout=1000, check=True
    )
    return int(done.stdout)


def read_outputs(pipe: IO[bytes], count: int) -> list[int]:
    """Read whole outputs, and return the numbers of their items."""
    found = []
    for _ in range(count):
        data = pipe.read(SIZE)
        number = int(data[:8].partition(b"\n")[0])
        line = b"%d\n" % number
        assert data == (line * (SIZE // len(line) + 1))[:SIZE], f"the output of item {number} is not whole"
        found.append(number)
    return found


@pytest.mark.long
@pytest.mark.timeout(0 if ITEMS > 1000 else 150)
@pytest.mark.parametrize("options", [[], ["-k"]])
def test_a_consumer_that_stops_for_a_while(lab: Lab, tmp_path: Path, options: list[str]) -> None:
    """With -k an item takes so long that no more can be held behind it; then the consumer stops, too."""
    (tmp_path / "s").mkdir()
    waits = str(WAITS) if options else "0"
    words = ["xargs", "-P4", *options, "--", "sh", "-c", SCRIPT, "{}", waits]
    numbers = subprocess.Popen(["seq", str(ITEMS)], stdout=subprocess.PIPE)
    with numbers, lab.popen(words, stdin=numbers.stdout, stdout=subprocess.PIPE, cwd=tmp_path) as process:
        assert process.stdout
        first = WAITS - 1 if options else ITEMS // 10
        found = read_outputs(process.stdout, first)
        before = peak_rss(process.pid)
        stopped = steady(tmp_path)
        # With -k files are held for the outputs behind the one that is waited for, up to a bound.
        assert stopped - first < (64 + 256 + 16 if options else 64 + 16)
        assert stopped < ITEMS or options
        (tmp_path / "go").touch()
        steady(tmp_path)
        found += read_outputs(process.stdout, ITEMS - first - 1)
        after = peak_rss(process.pid)  # while it is there: the last output does not fit into the pipe
        found += read_outputs(process.stdout, 1)
        assert (process.stdout.read(), process.wait(PATIENCE)) == (b"", 0)
    assert sorted(found) == list(range(1, ITEMS + 1)) and (not options or found == sorted(found))
    assert after < min(before + FLAT, 80 << 20)
