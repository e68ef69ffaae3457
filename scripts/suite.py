"""Run tests so that a red one is not the end: it is run once more, alone, and judged with tests/flaky.md.

    suite.py run FILE COMMAND…      run pytest; append each test that fails to FILE, and go on
    suite.py judge FILE             run each of those once more, alone; list what is flaky, and what is red

Laws
1. Only a failing test is forgiven, and only here: any other end of pytest (a collection that fails, a worker that
   cannot start, no test at all) is red at once, and so are more than AGAIN failures, which nobody calls chance.
2. A test that passes alone is flaky. Its name stands in tests/flaky.md from the next commit on until it is mended.
3. At most NAMES flaky tests are known at one time, and none for longer than DAYS: beyond that the run is red.

What is appended is a JSON object a line: `test` (a node id), `first` (the first lines of its failure), `env` (the
variables that chose its hosts, `QUINE_TEST_…`). tests/conftest.py writes them.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KNOWN = ROOT / "tests" / "flaky.md"
FAILED = "QUINE_TESTS_FAILED"  # the file's name, for the tests
AGAIN = 10  # tests to run once more
NAMES = 3
DAYS = 14
ROW = re.compile(r"- `(?P<test>.+)` (?P<date>\d{4}-\d\d-\d\d): (?P<first>.+)")
PASSED, SOME_FAILED = 0, 1  # exit statuses of pytest


@dataclass(frozen=True)
class Failure:
    test: str
    first: str
    env: dict[str, str]

    def passes_alone(self) -> bool:
        command = [sys.executable, "-m", "pytest", "-n0", "-o", "addopts=", "-q", self.test]
        return subprocess.run(command, cwd=ROOT, env={**os.environ, **self.env}, check=False).returncode == PASSED


def failures(path: Path) -> list[Failure]:
    return [Failure(**json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def run(path: Path, command: list[str]) -> int:
    before = len(failures(path))
    status = subprocess.run(command, env={**os.environ, FAILED: str(path)}, check=False).returncode
    new = len(failures(path)) - before
    if status != SOME_FAILED or not 0 < new <= AGAIN:
        return status
    print(f"{new} failed; to be run once more, alone", flush=True)
    return PASSED


def known(text: str) -> dict[str, datetime.date]:
    """Return the flaky tests that are known, with the date since when."""
    rows = [line for line in text.splitlines() if line.startswith("- ")]
    found = [ROW.fullmatch(row) for row in rows]
    if None in found:
        raise SystemExit(f"{KNOWN}: malformed row {rows[found.index(None)]!r}")
    return {row["test"]: datetime.date.fromisoformat(row["date"]) for row in found if row}


def judge(path: Path, today: datetime.date) -> int:
    named = known(KNOWN.read_text())
    red, flaky = [], []
    for failure in failures(path):
        (flaky if failure.passes_alone() else red).append(failure)
    for failure in flaky:
        print(f"flaky: {failure.test}\n    {failure.first}")
        if failure.test not in named:
            print(f"    to be noted in tests/flaky.md:\n- `{failure.test}` {today}: {' '.join(failure.first.split())}")
    complaints = [f"{failure.test}\n    {failure.first}" for failure in red]
    complaints += [
        f"{test}: in tests/flaky.md for {age} days"
        for test, since in named.items()
        if (age := (today - since).days) > DAYS
    ]
    names = {*named, *(failure.test for failure in flaky)}
    if len(names) > NAMES:
        complaints.append(f"{len(names)} flaky tests, more than {NAMES}: {', '.join(sorted(names))}")
    for complaint in complaints:
        print(f"red: {complaint}")
    return SOME_FAILED if complaints else PASSED


def main() -> int:
    match sys.argv[1:]:
        case ["run", path, *command] if command:
            return run(Path(path).absolute(), command)
        case ["judge", path]:
            return judge(Path(path), datetime.datetime.now(datetime.UTC).date())
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
