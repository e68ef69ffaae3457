"""Entry of an agent: turns a mission, options and inherited state into the exit status of the process.

Laws
1. Configuration errors are found before a session begins, and are exit 2.
2. A process made by os.fork() never returns from here: the frames above are its parent's.
3. Standard library only: an agent must start in a few hundredths of a second.
"""

from __future__ import annotations

import errno
import os

from quine.agent import ending, env, origin, prompt, tools
from quine.agent.env import Settings, Tree
from quine.agent.origin import Ask
from quine.agent.outcome import End, ForkedChild
from quine.agent.running import Process
from quine.agent.session import SessionSpec
from quine.agent.signals import Signals, Terminated
from quine.archive import policy
from quine.base import allowed_hosts, data_directory, exposure
from quine.base.cli_options import MOUNT, MOUNT_WANTED, RunOptions
from quine.base.errors import DEADLINE, LOST, NOT_STARTED, Denied, Failure, Misconfigured, NoGuest, complain
from quine.base.log import Log
from quine.base.messages import Guest
from quine.base.sessions import is_session, new_session
from quine.broker import finding
from quine.providers import metering, vendors
from quine.providers.relay import BrokeredGuest, RelayGuest
from quine.providers.vendors import FILES
from quine.tape import places
from quine.tape.writer import Tape
from transport import inherit
from transport.launcher import workdir
from transport.lean import Any, contextlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from quine.agent.loop import Loop
    from quine.agent.running import Proxy
    from quine.broker.client import Broker
    from quine.budget.ledger import Ledger
    from transport.status import Status


def start(mission: str, options: RunOptions, proxy: Proxy | None = None) -> int:
    """Run the agent as this process. Return the exit status, or die of the signal that ended the agent.

    `proxy` runs a session on another machine, in a process forked for it or, for exec, in this one; None: no way there.
    """
    settings = env.adopt(options)
    former = inherit.renewed(settings.memo)
    signals = Signals()
    try:
        if "life" in former:
            return ending.leave(_again(settings, former, proxy or _no_proxy, signals))
        _require_directory()
        inventory = allowed_hosts.find(options, os.environ).path
        if options.cwd:
            # After adopt: paths in options and variables are relative to the directory of the caller.
            _change_directory(options.cwd)
        signals.install()
        return ending.leave(_run(mission, options, proxy or _no_proxy, settings, inventory, signals))
    except Terminated as terminated:
        return ending.leave(End(128 + terminated.number, terminated.number))


def _run(
    mission: str,
    options: RunOptions,
    proxy: Proxy,
    settings: Settings,
    inventory: str | None,
    signals: Signals,
) -> End:
    """Run the session of this process. Raises Terminated for a signal before it begins, and Failure."""
    ask = origin.connect(signals)
    with signals.calling_out(elsewhere=True):
        spec = origin.assigned(settings, ask)
    assigned = spec is not None
    if spec is None:
        if ask is not None and "lineage" not in settings.memo:
            ask, settings = None, origin.left_out(settings)
        tree = env.join_tree(settings, settings.limits)
        spec = _own(settings, tree, mission, options)
        if ask is None and inventory is not None:
            os.environ["QUINE_INVENTORY"] = inventory  # valid in every directory, and for all descendants
    else:
        tree = env.join_tree(settings, spec.limits, share=True, age=spec.age)
        settings = origin.settle_here(settings, spec, tree.ledger, os.environ, signals.calling_out)
    origin.borrow_slots(tree.ledger, ask, settings.memo, signals)
    try:
        with signals.calling_out(origin.infers(ask, settings.memo)):  # a key's command may ask a person
            guest, spec, price = _guest(settings, tree, spec, ask)
    except Failure as failure:
        if assigned and origin.is_direct(settings.memo):
            origin.part(settings, signals.ready)
            ending.tidy(settings.data_dir, _make_data_dir(settings.data_dir, shared=True))
            raise Failure(failure.status, failure.detail, failure.hint, settings.node) from None
        raise
    held = _make_data_dir(settings.data_dir, shared=ask is not None)
    if not assigned:
        with signals.calling_out():
            spec = spec._replace(hosts=allowed_hosts.at_start(inventory, ask))
    slots = _admitted(tree.ledger, spec)
    if ask is None and "lineage" not in settings.memo and policy.wanted(os.environ):
        policy.begin(spec.root, os.environ, policy.of_the_store(settings.secrets))
    if (options.binary or spec.binary) and not spec.material_file:
        spec = prompt.save_material(spec, settings.data_dir, signals)
    return _lives(Process(settings, tree, guest, price, ask, signals, proxy), spec, slots, held)


