"""Cases of GNU parallel's tutorial, manual and examples, and of xargs: run by `quine xargs`, and by these themselves.

cases/*.toml    quine      a script for sh
                peer       the same for the other program
                out        stdout of both; stderr is empty
                status     of the first one, if it is not 0
                peer_out, differs   where the other program prints something else: that, and the words of
                           docs/reference/xargs.md that say so
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from quine.fanout.input.items import Items
from quine.fanout.main import template
from quine.fanout.options import parse
from tests.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
CASES = [
    (path.stem, case)
    for path in sorted((Path(__file__).parent / "cases").glob("*.toml"))
    for case in tomllib.loads(path.read_text())["case"]
]
NAMES = [f"{program}: {case['name']}" for program, case in CASES]

# the files that the tutorial makes first, and one for names with blanks
FILES = {
    "abc-file": "A\nB\nC\n",
    "def-file": "D\nE\nF\n",
    "abc0-file": "A\0B\0C\0",
    "abc_-file": "A_B_C_",
    "tsv-file.tsv": "f1\tf2\nA\tB\nC\tD\n",
    "people": "Name\tE-mail address\nAda\tada@example.org\nGrace\tgrace@example.org\n",
    **{f"num{count}": "".join(f"{at}\n" for at in range(1, count + 1)) for count in (8, 128, 1000)},
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


# A case of how the items of `echo` are read and put into its words: its jobs print no more than `argv` says.
OF_INPUT = re.compile(
    r"[^|;]*(\(.*\) )?(\| )?quine xargs -k(?! .*--(joblog|results|tag|dry-run|delay|load|json|pipe)| -P| .*2>)"
    r" (.* )?-- echo[^|]*"
)
RUN = [*zip(NAMES, CASES, strict=True)]
EXPANDED = {name: case for name, (_, case) in RUN if OF_INPUT.fullmatch(case["quine"])}
RUN = [(name, case) for name, (_, case) in RUN if name not in EXPANDED]


def test_cases_of_input(place: Path) -> None:
    """A shell notes the words and the stdin of each `quine`; items and argv are made of them here."""
    note = "quine() { printf '%s\\0' \"$@\" >$OUT.words; cat >$OUT.stdin; }"
    lines = [f"(OUT={at}; {case['quine']}\n)" for at, case in enumerate(EXPANDED.values())]
    noted = subprocess.run(
        ["sh", "-c", "\n".join([note, *lines])], stdin=subprocess.DEVNULL, capture_output=True, cwd=place
    )
    assert (noted.stdout, noted.stderr) == (b"", b"")
    found = {name: expanded(place, str(at)) for at, name in enumerate(EXPANDED)}
    assert found == {name: case["out"] for name, case in EXPANDED.items()} and len(found) > 100


def expanded(place: Path, noted: str) -> str:
    """The output of a command that prints its arguments."""
    words = (place / f"{noted}.words").read_bytes().decode("utf-8", "surrogateescape").split("\0")[:-1]
    assert words[0] == "xargs"
    return "".join(" ".join(argv[1:]) + "\n" for argv in argvs(place, words[1:], place / f"{noted}.stdin"))


def argvs(place: Path, words: list[str], stdin: Path) -> list[list[str]]:
    """The argv of each job of a batch with these words, made in this process."""
    own = os.dup(0)
    with stdin.open("rb") as file, contextlib.chdir(place):
        os.dup2(file.fileno(), 0)
        try:
            options, rest, dashes = parse(words)
            with contextlib.closing(Items(options, rest)) as items:
                command = template(options, items.command, mission=not dashes)
                return [command.argv(item) for item in items if item]
        finally:
            os.dup2(own, 0)
            os.close(own)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(name, case, id=name, marks=[pytest.mark.clock] if "--timeout" in case["quine"] else [])
        for name, case in RUN
    ],
)
def test_cases(lab: Lab, place: Path, name: str, case: dict[str, str]) -> None:
    done = lab.sh(case["quine"], cwd=place, env={"LC_ALL": "C.UTF-8"})
    assert (done.stdout.decode(), done.stderr, done.returncode) == (case["out"], b"", case.get("status", 0))


@pytest.mark.long
@pytest.mark.parametrize(("program", "case"), CASES, ids=NAMES)
def test_the_other_program_prints_the_same(place: Path, program: str, case: dict[str, str]) -> None:
    if not shutil.which(program):
        pytest.skip(f"no {program} here")
    (place / ".parallel").mkdir()
    (place / ".parallel" / "will-cite").touch()
    env = {"PATH": os.environ["PATH"], "HOME": str(place), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["sh", "-c", case["peer"]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        cwd=place,
        env=env,
        timeout=100,
    )
    assert (done.stdout.decode(), done.stderr) == (case.get("peer_out", case["out"]), b"")


def test_there_are_many_of_them_and_each_difference_is_in_the_manual() -> None:
    assert len(set(NAMES)) == len(NAMES) > 150
    manual = " ".join((ROOT / "docs" / "reference" / "xargs.md").read_text().split())
    for program, case in CASES:
        assert ("peer_out" in case) == ("differs" in case), case["name"]
        if "differs" in case:
            assert case["differs"] in manual, (program, case["name"])
            assert case["peer_out"] != case["out"]
