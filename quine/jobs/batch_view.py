"""The view of a detached batch below the outputs that `quine attach` prints on a terminal.

Law: the view is erased before anything else is written to the terminal, and painted again when all of it is written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from quine.jobs import batch_state
from quine.tape import registry
from transport.status import die_of, signal_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from quine.tape.registry import Agent
    from transport.client.output import Output

EVERY = 1.0  # seconds between two paintings
ERASE = b"\r\x1b[J"


def wanted(agent: Agent) -> bool:
    """Whether a job is a batch, and stderr a terminal that takes the cursor back."""
    takes = os.isatty(2) and os.environ.get("TERM", "dumb") not in ("", "dumb")
    return takes and registry.record(agent.directory).get("batch") is True


@contextlib.contextmanager
def shown(pid: int, outputs: list[Output]) -> Iterator[Painter]:
    """Make stdout and stderr one queue if they are one terminal. Erase the view at the end, also by a signal."""
    if os.isatty(1) and os.fstat(1).st_rdev == os.fstat(2).st_rdev:
        outputs[0] = outputs[1]  # one order of all that is written to it
    painter = Painter(pid, outputs)
    previous = [(number, signal.signal(number, _raise)) for number in (signal.SIGTERM, signal.SIGHUP)]
    ended = ""
    try:
        yield painter
    except _Ended as signalled:
        ended = signal_name(signalled.number)
    finally:
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
        self._pid = pid
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

    def tick(self) -> None:
        """Paint, if it is time and all output is written."""
        if self.pause:
            return
        self._next = time.monotonic() + EVERY
        if any(output.pending for output in self._outputs):
            return
        state = batch_state.of_process(self._pid)
        if state is None or not _in_foreground():
            return
        try:
            width, height = os.get_terminal_size(2)
        except OSError:
            return
        lines = batch_state.lines(state, (width or 80) - 1, max(2, (height or 24) // 2))
        begin = "\r" if self._at_line or self._painted else "\n"
        back = f"\x1b[{len(lines) - 1}A" if len(lines) > 1 else ""
        text = "\n".join(lines)
        # The cursor stays at the first of them: the text of another process overwrites them, and not the reverse.
        self._outputs[1].put(f"{begin}\x1b[J{text}\r{back}".encode())
        self._at_line = self._painted = True


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(2) == os.getpgrp()
    except OSError:
        return False
