"""The verb `run`: one plain command, here or on a node, with the face of a local one.

Laws
1. stdout belongs to the command alone; quine speaks on stderr, and only when something is wrong.
2. The command's own status is returned unchanged, and a death by signal as that death.
3. Standard library only.
"""

from __future__ import annotations

import os
import time

from quine.exits import Misconfigured, complain, say
from quine.options import environment, find_inventory, limits, parse, usage
from transport import quickjson

LONG = 10.0  # seconds without a connection that everybody is told of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.files.here import Services
    from quine.retry import Tries
    from quine.staging.face import Staging
    from transport.spawn import Spawn
    from transport.status import Status


def main(words: list[str], detach: Callable[[dict[str, object], list[str], str, Staging | None], int]) -> int:
    """Exit status, unless the process dies of the command's signal or becomes the command. `detach` is for --detach."""
    values, command = parse("run", words)
    if values.get("help"):
        print(usage("run"))
        return 0
    if values.get("version"):
        return version()
    if not command or not command[0]:
        raise Misconfigured("no command", "quine run [--on WHERE] -- CMD [ARG…]")
    if store := str(values.get("fs") or os.environ.get("QUINE_FS") or ""):
        from quine.files.place import absolute

        os.environ["QUINE_FS"] = absolute(store)
    stage = staging(values)
    if values.get("detach"):
        return detach(values, command, _tree(), stage)
    for name in ("job", "stdin", "spool"):
        if name in values:
            raise Misconfigured(f"--{name} goes with --detach")
    env, limited = environment(values, os.environ), limits(values)
    terminal = _terminal() if "terminal" in values else None
    _tries(values)  # refused here, whatever becomes of the rest
    if "on" not in values and "report" not in values and stage is None:
        if "mount" in values:
            _mount(values)
        return _here(command, env, limited, str(values["cwd"]) if "cwd" in values else None)
    from transport.spawn import Spawn

    spawn = Spawn(
        ["run", "--mount", "--", *command] if "mount" in values else command,
        own="mount" in values,
        where=str(values.get("on", "local")),
        env={**callers_environment(values), **env},
        cwd=starting_directory(values),
        limits=limited,
        tree=_tree(),
        context=caller(values),
        terminal=terminal,
    )
    return show(spawn, values, services(), stage=stage)


def _mount(values: dict[str, object]) -> None:
    """Where none can be made, the variable is absent, and the command decides what that means."""
    from quine.mount.command import attach

    why = attach(os.environ)
    if why and values.get("verbose"):
        say(f"quine: {why}\n")


def services() -> Services:
    """What the command may ask of us: the files tier."""
    from quine.files.here import Services

    return Services(dict(os.environ))


def _tries(values: dict[str, object]) -> Tries | None:
    """None where nothing is to be tried again: most of the time, and a client's imports are most of its time."""
    if "retry" not in values and "idempotent" not in values:
        return None
    from quine.retry import Tries

    return Tries(values)


def staging(values: dict[str, object], here: str = "") -> Staging | None:
    """--files and --returns; None where there are none, or nothing to be moved: in the same directory all is there.

    `here` is what cannot be done without --on. Raises Misconfigured.
    """
    files, returns = values.get("files", []), values.get("returns", [])
    assert isinstance(files, list) and isinstance(returns, list)
    if not files and not returns:
        return None
    found = mover(files, returns)
    if values.get("on", "local") != "local":
        return found
    start = starting_directory({**values, "on": "local"})
    if start is not None and os.path.realpath(start) == os.path.realpath(os.getcwd()):
        return None
    if here:
        raise Misconfigured(f"not built yet: {here} in another directory")
    return found


def mover(files: list[str], returns: list[str]) -> Staging:
    """What brings files from the current directory to a job's, and back. Raises Misconfigured."""
    from quine.staging.face import Staging

    folder = _current()
    if folder is None:
        raise Misconfigured("the current directory has been removed")
    return Staging(files, returns, folder, os.environ.get("QUINE_DATA_DIR") or ".quine")


