"""The state of a batch under way, as numbers: ended items, their rate, those that are left, and the same of each host.

Laws
1. No clock and no descriptor: the time is given.
2. Nothing here grows with the number of items.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from quine.fanout.outcome import DONE
from transport.lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from quine.fanout.outcome import Tally

MOST = 1001  # times of which the median is taken, the last ones
LEAST = 3  # and how many of them there must be
WINDOW = 10  # seconds over which a rate is taken
# for which a batch may wait
READER, SLOT, LOAD = "the reader of its output", "a free slot", "the load of the hosts"


class Median:
    """The median of the last times."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        if len(self._times) == MOST:
            del self._sorted[bisect_left(self._sorted, self._times.popleft())]
        self._times.append(seconds)
        insort(self._sorted, seconds)

    @property
    def value(self) -> float | None:
        """None as long as there are too few times."""
        return self._sorted[len(self._sorted) // 2] if len(self._sorted) >= LEAST else None


class Rate:
    """Events a second, over the last WINDOW seconds."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._counts: deque[list[int]] = deque()  # a second, and the events in it

    def add(self, now: float) -> None:
        if not self._counts or self._counts[-1][0] != int(now):
            self._counts.append([int(now), 0])
            self._forget(now)
        self._counts[-1][1] += 1

    def _forget(self, now: float) -> None:
        while self._counts and self._counts[0][0] <= int(now) - WINDOW:
            self._counts.popleft()

    def value(self, now: float) -> float:
        self._forget(now)
        # The window begins with a whole second.
        span = min(now - self._began, WINDOW - 1 + now - int(now))
        return sum(count for _, count in self._counts) / max(span, 0.001)


class HostState:
    """One host. `slots` 0: not known, or no limit; `load` below 0: not known; `until` 0: its link is up."""

    def __init__(self, now: float, slots: int = 0) -> None:
        self.slots = slots
        self.running = self.ended = self.failed = 0
        self.rate = Rate(now)
        self.load = -1.0
        self.until = 0.0  # when its jobs are given up
        self.cpus = 0


class Progress:
    """The batch: counts by kind in `tally`, and the hosts by name."""

    def __init__(self, tally: Tally, now: float) -> None:
        self.tally = tally
        self.hosts: dict[str, HostState] = {}
        self.median = Median()
        self.read = self.skipped = 0  # items; the second had their ends in a run before
        self.total: int | None = None  # items of the input, if that can be known
        self.running = 0  # over there
        self.under_way = 0  # items that were read and have no end
        self.taken_back = 0  # items that were read, and are not started any more
        self.waits = ""  # for what, if that is none of its own jobs
        self._began = now
        self._rate = Rate(now)

    def host(self, name: str, now: float) -> HostState:
        name = name or "local"
        if name not in self.hosts:
            self.hosts[name] = HostState(now)
        return self.hosts[name]

    def started(self, host: str, now: float) -> None:
        """A job runs."""
        self.running += 1
        self.host(host, now).running += 1

    def stopped(self, host: str) -> None:
        """A job that ran does not any more, or is not known to."""
        self.running -= 1
        self.hosts[host or "local"].running -= 1

    def linked(self, host: str, note: Mapping[str, object], now: float) -> None:
        """The node here has noted that the link to a host is up, or is down, and how long its jobs have left."""
        left = note.get("left")
        self.host(host, now).until = (
            now + left if note.get("up") is False and isinstance(left, (int, float)) else 0.0
        )

    def ended(self, host: str, kind: str, began: float | None, now: float) -> None:
        """A try has ended; `began` is None if it never ran."""
        if began is None and not host:
            return  # it reached no host
        state = self.host(host, now)
        state.ended += 1
        state.rate.add(now)
        state.failed += kind != DONE
        if kind == DONE and began is not None:
            self.median.add(now - began)

    def final(self, now: float) -> None:
        """An item has its end."""
        self._rate.add(now)

    def rate(self, now: float) -> float:
        return self._rate.value(now)

    def left(self) -> int | None:
        """Items that have no end; None if that is not known."""
        if self.total is None:
            return None
        return max(0, self.total - self.read) + self.under_way + self.taken_back

    def eta(self) -> float | None:
        """Seconds that the rest will take if each item takes the median of what is done."""
        left, median = self.left(), self.median.value
        if left is None or median is None or not self.running:
            return None
        return left * median / min(self.running, max(left, 1))
