"""The view of a batch: on a terminal a few lines below all output, elsewhere a line on stderr now and then.

Laws
1. Output and messages are never mixed with the view: it is erased, they are printed, and it is painted again
   (quine/fanout/output/streams.py).
2. It is text of this process about this process: names of hosts are shown without control characters.
3. It ends no batch: a view or a line that cannot be written is left out.
4. Once a second the same is published for other processes of the user (quine/jobs/batch_state.py).
"""

from __future__ import annotations

import os
import time

from quine.base.text import plain
from quine.fanout.load import Loads
from quine.jobs import batch_state
from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from quine.fanout.input.items import Items
    from quine.fanout.options import Options
    from quine.fanout.output.streams import Streams
    from quine.fanout.progress import HostState, Progress
    from transport.client.batch import Batch
    from transport.client.signals import Caught

FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FIRST = 1.0  # seconds until the view is painted: a short batch has none
EVERY = 1.0  # seconds between two paintings
SOON = 0.2  # and if output has erased it in between; till then it is painted as it was
LINE = 30.0  # seconds between two lines where there is no terminal


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
        facts: dict[str, Any],
    ) -> None:
        quiet = options.spawn.quiet
        self._streams = streams
        self.progress = progress
        self._items: Items | None = items  # until they were counted
        self.terminal = not quiet and streams.terminal
        # A list that comes by a pipe is read on for its length. Not where the contents of files make an item what it
        # is: they are read when it is about to be started.
        self.counts = (
            self.terminal
            and not options.pipe
            and not (options.joblog and (options.spawn.files or options.stdin))
        )
        self.totals: Callable[[], tuple[int, int, float]] | None = (
            None  # agents, tokens and dollars of their tree
        )
        self.provider: Callable[[], tuple[str, str]] | None = (
            None  # the agents that wait for it, and its words if it has no quota left
        )
        self._tells_quota = not quiet
        self._next = float("inf") if quiet else now + (FIRST if self.terminal else LINE)
        self._painted = 0.0  # when
        self._began = now, time.time()
        self._facts = facts  # of the batch, which do not change
        self._published, self._publishes = batch_state.Published(), now
        watched = self.terminal or facts.get("detached")
        self.loads = Loads(batch, options, progress, now + FIRST if watched else None, now)

    @property
    def due(self) -> float:
        return min(self._next, self._publishes, self.loads.due)

    def tick(self, now: float) -> None:
        """Publish the state, and paint it or print a line, if it is time."""
        self.loads.tick(now)
        if now >= self._publishes:
            self._publish(now)
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
        snapshot = self.snapshot(now)
        return [batch_state.line(snapshot), *batch_state.host_lines(snapshot)]

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

    def left(self) -> int | None:
        """The number of items that have no end; None if that cannot be told."""
        self._count()
        return self.progress.left()

    def _count(self) -> None:
        if self._items and self.progress.total is None:
            self.progress.total = self._items.total
            self._items = None

    def snapshot(self, now: float, count: bool = True) -> dict[str, Any]:
        """The state of the batch as it is published, with all hosts; `count`: the items of its input, too."""
        progress = self.progress
        if count:
            self._count()
        total, tally = progress.total, progress.tally
        agents, tokens, cost = self.totals() if self.totals else (None, None, None)
        began, started = self._began
        return {
            **self._facts,
            **{"started": started, "seconds": round(now - began, 3)},
            **{"agents": agents, "tokens": tokens, "cost": cost},
            **{"items": None if total is None else max(0, total - progress.skipped), "ended": tally.ended},
            **{kind.replace(" ", "_"): count for kind, count in tally.counts.items()},
            **{"running": progress.running, "rate": progress.rate(now), "eta": progress.eta()},
            **{"waits": progress.waits, "provider": self.provider()[0] if self.provider else ""},
            **{"more_hosts": 0, "hosts": self._hosts(now)},
        }

    def _hosts(self, now: float) -> list[dict[str, Any]]:
        """The hosts in the order of the inventory, so that each keeps its place; others behind them."""
        order = self.loads.order
        hosts = sorted(self.progress.hosts.items(), key=lambda each: order.get(each[0], len(order)))
        return [_of_host(*each, now) for each in hosts]

    def signalled(self, number: int, caught: Caught) -> None:
        """Stop this process, with a clean terminal, or go on where the shell had the terminal meanwhile."""
        if number == signal.SIGTSTP:
            self._streams.hide()
            caught.stop(number, FATAL)
        self._streams.resume()

    def line(self, now: float) -> str:
        """The batch in one line."""
        return batch_state.line(self.snapshot(now))

    def lines(self, now: float, width: int, height: int) -> list[str]:
        """At most `height` lines of at most `width` columns."""
        return batch_state.lines(self.snapshot(now), width, height)

    def _publish(self, now: float) -> None:
        self._publishes = now + EVERY
        self._tell_quota()
        snapshot = self.snapshot(now, now >= self._began[0] + FIRST)
        hosts = snapshot["hosts"]
        shown = {"hosts": hosts[: batch_state.HOSTS], "more_hosts": max(0, len(hosts) - batch_state.HOSTS)}
        self._published.put({**snapshot, **shown})

    def _tell_quota(self) -> None:
        """Say once that the provider has no quota left: its agents wait, and nothing else would tell why."""
        words = self.provider()[1] if self.provider and self._tells_quota else ""
        if words:
            self._tells_quota = False
            note = (
                f"the quota of the provider is used up, and the batch waits: {plain(words, newlines=False)}"
            )
            hint = "raise it, or end the batch: with --joblog FILE it goes on later, by --resume"
            self._streams.tell(f"quine: note: {note}\nquine: hint: {hint}\n".encode())

    def close(self) -> None:
        self._published.close()


def _of_host(name: str, host: HostState, now: float) -> dict[str, Any]:
    return {
        **{"host": name, "running": host.running, "slots": host.slots, "rate": host.rate.value(now)},
        **{"load": host.load if host.load >= 0 else None, "ended": host.ended, "failed": host.failed},
        "down": round(host.until - now, 1) if host.running and host.until > now else None,
    }
