"""The wiring of the packages: the only module that knows them all.

Laws
1. transport is given the functions that place and dial; it never reads an inventory.
2. Nothing here is imported before it is needed: a local agent loads no network code, and a node that never dials
   loads no ssh.
"""

from __future__ import annotations

import os
import sys
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from deploy.inventory import Host, Inventory
    from quine.agent.env import Settings
    from quine.agent.session import Life
    from quine.budget.ledger import Ledger
    from quine.files.select import Services
    from transport.carrier.duplex import Duplex
    from transport.job.launcher_process import Beside
    from transport.node.hosts import Target
    from transport.spawn import Spawn
    from transport.status import Status

NODE_VARIABLES = ("QUINE_NODE_IDLE", "QUINE_TRACE")
DETACHED_LEASE = 30 * 86400.0  # seconds that the agent of a detached proxy waits for that proxy
AGAIN = 10.0  # seconds to reach the host of a lost agent once more
SERVICES = ("life", "infer", "tape", "ledger")


# -- the node --------------------------------------------------------------------------------------


def node(words: list[str]) -> int:
    """`quine node --dial`, or the daemon: with `--ready-fd N` if a client started it, else in the foreground."""
    from transport.job import inherit
    from transport.node import rendezvous

    if words == ["--dial"]:
        return rendezvous.dial()
    ready = int(words[words.index("--ready-fd") + 1]) if "--ready-fd" in words else -1
    inherit.close_others({ready})  # close the memo and ledger of the agent that started this node
    for name in [name for name in os.environ if name.startswith("QUINE_") and name not in NODE_VARIABLES]:
        del os.environ[name]  # of the agent or shell that started this node: no job may inherit it
    bound = rendezvous.bind()
    if bound is None:
        if ready >= 0:
            os.write(ready, b"\n")
            return 0
        from quine.base.errors import complain

        complain("a node is running here already", "quine node --status, or quine node --stop")
        return 1
    if ready >= 0:
        beside = rendezvous.daemonize(ready)
    else:
        from transport.job.launcher_process import Beside

        beside = Beside()
        beside.begin()
    serve_node(beside, *bound)
    return 0


def serve_node(beside: Beside, listener: object, seat: Mapping[str, object]) -> None:
    """Run the daemon; see `rendezvous.bind`."""
    import logging
    import socket

    # asyncio imports ssl if it is there. A node speaks no TLS, and ssl is a fifth of an idle node's memory.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    import asyncio  # noqa: F401

    del sys.modules["ssl"]
    from transport.job.launcher_client import Launching
    from transport.node.daemon import IDLE, serve

    assert isinstance(listener, socket.socket)
    level = logging.DEBUG if os.environ.get("QUINE_TRACE") else logging.INFO
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(name)s[%(process)d] %(message)s"
    )
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    idle = float(os.environ.get("QUINE_NODE_IDLE") or IDLE)
    serve(Launching(beside), Placer(), listener, idle, seat)


class Placer:
    """Implements `transport.node.hosts.Place`: maps WHERE and an inventory to a host, and dials it."""

    def __init__(self) -> None:
        import threading

        self._writing = threading.Lock()
        self._cache: dict[Path, tuple[tuple[int, int], Inventory]] = {}
        self._dumps: dict[int, tuple[Host, str]] = {}  # by id(host): settings that tell links apart

    def __call__(self, spawn: Spawn, running: Mapping[str, int]) -> Target:
        from transport.errors import NoSuchHost
        from transport.node.hosts import Target

        inventory = self._inventory(spawn)
        if spawn.where == "local":
            raise NoSuchHost("local is this machine")
        avoid = spawn.context.get("avoid")
        failed = avoid if isinstance(avoid, list) else []
        pick = str(spawn.context.get("pick") or "")
        asking = spawn.context.get("from")  # the host of the requesting job; set only by our node
        if isinstance(asking, str):
            host = inventory.select_from(asking, spawn.where, running, failed, spawn.own, pick)
        else:
            host = inventory.select(spawn.where, running, failed, spawn.own, pick)
        agent = spawn.context.get("ssh_agent")
        ssh_agent = agent if isinstance(agent, str) else None

        news: list[str] = []

        async def dial() -> Duplex:
            import logging

            from deploy.dial import dial as open_duplex

            log = logging.getLogger(f"quine.dial.{host.name}")
            return await open_duplex(host, inventory, ssh_agent=ssh_agent, note=log.info, news=news.append)

        group = f"{inventory.path}\0{host.name}"
        key = f"{group}\0{self._dumped(host)}\0{ssh_agent}"
        settings, met = partial(settle, host=host), partial(self._met, host)
        return Target(host.name, group, key, dial, settings, host.slots, met, news)

    def _met(self, host: Host, facts: Mapping[str, object]) -> None:
        """Keep the system facts of a remote node's greeting; agents are told them."""
        import asyncio

        from deploy.hostlist import remember

        def write() -> None:
            with self._writing:
                remember(host, facts.get("system"))

        asyncio.get_running_loop().run_in_executor(None, write)  # a home may hang, and the loop must not

    def _dumped(self, host: Host) -> str:
        """Return all settings of a host as text; made once for each load of an inventory, not for each job."""
        kept = self._dumps.get(id(host))
        if kept is None:
            kept = self._dumps[id(host)] = (host, host.model_dump_json())
        return kept[1]

    def _inventory(self, spawn: Spawn) -> Inventory:
        from pathlib import Path

        from deploy.inventory import ConfigError, Inventory, load
        from transport.errors import Misconfigured

        named = spawn.context.get("inventory")
        if not isinstance(named, str):
            return Inventory({})
        path = Path(named)
        try:
            facts = path.stat()
            version = (facts.st_mtime_ns, facts.st_ino)
            cached = self._cache.get(path)
            if cached is None or cached[0] != version:
                cached = self._cache[path] = (version, load(path, {}))
                self._dumps.clear()
        except ConfigError as error:
            raise Misconfigured(error.detail, error.hint) from None
        except OSError as error:
            raise Misconfigured(f"{path}: {error.strerror}", "see --inventory and QUINE_INVENTORY") from None
        return cached[1]


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
    if host.mount and not spawn.context.get("control"):
        _mounted(spawn)
    spawn.limits = {**{name: str(value) for name, value in host.limits.items()}, **spawn.limits}
    spawn.lease = max(host.lease, DETACHED_LEASE) if spawn.context.get("detached") else host.lease