def _terminal() -> dict[str, object]:
    """Ours, as a spawn describes it."""
    if not os.isatty(0):
        hint = "leave -t out: a command that reads a pipe or a file needs none; script(1) makes one"
        raise Misconfigured("-t needs a terminal on stdin", hint)
    from transport.terminal import description

    return description(0, os.environ)


def callers_environment(values: dict[str, object]) -> dict[str, str]:
    """What a job has of our environment: here all; elsewhere nothing.

    Where --on asks for a job here: less secrets and less the files tier, which it asks us for as any job does.
    """
    from transport.inherit import scrubbed

    if values.get("on", "local") != "local":
        return {}
    if "on" not in values:
        return dict(os.environ)
    from quine.files.place import VARIABLES

    return {name: value for name, value in scrubbed(os.environ).items() if name not in VARIABLES}


def starting_directory(values: dict[str, object]) -> str | None:
    """--cwd; without it our own on this machine, and elsewhere what the inventory says (None)."""
    here = values.get("on", "local") == "local"
    if "cwd" in values:
        cwd = os.path.expanduser(str(values["cwd"])) if here else str(values["cwd"])
        return os.path.join(_current() or "/", cwd) if here else cwd
    return _current() if here else None


def _tree() -> str:
    """The tree of the agent that we are a command of, if we are one's."""
    from transport.spawn import is_id

    tree = os.environ.get("QUINE_ROOT_SESSION", "")
    if tree and not is_id(tree):
        raise Misconfigured(f"QUINE_ROOT_SESSION is not a session: {tree[:80]!r}", "unset it")
    return tree


def _current() -> str | None:
    """The current directory; None where it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def version() -> int:
    from quine import __version__
    from transport.address import build_hash

    print(f"quine {__version__} (build {build_hash()[:12]})")
    return 0


def caller(values: dict[str, object]) -> dict[str, object]:
    """What placing a job needs to know of this process.

    `token` says that it is, or is part of, a job of this node: one from elsewhere has its origin place what it asks
    for. Somebody's own inventory on this machine is for plain jobs, and for who names it.
    """
    from transport import inherit

    inventory, memo = find_inventory(values, os.environ), inherit.read()
    context = {"inventory": inventory, "cwd": _current(), "ssh_agent": os.environ.get("SSH_AUTH_SOCK")}
    if "token" in memo and "inventory" not in values and ("lineage" in memo or not inventory):
        context["token"] = str(memo["token"])
    if store := str(values.get("fs") or os.environ.get("QUINE_FS") or ""):
        from quine.files.place import shareable

        context["fs"] = shareable(store, os.environ)
    return dict(context)


def show(
    spawn: Spawn,
    values: dict[str, object],
    services: Services | None = None,
    facts: dict[str, object] | None = None,
    renew: Callable[[Spawn], Services] | None = None,
    on_refused: Callable[[str], None] | None = None,
    stage: Staging | None = None,
) -> int:
    """Run a job as its face; print what there is to say once; leave as the job left.

    `facts` are for the report, and read after the end: a service may still count in them. `renew` makes another
    job of the spawn, and its services, when it is tried again. `on_refused` as in client.run.
    `stage` are the files that it needs, and those that it returns.
    """
    from transport import client, inherit
    from transport.errors import Refused
    from transport.output import Used
    from transport.status import Status

    inherit.hold_standard_streams()
    started, begun = time.time(), time.monotonic()
    tries = _tries(values)
    while True:
        used = Used() if tries else None
        try:
            status = (stage.run if stage else client.run)(
                spawn,
                services=services,
                on_start=_say_started if values.get("verbose") else None,
                on_note=None
                if spawn.own and spawn.argv[:2] != ["run", "--mount"]
                else Notes(values, spawn.terminal is not None).hear,
                on_refused=on_refused,
                used=used,
            )
        except Refused as refused:
            status = Status(
                "unreachable", refused.status, host=refused.host, detail=refused.detail, hint=refused.hint
            )
        if services:
            services.close()
        if not tries or not used or not tries.again(spawn, status, used):
            break
        if renew:
            services = renew(spawn)
    seconds = time.monotonic() - begun
    if values.get("verbose"):
        say(
            f"quine: {status.host or 'local'}: {status.state} {status.signal or status.code} after {seconds:.3f} s\n"
        )
    if target := values.get("report"):
        report(str(target), status, started=started, seconds=seconds, **(facts or {}))
    return leave(status)


class Notes:
    """What a job's node says of the link that the job is behind: at once with -v, else when it takes long."""

    def __init__(self, values: dict[str, object], raw: bool) -> None:
        self._after = 0.0 if values.get("verbose") else float("inf") if values.get("quiet") else LONG
        self._raw = raw
        self._down = False  # and said so

    def hear(self, note: dict[str, object]) -> None:
        seconds, host, why = note.get("seconds"), note.get("host"), note.get("why")
        if not isinstance(seconds, (int, float)):
            return
        if note.get("up"):
            if self._down:
                self._say(f"{host}: the connection is back after {seconds:.0f} s")
            self._down = False
        elif not self._down and seconds >= self._after:
            self._down = True
            self._say(f"{host}: the connection is lost since {seconds:.0f} s, trying again; {why}")

    def _say(self, text: str) -> None:
        text = "".join(c if c.isprintable() else "?" for c in text[:500])  # it may be another node's word
        say(f"quine: {text}\r\n" if self._raw else f"quine: {text}\n")


