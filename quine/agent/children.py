"""The forked children of a process: their pipes, their end, their record.

Laws
1. A child's end is what its pidfd says, never the end of its output: a process it left behind can hold a pipe open.
2. Every child is reaped here, by pid, once.
3. A child that nobody waits for keeps its streams and its status in files, `jobs/<session>/{stdout,stderr,status}`.
4. Ending a child is TERM, a pause, KILL to it and to all its descendants.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import Any, NamedTuple

from quine.agent.capture import CHUNK, Capture, drain, quoted
from quine.agent.signals import Signals
from quine.base import dirs, procs
from quine.base.atomic import write_aside
from transport.address import boot_id
from transport.wire import quickjson

GRACE = 5.0  # a child that is ended has a shell and children of its own to end first
LEFT = 1.0  # seconds for what a child left behind, where another program had taken its place
REPORT = 1 << 16
# what a guest may conclude, and must not
MEANING = {
    "lost": "its work may have happened, in whole or in part: look before it is done again",
    "unreachable": "it never started",
    "denied": "it never started",
}


class Status(NamedTuple):
    """state as in transport/status.py, code as a shell sees it."""

    code: int
    state: str = "exited"
    signal: str = ""
    detail: str = ""

    def line(self) -> str:
        """What else there is to say than the code."""
        if self.signal:
            return f"[SIGNAL] {self.signal}"
        if self.state == "exited":
            return ""
        # the detail may be another node's word
        said = quoted(f"{self.state}{': ' + self.detail if self.detail else ''}")
        return f"[STATE] {said}; {MEANING[self.state]}" if self.state in MEANING else f"[STATE] {said}"


class Job:
    def __init__(self, session: str, intent: str, host: str, directory: str) -> None:
        self.session = session
        self.intent = intent
        self.host = host
        self.directory = directory  # "" where somebody waits
        self.files: list[str] = []  # what goes to its host, and what is brought back
        self.returns: list[str] = []
        self.pid = 0
        self.pidfd = -1
        self.report = -1
        self.streams: dict[int, Capture] = {}
        self.status: Status | None = None

    def never_started(self, folder: str, parent: str) -> None:
        """Leave its record and its status in a data directory: somebody may ask for it by its id."""
        if self.directory or self.status is None:
            return  # it has a record since it began
        directory = os.path.join(folder, "jobs", self.session)
        with contextlib.suppress(OSError):  # on a full disk the result of the fork tells it all the same
            dirs.make(directory)
            write_aside(os.path.join(directory, "status"), self.status._asdict())
            self._record(directory, parent, 0, 0)

    def record(self, parent: str) -> None:
        """For whoever looks into the directory; on a full disk the child lives all the same."""
        process = procs.look(self.pid)  # it is there, if only as a zombie: nobody but us reaps it
        with contextlib.suppress(OSError):
            self._record(self.directory, parent, self.pid, process.started if process else 0)

    def _record(self, directory: str, parent: str, pid: int, started: int) -> None:
        facts = {
            "session": self.session,
            "pid": pid,
            "started": started,
            "boot_id": boot_id(),
            "begun": round(time.time(), 6),
            "parent": parent,
            "intent": self.intent,
            "host": self.host,
        }
        write_aside(os.path.join(directory, "job"), facts)

    def feed(self, fd: int) -> bool:
        """Take output; False at its end."""
        data = os.read(fd, CHUNK)
        self.streams[fd].feed(data)
        return bool(data)

    def reap(self) -> None:
        status = procs.reap(self.pid)
        for fd, stream in self.streams.items():
            drain(fd, stream)
            os.close(fd)
        told = b""
        if self.report >= 0:
            with contextlib.suppress(BlockingIOError):  # empty, and not closed by all who have it
                told = os.read(self.report, REPORT)
        path = os.path.join(self.directory, "status")
        if self.directory:
            # The child's own word, if it left one: a face's report is lost where we have had another life since.
            with contextlib.suppress(OSError), open(path, "rb") as file:
                told = file.read(REPORT)
        for fd in (self.report, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self.report = self.pidfd = -1
        self.status = _status(status, told)
        if self.directory:
            with contextlib.suppress(OSError):
                write_aside(path, self.status._asdict())

    def watch(self) -> bool:
        """Whether its end can be waited for; where no descriptor is to be had for that, it is tried again later."""
        if self.pidfd < 0:
            with contextlib.suppress(OSError):
                self.pidfd = os.pidfd_open(self.pid)
        return self.pidfd >= 0

    def tell(self, number: int) -> None:
        """Send a signal. The number is its own for as long as nobody but us has reaped it."""
        with contextlib.suppress(OSError):
            if self.pidfd >= 0:
                signal.pidfd_send_signal(self.pidfd, number)
            elif self.status is None and self.pid:
                os.kill(self.pid, number)

    def hurry(self) -> None:
        """TERM now; it is waited for later."""
        self.tell(signal.SIGTERM)

    def texts(self) -> list[str]:
        texts = [stream.text() for stream in self.streams.values()]
        self.streams = {}
        return texts

    def forget(self) -> None:
        """In a forked child: close what is the parent's."""
        for fd in (*self.streams, self.pidfd, self.report):
            if fd >= 0:
                os.close(fd)


