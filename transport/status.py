"""How a job ended: one value for wait status, frame, report and exit status.

Laws
1. Five states and no sixth: exited, signaled, unreachable (never started), denied (never started, by rule),
   lost (started, outcome unknown). A missing exit status is lost, never 0.
2. A signal is carried by name; numbers differ between machines. The code of a job that died of a signal is 128+n, n
   being the number on the machine where the status is read.
3. A record may come from a host that lies. Its fields have to fit each other: no state but `exited` has code 0, and
   only a signal that ends processes has ended one.
"""

from __future__ import annotations

import os

from transport.lean import signal, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FIELDS = ("code", "detail", "hint", "host", "left", "pid", "rusage", "signal", "state")  # of a record
STATES = ("exited", "signaled", "unreachable", "denied", "lost")

NO_ANSWER = "its host has not answered"  # how the detail of a start begins that was given up
LONGEST = 1000  # characters of a detail or a hint
MOST = 1 << 53  # up to this every JSON reader represents integers exactly
RUSAGE = {"utime", "stime", "maxrss"}
USAGE = 2
NOT_STARTED = 69
LOST = 74
DENIED = 77
TIMED_OUT = 124  # as timeout(1)
BROKEN_PIPE = 128 + signal.SIGPIPE  # of a process that SIGPIPE killed, and of its shell
NOT_RUN = (126, 127)  # a command that cannot be executed, or was not found
# They stop a process, continue it, or do nothing: none of them is the end of a job.
SPARING = (
    signal.SIGSTOP,
    signal.SIGTSTP,
    signal.SIGTTIN,
    signal.SIGTTOU,
    signal.SIGCONT,
    signal.SIGCHLD,
    signal.SIGURG,
    signal.SIGWINCH,
)


