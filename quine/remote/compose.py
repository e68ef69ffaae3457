"""The wiring of an agent: run by this process, or on another machine with this process as its proxy.

Law: nothing here is imported before it is needed: a local agent loads no network code.
"""

from __future__ import annotations

import _thread
import gc
import os

from quine.base.cli_options import MOUNT, MOUNT_NEEDED, MOUNT_WANTED, RunOptions, environment, limits

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from quine.agent.env import Settings
    from quine.agent.session import SessionSpec
    from quine.budget.ledger import Ledger
    from quine.files.select import Services
    from quine.remote.waits import Waits
    from quine.tape.redact import Secret
    from transport.lean import socket
    from transport.spawn import Spawn
    from transport.status import Status

AGAIN = 10.0  # seconds to reach the host of a lost agent once more
SERVICES = ("life", "infer", "tape", "ledger")


def leave_keys(options: RunOptions) -> None:
    """Begin this process anew without the secrets of its environment, if a key of a guest is among them.

    Raises Failure. Nothing of the caller's has been read yet; see quine/broker/memory.py.
    """
    from quine.providers import withholding
    from quine.providers.choice import KEYS

    environ = dict(os.environ)
    keys = [environ[name].strip() for name in KEYS if environ.get(name, "").strip()]
    if not keys or environ.get("QUINE_API_TYPE") == "program":  # the program gets the key from the agent
        return
    from quine.base.errors import NOT_STARTED, Failure
    from quine.broker import memory
    from quine.files import credentials

    cleaned = dict(environ)
    left = withholding.taken_out(cleaned, withholding.passed(options.env, dict(environ)))
    url = options.fs or environ.get(credentials.URL, "")
    state = {"environ": credentials.kept(url, left), withholding.WITHHELD: [*left]}
    if credentials.URL in cleaned:
        cleaned[credentials.URL] = credentials.shown(cleaned[credentials.URL])
    for name in memory.holders(cleaned, keys):
        left[name] = cleaned.pop(name)
    agent, infers_here = os.getpid(), _infers_here()

    def prove(line: socket.socket) -> None:
        from quine.broker import finding

        if infers_here:
            _use_client()
        finding.prove(line, agent, environ, left)

    try:
        memory.leave(cleaned, state, prove)
    except OSError as error:
        raise Failure(NOT_STARTED, f"cannot be started anew: {(error.strerror or '').lower()}") from None


def agent_here(mission: str, options: RunOptions) -> int:
    """Run the agent in this very process."""
    if _infers_here():
        _use_client()
    gc.disable()  # until its modules are loaded: a collection would find nothing
    import quine.agent.loop  # noqa: F401 - with all that an agent loads
    from quine.agent import main
    from quine.broker import finding

    finding.arrive()  # after the imports: the prover has made a broker meanwhile
    gc.enable()
    os.environ.pop("QUINE_DETACHED", None)
    if options.mount:
        os.environ[MOUNT] = MOUNT_NEEDED
    os.environ.update(environment(options, os.environ))
    if limited := limits(options):
        from quine.base.errors import Misconfigured
        from transport.errors import ProtocolError
        from transport.job.process import limit_self

        try:
            limit_self(limited)
        except ProtocolError as error:
            raise Misconfigured(str(error)) from None
    return main.start(mission, options, proxy)


def _infers_here() -> bool:
    """Return whether the agents of a job infer with keys of this machine, which is not their origin."""
    from quine.base.sessions import COURIER
    from transport import inherit

    return os.environ.get("QUINE_INFERENCE") == "direct" or COURIER in inherit.read()


def _use_client() -> None:
    """Let the client of HTTP that came to this host be imported: by the broker, which is a fork of this process."""
    from deploy.there import layers

    layers.use_part(layers.HTTP)


