"""Worker threads for many transfers at a time, with their errors and their end.

Laws
1. An error of one path is reported at once, and the others go on; the exit status is then 1. An error that concerns all
   of them ends all of them: a full store, a quota, an origin out of reach.
2. Pending work waits in a short queue: a walk over a million files holds no list of them.
3. When the process is to end (^C, TERM, HUP), no transfer begins, and those under way are given up, not finished.
4. A single transfer costs no thread.
5. The caller's thread shares nothing with the workers but SimpleQueues. The exception of a signal may come between any
   two of its steps; in a Condition, thus in a Queue, an Event and the start of a Thread, it leaves a lock that is held
   for ever, or becomes "release unlocked lock".
6. Work that is a generator, a task, yields requests to the store. If that is reached over a link, the tasks of a worker
   share one pipeline: a request waits for no answer to another one, however many files there are.
"""

from __future__ import annotations

import errno
import time

from quine.base.errors import FAILED, LOST, NOT_STARTED, OK, Failure, complain
from quine.files.api import OutcomeUnknown
from quine.files.cli.output import escaped
from quine.files.cli.progress import Progress
from transport.lean import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from queue import SimpleQueue
    from typing import Any, Self

    from quine.files.api import Pipeline, Request, Tier

    Task = Generator[Request, Any, Any]  # gets the result of each request that it yields
    Work = Callable[..., Task | None]

JOBS = 8
MOST = 64  # transfers at one time: each is a stream of its own over the link
MOST_SAID = 10  # errors of one command that are printed
LET_GO = 3.0  # seconds that transfers under way have to give up
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
UNREACHED = (
    errno.ENOTCONN, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EHOSTUNREACH, errno.ENETUNREACH,
    errno.ENETDOWN, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.ESHUTDOWN,
)  # fmt: skip
HINTS = {
    **dict.fromkeys(UNREACHED, "QUINE_FS names the store, and who opens it (the origin) has to reach it"),
    errno.ENOTCONN: "",
    errno.EDQUOT: "QUINE_FS_QUOTA, at the origin, is what this tree may put; 0 = no limit",
}


class Stopped(Exception):
    """A transfer was given up because the process ends."""


def words(problem: OSError) -> tuple[str, str]:
    """Return (message, hint) for an error; the hint may be ""."""
    text = (problem.strerror or str(problem) or type(problem).__name__).strip()
    text = text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
    name = problem.filename
    if isinstance(name, (bytes, str)) and name != "":
        import os

        text = f"{escaped(os.fsdecode(name))}: {text}"
    elif name == "":
        text = f"/: {text}"
    return text, HINTS.get(problem.errno or 0, "")


def failure(problem: OSError) -> Failure:
    """The Failure that ends the process because of an error."""
    text, hint = words(problem)
    if isinstance(problem, OutcomeUnknown):
        return Failure(LOST, text, "look whether it was done before it is done again")
    return Failure(NOT_STARTED if problem.errno in UNREACHED else FAILED, text, hint)


def once(request: Request) -> Task:
    """The task of one request."""
    yield request


def at_once(task: Task | None, tier: Tier) -> None:
    """Run a task to its end, one operation after the other. Raises as the task does."""
    answer: object = None
    while task and (request := _step(task, answer)):
        answer = _outcome(tier.perform, request)


def _step(task: Task, answer: object) -> Request | None:
    """Run a task to its next request; None at its end. An answer that is an error is raised in the task."""
    try:
        return task.throw(answer) if isinstance(answer, OSError) else task.send(answer)
    except StopIteration:
        return None


def _outcome(what: Callable[..., object], *args: object) -> object:
    try:
        return what(*args)
    except OSError as problem:
        return problem


class _Lane:
    """The tasks of one worker. Each goes on when the answer to its request has come, in the order of the requests."""

    def __init__(self, pipeline: Pipeline, failed: Callable[[OSError], None]) -> None:
        self._pipeline = pipeline
        self._failed = failed
        self._waiting: deque[Task] = deque()

    def go(self, task: Task, answer: object = None) -> None:
        """Run a task to its first request. If the pipeline is full, tasks whose answers are read go on first."""
        ready: deque[tuple[Task, object]] = deque([(task, answer)])
        while ready:
            task, answer = ready.popleft()
            try:
                request = _step(task, answer)
            except OSError as problem:
                self._failed(problem)
                continue
            if request:
                while self._pipeline.full(request):
                    ready.append(self._answered())
                self._pipeline.send(request)
                self._waiting.append(task)

    def _answered(self) -> tuple[Task, object]:
        return self._waiting.popleft(), _outcome(self._pipeline.answer)

    def finish(self) -> None:
        """Run all tasks to their ends."""
        while self._waiting:
            self.go(*self._answered())
        self._pipeline.end()

    def close(self) -> None:
        self._pipeline.close()


