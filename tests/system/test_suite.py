"""scripts/suite.py on suites of a few tests: a test that is run again, one that is flaky, one that is red."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.long  # many starts of pytest

SUITE = str(ROOT / "scripts" / "suite.py")

BY_CHANCE = """
import os
def test_{name}():
    if not os.path.exists("{name}"):
        open("{name}", "w").close()
        assert 2 + 2 == 5, "by chance"
"""
DIES = """
def test_the_worker_dies():
    os._exit(3)
"""
ALWAYS = "def test_always():\n    assert False, 'for a reason'\n"


class Place:
    """A directory with tests, its notes and its list of flaky tests."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
        self.know()

    def know(self, *rows: str) -> None:
        (self.directory / "flaky.md").write_text("# Flaky tests\n\n" + "".join(f"- {row}\n" for row in rows))

    def suite(self, *words: str) -> tuple[int, str]:
        ours = (
            "PYTEST_XDIST_WORKER",
            "QUINE_TEST_",
            "QUINE_SUITE_",
        )  # of the run that this test is a part of
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env["PYTHONPATH"] = str(ROOT)
        done = subprocess.run(
            [sys.executable, SUITE, *words], cwd=self.directory, env=env, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    def run(self, *words: str, python: str = sys.executable) -> int:
        command = [python, "-m", "pytest", "-p", "no:cacheprovider", *words]
        return self.suite("run", "notes", *command)[0]

    def judge(self) -> tuple[int, str]:
        return self.suite("judge", "notes", "flaky.md")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_green_alone_is_flaky_and_red_twice_is_red(place: Place) -> None:
    for name in ("a", "b"):
        (place.directory / f"test_{name}.py").write_text(BY_CHANCE.format(name=name))
    assert place.run("test_a.py") == 0
    assert place.run("-n", "2", "test_b.py") == 0  # by workers, noted once
    status, said = place.judge()
    assert status == 0 and said.endswith("2 flaky, 0 red\n")
    today = datetime.datetime.now(datetime.UTC).date()
    row = f"- `test_a.py::test_a` {today}: AssertionError: by chance assert (2 + 2) == 5\n"
    assert row in said and row in (place.directory / "flaky.md").read_text()
    assert "flaky: test_b.py::test_b\nAssertionError: by chance\n" in said

    (place.directory / "test_always.py").write_text(ALWAYS)
    assert place.run("test_always.py") == 0
    status, said = place.judge()
    assert status == 1 and "red: test_always.py::test_always\nAssertionError: for a reason" in said


def test_a_test_is_run_again_by_the_python_that_it_failed_with(place: Place) -> None:
    ours = Path(sys.executable)
    other = ours.with_name("python3" if ours.name == "python" else "python")
    (place.directory / "test_a.py").write_text(
        f"import sys\ndef test_a():\n    assert sys.executable == {str(ours)!r}\n"
    )
    assert place.run("test_a.py", python=str(other)) == 0
    status, said = place.judge()
    assert status == 1 and f"red: test_a.py::test_a {other}" in said


def test_no_more_than_three_are_known_and_none_for_longer_than_two_weeks(place: Place) -> None:
    today = datetime.datetime.now(datetime.UTC).date()
    (place.directory / "test_a.py").write_text(BY_CHANCE.format(name="a"))
    rows = [f"`test_{name}.py::test[`|x]` {today}: AssertionError" for name in "bcd"]
    assert place.run("test_a.py") == 0
    place.know(*rows[:2])
    assert place.judge()[0] == 0
    place.know(*rows)
    status, said = place.judge()
    assert status == 1 and "red: 4 flaky tests are more than 3" in said
    place.know(rows[0], f"`test_a.py::test_a` {today}: AssertionError")
    status, said = place.judge()
    assert status == 0 and "flaky: test_a.py" in said and "to be committed" not in said
    place.know(f"`test_e.py::test` {today - datetime.timedelta(days=15)}: AssertionError")
    status, said = place.judge()
    assert status == 1 and "red: test_e.py::test is known as flaky since" in said
    tomorrow = today + datetime.timedelta(days=1)
    for row in ("a row without a date", f"`test_e.py::test` {tomorrow}: AssertionError"):
        place.know(row)
        status, said = place.judge()
        assert status == 1 and f"malformed row, of a day that comes, or a second one: '- {row}'" in said
    place.know(rows[0], rows[0])
    assert place.judge()[0] == 1


@pytest.mark.parametrize("status", [0, 1])
def test_a_run_that_breaks_off_is_red(place: Place, status: int) -> None:
    (place.directory / "test_a.py").write_text(BY_CHANCE.format(name="a"))
    (place.directory / "test_b.py").write_text("import os\n" + DIES.replace("3", str(status)) + ALWAYS)
    assert place.run() == 1
    (place.directory / "a").unlink()
    (place.directory / "test_b.py").write_text(ALWAYS)
    assert place.run("-x") == 1


def test_a_row_can_be_read_again(place: Place) -> None:
    text = "sent `x` 2026-01-01: y" + "z" * 1000
    (place.directory / "test_a.py").write_text(BY_CHANCE.format(name="a").replace("by chance", text))
    (place.directory / "flaky.md").write_text("# Flaky tests")
    for _ in range(2):  # two lanes run it
        assert place.run() == 0
        (place.directory / "a").unlink()
    (place.directory / "a").touch()
    assert place.judge()[0] == 0
    rows = (place.directory / "flaky.md").read_text().splitlines()
    assert len(rows) == 2 and rows[1].startswith("- `test_a.py::test_a` ") and len(rows[1]) < 200
    assert place.judge()[0] == 0


SKIPPED = """
import os, pytest
def test_skipped():
    if os.path.exists("once"):
        pytest.skip("for another reason")
    open("once", "w").close()
    assert False
"""


def test_one_that_is_skipped_alone_is_red(place: Place) -> None:
    (place.directory / "test_skipped.py").write_text(SKIPPED)
    assert place.run() == 0
    status, said = place.judge()
    assert status == 1 and "red: test_skipped.py::test_skipped" in said


def test_no_other_end_of_pytest_is_forgiven(place: Place) -> None:
    (place.directory / "test_a.py").write_text("import there_is_no_such_module\n")
    assert place.run() == 2
    # beside one that fails by chance
    (place.directory / "test_c.py").write_text(BY_CHANCE.format(name="c"))
    assert place.run("-n", "2") == 1
    (place.directory / "test_c.py").write_text(BY_CHANCE.format(name="d") + DIES)
    (place.directory / "test_a.py").write_text("")
    assert place.run("-n", "2") == 1
    assert not (place.directory / "notes").exists()
    (place.directory / "test_c.py").unlink()
    (place.directory / "test_a.py").write_text("")
    assert place.run() == 5
    (place.directory / "test_a.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(11))\ndef test(n):\n    assert False\n"
    )
    assert place.run() == 1  # too many for chance
