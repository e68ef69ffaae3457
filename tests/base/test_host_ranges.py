"""Lists of hosts are folded as ClusterShell folds them, and taken apart without loss."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quine.base.host_ranges import MOST, fold, unfold

FOLDED = {
    "": [],
    "h": ["h"],
    "h1": ["h1"],
    "h[1-3,7]": ["h7", "h1", "h3", "h2", "h1"],
    "h[1-2]": ["h1", "h2"],
    "h[8-10]": ["h8", "h9", "h10"],
    "h[08-10]": ["h08", "h09", "h10"],
    "h[098-100,1000]": ["h098", "h099", "h100", "h1000"],
    "h[1,01]": ["h1", "h01"],
    "h[8-9,08-10]": ["h8", "h08", "h9", "h09", "h10"],
    "h[0,00,000]": ["h000", "h0", "h00"],
    "db,gpu[1-2],web-a": ["web-a", "gpu2", "db", "gpu1"],
    "h[1-2]x": ["h1x", "h2x"],
    "rack[1-2]-node[1-3]": [f"rack{r}-node{n}" for r in (1, 2) for n in (1, 2, 3)],
    "rack1-node[1-3],rack2-node[1-2]": [f"rack{r}-node{n}" for r in (1, 2) for n in range(1, 5 - r)],
    "10.0.0.[1-20]": [f"10.0.0.{n}" for n in range(1, 21)],
    "h[1-2],h[1-2]x4": ["h1", "h2", "h1x4", "h2x4"],
    "h1234567890123456,h1234567890123457": ["h1234567890123456", "h1234567890123457"],
}
TOO_LONG = "h" + "9" * 5000  # int() refuses it

numbers = st.one_of(st.integers(0, 30).map(str), st.integers(0, 120).map(lambda n: f"{n:03}"), st.just("٣"))
names = st.lists(st.one_of(st.sampled_from(["h", "db-", ".", "x", "h_", "é"]), numbers), max_size=5).map(
    "".join
)


@pytest.mark.parametrize(("text", "hosts"), FOLDED.items())
def test_a_list_is_written_short(text: str, hosts: list[str]) -> None:
    assert fold(hosts) == text
    assert fold(reversed(hosts)) == text


@given(st.sets(names.filter(bool)))
def test_what_was_folded_is_unfolded(hosts: set[str]) -> None:
    text = fold(hosts)
    found = unfold(text) if text else []
    assert len(found) == len(hosts)
    assert set(found) == hosts


@settings(max_examples=30)
@given(st.integers(0, 2000), st.integers(1, 500), st.integers(1, 5))
def test_a_row_without_a_gap_is_one_range(first: int, count: int, width: int) -> None:
    hosts = [f"n{number:0{width}}" for number in range(first, first + count)]
    assert fold(hosts).count("-") <= 1
    assert unfold(fold(hosts)) == hosts


def test_a_number_that_is_too_long_to_count_with_is_text() -> None:
    assert fold([TOO_LONG, TOO_LONG + "9", "h1"]) == f"h1,{TOO_LONG},{TOO_LONG}9"


@pytest.mark.parametrize(
    "text",
    [
        "",
        ",",
        "a,",
        ",a",
        "a,,b",
        "h[",
        "h]",
        "h[]",
        "h[1",
        "h[1-]",
        "h[-1]",
        "h[2-1]",
        "h[a]",
        "h[1,]",
        "h[[1]]",
    ],
)
def test_a_wrong_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"list of hosts|number or a range|goes down"):
        unfold(text)


@pytest.mark.parametrize("text", ["h[1-999999999999999]", "h[1-1000]x[1-1000]", "h[1-60000],g[1-60000]"])
def test_a_list_that_stands_for_too_many_is_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match=f"more than {MOST} names"):
        unfold(text)
    assert len(unfold(f"h[1-{MOST}]")) == MOST
