"""Placement of a job: the host that WHERE means by an inventory, how to dial it, and its settings for the job.

Law: nothing here is imported before it is needed: a node that never dials loads no ssh.
"""

from __future__ import annotations

import os
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deploy.host import Host
    from deploy.inventory import Inventory
    from quine.remote.ways import Ways
    from transport.carrier.duplex import Duplex
    from transport.node.host import Target
    from transport.node.hosts import Loads
    from transport.spawn import Spawn

    # The version of the file, what is in it, and that for batches that began before.
    Read = tuple[tuple[int, int, int], Inventory, Inventory]

WITH_MOUNT = ["run", "--mount"]  # the first words of a command that has a mount
MOST_NAMED = 256  # WHEREs of users that are remembered
DETACHED_LEASE = 30 * 86400.0  # seconds that the agent of a detached proxy waits for that proxy


class Placer:
    """Implements `transport.node.hosts.Place`: maps WHERE and an inventory to a host, and dials it."""

    def __init__(self) -> None:
        import threading

        self._writing = threading.Lock()
        self._cache: dict[str, Read] = {}  # by path
        self._faults: dict[str, tuple[tuple[int, int, int], str, str]] = {}  # by path: version, detail, hint
        self._wrong = ""  # with the inventory that a batch goes on without
        self._ways: Ways | None = None
        self._named: dict[
            str, tuple[Inventory, Inventory]
        ] = {}  # by WHERE: one that was read, and it with named hosts
        self._none: Inventory | None = None
        self._mountless: set[str] = set()  # hosts, by group, whose nodes have said that they cannot mount

    def __call__(self, spawn: Spawn, loads: Loads) -> Target:
        from transport.errors import NoSuchHost
        from transport.node.host import Target

        inventory = self._with_named(spawn, self._inventory(spawn))
        if spawn.where == "local":
            raise NoSuchHost("local is this machine")
        avoid = spawn.context.get("avoid")
        failed = avoid if isinstance(avoid, list) else []
        pick = str(spawn.context.get("pick") or "")
        asking = spawn.context.get("from")  # the host of the requesting job; set only by our node
        asking = asking if isinstance(asking, str) else None
        here = f"{inventory.path}\0"  # another inventory may have other hosts of these names
        if _needs_mount(spawn):
            failed = [*failed, *(group[len(here) :] for group in self._mountless if group.startswith(here))]

        def loads_of(hosts: Sequence[Host]) -> list[int]:
            return loads([here + host.name for host in hosts])

        try:
            host = inventory.select(spawn.where, loads_of, failed, pick, asking)
        except NoSuchHost as error:
            from quine.base.allowed_hosts import cured

            raise cured(error, spawn.where, spawn.where == spawn.context.get("named")) from None
        agent = spawn.context.get("ssh_agent")
        ssh_agent = agent if isinstance(agent, str) else None

        layer = _layer(spawn, host)

        news: list[str] = []

        async def dial(brings: bool = True) -> Duplex:
            import logging

            from deploy.dial import dial as open_duplex

            log = logging.getLogger(f"quine.dial.{host.name}")
            return await open_duplex(
                host,
                inventory,
                ssh_agent=ssh_agent,
                note=log.info,
                news=news.append,
                layer=layer,
                brings=brings,
            )

        late = spawn.context.get("late") is True
        group = here + host.name
        way = self._way(host, inventory, late)
        key = f"{group}\0{way}\0{ssh_agent}\0{layer}"

        def moved() -> bool:
            return self._way(host, inventory, True) != way

        settings, met = partial(settle, host=host), partial(self._met, host, group)
        ask = partial(dial, brings=False)
        return Target(host.name, group, key, dial, settings, host.slots, met, news, ask, moved)

    def _met(self, host: Host, group: str, facts: Mapping[str, object]) -> None:
        """Keep the system facts of a remote node's greeting, of which agents are told, and whether it can mount."""
        import asyncio

        from deploy.hosts_for_agents import remember

        (self._mountless.add if facts.get("mount") else self._mountless.discard)(group)

        def write() -> None:
            with self._writing:
                remember(host, facts.get("system"))

        asyncio.get_running_loop().run_in_executor(None, write)  # a home may hang, and the loop must not

    def _way(self, host: Host, inventory: Inventory, keep: bool) -> str:
        """Return all that tells links to a host apart, but for the agent and the layer."""
        if self._ways is None:
            from quine.remote.ways import Ways

            self._ways = Ways()
        return self._ways.text(host, inventory, keep)

    def _inventory(self, spawn: Spawn) -> Inventory:
        from transport.errors import Misconfigured

        named = spawn.context.get("inventory")
        if not isinstance(named, str):
            if self._none is None:
                from deploy.inventory import Inventory

                self._none = Inventory({})
            return self._none
        late = spawn.context.get("late") is True
        before = self._cache.get(named)
        try:
            _, now, for_batches = self._read(named, before)
        except Misconfigured as error:
            if before and late:
                return self._as_before(before[2], error.detail)
            raise
        # A batch goes on with the hosts that it has left.
        return for_batches if late else now

    def _with_named(self, spawn: Spawn, inventory: Inventory) -> Inventory:
        """Return the inventory with the hosts that the WHERE of the user names beside it, if he has typed one.

        It is the same object while ssh's configuration is as it was, and for a batch always.
        """
        where = spawn.context.get("named")
        if not isinstance(where, str):
            return inventory
        from transport.carrier.config_files import stamp

        base, named = self._named.get(where, (None, inventory))
        late = spawn.context.get("late") is True
        if base is inventory and (late or all(stamp(path) == was for path, was in named.stamps.items())):
            return named
        found = inventory.naming(where)
        if late or found is not inventory:
            if len(self._named) >= MOST_NAMED:
                self._named.clear()
            self._named[where] = inventory, found
        return found

    def _read(self, named: str, before: Read | None) -> Read:
        """Return what is in an inventory, which is read once for each version of its file. Raises Misconfigured."""
        from pathlib import Path

        from deploy.inventory import ConfigError, load
        from transport.errors import Misconfigured

        try:
            facts = os.stat(named)  # a Path of it costs more than the look at the file, for each job
            version = (facts.st_mtime_ns, facts.st_ino, facts.st_size)
            if before and before[0] == version:
                return before
            if self._faults.get(named, ((),))[0] == version:
                raise Misconfigured(*self._faults[named][1:])
            if before and not facts.st_size:
                raise Misconfigured(f"{named} is empty", "it had hosts before")
            fresh = load(Path(named), {})
        except ConfigError as error:
            self._faults[named] = version, error.detail, error.hint
            raise Misconfigured(error.detail, error.hint) from None
        except ModuleNotFoundError as lacking:
            detail = (
                f"this Python reads no inventory in TOML, and so dials nobody: it is without {lacking.name}"
            )
            raise Misconfigured(detail, "Python 3.11 reads it; older ones read inventory.json") from None
        except OSError as error:
            raise Misconfigured(
                f"{Path(named)}: {error.strerror}", "see --inventory and QUINE_INVENTORY"
            ) from None
        if self._ways:
            self._ways.clear()
        found = self._cache[named] = (version, fresh, fresh.after(before[2]) if before else fresh)
        return found

    def _as_before(self, inventory: Inventory, detail: str) -> Inventory:
        """Go on with an inventory whose file is being edited: a batch must not fail all its items meanwhile."""
        if detail != self._wrong:
            import logging

            self._wrong = detail
            logging.getLogger("quine.hosts").warning("the inventory is left as it was: %s", detail)
        return inventory


