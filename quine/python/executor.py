"""`quine.Executor`: many commands and agents, here and on hosts, with the interface of `concurrent.futures.Executor`.

Laws
1. Nothing is pickled. A command is a list of words, a mission is text, and a function is refused.
2. One thread drives all jobs of an executor. It lives while there are jobs, and the interpreter waits for it at its
   exit, as it does for those of a ThreadPoolExecutor. Functions that are called about futures have another thread.
3. An executor belongs to the process that has made it. In a fork of that process it takes nothing.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from subprocess import PIPE, STDOUT
from typing import Any

from quine.base.cli_options import RunOptions
from quine.python.crew import Crew
from quine.python.loop import Loop, held
from quine.python.outputs import Decoding, Outputs
from quine.python.task import Place, Task, command_of, mission_of, stdin_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Literal, TypedDict, Unpack, overload

    from quine.python.result import Result
    from quine.python.task import Word

    class Options(TypedDict, total=False):
        """The arguments of a job beside its command or mission, and the kind of its output."""

        stdin: Any
        files: Iterable[str | os.PathLike[str]]
        returns: Iterable[str | os.PathLike[str]]
        env: Mapping[str, str] | None
        cwd: str | os.PathLike[str] | None
        limits: Mapping[str, str | int] | None
        check: bool
        stderr: Any
        errors: str | None


STARTS = 4  # attempts to start a job, each on another host if there is one


class Job(Future):  # type: ignore[type-arg]
    """The future of a job.

    `cancel` withdraws a job that has not started, and returns True. It ends one that runs, by TERM and five seconds
    later by KILL, and returns False: that job still has a result, which says how it ended.
    """

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop

    def cancel(self) -> bool:
        withdrawn = self.withdraw()
        if self.running():
            self._loop.call(lambda crew: crew.cancel(self), last=True)
        return withdrawn

    def withdraw(self) -> bool:
        """Cancel it as other futures are, which does nothing to one that runs."""
        fresh = not self.cancelled()
        withdrawn = super().cancel()
        if withdrawn and fresh:
            self._loop.call(lambda crew: crew.cancel(self), last=True)
        return withdrawn

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Have `fn` called with the future at its end, in a thread for such functions; or now, if it has its end."""
        if self.done():
            super().add_done_callback(fn)
        else:
            self._loop.callbacks.expect()
            super().add_done_callback(lambda future: self._loop.callbacks.call(fn, future))


