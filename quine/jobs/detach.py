"""`--detach`: start a job under a supervisor of its own, print its id, and exit.

Laws
1. One line on stdout, the id, and exit status 0: the job runs, and its record is on disk. Anything else: it does not.
2. An id is used once: a second start with it starts nothing, and succeeds if that job, of the same kind, was started.
   Its host is noted before it is sent there, under a lock, and the same id goes to no other one, whatever WHERE means
   by then.
3. Its stdin is a copy of ours, made before it starts: the caller may be far away, and is gone afterwards. A terminal
   is not copied, so the job has no stdin then. With --stdin, `quine attach --stdin` sends it.
4. A command for another machine is detached there, by the same verb run on that machine. An agent for another machine
   needs the keys of this one, so its proxy is detached here.
5. No environment variable is written to disk.
"""

from __future__ import annotations

import contextlib
import os
import sys

from quine.agent.session import SessionSpec
from quine.base import dirs, sizes
from quine.base.allowed_hosts import check_where
from quine.base.cli_options import RunOptions, as_words, environment, limits, rows
from quine.base.errors import LOST, OK, Failure, Misconfigured, NoGuest, NotBuilt, complain, say
from quine.base.sessions import is_session, new_session
from quine.files.urls import GIVE_STORE, GONE, NO_ORIGIN
from quine.jobs.client import (
    caller,
    directory_here,
    infers_there,
    leave,
    seconds_of,
    services,
    show,
    starting_directory,
)
from quine.jobs.job_files import (
    AGENT,
    COMMAND,
    MADE,
    alone,
    bound,
    collect,
    command_text,
    directory_of,
    is_started,
    keep_mission,
    kind_of,
    made_directory,
    own_directory,
    remove,
    taken,
    tell,
    there_already,
    unwritable,
)
from quine.tape import places
from transport import inherit, quickjson, this_build
from transport.detached.order import Order
from transport.detached.start import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.files.select import Services
    from quine.jobs.job_files import Inputs
    from quine.staging.caller_side import Staging
    from transport.spawn import Spawn
    from transport.status import Status

# "1" for the process that is a detached agent or its proxy, the id of its job for a batch; that removes it
VARIABLE = "QUINE_DETACHED"
# options that a detached agent does not get
OURS = ("detach", "file", "job", "stdin", "output-limit", "report")


def command(options: RunOptions, argv: list[str], tree: str, stage: Staging | None = None) -> int:
    """`quine run --detach`; `stage` holds the files that the job needs in its directory."""
    for name in ("terminal", "retry", "idempotent"):
        if getattr(options, name):
            raise Misconfigured(f"--{name} does not go with --detach")
    if options.returns:
        raise Misconfigured(
            "--returns does not go with --detach: nothing waits for the job",
            "quine wait --returns PATTERN ID",
        )
    job, seconds = _job(options), seconds_of(options)
    options, first = bound(options, job, COMMAND)
    if options.elsewhere:
        return _over_there(options, job, argv, tree, stage, first)
    cwd = directory_here(options)
    if stage:
        alone(job)
        if not is_started(job) and (failed := _laid_out(stage, options, cwd)):
            return failed
    shown = command_text(argv)
    env = {**os.environ, **environment(options, os.environ)}
    if "token" in inherit.read() and not env.get("QUINE_FS"):
        env["QUINE_FS"] = GONE  # its way to the origin ends with the job of this process
        if options.mount:
            raise Misconfigured(f"--mount: {NO_ORIGIN}", GIVE_STORE)
    if options.mount:
        argv = [*this_build.own_command(), "run", "--mount", "--", *argv]
    facts: dict[str, object] = {"intent": shown, "root": tree or job}
    return _start(options, job, argv, env, cwd or "/", limits(options), facts, seconds=seconds)


def agent(mission: str, options: RunOptions) -> int:
    """`quine --detach MISSION`: start the agent here, or the proxy of one on another machine."""
    job = _job(options)
    memo = inherit.read()
    if "token" in memo and "lineage" in memo:
        raise NotBuilt("--detach of an agent on a host that is not the origin")
    check_where(options)
    _check_guest(options)
    bound(options, job, AGENT)
    hidden = bool(options.file)
    passed = dict.fromkeys(row[0] for row in rows("agent") if row[0] not in OURS)
    given = [f"--job={job}", *as_words(options, passed)]
    # A mission from a file must not show in argv: it goes through a file again.
    words = [f"--file={directory_of(job)}/mission"] if hidden else ["--", mission]
    shown = SessionSpec(job, job, mission, hidden=hidden).shown
    root = os.environ.get("QUINE_ROOT_SESSION", "")
    facts: dict[str, object] = {"intent": shown, "root": root if is_session(root) else job, "agent": True}
    env = {**os.environ, VARIABLE: "1"}
    if options.elsewhere:
        facts["on"] = options.on
        given.append(f"--report={directory_of(job)}/report")  # tells whether status 74 means lost, and why
    argv = [*this_build.own_command(), *given, *words]
    return _start(options, job, argv, env, dirs.current(), {}, facts, mission if hidden else "")


