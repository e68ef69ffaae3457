"""Forked children of an agent: pipes, end, exit record.

Laws
1. Only the pidfd of a child tells its end. The end of its output does not: a process it left can hold a pipe open.
   Whether a signal ended it, and its exit code, are what the kernel says. A record may only add why it exited: lost, a
   signal over there, or, of a child elsewhere that has no tape, never started.
2. This module reaps every child, by pid, exactly once.
3. The output and status of a child started with `wait: false` go to files: `jobs/<session>/{stdout,stderr,status}`.
4. Children are ended by TERM, a pause, then KILL to each child and all its descendants.
"""

from __future__ import annotations

import os
import select
import time

from quine.agent.capture import CHUNK, Capture, drain, quoted
from quine.agent.signals import Signals
from quine.base import dirs, procs
from quine.base.sessions import JOB, job_directory, tape_path
from quine.staging.notes import Claim
from transport import quickjson
from transport.address import boot_id, pid_space
from transport.atomic import write_aside
from transport.lean import Any, contextlib, signal
from transport.provenance import regular_file
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


GRACE = 5.0  # seconds; a child that receives TERM first ends its own shell and children
LEFT = 1.0  # seconds for processes left by a child that another program had replaced (exec)
REPORT = 1 << 16
# conclusions that a state allows the guest
MEANING = {
    "lost": "its work may have happened, in whole or in part: look before it is done again",
    "unreachable": "it never started",
    "denied": "it never started",
}


def shown(status: Status) -> str:
    """Return the line that a result shows below the exit code; "" if the code says everything."""
    if status.signal:
        return f"[SIGNAL] {status.signal}"
    if status.state == "exited":
        return ""
    # quoted: the detail may come from another node
    text = quoted(f"{status.state}{': ' + status.detail if status.detail else ''}")
    return f"[STATE] {text}; {MEANING[status.state]}" if status.state in MEANING else f"[STATE] {text}"


def recorded(status: Status) -> dict[str, Any]:
    """Return the facts that a tape and the status file of a job have of the end of a child."""
    return {
        "code": status.code,
        "state": status.state,
        "signal": status.signal or "",
        "detail": status.detail,
    }


class Job:
    def __init__(self, session: str, intent: str, host: str, directory: str) -> None:
        self.session = session
        self.intent = intent
        self.host = host
        self.directory = directory  # "" if the parent waits
        self.files: list[str] = []  # paths copied to its host; `returns`: paths copied back
        self.returns: list[str] = []
        self.race = ""  # the path of the claim of its race, "" without one
        self.pid = 0
        self.pidfd = -1
        self.report = -1
        self.streams: dict[int, Capture] = {}
        self.status: Status | None = None

    def never_started(self, folder: str, parent: str) -> None:
        """Write job record and status of a child that never started, so that a lookup by its id finds them."""
        if self.directory or self.status is None:
            return  # its record was written at its start
        directory = job_directory(folder, self.session)
        with contextlib.suppress(OSError):  # if the disk is full, the result of fork still says it
            dirs.make_inside(directory, JOB)
            write_aside(os.path.join(directory, "status"), recorded(self.status))
            self._record(directory, parent, 0, 0)

    def record(self, parent: str) -> None:
        """Write the job record into the directory of the child. A full disk is no error: the child runs without it."""
        process = procs.look(self.pid)  # exists, if only as a zombie: only this process reaps it
        with contextlib.suppress(OSError):
            self._record(self.directory, parent, self.pid, process.started if process else 0)

    def _record(self, directory: str, parent: str, pid: int, started: int) -> None:
        facts = {
            "session": self.session,
            "pid": pid,
            "started": started,
            "boot_id": boot_id(),
            "pid_space": pid_space(),
            "begun": round(time.time(), 6),
            "parent": parent,
            "intent": self.intent,
            "host": self.host,
        }
        write_aside(os.path.join(directory, "job"), facts)

    @property
    def began(self) -> bool:
        """Whether it has surely begun: each child of this machine has, and each that has a tape."""
        if self.host == "local":
            return True
        folder = os.path.dirname(os.path.dirname(self.directory))
        return bool(self.directory) and os.path.exists(tape_path(folder, self.session))

    def wins(self) -> bool:
        """Whether it is the winner of its race: it has succeeded, and no other one has put its returns in place."""
        if self.status is None or self.status.code:
            return False
        return not self.race or Claim(self.race, self.session).take()

    def feed(self, fd: int) -> bool:
        """Read output from `fd`; return False at end of file."""
        data = os.read(fd, CHUNK)
        self.streams[fd].feed(data)
        return bool(data)

    def reap(self) -> None:
        status = procs.reap(self.pid)
        for fd, stream in self.streams.items():
            drain(fd, stream)
            os.close(fd)
        report = b""
        if self.report >= 0:
            with contextlib.suppress(BlockingIOError):  # empty, and a writer still has it open
                report = os.read(self.report, REPORT)
        path = os.path.join(self.directory, "status")
        if self.directory and not report:
            # The child's own record, if there is one: after an exec of this process the report pipe of a proxy is lost.
            with contextlib.suppress(OSError):
                report = regular_file.content(path, REPORT, JOB + 1)
        for fd in (self.report, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self.report = self.pidfd = -1
        self.status = _end(status, report, self.began)
        if self.directory:
            with contextlib.suppress(OSError):
                write_aside(path, recorded(self.status))

    def watch(self) -> bool:
        """Whether the child has a pidfd; open one if needed. If no descriptor is free, a later call tries again."""
        if self.pidfd < 0:
            with contextlib.suppress(OSError):
                self.pidfd = os.pidfd_open(self.pid)
        return self.pidfd >= 0

    def tell(self, number: int) -> None:
        """Send a signal. The pid cannot be reused before this process reaps the child."""
        with contextlib.suppress(OSError):
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)
            elif self.status is None and self.pid:
                os.kill(self.pid, number)

    def hurry(self) -> None:
        """Send TERM without waiting."""
        self.tell(signal.SIGTERM)

    def texts(self) -> list[str]:
        texts = [stream.text() for stream in self.streams.values()]
        self.streams = {}
        return texts

    def forget(self) -> None:
        """In a forked child: close the descriptors of the parent."""
        for fd in (*self.streams, self.pidfd, self.report):
            if fd >= 0:
                os.close(fd)


