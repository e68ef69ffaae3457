"""Where the packages are wired together, and the only place that knows them all.

Laws
1. transport is given how to place and dial; it never asks an inventory.
2. Nothing here is imported before it is needed: an agent that stays here pays for no network, a node
   that dials nobody pays for no ssh.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from deploy.inventory import Host, Inventory
    from quine.env import Settings
    from quine.files.here import Services
    from quine.ledger import Ledger
    from quine.life import Life
    from transport.duplex import Duplex
    from transport.guard import Guarded
    from transport.hosts import Target
    from transport.spawn import Spawn
    from transport.status import Status

NODE_VARIABLES = ("QUINE_NODE_IDLE", "QUINE_TRACE")
DETACHED_LEASE = 30 * 86400.0  # seconds that the agent of a detached face waits for it
SERVICES = ("life", "infer", "tape", "ledger")


# -- the node --------------------------------------------------------------------------------------


def node(words: list[str], main: Callable[[], None] | None = None) -> int:
    """`quine node --dial`, or the daemon: `--ready-fd N` when it was started for somebody, else in the foreground.

    `main` is what this program does with sys.argv: a copy of the daemon does it where that is quicker.
    """
    from transport import inherit, starter

    if words == ["--dial"]:
        return starter.dial()
    ready = int(words[words.index("--ready-fd") + 1]) if "--ready-fd" in words else -1
    inherit.close_others({ready})  # the memo and the ledger of an agent that happened to start us
    for name in [name for name in os.environ if name.startswith("QUINE_") and name not in NODE_VARIABLES]:
        del os.environ[name]  # of the agent or the shell that happened to start us: no job may inherit it
    listener = starter.bind()
    if listener is None:
        if ready >= 0:
            os.write(ready, b"\n")
            return 0
        from quine.exits import complain

        complain("a node is running here already", "quine node --status, or quine node --stop")
        return 1
    if ready >= 0:
        guarded = starter.daemonize(ready)
    else:
        from transport.guard import Guarded

        guarded = Guarded()
    serve_node(guarded, listener, main)
    return 0


def serve_node(guarded: Guarded, listener: object, main: Callable[[], None] | None) -> None:
    """The daemon's life."""
    import logging
    import socket

    # asyncio imports ssl if it finds it, and a node speaks no TLS: a fifth of the memory of an idle one.
    sys.modules["ssl"] = None  # type: ignore[assignment]
    import asyncio  # noqa: F401

    del sys.modules["ssl"]
    from transport.node import IDLE, serve

    assert isinstance(listener, socket.socket)
    level = logging.DEBUG if os.environ.get("QUINE_TRACE") else logging.INFO
    logging.basicConfig(
        stream=sys.stderr, level=level, format="%(asctime)s %(name)s[%(process)d] %(message)s"
    )
    logging.getLogger("asyncssh").setLevel(logging.WARNING)
    idle = float(os.environ.get("QUINE_NODE_IDLE") or IDLE)
    serve(guarded, Placer(), listener, idle, partial(_inside, main))


def _inside(main: Callable[[], None] | None, words: list[str]) -> Callable[[], None] | None:
    """transport.job.Inside: to see that all files are there takes a moment, and to start Python for it another."""
    if main is None or words[:2] != ["node", "--stage"]:
        return None
    import quine.staging.there  # noqa: F401 - the first of them pays, and all copies after it have it

    def run() -> None:
        sys.argv[1:] = words
        main()

    return run


