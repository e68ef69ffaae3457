"""Results of jobs as Python programs get them, and the errors in place of one.

Law: a job that has an exit status has a Result, whatever the status is. A job that was never started, or whose outcome
is not known, has an error and no Result.
"""

from __future__ import annotations

import subprocess
from typing import Any, AnyStr, BinaryIO, Generic, cast

from quine.base.errors import Failure
from transport.status import Status, signal_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from quine.python.outputs import Captured, Decoding


class JobError(Failure):
    """A job without a result. `status` is what `quine run` exits with, `detail` the reason, `hint` the cure.

    `host` is "" where the reason is not one host's. `report` is the object of `--report`.
    """

    def __init__(self, status: Status, report: dict[str, Any]) -> None:
        super().__init__(status.code, status.detail or status.state, status.hint, status.host)
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        """A process pool passes it on: an exception that cannot be unpickled breaks the pool."""
        status = Status("", self.status, host=self.host, detail=self.detail, hint=self.hint)
        return type(self), (status, self.report)

    def __str__(self) -> str:
        cure = f" ({self.hint})" if self.hint else ""
        return (f"{self.host}: " if self.host else "") + self.detail + cure


class NeverStarted(JobError):
    """Nothing has run: no host could start the job (status 69), or a rule or a budget forbids it (77)."""


class Lost(JobError):
    """The job was started, or may have been, and its outcome is not known (status 74)."""


class CommandError(subprocess.CalledProcessError):
    """A CalledProcessError whose reason quine knows, which its text is about: the command itself may have succeeded."""

    detail = ""

    def __str__(self) -> str:
        return f"Command {self.cmd!r}: {self.detail} (status {self.returncode})"


class Result(subprocess.CompletedProcess, Generic[AnyStr]):  # type: ignore[type-arg]
    """The end of a job, as `subprocess.CompletedProcess` has it, with the host and the report.

    args        the command as a list, or the mission of an agent as text
    returncode  its exit status; -N if signal N ended it
    status      its exit status as a shell has it: 128+N if signal N ended it
    stdout      its output; None if it was not captured. A large one is read from its file each time
    stderr      likewise
    host        the name of the host that it ran on; "local" for this machine
    report      the object of `--report`: state, signal, detail, pid, times and use of the processor, and of an agent
                session and tokens
    """

    def __init__(
        self,
        args: Sequence[str] | str,
        status: Status,
        report: dict[str, Any],
        captured: Sequence[Captured | None],
        decoding: Decoding | None,
    ) -> None:
        self._captured = captured
        self._decoding = decoding
        super().__init__(args, returncode(status))
        self.status = status.code
        self.host = str(report["host"])
        self.report = report

    def _read(self, stream: int) -> AnyStr:
        captured = self._captured[stream - 1]
        if captured is None:
            return cast(
                "AnyStr", None
            )  # as in CompletedProcess: a caller that has captured it needs no check
        data = captured.read()
        return cast("AnyStr", self._decoding.text(data) if self._decoding else data)

    @property
    def stdout(self) -> AnyStr:
        return self._read(1)

    @stdout.setter
    def stdout(self, _: AnyStr) -> None:
        """CompletedProcess sets it."""

    @property
    def stderr(self) -> AnyStr:
        return self._read(2)

    @stderr.setter
    def stderr(self, _: AnyStr) -> None:
        """CompletedProcess sets it."""

    def open(self, stream: str = "stdout") -> BinaryIO:
        """Return captured output as a binary file, for output that is larger than memory."""
        captured = self._captured[("stdout", "stderr").index(stream)]
        if captured is None:
            raise ValueError(f"{stream} was not captured")
        return captured.open()

    def __repr__(self) -> str:
        return f"Result(args={self.args!r}, returncode={self.returncode}, host={self.host!r})"


def returncode(status: Status) -> int:
    if status.state != "signaled":
        return status.code
    try:
        return -signal_number(status.signal or "")
    except ValueError:  # a signal that only the other machine knows
        return 128 - status.code
