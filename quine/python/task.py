"""One submitted job: its command or mission, its place, its stdin and outputs, and the future that waits for it."""

from __future__ import annotations

import os
import subprocess
import time
from copy import copy
from typing import Any

from quine.base import run_report
from quine.base.cli_options import environment
from quine.base.errors import USAGE, Misconfigured
from quine.base.procs import opened_file
from quine.jobs.client import caller, callers_environment, callers_limits, staging, starting_directory
from quine.python.outputs import Decoding, Outputs
from quine.python.result import CommandError, Lost, NeverStarted, Result, returncode
from transport.status import LOST, Status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from concurrent.futures import Future
    from typing import Union

    from quine.base.cli_options import RunOptions
    from quine.jobs.staged import StagedJob

    Word = Union[str, bytes, os.PathLike[str], os.PathLike[bytes]]


def command_of(command: object) -> list[str]:
    """Return the words of a command. Raises TypeError or ValueError."""
    if callable(command):
        raise TypeError("a command is a list of words: no function is sent to another machine")
    if isinstance(command, (str, bytes, os.PathLike)):
        raise TypeError("a command is a list of words: no shell reads it, but that of ['sh', '-c', '…']")
    if not hasattr(command, "__iter__"):
        raise TypeError(f"a command is a list of words, not {type(command).__name__}")
    given = list(command)
    if wrong := [word for word in given if not isinstance(word, (str, bytes, os.PathLike))]:
        raise TypeError(f"a word of a command, and an item of map, is text or a path, not {wrong[0]!r}")
    words = list(map(os.fsdecode, given))
    if not words or not words[0]:
        raise ValueError("no command")
    if any("\0" in word for word in words):
        raise ValueError("a NUL in a word of a command")
    return words


def mission_of(mission: object) -> str:
    """Return the text of a mission. Raises TypeError or ValueError."""
    if not isinstance(mission, str):
        raise TypeError(f"a mission is text, not {type(mission).__name__}")
    if not mission.strip():
        raise ValueError("no mission")
    mission.encode()  # its UnicodeEncodeError is a ValueError
    return mission


def stdin_of(given: Any, decoding: Decoding | None) -> bytes | int | str:
    """Return stdin as bytes, as a descriptor of its own, or as the path of a file. Raises TypeError or OSError."""
    if given is None:
        return b""
    if isinstance(given, str):
        return given.encode(*(decoding or ("utf-8", "strict")))
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    if isinstance(given, os.PathLike):
        return os.path.abspath(os.fsdecode(given))
    if isinstance(given, int) and given >= 0:
        return os.dup(given)
    if hasattr(given, "fileno"):
        return os.dup(given.fileno())
    raise TypeError(f"stdin is bytes, text, a path or an open file, not {type(given).__name__}")


def paths_of(name: str, given: Iterable[str | os.PathLike[str]]) -> tuple[str, ...]:
    """Return paths as the words of an option. Raises TypeError for one that is not in a list."""
    if isinstance(given, (str, bytes, os.PathLike)):
        raise TypeError(f"{name} is a list of paths, not one")
    return tuple(map(os.fsdecode, given))


class Place:
    """Where jobs run, and with which surroundings; made once for all jobs that share it. Raises Misconfigured."""

    def __init__(self, options: RunOptions) -> None:
        self.where = options.on or "local"
        self.context = caller(options)
        self.environ = dict(os.environ)  # of the services of its jobs
        # One tree: its jobs on a host share a directory, if no other is named, and one that is empty goes at the end.
        self.tree = os.environ.get("QUINE_ROOT_SESSION", "") or os.urandom(16).hex()
        self._settle(options)

    def _settle(self, options: RunOptions) -> None:
        self.options = options
        self.env = {**callers_environment(options), **environment(options, self.environ)}
        self.cwd = starting_directory(options)
        self.limits = callers_limits(options)

    def changed(
        self,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        limits: Mapping[str, str | int] | None = None,
    ) -> Place:
        """Return the same place, with these as well."""
        given: dict[str, object] = {}
        if cwd is not None:
            given["cwd"] = os.fsdecode(cwd)
        if env:
            given["env"] = (*self.options.env, *variables(env))
        if limits:
            given["limit"] = (*self.options.limit, *pairs(limits))
        if not given:
            return self
        place = copy(self)
        place._settle(self.options.replace(**given))
        return place


def variables(given: Mapping[str, str]) -> Iterable[str]:
    """Return an environment as the words that an option takes. Raises TypeError."""
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env has texts, not {name!r}: {value!r}")
    return pairs(given)


