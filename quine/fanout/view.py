"""The view of a batch: on a terminal a few lines below all output, elsewhere a line on stderr now and then.

Laws
1. Output and messages are never mixed with the view: it is erased, they are printed, and it is painted again
   (quine/fanout/output/streams.py).
2. It is text of this process about this process: names of hosts are shown without control characters.
3. It ends no batch: a view or a line that cannot be written is left out.
"""

from __future__ import annotations

import os
import time

from quine.fanout.load import Loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.fanout.input.items import Items
    from quine.fanout.options import Options
    from quine.fanout.output.streams import Streams
    from quine.fanout.progress import HostState, Progress
    from transport.client.batch import Batch

FIRST = 1.0  # seconds until the view is painted: a short batch has none
EVERY = 1.0  # seconds between two paintings
SOON = 0.2  # and if output has erased it in between; till then it is painted as it was
LINE = 30.0  # seconds between two lines where there is no terminal
GAP = "   "


class View:
    """The view of one batch, and the loads of its hosts. `due` is when `tick` should be called again."""

    def __init__(
        self,
        streams: Streams,
        progress: Progress,
        items: Items,
        options: Options,
        batch: Batch,
        now: float,
    ) -> None:
        quiet = options.spawn.quiet
        self._streams = streams
        self.progress = progress
        self._items: Items | None = items  # until they were counted
        self.terminal = not quiet and streams.terminal
        self.totals: Callable[[], tuple[int, int, float]] | None = (
            None  # agents, tokens and dollars of their tree
        )
        self._next = float("inf") if quiet else now + (FIRST if self.terminal else LINE)
        self._painted = 0.0  # when
        self._began = now, time.time()
        self.loads = Loads(batch, options, progress, now + FIRST if self.terminal else None, now)

    @property
    def due(self) -> float:
        return min(self._next, self.loads.due)

    def tick(self, now: float) -> None:
        """Paint, or print a line, if it is time."""
        self.loads.tick(now)
        erased = self.terminal and self._painted and not self._streams.painted
        if erased and now < self._painted + SOON:
            self._streams.repaint()
        elif erased:
            self._next = now
        if now < self._next:
            return
        if not self.terminal:
            self._next = now + LINE
            self._streams.tell(f"quine: {self.line(now)}\n".encode())
            return
        self._next, self._painted = now + EVERY, now
        try:
            width, height = os.get_terminal_size(2)
        except OSError:
            return
        self._streams.paint(self.lines(now, (width or 80) - 1, max(2, (height or 24) // 2)))

    def state(self, now: float) -> list[str]:
        """All of it, as messages."""
        return [self.line(now), *self._hosts(now)]

    def facts(self, now: float) -> dict[str, object]:
        """Time, hosts and agents, for --report."""
        began, started = self._began
        agents, tokens, cost = self.totals() if self.totals else (None, None, None)
        hosts = {
            name: {"ended": host.ended, "failed": host.failed} for name, host in self.progress.hosts.items()
        }
        return {
            **{"started": started, "seconds": now - began, "hosts": hosts},
            **{"agents": agents, "tokens": tokens, "cost": cost},
        }

    def line(self, now: float) -> str:
        """The batch in one line."""
        progress = self.progress
        if self._items:
            progress.total = self._items.total
            self._items = None
        counts = progress.tally.text() or "0 done"
        if progress.total is not None:
            counts = f"{progress.tally.ended} of {max(0, progress.total - progress.skipped)}: {counts}"
        parts = [counts, f"{progress.running} running", f"{number(progress.rate(now))}/s"]
        if (eta := progress.eta()) is not None:
            parts.append(f"ETA {duration(eta)}")
        if self.totals:
            _, tokens, cost = self.totals()
            parts.append(f"{tokens} tokens, ${cost:.2f}")
        return ", ".join(parts)

    def lines(self, now: float, width: int, height: int) -> list[str]:
        """At most `height` lines of at most `width` columns; hosts stand beside each other where there is room."""
        hosts = self._hosts(now)
        cell = max(map(len, hosts), default=0)
        columns = max(1, (width + len(GAP)) // (cell + len(GAP))) if cell else 1
        rows = -(-len(hosts) // columns)
        more = ""
        if rows > height - 1:
            rows = max(1, height - 2)
            more = f"and {len(hosts) - rows * columns} more hosts"
        lines = [self.line(now)]
        for at in range(rows):
            lines.append(GAP.join(host.ljust(cell) for host in hosts[at : rows * columns : rows]).rstrip())
        return [line[:width] for line in [*lines, *([more] if more else [])]]

    def _hosts(self, now: float) -> list[str]:
        from transport.text import harmless

        table = [
            (harmless(name, instead="?"), *_cells(host, now)) for name, host in self.progress.hosts.items()
        ]
        wide = [max(map(len, column)) for column in zip(*table)]
        return [
            "  ".join([row[0].ljust(wide[0]), *(cell.rjust(size) for cell, size in zip(row[1:], wide[1:]))])
            for row in table
        ]


def _cells(host: HostState, now: float) -> tuple[str, str, str, str]:
    slots = f"{host.running}/{host.slots} slots" if host.slots else f"{host.running} running"
    load = f"load {host.load:.2f}" if host.load >= 0 else "load -"
    return slots, f"{number(host.rate.value(now))}/s", load, f"{host.failed} failed"


def number(value: float) -> str:
    """Three digits that mean something."""
    return f"{value:.0f}" if value >= 99.95 else f"{value:.1f}"


def duration(seconds: float) -> str:
    """1:02:03, 2:03 or 3 s."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