def agent_elsewhere(mission: str, options: RunOptions) -> int:
    """`quine --on WHERE MISSION`: this process is the agent's proxy."""
    gc.disable()
    from quine.agent.main import spec_from
    from quine.agent.session import another
    from quine.archive import policy
    from quine.base.errors import LOST
    from quine.broker import finding
    from quine.jobs.client import caller, callers_environment, infers_there, show, staging, starting_directory
    from quine.providers.withholding import passed_on

    finding.arrive()
    gc.enable()
    detached = os.environ.pop("QUINE_DETACHED", "") == "1"
    given = dict(os.environ)
    settled = dict(given)
    spec, settings, ledger = spec_from(mission, options, settled, infers_there=lambda: infers_there(options))
    spawn = agent_spawn(options.on, spec)
    spawn.env = {**callers_environment(options), **environment(options, given), **passed_on(options.env)}
    spawn.env |= {MOUNT: MOUNT_NEEDED} if options.mount else {}
    spawn.limits = limits(options)
    spawn.context = {**caller(options), "detached": detached}
    spawn.cwd, stage = starting_directory(options), staging(options)
    spawn.apart(bool(stage))
    facts: dict[str, object] = {"session": spec.session, "tokens_in": 0, "tokens_out": 0}
    environ = {**given, **settled, **policy.of_the_store(settings.secrets)}  # this proxy opens the store
    keeps = _keeps(settings, settled)
    keeps(spec)

    served: list[Services] = []  # one per try

    def serve(spec: SessionSpec) -> Services:
        served.append(services_of(spec, ledger, environ, spawn, settings.masked, facts))
        served[-1].on_placed = _preparing(spawn.context)
        return served[-1]

    def renew(spawn: Spawn) -> Services:
        again = another(spec)  # a lost session may have a tape
        spawn.id, spawn.tree, facts["session"] = again.session, again.root, again.session
        spawn.apart(bool(stage))
        keeps(again)
        return serve(again)

    status = show(
        spawn,
        options,
        serve(spec),
        facts,
        renew,
        log_of(spec, environ),
        stage,
        left=time_of(spec, ledger),
    )
    if detached and status == LOST and served[-1].host:
        _reach_again(served[-1].host, options)
    if policy.wanted(settled):
        policy.finish(spawn.tree)
    return status


def _preparing(context: Mapping[str, object]) -> Callable[[str], None]:
    """Return a function that keeps the list of hosts for an agent that was started on a host: it asks for it next."""

    def prepare(host: str) -> None:
        inventory = context.get("inventory")
        if host and isinstance(inventory, str) and "token" not in context:
            from deploy import hosts_for_agents

            hosts_for_agents.prepare(inventory, host)

    return prepare


def time_of(spec: SessionSpec, ledger: Ledger) -> Callable[[], float | None]:
    """Return a function that returns the seconds until a remote agent has ended by itself; None without a deadline."""
    from quine.agent.signals import ANSWER, last_answer

    grace = last_answer(spec.limits.deadline) if spec.limits.deadline else ANSWER[1]

    def left() -> float | None:
        seconds = ledger.time_left()
        return None if seconds is None else seconds + grace

    return left


def _reach_again(host: str, options: RunOptions) -> None:
    """Make a node of this machine dial `host`, which then ends the jobs of an earlier node that was killed."""
    from contextlib import suppress

    from quine.jobs.asking import ask
    from transport.errors import Refused

    with suppress(Refused):
        ask(["ps"], [host], options, AGAIN)


def _keeps(settings: Settings, environ: Mapping[str, str]) -> Callable[[SessionSpec], None]:
    """Return a function that starts the archive daemon of a tree whose root this process is."""
    from quine.archive import policy

    def begin(spec: SessionSpec) -> None:
        if "lineage" not in settings.memo and spec.session == spec.root and policy.wanted(environ):
            policy.begin(spec.root, environ, policy.of_the_store(settings.secrets))

    return begin


def proxy(
    where: str,
    spec: SessionSpec,
    ledger: Ledger,
    *,
    masked: Sequence[Secret],
    stdin: int,
    stdout: int,
    stderr: int,
    facts: dict[str, object] | None = None,
    on_start: Callable[[int, str], None] | None = None,
    files: list[str] | None = None,
    returns: list[str] | None = None,
    race: str = "",
    cwd: str = "",
) -> Status:
    """Act as the proxy of a remote session: in a process forked for it, or in the one whose session it continues.

    The latter gives `on_start`, and still has all of its stdin if nothing was started. `files` and `returns` are
    relative to the current directory. `race` is the path of the claim of its race. `masked` are the values that no tape
    may hold. `cwd` is its directory there, "" for that of the inventory.
    """
    from quine.jobs.client import Notes, caller
    from transport.client.output import Used

    environ = dict(os.environ)
    spawn = agent_spawn(where, spec)
    spawn.context = caller(RunOptions())
    spawn.limits, spawn.cwd = dict(spec.rlimits), cwd or None
    spawn.apart(bool(files or returns))
    if os.environ.get(MOUNT):
        spawn.env[MOUNT] = MOUNT_WANTED  # a mount here has another path there
    services = services_of(spec, ledger, environ, spawn, masked, facts)
    services.on_placed = _preparing(spawn.context)

    def placed(pid: int, host: str) -> None:
        services.placed(host)
        if on_start:
            on_start(pid, host)

    run = _runner(files or [], returns or [], (race, spec.session) if race else None, environ)
    try:
        return run(
            spawn,
            stdin,
            stdout,
            stderr,
            services=services,
            on_start=placed,
            on_note=Notes(RunOptions(), False, links=False).hear,
            on_refused=log_of(spec, environ),
            used=Used() if on_start else None,
            left=time_of(spec, ledger),
        )
    finally:
        services.close()


