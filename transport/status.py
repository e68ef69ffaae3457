"""How a job ended, in one value that crosses every border: wait status, frame, report, exit status.

Laws
1. Five states and no sixth: exited, signaled, unreachable (never started), denied (never started, by rule),
   lost (started, outcome unknown). A missing exit status is lost, never 0.
2. A signal is carried by name; numbers differ between machines.
"""

from __future__ import annotations

import os
import signal
from dataclasses import asdict, dataclass, field
from typing import Any

STATES = ("exited", "signaled", "unreachable", "denied", "lost")

NOT_STARTED = 69
LOST = 74
DENIED = 77


@dataclass(frozen=True, slots=True)
class Status:
    """The end of one job. `code` is the exit status that a shell should see (128+n for a signal)."""

    state: str
    code: int
    signal: str | None = None
    host: str = ""
    pid: int = 0
    detail: str = ""
    hint: str = ""
    rusage: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_wait(cls, wait_status: int, **facts: Any) -> Status:
        """From the status word of waitpid(2)."""
        if os.WIFSIGNALED(wait_status):
            number = os.WTERMSIG(wait_status)
            return cls("signaled", 128 + number, signal_name(number), **facts)
        return cls("exited", os.WEXITSTATUS(wait_status), **facts)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Status:
        """Strict: unknown state or wrong type raises ValueError."""
        try:
            status = cls(**data)
        except TypeError as error:
            raise ValueError(str(error)) from None
        texts = (status.state, status.host, status.detail, status.hint, status.signal or "")
        if status.state not in STATES or not all(isinstance(text, str) for text in texts):
            raise ValueError("not a status")
        if not isinstance(status.code, int) or not 0 <= status.code <= 255 or not isinstance(status.pid, int):
            raise ValueError("not a status")
        return status


def signal_name(number: int) -> str:
    """15 -> "TERM"; a realtime signal keeps its number, "34"."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def signal_number(name: str) -> int:
    """ "TERM", "SIGTERM" or "15" -> 15; raises ValueError for what this machine does not know."""
    if name.isdigit():
        number = int(name)
        if 0 < number < signal.NSIG:
            return number
    elif value := getattr(signal, "SIG" + name.upper().removeprefix("SIG"), None):
        if isinstance(value, signal.Signals):
            return int(value)
    raise ValueError(f"no such signal: {name!r}")


def die_of(name: str) -> None:
    """End this process by the same signal, so that the shell sees the truth; no core of our own.

    Returns only where the signal cannot kill us (then exit with 128+n).
    """
    number = signal_number(name)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)