def _check_guest(options: RunOptions) -> None:
    """Report wrong settings now, not in the log of the job."""
    from quine.agent import env
    from quine.broker import finding
    from quine.providers import vendors

    settled = dict(os.environ)
    settings = env.adopt(options, settled)
    if finding.is_served(settled, settings.memo):
        return
    try:
        vendors.check(env.guest(settings, settled))
    except NoGuest:
        if not (options.elsewhere and infers_there(options)):
            raise


def batch(options: RunOptions, shown: str, inputs: Inputs, agents: bool) -> int:
    """`quine xargs --detach`: start a batch, of agents or of commands. `shown` is its command line for people."""
    job = _job(options.replace(report=""))  # the batch writes it itself
    memo = inherit.read()
    if agents and "token" in memo and "lineage" in memo:
        raise NotBuilt("--detach of agents on a host that is not the origin")
    if agents:
        _check_guest(options)
    root = os.environ.get("QUINE_ROOT_SESSION", "")
    facts: dict[str, object] = {"intent": shown, "root": root if is_session(root) else job, "batch": True}
    env = {**os.environ, VARIABLE: job}
    if "token" in memo and not env.get("QUINE_FS"):
        env["QUINE_FS"] = GONE
    return _start(options, job, [], env, dirs.current(), {}, facts, inputs=inputs)


def _job(options: RunOptions) -> str:
    if options.report:
        raise Misconfigured(
            "--report does not go with --detach: nothing waits for the job",
            "quine wait ID; quine ps -a --json",
        )
    job = options.job or new_session()
    if not is_session(job):
        raise Misconfigured(f"--job {job[:80]!r} is not a UUID in lower case", "leave it out")
    supervisor_quota(options)
    return job


def supervisor_quota(options: RunOptions) -> int:
    """Return --output-limit SIZE in bytes. Raises Misconfigured."""
    size = sizes.parse(options.output_limit or "1G", "--output-limit")
    if not size:
        raise Misconfigured("--output-limit must not be 0: its job could write nothing")
    return size


# -- here ------------------------------------------------------------------------------------------


def _start(
    options: RunOptions,
    job: str,
    argv: list[str],
    env: dict[str, str],
    cwd: str,
    limited: dict[str, str],
    facts: dict[str, object],
    mission: str = "",
    inputs: Inputs | None = None,
    seconds: float = 0.0,
) -> int:
    from quine.jobs import logind
    from transport import rlimits

    if options.job:
        alone(job, ".making")  # another start of this id, as of another machine, ends before
        if is_started(job):
            return there_already(job, kind_of(facts))
    logind.secure([] if options.file == "-" else _again(job))  # stdin is read only once
    env.pop(logind.MOVED, None)
    if not (keep := _kept()):
        env.pop(inherit.VARIABLE, None)
    jobs = made_directory()
    collect(jobs)
    directory = directory_of(job)
    try:
        stdin: int | None
        if inputs:
            argv = [*this_build.own_command(), *inputs.take(jobs)]
            stdin, keep = inputs.stdin, (*keep, *inputs.fds)
        else:
            stdin = None if options.stdin else taken(jobs)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            return there_already(job, kind_of(facts))
        try:
            # After the mkdir: a directory made for a job that exists already would not be removed.
            cwd, at = own_directory(job, cwd, str(facts["root"]))
            if mission:
                keep_mission(directory, mission)
            if inputs:
                inputs.keep(directory)
        except BaseException:
            remove(directory)  # nothing would ever start in it, and the id were used up
            raise
    except OSError as error:
        raise unwritable(error, jobs) from None
    record = {"session": job, "parent": "", "host": "local", "cwd": cwd, "stdin": options.stdin, **facts}
    order = Order(
        argv, env, cwd, rlimits.parse(limited), record, stdin, supervisor_quota(options), keep, seconds, at
    )
    refused = _started(directory, order)
    if refused is None:
        return tell(job)
    if refused.state != "lost" and not os.path.exists(f"{directory}/log"):
        remove(directory)  # that of a lost one stays: the same id starts nothing a second time
    complain(refused.detail, refused.hint, os.environ.get("QUINE_NODE_NAME", ""))
    return refused.code


def _started(directory: str, order: Order) -> Status | None:
    """As `start`; the broker of an agent above, if there is one, serves the job also after the end of that agent."""
    try:
        refused = start(directory, order)
    except KeyboardInterrupt:
        job = os.path.basename(directory)
        say(f"quine: hint: if it was started, its id is {job}; with --job {job} it is not started twice\n")
        raise
    memo = inherit.read()
    if refused is None and memo:
        from quine.broker import asking, finding

        if isinstance(told := memo.get(finding.VARIABLE), list):
            with open(f"{directory}/job", "rb") as file:
                asking.detach(str(told[0]), quickjson.loads(file.read())["supervisor"])
    return refused


