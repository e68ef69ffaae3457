"""Numbers that another machine has told: refusals, and that nothing else is raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.wire import numbers

HUGE = 10**400


@pytest.mark.parametrize("value", [HUGE, -HUGE, float("inf"), float("nan"), -1, 1e300, True, "1", None, [1]])
def test_a_value_that_is_no_number_within_its_bounds(value: object) -> None:
    for check in (numbers.number, numbers.whole):
        with pytest.raises(ValueError, match="number from 0 to"):
            check(value, 1000)


@pytest.mark.parametrize(
    "text", ["inf", "nan", "-1", "1e3", "²", "٣", "1_0", "9" * 5000, "", ".", "1.5.5", "0x1", " 1", "1001"]
)
def test_a_text_that_is_no_number_within_its_bounds(text: str) -> None:
    for check in (numbers.decimal, numbers.digits):
        with pytest.raises(ValueError, match="number"):
            check(text, 1000)


def test_numbers() -> None:
    assert numbers.number(3, 1000) == 3.0 and numbers.number(0.5, 1, 0.5) == 0.5
    assert numbers.whole(1000, 1000) == 1000 and numbers.digits("0012", 1000) == 12
    assert numbers.decimal("0.25", 1000) == 0.25 and numbers.decimal("7", 1000) == 7.0


@pytest.mark.parametrize("check", [numbers.decimal, numbers.digits])
@given(text=st.text(max_size=30))
def test_any_text_is_within_the_bounds_or_refused(check: Callable[[str, int], float], text: str) -> None:
    try:
        assert 0 <= check(text, 50) <= 50
    except ValueError:
        pass