def _no_proxy(where: str, spec: SessionSpec, ledger: Ledger, **more: Any) -> Status:
    raise Failure(NOT_STARTED, "this process has no way to another host")


def _admitted(ledger: Ledger, spec: SessionSpec) -> list[int]:
    """Return descriptors that hold the slot of this agent in the tree while open. Raises Denied or Failure."""
    left = ledger.time_left()
    if left is not None and left <= 0:
        raise Failure(DEADLINE, "the time of the tree is over", "see --deadline")
    try:
        slots = ledger.agents(spec.limits.agents)
    except OSError as error:
        why = (error.strerror or "").lower()
        raise Failure(NOT_STARTED, f"no place among the agents of the tree: {why}") from None
    if slots is None:
        raise Denied(f"too many agents: the limit of the tree is {spec.limits.agents}", "see --max-agents")
    return slots


def spec_from(
    mission: str,
    options: RunOptions,
    environ: Any,
    admit: bool = True,
    apart: Collection[int] = (),
    infers_there: Callable[[], bool] = lambda: False,
) -> tuple[SessionSpec, Settings, Ledger]:
    """Return spec, settings and ledger of an agent that `quine --on` runs elsewhere, and with `admit` take its slot.

    If this process is the origin, the configuration of the guest is checked here. There need be none if
    `infers_there` returns True: the agent has one on its host. `apart` as in `join_tree`.
    """
    settings = env.adopt(options, environ)
    _require_directory()
    config = None
    relayed, lacks = origin.is_relayed(settings.memo), False
    if not relayed and environ.get("QUINE_API_TYPE") in FILES:
        config = env.guest(settings, environ)
        vendors.build(config)
    elif not relayed:  # before there is a ledger, which nobody would close
        try:
            finding.check(settings.memo, environ, settings.secrets)
        except NoGuest:
            if not infers_there():
                raise
            lacks = True
    tree = env.join_tree(settings, settings.limits, apart=apart)
    spec = _own(settings, tree, mission, options)._replace(binary=options.binary and not os.isatty(0))
    if config:
        metering.price(config, bool(tree.ledger.mark.cost))
        spec = spec._replace(model=config.model)
    elif not relayed and not lacks:
        broker = _broker(settings, tree.ledger, environ)
        spec = spec._replace(model=broker.guest.model)
        broker.close()
    elif relayed:
        origin.borrow_slots(tree.ledger, origin.connect(), settings.memo)
    if admit:
        _admitted(tree.ledger, spec)  # the slot belongs to this process, which ends after the remote agent
    return spec, settings, tree.ledger


def _again(settings: Settings, former: dict[str, Any], proxy: Proxy, signals: Signals) -> End:
    """As `_run`, after exec: signals were blocked meanwhile, and this process still has its slots and children."""
    spec = SessionSpec.from_json(former["life"])
    tree = env.join_tree(settings, settings.limits)
    slots = [int(fd) for fd in former["slots"]]
    for fd in slots:
        os.set_inheritable(fd, False)
    signals.install({int(number) for number in former["mask"]})
    ask = origin.connect(signals)
    origin.borrow_slots(tree.ledger, ask, settings.memo, signals)
    guest, spec, price = _guest(settings, tree, spec, ask)
    held = _make_data_dir(settings.data_dir, shared=ask is not None)
    process = Process(settings, tree, guest, price, ask, signals, proxy)
    return _lives(process, spec, slots, held, former["record"], former["jobs"])