def _mounted(spawn: Spawn) -> None:
    """Mount the shared files as a directory: an agent does so itself, `quine run` does it for a command."""
    if spawn.own:
        spawn.env.setdefault("QUINE_MOUNT", "auto")
    else:
        spawn.argv, spawn.own = ["run", "--mount", "--", *spawn.argv], True


# -- agents ----------------------------------------------------------------------------------------


def agent_here(mission: str, values: dict[str, object]) -> int:
    """Run the agent in this very process."""
    from quine.agent import main as host
    from quine.base.options import environment, limits

    os.environ.pop("QUINE_DETACHED", None)
    if values.get("mount"):
        os.environ["QUINE_MOUNT"] = "auto"
    os.environ.update(environment(values, os.environ))
    if limited := limits(values):
        from quine.base.errors import Misconfigured
        from transport.errors import ProtocolError
        from transport.job.process import limit_self

        try:
            limit_self(limited)
        except ProtocolError as error:
            raise Misconfigured(str(error)) from None
    return host.start(mission, values, face)


def agent_elsewhere(mission: str, values: dict[str, object]) -> int:
    """`quine --on WHERE MISSION`: this process is the agent's proxy."""
    from quine.agent.main import life_from
    from quine.agent.session import another
    from quine.archive import policy
    from quine.base.errors import LOST
    from quine.base.options import environment, limits
    from quine.jobs.client import caller, callers_environment, show, staging, starting_directory

    detached = os.environ.pop("QUINE_DETACHED", "") == "1"
    given = dict(os.environ)
    settled = dict(given)
    life, settings = life_from(mission, values, settled)
    spawn = _agent(str(values["on"]), life)
    spawn.env = {**callers_environment(values), **environment(values, given)}
    spawn.env |= {"QUINE_MOUNT": "auto"} if values.get("mount") else {}
    spawn.limits = limits(values)
    spawn.context = {**caller(values), "detached": detached}
    spawn.cwd = starting_directory(values)
    facts: dict[str, object] = {"session": life.session, "tokens_in": 0, "tokens_out": 0}
    environ = {**given, **settled, **policy.of_the_store(settings.secrets)}  # this proxy opens the store
    keeps = _keeps(settings, settled)
    keeps(life)

    served: list[Services] = []  # one per try

    def serve(life: Life) -> Services:
        served.append(_services(life, settings.ledger, environ, spawn.context, settings.masked, facts))
        return served[-1]

    def renew(spawn: Spawn) -> Services:
        again = another(life)  # a lost session may have a tape
        spawn.id, spawn.tree, facts["session"] = again.session, again.root, again.session
        keeps(again)
        return serve(again)

    status = show(spawn, values, serve(life), facts, renew, _log(life, environ), staging(values))
    if detached and status == LOST and served[-1].host:
        _reach_again(served[-1].host, values)
    if policy.wanted(settled):
        policy.finish(spawn.tree)
    return status


