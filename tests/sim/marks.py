"""Which tests of the simulator are left to `make test-more`, and which to a release: those that take many seeds."""

from __future__ import annotations

from typing import Any

import pytest


def by_seeds(value: object, seeds: int, short: int, long: int) -> Any:
    """Return the parameter `value`, whose test is long beyond `short` seeds, and for a release beyond `long`."""
    marks = [pytest.mark.long] if seeds > short else []
    return pytest.param(value, marks=[*marks, pytest.mark.whole] if seeds > long else marks)
