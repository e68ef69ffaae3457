"""Start of a child agent: an os.fork() on this machine, also for a child on another machine.

A local child has the parent's memory, so the kernel clones the conversation; the child continues the loop with a
session of its own. For a remote child, the forked process becomes its proxy, the local process that stands for it. For
the parent both are the same: a pid with pipes.

Laws
1. A child closes its copies of the parent's shell, tape, job and slot descriptors, and never uses them.
2. A child leaves the parent's code by `ForkedChild` or by os._exit; no error handling of the parent runs in it.
3. Signals are blocked around os.fork(), until the child has a state of its own.
"""

from __future__ import annotations

import gc
import os

from quine.agent.capture import Capture
from quine.agent.children import recorded
from quine.agent.outcome import ForkedChild
from quine.base import dirs, procs
from quine.base.errors import DEFECT, complain
from quine.base.sessions import JOB
from transport import quickjson
from transport.atomic import write_aside
from transport.lean import Any, NamedTuple, NoReturn, contextlib, signal
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from quine.agent.children import Job
    from quine.agent.running import Running
    from quine.agent.session import SessionSpec
    from quine.budget.ledger import Ledger


class Given(NamedTuple):
    """The things that a child gets from its parent; `stdin`, `slot` and `cwd` are descriptors.

    `cwd` is its directory if that is not its parent's, else -1; `there` the directory that a child on another machine
    asks for. `removed` are names of variables that it does not have, `limits` those of the kernel that are new.
    """

    spec: SessionSpec
    ledger: Ledger
    stdin: int
    slot: list[int]
    cwd: int
    there: str
    removed: frozenset[str]
    limits: Mapping[str, str]


def fork_child(loop: Running, given: Given, job: Job, foreign: set[int]) -> None:
    """Fork a child, and describe it in `job`. In the child this raises ForkedChild.

    `foreign` are descriptors for its siblings. OSError if it cannot start.
    """
    outs: list[int] = []
    report: tuple[int, ...] = ()
    try:
        _streams(loop, job, outs)
        report = (job.report, end) = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The garbage collector would write to every object's header, and so copy every page of the parent's memory.
        gc.freeze()
        with loop.signals.block_signals():
            pid = os.fork()
            if pid == 0:
                _be_child(loop, given, job, tuple(outs), end, {job.report, *loop.slots, *foreign})
            job.pid = pid
            procs.own(pid)
            # Before anything that can fail, so that the child is reaped whatever happens.
            loop.jobs.running.append(job)
        gc.unfreeze()
        for fd in (*outs, end):
            os.close(fd)
        outs, report = [], (job.report,)
        job.pidfd = os.pidfd_open(pid)  # a descriptor is free: three were just closed
    except OSError:
        gc.unfreeze()
        for fd in (*outs, *report, *job.streams):
            os.close(fd)
        job.streams, job.report = {}, -1
        if job.pid:
            loop.jobs.running.remove(job)
            os.kill(job.pid, signal.SIGKILL)
            procs.reap(job.pid)
        raise
    if job.directory:
        job.record(loop.spec.session)


def _streams(loop: Running, job: Job, outs: list[int]) -> None:
    """Append the child's ends of stdout and stderr to `outs`; put the parent's ends into `job.streams`."""
    if job.directory:
        dirs.make_inside(job.directory, JOB)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        for name in ("stdout", "stderr"):
            outs.append(os.open(os.path.join(job.directory, name), flags | os.O_EXCL, 0o600))
        return
    for name in ("stdout", "stderr"):
        read, write = os.pipe2(os.O_CLOEXEC)
        outs.append(write)
        path = os.path.join(loop.outputs, f"{job.session}.{name}")
        job.streams[read] = Capture(loop.spec.limits.truncate, path)


def _be_child(
    loop: Running, given: Given, job: Job, outs: tuple[int, ...], report: int, foreign: set[int]
) -> NoReturn:
    """Detach the forked process from its parent, then continue as its session, or as the proxy of a remote child."""
    try:
        loop.signals.renew()
        os.setpgid(0, 0)
        streams = (given.stdin, *outs)
        for fd, source in enumerate(streams):
            os.dup2(source, fd)
        for fd in {*streams, *job.streams, *foreign}:
            os.close(fd)
        loop.disown()
        _enter(loop, given)
        if job.host == "local":
            _lessen(given)
    except BaseException:
        os._exit(DEFECT)
    if not job.directory:
        # The waiting parent has the other end. If the parent is killed, the kernel ends this child by TERM.
        procs.set_parent_death_signal(report, os.getpid())
        loop.signals.tied = report
    if job.host != "local":
        _be_proxy(loop, given, job, report)
    if job.directory:
        os.close(report)
    model = given.spec.model if given.spec.model != loop.spec.model else ""
    raise ForkedChild(given.spec, given.ledger, model, given.slot, job.directory)


def _enter(loop: Running, given: Given) -> None:
    """Change into the child's directory. A proxy stays in its parent's, where its files come from."""
    if given.cwd >= 0:
        os.fchdir(given.cwd)
        os.close(given.cwd)
        return
    with contextlib.suppress(OSError):  # it may have been removed
        os.chdir(loop.shell.cwd)


def _lessen(given: Given) -> None:
    """Take from a child of this machine the variables and the resources that it is not to have."""
    for name in given.removed:
        os.environ.pop(name, None)
    if given.limits:
        from transport.job.process import limit_self

        limit_self(given.limits)


def _be_proxy(loop: Running, given: Given, job: Job, report: int) -> NoReturn:
    """Run as the proxy of a child on another machine, and exit with its status."""
    code = DEFECT
    try:
        loop.signals.remove()
        more: dict[str, Any] = {"masked": loop.settings.masked, "stdin": 0, "stdout": 1, "stderr": 2}
        if job.files or job.returns:
            more |= {"files": job.files, "returns": job.returns, "race": job.race}
        status = loop.proxy(job.host, given.spec, given.ledger, **more, cwd=given.there)
        if status.detail:
            complain(status.detail, status.hint, status.host)
        code = status.code
        _tell(report, job, status)
    except Exception as error:
        refused = getattr(error, "status", None)  # of Refused and Failure: nothing was started
        code = refused if isinstance(refused, int) else DEFECT
        detail = str(error) or type(error).__name__
        complain(detail, getattr(error, "hint", ""), getattr(error, "host", ""))
        if code != DEFECT:
            _tell(report, job, Status("unreachable", code, detail=detail))
    finally:
        try:
            for fd in given.slot:
                os.close(fd)
            if given.ledger.beyond:
                given.ledger.beyond.give_back()
        finally:
            os._exit(code)


def _tell(report: int, job: Job, status: Status) -> None:
    """Report to the parent, and into the record: the parent may have ended or called exec by now."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the parent may have ended
    with contextlib.suppress(OSError):
        os.write(report, quickjson.dumps(recorded(status)).encode())
    if job.directory:
        with contextlib.suppress(OSError):
            write_aside(os.path.join(job.directory, "status"), recorded(status))