def _say_started(pid: int) -> None:
    say(f"quine: started with pid {pid}\n")


def leave(status: Status) -> int:
    """Say what is wrong, if anything is; then the exit status, or the same death."""
    if status.detail:
        complain(status.detail, status.hint, status.host)
    if status.state == "signaled" and status.signal:
        from transport.status import die_of

        die_of(status.signal)
    return status.code


def report(target: str, status: Status, **facts: object) -> None:
    """--report: one JSON object, to a descriptor's number or to a file written aside and renamed.

    `cost` and `agents` are null until a ledger counts them; of a plain command everything of agents is.
    """
    record = {name: value for name, value in status.to_json().items() if name != "hint"}
    record["host"] = status.host or "local"
    record |= dict.fromkeys(("session", "tokens_in", "tokens_out", "cost", "agents")) | facts
    text = quickjson.dumps(record) + "\n"
    try:
        if target.isdigit():
            os.write(int(target), text.encode())
            return
        if os.path.exists(target) and not os.path.isfile(target):
            # A rename over /dev/null, by root, takes it from the whole machine.
            with open(target, "w") as file:
                file.write(text)
            return
        aside = f"{target}.{os.getpid()}.part"
        with open(aside, "w") as file:
            file.write(text)
        os.rename(aside, target)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) else "no such descriptor"
        complain(f"the report cannot be written to {target}: {why}")


def _here(command: list[str], env: dict[str, str], limited: dict[str, str], cwd: str | None) -> int:
    """No node needed: this process becomes the command."""
    from quine.exits import complain
    from transport.status import restore_signals

    try:
        if cwd is not None:
            os.chdir(os.path.expanduser(cwd))
    except OSError as error:
        complain(f"cannot start in {cwd}: {error.strerror}")
        return 69
    if limited:
        from transport.errors import ProtocolError
        from transport.process import limit_self

        try:
            limit_self(limited)
        except ProtocolError as error:
            raise Misconfigured(str(error)) from None
    restore_signals()
    try:
        os.execvpe(command[0], command, {**os.environ, **env})
    except (FileNotFoundError, NotADirectoryError):
        complain(f"command not found: {command[0]}")
        return 127
    except OSError as error:
        complain(f"cannot execute {command[0]}: {error.strerror}")
        return 126