class Placer:
    """transport.hosts.Place: WHERE and an inventory to a host, and how to dial it."""

    def __init__(self) -> None:
        self._cache: dict[Path, tuple[tuple[int, int], Inventory]] = {}
        self._dumps: dict[int, tuple[Host, str]] = {}  # by id(host): what makes one link differ from another

    def __call__(self, spawn: Spawn, running: Mapping[str, int]) -> Target:
        from transport.errors import Misconfigured, NoSuchHost
        from transport.hosts import Target

        inventory = self._inventory(spawn)
        if spawn.where == "local":
            raise NoSuchHost("local is this machine")
        avoid = spawn.context.get("avoid")
        failed = avoid if isinstance(avoid, list) else []
        asking = spawn.context.get("from")  # the host of the job that asks; set by our node alone
        if isinstance(asking, str):
            host = inventory.select_from(asking, spawn.where, running, failed)
        else:
            host = inventory.select(spawn.where, running, failed)
        if spawn.own and host.inference == "direct":
            raise Misconfigured('inference = "direct" is not built yet', 'set it to "relay"', host.name)
        agent = spawn.context.get("ssh_agent")
        ssh_agent = agent if isinstance(agent, str) else None

        async def dial() -> Duplex:
            import logging

            from deploy.dial import dial as open_duplex

            log = logging.getLogger(f"quine.dial.{host.name}")
            return await open_duplex(host, inventory, ssh_agent=ssh_agent, note=log.info)

        group = f"{inventory.path}\0{host.name}"
        key = f"{group}\0{self._dumped(host)}\0{ssh_agent}"
        return Target(host.name, group, key, dial, lambda spawn: settle(spawn, host), host.slots)

    def _dumped(self, host: Host) -> str:
        """All settings of a host as text; once for each load of an inventory, not for each job."""
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
    """Put the host's settings under what the caller asked for."""
    caller = spawn.context.get("cwd")
    spawn.workdir = host.workdir
    if spawn.cwd is None and host.same_paths and isinstance(caller, str):
        spawn.cwd = caller
    spawn.env = {**host.env, **spawn.env, "QUINE_NODE_NAME": host.name}
    store = spawn.context.get("fs")
    if host.fs == "direct" and isinstance(store, str):
        spawn.env.setdefault("QUINE_FS", store)
    spawn.context = {
        name: value for name, value in spawn.context.items() if name != "fs"
    }  # no other host's business
    if host.mount and not spawn.context.get("control"):
        _mounted(spawn)
    spawn.limits = {**{name: str(value) for name, value in host.limits.items()}, **spawn.limits}
    spawn.lease = max(host.lease, DETACHED_LEASE) if spawn.context.get("detached") else host.lease


def _mounted(spawn: Spawn) -> None:
    """The files tier as a directory: an agent sees to that itself, a command has it from `quine run`."""
    if spawn.own:
        spawn.env.setdefault("QUINE_MOUNT", "auto")
    else:
        spawn.argv, spawn.own = ["run", "--mount", "--", *spawn.argv], True


# -- agents ----------------------------------------------------------------------------------------


def agent_here(mission: str, values: dict[str, object]) -> int:
    """The agent as this very process."""
    from quine import host
    from quine.options import environment, limits

    os.environ.pop("QUINE_DETACHED", None)
    if values.get("mount"):
        os.environ["QUINE_MOUNT"] = "auto"
    os.environ.update(environment(values, os.environ))
    if limited := limits(values):
        from quine.exits import Misconfigured
        from transport.errors import ProtocolError
        from transport.process import limit_self

        try:
            limit_self(limited)
        except ProtocolError as error:
            raise Misconfigured(str(error)) from None
    from quine.exits import DENIED, NOT_STARTED, Failure

    begun = time.time()
    try:
        return host.start(mission, values, face)
    except Failure as failure:
        if target := values.get("report"):
            from quine.run import report
            from transport.status import Status

            state = {DENIED: "denied", NOT_STARTED: "unreachable"}.get(failure.status, "exited")
            status = Status(state, failure.status, detail=failure.detail)
            report(str(target), status, started=begun, seconds=time.time() - begun)
        raise


def agent_elsewhere(mission: str, values: dict[str, object]) -> int:
    """`quine --on WHERE MISSION`: this process is the agent's face."""
    from quine import keeping
    from quine.host import life_from
    from quine.life import another
    from quine.options import environment, limits
    from quine.run import caller, callers_environment, show, staging, starting_directory

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
    environ = {**given, **settled, **keeping.of_the_store(settings.secrets)}  # this face opens it
    keeps = _keeps(settings, settled)
    keeps(life)

    def serve(life: Life) -> Services:
        return _services(life, settings.ledger, environ, facts)

    def renew(spawn: Spawn) -> Services:
        again = another(life)  # of one that was lost there may be a tape
        spawn.id, spawn.tree, facts["session"] = again.session, again.root, again.session
        keeps(again)
        return serve(again)

    status = show(spawn, values, serve(life), facts, renew, _log(life, environ), staging(values))
    if keeping.wanted(settled):
        keeping.finish(spawn.tree)
    return status


