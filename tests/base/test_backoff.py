"""The pause between a failure and the next attempt grows, has an end and is spread."""

from __future__ import annotations

from quine.base import backoff


def test_it_doubles_up_to_the_longest() -> None:
    assert [backoff.pause(n, 0.5, 8.0) for n in range(1, 8)] == [0.5, 1, 2, 4, 8, 8, 8]
    assert backoff.pause(10**6, 0.5, 8.0) == 8.0


def test_the_factor_is_within_the_range_and_not_always_the_same() -> None:
    drawn = {backoff.pause(3, 1.0, 30.0, jitter=(0.5, 1)) for _ in range(200)}
    assert len(drawn) > 100 and all(2.0 <= one <= 4.0 for one in drawn)
    assert min(drawn) < 2.5 and max(drawn) > 3.5
