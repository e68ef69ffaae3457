"""The client side of a job, shared by the verbs: its placing, its run with this process as its proxy, its end.

Laws
1. stdout belongs to the job alone; quine speaks on stderr, and only when something is wrong, or when the directory
   that was made for a job is kept because something was left in it.
2. The job's own status is returned unchanged, and a death by signal as that death.
3. Standard library only; a command loads nothing that it does not use.
"""

from __future__ import annotations

import gc
import os
import time

from quine.base import sizes
from quine.base.cli_options import limits
from quine.base.errors import LOST, Misconfigured, complain, say

LONG = 10.0  # seconds without a connection until it is reported, also without -v

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from quine.base.cli_options import RunOptions
    from quine.files.select import Services
    from quine.jobs.retry import Tries
    from quine.staging.caller_side import Staging
    from transport.client.output import Used
    from transport.spawn import Spawn
    from transport.status import Status


def choose_store(options: RunOptions) -> None:
    """Make the URL of the shared files absolute, for this process and its services."""
    if store := options.fs or os.environ.get("QUINE_FS", ""):
        from quine.files.urls import absolute

        os.environ["QUINE_FS"] = absolute(store)


def services(context: dict[str, object]) -> Services:
    """Return the services of a command placed with `context`: the shared files, and the hosts that it may use."""
    from quine.files.select import Services

    return Services(dict(os.environ), reach=reach(context))


def reach(context: dict[str, object]) -> Callable[[bytes, str], bytes]:
    """Return the handler of the request `hosts` of a job that is placed with `context`."""

    def made(body: bytes, host: str) -> bytes:
        from quine.base.allowed_hosts import asker
        from quine.jobs.hosts_service import answer

        inventory = context.get("inventory")
        path = inventory if isinstance(inventory, str) else None
        ask = asker() if "token" in context else None
        return answer(body, host, path, ask, str(context.get("named") or ""))

    return made


def staging(
    options: RunOptions,
    here: str = "",
    looks: bool = False,
    begun: bool = False,
    own: Collection[bytes] | None = None,
) -> Staging | None:
    """Return the staging of --files and --returns; None without them, or if the job runs in the current directory.

    `here` names a use that stages files only with --on. Raise Misconfigured if it would have to stage them here.
    `looks`: of a job in the current directory there is one that moves nothing, and looks for its returns.
    `begun`: the job runs already, or has ended. It is not lost by what lies in the way of its results now.
    `own`: files that the caller writes, if there are more than its stdout, stderr and --report.
    """
    if not options.files and not options.returns:
        return None
    found = mover(options, own)
    if options.elsewhere:
        return found if begun else found.moving()
    if runs_in_place(options):
        return found.in_place(options.files) if looks else None
    if here:
        raise Misconfigured(f"not built yet: {here} in another directory")
    return found if begun else found.moving()


def runs_in_place(options: RunOptions) -> bool:
    """Return whether a job runs in the current directory, which has all of its files."""
    here, start = current_directory(), None if options.elsewhere else directory_here(options)
    return bool(here and start and os.path.realpath(start) == os.path.realpath(here))


def mover(options: RunOptions, own: Collection[bytes] | None = None) -> Staging:
    """Return the staging from the current directory to a job's, and back. Misconfigured if the former is gone."""
    from quine.base import data_directory, dirs
    from quine.staging import caller_side, spec

    own = spec.written([options.report]) if own is None else own
    words, limit = ([*options.files], [*options.returns]), options.returns_limit
    obeys = options.inventory, "" if options.file == "-" else options.file
    return caller_side.Staging(*words, dirs.current(), data_directory.named(), limit, own, obeys)


def callers_environment(options: RunOptions) -> dict[str, str]:
    """Return the caller's environment for a job: here all, with PWD as --cwd says; elsewhere nothing.

    With --on local it lacks secrets and the variables of the shared files, which the job requests like any other.
    """
    from transport.inherit import scrubbed

    if options.elsewhere:
        return {}
    from quine.budget import caller as around

    moved = {"PWD": directory_here(options) or "/"} if options.cwd else {}
    moved |= around.told()
    if not options.on:
        return {**os.environ, **moved}
    from quine.files.urls import VARIABLES

    kept = {name: value for name, value in scrubbed(os.environ, here=True).items() if name not in VARIABLES}
    return {**kept, **moved}


def starting_directory(options: RunOptions) -> str | None:
    """Return --cwd; without it the current directory on this machine, and None (the inventory's) elsewhere."""
    return (options.cwd or None) if options.elsewhere else directory_here(options)