class Jobs:
    def __init__(self) -> None:
        self.running: list[Job] = []

    def adopt(self, records: list[dict[str, Any]]) -> None:
        """After exec: the children of the former life are still ours."""
        for record in records:
            job = Job(record["session"], record["intent"], record["host"], record["directory"])
            job.pid = record["pid"]
            try:
                job.pidfd = os.pidfd_open(job.pid)
            except ProcessLookupError:
                continue  # no child of ours
            except OSError:
                pass  # no descriptor is to be had now: see watch()
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
        """Who has ended since the last time this was asked, reaped; does not wait."""
        procs.reap_orphans()
        ended = [job for job in self.running if job.watch() and procs.wait([job.pidfd], 0)]
        for job in ended:
            self._reap(job)
        return ended

    def wait(self, jobs: list[Job], race: bool, signals: Signals) -> Job | None:
        """Until all of these have ended, or in a race until one has succeeded; that one is returned.

        As long as it takes: a child has limits of its own, and the time of the tree ends the waiting. One that was
        stopped is waited for, as a shell would, until somebody lets it go on or the time is over.
        """
        poll = select.poll()
        poll.register(signals.fd, select.POLLIN)
        owner: dict[int, Job] = {}
        # Those of the other calls of the reply as well: a full pipe would stop them, and these may wait for them.
        for job in (job for job in self.running if job.streams):
            for fd in (job.pidfd, *job.streams):
                owner[fd] = job
                poll.register(fd, select.POLLIN)
        heeded, told = 0, False
        with signals.running():
            while any(job.status is None for job in jobs):
                if race and (won := next((job for job in jobs if job.status and not job.status.code), None)):
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
                if signals.interrupts > heeded:
                    heeded = signals.interrupts
                    _tell(jobs, signal.SIGINT)
                if signals.alarm and not told:
                    told = True  # they, too, are to answer now
                    _tell(jobs, signal.SIGALRM)
                    _tell(jobs, signal.SIGCONT)
        return next((job for job in jobs if race and job.status and not job.status.code), None)

    def end(self, jobs: list[Job]) -> None:
        """End these and all that descends from them; reaps them."""
        left = [job for job in jobs if job.status is None and job.pid]
        below = {
            job.pid: procs.of_session(job.pid) for job in left
        }  # afterwards nobody knows whose they were
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


def _status(word: int, told: bytes) -> Status:
    """From the wait status, and from what the face of a remote child has reported where it could."""
    if told:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            report = quickjson.loads(told)
            return Status(int(report["code"]), report["state"], report["signal"] or "", report["detail"])
    code = os.waitstatus_to_exitcode(word)
    if code < 0:
        known = -code in list(signal.Signals)
        name = signal.Signals(-code).name.removeprefix("SIG") if known else str(-code)
        return Status(128 - code, "signaled", name)
    return Status(code)
