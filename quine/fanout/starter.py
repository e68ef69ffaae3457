"""Jobs of a batch as this machine's node is given them: where they run, with which surroundings, and their stdin."""

from __future__ import annotations

import os

from quine.base.cli_options import environment, limits
from quine.base.errors import NOT_STARTED, Failure, Misconfigured
from quine.fanout.cleanup import Cleanup
from quine.fanout.tasks import Task
from quine.files.select import Services
from quine.jobs.client import Notes, caller, callers_environment, reach, starting_directory
from transport.lean import signal
from transport.spawn import Spawn
from transport.status import Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from quine.fanout.options import Options
    from quine.fanout.output.results import Report
    from quine.fanout.output.sinks import Sink
    from quine.fanout.tasks import Work
    from quine.staging.proxy import Staging
    from transport.client.batch import Batch


class Starter:
    """Starts tries of tasks. `most` is how many may be under way at one time, 0: as many as the hosts take."""

    agents = False

    def __init__(self, options: Options, batch: Batch, work: Work, sink: Sink, report: Report) -> None:
        spawn = options.spawn
        self._batch = batch
        self._work = work
        self._sink = sink
        self._report = report
        self._options = spawn  # for notes
        self._cleanup = Cleanup(batch, work, sink.say) if options.cleanup else None
        self._notes: dict[str, Notes] = {}
        self._env = {**callers_environment(spawn), **environment(spawn, os.environ)}
        self._environ = dict(os.environ)  # of the services of all jobs
        self._cwd = starting_directory(spawn)
        self._limits = limits(spawn)
        self._where = spawn.on or "local"
        self._context = caller(spawn)
        # One tree: its jobs on a host share a directory, if --cwd names none, and one that is empty goes at the end.
        self._tree = os.environ.get("QUINE_ROOT_SESSION", "") or os.urandom(16).hex()
        self.most = options.number("jobs", 0)
        if not options.jobs and not spawn.elsewhere:
            self.most = os.cpu_count() or 1

    def ready(self) -> bool:
        """Whether one more may be started, apart from `most`."""
        return True

    @property
    def spent(self) -> bool:
        """Whether no more can be started, since a budget is used up."""
        return False

    def finish(self, over: Callable[[], None]) -> int:
        """All items have their ends. Return how many calls of `over` are still to come, for jobs that clean up."""
        return self._cleanup.finish(over) if self._cleanup else 0

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
            tree=self._tree,
            context=context,
        )
        return spawn, Services(self._environ, reach=reach(context)), []

    def start(
        self,
        task: Task,
        avoid: list[str],
        started: Callable[[Task], None],
        ended: Callable[[Task, Status], None],
    ) -> None:
        """Start a try of a task. `ended` is called at once if it cannot be."""
        if task.output:
            task.output.drop()  # of the try before
            task.output = None
        task.begin()
        try:
            task.output = self._report.open(task, self._sink)
            task.stdin = self._work.open_stdin(task.item)
            stage = self._work.stage(task.item)
        except OSError as error:
            why = f"{error.filename}: {(error.strerror or 'cannot be read').lower()}"
            ended(task, Status("unreachable", NOT_STARTED, detail=why))
            return
        except Misconfigured as error:
            ended(task, Status("unreachable", NOT_STARTED, detail=error.detail, hint=error.hint))
            return
        except Failure as failure:  # --results: it ends the batch, and is told of once
            self._sink.fail(failure)
            ended(task, Status("unreachable", NOT_STARTED))
            return
        cleanup, names = self._cleanup, []
        if cleanup and stage:
            names = cleanup.names(task)
            cleanup.begin(names)
            if cleanup.wait(names, lambda: self._send(task, avoid, stage, names, started, ended)):
                return
        self._send(task, avoid, stage, names, started, ended)

    def _send(
        self,
        task: Task,
        avoid: list[str],
        stage: Staging | None,
        names: list[str],
        started: Callable[[Task], None],
        ended: Callable[[Task, Status], None],
    ) -> None:
        output, cleanup = task.output, self._cleanup
        assert output
        if task.ending:  # while it waited
            if cleanup:
                cleanup.end(names, Spawn([]), "", lambda: None)
            ended(task, Status("signaled", 128 + signal.SIGTERM, "TERM"))
            return
        spawn, answers, held = self.make(task, avoid)
        task.entry.id = spawn.id
        if stage:
            spawn = stage.dressed(spawn, answers)
            stage.begin()

        def on_started(_: int, host: str) -> None:
            answers.placed(host)
            task.entry.host = host
            started(task)

        def on_exit(status: Status) -> None:
            answers.close()
            for fd in held:
                os.close(fd)
            status = stage.judged(status) if stage else status

            def over() -> None:
                ended(task, status)

            def clean() -> None:
                if cleanup and stage:
                    task.ending = True
                    cleanup.end(names, spawn, (task.running and status.host) or "", over)
                else:
                    over()

            if stage and stage.brings(status):
                self._bring(task, stage, spawn, status, clean)
            else:
                clean()

        task.job = output.job = self._batch.start(
            spawn, task.stdin, output.write, on_started, on_exit, self._note, answers
        )

    def _bring(
        self,
        task: Task,
        stage: Staging,
        spawn: Spawn,
        status: Status,
        then: Callable[[], None],
    ) -> None:
        """Bring back the returns of a job that has ended, by another job."""
        taking = stage.taking()
        task.ending = True  # it has ended: no timeout and no signal is for it

        def on_exit(sent: Status) -> None:
            taking.end(sent)
            over()

        def over() -> None:
            taking.close()
            stage.brought(taking, status)
            then()

        def on_output(stream: int, data: memoryview) -> int | None:
            return task.output.write(stream, data) if task.output and stream == 2 else None

        try:
            taking.begin()
        except OSError as error:
            taking.failure = str(error)
            over()
            return
        task.job = self._batch.start(
            stage.sender(spawn, status), on_output=on_output, on_exit=on_exit, services=taking.services
        )

    def _note(self, note: dict[str, object]) -> None:
        """Tell of a link that is lost; that jobs wait for a slot is usual here."""
        if note.get("waiting"):
            return
        host = str(note.get("host"))
        if host not in self._notes:
            self._notes[host] = Notes(self._options, raw=False, say=self._sink.say)
        self._notes[host].hear(note)