def _keeps(settings: Settings, environ: Mapping[str, str]) -> Callable[[Life], None]:
    """Starts the keeper of a tree whose root this process is."""
    from quine import keeping

    def begin(life: Life) -> None:
        if "lineage" not in settings.memo and life.session == life.root and keeping.wanted(environ):
            keeping.begin(life.root, environ, keeping.of_the_store(settings.secrets))

    return begin


def face(
    where: str,
    life: Life,
    ledger: Ledger,
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    facts: dict[str, object] | None = None,
    on_start: Callable[[int], None] | None = None,
    files: list[str] | None = None,
    returns: list[str] | None = None,
) -> Status:
    """The face of a life elsewhere: in a process forked for it, or in the one whose former life it continues.

    That one gives `on_start`, and has all of its stdin still if nothing was started. `files` and `returns` are relative
    to the current directory.
    """
    from quine.run import caller
    from transport import client
    from transport.output import Used

    environ = dict(os.environ)
    spawn = _agent(where, life)
    spawn.context = caller({})
    if os.environ.get("QUINE_MOUNT"):
        spawn.env["QUINE_MOUNT"] = "auto"  # what is mounted here has another path there
    services = _services(life, ledger, environ, facts)
    run = client.run
    if files or returns:
        from quine.staging.face import Staging

        data_dir = environ.get("QUINE_DATA_DIR") or ".quine"
        run = Staging(files or [], returns or [], os.getcwd(), data_dir).run  # type: ignore[assignment]
    try:
        return run(
            spawn,
            stdin,
            stdout,
            stderr,
            services=services,
            on_start=on_start,
            on_refused=_log(life, environ),
            used=Used() if on_start else None,
        )
    finally:
        services.close()


def _agent(where: str, life: Life) -> Spawn:
    """The spawn of an agent. Its life it asks of us; argv shows its mission, as far as it may be shown.

    Its session is its id: what the tape and the logs of both machines call it.
    """
    from transport.spawn import Spawn

    return Spawn(["--", life.shown], id=life.session, own=True, where=where, tree=life.root)


def _log(life: Life, environ: Mapping[str, str]) -> Callable[[str], None]:
    """Where it is noted what an agent elsewhere has asked for and may not: in its log at the origin."""
    from quine.host import is_relayed
    from quine.log import Log
    from transport import inherit

    path = os.path.join(environ.get("QUINE_DATA_DIR") or ".quine", f"{life.session}.log")
    return Log("" if is_relayed(inherit.read()) else path).note


def _services(
    life: Life, ledger: Ledger | None, environ: dict[str, str], facts: dict[str, object] | None = None
) -> Services:
    """What we answer one remote child, made when the first request comes. Tokens are counted in `facts`.

    Its imports (pydantic, a provider's client) take longer than the child over there needs to start.
    """
    import threading

    from quine.files import here
    from quine.host import is_relayed
    from transport import inherit

    relayed = is_relayed(inherit.read())
    spent: dict[str, object] = {} if facts is None else facts
    made: dict[str, Callable[[bytes], bytes]] = {}
    lock = threading.Lock()

    def answer(name: str, body: bytes) -> bytes:
        with lock:
            if not made:
                from quine import origin

                if relayed and ledger:
                    made.update(origin.between(life, ledger, _ask(), spent))
                else:
                    made.update(origin.services(life, ledger, environ, spent, _log(life, environ)))
        return made[name](body)

    return here.Services(environ, {name: partial(answer, name) for name in SERVICES})


def _ask() -> Callable[[str, bytes], bytes]:
    """The way to our own origin for the threads of a face: a connection answers one request at a time."""
    import threading

    from transport.errors import RequestError
    from transport.requests import Relay

    mine = threading.local()

    def ask(name: str, body: bytes) -> bytes:
        relay = getattr(mine, "relay", None)
        if relay is None:
            relay = mine.relay = Relay.from_environment()
        if relay is None:
            raise RequestError("this process has no origin")
        answer: bytes = relay.request(name, body)
        return answer

    return ask