def seconds_of(options: RunOptions) -> float:
    """Return --deadline of a command in seconds, 0.0 for none. Raise Misconfigured for a wrong one."""
    from transport.spawn import LONGEST_DEADLINE

    try:
        text = options.deadline or "0"
        unit = sizes.TIMES.get(text[-1:], 0)
        seconds = float(text[:-1] if unit else text) * (unit or 1)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_DEADLINE:
        raise Misconfigured(f"--deadline must be a number of seconds, not {options.deadline[:40]!r}")
    return seconds


def directory_here(options: RunOptions) -> str | None:
    """Return --cwd as a directory of this machine; without it the current one."""
    if not options.cwd:
        return current_directory()
    return os.path.join(current_directory() or "/", os.path.expanduser(options.cwd))


def current_directory() -> str | None:
    """Return the current directory; None if it has been removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


def caller(options: RunOptions) -> dict[str, object]:
    """Return the facts about this process that placing a job needs.

    `token` says that it is, or belongs to, a job of this node; if that came from elsewhere, its origin places the new
    job. A user's own inventory on this machine is for plain jobs, and for callers that name it.
    """
    from quine.base.allowed_hosts import asks_origin, find, in_tree, typed
    from transport import inherit

    inventory, memo = find(options, os.environ).path, inherit.read()
    context: dict[str, object] = {
        "inventory": inventory,
        "cwd": current_directory(),
        "ssh_agent": os.environ.get("SSH_AUTH_SOCK"),
    }
    if asks_origin(bool(options.inventory), inventory, memo):
        context["token"] = str(memo["token"])
    elif (where := typed(options)) and not in_tree():
        context["named"] = where
    if store := options.fs or os.environ.get("QUINE_FS", ""):
        from quine.files.urls import shareable

        context["fs"] = shareable(store, os.environ)
    if not options.elsewhere:
        from quine.base import procs

        context["umask"] = procs.umask()
    return context


def callers_limits(options: RunOptions) -> dict[str, str]:
    """Return the limits of a job: those of --limit, and here those of this process, which a node does not have.

    Raise Misconfigured for a wrong one.
    """
    found = limits(options)
    if not options.elsewhere:
        import resource

        from transport.rlimits import OWN, number

        for name in OWN:
            if (soft := resource.getrlimit(number(name))[0]) != resource.RLIM_INFINITY:
                found.setdefault(name, str(soft))
    return found


def infers_there(options: RunOptions) -> bool:
    """Return whether every host that --on means infers by keys of its own, so that none is needed here."""
    from deploy.inventory import opened
    from quine.base import allowed_hosts
    from transport.errors import Refused

    found = allowed_hosts.find(options, os.environ)
    try:
        known = allowed_hosts.naming(opened(found), options.on)
        return all(host.inference == "direct" for host in known.matching(options.on))
    except (Refused, OSError, ImportError):
        return False  # the node tells it better


def show(
    spawn: Spawn,
    options: RunOptions,
    services: Services | None = None,
    facts: dict[str, object] | None = None,
    renew: Callable[[Spawn], Services] | None = None,
    on_refused: Callable[[str], None] | None = None,
    stage: Staging | None = None,
    ended: Callable[[Status], Status] | None = None,
    left: Callable[[], float | None] | None = None,
) -> int:
    """Run a job as its proxy; print its fault, if any, once; leave as the job left.

    `facts` are for the report, and read after the end: a service may still count in them. `renew` makes another job of
    the spawn, and its services, when it is tried again. `on_refused` as in client.run. `stage` are the files that it
    needs, and those that it returns. `ended` is given how it ended, and returns what is to be made of that. `left` is
    that of client.run.
    """
    from transport import inherit
    from transport.client import client

    if freeze := getattr(gc, "freeze", None):  # not in every Python
        freeze()  # else the first collection looks at everything that modules have made
    gc.enable()
    inherit.hold_standard_streams()
    started, begun = time.time(), time.monotonic()
    tries, run = tries_of(options), stage.run if stage else client.run
    while True:
        used = None
        if tries:
            from transport.client.output import Used  # here: most jobs are tried once

            used = Used()
        status = _run(run, spawn, options, services, on_refused, used, left)
        if services:
            services.close()
        if not tries or not used or not tries.again(spawn, status, used):
            break
        if renew:
            services = renew(spawn)
    spawn.where = status.host or spawn.where  # the chosen host, for messages and the report
    status = ended(status) if ended else status
    seconds = time.monotonic() - begun
    if options.verbose:
        say(
            f"quine: {status.host or 'local'}: {status.state} {status.signal or status.code} after {seconds:.3f} s\n"
        )
    if options.report:
        _report(options.report, status, spawn.where, started=started, seconds=seconds, **(facts or {}))
    if status.left and stage is None and not options.quiet:
        from quine.base.text import shown_path

        say(f"quine: {status.host}: files are left in {shown_path(status.left)}\n")
    if status.detail and (not spawn.own or status.state == "unreachable"):
        from quine.base.slips.not_run import complete

        complete(status, [] if spawn.own else spawn.argv, options)
    return leave(status)


def _report(target: str, status: Status, where: str, **facts: object) -> None:
    """Write --report. No job whose report is missing ends with 0."""
    from quine.base import run_report

    if not run_report.write(target, status, where, **facts):
        status.code = status.code or LOST


def _run(
    run: Callable[..., Status],
    spawn: Spawn,
    options: RunOptions,
    services: Services | None,
    on_refused: Callable[[str], None] | None,
    used: Used | None,
    left: Callable[[], float | None] | None,
) -> Status:
    """Call `run`, which is that of the client or of its staging; return how the job ended, or why it was refused."""
    from transport.errors import Refused

    links = not spawn.own or spawn.argv[:2] == ["run", "--mount"]
    try:
        return run(
            spawn,
            services=services,
            on_start=_starter(services, options.verbose),
            on_note=Notes(options, spawn.terminal is not None, links=links).hear,
            on_refused=on_refused,
            used=used,
            left=left,
        )
    except Refused as refused:
        from transport.status import Status

        return Status(
            refused.state, refused.status, host=refused.host, detail=refused.detail, hint=refused.hint
        )


def tries_of(options: RunOptions) -> Tries | None:
    """Return None without these options: the usual case, and imports are most of a client's time."""
    if not options.retry and not options.idempotent:
        return None
    from quine.jobs.retry import Tries

    return Tries(options)


