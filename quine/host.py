"""The entry of an agent: from a mission, options and what was inherited to the process's exit status.

Laws
1. What can be wrong with the configuration is found before a life is begun, and is exit 2.
2. A process that os.fork() made never returns from here: its parent's callers are not its own.
3. Standard library only: an agent must be there in a few hundredths of a second.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from quine import env, guests, prompt, slots
from quine.ends import Reborn
from quine.env import Settings
from quine.exits import DEFECT, Denied, Failure, Misconfigured, NotBuilt, complain
from quine.guests.base import Guest
from quine.guests.relay import RelayGuest
from quine.jobs import write_aside
from quine.life import Life, new_session
from quine.loop import End, Face, Loop
from quine.signals import Signals, Terminated
from quine.tape import FileSink, RelaySink, Tape
from transport import quickjson

Ask = Callable[[str, bytes], bytes]


def start(mission: str, options: Mapping[str, Any], face: Face | None = None) -> int:
    """Live as this process. Returns the exit status, or dies of the signal that ended the agent.

    `face` is the way to other machines; it is called in a process of its own, forked for it.
    """
    _open_streams()
    if options.get("cwd") is not None:
        _change_directory(str(options["cwd"]))
    settings = env.adopt(options)
    former = settings.memo.get("exec")
    if isinstance(former, dict) and former.get("pid") == os.getpid():
        return _again(settings, former, face)
    signals = Signals()
    signals.install()
    ask = _relay()
    try:
        with signals.calling_out():
            life = _assigned(settings, ask)
    except Terminated as terminated:
        return _leave(End(128 + terminated.number, terminated.number))
    life = life or _own(settings, mission, options)
    if life.born == "":
        ask = None
        life = life._replace(born="start")
    guest, life = _guest(settings, life, ask)
    _make_data_dir(settings.data_dir)
    held = slots.take(env.locks(settings, life.root), "agent", life.limits.agents)
    if held is None:
        raise Denied(f"too many agents: the limit of the tree is {life.limits.agents}", "see --max-agents")
    if options.get("binary") and not life.material_file:
        life = _save_material(life, settings)
    return _leave(_lives(life, settings, guest, ask, signals, held, face))


def life_from(mission: str, options: Mapping[str, Any], environ: Any = os.environ) -> Life:
    """The life of an agent that is to run elsewhere: `quine --on`. Its guest is checked here and now."""
    settings = env.adopt(options, environ)
    if "token" in settings.memo:
        raise NotBuilt("--on from a host that is not the origin")
    config = env.guest(settings, environ)
    guests.build(config)
    if options.get("binary"):
        raise NotBuilt("-b together with --on")
    life = _own(settings, mission, options)
    return life._replace(model=config.model)


def _again(settings: Settings, former: dict[str, Any], face: Face | None) -> int:
    """The same process after exec: signals were held back on the way, slots and children are still ours."""
    signals = Signals()
    life = Life.from_json(former["life"])
    held = [int(fd) for fd in former["slots"]]
    for fd in held:
        os.set_inheritable(fd, False)
    signals.install({int(number) for number in former["mask"]})
    ask = _relay()
    guest, life = _guest(settings, life, ask)
    return _leave(_lives(life, settings, guest, ask, signals, held, face, former["jobs"]))


def _lives(
    life: Life,
    settings: Settings,
    guest: Guest,
    ask: Ask | None,
    signals: Signals,
    held: list[int],
    face: Face | None,
    jobs: list[dict[str, Any]] | None = None,
) -> End:
    """This process's lives: one, and after each fork(), in the child, the child's."""
    ours, record = os.getpid(), ""
    env.ensure_quine(settings.data_dir)
    while True:
        env.bequeath(settings, life)
        loop = Loop(
            life, settings, guest, _tape(life, settings, ask, signals), signals, held, ask is not None, face
        )
        loop.jobs.adopt(jobs or [])
        try:
            end = loop.live()
        except Reborn as child:
            life, held, record, jobs = child.life, child.slots, child.record, None
            _show(life.mission)
            continue
        except Exception as error:
            end = _defect(error, loop, settings)
        if life.depth == 0 and life.born != "fork":
            for fd in held:
                os.close(fd)
            slots.sweep(loop.locks)
        if os.getpid() != ours:
            _vanish(end, record)
        if settings.report:
            _report(settings, life, end)
        return end


def _report(settings: Settings, life: Life, end: End) -> None:
    """--report, of an agent that lived here."""
    import resource
    import time

    from quine.run import report
    from transport.status import Status, signal_name

    own, below = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    rusage = {
        "utime": own.ru_utime + below.ru_utime,
        "stime": own.ru_stime + below.ru_stime,
        "maxrss": float(max(own.ru_maxrss, below.ru_maxrss)),
    }
    status = Status("exited", end.status, pid=os.getpid(), rusage=rusage)
    if end.signal:
        status.state, status.signal = "signaled", signal_name(end.signal)
    report(
        settings.report,
        status,
        session=life.session,
        started=settings.began,
        seconds=time.time() - settings.began,
        tokens_in=end.usage.input,
        tokens_out=end.usage.output,
    )


def _tape(life: Life, settings: Settings, ask: Ask | None, signals: Signals) -> Tape:
    """A file here, or at the origin."""
    secrets = list(settings.secrets.values())
    if ask is None:
        return Tape(FileSink(os.path.join(settings.data_dir, f"{life.session}.jsonl")), secrets)

    def send(name: str, body: bytes) -> bytes:
        # Not interruptible: the outcome is written after the signal that it tells of.
        with signals.quiet():
            return ask(name, body)

    return Tape(RelaySink(send, life.session), secrets)


def _vanish(end: End, record: str) -> NoReturn:
    """Leave a forked child: its status where nobody waits for it, then the exit itself."""
    try:
        if record:
            from quine.jobs import Status

            write_aside(os.path.join(record, "status"), Status(end.status)._asdict())
        os._exit(_leave(end))
    finally:
        os._exit(DEFECT)


def _leave(end: End) -> int:
    """Die of the signal that ended the agent, so that whoever waits sees the truth."""
    if end.signal:
        from transport.status import die_of, signal_name

        die_of(signal_name(end.signal))
    return end.status


def _defect(error: Exception, loop: Loop, settings: Settings) -> End:
    """Exit 70: the traceback in the log, its path on stderr, an outcome on the tape where that is possible."""
    if isinstance(error, Failure):
        complain(error.detail, error.hint, error.host)
        end = End(error.status)
    else:
        _log(error, os.path.join(settings.data_dir, f"{loop.life.session}.log"))
        end = End(DEFECT)
        with contextlib.suppress(Exception):
            loop.record_end(DEFECT, "error", f"{type(error).__name__}: {error}")
    with contextlib.suppress(Exception):
        loop.shell.close()
        loop.jobs.end(list(loop.jobs.running))
    return end


def _log(error: Exception, path: str) -> None:
    import traceback

    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            traceback.print_exception(error, file=file)
        complain(f"a defect in quine: {type(error).__name__}", f"the traceback is in {path}")
    except OSError:
        complain(f"a defect in quine: {error!r}")


def _guest(settings: Settings, life: Life, ask: Ask | None) -> tuple[Guest, Life]:
    if ask is not None:
        return RelayGuest(ask), life
    config = env.guest(settings)
    return guests.build(config), life._replace(model=config.model)


def _make_data_dir(path: str) -> None:
    """Everything of ours lies in it: 0700 from the first moment."""
    try:
        os.makedirs(path, 0o700, exist_ok=True)
    except OSError as error:
        raise Misconfigured(f"QUINE_DATA_DIR {path} cannot be made: {error.strerror}") from None


def _assigned(settings: Settings, ask: Ask | None) -> Life | None:
    """The life that the origin has for us, where we are the process that a node started for it."""
    if ask is None or "lineage" in settings.memo:
        return None
    from transport.errors import RequestError

    try:
        return Life.from_json(quickjson.loads(ask("life", b"")))
    except RequestError:
        return None  # a plain job over there; this quine is its user's own


def _own(settings: Settings, mission: str, options: Mapping[str, Any]) -> Life:
    parent, root, depth = env.lineage(settings)
    if depth >= max(1, settings.limits.depth):
        raise Denied(
            f"too deep: level {depth + 1}, and {settings.limits.depth} are allowed", "see --max-depth"
        )
    session = new_session()
    return Life(
        session=session,
        root=root or session,
        mission=mission,
        parent=parent,
        depth=depth,
        model=settings.model,
        shell=settings.shell,
        limits=settings.limits,
        material=prompt.material(),
        hidden=bool(options.get("file")),
        wisdom=settings.wisdom,
    )


def _relay() -> Ask | None:
    """The way to the origin, or None where this is it."""
    from transport import inherit

    if "token" not in inherit.read():
        return None
    from transport.requests import Relay

    relay = Relay.from_environment()
    return None if relay is None else relay.request


def _save_material(life: Life, settings: Settings) -> Life:
    """-b: all of stdin goes into a file before the life begins."""
    if os.isatty(0):
        return life
    path = os.path.join(settings.data_dir, f"stdin-{life.session}.bin")
    size = 0
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        while data := os.read(0, 1 << 16):
            size += file.write(data)
    if not size:
        os.unlink(path)
        return life._replace(material="none")
    return life._replace(material_file=path, material="none")


def _open_streams() -> None:
    """A closed 0, 1 or 2 would be taken by the next file we open; /dev/null holds its place."""
    for fd, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, mode)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)


def _change_directory(path: str) -> None:
    try:
        os.chdir(os.path.expanduser(path))
    except OSError as error:
        raise Misconfigured(f"--cwd {path}: {error.strerror}") from None


def _show(mission: str) -> None:
    """A forked child's own mission in `ps`, as far as the room of the parent's argv goes."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
        shown = b"quine\0" + mission.encode("utf-8", "replace").replace(b"\0", b" ")
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(shown[: end - start - 1].ljust(end - start, b"\0"))