def _runner(
    files: list[str], returns: list[str], race: tuple[str, str] | None, environ: Mapping[str, str]
) -> Callable[..., Status]:
    """Return the function that runs a job, as `client.run`, with its files. `race`: see `Claim`."""
    from transport.client import client

    if not files and not returns:
        return client.run
    from functools import partial

    from quine.base import data_directory, dirs
    from quine.files.exclusions import named_files
    from quine.staging.caller_side import Staging
    from quine.staging.notes import Claim

    folder, data_dir = dirs.current(), data_directory.named(environ)
    stage = Staging(files, returns, folder, data_dir, obeys=named_files(environ)).moving()
    return partial(stage.run, claim=Claim(*race) if race else None)


def agent_spawn(where: str, spec: SessionSpec) -> Spawn:
    """Return the spawn of an agent. It requests its `SessionSpec` from us; argv shows its mission, as far as allowed.

    Its id is its session, which names it on the tape and in the logs of both machines.
    """
    from transport.spawn import Spawn

    return Spawn(["--", spec.shown], id=spec.session, own=True, where=where, tree=spec.root)


def log_of(spec: SessionSpec, environ: Mapping[str, str]) -> Callable[[str], None]:
    """Return the function that notes refused requests of a remote agent in its log at the origin. Misconfigured."""
    from quine.agent.origin import is_relayed
    from quine.base import data_directory
    from quine.base.log import Log
    from transport import inherit

    if is_relayed(inherit.read()):
        return Log("").note
    data_directory.require_own(place := data_directory.path(environ))  # the tapes come there, too
    return Log(os.path.join(place, f"{spec.session}.log")).note


def services_of(
    spec: SessionSpec,
    ledger: Ledger,
    environ: dict[str, str],
    spawn: Spawn,
    masked: Sequence[Secret],
    facts: dict[str, object] | None = None,
    waits: Waits | None = None,
) -> Services:
    """Return the services for one remote child.

    `facts` counts its tokens, `waits` its inferences that wait for the provider.
    Handlers are made at the first request: their imports take longer than the remote child needs to start.
    """
    from quine.agent.origin import is_direct, is_relayed
    from quine.base.allowed_hosts import asker
    from quine.files import select
    from quine.jobs.client import reach
    from transport import inherit
    from transport.errors import RequestError

    memo = inherit.read()
    relayed, note = is_relayed(memo), log_of(spec, environ)
    note = waits.noting(spec.session, note) if waits else note
    spent: dict[str, object] = {} if facts is None else facts
    made: dict[str, Callable[[bytes], bytes]] = {}
    endings: list[Callable[[], None]] = []
    ended = False
    lock = _thread.allocate_lock()

    def answer(name: str, body: bytes) -> bytes:
        with lock:
            if ended:
                raise RequestError(f"{name}: the job has ended")
            if not made:
                more = (given.hosts, endings, masked)
                if relayed:
                    from quine.remote import between

                    if is_direct(memo):
                        made.update(between.here(spec, ledger, environ, asker(), spent, note, *more))
                    else:
                        made.update(between.between(spec, ledger, asker(), spent, *more))
                else:
                    from quine.remote import handlers

                    made.update(handlers.services(spec, ledger, environ, spent, note, *more, given.where))
        return made[name](body)

    def end() -> None:
        nonlocal ended
        with lock:
            ended = True
        for each in endings:
            each()

    named = {name: _named(answer, name) for name in SERVICES}
    more = {"infer": waits.telling(spec.session, named["infer"])} if waits else {}
    given = select.Services(environ, {**named, **more}, reach(spawn.context), end, spawn.where)
    return given


def _named(answer: Callable[[str, bytes], bytes], name: str) -> Callable[[bytes], bytes]:
    return lambda body: answer(name, body)
