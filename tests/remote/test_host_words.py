"""Data from hosts: the page is printed from the code, and the code has no other model of a body."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from quine.base import sizes
from quine.fanout import load
from quine.fanout.output import values
from quine.remote import host_words

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.law
def test_the_page_is_what_the_code_prints() -> None:
    assert (ROOT / "docs" / "reference" / "host-words.md").read_text() == host_words.page()
    rows = [row for rows in host_words.TABLE.values() for row in rows]
    assert all(all(row) and "|" not in "".join(row) for row in rows)
    # of rooms that this one may not import
    limit = host_words.size(sizes.parse(values.MOST, values.OPTION))
    told = host_words.LOAD_ANSWER, host_words.MOST_LOAD, host_words.LOAD_SECONDS
    assert told == (load.ANSWER, load.LOAD, load.PATIENCE)
    assert any(f"`{values.OPTION}`: {limit} " in row.bound for row in rows)


@pytest.mark.law
def test_each_model_of_a_body_is_on_the_page() -> None:
    found = {
        name
        for path in (ROOT / "quine").rglob("*.py")
        for name in re.findall(r"^class (\w+)\(Strict\)", path.read_text(), re.MULTILINE)
    }
    assert found == {model.__name__ for model in host_words.MODELS}