def settle(spawn: Spawn, host: Host) -> None:
    """Complete a spawn with the host's settings; the caller's own take precedence."""
    caller = spawn.context.get("cwd")
    spawn.workdir = host.workdir
    if spawn.cwd is None and host.same_paths and isinstance(caller, str):
        spawn.cwd = caller
    if spawn.cwd is None and spawn.context.get("home") is True:
        spawn.cwd = "~"
    spawn.env = {**host.env, **spawn.env, "QUINE_NODE_NAME": host.name}
    store = spawn.context.get("fs")
    if host.fs == "direct" and isinstance(store, str):
        spawn.env.setdefault("QUINE_FS", store)
    spawn.context = {
        name: value for name, value in spawn.context.items() if name != "fs"
    }  # "fs" is for hosts with `direct` only
    spawn.env.pop("QUINE_INFERENCE", None)  # the inventory alone says it
    if _infers(spawn, host):
        spawn.env["QUINE_INFERENCE"] = "direct"
    if host.mount and not spawn.context.get("control"):
        _mounted(spawn, "mount" in host.own)
    spawn.limits = {**{name: str(value) for name, value in host.limits.items()}, **spawn.limits}
    spawn.lease = max(host.lease, DETACHED_LEASE) if spawn.context.get("detached") else host.lease


def _layer(spawn: Spawn, host: Host) -> str:
    """Return the name of the layer with the packages that a job needs over there; "" for none.

    They are for the store that it opens by itself, and for the inferences that it makes by itself.
    """
    url, store = spawn.env.get("QUINE_FS"), spawn.context.get("fs")
    if url is None and host.fs == "direct" and isinstance(store, str):
        url = store
    infers = _infers(spawn, host)
    if not (url or infers):
        return ""
    from deploy.there.layers import HTTP, joined, named

    return joined(named(url or ""), HTTP if infers else "")


def _infers(spawn: Spawn, host: Host) -> bool:
    """Return whether this is an agent that has its inferences made over there, by keys of that host."""
    return host.inference == "direct" and spawn.own and spawn.argv[:1] == ["--"]


def _needs_mount(spawn: Spawn) -> bool:
    """Return whether an option asks for a mount: hosts that cannot are the last to be chosen."""
    from quine.base.cli_options import MOUNT, MOUNT_NEEDED

    return spawn.env.get(MOUNT) == MOUNT_NEEDED or (spawn.own and spawn.argv[:2] == WITH_MOUNT)


def _mounted(spawn: Spawn, needed: bool) -> None:
    """Mount the shared files as a directory: an agent does so itself, `quine run` does it for a command."""
    from quine.base.cli_options import MOUNT, MOUNT_NEEDED, MOUNT_WANTED

    if not spawn.own:
        spawn.argv, spawn.own = [*WITH_MOUNT, "--", *spawn.argv], True
    elif spawn.argv[:2] == WITH_MOUNT:
        return  # by an option, which needs it
    if needed:
        spawn.env[MOUNT] = MOUNT_NEEDED
    else:
        spawn.env.setdefault(MOUNT, MOUNT_WANTED)