def pairs(given: Mapping[str, str] | Mapping[str, str | int]) -> Iterable[str]:
    """Return a mapping as the words that an option takes."""
    return (f"{name}={value}" for name, value in given.items())


class Task:
    """A job from its submission to its end. `future` has its end."""

    __slots__ = (
        "__weakref__",
        "_cancelled",
        *("args", "avoid", "check", "decoding", "ending", "facts", "future", "job", "outputs", "place"),
        *("stage", "started", "stdin", "timed_out", "timeout", "tries"),
    )

    def __init__(
        self,
        place: Place,
        future: Future[Any],
        args: list[str] | str,
        *,
        stdin: bytes | int | str = b"",
        files: Iterable[str | os.PathLike[str]] = (),
        returns: Iterable[str | os.PathLike[str]] = (),
        timeout: float | None = None,
        check: bool = False,
        decoding: Decoding | None = None,
        outputs: Outputs | None = None,
    ) -> None:
        """`args` is a command as a list, or a mission as text. A descriptor as stdin is closed after the end."""
        self.place = place
        self.future = future
        self.args = args
        self.stdin = stdin
        wanted = {"files": paths_of("files", files), "returns": paths_of("returns", returns)}
        self.stage = staging(place.options.replace(**wanted), looks=True)
        self.timeout = timeout
        self.check = check
        self.decoding = decoding
        self.outputs = outputs or Outputs()
        self.avoid: list[str] = []  # hosts that have failed to start it
        self.tries = 0
        self.job: StagedJob | None = None  # of this try
        self.started = 0.0  # seconds since the epoch
        self.facts: dict[str, object] = {}  # of an agent
        self._cancelled = False  # the future was, and knows that it ends
        self.timed_out = self.ending = False

    def begin(self) -> int | bytes:
        """Another try. Return its stdin. Raises OSError."""
        self.tries += 1
        self.started = time.time()
        self.outputs.drop()
        if isinstance(self.stdin, str):
            self.stdin = opened_file(self.stdin)
        return self.stdin

    def write(self, stream: int, data: memoryview) -> int | None:
        """Keep bytes of output; if that fails its job gets SIGPIPE. Return 0 in that case, as `on_output` does."""
        if self.outputs.write(stream, data):
            return None
        if self.job:
            self.job.refuse(stream, f"its output cannot be kept: {self.outputs.fault}")
        return 0

    def judged(self, status: Status) -> Result[Any] | Exception:
        """Return the result of this end, or the error in its place."""
        if self.outputs.incomplete and status.state in ("exited", "signaled"):
            fault = f"its output cannot be kept: {self.outputs.fault}"
            status = Status("lost", LOST, host=status.host, pid=status.pid, detail=fault)
        try:
            return self._outcome(status)
        except (OSError, ValueError) as error:  # the file of its output has gone, or it is no text
            return error

    def _outcome(self, status: Status) -> Result[Any] | Exception:
        seconds = time.time() - self.started if self.started else 0.0
        facts = {"started": self.started, "seconds": seconds, **self.facts}
        report = run_report.record(status, self.place.where, **facts)
        if status.state == "lost":
            return Lost(status, report)
        if self.timed_out:
            out, err = (each.read() if each else None for each in self.outputs.captured)
            return subprocess.TimeoutExpired(self.args, self.timeout or 0.0, out, err)
        if status.state == "unreachable" and status.code == USAGE:
            return Misconfigured(status.detail, status.hint)
        if status.state in ("unreachable", "denied"):
            return NeverStarted(status, report)
        result: Result[Any] = Result(self.args, status, report, self.outputs.captured, self.decoding)
        if self.check and returncode(status):
            end = (result.returncode, self.args, result.stdout, result.stderr)
            if not status.detail:
                return subprocess.CalledProcessError(*end)
            error = CommandError(*end)
            error.detail = status.detail
            return error
        return result

    def runs(self) -> bool:
        """Make its future one that runs, if it is none yet. False if that was cancelled, of which it is told once."""
        if not self._cancelled and not self.future.running():
            self._cancelled = not self.future.set_running_or_notify_cancel()
        return not self._cancelled

    def end(self, outcome: Result[Any] | BaseException) -> None:
        """Give the future its end. One that was cancelled before the job started has it already."""
        self.release()
        future = self.future
        if not self.runs():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def release(self) -> None:
        """Its stdin is not needed any more."""
        if isinstance(self.stdin, int):
            os.close(self.stdin)
        self.stdin = b""
