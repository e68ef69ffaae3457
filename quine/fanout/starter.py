"""Jobs of a batch as this machine's node is given them: where they run, with which surroundings, and their stdin."""

from __future__ import annotations

import os
from functools import partial

from quine.base.cli_options import environment
from quine.base.errors import LOST, NOT_STARTED, Failure, Misconfigured
from quine.base.procs import raise_open_files
from quine.fanout import outcome
from quine.fanout.files.files import Files
from quine.fanout.files.names import Noted
from quine.fanout.files.unfetched import host_of
from quine.fanout.load import version_of
from quine.fanout.tasks import Task
from quine.files.select import Services
from quine.jobs.client import Notes, caller, callers_environment, callers_limits, reach, starting_directory
from quine.jobs.staged import let_go
from transport.spawn import Spawn
from transport.status import Status
from transport.writes import is_one_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from quine.fanout.journal import Journal
    from quine.fanout.options import Options
    from quine.fanout.output.results import Report
    from quine.fanout.output.sinks import Sink
    from quine.fanout.tasks import Work
    from quine.jobs.adoption import Adopted
    from quine.staging.caller_side import Staging
    from transport.client.batch import Batch

    Started = Callable[[Task], None]
    Ended = Callable[[Task, Status], None]
    At = Callable[[float, Callable[[], None]], None]  # calls a function at a time

MOST = 4096  # jobs at one time, where -P does not bound them
EACH = 6  # descriptors of a job at most: stdin, two spools, two copies of --results, a place
OTHERS = 400  # descriptors of this process and of outputs that wait for their turn