def _again(job: str) -> list[str]:
    """Return this command with the id that it was given, so that it starts the same job."""
    words = sys.argv[1:]
    at = 1 if words[:1] in (["run"], ["xargs"]) else 0
    given = [] if f"--job={job}" in words else [f"--job={job}"]
    return [*this_build.own_command(), *words[:at], *given, *words[at:]]


def _kept() -> tuple[int, ...]:
    """The descriptors that an agent's descendants inherit from it: its memo and its ledger.

    Empty inside a node's job: its memo is valid as long as that job, and a process that holds it belongs to the job.
    """
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            ours = os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:quine-")
            if ours and os.get_inheritable(int(name)):
                found.append(int(name))
    memos = [inherit.read({inherit.VARIABLE: str(fd)}) for fd in found]
    return () if any("token" in memo for memo in memos) else tuple(found)


def prepare(words: list[str]) -> bool:
    """Change into a directory of this job alone before the files of `words`, the verb run here, are laid out.

    Return False if the job was started already: its files must not change while it runs.
    """
    job = _named(words)
    alone(job)  # locked before the directory is made, which `give_up` removes
    if is_started(job):
        return False
    _, at = own_directory(job, dirs.current(), job)
    if at >= 0:
        os.fchdir(at)  # and it is held until the exec: others that leave it find it empty
    return True


def give_up(words: list[str]) -> None:
    """Undo `prepare` after a failure: remove the directory if it was made for this job alone."""
    with contextlib.suppress(OSError):
        if os.path.basename(here := os.getcwd()) == _named(words):
            os.rmdir(here)


def _named(words: list[str]) -> str:
    return words[words.index("--detach") + 1].removeprefix("--job=")


def _laid_out(stage: Staging, options: RunOptions, cwd: str | None) -> int:
    """Stage the job's files on this machine, for a command that does nothing. Return 0, or the status of a failure."""
    from transport.spawn import Spawn

    nothing = Spawn(["true"], cwd=cwd, context={**caller(options), "control": True})
    null = os.open(os.devnull, os.O_RDONLY)  # our stdin is for the job
    try:
        return leave(stage.run(nothing, null, services=services(nothing.context)))
    finally:
        os.close(null)


# -- on another machine ----------------------------------------------------------------------------


def _over_there(
    options: RunOptions, job: str, argv: list[str], tree: str, stage: Staging | None, first: bool
) -> int:
    """Run the same verb on another machine; `first` as for `send`."""
    words = ["run", "--detach", f"--job={job}"]
    words += [f"--limit={name}={value}" for name, value in limits(options).items()]
    words += as_words(options, ("mount", "stdin", "output-limit", "deadline"))
    spawn = verb_there([*words, "--", *argv], options.on, options)
    spawn.env = environment(options, os.environ) | ({"QUINE_ROOT_SESSION": tree} if tree else {})
    if options.job:
        spawn.context["pick"] = job  # not by load: a second start must not reach another host
    spawn.tree, spawn.cwd = f"{job}{MADE}", starting_directory(options)
    # A job on a host that starts another one gives it its own tree.
    spawn.folder = spawn.tree if stage and spawn.cwd is None else ""
    if options.stdin or os.isatty(0):
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)

    return send(spawn, job, first, options, "--on", services(spawn.context) if stage else None, stage)


def send(
    spawn: Spawn,
    job: str,
    first: bool,
    options: RunOptions,
    option: str,
    served: Services | None = None,
    stage: Staging | None = None,
) -> int:
    """Run a verb that starts a job on another machine, and note its host; `option` names that in the command line.

    `first`: the host is noted, and not any more if surely nothing was started there.
    """

    def ended(status: Status) -> Status:
        if status.code == LOST or (status.state, status.code) == ("exited", OK):
            places.note_host(job, spawn.where)
        elif status.state != "signaled" and first:
            places.note_host(job, "")
        return status

    try:
        status = show(spawn, options, served, stage=stage, ended=ended)
    except Failure:
        if first:
            places.note_host(job, "")
        raise
    if status == LOST:
        again = f"{option} {spawn.where} --job {job}"
        say(
            f"quine: hint: if it was started, its id is {job}; the same again with {again} starts nothing twice\n"
        )
    return status


def verb_there(words: list[str], where: str, options: RunOptions) -> Spawn:
    """Return the spawn of a verb on another machine. It takes no slot there, because it does no work."""
    from transport.spawn import Spawn

    return Spawn(words, own=True, where=where, cwd="~", context={**caller(options), "control": True})
