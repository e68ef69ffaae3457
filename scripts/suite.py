"""Run lanes of the tests so that a red test is run once more, alone, before it is judged.

    suite.py run FILE PYTHON -m pytest …     run pytest; append each test that fails to FILE, and go on
    suite.py judge FILE KNOWN                run each of those once more, alone; print which are flaky and which red

Laws
1. Only a test that fails is run again. Any other end of pytest (modules that cannot be collected, a worker that does
   not start or dies, a run that breaks off, no test at all) is red at once, whatever else failed; so are more than
   AGAIN failures in one lane, which are no chance.
2. A test that passes alone is flaky; one that is skipped then is red. `judge` writes its name into KNOWN
   (tests/flaky.md), where it stands from the next commit on, until it is mended.
3. At most NAMES flaky tests are known at one time, and none for longer than DAYS. Beyond that the run is red.

A line of FILE is a JSON object: `test` (a node id, "" where no test is to blame), `first` (the first lines of its
failure), `env` (the variables QUINE_TEST_… that chose its hosts), `python` (that ran it). This module is the plugin of
pytest that writes them.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

NOTES = "QUINE_SUITE_NOTES"  # variable: the file to which the plugin appends
WHOLE = ".whole"  # suffix of the file that the plugin makes when each test that was collected has been run
SHOWN = 120  # characters of a failure in KNOWN: it is committed, and an assertion may show an environment
PASSES = "QUINE_SUITE_PASSES"  # variable: the file that the plugin makes when a test has passed
AGAIN = 10  # tests
NAMES = 3
DAYS = 14
FIRST = 3  # lines of a failure
ROW = re.compile(r"- `(?P<test>.+)` (?P<date>\d{4}-\d\d-\d\d): (?P<first>.+)", re.ASCII)
LISTED = re.compile(r" {0,3}([-*+]|\d+[.)])(\s|$)")  # a row of a list in Markdown
PASSED, SOME_FAILED = 0, 1  # exit statuses of pytest


@dataclass(frozen=True)
class Failure:
    test: str
    first: str
    env: dict[str, str]
    python: str = sys.executable

    def passes_alone(self) -> bool:
        command = [self.python, "-m", "pytest", "-n0", "-p", "scripts.suite", self.test]
        with tempfile.TemporaryDirectory() as directory:
            passed = Path(directory) / "passed"
            environment = {**os.environ, **self.env, PASSES: str(passed)}
            done = subprocess.run(command, env=environment, check=False)
            return done.returncode == PASSED and passed.exists()

    def row(self, day: datetime.date) -> str:
        text = " ".join(self.first.replace("`", "'").split())
        return f"- `{self.test}` {day}: {text[:SHOWN]}"

    def __str__(self) -> str:
        chosen = " ".join(f"{name}={value}" for name, value in self.env.items())
        if self.python != sys.executable:
            chosen = f"{chosen} {self.python}".lstrip()
        return f"{self.test} {chosen}".rstrip() + "\n" + self.first


# -- the plugin ------------------------------------------------------------------------------------

_noted: set[str] = set()
_collected: set[str] = set()
_finished: set[str] = set()


def pytest_collection_finish(session: pytest.Session) -> None:
    _collected.update(item.nodeid for item in session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    _collected.update(ids)


def pytest_runtest_logfinish(nodeid: str) -> None:
    _finished.add(nodeid)


def pytest_sessionfinish() -> None:
    if NOTES in os.environ and "PYTEST_XDIST_WORKER" not in os.environ and _finished == _collected:
        Path(os.environ[NOTES] + WHOLE).touch()


def pytest_runtest_logreport(report: Any) -> None:
    """Note a failure, once for a test."""
    if report.failed and report.nodeid not in _noted:
        _noted.add(report.nodeid)
        crash = getattr(report.longrepr, "reprcrash", None)
        _note(report.nodeid, crash.message if crash else str(report.longrepr))
    elif report.passed and report.when == "call" and PASSES in os.environ:
        Path(os.environ[PASSES]).touch()


def pytest_collectreport(report: Any) -> None:
    # pytest ends with 2 then, but with 1 where workers collect, as for tests that failed
    if report.failed:
        _note("", f"{report.nodeid} cannot be collected\n{report.longrepr}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if error:
        _note("", f"the worker {node.gateway.id} is down: {error}")


def _note(test: str, text: str) -> None:
    """Append a note; with xdist in the process that its workers report to."""
    path = os.environ.get(NOTES)
    if not path or os.environ.get("PYTEST_XDIST_WORKER"):
        return
    env = {name: value for name, value in os.environ.items() if name.startswith("QUINE_TEST_")}
    with open(path, "a", errors="backslashreplace") as file:
        file.write(json.dumps(Failure(test, "\n".join(text.splitlines()[:FIRST]), env).__dict__) + "\n")


# -- the commands ----------------------------------------------------------------------------------


def run(path: Path, command: list[str]) -> int:
    """Return the status of pytest, but 0 where tests failed that may be run again.

    Lanes that run beside each other share `path`, so each has notes of its own until it ends.
    """
    own = path.with_name(f"{path.name}.{os.getpid()}")
    whole = own.with_name(own.name + WHOLE)
    for each in (own, whole):
        each.unlink(missing_ok=True)
    environment = {**os.environ, NOTES: str(own.absolute())}
    try:
        status = subprocess.run([*command, "-p", "scripts.suite"], env=environment, check=False).returncode
        text = own.read_text() if own.exists() else ""
        broken_off = status in (PASSED, SOME_FAILED) and not whole.exists()
    finally:
        for each in (own, whole):
            each.unlink(missing_ok=True)
    if broken_off:
        print("red: not all tests were run", flush=True)
        return SOME_FAILED
    if not text:
        return status
    failures = [Failure(**json.loads(line)) for line in text.splitlines()]
    if others := [failure.first for failure in failures if not failure.test]:
        print("red:", *others, sep="\n", flush=True)
        return status or SOME_FAILED
    with path.open("a") as file:
        file.write(text)
    if status != SOME_FAILED or len(failures) > AGAIN:
        return status
    print(f"{len(failures)} failed: to be run once more, alone", flush=True)
    return PASSED


def known(path: Path) -> dict[str, datetime.date]:
    """Return the flaky tests that are known, each with the day it was noticed."""
    found: dict[str, datetime.date] = {}
    for line in path.read_text().splitlines():
        if LISTED.match(line):
            row = ROW.fullmatch(line)
            try:
                day = datetime.date.fromisoformat(row["date"]) if row else None
            except ValueError:
                day = None
            if not row or not day or day > _today() or row["test"] in found:
                raise SystemExit(f"{path}: malformed row, of a day that comes, or a second one: {line!r}")
            found[row["test"]] = day
    return found


def _today() -> datetime.date:
    return datetime.datetime.now(datetime.UTC).date()


def judge(path: Path, list_of_known: Path) -> int:
    names, today = known(list_of_known), _today()
    notes = path.read_text().splitlines() if path.exists() else []
    flaky, red = [], []
    for failure in (Failure(**json.loads(note)) for note in notes):
        (flaky if failure.passes_alone() else red).append(failure)
    for failure in flaky:
        print(f"flaky: {failure}")
        if failure.test not in names:
            names[failure.test] = today
            text, row = list_of_known.read_text(), failure.row(today)
            list_of_known.write_text(f"{text}{'' if text.endswith(chr(10)) else chr(10)}{row}\n")
            print(f"noted in {list_of_known}, to be committed:\n{row}")
    complaints = [str(failure) for failure in red]
    for name, since in names.items():
        if (today - since).days > DAYS:
            complaints.append(f"{name} is known as flaky since {since}, for more than {DAYS} days")
    together = {*names, *(failure.test for failure in flaky)}
    if len(together) > NAMES:
        complaints.append(f"{len(together)} flaky tests are more than {NAMES}: {', '.join(sorted(together))}")
    for complaint in complaints:
        print(f"red: {complaint}")
    print(f"{len(flaky)} flaky, {len(complaints)} red")
    return SOME_FAILED if complaints else PASSED


def main() -> int:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    match sys.argv[1:]:
        case ["run", path, *command] if command:
            return run(Path(path), command)
        case ["judge", path, list_of_known]:
            return judge(Path(path), Path(list_of_known))
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
