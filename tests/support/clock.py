"""Event loops with clocks of a test's own: one that is put forward, and one that only looks at it move."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Loop(asyncio.SelectorEventLoop):
    """The usual loop; `skip(seconds)` makes every timer that is due by then fire in the next turn."""

    def __init__(self) -> None:
        self._skipped = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self._skipped

    def skip(self, seconds: float) -> None:
        self._skipped += seconds


class Ticking(asyncio.SelectorEventLoop):
    """Each look at the clock takes TICK seconds and nothing else takes any: a slice of time is a count of looks.

    On the machine's clock a slice of two milliseconds may be over before its first step, where others compute.
    """

    TICK = 2e-6

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__()

    def time(self) -> float:
        self._now += self.TICK
        return self._now


def run(main: Coroutine[Any, Any, T], loop: type[asyncio.AbstractEventLoop] = Loop) -> T:
    """As asyncio.run, on a loop of this kind."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


def skip(seconds: float) -> None:
    """Put the running loop's clock forward."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, Loop)
    loop.skip(seconds)