class Jobs:
    def __init__(self) -> None:
        self.running: list[Job] = []

    def adopt(self, records: Sequence[dict[str, Any]]) -> None:
        """After exec: take over the children of the previous session, which are still children of this process."""
        for record in records:
            job = Job(record["session"], record["intent"], record["host"], record["directory"])
            job.pid = record["pid"]
            try:
                job.pidfd = os.pidfd_open(job.pid)
            except ProcessLookupError:
                continue  # not a child of this process
            except OSError:
                pass  # no free descriptor now: watch() tries again
            procs.own(job.pid)
            self.running.append(job)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"session": j.session, "intent": j.intent, "host": j.host, "directory": j.directory, "pid": j.pid}
            for j in self.running
        ]

    def disown(self) -> None:
        for job in self.running:
            job.forget()
        self.running = []

    def finished(self) -> list[Job]:
        """Reap and return the children that have ended since the last call, without waiting."""
        procs.reap_orphans()
        ended = [job for job in self.running if job.watch() and procs.wait([job.pidfd], 0)]
        for job in ended:
            self._reap(job)
        return ended

    def wait(self, jobs: list[Job], race: bool, signals: Signals) -> Job | None:
        """Wait until all `jobs` have ended or, in a race, until one has succeeded, and return that one.

        There is no timeout here: each child has limits of its own, and the deadline of the tree ends the wait. A
        stopped child is waited for, as by a shell, until it is continued or the deadline passes.
        """
        poll = select.poll()
        poll.register(signals.fd, select.POLLIN)
        owner: dict[int, Job] = {}
        # Also children of other calls of the reply: they block on a full pipe, and `jobs` may wait for them.
        for job in (job for job in self.running if job.streams):
            for fd in (job.pidfd, *job.streams):
                owner[fd] = job
                poll.register(fd, select.POLLIN)
        acknowledged, alarmed = 0, False
        with signals.running():
            while any(job.status is None for job in jobs):
                if race and (won := next(filter(Job.wins, jobs), None)):
                    return won
                with signals.interruptible():
                    ready = poll.poll()
                for fd, _ in ready:
                    if fd == signals.fd:
                        signals.drain()
                        continue
                    job = owner[fd]
                    if job.status is not None:
                        continue
                    if fd != job.pidfd:
                        if not job.feed(fd):
                            poll.unregister(fd)
                        continue
                    for old in (fd, *job.streams):
                        with contextlib.suppress(KeyError):
                            poll.unregister(old)
                    self._reap(job)
                if signals.interrupts > acknowledged:
                    acknowledged = signals.interrupts
                    _tell(jobs, signal.SIGINT)
                if signals.alarm and not alarmed:
                    alarmed = True  # the children must answer now, too
                    _tell(jobs, signal.SIGALRM)
                    _tell(jobs, signal.SIGCONT)
        return next(filter(Job.wins, jobs), None) if race else None

    def end(self, jobs: list[Job]) -> None:
        """End and reap `jobs`, and end all their descendants."""
        left = [job for job in jobs if job.status is None and job.pid]
        below = {
            job.pid: procs.of_session(job.pid) for job in left
        }  # looked up first: afterwards their parent is gone
        _tell(left, signal.SIGTERM)
        _tell(left, signal.SIGCONT)
        watched = [job.pidfd for job in left if job.watch()]
        if not procs.wait(watched, GRACE) or len(watched) < len(left):
            for job in left:
                for pid in procs.tree(job.pid):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
        for job in left:
            procs.end_all(below[job.pid], job.pid, LEFT)
            self._reap(job)

    def _reap(self, job: Job) -> None:
        job.reap()
        self.running.remove(job)


def _tell(jobs: list[Job], number: int) -> None:
    for job in jobs:
        job.tell(number)


def _end(wait_status: int, report: bytes, began: bool) -> Status:
    """Return how a child ended: as its proxy or its own record explains its exit code, else by its wait status.

    Any process of this user can write a record. One with another code is believed only if the child is lost, and one
    that says that the child never started only unless it `began`: its work would be done twice.
    """
    seen = Status.from_wait(wait_status)
    if report and seen.state == "exited":
        with contextlib.suppress(ValueError):
            told = Status.from_json(quickjson.loads(report))
            if told.state == "lost" or (told.code == seen.code and not (began and told.state in MEANING)):
                return told
    return seen
