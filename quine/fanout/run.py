"""The run of a batch: items are started as there is room, their ends are judged, and the output goes its way.

Laws
1. One loop, and nothing that grows with the number of items, but the hashes of a log that is resumed. Threads answer
   the requests of jobs (`Batch`), and prepare files; all else is called from the loop.
2. An item is read when there is room for its job, and not before, unless a job of a run before waits for its item, or
   has names over there until that is read.
3. An item that was not started is tried again on another host. With --retries one that failed, too; one that was lost
   only with --idempotent, and one that was denied never.
4. ^C once: no more items are started. Twice, or another signal: all jobs get TERM, then KILL, then are not waited for;
   with a log --resume asks for their ends.
5. An output that cannot be kept ends the batch; finished outputs are passed on, but not after a line that cannot be
   logged. Where stdout itself cannot be written it ends at once. With a log the jobs that run then go on, for --resume.
"""

from __future__ import annotations

import time

from quine.base import errors
from quine.fanout import outcome
from quine.fanout.input.intake import Intake
from quine.fanout.joblog import RUNNING, UNRETURNED
from quine.fanout.messages import Messages
from quine.fanout.outcome import DONE, LOST, NEVER
from quine.fanout.progress import LOAD, READER, SLOT
from quine.fanout.retries import Retries
from quine.fanout.timers import Timeout, Timers
from quine.fanout.under_way import UnderWay
from quine.jobs.adoption import Orphans
from transport.lean import signal
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from quine.fanout.input.items import Items
    from quine.fanout.joblog import Joblog
    from quine.fanout.options import Options
    from quine.fanout.output.results import Report
    from quine.fanout.output.sinks import Sink
    from quine.fanout.starter import Starter
    from quine.fanout.tasks import Task, Work
    from quine.fanout.view import View
    from quine.jobs.adoption import Adopted
    from transport.client.batch import Batch

WAITING = 32  # jobs that wait for a host to take them, where -P does not bound them
UNRECORDED = 4096  # items whose output waits: with a log their hosts keep their ends
LOOK = 0.5  # seconds until a place for an agent is looked for again, if none of ours ends before
LONGEST = 3600.0  # seconds of one wait for events: poll takes no more than 24 days


