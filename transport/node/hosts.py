"""The other machines as a node sees them: the host chosen for a job, its slots, and the one link to it.

Laws
1. A `Place` is given, and decides where a job goes and how to reach its host: no inventory and no ssh is known here.
2. One link per host, and per way to reach it: see `host.py`.
3. A job takes a slot of its host: see `slots.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from transport.address import boot_clock
from transport.errors import ProtocolError, Refused
from transport.lean import Any, blake2b
from transport.node.host import Host, Join, Met, Target, refuse
from transport.node.link import Link
from transport.node.relay import Relay
from transport.node.slots import Slots
from transport.spawn import Spawn, Template

log = logging.getLogger("quine.hosts")

TOLD = (
    "cwd",
    "avoid",
    "home",
    "pick",
    "late",
    "asks",
)  # the keys of a spawn's context that another node may set

Loads = Callable[[Sequence[str]], list[int]]  # groups of targets -> the load of each: see `Slots.load`
Place = Callable[[Spawn, Loads], Target]  # raises Refused


class Hosts:
    """All hosts of a node: their slots by group, their links by key."""

    def __init__(self, place: Place | None, join: Join, facts: Mapping[str, object]) -> None:
        """`facts` are the facts about this node in a hello."""
        self._place = place
        self._join = join
        self._facts = dict(facts)
        self._slots: dict[str, Slots] = {}
        self._hosts: dict[str, Host] = {}
        self._since = self._facts.get("since", boot_clock())  # this node has been here
        self._met: dict[str, Met] = {}  # by group

    def start(self, link: Link, number: int, spawn: Spawn, parent: Relay | None = None) -> Relay:
        """Send the job of a channel on its way; a reason against it becomes its exit record.

        `parent` is the job on another host that asks for it. The new job is placed with the context of its parent, and
        belongs to its tree. From the other node's own words, only WHERE and the keys TOLD count. A folder that it names
        is one of this tree alone: no host reaches the files of another tree by it.
        """
        relay = Relay(link, number, "", lambda _: None)
        if parent:
            passed = {name: spawn.context.get(name) for name in TOLD}
            # Not bounded by the processors: the parent may have the one that it would wait for.
            spawn.context = {**parent.context, **passed, "from": parent.host, "bounded": False, "timeout": 0}
            spawn.tree, spawn.folder = parent.tree, _folder(parent.tree, spawn.folder)
        late = spawn.context.get("late") is True
        bounded = spawn.context.get("bounded") is True
        control = spawn.context.get("control") is True
        choice: list[str] = []  # the groups of the hosts that the job could go to
        try:
            if self._place is None:
                raise Refused("this node has no inventory")
            target = self._place(spawn, partial(self._loads, choice, link, late, bounded))
            if parent:
                self._check_slots(target, parent)
        except Refused as refused:
            refuse(relay, refused)
            return relay
        # A line for each of a million jobs would cost a tenth of this node's time and push all others out of the log.
        level = logging.DEBUG if late else logging.INFO
        log.log(
            level, "job %s: to %s%s", spawn.id, target.name, f", asked for by {parent.host}" if parent else ""
        )
        relay.host, relay.group, relay.keep = target.name, target.group, spawn.keep
        if not control:
            relay.facts, relay.since = spawn.facts(), asyncio.get_running_loop().time()
        relay.tree, relay.context = spawn.tree, spawn.context
        if parent:
            relay.parent = parent
            parent.children[relay] = None
        target.settings(spawn)
        host = self._host(target)
        slots = self._slots.setdefault(target.group, Slots(target.name, self._elsewhere))
        slots.limit = target.slots
        slots.processors = host.processors or slots.processors
        most = slots.most(bounded) if late else slots.limit
        spawn.slots = 0 if control else most
        try:
            _check(spawn, target.key)
        except ProtocolError as error:
            refuse(relay, Refused(str(error), host=target.name))
            return relay
        # A control job asks about other jobs, and must not wait until they have ended.
        if control:
            host.begin(relay, spawn, slots.refuse_waiting)
        elif spawn.adopt:
            slots.adopt(relay, host, spawn, bounded)
        elif late:
            slots.submit_late(relay, host, spawn, bounded, choice)
        else:
            slots.submit(relay, host, spawn)
        return relay

    def _loads(
        self, choice: list[str], link: Link, late: bool, bounded: bool, groups: Sequence[str]
    ) -> list[int]:
        choice[:] = groups
        find = self._slots.get
        return [slots.load(link, late, bounded) if (slots := find(group)) else 0 for group in groups]

    def _elsewhere(self, groups: Sequence[str]) -> bool:
        """Whether one of these hosts is not silent. A host that was never dialled is not."""
        return any((slots := self._slots.get(group)) is None or not slots.silent for group in groups)

    def _host(self, target: Target) -> Host:
        if target.key not in self._hosts:
            met = self._met.setdefault(target.group, Met(self._since))
            self._hosts[target.key] = Host(target, self._join, self._facts, met)
        return self._hosts[target.key]

    def _check_slots(self, target: Target, parent: Relay) -> None:
        """Refuse a job if all slots are taken, one of them by its ancestor: each would wait for the other for ever."""
        slots = self._slots.get(target.group)
        above: Relay | None = parent
        while above and above.group != target.group:
            above = above.parent
        if above and slots and target.slots and slots.running >= target.slots:
            detail = f"all {target.slots} slots are taken, one of them by an ancestor of this job"
            raise Refused(detail, "see slots in the inventory", target.name)

    @property
    def busy(self) -> bool:
        return any(slots.used for slots in self._slots.values())

    def close_idle(self, seconds: float, now: float) -> None:
        """End the links that were not used for `seconds`, and forget the hosts without a link."""
        for key, host in list(self._hosts.items()):
            link = host.live()
            if link and not link.needed and not host.wanted and now - link.idle_since > seconds:
                link.close("idle")
            if not host.live() and not host.wanted:
                del self._hosts[key]

    def close(self) -> None:
        for host in self._hosts.values():
            host.close()

    def status(self) -> dict[str, Any]:
        names = self._names()
        up = {host.target.group for host in self._hosts.values() if (link := host.live()) and not link.down}
        return {
            names[group]: {
                "up": group in up,
                "running": (running := min(slots.running, slots.limit or slots.running)),
                "queued": slots.used - running,
            }
            for group, slots in self._slots.items()
        }

    def names(self) -> dict[Link, str]:
        """Return the names that hosts have in `status`, by their links."""
        names = self._names()
        return {link: names[host.target.group] for host in self._hosts.values() if (link := host.live())}

    def _names(self) -> dict[str, str]:
        """Return the names of the hosts by group, with the rest of the group where others have the same name."""
        often = Counter(slots.name for slots in self._slots.values())
        names = {}
        for group, slots in self._slots.items():
            rest = group.removesuffix(slots.name).rstrip("\0")
            names[group] = slots.name if often[slots.name] == 1 else f"{slots.name} ({rest})"
        return names


def _folder(tree: str, name: str) -> str:
    """Return the name of a folder that a job of a tree names: the same each time, and another one in each tree."""
    return blake2b(f"{tree} {name}".encode(), digest_size=16).hexdigest() if name else ""


def _check(spawn: Spawn, key: str) -> None:
    """Parse a spawn as the other node will: a malformed one must not end the link to its host. Raises ProtocolError.

    One that came by a template gets that by which it is sent over the link with this key, and is parsed once for it.
    """
    came, spawn.template = spawn.template, None
    settled: Template | None = came.derived.get(key) if came else None
    if settled is None or not settled.fits(spawn, settled=True):
        Spawn.from_json(spawn.to_json())
        if came is None:
            return
        settled = came.derive(key, Template.of(spawn, where="", context={}))
    if settled.is_small:
        spawn.template = settled
