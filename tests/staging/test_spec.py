"""The meaning of patterns, against brute force: each name that one may mean is made. Without a file."""

from __future__ import annotations

from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.errors import Misconfigured
from quine.files.paths import within
from quine.staging import spec

NAMES = ["a", "b", ".a"]
DEEPEST = 3  # directories that `**` stands for
DIRECTORIES = [list(path) for depth in range(DEEPEST + 1) for path in product(["a", "b"], repeat=depth)]

parts = st.sampled_from(["a", "b", ".a", "*", "?", "a*", ".*", "[ab]", "**"])
patterns = st.lists(parts, min_size=1, max_size=3).map("/".join)
names = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)


def meant(pattern: str) -> list[str]:
    """All names that a pattern may mean, of NAMES."""
    choices = []
    for part in pattern.split("/"):
        shown = [each for each in NAMES if each[0] != "." or part[0] == "."]
        choices.append(DIRECTORIES if part == "**" else [[each] for each in shown if fnmatchcase(each, part)])
    found = ("/".join(name for part in way for name in part) for way in product(*choices))
    return [name for name in found if name]


def meet(one: str, other: str) -> bool:
    return within(one, other) or within(other, one)


@settings(deadline=None, max_examples=300)
@given(patterns, names)
def test_a_pattern_and_a_name_overlap_if_a_match_is_the_name_or_in_it_or_above_it(
    pattern: str, name: str
) -> None:
    truth = any(meet(match, name) for match in meant(pattern))
    assert spec.overlap(pattern, spec.literal(name)) == spec.overlap(spec.literal(name), pattern) == truth


@settings(deadline=None, max_examples=300)
@given(st.text("[]*?:a", min_size=1), st.text("[]*?:a", min_size=1))
def test_what_is_literal_is_the_text_itself_and_matches_nothing_else(one: str, other: str) -> None:
    word = spec.literal(one)
    assert spec.text_of(word) == spec.name_of(word) == one
    assert spec.allowed(one.encode(), [word]) and fnmatchcase(one, word)
    assert spec.allowed(other.encode(), [word]) == (one == other)


@settings(deadline=None, max_examples=200)
@given(patterns, patterns)
def test_patterns_whose_matches_meet_overlap(one: str, other: str) -> None:
    mine, theirs = set(meant(one)), set(meant(other))
    if any(meet(*pair) for pair in product(sorted(mine)[:40], sorted(theirs)[:40])):
        assert spec.overlap(one, other) and spec.overlap(other, one)


def test_a_match_in_a_directory_of_another_item_overlaps() -> None:
    assert spec.overlap("*/b.out", "d1") and not spec.overlap("*/b.out", ".d1")


def test_a_result_by_an_absolute_item_names_the_cure() -> None:
    with pytest.raises(Misconfigured) as caught:
        spec.returns(["/abs/x.out"])
    assert caught.value.hint == "give a relative path (that of an item of xargs: {/}), or A/./B"