class Run:
    """The items of one command line under way."""

    def __init__(
        self,
        options: Options,
        batch: Batch,
        starter: Starter,
        work: Work,
        items: Items,
        sink: Sink,
        report: Report,
        log: Joblog | None,
        view: View,
    ) -> None:
        self._options = options
        self._batch, self._starter, self._sink, self._report = batch, starter, sink, report
        self._log, self._view, self._progress = log, view, view.progress
        self._torn = False  # the log: it tells of the runs before, and takes no more lines
        self.tally = view.progress.tally
        self._halt, self._hosts = outcome.Halt(options.halt), outcome.Hosts()
        self._bounded, self._most = starter.most > 0, starter.bound()  # by -P
        share = options.share("timeout")
        self._timeout = Timeout(0.0 if share else options.seconds("timeout"), share, view.progress.median)
        self._delay, self._next_start, self._timers = options.seconds("delay"), 0.0, Timers()
        self.at = self._timers.at
        self._intake = Intake(items, batch, work.task, self._leaves_out, self.at, view.counts)
        self._again = Retries(options, self._timers)
        self._orphans = Orphans(self, batch, starter, log.journal) if log else None
        starter.files.repeats, starter.files.at = self._repeats, self.at
        starter.heard = lambda host, note: self._progress.linked(host, note, time.monotonic())
        self._messages = Messages(sink, options.spawn.quiet)
        self.unfinished = self._messages.unfinished
        self._under_way = UnderWay(starter, self._progress, self._timeout, self._messages, self.at)
        self._under_way.most = starter.most and self._most
        if log and (orphans := self._orphans):
            self._under_way.held = lambda: log.journal.slots(orphans.elsewhere)
        self.stopped = self.spent = False  # no more items are started; because a budget is used up
        self.ended_by = self._unrecorded = 0  # the signal that stopped them; ended items without a line
        self.fault: Exception | None = None  # of the input, or of what is kept
        self._ending = self._said_waiting = self.killed = False  # killed: by a signal, which ends what runs

    def run(self) -> None:
        """Run until all is over; a second ^C does not wait for outputs to be passed on."""
        self._view.loads.tick(time.monotonic())
        self._under_way.keep_deadline()
        if self._orphans:
            self._orphans.begin()
        while True:
            self._start()
            self.fault = self.fault or self._intake.fault
            self._look_ahead()
            looks = self._orphans and self._orphans.waiting and not self._ending
            waits = self._under_way or self._again or looks
            if not waits and (self._intake.is_over or self.stopped):
                break
            self._turn()
        self._intake.close()
        self._messages.sum_up(self.tally.open)
        self._clean_up()
        self._sink.give_up_order()
        self._report.finish(self._sink)
        while not self._sink.idle and not (self._ending and self.ended_by):
            self._turn()
        self._check()
        self.fault = self.fault or self._report.fault
        self._messages.not_passed_on(self._sink.kept if self._torn else 0)

    def _look_ahead(self) -> None:
        """Read items ahead, as long as jobs of the run before wait for theirs, or have names until those are read."""
        before = self._starter.files.before
        if self.stopped or not self._orphans or not (self._orphans.unread or before):
            return
        self._intake.read_ahead()
        if self._intake.reads_no_more:
            if ids := self._orphans.leave_unread():
                self._messages.left_unread()
                before.stay(ids)
            before.no_more(self._intake.exhausted and not self._intake.fault)

    def _clean_up(self) -> None:
        if self._ending and not self.killed:
            return  # jobs that go on need their files
        left = [None] * self._starter.finish(lambda: left.pop())
        while left and not self._ending:
            self._turn()

    def _turn(self) -> None:
        now = time.monotonic()
        due = min(self._timers.due, self._timeout.due, self._view.due, now + LONGEST)
        self._batch.turn(max(0.0, due - now))
        now = time.monotonic()
        self._timers.tick(now)
        for task in self._timeout.late(now):
            self._under_way.time_out(task)
        self._sink.pump()
        self._check()
        self._intake.count(self._progress)
        self._progress.under_way = len(self._under_way) + len(self._again) + len(self._intake.ahead)
        self._progress.waits = self._waits_for()
        self._view.tick(now)

    def _waits_for(self) -> str:
        """Return for what the batch waits that is none of its jobs; "" if it does not."""
        if self._sink.clogged or (self._sink.stopped and not self._sink.in_line):
            return READER
        start = LOAD if self._view.loads.blocked else SLOT if self._batch.is_full else ""
        return "" if self._progress.running else start

    def _check(self) -> None:
        """Raises OSError if stdout cannot be written; any other error of outputs and of the log ends the batch."""
        try:
            self._sink.check()
        except errors.Failure as failure:
            if not self.fault:
                self.fault = failure
                self._messages.say(f"stopped: {failure.detail}; {self.text()}")
            self._leave_all()

    # -- starts ------------------------------------------------------------------------------------

    def _room(self) -> bool:
        # With -k all that is held may wait for an item that is to be tried again.
        holds = (self._sink.holding or self._unrecorded >= UNRECORDED) and not self._again.ready
        if self.stopped or holds or self._sink.clogged or len(self._under_way) >= self._most:
            return False
        adopts = self._orphans and self._orphans.first
        return not adopts and (self._bounded or self._batch.waiting < WAITING)

    def _start(self) -> None:
        """Start what there is room for."""
        while self._room():
            now = time.monotonic()
            if now < self._next_start:
                if not self._again.ready and (task := self._intake.next()):
                    self._again.ready.append(task)  # behind the last item there is nothing to wait for
                return
            task = self._again.ready.popleft() if self._again.ready else self._intake.next()
            if task is None:
                return
            if (spent := self._starter.spent) or self._view.loads.blocked or not self._starter.ready():
                self._again.ready.appendleft(task)
                if spent:
                    self.spent = True
                    self._messages.say(f"stopped: the budget of the batch is spent; {self.text()}")
                    self._start_no_more()  # and those that were not started are no failures
                else:
                    self._pause(now + LOOK)
                return
            if self._delay:
                self._pause(now + self._delay)
            self._try(task)

    def _pause(self, until: float) -> None:
        self._next_start = until
        self.at(until, lambda: None)

    def _leaves_out(self, task: Task) -> bool:
        """Leave out an item that has its end from a run before, or is looked for; False if it is to be run."""
        self._progress.read = task.item.number
        self._report.name(task)
        kind, id = self._log.found(task.entry, self._messages.note) if self._log else ("", "")
        if not kind:
            return False
        if id and self._log:
            task.recall(self._log.journal.numbers(id))
        if kind == RUNNING and self._orphans:
            self._orphans.bind(task, id)
        elif kind == UNRETURNED:
            self._under_way.go_on(task)
            self._starter.fetch(task, id, self._ended)
        else:
            self._progress.skipped += 1
            self.tally.lost_before += kind == LOST
            self._sink.skip(task.item.number)
        return True

    def _try(self, task: Task) -> None:
        """Start one try of an item."""
        self._under_way.take(task)
        avoid = [*task.failed_on, *self._hosts.aside(time.monotonic())]
        avoid += self._view.loads.avoid * (len(avoid) + 1)  # as if each had failed more often than any other
        self._starter.start(task, avoid, self._started, self._ended)

    def adopt(self, task: Task, adopted: Adopted) -> None:
        """Go on with a try that runs already, or has ended."""
        self._under_way.go_on(task)
        if not self._starter.adopt(task, adopted, self._started, self._ended):
            self._under_way.give(task)
            task.leave()
        if self._ending and task in self._under_way:  # it was found too late
            (self._under_way.end if self.killed else self._under_way.leave)(task)

    def missed(self, task: Task, never: bool, silent: list[str] | None = None) -> None:
        """See `Owner` of `adoption`. An item that a silent host may have is left to the next run, which asks that."""
        self._starter.give_names(task, not never)
        task.entry.kind = NEVER if never else LOST
        job, idempotent = task.job, self._options.spawn.idempotent  # None: it is of the run before
        if silent and (self.stopped or not idempotent):
            self.tally.open += 1
            self._messages.unheard(silent)
            self._sink.skip(task.item.number)
            task.leave()
        elif not self.stopped and (never or (job is None and idempotent)):
            if never:
                task.unstarted += 1
                self._starter.withdrawn(task)
            self._again.ready.append(task)
        elif job is None:
            if not never:
                self._messages.lost(task.item.number, task.entry.host)
            self._final(task)
        else:
            self._judge(task, outcome.missed(never, job.host))

    def _started(self, task: Task) -> None:
        task.started()
        self._timeout.started(task)
        self._progress.started(task.entry.host, task.began)
        self._say_waiting()

    # -- ends --------------------------------------------------------------------------------------

    def _ended(self, task: Task, status: Status) -> None:
        self._under_way.give(task)
        if self._orphans and task.is_cut(status) and (task.halted or self._orphans.sever(task)):
            task.running = False
            (task.leave if task.halted else task.release)()
            return
        if task.unbegun:  # which the host of its job has told
            self.missed(task, True)
            return
        self._starter.give_names(task, task.is_cut(status))
        if task.never_began(status):
            self._progress.taken_back += 1
            self._starter.drop(task)
            return
        if task.adopted and status.state == "unreachable":  # by us; it had begun
            status = Status("lost", errors.LOST, host=status.host, detail=status.detail)
        self._judge(task, status)

    def _kind(self, task: Task, status: Status) -> str:
        return outcome.kind_of(status, task.timed_out, self._starter.agents, task.left)

    def _repeats(self, task: Task, status: Status) -> bool:
        return not self.stopped and self._again.may(task, status, self._kind(task, status))

    def _judge(self, task: Task, status: Status) -> None:
        broken = task.output and task.output.broken  # lost, also if it was ended for that before its own end
        kind, now, ran = LOST if broken else self._kind(task, status), time.monotonic(), task.running
        self._progress.ended(task.entry.host if ran else status.host, kind, task.began if ran else None, now)
        task.ended(status, kind)
        if kind == NEVER:
            task.unstarted += 1
            self._starter.withdrawn(task)
        if self._hosts.ended(status.host, kind, now):
            self._batch.recall(status.host)
            self._messages.set_aside(status)
        if status.left and not (self._options.spawn.files or self._options.spawn.returns):
            self._messages.left(status)
        if not self.stopped and self._again.may(task, status, kind):
            self._again.add(task, status.host, kind)
            return
        if status.detail and not broken:
            self._messages.fault(task.item.number, status.host, status.detail, status.hint)
        self._final(task)

    def _final(self, task: Task) -> None:
        """An item has its end."""
        self.tally.add(task.entry.kind, task.entry.code)
        if task.entry.kind != DONE:
            self._messages.not_done(task)
        self._unrecorded += 1
        self._progress.final(time.monotonic())
        self._starter.files.final(task)
        self._report.pass_on(task, self._sink, lambda: self._written(task))
        if not self.stopped and self._halt.reached(self.tally):
            self._start_no_more()
            self._messages.note(f"halted: {self.text()}")
            if self._halt.now:
                self._under_way.end_all()

    def _written(self, task: Task) -> None:
        """Its output was passed on."""
        self._unrecorded -= 1
        if not self._log:
            return
        try:
            if not self._torn:
                self._torn = True  # if this fails: nothing is written behind a line that is torn
                self._log.end(task.entry, time.monotonic())
                self._torn = False
                task.forget()
        finally:
            if self._torn:
                self._messages.unlogged(task)

    def _stop_all(self) -> None:
        self._ending = True
        self._start_no_more()
        self._under_way.end_all()
        if self._orphans:
            self._orphans.leave(self.killed)

    def _leave_all(self) -> None:
        """Leave the jobs that their hosts keep to --resume; end the others."""
        self._under_way.leave_kept()
        self._stop_all()

    def signalled(self, number: int) -> None:
        """Take a signal that this process got."""
        if number == signal.SIGUSR1:
            for line in self._view.state(time.monotonic()):
                self._messages.say(line)
            return
        gently = number == signal.SIGINT and not self.ended_by
        if self._ending:
            self._under_way.abandon()
        self.ended_by = number
        if gently:
            self._start_no_more()
            self._say_waiting()
            return
        if not self.killed:
            self._under_way.give_up_files(time.monotonic())
        self.killed = True
        self._stop_all()

    def _say_waiting(self) -> None:
        """Say once what ^C waits for. A job can have begun and not been heard of at that time."""
        due = self.ended_by == signal.SIGINT and not (self.killed or self._said_waiting)
        if due and (left := sum(task.running for task in self._under_way)):
            self._said_waiting = True
            self._messages.say(f"waiting for {left} jobs; ^C again ends them")

    def text(self) -> str:
        """The state of the batch in a line."""
        return ", ".join(filter(None, (self.tally.text(), f"{self._progress.running} running")))

    def _start_no_more(self) -> None:
        """The items that were to be tried again have their ends as they are."""
        self.stopped = True
        for task in self._again.drop():
            if task.tries:
                self._final(task)
            else:
                self._progress.taken_back += 1
        self._under_way.withdraw()
