"""The run of `quine each`: one job a host, each started once, and how they ended.

Laws
1. One loop and one thread. A host that is down, or hangs, holds up no other.
2. Nothing is tried again and nothing is moved: a command is for its host.
3. The first signal is passed on to all of them, KILL follows, and in the end they are not waited for.
4. Outputs are waited for after ^C, and no longer after TERM, HUP or a second signal: their reader may have stalled.
5. An output that cannot be kept, or a stderr that cannot be written, ends no other host. Where stdout cannot be written
   all ends at once.
"""

from __future__ import annotations

import os
import time

from quine.base.cli_options import environment, limits
from quine.base.errors import DEADLINE, DENIED, LOST, NOT_STARTED, Failure, complain, say
from quine.base.host_ranges import fold
from quine.fanout import outcome
from quine.fanout.each.outputs import FoldedOutput, Folds, HostLines, HostOutput
from quine.fanout.options import HOUR
from quine.fanout.output import values
from quine.fanout.output.sinks import Output, Sink
from quine.fanout.timers import Timers
from quine.files.select import Services
from quine.jobs.client import Notes, caller, callers_environment, reach
from transport.lean import signal
from transport.spawn import Spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.fanout.each.options import Options
    from transport.client.batch import Batch, BatchJob
    from transport.status import Status

GRACE = 5.0  # seconds between a signal and KILL, and between KILL and the end of our patience
LONGEST = 3600.0  # seconds of one wait for events: poll takes no more than 24 days
HOME = "~"
# the exit status where a command has ended so somewhere, the first that applies; else it is the largest of all
CODES = {outcome.LOST: LOST, outcome.NEVER: NOT_STARTED, outcome.DENIED: DENIED}


