"""The pause between a failure and the next attempt."""

from __future__ import annotations

import random


def pause(failed: int, first: float, longest: float, jitter: tuple[float, float] = (1.0, 1.0)) -> float:
    """Return the seconds to wait after `failed` failures: `first`, doubled with each more, at most `longest`.

    They are multiplied by a random factor in the range `jitter`: processes that failed together do not return together.
    """
    return min(first * 2.0 ** min(failed - 1, 30), longest) * random.uniform(*jitter)
