"""The jobs of one executor, or of one `quine.run`: their starts, the tries on other hosts, and their ends.

Laws
1. One thread at a time, and one connection for all jobs. No job has a thread or a process here.
2. A job is started when there is room for it: `most` at one time, or as many as the hosts take.
3. A job that was not started is tried again, on another host if there is one, as long as `starts` allows: nothing ran.
   A job that ran is never repeated.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any
from weakref import ref

from quine.base import backoff
from quine.fanout.outcome import NEVER, Hosts, kind_of
from quine.fanout.timers import Timers
from quine.files.select import Services
from quine.jobs.client import Notes, reach
from quine.jobs.staged import StagedJob
from transport.client.batch import Batch
from transport.lean import deque, signal
from transport.spawn import Spawn
from transport.status import DENIED, NOT_STARTED, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from quine.base.cli_options import RunOptions
    from quine.python.task import Task
    from quine.remote.crowd import Crowd

WAITING = 32  # jobs that wait for a host to take them, where `most` does not bound them
MOST = 4096  # jobs at one time, where nothing else bounds them
GRACE = 5.0  # seconds between TERM and KILL
PATIENCE = 5.0  # seconds after KILL in which the end of a job is waited for
LOOK = 0.5  # seconds until a place among the agents of the tree is looked for again
# Seconds before a host that failed to start a job is tried again with it.
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0

log = logging.getLogger("quine")


class Crew:
    """`most` jobs at one time, 0: as many as the hosts take. `starts`: attempts to start one of them."""

    def __init__(self, options: RunOptions, most: int = 0, starts: int = 1) -> None:
        self._options = options
        self._most = most
        self._starts = starts
        self._crowd: Crowd | None = None  # makes the agents, once there are missions
        self._hosts = Hosts()
        self._queues: dict[bool, deque[Task]] = {False: deque(), True: deque()}  # of commands, and of agents
        self._tasks: dict[Future[Any], Task] = {}  # all that have not ended
        self._running: dict[Task, None] = {}  # those that were given to the batch
        self._timers = Timers()
        self._next_look = 0.0
        self._notes: dict[str, _Logged] = {}
        self._batch = Batch(on_note=self._note, on_refused=self._refused, bounded=not most)

    @property
    def idle(self) -> bool:
        return not self._tasks

    def wake(self) -> None:
        """End a `turn`, from any thread."""
        try:
            os.write(self._batch.waker, b"\0")
        except BlockingIOError:
            pass  # it is full: the turn ends anyway

    def close(self) -> None:
        """Give up all jobs, without an end for them."""
        self._batch.close()
        if self._crowd:
            self._crowd.close()
            self._crowd = None

    # -- the loop ----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Start what there is room for, wait for something to happen, and handle it."""
        self._start()
        if self.idle:
            return
        self._batch.turn(self._timers.pause(time.monotonic()))
        self._timers.tick(time.monotonic())

    def look(self) -> None:
        """Notice that the node has ended while nothing was under way."""
        self._batch.turn(0.0)

    def fail(self, error: BaseException) -> None:
        """A turn has failed: give up all jobs, and this is the end of them."""
        try:
            self.close()
        except Exception:  # the same defect; whoever waits for a job must hear of its end all the same
            log.exception("the connection of a failed executor cannot be closed")
        for task in list(self._tasks.values()):
            self._end(task, error)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Have `call` called in a turn, at a time of the monotonic clock."""
        self._timers.at(when, call)

    # -- jobs --------------------------------------------------------------------------------------

    def add(self, task: Task) -> None:
        self._tasks[task.future] = task
        self._queue(task)

    def _queue(self, task: Task) -> None:
        self._queues[isinstance(task.args, str)].append(task)

    def _room(self, most: int) -> bool:
        if len(self._running) >= (most or MOST):
            return False
        return most > 0 or self._batch.waiting < WAITING

    def _start(self) -> None:
        commands, agents = self._queues[False], self._queues[True]
        most = self._most or (0 if self._options.elsewhere else os.cpu_count() or 1)
        while commands and self._room(most):
            self._try(commands.popleft())
        while agents and self._room(self._most):
            try:
                crowd = self._agents()
            except Exception as error:  # no guest, or no place for their tapes
                self._end(agents.popleft(), error)
                continue
            if crowd.spent:
                self._over(agents.popleft(), Status("denied", DENIED, detail="the budget is spent"))
            elif crowd.ready():
                self._try(agents.popleft())
            else:
                self._look_later()
                return

    def _look_later(self) -> None:
        now = time.monotonic()
        if self._next_look <= now:  # at most one such timer, however many turns there are
            self._next_look = now + LOOK
            self.at(self._next_look, lambda: None)

    def _agents(self) -> Crowd:
        if self._crowd is None:
            from quine.remote.crowd import Crowd

            self._crowd = Crowd(self._options)
        return self._crowd

    def _try(self, task: Task) -> None:
        if task.future not in self._tasks:
            return  # it was withdrawn
        avoid = [*task.avoid, *self._hosts.aside(time.monotonic())]
        try:
            stdin = task.begin()
            spawn, answers, held = self._make(task, stdin, avoid)
        except Exception as error:  # its stdin cannot be read
            self._end(task, error)
            return
        self._running[task] = None
        number = task.tries
        task.job = StagedJob(
            self._batch,
            spawn,
            answers,
            task.stage,
            stdin,
            self.at,
            task.write,
            lambda _: self._started(task, number),
            lambda status: self._over(task, status),
            self._note,
            held,
        )

    def _make(self, task: Task, stdin: int | bytes, avoid: list[str]) -> tuple[Spawn, Services, list[int]]:
        place = task.place
        if isinstance(task.args, str):
            spawn, answers, held = self._agents().agent(task.args, stdin, avoid, task.facts)
            spawn.env, spawn.cwd, spawn.limits = place.env, place.cwd, place.limits
            spawn.apart(bool(task.stage))
            return spawn, answers, held
        context = {**place.context, "avoid": avoid} if avoid else place.context
        spawn = Spawn(
            task.args,
            where=place.where,
            env=place.env,
            cwd=place.cwd,
            limits=place.limits,
            tree="" if task.stage else place.tree,  # files have a directory of their own
            context=context,
            merged=task.outputs.merged,
        )
        return spawn, Services(place.environ, reach=reach(context)), []

    def _started(self, task: Task, number: int) -> None:
        task.started = time.time()
        if not task.runs():
            self.stop(task)  # cancelled at this moment
            return
        if task.timeout is not None:
            held = ref(task)  # one that has ended, with its outputs, is not kept until then

            def late() -> None:
                if task := held():
                    self.expire(task, number)

            self.at(time.monotonic() + task.timeout, late)
        if isinstance(task.args, str):
            self._keep_deadline(ref(task))

    def _keep_deadline(self, held: ref[Task]) -> None:
        """Stop an agent that outlives the deadline of its tree."""
        left = self._agents().left()
        if (task := held()) is None or left is None:
            return
        if left + GRACE <= 0:
            self.stop(task)
        else:
            self.at(time.monotonic() + left + GRACE, lambda: self._keep_deadline(held))

    def _over(self, task: Task, status: Status) -> None:
        self._running.pop(task, None)
        kind = kind_of(status)
        aside = self._hosts.ended(status.host, kind, time.monotonic())
        if aside:
            log.warning("%s: several starts in a row have failed; set aside for a while", status.host)
        if kind == NEVER and status.host and task.tries < self._starts and not task.ending:
            self._try_again(task, status.host)
        else:
            self._end(task, task.judged(status))

    def _try_again(self, task: Task, host: str) -> None:
        failed = task.avoid.count(host)
        task.avoid.append(host)
        if failed:
            pause = backoff.pause(failed, FIRST_PAUSE, LONGEST_PAUSE, jitter=(0.5, 1))
            self.at(time.monotonic() + pause, lambda: self._queue(task))
        else:
            self._queue(task)

    def _end(self, task: Task, outcome: Any) -> None:
        if self._tasks.pop(task.future, None):
            task.end(outcome)

    # -- ending them -------------------------------------------------------------------------------

    def cancel(self, future: Future[Any]) -> None:
        """End the job of a future, if it has not ended."""
        if task := self._tasks.get(future):
            self.stop(task)

    def expire(self, task: Task, number: int = 0, first: int = signal.SIGTERM) -> None:
        """The time of a job, or of its try `number`, is over."""
        ended = task.future not in self._tasks or task.ending or (task.job and task.job.bringing)
        if not ended and number in (0, task.tries):
            task.timed_out = True
            self.stop(task, first)

    def stop(self, task: Task, first: int = signal.SIGTERM) -> None:
        """End a job: by the signal `first`, then by KILL, then without waiting for it."""
        if task.ending or task.future not in self._tasks:
            return
        task.ending = True
        job = task.job
        if job is None or task not in self._running:
            unsent = Status("unreachable", NOT_STARTED, detail="withdrawn before it was sent")
            self._end(task, task.judged(unsent))
            return
        job.signal(first)
        now = time.monotonic()

        def later(call: Callable[[], None]) -> Callable[[], None]:
            return lambda: call() if task in self._running else None

        if first != signal.SIGKILL:
            self.at(now + GRACE, later(lambda: job.signal(signal.SIGKILL)))
        self.at(now + GRACE + PATIENCE, later(job.abandon))

    # -- notes -------------------------------------------------------------------------------------

    def _note(self, note: dict[str, Any]) -> None:
        """Log that a link is lost, or that the node does not answer; that jobs wait for a slot is usual here."""
        if note.get("waiting"):
            return
        host = str(note.get("host"))
        if host not in self._notes:
            self._notes[host] = _Logged(self._options, raw=False)
        self._notes[host].hear(note)

    def _refused(self, reason: str) -> None:
        if self._crowd:
            self._crowd.refused(reason)


class _Logged(Notes):
    """Notes that go to the log "quine" instead of stderr."""

    def _say(self, text: str) -> None:
        log.warning("%s", text)