def _lives(
    process: Process,
    spec: SessionSpec,
    slots: list[int],
    held: int,
    record: str = "",
    jobs: Sequence[dict[str, Any]] = (),
) -> End:
    """Run the session of this process. A child forked in it returns to this loop and runs its own session.

    `jobs`: children of its earlier session. `slots` and `record`: as in `Loop`. `held`: of `_make_data_dir`.
    """
    ours = os.getpid()
    forked: ForkedChild | None = None  # how this process began, if it is one
    with contextlib.suppress(OSError):
        env.ensure_quine(process.settings.data_dir)
    while True:
        try:
            if forked:
                process = _process_of(process, forked)
            loop = _begun(process, spec, slots, record)
        except Exception as error:
            if os.getpid() == ours:
                raise
            end = ending.unborn(error)  # a forked child: the frames above are its parent's
            ending.note(end, record, process.signals.tied)
            ending.vanish(end)
        loop.jobs.adopt(jobs)
        try:
            end = loop.live()
        except ForkedChild as child:
            forked, slots, record, jobs = child, child.slots, child.record, ()
            spec = child.spec
            exposure.mission(spec.shown)
            continue
        except Exception as error:
            end = ending.defect(error, loop)
        end = _settle(loop, end, held)
        if os.getpid() != ours:
            ending.vanish(end)
        if loop.settings.report and not ending.report(loop, end):
            end = end._replace(status=end.status or LOST)
        if loop.settings.top and not loop.relayed and policy.wanted(os.environ):
            policy.finish(spec.root, policy.HURRY if end.signal else policy.PATIENCE)
        return end


def _process_of(process: Process, child: ForkedChild) -> Process:
    """Return what the sessions of a forked child share, given that of its parent."""
    # The parent captures its stderr as a result, and writes the report.
    settings = process.settings._replace(report="", top=False, verbose=False)
    before, tree = process.tree.ledger, process.tree._replace(ledger=child.ledger)
    process = process._replace(settings=settings, tree=tree)
    # A broker is told of the caps of its client when it is first asked.
    other_caps = child.ledger is not before and isinstance(process.guest, BrokeredGuest)
    if child.model or other_caps or bool(child.ledger.mark.cost) != bool(before.mark.cost):
        if child.model:
            os.environ["QUINE_MODEL_ID"] = child.model
        guest, _, price = _guest(settings, tree, child.spec, process.ask)
        process = process._replace(guest=guest, price=price)
    return process


def _settle(loop: Loop, end: End, held: int) -> End:
    """Give back the slots of an ended session, and tell its parent how it ended. Return the end of its process."""
    top = loop.settings.top
    beyond = None if top or end.signal else loop.ledger.beyond
    if top or beyond:
        for fd in loop.slots:
            os.close(fd)
    if beyond:
        with contextlib.suppress(
            Terminated
        ):  # the verdict stands; slots kept here return with the end of the job
            beyond.give_back()
    if top and loop.relayed:
        if origin.is_direct(loop.settings.memo) and (lost := origin.part(loop.settings, loop.signals.ready)):
            complain(lost, "", loop.settings.node)
            end = end._replace(status=LOST)
        if loop.spec.material_file:
            with contextlib.suppress(OSError):
                os.unlink(loop.spec.material_file)
        ending.tidy(loop.settings.data_dir, held)
    ending.note(end, loop.record, loop.signals.tied)
    return end


def _begun(process: Process, spec: SessionSpec, slots: list[int], record: str) -> Loop:
    """Create what a session owns: memo, mount, timer, tape, log and `Loop`. Raises any of their errors."""
    from quine.agent.loop import Loop  # here: the proxy of an agent elsewhere loads this module

    settings, ask = process.settings, process.ask
    os.environ.update(spec.env)
    if "PATH" in spec.env:
        env.ensure_quine(settings.data_dir)
    env.bequeath(settings, process.tree, spec)
    unmounted = _mount()
    process.signals.arm(process.tree.ledger.time_left, spec.limits.deadline)
    tape = Tape(origin.sink(settings, ask, process.signals, spec), settings.masked)
    log = Log("" if ask else os.path.join(settings.data_dir, f"{spec.session}.log"), settings.verbose)
    process.guest.note = log.note
    if unmounted:
        log.note(unmounted)
    return Loop(process, spec, tape, log, slots, record)


