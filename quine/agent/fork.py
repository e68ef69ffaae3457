"""How a child comes to be: os.fork(), here, whether it lives here or on another machine.

A local child is os.fork(): it has the parent's memory, so the conversation is cloned by the kernel, and it
goes on with the loop as its own life. A remote child is os.fork() too: that process becomes the face of the
child over there, so that for the parent both are the same, a pid with pipes.

Laws
1. In a child, what is the parent's is let go of, never touched: its shell, tape, jobs and slots.
2. A child leaves the parent's code by `Reborn` or by os._exit; no error handling of the parent's runs in it.
3. Signals wait while there are two processes with one idea of who they are.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
from typing import TYPE_CHECKING, NoReturn

from quine.agent.capture import Capture
from quine.agent.children import Status
from quine.agent.outcome import Reborn
from quine.base import dirs, procs
from quine.base.atomic import write_aside
from quine.base.errors import DEFECT, complain
from transport.wire import quickjson

if TYPE_CHECKING:
    from quine.agent.children import Job
    from quine.agent.loop import Loop
    from quine.agent.session import Life

LONGEST_DETAIL = 2000  # characters of a report, which has to fit into a pipe


def give(loop: Loop, life: Life, job: Job, stdin: int, slot: list[int], foreign: set[int]) -> None:
    """Start `life` in a child of its own, which `job` stands for from then on. In the child this raises Reborn.

    `foreign` are descriptors of ours that are meant for its siblings. OSError where there can be no child.
    """
    outs: list[int] = []
    report: tuple[int, ...] = ()
    try:
        _streams(loop, job, outs)
        report = (job.report, end) = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # The collector would write to every object's header and so copy every page of the parent's memory.
        gc.freeze()
        with loop.signals.held():
            pid = os.fork()
            if pid == 0:
                _be_child(loop, life, job, (stdin, *outs), end, {job.report, *loop.slots, *foreign}, slot)
            job.pid = pid
            procs.own(pid)
            # Before anything that can fail: whatever happens, it is one of ours.
            loop.jobs.running.append(job)
        gc.unfreeze()
        for fd in (*outs, end):
            os.close(fd)
        outs, report = [], (job.report,)
        job.pidfd = os.pidfd_open(pid)  # there is room for it: we have just closed three
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
        job.record(loop.life.session)


def _streams(loop: Loop, job: Job, outs: list[int]) -> None:
    """The child's ends of stdout and stderr into `outs`; ours go into the job."""
    if job.directory:
        dirs.make(job.directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        for name in ("stdout", "stderr"):
            outs.append(os.open(os.path.join(job.directory, name), flags, 0o600))
        return
    for name in ("stdout", "stderr"):
        read, write = os.pipe2(os.O_CLOEXEC)
        outs.append(write)
        path = os.path.join(loop.outputs, f"{job.session}.{name}")
        job.streams[read] = Capture(loop.life.limits.truncate, path)


def _be_child(
    loop: Loop,
    life: Life,
    job: Job,
    streams: tuple[int, ...],
    report: int,
    foreign: set[int],
    slot: list[int],
) -> NoReturn:
    """Become a process of our own, then go on as `life`, or as the face of it."""
    try:
        loop.signals.renew()
        os.setpgid(0, 0)
        for fd, source in enumerate(streams):
            os.dup2(source, fd)
        for fd in {*streams, *job.streams, *foreign}:
            os.close(fd)
        loop.disown()
        with contextlib.suppress(OSError):  # it was removed under us, as it may be under any process
            os.chdir(loop.shell.cwd)
    except BaseException:
        os._exit(DEFECT)
    if not job.directory:
        # Who waits for us has the other end: when it is killed, nobody is left who wants what we do.
        procs.tie(report, os.getpid())
        loop.signals.tied = report
    if job.host != "local":
        _be_face(loop, life, job, report, slot)
    if job.directory:
        os.close(report)
    raise Reborn(life, slot, job.directory)


def _be_face(loop: Loop, life: Life, job: Job, report: int, slot: list[int]) -> NoReturn:
    """The child lives on another machine; this process is its face, and leaves as it left."""
    code = DEFECT
    try:
        loop.signals.remove()
        more = {"files": job.files, "returns": job.returns} if job.files or job.returns else {}
        masked = loop.settings.masked
        status = loop.face(job.host, life, loop.ledger, masked=masked, stdin=0, stdout=1, stderr=2, **more)
        if status.detail:
            complain(status.detail, status.hint, status.host)
        code = status.code
        _tell(report, job, Status(code, status.state, status.signal or "", status.detail))
    except Exception as error:
        refused = getattr(error, "status", None)  # transport.errors.Refused, Failure: nothing was started
        code = refused if isinstance(refused, int) else DEFECT
        detail = str(error) or type(error).__name__
        complain(detail, getattr(error, "hint", ""), getattr(error, "host", ""))
        if code != DEFECT:
            _tell(report, job, Status(code, "unreachable", "", detail))
    finally:
        try:
            for fd in slot:
                os.close(fd)
            if loop.ledger.beyond:
                loop.ledger.beyond.give_back()
        finally:
            os._exit(code)


def _tell(report: int, job: Job, status: Status) -> None:
    """To the parent, and into the record, for the parent may have ended or have another life by now."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # that it has is no signal to us
    facts = status._replace(detail=status.detail[:LONGEST_DETAIL])._asdict()
    with contextlib.suppress(OSError):
        os.write(report, quickjson.dumps(facts).encode())
    if job.directory:
        with contextlib.suppress(OSError):
            write_aside(os.path.join(job.directory, "status"), facts)