class Executor(concurrent.futures.Executor):
    """Runs commands and agents where `on` says.

    on         WHERE: a host, @tag, any; "" for this machine
    slots      jobs at one time; None: as many as the hosts take, and of commands here as many as there are processors
    cwd        directory to start in
    env        added to the environment of a job
    limits     of each command, such as {"as": "2G", "cpu": 60}
    inventory  the file that names the hosts

    model, max_turns, max_depth, max_agents, max_tokens, max_cost and deadline are those of the agents: all that one
    executor starts are one tree, and share its limits. Raises Misconfigured if one of these is wrong.
    """

    def __init__(
        self,
        on: str = "",
        *,
        slots: int | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, str | int] | None = None,
        inventory: str | os.PathLike[str] = "",
        model: str = "",
        max_turns: int | None = None,
        max_depth: int | None = None,
        max_agents: int | None = None,
        max_tokens: int | None = None,
        max_cost: float | None = None,
        deadline: float | None = None,
    ) -> None:
        if slots is not None and slots <= 0:
            raise ValueError("slots must be greater than 0")
        numbers = {
            "max_turns": max_turns,
            "max_depth": max_depth,
            "max_agents": max_agents,
            "max_tokens": max_tokens,
            "max_cost": max_cost,
            "deadline": deadline,
        }
        given = {name: str(value) for name, value in numbers.items() if value is not None}
        options = RunOptions(on=on, inventory=os.fspath(inventory), model=model, **given)
        self._place = Place(options).changed(cwd, env, limits)
        self._agents: Place | None = None
        options = self._place.options
        self._loop = Loop(lambda: Crew(options, slots or 0, STARTS))
        self._lock = threading.Condition()
        self._jobs: weakref.WeakSet[Job] = weakref.WeakSet()
        weakref.finalize(self, self._loop.close)

    if TYPE_CHECKING:

        @overload  # type: ignore[override]
        def submit(
            self,
            command: Iterable[Word] | None = None,
            /,
            *,
            mission: str | None = None,
            timeout: float | None = None,
            text: Literal[False] | None = None,
            encoding: None = None,
            **options: Unpack[Options],
        ) -> Future[Result[bytes]]: ...
        @overload
        def submit(
            self,
            command: Iterable[Word] | None = None,
            /,
            *,
            mission: str | None = None,
            timeout: float | None = None,
            text: Literal[True],
            encoding: str | None = None,
            **options: Unpack[Options],
        ) -> Future[Result[str]]: ...

    def submit(
        self,
        command: Any = None,
        /,
        *others: Any,
        mission: str | None = None,
        timeout: float | None = None,
        text: bool | None = None,
        encoding: str | None = None,
        **options: Any,
    ) -> Future[Any]:
        """Have a command run, or an agent with a mission, and return the future of its Result.

        stdin      bytes, text, the path of a file, or an open file; empty without it
        files      paths that the job has there before it starts, as with `quine run --files`
        returns    patterns that are brought back after its end
        timeout    seconds from its start on
        stderr     PIPE, or STDOUT: of a command both in one, in the order in which it wrote them
        check      an exit status that is not 0 is a CalledProcessError
        text, encoding, errors   as for `subprocess.run`
        cwd, env, limits         beside those of the executor

        A result's errors: NeverStarted, Lost, TimeoutExpired and CalledProcessError; OSError if stdin cannot be read.
        """
        if others:
            command_of(command)  # a function
            raise TypeError("a command is one list of words")
        return self._submit(
            command, mission, timeout, Decoding.of(text, encoding, options.pop("errors", None)), **options
        )

    def _submit(
        self,
        command: Any,
        mission: str | None,
        timeout: float | None,
        decoding: Decoding | None,
        *,
        stdin: Any = None,
        files: Iterable[str | os.PathLike[str]] = (),
        returns: Iterable[str | os.PathLike[str]] = (),
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        limits: Mapping[str, str | int] | None = None,
        stderr: Any = PIPE,
        check: bool = False,
    ) -> Future[Any]:
        if (command is None) == (mission is None):
            raise TypeError("either a command or a mission")
        if stderr not in ((PIPE, STDOUT) if mission is None else (PIPE,)):
            raise ValueError(f"stderr is PIPE, or of a command STDOUT, not {stderr!r}")
        args = command_of(command) if mission is None else mission_of(mission)
        place = self._place if mission is None else self._place_of_agents()
        place = place.changed(cwd, env, limits)
        job = Job(self._loop)
        task = Task(
            place,
            job,
            args,
            files=files,
            returns=returns,
            timeout=timeout,
            check=check,
            decoding=decoding,
            outputs=Outputs(PIPE, stderr),
        )
        task.stdin = stdin_of(stdin, decoding)
        try:
            with self._lock:
                self._loop.call(lambda crew: crew.add(task), fail=task.end)
                self._jobs.add(job)
        except BaseException:
            task.release()
            raise
        return job

    def _place_of_agents(self) -> Place:
        """Return where agents run. They have no secrets in their environment, not even on this machine."""
        if self._agents is None:
            options = self._place.options
            self._agents = Place(options.replace(on=options.on or "local"))
        return self._agents

    def map(  # type: ignore[override]
        self,
        command: Any,
        /,
        *iterables: Iterable[Any],
        mission: str | None = None,
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        **options: Any,
    ) -> Iterator[Result[Any]]:
        """Yield the results of one job for each item, in the order of the items.

        The items are the last arguments of `command`, one of each iterable. With `None` and a mission an item is the
        material of an agent, on its stdin. `timeout` is the number of seconds from this call on in which a result has
        to be there, else a TimeoutError is raised; `buffersize` bounds how many jobs are submitted ahead. `options`
        are those of `submit`. Jobs whose results are not awaited any more are cancelled.
        """
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be 1 or more, or None")
        if mission is not None and len(iterables) != 1:
            raise TypeError("with a mission there is one iterable: of the materials")
        items = zip(*iterables)
        deadline = None if timeout is None else time.monotonic() + timeout
        ahead: deque[Future[Any]] = deque()

        def submit() -> bool:
            for item in items:
                if mission is None:
                    ahead.append(self.submit([*command_of(command), *item], **options))
                else:
                    (material,) = item
                    ahead.append(self.submit(command, mission=mission, stdin=material, **options))
                return True
            return False

        def results() -> Iterator[Result[Any]]:
            try:
                while ahead:
                    left = None if deadline is None else deadline - time.monotonic()
                    result = ahead[0].result(left)
                    ahead.popleft()
                    submit()
                    yield result
            finally:
                for job in ahead:
                    job.cancel()

        while (buffersize is None or len(ahead) < buffersize) and submit():
            pass
        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more jobs. Those that were submitted run on, but with `cancel_futures` those that wait do not.

        With `wait` return when all of them have ended. In a handler of a signal that comes in the middle of `submit`
        there is no waiting: that call would have to be finished first.
        """
        wait = wait and not held(self._lock)
        with self._lock:
            self._loop.close()
            jobs = list(self._jobs) if cancel_futures else []
        for job in jobs:
            job.withdraw()
        if wait:
            self._loop.join()
