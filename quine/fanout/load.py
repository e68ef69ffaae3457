"""The load of hosts: looked at now and then, for --load and for the view.

Laws
1. A host is asked by a control job of the batch: it takes no slot, has no directory, and is no item.
2. A host whose load is not known yet starts nothing with --load. One that cannot be asked is not held back: a start
   there fails by itself, and is tried elsewhere.
"""

from __future__ import annotations

import os

from quine.base.errors import Misconfigured
from quine.jobs.client import caller
from transport.spawn import Spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.fanout.options import Options
    from quine.fanout.progress import Progress
    from transport.client.batch import Batch
    from transport.status import Status

EVERY = 5.0  # seconds between two looks
ASK = ["sh", "-c", "cat /proc/loadavg; getconf _NPROCESSORS_ONLN"]


class Limit:
    """--load: how much a host may have, alone or for each processor."""

    def __init__(self, options: Options) -> None:
        """Raises Misconfigured."""
        self._share = options.share("load")
        self._most = 0.0
        if options.load and not self._share:
            try:
                self._most = float(options.load)
            except ValueError:
                self._most = -1.0
            if not 0 < self._most < float("inf"):
                raise Misconfigured(f"--load {options.load[:40]}: should be a number, or a share as 80%")

    def __bool__(self) -> bool:
        return bool(self._share or self._most)

    def over(self, load: float, cpus: int) -> bool:
        return load >= (self._share * max(1, cpus) if self._share else self._most)


class Loads:
    """The loads of the hosts of a batch. `avoid` are those on which nothing is to be started now."""

    def __init__(
        self,
        batch: Batch,
        options: Options,
        progress: Progress,
        watched: float | None,
        now: float,
    ) -> None:
        """`watched`: the time from which on a view shows the loads; None if there is none."""
        self._batch = batch
        self._options = options
        self._progress = progress
        self._context = {**caller(options.spawn), "control": True}
        self._limit = Limit(options)
        self._asked: set[str] = set()
        self._silent: set[str] = set()
        self._known: list[str] | None = None  # hosts that --on means, in the order of the inventory
        self.due = now if self._limit else float("inf") if watched is None else watched

    @property
    def order(self) -> dict[str, int]:
        """The places of the hosts in the inventory, as far as they are known."""
        return {name: at for at, name in enumerate(self._known or ())}

    @property
    def avoid(self) -> list[str]:
        return [name for name in self._known or () if self._held_back(name)] if self._limit else []

    @property
    def blocked(self) -> bool:
        """Whether no host may start anything now."""
        if not self._limit:
            return False
        return self._known is None or 0 < len(self._known) == len(self.avoid)

    def _held_back(self, name: str) -> bool:
        if name in self._silent:
            return False
        host = self._progress.hosts[name]
        return host.load < 0 or self._limit.over(host.load, host.cpus)

    def tick(self, now: float) -> None:
        """Look at all hosts, if it is time."""
        if now < self.due:
            return
        self.due = now + EVERY
        if self._known is None:
            far = self._options.spawn.elsewhere
            self._known = slots_of(self._options, self._progress, now) if far else ["local"]
        hosts = self._known if self._limit else self._progress.hosts
        for name in list(hosts):
            self._progress.host(name, now)
            if name == "local":
                self._note(name, os.getloadavg()[0], os.cpu_count() or 1)
            elif name not in self._asked:
                self._ask(name)

    def _ask(self, name: str) -> None:
        self._asked.add(name)
        pieces: list[bytes] = []

        def on_output(stream: int, data: memoryview) -> None:
            if stream == 1:
                pieces.append(bytes(data))

        def on_exit(status: Status) -> None:
            self._asked.discard(name)
            words = b"".join(pieces).split()
            try:
                self._note(name, float(words[0]), int(words[-1]))
            except (IndexError, ValueError):
                self._silent.add(name)

        spawn = Spawn(ASK, where=name, cwd="/", context=self._context)
        self._batch.start(spawn, on_output=on_output, on_exit=on_exit)

    def _note(self, name: str, load: float, cpus: int) -> None:
        host = self._progress.hosts[name]
        host.load, host.cpus = load, cpus
        self._silent.discard(name)


def slots_of(options: Options, progress: Progress, now: float) -> list[str]:
    """Note the slots of the hosts that --on means, and return their names; none if the inventory cannot tell."""
    from pathlib import Path

    from deploy.inventory import load
    from quine.base.cli_options import find_inventory
    from transport.errors import Refused

    path = find_inventory(options.spawn, os.environ)
    try:
        found = load(Path(path) if path else None, {}).matching(options.spawn.on)
    except Refused:
        return []  # the first start tells of it
    for host in found:
        progress.host(host.name, now).slots = host.slots
    return [host.name for host in found]
