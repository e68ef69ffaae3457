"""The view of a detached batch below the outputs that `quine attach` prints on a terminal.

Laws
1. The view is erased before anything else is written to the terminal, and painted again when all of it is written.
2. It is erased while this process is stopped, and at its end, also by a signal.
3. Of a batch on another machine it is painted there, into the one stream that all outputs go through: VARIABLE has the
   size of the terminal here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from quine.jobs import batch_state
from quine.tape import registry
from transport.client.signals import Caught
from transport.status import die_of, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.tape.registry import Agent
    from transport.client.output import Output

EVERY = 1.0  # seconds between two paintings
ERASE = b"\r\x1b[J"
VARIABLE = "QUINE_VIEW"  # COLUMNSxLINES, in the environment of an `attach` that another machine has started
UNWRAPPED = "\x1b[?7l", "\x1b[?7h"  # that terminal may be smaller by now
FATAL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def wanted(agent: Agent) -> bool:
    """Whether a job is a batch, and stderr a terminal that takes the cursor back."""
    takes = _far_size() or _is_terminal(2)
    return bool(takes) and registry.record(agent.directory).get("batch") is True


def far() -> dict[str, str]:
    """Return the variable by which an `attach` on another machine paints on our terminal; none if there is none.

    The outputs of two streams would not stay in order, so both must go there.
    """
    if not _is_terminal(2) or not _one_terminal():
        return {}
    width, height = os.get_terminal_size(2)
    return {VARIABLE: f"{width or 80}x{height or 24}"}


def _is_terminal(fd: int) -> bool:
    return os.isatty(fd) and os.environ.get("TERM", "dumb") not in ("", "dumb")


def _one_terminal() -> bool:
    return os.isatty(1) and os.fstat(1).st_rdev == os.fstat(2).st_rdev


def _far_size() -> tuple[int, int] | None:
    width, _, height = os.environ.get(VARIABLE, "").partition("x")
    return (int(width), int(height)) if width.isdecimal() and height.isdecimal() else None


@contextlib.contextmanager
def shown(pid: int, outputs: list[Output]) -> Iterator[Painter]:
    """Make stdout and stderr one queue if they are one terminal. Erase the view at the end, also by a signal."""
    if _far_size() or _one_terminal():
        outputs[0] = outputs[1]  # one order of all that is written to it
    painter = Painter(pid, outputs)
    previous = [(number, signal.signal(number, _raise)) for number in (signal.SIGTERM, signal.SIGHUP)]
    painter.caught.install((signal.SIGTSTP, signal.SIGCONT))
    ended = ""
    try:
        yield painter
    except _Ended as signalled:
        ended = signal_name(signalled.number)
    finally:
        painter.caught.uninstall()
        painter.caught.close()
        for number, action in previous:
            signal.signal(number, action)
        painter.erase()
        outputs[1].write()
    if ended:
        die_of(ended)


class _Ended(BaseException):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _raise(number: int, _: object) -> None:
    raise _Ended(number)


class Painter:
    """Paints on stderr, the second of `outputs`, which may be one with the first."""

    def __init__(self, pid: int, outputs: list[Output]) -> None:
        self.caught = Caught()
        self._pid = pid
        self._far = _far_size()
        self._outputs = outputs
        self._alike = outputs[0] is outputs[1]
        self._painted = False
        self._at_line = True  # the terminal's last line is empty
        self._next = 0.0

    @property
    def pause(self) -> float:
        """Seconds until the next painting."""
        return max(0.0, self._next - time.monotonic())

    def before(self, stream: int, data: bytes) -> None:
        """Erase the view, since `data` is about to be written to the first or the second output."""
        if stream == 0 and not self._alike:
            return
        self.erase()
        self._at_line = data.endswith(b"\n")
        self._next = 0.0

    def erase(self) -> None:
        if self._painted:
            self._painted = False
            self._outputs[1].put(ERASE)

    def signalled(self) -> None:
        """Take the signals that this process got: to stop, or to go on where the shell had the terminal meanwhile."""
        self.caught.drain()
        while number := self.caught.take():
            if number == signal.SIGTSTP:
                self.erase()
                self._outputs[1].write()
                self.caught.stop(number, FATAL)
            self._painted, self._at_line, self._next = False, True, 0.0

    def tick(self) -> None:
        """Paint, if it is time and all output is written."""
        if self.pause:
            return
        self._next = time.monotonic() + EVERY
        if any(output.pending for output in self._outputs):
            return
        state = batch_state.of_process(self._pid)
        if state is None or not (self._far or _in_foreground()):
            return
        try:
            width, height = self._far or os.get_terminal_size(2)
        except OSError:
            return
        lines = batch_state.lines(state, (width or 80) - 1, max(2, (height or 24) // 2))
        begin = "\r" if self._at_line or self._painted else "\n"
        back = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        text = "\n".join(lines).join(UNWRAPPED if self._far else ("", ""))
        # The cursor stays at the first of them: the text of another process overwrites them, and not the reverse.
        self._outputs[1].put(f"{begin}\x1b[J{text}\r{back}".encode())
        self._at_line = self._painted = True


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return False
