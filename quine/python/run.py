"""`quine.run`: one command, here or on a host, with the interface of `subprocess.run`."""

from __future__ import annotations

import os
import subprocess
import time
from concurrent.futures import Future
from typing import Any

from quine.base.cli_options import RunOptions
from quine.python.crew import Crew
from quine.python.outputs import Decoding, Outputs
from quine.python.task import Place, Task, command_of, pairs, stdin_of, variables
from transport.lean import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Literal, TypedDict, Unpack, overload

    from quine.python.result import Result
    from quine.python.task import Word

    class Options(TypedDict, total=False):
        """The arguments of `run` beside the kind of its output."""

        on: str
        stdin: Any
        input: bytes | str | None
        stdout: Any
        stderr: Any
        capture_output: bool
        check: bool
        timeout: float | None
        errors: str | None
        cwd: str | os.PathLike[str] | None
        env: Mapping[str, str] | None
        files: Iterable[str | os.PathLike[str]]
        returns: Iterable[str | os.PathLike[str]]
        limits: Mapping[str, str | int] | None
        inventory: str


if TYPE_CHECKING:

    @overload
    def run(
        args: Iterable[Word],
        *,
        text: Literal[False] | None = None,
        encoding: None = None,
        **options: Unpack[Options],
    ) -> Result[bytes]: ...
    @overload
    def run(
        args: Iterable[Word],
        *,
        text: Literal[True],
        encoding: str | None = None,
        **options: Unpack[Options],
    ) -> Result[str]: ...


def run(
    args: Iterable[Word],
    *,
    on: str = "",
    stdin: Any = None,
    input: bytes | str | None = None,
    stdout: Any = None,
    stderr: Any = None,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    text: bool | None = None,
    encoding: str | None = None,
    errors: str | None = None,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    files: Iterable[str | os.PathLike[str]] = (),
    returns: Iterable[str | os.PathLike[str]] = (),
    limits: Mapping[str, str | int] | None = None,
    inventory: str = "",
) -> Result[Any]:
    """Run a command, wait for its end, and return a Result, which is a `subprocess.CompletedProcess`.

    on          WHERE: a host, @tag, any; "" for this machine
    stdin       None: this process's own; PIPE, DEVNULL: empty; also bytes, text, a path, an open file
    stdout      None: this process's own; PIPE, DEVNULL, a descriptor, an open file
    stderr      likewise, and STDOUT
    timeout     seconds from the call on
    env         on this machine the whole environment; on another one it is added to that of a login there
    files       paths that it has there before it starts, as with `quine run --files`
    returns     patterns that are brought back after its end
    limits      such as {"as": "2G", "cpu": 60}

    Raises CalledProcessError (with `check`) and TimeoutExpired of `subprocess`; NeverStarted and Lost; Misconfigured if
    a file is missing or a limit is none.
    """
    if input is not None and stdin is not None:
        raise ValueError("stdin and input arguments may not both be used.")
    if capture_output and not stdout is stderr is None:
        raise ValueError("stdout and stderr arguments may not be used with capture_output.")
    pipe = subprocess.PIPE
    outputs = Outputs(pipe, pipe) if capture_output else Outputs(stdout, stderr)
    words, decoding = command_of(args), Decoding.of(text, encoding, errors)
    options = RunOptions(on=on, inventory=inventory, limit=tuple(pairs(limits or {})))
    place = Place(options).changed(cwd, env if options.elsewhere else None)
    if env is not None and not options.elsewhere:
        variables(env)
        place.env = dict(env)
    task = Task(
        place, Future(), words, files=files, returns=returns, check=check, decoding=decoding, outputs=outputs
    )
    task.timeout = timeout
    task.stdin = stdin_of(_given(stdin) if input is None else input, decoding)
    return _end(task)


def _given(stdin: Any) -> Any:
    """Return stdin as a task takes it, from what `subprocess.run` takes."""
    if stdin is None:
        try:
            os.fstat(0)
        except OSError:
            return None  # it is closed
        return 0
    return None if stdin in (subprocess.PIPE, subprocess.DEVNULL) else stdin


def _end(task: Task) -> Result[Any]:
    """Run a task to its end. A job that still runs after an error here, such as ^C, is ended by the node."""
    crew = Crew(task.place.options, 1)
    try:
        crew.add(task)
        if task.timeout is not None:
            crew.at(time.monotonic() + task.timeout, lambda: crew.expire(task, first=signal.SIGKILL))
        while not crew.idle:
            crew.turn()
    finally:
        crew.close()
        task.release()
    return task.future.result()  # type: ignore[no-any-return]
