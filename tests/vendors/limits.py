"""A provider with the limits of an account: so many requests at a time, so many in a window of time; else 429."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from typing import Any

from tests.vendors.server import Fault, Provider, Said, Seen, Turn


class Limited(Provider):
    """`took`: seconds of an inference. `refusals` are the times of its answers 429, `most` is what it had at a time."""

    def __init__(
        self,
        vendor: Any,
        said: Said,
        at_a_time: int,
        in_window: int,
        window: float,
        took: float,
        whole: bool = False,
    ) -> None:
        super().__init__(vendor, choose=self._judged)
        self._said, self._limits = said, (at_a_time, in_window, window)
        self._took, self._whole = took, whole
        self._times: deque[float] = deque()
        self._busy = self.most = 0
        self.refusals: list[float] = []
        self._counting = threading.Lock()

    def _judged(self, seen: Seen) -> Turn:
        """Return the turn for a request; called under the lock of the requests."""
        at_a_time, in_window, window = self._limits
        now = time.monotonic()
        while self._times and self._times[0] <= now - window:
            self._times.popleft()
        with self._counting:
            if self._busy >= at_a_time:
                self.refusals.append(now)
                return Fault(429, "rate", message="too many at a time")
            if len(self._times) >= in_window:
                self.refusals.append(now)
                after = self._times[0] + window - now
                told = str(math.ceil(after)) if self._whole else f"{after:.3f}"
                return Fault(429, "rate", {"Retry-After": told}, "too many in a minute")
            self._busy += 1
            self.most = max(self.most, self._busy)
        self._times.append(now)
        return self._said

    def next(self, seen: Seen, wrong: str | None) -> Turn:
        turn = super().next(seen, wrong)
        if turn is self._said:
            time.sleep(self._took)  # the model's own time
        return turn

    def answered(self, turn: Turn) -> None:
        if turn is self._said:
            with self._counting:
                self._busy -= 1