class Starter:
    """Starts tries of tasks. `most` is how many may be under way at one time, 0: as many as the hosts take."""

    agents = False
    adopts = True  # jobs that outlive this process

    def __init__(self, options: Options, batch: Batch, work: Work, sink: Sink, report: Report) -> None:
        spawn = options.spawn
        self._journal: Journal | None = None
        self._batch, self._work, self._sink, self._report = batch, work, sink, report
        self._options = spawn  # for notes
        self._by_lines = options.line_buffer
        self.files = Files(batch, work, sink.say, options.cleanup, spawn.quiet)
        self.left: Callable[[], float | None] = lambda: None  # seconds that its agents have at most
        self._notes: dict[str, Notes] = {}
        self.heard: Callable[[str, dict[str, object]], None] = lambda *_: None  # a note on the link to a host
        self._env = {**callers_environment(spawn), **environment(spawn, os.environ)}
        self._environ = dict(os.environ)  # of the services of all jobs
        self._cwd = starting_directory(spawn)
        self._limits = callers_limits(spawn)
        self._where = spawn.on or "local"
        apart = options.results or options.json or options.fold or options.joblog
        self._merged = not apart and is_one_file(1, 2)
        self._context = {**caller(spawn), "timeout": options.patience}
        self._inventory: object = None  # the version of it whose hosts are in the journal
        if spawn.job:  # detached: a job waits for this machine as long as a detached agent does
            self._context["detached"] = True
        # One tree: its jobs on a host share a directory, if --cwd names none, and one that is empty goes at the end.
        self.tree = os.environ.get("QUINE_ROOT_SESSION", "") or os.urandom(16).hex()
        # Another batch of it may have other files of these names.
        self.folder = os.urandom(16).hex() if (spawn.files or spawn.returns) and self._cwd is None else ""
        one_each = not (options.jobs or spawn.elsewhere)
        self.most = os.cpu_count() or 1 if one_each else options.number("jobs", 0)

    def bound(self) -> int:
        """How many may be under way at one time, with as many descriptors as this process may have."""
        return min(self.most or MOST, max(1, (raise_open_files(1 << 16) - OTHERS) // EACH))

    def record(self, journal: Journal) -> None:
        """Have jobs outlive this process; those of the next one are in the same directories."""
        self._journal = journal
        self.files.record(journal, self._sink.fail, bool(self._options.files))
        if self._by_lines:
            journal.pass_lines()
        journal.sends_to(self._where)
        self._note_hosts()
        self._context["batch"] = journal.batch
        self.tree, self.folder = journal.tree, self.folder and journal.folder

    def ready(self) -> bool:
        """Whether one more may be started, apart from `most`."""
        return True

    @property
    def spent(self) -> bool:
        """Whether no more can be started, since a budget is used up."""
        return False

    def finish(self, over: Callable[[], None]) -> int:
        """All items have their ends. Return how many calls of `over` are still to come, for jobs that clean up."""
        return self.files.finish(over)

    def close(self) -> None:
        """The batch is over."""

    def make(self, task: Task, avoid: list[str]) -> tuple[Spawn, Services, list[int]]:
        """Return the spawn of a try, its services, and descriptors to be closed after its end."""
        context = {**self._context, "avoid": avoid} if avoid else self._context
        spawn = Spawn(
            self._work.argv(task),
            where=self._where,
            env=self._env,
            cwd=self._cwd,
            limits=self._limits,
            tree=self.tree,
            folder=self.folder,
            context=context,
            merged=self._merged,
        )
        if self._journal:
            spawn.id = self._journal.id_of(task.entry.hash, task.item.number, task.tries)
            spawn.capability, spawn.keep = self._journal.capability(spawn.id), True
        return spawn, Services(self._environ, reach=reach(context)), []

    def start(self, task: Task, avoid: list[str], started: Started, ended: Ended) -> None:
        """Start a try of a task. `ended` is called at once if it cannot be."""
        task.begin()
        try:
            task.output = self._report.open(task, self._sink)
            self._work.check(task)
            task.stdin = self._work.open_stdin(task.item)
            stage = self._work.stage(task.item)
        except (OSError, Misconfigured) as error:
            ended(task, outcome.unstartable(error))
            return
        except Failure as failure:  # --results: it ends the batch, and is told of once
            self._sink.fail(failure)
            ended(task, Status("unreachable", NOT_STARTED))
            return
        if stage is None:
            self._send(task, avoid, None, started, ended)
            return
        task.unsent = refuse = partial(self._unsent, task, ended)
        self.files.begin(task, stage, partial(self._send, task, avoid, stage, started, ended), refuse)

    def give_names(self, task: Task, may_run: bool = False) -> None:
        """Its job has its end, or is not looked for any longer: others may have the names of its files."""
        if may_run:
            self.files.missed(task)
        self.files.give(task)

    def _unsent(self, task: Task, ended: Ended, why: str = "") -> None:
        """The try has its end without a job."""
        task.unsent = None
        self.give_names(task)
        ended(task, Status("unreachable", NOT_STARTED, detail=why))

    def _send(
        self, task: Task, avoid: list[str], stage: Staging | None, started: Started, ended: Ended
    ) -> None:
        spawn, answers, held = self.make(task, avoid)
        output = task.output
        assert output
        if stage:
            spawn = stage.dressed(spawn, answers)
            stage.begin()
        task.entry.id = spawn.id
        on_started, on_exit = self._functions(task, spawn, answers, held, stage, started, ended)
        on_send = partial(self._note_sent, task, spawn, stage) if self._journal else None
        task.unsent = None
        task.job = output.job = self._batch.start(
            spawn, task.stdin, output.write, on_started, on_exit, self._note, answers, on_send
        )
        if self._journal and spawn.keep:
            output.persist(self._journal.output(spawn.id))
            task.job.hold()

    def end(self, task: Task, at: At, running: Mapping[Task, None], leave: Callable[[Task], None]) -> None:
        """End the job of an item because the batch ends. The next run knows of it, also without a line in the log.
        One that its host keeps is left to that run by `leave`, where its end is not heard of in time.
        """
        kept = self._journal is not None and task.job is not None and task.kept is task.job
        if self._journal and kept and not task.settled:
            self._journal.halt(task.sent)
        task.end(at, running, leave if kept else None)

    def drop(self, task: Task) -> None:
        """A job never began: the next run starts its item."""
        self.withdrawn(task)
        if task.output:
            task.output.drop()
        task.release()

    def withdrawn(self, task: Task) -> None:
        """A job has certainly never begun. Where it was another try, the one before is the end of the item."""
        before = task.before[2]
        if self._journal and task.sent != before:  # else this try was not sent
            self._journal.withdrawn(task.sent)
            task.sent = before

    def _note_sent(self, task: Task, spawn: Spawn, stage: Staging | None, goes: bool = True) -> bool:
        """Note a job before it is sent, or that it was given back: see `on_send` of `BatchJob`."""
        journal, entry = self._journal, task.entry
        assert journal
        if not goes:
            self.withdrawn(task)
            task.kept = None
            return True
        task.numbers = numbers = outcome.Numbers(task.item.number, task.item.slot)
        names, renews = Noted.of(stage) if stage else None, entry.renews or ""
        try:
            self._note_hosts()
            journal.start(spawn.id, entry.hash, task.tries, task.sent, renews, names, numbers)
        except Failure as failure:  # it ends the batch, and is told of once
            self._sink.fail(failure)
            return False
        task.sent = spawn.id
        if task.kept:
            task.kept.forget()  # the end of the try before needs no longer be kept
        task.kept = task.job if spawn.keep else None
        return True

    def _functions(
        self,
        task: Task,
        spawn: Spawn,
        answers: Services,
        held: list[int],
        stage: Staging | None,
        started: Started,
        ended: Ended,
    ) -> tuple[Callable[[int, str], None], Callable[[Status], None]]:
        """The functions that are called at the start of a job and at its end."""

        def on_started(_: int, host: str) -> None:
            answers.placed(host)
            self.files.started(task, host)
            task.entry.host = host
            if self._journal:
                try:
                    self._journal.on_host(host or "local", spawn.id)
                except Failure as failure:
                    self._sink.fail(failure)
            started(task)

        def on_exit(status: Status) -> None:
            let_go(answers, held)
            status = stage.judged(status) if stage else status
            end = self._finish
            if task.adopted:
                staged, torn, ended_so = bool(stage and stage.sources), task.adopted.torn, status
                status = outcome.of_adopted(status, torn, staged)
                if staged and not torn and (status is not ended_so or status.state == "signaled"):
                    end = self._ask_begun
            end(task, spawn, status, stage, ended)

        return on_started, on_exit

    def _ask_begun(
        self, task: Task, spawn: Spawn, status: Status, stage: Staging | None, ended: Ended
    ) -> None:
        """Ask the host of a job whose caller died whether its command has begun, and then end the try."""
        from quine.staging import notes

        def on_exit(answer: Status) -> None:
            task.unbegun = (answer.state, answer.code) == ("exited", 0)
            if task.unbegun:
                ended(task, Status("unreachable", NOT_STARTED, host=status.host))
            else:
                self._finish(task, spawn, status, stage, ended)

        probe = self.asking(status.host or "local")
        probe.argv = ["node", "--stage", "unbegun", notes.name_of(spawn.capability)]
        task.over = True
        task.after = job = self._batch.start(probe, on_exit=on_exit)
        job.limit()

    def _finish(self, task: Task, spawn: Spawn, status: Status, stage: Staging | None, ended: Ended) -> None:
        """A job has ended: bring its returns and remove its files, then call `ended`."""
        again = self.files.repeats(task, status)
        note = outcome.Unreturned(task.tries, status.code, status.signal or "", status.host, "", task.numbers)

        def over() -> None:
            if task.unreturned is not None:
                task.entry.unreturned = note._replace(place=task.unreturned)
            ended(task, status)

        self.files.ended(task, spawn, status, over, again)

    def fetch(self, task: Task, id: str, ended: Ended) -> None:
        """Ask for the returns of an item whose job has ended in a run before."""
        assert self._journal
        note = self._journal.unreturned[id]
        task.begin()
        task.tries = task.entry.attempt = note.attempt
        task.entry.id = task.entry.fetched = id
        try:
            stage = self._work.stage(task.item, begun=True)
        except Misconfigured as error:
            task.entry.unreturned = note  # the next run asks for them
            ended(task, outcome.unfetched(error, note))
            return
        assert stage
        stage.place = note.place
        self.files.hold(task, stage, note.host)
        spawn = Spawn(["-"], where=note.host or self._where, env=self._env, context=self._context)
        spawn.cwd, spawn.tree, spawn.folder = note.place or self._cwd, self.tree, self.folder
        self._finish(task, spawn, outcome.noted(note), stage, ended)

    def never_began(self, id: str) -> bool:
        """Whether a job of the run before that is not adopted certainly never began."""
        return False

    def gone(self, id: str, never: bool = True) -> None:
        """No host has a job of the run before, whose item is still to be read; `never`: it certainly never began."""
        self.files.gone(id, never)

    # -- jobs whose client, or its node, has died ----------------------------------------------------

    def _note_hosts(self) -> None:
        """Note the hosts that --on means, before a job is sent: one may leave the inventory with a job that began."""
        if self._inventory != (version := version_of(self._context.get("inventory"))):
            self._inventory = version
            assert self._journal
            for host in self.hosts():
                if host == "local" or host not in self._journal.wheres:
                    self._journal.on_host(host)

    def hosts(self) -> list[str]:
        """The hosts that may have jobs of this batch."""
        from quine.jobs.remote import hosts

        assert self._journal
        return self._journal.all_hosts(lambda where: hosts(where, self._options))

    def asking(self, host: str) -> Spawn:
        """The job that asks the node of a host for its status."""
        env, argv = dict(os.environ) if host == "local" else {}, ["node", "--status", "--json"]
        return Spawn(argv, own=True, where=host, env=env, cwd="~", context={**self._context, "control": True})

    def attach(self, id: str, host: str) -> Adopted:
        """Have a job served here."""
        from quine.jobs.adoption import Adopted

        assert self._journal
        self.files.placed(id, host_of(host))
        spawn = Spawn(["-"], id=id, where=host, tree=self.tree, context=self._context, keep=True, adopt=True)
        spawn.capability = self._journal.capability(id)
        return Adopted(self._batch, spawn, Services(self._environ, reach=reach(self._context)))

    def adopt(self, task: Task, adopted: Adopted, started: Started, ended: Ended) -> bool:
        """Go on with a try of a task that runs already, or has ended. False: its output cannot be had.

        Then its job is left to the next run.
        """
        spawn, answers = adopted.job.spawn, adopted.job.services
        assert self._journal and isinstance(answers, Services)
        task.entry.id = task.sent = spawn.id
        task.adopted, task.kept, task.job = adopted, adopted.job, adopted.job
        task.cut_short = spawn.id in self._journal.halted
        try:
            task.stdin = self._work.open_stdin(task.item)
            stage = self._work.stage(task.item, begun=True)
        except (OSError, Misconfigured) as error:
            adopted.job.abandon()
            why = f"it was running, and its input is not there any more: {error}"
            ended(task, Status("lost", LOST, detail=why))
            return True
        if output := task.output:
            have = output.go_over()
        else:
            try:
                by_lines = self._journal.by_lines and not self._report.shows_whole
                output = task.output = self._report.open(task, self._sink, by_lines)
                output.persist(self._journal.output(spawn.id))
                have = output.restore(by_lines)
            except Failure as failure:
                self._sink.fail(failure)
                adopted.job.go_on()
                return False
        output.job = adopted.job
        fresh, _, held = self.make(task, [])
        # For the job that brings the returns.
        spawn.env, spawn.cwd, spawn.lease, spawn.folder = fresh.env, fresh.cwd, fresh.lease, fresh.folder
        if stage:
            self.files.hold(task, stage, spawn.where)
        on_started, on_exit = self._functions(task, spawn, answers, held, stage, started, ended)
        adopted.bind(task.stdin, have, output.write, output.acknowledge, on_started, on_exit)
        return True

    def _note(self, note: dict[str, object]) -> None:
        """Tell of a link that is lost; that jobs wait for a slot is usual here."""
        if not note.get("waiting"):
            self.heard(host := str(note.get("host")), note)
            self._notes.setdefault(host, Notes(self._options, raw=False, say=self._sink.say)).hear(note)
