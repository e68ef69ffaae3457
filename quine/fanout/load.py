"""The load of hosts: looked at now and then, for --load and for the view.

Laws
1. A host is asked by a control job of the batch: it takes no slot, has no directory, and is no item.
2. With --load a host whose load is not known yet starts nothing. One that runs the question but cannot answer it is
   not held back. One that cannot be reached, or is silent for PATIENCE, is held back while another host may be: with
   the others held back all starts would go there, and fail. If none can be reached the starts go there, and tell why.
3. The hosts are those that --on means now: one that joins the inventory is asked before the next start. An inventory
   that cannot tell leaves them as they are, as it does for the node that places the jobs.
"""

from __future__ import annotations

import os

from quine.base.allowed_hosts import find, naming
from quine.base.errors import Misconfigured
from quine.jobs.client import caller
from transport.client.answer import ask
from transport.spawn import Spawn
from transport.wire.numbers import PROCESSORS, decimal, digits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deploy.inventory import Inventory
    from quine.fanout.options import Options
    from quine.fanout.progress import Progress
    from transport.client.batch import Batch
    from transport.status import Status

EVERY = 5.0  # seconds between two looks
PATIENCE = 2 * EVERY  # seconds for an answer
# A host without getconf, as one with BusyBox, mostly has nproc; the exit status tells that there is neither.
ASK = ["sh", "-c", "cat /proc/loadavg && { getconf _NPROCESSORS_ONLN || nproc; }"]
WORDS = 6  # of an answer: five of /proc/loadavg, and the number of processors
ANSWER = 4096  # bytes of one: a host whose answer is longer cannot answer
LOAD = 1e6  # no host is believed to have more


def version_of(path: object) -> object:
    """Return the inode and the time of the last write of a file; () if it cannot be looked at."""
    try:
        facts = os.stat(str(path or ""))
    except OSError:
        return ()
    return facts.st_mtime_ns, facts.st_ino


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
                raise Misconfigured(
                    f"--load {options.load[:40]}: should be a number over 0, or a share as 80%"
                )

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
        self._mute: set[str] = set()  # hosts that cannot answer,
        self._away: set[str] = set()  # and those that cannot be reached
        self._path = find(options.spawn, os.environ).path
        self._version: object = None  # of the file
        self._inventory: Inventory | None = None  # the last one that could be read
        self._known: list[str] | None = None  # hosts that --on means, in the order of the inventory
        self.due = now if self._limit else float("inf") if watched is None else watched

    @property
    def order(self) -> dict[str, int]:
        """The places of the hosts in the inventory, as far as they are known."""
        return {name: at for at, name in enumerate(self._known or ())}

    @property
    def avoid(self) -> list[str]:
        known = self._known or ()
        if not self._limit or all(name in self._away for name in known):
            return []
        return [name for name in known if self._held_back(name)]

    @property
    def blocked(self) -> bool:
        """Whether no host may start anything now."""
        if not self._limit:
            return False
        return self._known is None or 0 < len(self._known) == len(self.avoid)

    def _held_back(self, name: str) -> bool:
        if name in self._mute:
            return False
        host = self._progress.hosts[name]
        return name in self._away or host.load < 0 or self._limit.over(host.load, host.cpus)

    def tick(self, now: float) -> None:
        """Look at all hosts, if it is time, or if others may have joined them."""
        if now < self.due and not (self._limit and self._changed):
            return
        self.due = now + EVERY
        if self._changed:
            self._read(now)
        hosts = (self._known or ()) if self._limit else self._progress.hosts
        for name in list(hosts):
            self._progress.host(name, now)
            if name == "local":
                self._note(name, os.getloadavg()[0], os.cpu_count() or 1)
            elif name not in self._asked:
                self._ask(name)

    @property
    def _changed(self) -> bool:
        if self._known is None or not self._options.spawn.elsewhere:
            return self._known is None
        return version_of(self._path) != self._version

    def _read(self, now: float) -> None:
        """Note the hosts that --on means now, and their slots."""
        self._known = self._known or []
        if not self._options.spawn.elsewhere:
            self._known = ["local"]
            return
        from pathlib import Path

        from deploy.inventory import load
        from transport.errors import Refused

        self._version = version_of(self._path)
        try:
            inventory = naming(load(Path(self._path) if self._path else None, {}), self._options.spawn.on)
            if self._inventory:
                inventory = inventory.after(self._inventory)
            found = inventory.matching(self._options.spawn.on)
        except Refused:
            return  # the first start tells of it
        self._inventory = inventory
        for host in found:
            self._progress.host(host.name, now).slots = host.slots
        self._known = [host.name for host in found]

    def _ask(self, name: str) -> None:
        self._asked.add(name)

        def answered(status: Status, answer: bytes | None) -> None:
            self._asked.discard(name)
            self._mute.discard(name)
            self._away.discard(name)
            if status.state in ("unreachable", "denied", "lost") and answer is not None:
                self._away.add(name)
                return
            try:
                if status.code or answer is None:
                    raise ValueError("no answer")
                self._note(name, *parsed(answer))
            except ValueError:
                self._mute.add(name)

        spawn = Spawn(ASK, where=name, cwd="/", context=self._context)
        ask(self._batch, spawn, ANSWER, answered, PATIENCE)

    def _note(self, name: str, load: float, cpus: int) -> None:
        host = self._progress.hosts[name]
        host.load, host.cpus = load, cpus


def parsed(answer: bytes) -> tuple[float, int]:
    """Return the load of a host and the number of its processors, as it has told them. Raises ValueError."""
    words = answer.decode("ascii").split()
    if len(words) != WORDS:
        raise ValueError("no answer")
    return decimal(words[0], LOAD), digits(words[-1], PROCESSORS, 1)