def _reach_again(host: str, values: dict[str, object]) -> None:
    """Make a node of this machine dial `host`, which then ends the jobs of an earlier node that was killed."""
    from contextlib import suppress

    from quine.jobs import remote
    from transport.errors import Refused

    with suppress(Refused):
        remote.ask(["ps"], [host], values, AGAIN)


def _keeps(settings: Settings, environ: Mapping[str, str]) -> Callable[[Life], None]:
    """Return a function that starts the archive daemon of a tree whose root this process is."""
    from quine.archive import policy

    def begin(life: Life) -> None:
        if "lineage" not in settings.memo and life.session == life.root and policy.wanted(environ):
            policy.begin(life.root, environ, policy.of_the_store(settings.secrets))

    return begin


def face(
    where: str,
    life: Life,
    ledger: Ledger,
    *,
    masked: Sequence[str],
    stdin: int,
    stdout: int,
    stderr: int,
    facts: dict[str, object] | None = None,
    on_start: Callable[[int, str], None] | None = None,
    files: list[str] | None = None,
    returns: list[str] | None = None,
) -> Status:
    """Act as the proxy of a remote session: in a process forked for it, or in the one whose session it continues.

    The latter gives `on_start`, and still has all of its stdin if nothing was started. `files` and `returns` are
    relative to the current directory. `masked` are the values that no tape may hold.
    """
    from quine.jobs.client import Notes, caller
    from transport.client import client
    from transport.client.output import Used

    environ = dict(os.environ)
    spawn = _agent(where, life)
    spawn.context = caller({})
    if os.environ.get("QUINE_MOUNT"):
        spawn.env["QUINE_MOUNT"] = "auto"  # a mount here has another path there
    services = _services(life, ledger, environ, spawn.context, masked, facts)
    run = client.run

    def placed(pid: int, host: str) -> None:
        services.placed(host)
        if on_start:
            on_start(pid, host)

    if files or returns:
        from quine.staging.proxy import Staging

        data_dir = environ.get("QUINE_DATA_DIR") or ".quine"
        run = Staging(files or [], returns or [], os.getcwd(), data_dir).run  # type: ignore[assignment]
    try:
        return run(
            spawn,
            stdin,
            stdout,
            stderr,
            services=services,
            on_start=placed,
            on_note=Notes({}, False, links=False).hear,
            on_refused=_log(life, environ),
            used=Used() if on_start else None,
        )
    finally:
        services.close()


def _agent(where: str, life: Life) -> Spawn:
    """Return the spawn of an agent. It requests its `Life` from us; argv shows its mission, as far as allowed.

    Its id is its session, which names it on the tape and in the logs of both machines.
    """
    from transport.spawn import Spawn

    return Spawn(["--", life.shown], id=life.session, own=True, where=where, tree=life.root)


def _log(life: Life, environ: Mapping[str, str]) -> Callable[[str], None]:
    """Return the function that notes refused requests of a remote agent in its log at the origin."""
    from quine.agent.origin import is_relayed
    from quine.base.log import Log
    from transport.job import inherit

    path = os.path.join(environ.get("QUINE_DATA_DIR") or ".quine", f"{life.session}.log")
    return Log("" if is_relayed(inherit.read()) else path).note


def _services(
    life: Life,
    ledger: Ledger | None,
    environ: dict[str, str],
    context: dict[str, object],
    masked: Sequence[str],
    facts: dict[str, object] | None = None,
) -> Services:
    """Return the services for one remote child. `context` is that of its spawn; `facts` counts its tokens.

    Handlers are made at the first request.
    Their imports (pydantic, a provider's client) take longer than the remote child needs to start.
    """
    import threading

    from quine.agent.origin import is_relayed
    from quine.base.allowed_hosts import asker
    from quine.files import select
    from quine.jobs.client import reach
    from transport.errors import RequestError
    from transport.job import inherit

    relayed = is_relayed(inherit.read())
    spent: dict[str, object] = {} if facts is None else facts
    made: dict[str, Callable[[bytes], bytes]] = {}
    endings: list[Callable[[], None]] = []
    ended = False
    lock = threading.Lock()

    def answer(name: str, body: bytes) -> bytes:
        with lock:
            if ended:
                raise RequestError(f"{name}: the job has ended")
            if not made:
                from quine.remote import handlers

                more = (given.hosts, endings, masked)
                if relayed and ledger:
                    made.update(handlers.between(life, ledger, asker(), spent, *more))
                else:
                    made.update(handlers.services(life, ledger, environ, spent, _log(life, environ), *more))
        return made[name](body)

    def end() -> None:
        nonlocal ended
        with lock:
            ended = True
        for each in endings:
            each()

    given = select.Services(environ, {name: partial(answer, name) for name in SERVICES}, reach(context), end)
    return given