class Crew:
    """A pool of worker threads. A context manager; call `finish` in it, which waits and returns the exit status."""

    def __init__(
        self, jobs: int = JOBS, progress: Progress | None = None, tier: Tier | None = None, far: bool = True
    ) -> None:
        """`tier` is the store of tasks. Without `far` each of their requests is done before the next task begins."""
        self.jobs = jobs
        self.progress = progress or Progress(quiet=True)
        self.failures = 0
        self.far = far and tier is not None and tier.pipeline() is not None  # tasks go through pipelines
        self._tier = tier
        self._first: tuple[Work, tuple[Any, ...]] | None = None
        self._lane: _Lane | None = None  # that of the caller's own thread
        self._queue: SimpleQueue[tuple[Work, tuple[Any, ...]] | None] | None = None  # None: a worker ends
        self._room: SimpleQueue[None]  # one for each item that the queue may still take
        self._ended: SimpleQueue[None]  # one for each worker that has ended
        self._workers = 0  # not known to have ended
        self._stop = False
        self._fatal: BaseException | None = None

    # -- for the work itself -------------------------------------------------------------------------

    def tick(self, size: int) -> None:
        """Report that `size` bytes were moved. Raises Stopped."""
        if self._stop:
            raise Stopped
        self.progress.add(size)

    def failed(self, problem: OSError) -> None:
        """Report and count the error of one path. Raises Failure if it concerns all of them."""
        if problem.errno in FULL or problem.errno in UNREACHED:
            raise failure(problem)
        self.failures += 1
        if self.failures <= MOST_SAID:
            self.progress.clear()
            complain(*words(problem))

    # -- for the caller that hands out work ----------------------------------------------------------

    def do(self, what: Work, *args: Any) -> None:
        """Call `what`, now or later in a worker, and run the task that it returns.

        An OSError that it raises is the failure of that call alone.
        """
        self._raise()
        if self._queue is None:
            if self._first is None and self.jobs > 1:
                self._first = (what, args)
                return
            if self.jobs == 1:
                self._lane = self._lane or self._opened()
                self._run(what, args, self._lane)
                self._raise()
                return
            self._begin()
        assert self._queue is not None
        self._room.get()
        self._queue.put((what, args))

    def wait(self) -> None:
        """Wait until all work is done. Raises Failure, and an exception that ended a worker."""
        if self._queue is None and self._first is not None:
            (what, args), self._first = self._first, None
            self._run(what, args)
        lane, self._lane = self._lane, None
        self._end(lane)
        self._dismiss()
        while self._workers:
            self._ended.get()
            self._workers -= 1
        self._queue = None
        self.progress.clear()
        self._raise()

    def finish(self) -> int:
        """Wait until all work is done and return the exit status."""
        self.wait()
        if self.failures > MOST_SAID:
            complain(f"{self.failures - MOST_SAID} more went wrong")
        return FAILED if self.failures else OK

    def _begin(self) -> None:
        import _thread
        from queue import SimpleQueue

        self._queue, self._room, self._ended = SimpleQueue(), SimpleQueue(), SimpleQueue()
        assert self._first is not None
        self._queue.put(self._first)
        self._first = None
        for _ in range(2 * self.jobs - 1):
            self._room.put(None)
        for _ in range(self.jobs):
            self._workers += 1
            try:
                _thread.start_new_thread(self._work, (self._queue,))
            except RuntimeError as refused:  # a limit on processes
                self._workers -= 1
                if not self._workers:
                    raise Failure(FAILED, "no thread can be started", "ulimit -u") from refused
                return

    def _work(self, items: SimpleQueue[tuple[Work, tuple[Any, ...]] | None]) -> None:
        try:
            lane = self._opened()
            while item := items.get():
                self._room.put(None)
                if not self._stop:
                    self._run(*item, lane)
            self._end(lane)
        finally:
            self._ended.put(None)

    def _dismiss(self) -> None:
        """Let the workers end when the queue is empty."""
        for _ in range(self._workers):
            assert self._queue is not None
            self._queue.put(None)

    def _opened(self) -> _Lane | None:
        pipeline = self._tier.pipeline() if self._tier and self.far else None
        return _Lane(pipeline, self.failed) if pipeline else None

    def _end(self, lane: _Lane | None) -> None:
        if lane:
            if not self._stop:
                self._run(lane.finish, ())
            lane.close()

    def _run(self, what: Work, args: tuple[Any, ...], lane: _Lane | None = None) -> None:
        try:
            try:
                task = what(*args)
                if task and lane:
                    lane.go(task)
                elif task:
                    assert self._tier
                    at_once(task, self._tier)
            except OSError as problem:
                self.failed(problem)
        except Stopped:
            return
        except Exception as fatal:
            self._fatal = self._fatal or fatal
            self._stop = True

    def _raise(self) -> None:
        if self._fatal is not None:
            self.progress.clear()
            raise self._fatal

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        self._stop = True
        self._end(self._lane)
        self.progress.clear()
        self._dismiss()
        deadline = time.monotonic() + LET_GO
        while self._workers:
            from queue import Empty

            try:
                self._ended.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return  # the threads wait for the link; they end with the process, and their transfers with them
            self._workers -= 1