class Notes:
    """Reports notes of a job's node: on its host, on the slot that it waits for and, with `links`, on the link.

    A wait or a lost link is reported at once with -v, never with -q, else after LONG seconds.
    """

    def __init__(
        self, options: RunOptions, raw: bool, links: bool = True, say: Callable[[str], None] = say
    ) -> None:
        self._links = links
        self._print = say
        self._after = 0.0 if options.verbose else float("inf") if options.quiet else LONG
        self._raw = raw
        self._down = self._waits = False  # and reported

    def hear(self, note: dict[str, object]) -> None:
        seconds, host, why, left = (note.get(name) for name in ("seconds", "host", "why", "left"))
        if "silent" in note and self._after != float("inf"):
            self._say(f"the node of this machine does not answer, waiting; look at {note['silent']}")
        if isinstance(text := note.get("text"), str):
            self._say(f"{host}: {text}")
        if not isinstance(seconds, (int, float)):
            return
        if note.get("waiting"):
            if not self._waits and seconds >= self._after:
                self._waits = True
                self._say(
                    f"{host}: no free slot for {seconds:.0f} s, waiting; jobs ahead: {note.get('ahead')}"
                )
        elif not self._links:
            return
        elif note.get("up"):
            if self._down:
                self._say(f"{host}: reconnected after {seconds:.0f} s")
            self._down = False
        elif not self._down and seconds >= self._after:
            self._down = True
            reason = "" if str(why).lower() in ("", "none", "connection lost") else f": {why}"
            given_up = f", its jobs are given up in {left:.0f} s" if isinstance(left, (int, float)) else ""
            self._say(f"{host}: connection lost {seconds:.0f} s ago; reconnecting{given_up}{reason}")

    def _say(self, text: str) -> None:
        from transport.text import harmless

        text = harmless(text[:500], instead="?")  # it may come from another node
        self._print(f"quine: {text}\r\n" if self._raw else f"quine: {text}\n")


def _starter(services: Services | None, verbose: bool) -> Callable[[int, str], None]:
    def started(pid: int, host: str) -> None:
        if services:
            services.placed(host)
        if verbose:
            say(f"quine: started with pid {pid}\n")

    return started


def leave(status: Status) -> int:
    """Report the error, if there is one; then return the exit status, or die of the job's signal."""
    if status.detail:
        complain(status.detail, status.hint, status.host)
    if status.state == "signaled" and status.signal:
        from transport.status import die_of

        die_of(status.signal)
    return status.code
