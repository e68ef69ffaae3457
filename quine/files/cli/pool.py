"""Worker threads for many transfers at a time, with their errors and their end.

Laws
1. An error of one path is reported at once, and the others go on; the exit status is then 1. An error that concerns all
   of them ends all of them: a full store, a quota, an origin out of reach.
2. Pending work waits in a short queue: a walk over a million files holds no list of them.
3. When the process is to end (^C, TERM, HUP), no transfer begins, and those under way are given up, not finished.
4. A single transfer costs no thread.
"""

from __future__ import annotations

import errno
import time

from quine.base.errors import FAILED, LOST, NOT_STARTED, OK, Failure, complain
from quine.files.api import OutcomeUnknown
from quine.files.cli.output import Hungup, escaped
from quine.files.cli.progress import Progress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import queue
    import threading
    from collections.abc import Callable
    from typing import Any, Self

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
    errno.EDQUOT: "QUINE_FS_QUOTA, at the origin, is what this tree may put",
}


class Stopped(Exception):
    """A transfer was given up because the process ends."""


def words(problem: OSError) -> tuple[str, str]:
    """Return (message, hint) for an error; the hint may be ""."""
    text = (problem.strerror or str(problem) or type(problem).__name__).strip()
    text = text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text
    name = problem.filename
    if isinstance(name, bytes | str) and name != "":
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


class Crew:
    """A pool of worker threads. A context manager; call `finish` in it, which waits and returns the exit status."""

    def __init__(self, jobs: int = JOBS, progress: Progress | None = None) -> None:
        self.jobs = jobs
        self.progress = progress or Progress(quiet=True)
        self.failures = 0
        self._first: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        self._queue: queue.Queue[tuple[Callable[..., None], tuple[Any, ...]] | None] | None = None
        self._threads: list[threading.Thread] = []
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

    def do(self, what: Callable[..., None], *args: Any) -> None:
        """Call `what`, now or later in a worker. An OSError that it raises is the failure of that call alone."""
        self._raise()
        if self._queue is None:
            if self._first is None and self.jobs > 1:
                self._first = (what, args)
                return
            if self.jobs == 1:
                self._run(what, args)
                self._raise()
                return
            self._begin()
        assert self._queue is not None
        self._queue.put((what, args))

    def wait(self) -> None:
        """Wait until all work is done. Raises Failure, and an exception that ended a worker."""
        if self._queue is None and self._first is not None:
            (what, args), self._first = self._first, None
            self._run(what, args)
        for _ in self._threads:
            assert self._queue is not None
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads, self._queue = [], None
        self.progress.clear()
        self._raise()

    def finish(self) -> int:
        """Wait until all work is done and return the exit status."""
        self.wait()
        if self.failures > MOST_SAID:
            complain(f"{self.failures - MOST_SAID} more went wrong")
        return FAILED if self.failures else OK

    def _begin(self) -> None:
        import queue
        import threading

        self._queue = queue.Queue(2 * self.jobs)
        assert self._first is not None
        self._queue.put(self._first)
        self._first = None
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.jobs)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        assert self._queue is not None
        while item := self._queue.get():
            if not self._stop:
                self._run(*item)

    def _run(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            try:
                what(*args)
            except OSError as problem:
                self.failed(problem)
        except Stopped:
            return
        except (Exception, Hungup) as fatal:
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
        self.progress.clear()
        deadline = time.monotonic() + LET_GO
        import queue

        while self._queue is not None and any(thread.is_alive() for thread in self._threads):
            if time.monotonic() > deadline:
                return  # the threads wait for the link; they end with the process, and their transfers with them
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                try:
                    self._queue.get_nowait()
                except queue.Empty:
                    pass
            time.sleep(0.01)