class Visit:
    """One host, from the start of its command to the end."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.began = time.monotonic()
        self.job: BatchJob | None = None
        self.ending = self.timed_out = False


class Run:
    """The hosts of one command line."""

    def __init__(
        self,
        options: Options,
        batch: Batch,
        sink: Sink,
        hosts: list[str],
        command: list[str],
        stdin: int | None,
    ) -> None:
        """`stdin` is a file of which each command gets a copy, from its position on. Raises Misconfigured."""
        spawn = options.spawn
        self._options = options
        self._batch = batch
        self._sink = sink
        self._todo = list(enumerate(hosts, 1))[::-1]
        self._command = command
        self._stdin = stdin
        self._at = os.lseek(stdin, 0, os.SEEK_CUR) if stdin is not None else 0
        self._most, self._seconds = options.most, options.seconds
        self._env = {**callers_environment(spawn), **environment(spawn, os.environ)}
        self._limits = limits(spawn)
        self._context = {**caller(spawn), "timeout": min(self._seconds, HOUR)}
        self._environ = dict(os.environ)
        self._tree = os.environ.get("QUINE_ROOT_SESSION", "") or os.urandom(16).hex()
        self._running: dict[Visit, None] = {}
        self._folds = Folds()
        self._json_limit = values.limit(options.json_limit)
        self._timers = Timers()
        self._faults: dict[tuple[str, str], list[str]] = {}  # message and hint -> hosts
        self._done = 0
        self._kinds: set[str] = set()
        self._largest = 0
        self.ended_by = 0  # the signal that ended it
        self._leaving = False  # it came twice, or was none of ^C
        self.fault: Failure | None = None  # of outputs that were not passed on

    def run(self) -> None:
        """Run until all is over and all output was passed on. Raises OSError if stdout cannot be written."""
        while self._running or (self._todo and not self.ended_by):
            while self._todo and len(self._running) < self._most and not self.ended_by:
                self._start(*self._todo.pop())
            self._batch.turn(self._pause())
            self._tick()
        self._folds.pass_on(self._sink)
        self._sink.give_up_order()
        while not self._sink.idle and not self._leaving:
            self._batch.turn(None)
            self._sink.pump()
            self._check()
        self._check()

    def _check(self) -> None:
        try:
            self._sink.check()
        except Failure as failure:
            self.fault = self.fault or failure
        except OSError as error:
            if error.filename != "stderr":
                raise
            why = (error.strerror or str(error)).lower()
            self.fault = self.fault or Failure(LOST, f"cannot write stderr: {why}")

    def _pause(self) -> float | None:
        return self._timers.pause(time.monotonic(), LONGEST)

    def _tick(self) -> None:
        self._timers.tick(time.monotonic())
        self._sink.pump()
        self._check()

    def _after(self, seconds: float, visit: Visit, call: Callable[[], None]) -> None:
        """Call it after so many seconds, if the command of the host still runs."""
        self._timers.at(time.monotonic() + seconds, lambda: call() if visit in self._running else None)

    # -- one host ----------------------------------------------------------------------------------

    def _start(self, number: int, host: str) -> None:
        visit, output = Visit(host), self._open(number, host)
        answers = Services(self._environ, reach=reach(self._context))

        def on_started(_: int, there: str) -> None:
            visit.began = time.monotonic()
            answers.placed(there)
            if self._seconds:
                self._after(self._seconds, visit, lambda: self._time_out(visit))

        def on_exit(status: Status) -> None:
            answers.close()
            del self._running[visit]
            self._ended(visit, status, output)

        self._running[visit] = None
        output.job = visit.job = self._batch.start(
            Spawn(
                self._command,
                where=host,
                env=self._env,
                cwd=self._options.spawn.cwd or HOME,
                limits=self._limits,
                tree=self._tree,
                context=self._context,
            ),
            None if self._stdin is None else _Copy(self._stdin, self._at),
            output.write,
            on_started,
            on_exit,
            Notes(self._options.spawn, raw=False).hear,
            answers,
        )

    def _open(self, number: int, host: str) -> Output:
        if self._options.fold:
            return FoldedOutput(self._sink, number, host, self._folds)
        if self._options.line_buffer:
            return HostLines(self._sink, number, host.encode())
        output = HostOutput(self._sink, number, host, self._options.tag)
        if self._options.json:
            output.shorten(self._json_limit)
        return output

    def _ended(self, visit: Visit, status: Status, output: Output) -> None:
        kind = outcome.kind_of(status, visit.timed_out)
        seconds = time.monotonic() - visit.began
        code = DEADLINE if kind == outcome.TIMEOUT else status.code
        self._done += 1
        self._kinds.add(kind)
        self._largest = max(self._largest, code)
        if kind != outcome.DONE:
            self._faults.setdefault((self._said(kind, status), status.hint), []).append(visit.host)
        if self._options.spawn.verbose:
            say(f"quine: {visit.host}: {kind}, {code} after {seconds:.3f} s\n")
        facts = {"host": visit.host, "state": kind, "code": code, "signal": status.signal}
        facts |= {"seconds": round(seconds, 3), "detail": status.detail}
        if not self._options.json:
            output.close(lambda: None)
            return
        if cut := values.cut(output.got, self._json_limit):
            self.fault = self.fault or values.fault_of(cut, self._json_limit, visit.host)
        output.close(lambda: None, lambda spool: values.object_line(facts, spool, self._json_limit))

    def _said(self, kind: str, status: Status) -> str:
        if kind == outcome.TIMEOUT:
            return f"not done after {self._seconds:g} s"
        if status.detail:
            return status.detail
        return f"killed by {status.signal}" if status.signal else f"exit status {status.code}"

    # -- the end -----------------------------------------------------------------------------------

    def _time_out(self, visit: Visit) -> None:
        visit.timed_out = True
        self._end(visit, signal.SIGTERM)

    def _end(self, visit: Visit, number: int) -> None:
        """End a command: by this signal, then KILL, then without waiting for it."""
        job = visit.job
        if job is None or visit.ending:
            return
        visit.ending = True
        job.signal(number)
        self._after(GRACE, visit, lambda: job.signal(signal.SIGKILL))
        self._after(2 * GRACE, visit, job.abandon)

    def signalled(self, number: int) -> None:
        """Take a signal that this process got: USR1 asks how it goes, the others end it; a second waits for nothing."""
        if number == signal.SIGUSR1:
            hosts = fold(visit.host for visit in self._running)
            say(f"quine: {self._done} hosts have ended, {len(self._todo)} wait; at work: {hosts}\n")
            return
        for visit in list(self._running):
            if self.ended_by and visit.job:
                visit.job.abandon()
            else:
                self._end(visit, number)
        self._leaving = self.ended_by > 0 or number != signal.SIGINT
        self.ended_by = number

    def tell(self) -> None:
        """Report the hosts where it is not done, those with the same fault once."""
        for (detail, hint), hosts in self._faults.items():
            complain(detail, hint, fold(hosts))

    @property
    def exit_status(self) -> int:
        return next((code for kind, code in CODES.items() if kind in self._kinds), self._largest)


class _Copy:
    """Stdin of one command: the file from a position on, whose own position does not move."""

    def __init__(self, fd: int, at: int) -> None:
        self._fd = fd
        self._at = at

    def __call__(self, room: int) -> bytes:
        data = os.pread(self._fd, room, self._at)
        self._at += len(data)
        return data
