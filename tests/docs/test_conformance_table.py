"""docs/reference/conformance.md, as far as it can be checked: every row once, a verdict, tests that exist."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.law

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "reference" / "conformance.md").read_text()
GROUPS = {"C": 15, "S": 8, "F": 12, "T": 19, "K": 15, "X": 12, "E": 7, "L": 10, "N": 7, "D": 18, "V": 8}
DEFECTS, HAZARDS, CONTRADICTIONS = 20, 6, 21
VERDICTS = {"kept", "changed", "not built"}
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(?:(Test\w+)::)?(test_\w+)`")


def rows(prefix: str) -> list[list[str]]:
    """The cells of the rows whose first cell is this prefix and a number."""
    lines = [line.strip("|").split(" | ") for line in TEXT.splitlines() if line.startswith("|")]
    return [
        [cell.strip() for cell in cells] for cells in lines if re.fullmatch(rf"{prefix}\d+", cells[0].strip())
    ]


@functools.cache
def found_in(path: str, owner: str = "") -> set[str]:
    """The names of the tests in a file, or in a class of it with what that inherits from the other files here."""
    if not (ROOT / path).exists():
        return set()
    tree = ast.parse((ROOT / path).read_text())
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == owner:
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            inherited = [
                found_in(f"{found.module.replace('.', '/')}.py", name.name)
                for found in tree.body
                if isinstance(found, ast.ImportFrom) and found.module
                for name in found.names
                if name.name in bases
            ]
            return _names(node.body).union(*inherited)
    return set() if owner else _names(tree.body)


def _names(body: list[ast.stmt]) -> set[str]:
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize(("group", "count"), GROUPS.items())
def test_every_row_is_there_once(group: str, count: int) -> None:
    assert [row[0] for row in rows(group)] == [f"{group}{number}" for number in range(1, count + 1)]


def test_every_row_has_a_verdict_and_says_why() -> None:
    for group in GROUPS:
        for row in rows(group):
            assert len(row) == 4, row
            verdict, _, why = row[2].partition(": ")
            assert verdict in VERDICTS, row
            assert why or verdict == "kept", row
            assert NAMED.search(row[3]) or verdict == "not built", row


@pytest.mark.parametrize(
    ("prefix", "count"),
    [("#", DEFECTS), ("H", HAZARDS), ("Q", CONTRADICTIONS)],
    ids=["defects", "hazards", "questions"],
)
def test_the_lists_are_complete(prefix: str, count: int) -> None:
    found = rows(prefix)
    assert [row[0] for row in found] == [f"{prefix}{number}" for number in range(1, count + 1)]
    for row in found:
        assert all(row)
        assert prefix == "Q" or NAMED.search(row[-1]), row


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall(TEXT)
    assert len(named) > 150
    missing = [f"{path}::{owner}::{name}" for path, owner, name in named if name not in found_in(path, owner)]
    assert missing == []
    # nothing that looks like a test is outside of that form
    assert TEXT.count("::test_") == len(named)


def test_every_test_of_a_defect_is_in_the_list() -> None:
    """A test whose name says which defect it keeps away stands in that row."""
    listed = {row[0]: row[-1] for row in rows("#")}
    for path in ("tests/system/test_defects.py", "tests/system/test_defects_guest.py"):
        for name in found_in(path):
            if found := re.match(r"test_defect_(\d+)_", name):
                assert f"`{path}::{name}`" in listed[f"#{int(found[1])}"]


def test_verdicts_are_counted_at_the_top() -> None:
    counted = Counter(row[2].partition(":")[0] for group in GROUPS for row in rows(group))
    assert f"{counted['kept']} kept, {counted['changed']} changed, {counted['not built']} not built" in TEXT