def _mount() -> str:
    """Mount the shared files if QUINE_MOUNT asks for it. Return why they are not mounted, or "". Raises Failure."""
    if not (asked := os.environ.get(MOUNT, "")) or os.path.isabs(asked):
        return ""  # or that of the process that has started this one
    from quine.mount.command import attach

    return attach(os.environ, needed=asked != MOUNT_WANTED)


def _guest(
    settings: Settings, tree: Tree, spec: SessionSpec, ask: Ask | None
) -> tuple[Guest, SessionSpec, metering.Price | None]:
    if ask is not None and origin.infers(ask, settings.memo):
        return RelayGuest(ask), spec, None
    limited = bool(tree.ledger.mark.cost)
    if os.environ.get("QUINE_API_TYPE") in FILES:
        config = env.guest(settings)
        price = metering.price(config, limited)
        finding.join(tree.ledger, tree.limits.concurrent, tools.TOOLS)
        return vendors.build(config), spec._replace(model=config.model), price
    broker = _broker(settings, tree.ledger, os.environ)
    model = broker.guest.model
    return BrokeredGuest(broker.ask), spec._replace(model=model), metering.Price(model) if limited else None


def _broker(settings: Settings, ledger: Ledger, environ: Mapping[str, str]) -> Broker:
    """Return the broker of this process. Raises Failure if there is no guest, or it cannot be reached."""
    concurrent = ledger.bound(settings.limits).concurrent
    return finding.broker(ledger, concurrent, tools.TOOLS, settings.memo, environ, settings.secrets)


def _make_data_dir(path: str, shared: bool) -> int:
    """Create the data directory, with mode 0700 from the start.

    `shared`: the agents of a tree on this host share it, and the last of them removes it. Return a descriptor that
    keeps it from the others until `ending.tidy`, else -1. One of 300 agents once found it removed by another.
    """
    held = -1
    try:
        if shared:
            held = workdir.enter(path)
        else:
            os.close(data_directory.opened(path, make=True))
            places.note_folder(path)
        if not os.access(path, os.W_OK | os.X_OK):
            code = errno.EROFS if os.statvfs(path).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code))
    except OSError as error:
        raise _unwritable(path, error) from None
    return held


def _unwritable(path: str, error: OSError) -> Misconfigured:
    why = (error.strerror or str(error)).lower()
    return Misconfigured(
        f"QUINE_DATA_DIR {path} cannot be written: {why}", "name another directory with QUINE_DATA_DIR"
    )


def _own(settings: Settings, tree: Tree, mission: str, options: RunOptions) -> SessionSpec:
    parent, root, depth = env.lineage(settings, tree)
    if depth >= max(1, tree.limits.depth):
        raise Denied(f"too deep: level {depth + 1}, and {tree.limits.depth} are allowed", "see --max-depth")
    session = options.job or new_session()
    if not is_session(session):
        raise Misconfigured(f"--job {session[:80]!r} is not a UUID in lower case", "leave it out")
    return SessionSpec(
        session=session,
        root=root or session,
        mission=mission,
        parent=parent,
        depth=depth,
        model=settings.model,
        shell=settings.shell,
        interrupt=settings.interrupt,
        limits=tree.limits,
        material=prompt.material(),
        hidden=bool(options.file),
        wisdom=settings.wisdom,
    )


def _change_directory(path: str) -> None:
    try:
        os.chdir(os.path.expanduser(path))
    except OSError as error:
        raise Failure(NOT_STARTED, f"--cwd {path}: {(error.strerror or '').lower()}") from None


def _require_directory() -> None:
    try:
        os.getcwd()
    except OSError:
        raise Failure(NOT_STARTED, "the working directory has been removed", "cd to another one") from None
