"""Numbers with units in variables and options of an agent."""

from __future__ import annotations

import pytest

from quine.base import sizes
from quine.base.errors import Misconfigured


@pytest.mark.parametrize(
    ("text", "units", "number"),
    [
        ("", sizes.MULTIPLES, 7),
        ("20", sizes.MULTIPLES, 20),
        ("1k", sizes.MULTIPLES, 1000),
        ("2M", sizes.MULTIPLES, 2_000_000),
        ("20k", sizes.BYTES, 20480),
        ("5m", sizes.TIMES, 300),
        ("1h", sizes.TIMES, 3600),
    ],
)
def test_a_whole_number(text: str, units: dict[str, int], number: int) -> None:
    assert sizes.integer({"N": text}, "N", 7, units) == number


@pytest.mark.parametrize("text", ["1.5k", "k", "5m", "-1", "-1k", "2G", "9" * 30, "1 k", "1kk", "\u0661"])
def test_no_whole_number(text: str) -> None:
    with pytest.raises(Misconfigured, match=r"^N must "):
        sizes.integer({"N": text}, "N", 7)


def test_a_number() -> None:
    assert sizes.number({"N": "1.5h"}, "N", 0.0, sizes.TIMES) == 5400.0
    assert sizes.number({"N": "0.25"}, "N", 0.0) == 0.25
    for text in ("1.5h", "x", "-1", "nan", "inf", "1e99"):
        with pytest.raises(Misconfigured, match=r"^N must "):
            sizes.number({"N": text}, "N", 0.0)