class Status:
    """The end of one job.

    `code` is the exit status for a shell: the job's own, 128+n for a signal, 69 or 74 or 77 for the states
    without a process status. `rusage` is {"utime", "stime": seconds, "maxrss": KiB}. `hint` is the cure. `left` is the
    directory that was made for the job and is kept because it is not empty; "" if there is none, or it was kept before.
    `here` is not recorded: the cause is in this process, a stream that it has stopped or a signal that it passed on.
    """

    # A plain class: dataclasses would cost the client a third of its start time.
    __slots__ = (*FIELDS, "here")

    def __init__(
        self,
        state: str,
        code: int,
        signal: str | None = None,
        host: str = "",
        pid: int = 0,
        detail: str = "",
        hint: str = "",
        rusage: dict[str, float] | None = None,
        left: str = "",
    ) -> None:
        self.state = state
        self.code = code
        self.signal = signal or None  # records of children have "" for none
        self.host = clip(host)
        self.pid = pid
        self.detail = clip(detail)
        self.hint = clip(hint)
        self.left = clip(left)
        self.here = False
        self.rusage = {} if rusage is None else rusage

    @classmethod
    def from_wait(cls, wait_status: int, **facts: Any) -> Status:
        """Make a Status from the status word of waitpid(2)."""
        if os.WIFSIGNALED(wait_status):
            number = os.WTERMSIG(wait_status)
            return cls("signaled", 128 + number, signal_name(number), **facts)
        return cls("exited", os.WEXITSTATUS(wait_status), **facts)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in FIELDS}

    @classmethod
    def from_json(cls, data: Any) -> Status:
        """Strict: an unknown state, field or type, or fields that do not fit each other, raise ValueError."""
        if not isinstance(data, dict) or not set(data) <= set(FIELDS):
            raise ValueError("unknown field in a status")
        try:
            status = cls(**data)
        except (TypeError, AttributeError, KeyError) as error:
            # KeyError: `clip` of an object; a slice is a key since Python 3.12
            raise ValueError(str(error)) from None
        if status.state not in STATES or not isinstance(status.signal, (str, type(None))):
            raise ValueError("not a status")
        if not (_whole(status.code, 255) and _whole(status.pid, MOST)):
            raise ValueError("not a status")
        if status.left != data.get("left", ""):
            raise ValueError("not a path of one line")
        # The status is encoded again on its way: a nested value, or NaN, would fail there.
        if not (isinstance(status.rusage, dict) and status.rusage.keys() <= RUSAGE):
            raise ValueError("not a status")
        if not all(type(value) in (int, float) and 0 <= value <= MOST for value in status.rusage.values()):
            raise ValueError("not a status")
        status._settle()
        return status

    @classmethod
    def of_exit(cls, data: dict[str, Any], started: bool) -> Status:
        """As `from_json`, of an exit record that came on the wire. `started`: the job was reported as started."""
        status = cls.from_json(data)
        if started and status.state in ("unreachable", "denied"):
            # It would be started again.
            raise ValueError("exit frame that says never started, of a job that was")
        ended = status.state in ("exited", "signaled") and status.code not in NOT_RUN
        if not started and ended:
            raise ValueError("exit frame that says how a job ended that was never started")
        return status

    def stream_failed(self, what: str, error: str) -> None:
        """Note that `what` failed here ("write stdout"); a success or a death by SIGPIPE becomes lost.

        This process stopped the stream and so caused the SIGPIPE. Its status would say that a reader has left.
        """
        self.here = True
        self.detail = self.detail or f"cannot {what}: {error.lower()}"
        if self.code in (0, BROKEN_PIPE):
            self.state, self.code, self.signal = "lost", LOST, None

    def _settle(self) -> None:
        """Raise ValueError if state, code and signal contradict each other; give a death by signal its code."""
        if self.state == "signaled":
            number = signal_number(self.signal or "")
            if number in SPARING:
                raise ValueError(f"no process ends by signal {self.signal}")
            self.signal, self.code = signal_name(number), 128 + number
        elif self.signal or (self.state != "exited" and not self.code):
            raise ValueError(f"{self.state} with code {self.code}{' and a signal' if self.signal else ''}")
        elif self.state == "lost" and self.code != LOST:
            raise ValueError(f"lost with code {self.code}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Status) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.state, self.code, self.signal, self.host, self.pid))

    def __repr__(self) -> str:
        return f"Status({self.state}, code={self.code}, signal={self.signal}, host={self.host!r}, {self.detail!r})"


def _whole(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def clip(text: str) -> str:
    """Return `text` short enough for one frame and one message, encodable, and without terminal control characters.

    It may come from a machine that is not trusted, and it is shown to a person.
    """
    text = text[: 2 * LONGEST]
    if not text.isprintable():
        from transport.text import harmless

        text = harmless(text)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def signal_name(number: int) -> str:
    """15 -> "TERM"; a realtime signal keeps its number, "34"."""
    return min((name for name, value in _numbers().items() if value == number), default=str(number))


def signal_number(name: str) -> int:
    """ "TERM", "SIGTERM" or "15" -> 15; raises ValueError for a signal that this machine does not know."""
    if name.isascii() and name.isdigit():
        number = int(name)
        if 0 < number < signal.NSIG:
            return number
    elif number := _numbers().get(name.upper().removeprefix("SIG"), 0):
        return number
    raise ValueError(f"no such signal: {name[:40]!r}")


def _numbers() -> dict[str, int]:
    """Return the number of every signal name; of two names for one, callers use the first in the alphabet."""
    names = (name for name in vars(signal) if name.startswith("SIG") and not name.startswith("SIG_"))
    return {name.removeprefix("SIG"): int(getattr(signal, name)) for name in names}


def die_of(name: str) -> None:
    """End this process by the same signal, so that the shell sees the truth; without a core of our own.

    Returns if the signal ends no process, or not this one; the caller then exits with 128+n.
    """
    import resource

    number = signal_number(name)
    if number in SPARING:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if number != signal.SIGKILL:
        # The C library keeps some numbers for itself: their action is the default.
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    os.kill(os.getpid(), number)


def restore_signals() -> None:
    """Reset SIGPIPE and SIGXFSZ before exec: CPython ignores them, and an exec keeps that."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
